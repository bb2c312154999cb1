"""Rows in a file: the same results as in memory, read in blocks, never as a whole."""

from __future__ import annotations

import gc
import glob
import os
import pickle
import tempfile

import numpy as np
import pytest
import torch
from helpers import assert_same_result, quick_detector, skorch_net
from sklearn.base import clone
from torch import nn

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector, _on_disk
from sklearn_cdgd._inputs import chosen_rows, concatenate_rows, tensor_of_rows
from sklearn_cdgd._lookup import same_rows
from sklearn_cdgd._nets import default_epochs
from sklearn_cdgd._on_disk import ChosenRows, is_on_disk, on_disk

RESULTS = ("alpha_", "loss_", "probabilities_")


class Chunks:
    """Rows that are computed piece by piece, as those of dask and h5py; refuses to be computed at once."""

    def __init__(self, X, chunks, most=10**9):
        self.X, self.chunks, self.most, self.dtype, self.shape = X, chunks, most, X.dtype, X.shape

    def __getitem__(self, key):
        part = self.X[key]
        assert len(part) <= self.most, "too many rows at once"
        return part

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("all rows at once")


@pytest.fixture
def filed(tmp_path):
    """Return a maker of memory maps that cannot be written to."""

    def make(X, dtype=np.float32, name="rows", **options):
        np.asarray(X, dtype=dtype).tofile(tmp_path / name)
        return np.memmap(tmp_path / name, dtype=dtype, mode="r", shape=np.shape(X), **options)

    return make


