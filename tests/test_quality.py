"""The main job: planted label errors are found, better than by training on either set alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import train_test_split

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector
from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres


def spheres_f1(rate, n_pairs=0):
    """Return the mean F1 over seeds 0-4 of every detector: d=15, 1,000 noisy and 100 clean rows.

    And of seeds below `n_pairs` what alpha is worth on training pairs and on as many pairs that were not in the fit.
    """
    f1, pairs = {"T": [], "alpha": [], "S_n": [], "S_c": []}, []
    for seed in range(5):
        X, y = make_concentric_spheres(1100, 15, random_state=seed)
        X, X_clean, y, y_clean = X[:1000], X[1000:], y[:1000], y[1000:]
        y_noisy, is_corrupted = flip_labels(y, rate, random_state=seed)
        detector = CorruptionDetector(random_state=seed).fit(X, y_noisy, X_clean, y_clean)
        f1["T"].append(f1_score(is_corrupted, detector.predict()))
        f1["alpha"].append(f1_score(is_corrupted, detector.set_params(method="alpha").predict()))
        for name, cls in [("S_n", NoisySetDetector), ("S_c", CleanSetDetector)]:
            flags = cls(random_state=seed).fit(X, y_noisy, X_clean, y_clean).predict()
            f1[name].append(f1_score(is_corrupted, flags))
        if seed < n_pairs:
            pairs.append(_alpha_of_pairs(detector, rate, seed, is_corrupted))
    means = {name: float(np.mean(values)) for name, values in f1.items()}
    print(f"\nspheres d=15, {rate:.0%} flipped, F1: {means}; AP of alpha on training and new pairs: {pairs}")
    return means, pairs


def _alpha_of_pairs(detector, rate, seed, is_corrupted):
    """Return the average precision of alpha on training pairs and on new ones, and a rank correlation.

    The correlation is that of the alpha of training pairs with their estimate as if they were new.
    """
    X, y = make_concentric_spheres(1000, 15, random_state=1000 + seed)
    y_new, is_new_corrupted = flip_labels(y, rate, random_state=1000 + seed)
    new = average_precision_score(is_new_corrupted, -detector.decision_function(X, y_new))
    as_if_new = detector._new_scores(detector._X, detector._targets)
    trained = average_precision_score(is_corrupted, -detector.alpha_)
    return float(trained), float(new), float(spearmanr(detector.alpha_, as_if_new)[0])


def test_spheres_with_many_errors():
    f1, pairs = spheres_f1(0.4, n_pairs=2)
    assert f1["T"] >= 0.95
    assert f1["alpha"] >= 0.85
    assert min(f1["T"], f1["alpha"]) > max(f1["S_n"], f1["S_c"])
    for trained, new, correlation in pairs:
        assert new > trained - 0.05
        assert correlation > 0.8


def test_spheres_with_few_errors():
    f1, _ = spheres_f1(0.1)
    assert f1["T"] >= 0.98
    assert f1["alpha"] >= 0.95
    assert min(f1["T"], f1["alpha"]) > 0.2 + max(f1["S_n"], f1["S_c"])


@pytest.mark.parametrize("seed", [0])
def test_digits_of_the_demo(seed):
    X, y = load_digits(return_X_y=True)
    X, X_clean, y, y_clean = train_test_split(X, y, test_size=200, stratify=y, random_state=seed)
    y_noisy, is_corrupted = flip_labels(y, 0.4, random_state=seed)
    detector = CorruptionDetector(random_state=seed).fit(X, y_noisy, X_clean, y_clean)
    f1 = f1_score(is_corrupted, detector.predict())
    assert f1 >= 0.97
    for cls in (NoisySetDetector, CleanSetDetector):
        assert f1 > f1_score(is_corrupted, cls(random_state=seed).fit(X, y_noisy, X_clean, y_clean).predict())
