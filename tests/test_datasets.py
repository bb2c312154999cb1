"""Planted errors are what they say they are."""

from __future__ import annotations

from itertools import combinations, combinations_with_replacement, permutations

import numpy as np
import pandas as pd
import pytest

from sklearn_cdgd.datasets import corrupt_features, corrupt_targets, flip_labels, make_concentric_spheres

TARGET_KINDS = ["shift", "scale", "shuffle", "outliers"]
FEATURE_KINDS = ["noise", "missing", "swapped"]


def rows_that_differ(a, b):
    return (a != b).reshape(len(a), -1).any(axis=1)


def assert_exactly_the_asked_share(corrupt, data, rate, kind):
    original = data.copy()
    noisy, is_corrupted = corrupt(data, rate, kind=kind, random_state=0)
    np.testing.assert_array_equal(data, original)
    assert noisy.shape == data.shape
    assert noisy.dtype == np.float64
    assert np.isfinite(noisy).all()
    assert is_corrupted.dtype == bool
    assert is_corrupted.sum() == round(rate * len(data))
    np.testing.assert_array_equal(rows_that_differ(noisy, data), is_corrupted)
    # Bytes, since -0.0 and 0.0 compare as equal.
    assert noisy[~is_corrupted].tobytes() == data[~is_corrupted].astype(float).tobytes()
    assert not np.shares_memory(noisy, data)
    for again, first in zip(corrupt(data, rate, kind=kind, random_state=0), (noisy, is_corrupted), strict=True):
        np.testing.assert_array_equal(again, first)


def test_spheres_have_their_radii_and_sizes():
    X, y = make_concentric_spheres(301, 5, radii=(1.0, 1.3, 2.0), random_state=0)
    assert X.shape == (301, 5)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), np.array([1.0, 1.3, 2.0])[y])
    assert np.bincount(y).tolist() == [101, 100, 100]
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=0.15)


def test_same_seed_same_data():
    for a, b in zip(make_concentric_spheres(random_state=3), make_concentric_spheres(random_state=3), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["mirror", "uniform", "pair"])
@pytest.mark.parametrize("rate", [0, 0.1, 0.333, 0.9])
@pytest.mark.parametrize("names", [np.arange(10), np.array(list("abcdefghij")), np.array([3, 5])], ids=str)
def test_exactly_the_asked_share_is_wrong(kind, rate, names):
    y = names[np.random.RandomState(0).randint(len(names), size=200)]
    original = y.copy()
    y_noisy, is_corrupted = flip_labels(y, rate, kind=kind, random_state=0)
    np.testing.assert_array_equal(y, original)
    assert is_corrupted.sum() == round(rate * 200)
    np.testing.assert_array_equal(y_noisy != y, is_corrupted)
    assert set(y_noisy) <= set(names)


def test_kinds_go_where_they_should():
    y = np.random.RandomState(0).randint(10, size=500)
    for kind, wrong in [("mirror", 9 - y), ("pair", (y + 1) % 10)]:
        y_noisy, is_corrupted = flip_labels(y, 0.4, kind=kind, random_state=1)
        np.testing.assert_array_equal(y_noisy[is_corrupted], wrong[is_corrupted])
    y_noisy, is_corrupted = flip_labels(y, 0.9, kind="uniform", random_state=1)
    counts = np.bincount((y_noisy - y)[is_corrupted] % 10, minlength=10)
    assert counts[0] == 0
    assert counts[1:].min() > 25


def test_mirror_leaves_the_middle_class_of_an_odd_number():
    y = np.repeat([0, 1, 2], 20)
    _, is_corrupted = flip_labels(y, 0.5, kind="mirror", random_state=0)
    assert is_corrupted.sum() == 30
    assert not is_corrupted[y == 1].any()


TARGETS = {
    "one column": np.random.RandomState(0).randn(201),
    "three columns": np.random.RandomState(1).randn(201, 3) * [1, 100, 0] + [0, 5, 0.1],
    "ties": np.random.RandomState(2).randint(10, size=201) - 5,
    "minus zero": np.where(np.arange(201) % 50, np.arange(201), -0.0),
}
FEATURES = {
    "table": np.random.RandomState(0).randn(101, 7),
    "images": np.random.RandomState(1).randint(5, size=(101, 4, 3, 2)).astype(np.float32),
    "binary": np.random.RandomState(2).randint(2, size=(101, 5)).astype(bool),
    "constant columns, Fortran order": np.asfortranarray(np.random.RandomState(3).randn(101, 4) * [0, 1, 0, 1] + 0.1),
    "one column": np.random.RandomState(4).randn(101, 1),
}


