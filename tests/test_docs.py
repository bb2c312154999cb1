"""The reference leaves no public name out, and the example of the README runs as it stands."""

from __future__ import annotations

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
        else:
            yield name


@pytest.fixture
def build_reference(tmp_path, capsys, monkeypatch):
    """Return a function that builds a site with nothing but the given reference; warnings are errors."""
    build_main = pytest.importorskip("sphinx.cmd.build").build_main
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")

    def build(reference):
        (tmp_path / "index.rst").write_text(reference)
        (tmp_path / "conf.py").write_text("extensions = ['every_public_name']\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            failed = build_main(["-W", "--keep-going", "-q", "-E", "-b", "dummy", str(tmp_path), str(tmp_path / "out")])
        return failed, capsys.readouterr().err

    return build


def reference_of(names):
    return "Reference\n=========\n\n" + "".join(f".. py:function:: sklearn_cdgd.{name}\n\n" for name in names)


def test_a_reference_of_every_public_name_builds(build_reference):
    failed, words = build_reference(reference_of(public_names(sklearn_cdgd)))
    assert not failed, words


@pytest.mark.parametrize("hidden", ["CorruptionDetector", "datasets.flip_labels"])
def test_a_hidden_public_name_fails_the_build(build_reference, hidden):
    failed, words = build_reference(reference_of(name for name in public_names(sklearn_cdgd) if name != hidden))
    assert failed
    assert f"sklearn_cdgd.{hidden} is public, but the API reference leaves it out." in words
    assert words.count("WARNING") == 1


def test_the_reference_lists_every_public_name():
    listed = re.findall(r"^   ([\w.]+)$", (ROOT / "docs" / "api.rst").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(public_names(sklearn_cdgd))


def test_the_example_of_the_readme_runs_as_it_stands(capsys):
    (example,) = re.findall(r"^.. code-block:: python\n\n((?:    .*\n|\n)+)", (ROOT / "README.rst").read_text(), re.M)
    exec(compile(re.sub("^    ", "", example, flags=re.M), "README.rst", "exec"), {})
    found, wrong = map(int, re.search(r"(\d+) of (\d+)", capsys.readouterr().out).groups())
    assert found > 0.7 * wrong