@pytest.fixture(autouse=True)
def own_folder_of_temporary_files(tmp_path, monkeypatch):
    """Other processes may have files in the usual one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def files_of_our_own():
    return glob.glob(os.path.join(tempfile.gettempdir(), "sklearn_cdgd-*.rows"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
@pytest.mark.parametrize("in_chunks", [False, True])
def test_rows_in_a_file(filed, monkeypatch, dtype, in_chunks):
    monkeypatch.setattr(_on_disk, "_BLOCK", 30)
    X = np.arange(100).reshape(20, 5)
    given = Chunks(X.astype(dtype), ((7, 7, 6), (5,)), most=7) if in_chunks else filed(X, dtype)
    rows = on_disk(given, np.float32)
    assert isinstance(rows, np.memmap)
    assert rows.dtype == np.float32
    assert not rows.flags.writeable
    np.testing.assert_array_equal(rows, X)
    if dtype == np.float32 and not in_chunks:
        assert np.shares_memory(rows, given)
    else:
        assert len(files_of_our_own()) == 1
    del rows
    gc.collect()
    assert not files_of_our_own()


def test_sizes_of_chunks_that_are_the_same_everywhere(monkeypatch):
    """As h5py and zarr have them."""
    monkeypatch.setattr(_on_disk, "_BLOCK", 30)
    X = np.arange(100.0).reshape(20, 5)
    np.testing.assert_array_equal(on_disk(Chunks(X, (4, 5), most=6), np.float32), X)
    np.testing.assert_array_equal(on_disk(Chunks(X, None, most=6), np.float32), X)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_finite_is_found_in_any_block(spheres, filed, monkeypatch, value, dtype):
    monkeypatch.setattr(_on_disk, "_BLOCK", 30)
    X, y, X_clean, y_clean, _ = spheres()
    with np.errstate(over="ignore"):
        X[77, 1] = value
        given = filed(X, dtype)
    with pytest.raises(ValueError, match=r"^X: Input contains NaN, infinity or a value too large for float32\. Drop"):
        quick_detector().fit(given, y, X_clean, y_clean)


def test_sums_that_overflow_are_no_error(filed):
    X = np.full((10, 3), 2e38)
    np.testing.assert_array_equal(on_disk(filed(X), np.float32), X.astype(np.float32))


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (Chunks(np.zeros((9, 3), dtype=complex), None), "X: rows in a file must be numbers; got the type complex128"),
        (Chunks(np.zeros((0, 3)), None), "X: Found array with 0 sample"),
        (Chunks(np.zeros((9, 0)), None), "feature"),
        (Chunks(np.zeros(9), None), "X: Expected 2D array|X: .*1D array"),
    ],
)
def test_rows_that_cannot_be(X, words):
    with pytest.raises((ValueError, TypeError), match=words):
        quick_detector().fit(X, np.arange(9) % 2, np.zeros((2, 3)), [0, 1])


def test_an_unknown_number_of_rows():
    X = Chunks(np.zeros((9, 3)), None)
    X.shape = (np.nan, 3)
    with pytest.raises(ValueError, match=r"X: the number of rows is not known.*compute_chunk_sizes"):
        quick_detector().fit(X, np.arange(9) % 2, np.zeros((2, 3)), [0, 1])


@pytest.mark.parametrize("cls", [CorruptionDetector, NoisySetDetector, CleanSetDetector])
@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_file_gives_what_the_memory_gives(spheres, filed, cls, in_chunks):
    X, *rest, _ = spheres()
    expected = quick_detector(cls).fit(X, *rest)
    given = Chunks(X, ((50, 70), (3,))) if in_chunks else filed(X)
    detector = quick_detector(cls).fit(given, *rest)
    for name in RESULTS:
        if hasattr(expected, name):
            np.testing.assert_array_equal(getattr(detector, name), getattr(expected, name))
    assert is_on_disk(detector._X)
    flags = expected.predict()
    np.testing.assert_array_equal(detector.predict(given), flags)
    np.testing.assert_array_equal(detector.predict(X[5:10]), flags[5:10])
    np.testing.assert_array_equal(detector.predict(given[5:10]), flags[5:10])
    copy = pickle.loads(pickle.dumps(detector))
    np.testing.assert_array_equal(copy.predict(X), flags)


@pytest.mark.parametrize("options", [{"shard_size": 60}, {"n_jobs": 2}, {"cv": 2, "clean_cv": 2}], ids=str)
def test_with_shards_workers_and_judges(spheres, filed, options):
    X, *rest, _ = spheres()
    expected, found = (quick_detector(**options).fit(rows, *rest) for rows in (X, filed(X)))
    for name in RESULTS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("options", [{}, {"shard_size": 60}, {"n_jobs": 2}, {"clean_cv": None}, {"cv": None}], ids=str)
def test_the_default_on_a_file_is_the_default_in_memory(spheres, filed, options):
    X, y, X_clean, y_clean, _ = spheres()
    detector = CorruptionDetector(max_iter=3, random_state=0, **options)
    expected, found = (clone(detector).fit(rows, y, X_clean, y_clean) for rows in (X, filed(X)))
    assert_same_result(found, expected)
    assert is_on_disk(found._X)
    np.testing.assert_array_equal(found.predict(), expected.predict())
    of_file, of_memory = (
        found.decision_function(filed(X_clean, name="new"), y_clean),
        expected.decision_function(X_clean, y_clean),
    )
    np.testing.assert_array_equal(of_file, of_memory)


@pytest.mark.slow
def test_never_all_rows_at_once(spheres, filed, monkeypatch):
    """With shards and batches no more rows are taken from the file than a shard has."""
    X, *rest, _ = spheres(n_noisy=200)
    monkeypatch.setattr(_on_disk, "_BLOCK", 90)
    monkeypatch.setattr("sklearn_cdgd._new_pairs._CHUNK", 40)
    monkeypatch.setattr("sklearn_cdgd._network._CHUNK", 40)
    most = []

    class Watched(np.memmap):
        def __getitem__(self, key):
            part = super().__getitem__(key)
            if getattr(part, "_mmap", None) is None and part.ndim == 2:  # not a view of the file
                most.append(len(part))
            return part

    net = skorch_net(batch_size=20)
    given = filed(X).view(Watched)
    quick_detector(net=net, shard_size=50, cv=2, clean_cv=2).fit(given, *rest)
    assert 0 < max(most) <= 50


def test_integers_stay_integers_where_a_net_takes_them(filed):
    tokens = np.random.RandomState(0).randint(20, size=(60, 4))
    y = tokens[:, 0] % 2
    net = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(16, 2))
    options = dict(max_iter=1, cv=None, clean_cv=None, random_state=0)
    expected = CorruptionDetector(net, **options).fit(tokens[:40], y[:40], tokens[40:], y[40:])
    detector = CorruptionDetector(net, **options).fit(filed(tokens[:40], np.int32), y[:40], tokens[40:], y[40:])
    np.testing.assert_array_equal(detector.alpha_, expected.alpha_)
    np.testing.assert_array_equal(detector.predict(tokens[:7]), expected.predict(tokens[:7]))


class TestChosenRows:
    X, other = np.arange(30.0).reshape(10, 3), -np.arange(12.0).reshape(4, 3)
    mask, other_mask = np.arange(10) % 3 == 0, np.arange(4) > 1

    def test_is_what_a_copy_would_be(self):
        chosen = ChosenRows((self.X, self.mask), (self.other, self.other_mask))
        copy = np.concatenate([self.X[self.mask], self.other[self.other_mask]])
        assert chosen.shape == copy.shape
        assert len(chosen) == len(copy)
        for key in (slice(None), slice(1, 5, 2), np.array([5, 0, 5, 3]), np.arange(6) % 2 == 0, np.array([], int)):
            np.testing.assert_array_equal(chosen[key], copy[key])

    def test_rows_in_memory_are_copied_and_those_in_a_file_are_not(self, filed):
        X, other = filed(self.X), self.other.astype(np.float32)
        assert isinstance(chosen_rows(X, self.mask), ChosenRows)
        assert isinstance(concatenate_rows(X, self.mask, other, self.other_mask), ChosenRows)
        assert isinstance(chosen_rows(self.X, self.mask), np.ndarray)
        np.testing.assert_array_equal(
            concatenate_rows(X, self.mask, other, self.other_mask)[:],
            concatenate_rows(np.array(X), self.mask, other, self.other_mask),
        )


def test_batches_of_what_must_not_be_written_to_are_copies(filed):
    X = np.arange(30.0).reshape(10, 3)
    X.flags.writeable = False
    for rows in (X, filed(X)):
        take = tensor_of_rows(rows, np.float32, "cpu")
        assert take(None).dtype == torch.float32
        batch = take(torch.tensor([3, 1]))
        assert batch.tolist() == X[[3, 1]].tolist()
        batch += 1
        assert X[3, 0] == 9


def test_rows_are_compared_in_blocks(monkeypatch):
    monkeypatch.setattr("sklearn_cdgd._lookup._BLOCK", 7)
    X = np.random.RandomState(0).randn(30, 3).astype(np.float32)
    other = X.copy()
    assert same_rows(X, other)
    other[29, 2] += 0.1
    assert not same_rows(X, other)


@pytest.mark.parametrize(("n_rows", "n_epochs"), [(10, 150), (10_000, 150), (50_000, 30), (100_000, 15), (10**7, 15)])
def test_many_rows_need_fewer_epochs(n_rows, n_epochs):
    assert default_epochs(n_rows) == n_epochs