@pytest.mark.parametrize("kind", TARGET_KINDS)
@pytest.mark.parametrize("rate", [0, 0.1, 0.333, 0.85])
@pytest.mark.parametrize("y", TARGETS.values(), ids=TARGETS)
def test_exactly_the_asked_share_of_targets_is_wrong(kind, rate, y):
    assert_exactly_the_asked_share(corrupt_targets, y, rate, kind)


@pytest.mark.parametrize("kind", FEATURE_KINDS)
@pytest.mark.parametrize("rate", [0, 0.1, 0.333, 0.85])
@pytest.mark.parametrize("X", FEATURES.values(), ids=FEATURES)
def test_exactly_the_asked_share_of_rows_is_wrong(kind, rate, X):
    assert_exactly_the_asked_share(corrupt_features, X, rate, kind)


@pytest.mark.parametrize("kind", TARGET_KINDS)
def test_a_series_of_targets_is_as_good_as_an_array(kind):
    y = TARGETS["one column"]
    series = pd.Series(y, index=np.arange(len(y))[::-1])
    y_noisy, _ = corrupt_targets(series, 0.3, kind=kind, random_state=0)
    assert type(y_noisy) is np.ndarray
    np.testing.assert_array_equal(y_noisy, corrupt_targets(y, 0.3, kind=kind, random_state=0)[0])
    np.testing.assert_array_equal(series, y)


def test_shift_moves_all_columns_of_a_row_the_same_way():
    y = TARGETS["three columns"]
    y_noisy, is_corrupted = corrupt_targets(y, 0.8, kind="shift", strength=2, random_state=0)
    steps = (y_noisy - y)[is_corrupted][:, :2] / y.std(axis=0)[:2]
    np.testing.assert_allclose(np.abs(steps), 2)
    np.testing.assert_allclose(steps[:, 0], steps[:, 1])
    assert 50 < (steps[:, 0] > 0).sum() < 110
    np.testing.assert_array_equal(y_noisy[:, 2], y[:, 2])


@pytest.mark.parametrize("strength", [0.5, 3])
def test_scale_multiplies_the_deviation_from_the_median(strength):
    y = TARGETS["three columns"]
    y_noisy, is_corrupted = corrupt_targets(y, 0.5, kind="scale", strength=strength, random_state=0)
    deviation = (y - np.median(y, axis=0))[is_corrupted]
    np.testing.assert_allclose((y_noisy - np.median(y, axis=0))[is_corrupted], strength * deviation)


def test_scale_leaves_rows_at_the_median():
    y = np.repeat([1.0, 2.0, 3.0], [10, 20, 10])
    _, is_corrupted = corrupt_targets(y, 0.5, kind="scale", random_state=0)
    np.testing.assert_array_equal(is_corrupted, y != 2)


def test_outliers_are_far_out_on_both_sides_and_do_not_depend_on_the_target():
    y = np.random.RandomState(0).randn(5000) + 7
    y_noisy, is_corrupted = corrupt_targets(y, 0.8, kind="outliers", strength=4, random_state=0)
    draws = (y_noisy[is_corrupted] - np.median(y)) / y.std() / 4
    # Quartiles and the 99th percentile of Student's t with 2 degrees of freedom.
    np.testing.assert_allclose(np.quantile(draws, [0.25, 0.5, 0.75]), [-0.816, 0, 0.816], atol=0.06)
    np.testing.assert_allclose(np.quantile(draws, 0.99), 6.96, rtol=0.25)
    assert abs(np.corrcoef(np.argsort(np.argsort(draws)), y[is_corrupted])[0, 1]) < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_shuffle_permutes_whole_rows(seed):
    y = TARGETS["three columns"]
    y_noisy, is_corrupted = corrupt_targets(y, 0.5, random_state=seed)
    assert sorted(map(tuple, y_noisy[is_corrupted])) == sorted(map(tuple, y[is_corrupted]))


def test_shuffle_finds_every_possible_swap_and_no_other():
    for n_rows in range(1, 6):
        for values in combinations_with_replacement(range(n_rows), n_rows):
            y = np.array(values, dtype=float)
            for n_wrong in range(n_rows + 1):
                is_possible = any(
                    (np.array(chosen)[list(order)] != chosen).all()
                    for chosen in set(combinations(values, n_wrong))
                    for order in permutations(range(n_wrong))
                )
                if not is_possible:
                    with pytest.raises(ValueError, match="kind='shuffle' can change"):
                        corrupt_targets(y, n_wrong / n_rows)
                    continue
                for seed in range(3):
                    y_noisy, is_corrupted = corrupt_targets(y, n_wrong / n_rows, random_state=seed)
                    assert is_corrupted.sum() == n_wrong
                    np.testing.assert_array_equal(y_noisy != y, is_corrupted)
                    assert sorted(y_noisy) == sorted(y)


