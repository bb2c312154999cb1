"""What a fit learnt is found again under an equal key, in any process, and never under another."""

from __future__ import annotations

import functools
import runpy
import subprocess
import sys

import joblib
import numpy as np
import pytest
import torch
from helpers import assert_same_result, closed_form_detector, quick_detector, three_columns
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_cdgd import _closed_form_learning, _trainer
from sklearn_cdgd._cache import fingerprint
from sklearn_cdgd.metrics import make_detection_scorer


@pytest.fixture
def trainings(monkeypatch):
    """Count the trainings of networks, and those in closed form."""
    counted = []

    def counting(train):
        def count_and_train(*args, **kwargs):
            counted.append(1)
            return train(*args, **kwargs)

        return count_and_train

    monkeypatch.setattr(_trainer, "hypergradient", counting(_trainer.hypergradient))
    monkeypatch.setattr(_trainer, "train_in_parts", counting(_trainer.train_in_parts))
    monkeypatch.setattr(_closed_form_learning, "outer_gradient", counting(_closed_form_learning.outer_gradient))
    return counted


def test_a_search_over_thresholds_trains_once_per_fold(spheres, trainings, tmp_path):
    X, y, X_clean, y_clean, is_corrupted = spheres()
    everything = np.arange(len(X))
    folds = [(everything, everything), (everything[20:], everything[20:])]
    quick_detector().fit(X, y, X_clean, y_clean)
    one_fit = len(trainings)
    assert one_fit >= 3
    search = GridSearchCV(
        quick_detector(method="alpha", memory=str(tmp_path)),
        {"threshold": np.linspace(0.05, 0.95, 20)},
        scoring=make_detection_scorer(f1_score, truth=(X, y, is_corrupted)),
        cv=folds,
        error_score="raise",
    )
    del trainings[:]
    search.fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,))
    # The final fit, to all rows, is that of the first fold.
    assert one_fit * len(folds) <= len(trainings) <= 1.1 * one_fit * len(folds)
    assert np.ptp(search.cv_results_["mean_test_score"]) > 0


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (quick_detector, {}),
        (closed_form_detector, {}),
        (closed_form_detector, {"cv": None}),
        (closed_form_detector, {"clean_cv": None}),
        (closed_form_detector, {"shard_size": 60}),
        (closed_form_detector, {"witnesses": "all"}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_is_read_equals_what_was_trained(make, options, spheres, trainings, tmp_path):
    """Also where alpha stopped before `max_iter`."""
    arrays = spheres()[:4]
    new_pairs = arrays[2], 1 - arrays[3]
    expected = make(**options).fit(*arrays)
    detector = make(memory=joblib.Memory(tmp_path, verbose=0), **options)
    n_trainings = len(trainings)
    for expected_trainings in (n_trainings, 0):
        del trainings[:]
        detector = clone(detector).fit(*arrays)
        assert len(trainings) == expected_trainings
        assert_same_result(detector, expected)
        assert detector.n_iter_ == expected.n_iter_
        np.testing.assert_array_equal(detector.predict(*new_pairs), expected.predict(*new_pairs))
        found, wanted = (d.decision_function(*new_pairs) for d in (detector, expected))
        np.testing.assert_array_equal(found, wanted)
        X = arrays[0].astype(np.float32)
        np.testing.assert_array_equal(detector.net_.predict_proba(X), expected.net_.predict_proba(X))


def test_a_fit_in_closed_form_goes_on_from_what_was_read(spheres, trainings, tmp_path):
    arrays = spheres()[:4]
    whole = closed_form_detector(max_iter=5).fit(*arrays)
    for _ in range(2):
        detector = closed_form_detector(max_iter=2, warm_start=True, memory=str(tmp_path))
        detector.fit(*arrays).set_params(max_iter=5).fit(*arrays)
        assert_same_result(detector, whole)
    assert trainings
    del trainings[:]
    closed_form_detector(max_iter=2, warm_start=True, memory=str(tmp_path)).fit(*arrays)
    assert not trainings


def test_what_was_cut_short_is_not_remembered(spheres, trainings, tmp_path, monkeypatch):
    arrays, options = spheres()[:4], {"memory": str(tmp_path)}
    whole, steps = closed_form_detector().fit(*arrays), []
    counted = _closed_form_learning.outer_gradient

    def interrupting(*args):
        steps.append(1)
        if len(steps) == 8:
            raise KeyboardInterrupt
        return counted(*args)

    monkeypatch.setattr(_closed_form_learning, "outer_gradient", interrupting)
    with pytest.warns(ConvergenceWarning, match="interrupted after 2 of 12"):
        assert closed_form_detector(**options).fit(*arrays).n_iter_ == 2
    del trainings[:]
    assert_same_result(closed_form_detector(**options).fit(*arrays), whole)
    assert trainings


def test_parameters_that_no_training_depends_on(spheres, trainings, tmp_path):
    arrays = spheres()[:4]
    quick_detector(memory=str(tmp_path)).fit(*arrays)
    del trainings[:]
    for name, value in {"method": "alpha", "threshold": 0.1, "loss_limit": 1.0, "verbose": 1}.items():
        quick_detector(memory=str(tmp_path), **{name: value}).fit(*arrays)
    assert not trainings


def test_everything_else_is_trained_anew(spheres, trainings, tmp_path):
    X, y, X_clean, y_clean, _ = spheres()
    detector = quick_detector(memory=str(tmp_path)).fit(X, y, X_clean, y_clean)
    flipped = np.r_[1 - y[:1], y[1:]]
    others = [
        (clone(detector).set_params(max_iter=1), (X, y, X_clean, y_clean)),
        (clone(detector).set_params(random_state=1), (X, y, X_clean, y_clean)),
        (clone(detector).set_params(net__lr=0.2), (X, y, X_clean, y_clean)),
        (clone(detector).set_params(net__module__hidden=9), (X, y, X_clean, y_clean)),
        (detector, (X, flipped, X_clean, y_clean)),
        (detector, (X * 1.001, y, X_clean, y_clean)),
        (detector, (X, y, X_clean[1:], y_clean[1:])),
    ]
    for other, arrays in others:
        del trainings[:]
        other.fit(*arrays)
        assert trainings


def test_a_generator_moves_on_alike_whether_read_or_trained(spheres, tmp_path):
    arrays = spheres()[:4]
    after = []
    for _ in range(2):
        rng = np.random.RandomState(0)
        quick_detector(memory=str(tmp_path), random_state=rng, cv=3).fit(*arrays)
        after.append(rng.randint(1_000_000))
    assert after[0] == after[1]


class Layered(nn.Module):
    scale = 1.0

    def __init__(self, activation=nn.ReLU, hidden=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, hidden), activation(), nn.Linear(hidden, 2))

    def forward(self, X):
        return self.layers(X) * self.scale


