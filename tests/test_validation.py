"""Bad input gets an error that names the argument, before any training, and nothing of the caller's is changed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers import quick_detector
from sklearn.exceptions import NotFittedError
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, DivergenceError, NoisySetDetector
from sklearn_cdgd.datasets import corrupt_features, corrupt_targets, flip_labels, make_concentric_spheres

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
    "lengths differ": (lambda: (X, Y[:-1], X_CLEAN, Y_CLEAN), "X and y differ in length: 20 rows, but 19 targets"),
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
    "no rows": (lambda: (X[:0], Y[:0], X_CLEAN, Y_CLEAN), "X: Found array with 0 sample"),
    "no clean rows": (lambda: (X, Y, X_CLEAN[:0], Y_CLEAN[:0]), "X_clean: Found array with 0 sample"),
    "one class": (lambda: (X, Y * 0, X_CLEAN, Y_CLEAN * 0), "hold one class only, 0: at least two classes are needed"),
    "one class, no clean set": (lambda: (X, Y * 0, None, None), "hold one class only"),
    "two columns against one": (
        lambda: (X, np.c_[Y, Y], X_CLEAN, Y_CLEAN),
        r"y_clean has targets of shape \(\), y of shape \(2,\)",
    ),
    "constant target": (lambda: (X, Y * 0 + 0.5, X_CLEAN, Y_CLEAN), "y holds one value only"),
    "NaN in a target": (lambda: (X, spoilt(X[:, 0], np.nan), X_CLEAN, X_CLEAN[:, 0]), "y: Input y contains NaN"),
    "clean target too large": (
        lambda: (X, X[:, 0], X_CLEAN, spoilt(X_CLEAN[:, 0], 1e300)),
        "y_clean: Input y contains infinity or a value too large",
    ),
    "strings in X": (
        lambda: (np.array([["a", "b"]] * 20), Y, X_CLEAN, Y_CLEAN),
        "X: could not convert string to float",
    ),
}


@pytest.fixture
def no_training(monkeypatch):
    """Fail if anything is trained: every error here has to come before."""

    def fail(*args, **kwargs):
        raise AssertionError("training was started")

    monkeypatch.setattr("sklearn_cdgd._kernel_machines.kernel_features", fail)
    monkeypatch.setattr("sklearn_cdgd._trainer.hypergradient", fail)
    monkeypatch.setattr("sklearn_cdgd._trainer.train_in_parts", fail)
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
@pytest.mark.parametrize("cls", DETECTORS)
def test_numbers_for_a_classifier(cls):
    net = NeuralNetClassifier(nn.Linear(3, 2), criterion=nn.CrossEntropyLoss)
    for detector in (cls(task="classification"), cls(net)):
        with pytest.raises(ValueError, match="y: Unknown label type: continuous"):
            detector.fit(X, X[:, 0], X_CLEAN, Y_CLEAN)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("cls", DETECTORS)
def test_labels_for_a_regressor(cls):
    for detector in (cls(task="regression"), cls(NeuralNetRegressor(nn.Linear(3, 1)))):
        with pytest.raises(ValueError, match="y: could not convert string to float"):
            detector.fit(X, Y.astype(str) + np.array(["a"] * 20), X_CLEAN, Y_CLEAN)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", "ranking"),
        ("loss_limit", 0),
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
        ("clean_batch_size", 0),
        ("n_jobs", 1.5),
        ("shard_size", 1),
        ("cv", 1),
        ("clean_weight", -1),
        ("clean_fraction", 1),
        ("memory_budget", 0),
        ("warm_start", "yes"),
        ("random_state", "zero"),
    ],
)
def test_bad_parameter(name, value):
    with pytest.raises(ValueError, match=f"The '{name}' parameter of CorruptionDetector must be"):
        CorruptionDetector(**{name: value}).fit(X, Y, X_CLEAN, Y_CLEAN)


def test_bad_parameter_set_after_the_fit():
    detector = CorruptionDetector(random_state=0).fit(X, Y, X_CLEAN, Y_CLEAN)
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
        detector = quick_detector(cls, net=None).fit(X, Y, X_CLEAN, Y_CLEAN)
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

    @pytest.mark.parametrize(
        ("y", "rate", "options", "words"),
        [
            (Y, -0.1, {}, r"rate must be a number in \[0, 1\]; got -0.1"),
            (Y, None, {}, r"rate must be a number in \[0, 1\]; got None"),
            (Y, 0.1, {"kind": "flip"}, "kind must be 'shift', 'scale', 'shuffle' or 'outliers'; got 'flip'"),
            (Y, 0.1, {"strength": 0}, "strength must be a positive finite number; got 0"),
            (Y, 0.1, {"strength": np.inf}, "strength must be a positive finite number; got inf"),
            (Y, 0.1, {"strength": "big"}, "strength must be a positive finite number; got 'big'"),
            (spoilt(Y, np.nan), 0.1, {}, "y: Input y contains NaN"),
            (["a", "b"], 0.1, {}, "y: could not convert string to float: 'a'"),
            (None, 0.1, {}, "y: "),
            ([], 0.1, {}, "y: Found array with 0 sample"),
            (np.zeros((4, 1, 1)), 0, {}, r"y must have shape \(n_samples,\) or .*n_outputs\); got \(4, 1, 1\)"),
            (
                np.full(10, 0.1),
                0.3,
                {"kind": "shift"},
                "rate=0.3 asks for 3 wrong targets, but kind='shift' can change 0",
            ),
            (np.full(10, 0.1), 0.3, {"kind": "outliers"}, "asks for 3 wrong targets, but kind='outliers' can change 0"),
            ([1, 2, 3], 1, {"kind": "scale"}, "asks for 3 wrong targets, but kind='scale' can change 2 only"),
            (X[:, 0], 1, {"kind": "scale", "strength": 1}, "kind='scale' can change 0 only"),
            (X[:, 0], 0.05, {}, "asks for 1 wrong targets, but kind='shuffle' can change 0 only: it swaps two rows or"),
            (Y, 0.15, {}, "asks for 3 wrong targets, but kind='shuffle' can change 2 only.* differs from its own"),
            ([0, 0, 0, 1, 2], 1, {}, "asks for 5 wrong targets, but kind='shuffle' can change 4 only"),
        ],
    )
    def test_bad_targets(self, y, rate, options, words):
        with pytest.raises(ValueError, match=words):
            corrupt_targets(y, rate, **options)

    @pytest.mark.parametrize(
        ("X", "rate", "options", "words"),
        [
            (X, np.nan, {}, r"rate must be a number in \[0, 1\]; got nan"),
            (X, 0.1, {"kind": "blur"}, "kind must be 'noise', 'missing' or 'swapped'; got 'blur'"),
            (X, 0.1, {"strength": -1}, "strength must be a positive finite number; got -1"),
            (X, 0.1, {"share": 0}, r"share must be a number in \(0, 1\]; got 0"),
            (X, 0.1, {"share": 1.5}, r"share must be a number in \(0, 1\]; got 1.5"),
            (X, 0.1, {"share": "half"}, r"share must be a number in \(0, 1\]; got 'half'"),
            (spoilt(X, np.inf), 0.1, {}, "X: Input X contains infinity"),
            ([["a"], ["b"]], 0.1, {}, "X: could not convert string to float: 'a'"),
            (Y, 0.1, {}, r"X must have shape \(n_samples, ...\), with at least one column; got \(20,\)"),
            (np.zeros((4, 2, 0)), 0.1, {}, r"X must have shape .*, with at least one column; got \(4, 2, 0\)"),
            (np.full((10, 2), 0.1), 0.3, {}, "rate=0.3 asks for 3 wrong rows, but kind='noise' can change 0 only"),
            (X + 1e9, 0.3, {"strength": 1e-30}, "strength=1e-30 is too small: rounding swallows the noise of a row"),
            (np.eye(10)[:, :3], 0.4, {"kind": "missing"}, "4 wrong rows, but kind='missing' can change 3 only"),
            (X, 0.05, {"kind": "swapped"}, "asks for 1 wrong rows, but kind='swapped' can change 0 only: it swaps two"),
            (np.eye(10)[:, :3], 1, {"kind": "swapped"}, "asks for 10 wrong rows, but kind='swapped' can change 6 only"),
        ],
    )
    def test_bad_features(self, X, rate, options, words):
        with pytest.raises(ValueError, match=words):
            corrupt_features(X, rate, **options)