def test_shuffle_takes_as_many_of_a_frequent_value_as_it_can():
    y = np.append(np.zeros(900), np.arange(1, 101))
    _, is_corrupted = corrupt_targets(y, 0.1, random_state=0)
    assert is_corrupted[:900].sum() == 50


def test_shuffle_favours_no_row_and_no_partner():
    y = np.arange(4.0)
    received = np.zeros((4, 4))
    for seed in range(1500):
        y_noisy, is_corrupted = corrupt_targets(y, 0.75, random_state=seed)
        received[is_corrupted, y_noisy[is_corrupted].astype(int)] += 1
    np.testing.assert_array_equal(np.diag(received), 0)
    # 1500 times three rows, over twelve pairs.
    np.testing.assert_allclose(received[~np.eye(4, dtype=bool)], 375, rtol=0.2)


def test_noise_has_the_size_of_its_column():
    X = np.random.RandomState(0).randn(2000, 4) * [1, 10, 0, 100] + 0.1
    X_noisy, is_corrupted = corrupt_features(X, 0.9, strength=2, share=1, random_state=0)
    noise = (X_noisy - X)[is_corrupted]
    np.testing.assert_array_equal(noise[:, 2], 0)
    np.testing.assert_allclose(noise.std(axis=0), 2 * X.std(axis=0), rtol=0.1, atol=1e-12)
    np.testing.assert_allclose(noise.mean(axis=0) / [1, 10, 1, 100], 0, atol=0.2)
    np.testing.assert_allclose(np.corrcoef(noise[:, [0, 1, 3]].T), np.eye(3), atol=0.1)


@pytest.mark.parametrize(("share", "n_changed"), [(0.01, 1), (0.5, 4), (1, 8)])
def test_noise_changes_its_share_of_the_columns_that_vary(share, n_changed):
    X = np.random.RandomState(0).randn(500, 10)
    X[:, [0, 5]] = 0.1
    X_noisy, is_corrupted = corrupt_features(X, 0.8, share=share, random_state=0)
    changed = (X_noisy != X)[is_corrupted]
    assert set(changed.sum(axis=1)) == {n_changed}
    # Every row draws its own, and no column is preferred.
    np.testing.assert_allclose(np.delete(changed, [0, 5], axis=1).mean(axis=0), n_changed / 8, atol=0.08)


@pytest.mark.parametrize(("share", "width"), [(0.01, 1), (0.25, 3), (1, 12)])
def test_missing_sets_one_block_to_the_median(share, width):
    X = np.random.RandomState(0).randn(400, 2, 3, 2)
    X_noisy, is_corrupted = corrupt_features(X, 0.8, kind="missing", share=share, random_state=0)
    median = np.broadcast_to(np.median(X, axis=0), X.shape)
    changed = X_noisy != X
    np.testing.assert_array_equal(X_noisy[changed], median[changed])
    starts = set()
    for row in changed[is_corrupted].reshape(-1, 12):
        start = row.argmax()
        starts.add(start)
        np.testing.assert_array_equal(np.flatnonzero(row), np.arange(start, start + width))
    assert starts == set(range(12 - width + 1))


def test_missing_draws_blocks_and_rows_that_it_changes():
    X = np.zeros((50, 20))
    X[np.arange(20), np.arange(20)] = 1
    X_noisy, is_corrupted = corrupt_features(X, 0.4, kind="missing", share=0.1, random_state=0)
    np.testing.assert_array_equal(is_corrupted, np.arange(50) < 20)
    np.testing.assert_array_equal(X_noisy, 0)


@pytest.mark.parametrize("seed", range(5))
def test_swapped_permutes_whole_rows(seed):
    X = FEATURES["images"]
    X_noisy, is_corrupted = corrupt_features(X, 0.5, kind="swapped", random_state=seed)
    before, after = ([row.tobytes() for row in array[is_corrupted].astype(float)] for array in (X, X_noisy))
    assert sorted(before) == sorted(after)


def test_swapped_takes_minus_zero_for_zero():
    X = [[0.0, 1.0], [-0.0, 1.0], [2.0, 1.0]]
    for seed in range(10):
        _, is_corrupted = corrupt_features(X, 0.6, kind="swapped", random_state=seed)
        assert is_corrupted[2]