def instance(activation=nn.ReLU, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Layered(activation)


def factory_with(hidden):
    return lambda: nn.Linear(hidden, 2)


def class_with(scale):
    class Edited(nn.Module):
        def forward(self, X):
            return X * scale

    return Edited


PAIRS = {
    "arrays": (np.arange(3.0), np.arange(3.0), np.arange(3)),
    "shapes": (np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((3, 2))),
    "strings in objects": (
        np.array(["a", 1], dtype=object),
        np.array(["a", 1], dtype=object),
        np.array(["b", 1], object),
    ),
    "tensors": (torch.ones(2), torch.ones(2), torch.ones(2, dtype=torch.float64)),
    "bfloat16": (torch.ones((), dtype=torch.bfloat16), torch.ones((), dtype=torch.bfloat16), torch.zeros(())),
    "instances": (instance(), instance(), instance(seed=1)),
    "same weights, other activation": (instance(), instance(), instance(nn.Tanh)),
    "training mode": (instance(), instance().train(), instance().eval()),
    "classes": (Layered, Layered, nn.Linear),
    "classes of equal name, other code": (class_with(1), class_with(1), class_with(2)),
    "functions": (three_columns, three_columns, instance),
    "functions with other surroundings": (factory_with(3), factory_with(3), factory_with(4)),
    "lambdas": (lambda: 1, lambda: 1, lambda: 2),
    "lambdas that call others": (lambda: torch.relu, lambda: torch.relu, lambda: torch.tanh),
    "partial": (functools.partial(Layered, hidden=2), functools.partial(Layered, hidden=2), functools.partial(Layered)),
    "sets": ({"a", "b", "c"}, {"c", "b", "a"}, {"a", "b"}),
    "nets": (
        NeuralNetClassifier(Layered, module__hidden=3),
        NeuralNetClassifier(Layered, module__hidden=3),
        NeuralNetClassifier(Layered, module__hidden=4),
    ),
    "optimizers": (
        NeuralNetClassifier(Layered),
        NeuralNetClassifier(Layered),
        NeuralNetClassifier(Layered, optimizer=torch.optim.Adam),
    ),
}


@pytest.mark.parametrize("case", PAIRS)
def test_fingerprints(case):
    value, equal, other = PAIRS[case]
    assert fingerprint(value) == fingerprint(equal) == fingerprint(value)
    assert fingerprint(value) != fingerprint(other)


def test_tied_weights_differ_from_equal_weights():
    tied, equal = nn.ModuleList([nn.Linear(2, 2)] * 2), nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    equal[1].load_state_dict(equal[0].state_dict())
    tied[0].load_state_dict(equal[0].state_dict())
    assert fingerprint(tied) != fingerprint(equal)


def test_a_cycle_ends():
    module = nn.Linear(2, 2)
    module.__dict__["parent"] = module
    assert fingerprint(module) == fingerprint(module)


def test_a_fingerprint_is_the_same_in_another_process(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from torch import nn\n"
        "from skorch import NeuralNetClassifier\n"
        "from sklearn_cdgd._cache import fingerprint\n"
        "def helper(): return {'a', 'b', 'c'}\n"
        "class Net(nn.Module):\n"
        "    def __init__(self): super().__init__(); self.layer = nn.Linear(2, 2); helper()\n"
        "torch.manual_seed(0)\n"
        "print(fingerprint((Net, Net(), NeuralNetClassifier(Net(), lr=.1), lambda: helper(), ['x', 'x'])))\n"
    )
    there = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    with torch.random.fork_rng():
        runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out == there


def test_what_has_no_fingerprint_is_trained_with_a_warning(spheres, trainings, tmp_path):
    with pytest.raises(TypeError, match="a lazy layer cannot be told from another"):
        fingerprint(nn.LazyLinear(2))
    arrays = spheres()[:4]
    generator = torch.Generator()

    def unclear():
        assert generator is not None
        return three_columns()

    for _ in range(2):
        del trainings[:]
        detector = quick_detector(memory=str(tmp_path)).set_params(net__module=unclear)
        with pytest.warns(UserWarning, match="memory has no effect: an object of type Generator cannot be told from"):
            detector.fit(*arrays)
        assert trainings


def test_memory_must_be_a_folder_or_a_memory(spheres):
    with pytest.raises(ValueError, match="The 'memory' parameter of CorruptionDetector must be"):
        quick_detector(memory=3).fit(*spheres()[:4])


def test_ranking_scores_are_not_inverted_in_a_search(spheres, tmp_path):
    X, y, X_clean, y_clean, is_corrupted = spheres(rate=0.4)
    everything = np.arange(len(X))
    search = GridSearchCV(
        quick_detector(memory=str(tmp_path)),
        {"max_iter": [4]},
        scoring=make_detection_scorer(average_precision_score, response="scores", truth=(X, y, is_corrupted)),
        cv=[(everything, everything)],
        refit=False,
    )
    search.fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,))
    alpha = quick_detector(max_iter=4).fit(X, y, X_clean, y_clean).alpha_
    assert search.best_score_ == pytest.approx(average_precision_score(is_corrupted, -alpha))
