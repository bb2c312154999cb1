"""The reference leaves no public name out, and the example of the README runs as it stands."""

from __future__ import annotations

import functools
import html
import inspect
import re
import warnings
from pathlib import Path

import pytest

import sklearn_cdgd

ROOT = Path(__file__).parents[1]


def public_names(module):
    for name in module.__all__:
        value = getattr(module, name)
        if hasattr(value, "__all__"):
            yield from (f"{name}.{inner}" for inner in value.__all__)
        elif not name.startswith("__"):  # the version
            yield name


@pytest.fixture
def build(tmp_path, capsys, monkeypatch):
    """Return a function that builds a one-page site with an extension of ours; warnings are errors."""
    build_main = pytest.importorskip("sphinx.cmd.build").build_main
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")

    def build(page, extension):
        (tmp_path / "index.rst").write_text("Page\n====\n\n" + page)
        (tmp_path / "conf.py").write_text(f"extensions, exclude_patterns = [{extension!r}], ['results']\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            failed = build_main(["-W", "--keep-going", "-q", "-E", "-b", "xml", str(tmp_path), str(tmp_path / "out")])
        return failed, capsys.readouterr().err, (tmp_path / "out" / "index.xml").read_text()

    return build


def reference_of(names):
    return "".join(f".. py:function:: sklearn_cdgd.{name}\n\n" for name in names)


def test_a_reference_of_every_public_name_builds(build):
    failed, words, _ = build(reference_of(public_names(sklearn_cdgd)), "every_public_name")
    assert not failed, words


@pytest.mark.parametrize("hidden", ["CorruptionDetector", "datasets.flip_labels"])
def test_a_hidden_public_name_fails_the_build(build, hidden):
    names = [name for name in public_names(sklearn_cdgd) if name != hidden]
    failed, words, _ = build(reference_of(names), "every_public_name")
    assert failed
    assert f"sklearn_cdgd.{hidden} is public, but the API reference leaves it out." in words
    assert words.count("WARNING") == 1


def test_the_reference_lists_every_public_name():
    listed = re.findall(r"^   ([\w.]+)$", (ROOT / "docs" / "api.rst").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(public_names(sklearn_cdgd))


@pytest.mark.parametrize("name", sorted(public_names(sklearn_cdgd)))
def test_every_public_name_has_an_example(name):
    thing = functools.reduce(getattr, name.split("."), sklearn_cdgd)
    assert "\nExamples\n--------\n>>> " in inspect.getdoc(thing)


def test_the_picture_of_the_layers_shows_every_module_of_the_rule(build, tmp_path):
    for module, first_line in [("_top", "What users call, ``fit`` say."), ("_left", "One."), ("_right", "Two: a < b.")]:
        (tmp_path / "package").mkdir(exist_ok=True)
        (tmp_path / "package" / f"{module}.py").write_text(f'"""{first_line}\n\nMore.\n"""\n')
    layers = ["package._top", "package._left | package._right"]
    (tmp_path / "pyproject.toml").write_text(f"[[tool.importlinter.contracts]]\ntype = 'layers'\nlayers = {layers}\n")
    failed, words, page = build(".. layers:: pyproject.toml\n", "drawn_from_files")
    assert not failed, words
    boxes = re.findall(r"<b>(.*?)</b><span>(.*?)</span>", html.unescape(page))
    assert boxes == [("_top", "What users call, fit say."), ("_left", "One."), ("_right", "Two: a &lt; b.")]
    assert html.unescape(page).count('<div class="layer">') == 2


def test_tables_of_the_benchmarks_are_included(build, tmp_path):
    (tmp_path / "results").mkdir()
    page = ".. result-tables:: results\n"
    assert "No table has been rendered yet." in build(page, "drawn_from_files")[2]
    (tmp_path / "results" / "spheres.rst").write_text("Spheres\n-------\n\n==  ==\nF1  AP\n==  ==\n.5  .6\n==  ==\n")
    failed, words, page = build(page, "drawn_from_files")
    assert not failed, words
    assert "<title>Spheres</title>" in page
    assert "<paragraph>.6</paragraph>" in page


def test_the_first_example_of_the_readme_runs_as_it_stands(capsys):
    example, *_ = re.findall(r"^.. code-block:: python\n\n((?:    .*\n|\n)+)", (ROOT / "README.rst").read_text(), re.M)
    exec(compile(re.sub("^    ", "", example, flags=re.M), "README.rst", "exec"), {})
    found, wrong = map(int, re.search(r"(\d+) of (\d+)", capsys.readouterr().out).groups())
    assert found > 0.7 * wrong
