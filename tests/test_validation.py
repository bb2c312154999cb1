"""Bad input gets an error that names the argument, before any training, and nothing of the caller's is changed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, DivergenceError, NoisySetDetector, _detector
from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres

DETECTORS = [CorruptionDetector, NoisySetDetector, CleanSetDetector]
X = np.random.RandomState(0).randn(20, 3)
Y = np.arange(20) % 2
X_CLEAN, Y_CLEAN = X[:6] + 1, Y[:6]


def spoilt(array, value):
    array = array.astype(float).copy()
    array[2] = value
    return array


BAD_INPUT = {
    "NaN in X": (lambda: (spoilt(X, np.nan), Y, X_CLEAN, Y_CLEAN), "X: Input X contains NaN"),
    "infinity in X": (lambda: (spoilt(X, np.inf), Y, X_CLEAN, Y_CLEAN), "X: Input X contains infinity"),
    "too large for float32": (
        lambda: (spoilt(X, 1e300), Y, X_CLEAN, Y_CLEAN),
        r"X: .*too large for dtype\('float32'\)",
    ),
    "NaN in X_clean": (lambda: (X, Y, spoilt(X_CLEAN, np.nan), Y_CLEAN), "X_clean: Input X contains NaN"),
    "X_clean too large": (lambda: (X, Y, spoilt(X_CLEAN, 1e300), Y_CLEAN), "X_clean: .*too large"),
    "NaN in y": (lambda: (X, spoilt(Y, np.nan), X_CLEAN, Y_CLEAN), "y: Input y contains NaN"),
    "infinity in y_clean": (lambda: (X, Y, X_CLEAN, spoilt(Y_CLEAN, np.inf)), "y_clean: Input y contains infinity"),
    "lengths differ": (lambda: (X, Y[:-1], X_CLEAN, Y_CLEAN), "X and y differ in length: 20 rows, but 19 labels"),
    "clean lengths differ": (
        lambda: (X, Y, X_CLEAN, Y_CLEAN[:-1]),
        "X_clean and y_clean differ in length: 6 rows, but 5",
    ),
    "feature counts differ": (
        lambda: (X, Y, X_CLEAN[:, :2], Y_CLEAN),
        "X_clean: X has 2 features.* expecting 3 features",
    ),
    "shapes differ": (
        lambda: (X.reshape(20, 3, 1), Y, X_CLEAN.reshape(6, 3, 1, 1), Y_CLEAN),
        r"X_clean has rows of shape \(3, 1, 1\), X of shape \(3, 1\)",
    ),
    "feature names differ": (
        lambda: (pd.DataFrame(X, columns=list("abc")), Y, pd.DataFrame(X_CLEAN, columns=list("abd")), Y_CLEAN),
        "X_clean: The feature names should match",
    ),
    "X_clean alone": (lambda: (X, Y, X_CLEAN, None), "X_clean was given without y_clean. Pass both"),
    "y_clean alone": (lambda: (X, Y, None, Y_CLEAN), "y_clean was given without X_clean. Pass both"),
    "no y": (lambda: (X, None, X_CLEAN, Y_CLEAN), "requires y to be passed"),
    "strings and numbers": (
        lambda: (X, Y.astype(str), X_CLEAN, Y_CLEAN),
        "y and y_clean hold labels of different types",
    ),
    "mixed labels": (lambda: (X, np.array(["a", 1] * 10, dtype=object), X_CLEAN, Y_CLEAN), "y.*(string|str|number)"),
    "string and None": (lambda: (X, np.array(["a", None] * 10, dtype=object), X_CLEAN, ["a"] * 6), "y"),
    "continuous labels": (lambda: (X, X[:, 0], X_CLEAN, Y_CLEAN), "y: Unknown label type: continuous"),
    "no rows": (lambda: (X[:0], Y[:0], X_CLEAN, Y_CLEAN), "X: Found array with 0 sample"),
    "no clean rows": (lambda: (X, Y, X_CLEAN[:0], Y_CLEAN[:0]), "X_clean: Found array with 0 sample"),
    "one class": (lambda: (X, Y * 0, X_CLEAN, Y_CLEAN * 0), "hold one class only, 0: at least two classes are needed"),
    "one class, no clean set": (lambda: (X, Y * 0, None, None), "hold one class only"),
    "two columns of labels": (lambda: (X, np.c_[Y, Y], X_CLEAN, Y_CLEAN), "y: y should be a 1d array"),
    "strings in X": (
        lambda: (np.array([["a", "b"]] * 20), Y, X_CLEAN, Y_CLEAN),
        "X: could not convert string to float",
    ),
}


@pytest.fixture
def no_training(monkeypatch):
    """Fail if a network is built: every error here has to come before."""

    def fail(*args, **kwargs):
        raise AssertionError("training was started")

    monkeypatch.setattr(_detector, "hypergradient", fail)
    for module in ("_unroll", "_baselines", "_verdict"):
        monkeypatch.setattr(f"sklearn_cdgd.{module}.train", fail)
    monkeypatch.setattr("sklearn_cdgd._baselines.train_early_stopped", fail)


@pytest.mark.usefixtures("no_training", "global_generators_untouched")
@pytest.mark.filterwarnings("ignore:No clean set was given")
@pytest.mark.parametrize("cls", DETECTORS)
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(cls, case):
    make, words = BAD_INPUT[case]
    arguments = make()
    before = [None if a is None else np.array(a) for a in arguments]
    with pytest.raises((ValueError, TypeError), match=words):
        cls(random_state=0).fit(*arguments)
    for a, b in zip(arguments, before, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_array_equal(np.array(a), b)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", 1.5),
        ("threshold", -0.1),
        ("method", "both"),
        ("max_iter", 0),
        ("outer_lr", 0),
        ("outer_eps", -1),
        ("outer_patience", 0),
        ("n_inits", 0),
        ("truncation", 0),
        ("clean_every", "step"),
        ("cv", 1),
        ("clean_weight", -1),
        ("clean_fraction", 1),
        ("memory_budget", 0),
        ("random_state", "zero"),
    ],
)
def test_bad_parameter(name, value):
    with pytest.raises(ValueError, match=f"The '{name}' parameter of CorruptionDetector must be"):
        CorruptionDetector(**{name: value}).fit(X, Y, X_CLEAN, Y_CLEAN)


def test_bad_parameter_set_after_the_fit():
    detector = CorruptionDetector(cv=None, max_iter=1, random_state=0).fit(X, Y, X_CLEAN, Y_CLEAN)
    with pytest.raises(ValueError, match="The 'threshold' parameter of CorruptionDetector must be"):
        detector.set_params(threshold=2).predict()


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("cls", DETECTORS)
def test_bad_net(cls):
    with pytest.raises(TypeError, match=r"net must be None, a skorch NeuralNet, or a torch nn\.Module"):
        cls("mlp").fit(X, Y, X_CLEAN, Y_CLEAN)


@pytest.mark.parametrize("cls", DETECTORS)
def test_divergence_names_step_and_remedy(cls):
    net = NeuralNetClassifier(
        nn.Linear(3, 2), criterion=nn.CrossEntropyLoss, lr=1e30, optimizer__weight_decay=1e30, batch_size=-1, verbose=0
    )
    with pytest.raises(DivergenceError, match=r"inner step \d+\. Lower the learning rate of the network, or scale X"):
        cls(net, random_state=0).fit(X, Y, X_CLEAN, Y_CLEAN)


@pytest.mark.parametrize("cls", DETECTORS)
class TestBadQueries:
    def test_before_fit(self, cls):
        for method in ("predict", "decision_function", "ranked_indices", "to_frame"):
            with pytest.raises(NotFittedError):
                getattr(cls(), method)()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((X[:, :2],), "X has 2 features, but .* is expecting 3 features"),
            ((None, Y), "y was given without X"),
            ((X, Y[:-1]), "X has 20 rows, but y has 19"),
            ((X, Y + 5), r"labels that were not seen in fit: \[5, 6\]. Known are \[0, 1\]"),
            ((spoilt(X, np.nan),), "Input X contains NaN"),
        ],
    )
    def test_after_fit(self, cls, arguments, words):
        options = dict(max_iter=1, cv=None) if cls is CorruptionDetector else {}
        detector = cls(random_state=0, **options).fit(X, Y, X_CLEAN, Y_CLEAN)
        for method in (detector.predict, detector.decision_function):
            with pytest.raises(ValueError, match=words):
                method(*arguments)


class TestDatasets:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"n_samples": 0}, "n_samples must be a positive integer; got 0"),
            ({"n_features": 2.5}, "n_features must be a positive integer; got 2.5"),
            ({"radii": (1, -1)}, "radii must be a sequence of positive numbers"),
            ({"radii": 1.0}, "radii must be a sequence of positive numbers"),
        ],
    )
    def test_bad_spheres(self, options, words):
        with pytest.raises(ValueError, match=words):
            make_concentric_spheres(**options)

    @pytest.mark.parametrize(
        ("y", "rate", "kind", "words"),
        [
            (Y, 1.5, "mirror", r"rate must be a number in \[0, 1\]; got 1.5"),
            (Y, "half", "mirror", r"rate must be a number in \[0, 1\]; got 'half'"),
            (Y, 0.1, "random", "kind must be 'mirror', 'uniform' or 'pair'; got 'random'"),
            (Y * 0, 0.1, "mirror", "y needs at least two classes"),
            ([0, 1, 1, 1, 2], 0.8, "mirror", "asks for 4 wrong labels, but kind='mirror' can change 2 only"),
        ],
    )
    def test_bad_flips(self, y, rate, kind, words):
        with pytest.raises(ValueError, match=words):
            flip_labels(y, rate, kind=kind)
