"""Planted errors are what they say they are."""

from __future__ import annotations

import numpy as np
import pytest

from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres


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
