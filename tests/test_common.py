"""scikit-learn's own checks, without an expected failure."""

from __future__ import annotations

import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.estimator_checks import estimator_checks_generator
from skorch import NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import InputShapeSetter
from torch import nn

from sklearn_cdgd import (
    CleanSetDetector,
    CorruptionDetector,
    FilteredClassifier,
    FilteredRegressor,
    NoisySetDetector,
)


class Linear(nn.Module):
    """A module for data of any width; by default it has more outputs than any check has classes."""

    def __init__(self, input_dim=2, n_outputs=12):
        super().__init__()
        self.linear = nn.Linear(input_dim, n_outputs)

    def forward(self, X):
        return self.linear(X)


NET = NeuralNetClassifier(
    Linear,
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.SGD,
    lr=0.1,
    max_epochs=10,
    callbacks=[InputShapeSetter()],
    verbose=0,
)
REGRESSION_NET = NeuralNetRegressor(
    Linear, module__n_outputs=1, lr=0.0001, max_epochs=10, callbacks=[InputShapeSetter()], verbose=0
)
# Few steps and folds, and no forests, as scikit-learn's own tests take few iterations. The default is checked below.
DETECTORS = [CorruptionDetector(witnesses="networks"), CorruptionDetector(NET, max_iter=2, cv=2, clean_cv=2)]
DETECTORS += [cls(net) for cls in (NoisySetDetector, CleanSetDetector) for net in (None, NET)]
BRIEF = NoisySetDetector(NET, random_state=0)
FILTERED = [FilteredClassifier(LogisticRegression(), BRIEF, mode=mode) for mode in ("drop", "weight", "relabel")]
FILTERED += [FilteredRegressor(Ridge(), CleanSetDetector(REGRESSION_NET, random_state=0))]
ESTIMATORS = DETECTORS + FILTERED
CHECKS = [pair for estimator in ESTIMATORS for pair in estimator_checks_generator(estimator)]
WITH_DEFAULTS = ("check_fit_idempotent", "check_methods_sample_order_invariance")


def name(value):
    if hasattr(value, "func"):
        return value.func.__name__
    kind = value.mode if value in FILTERED else "default" if value.net is None else "skorch"
    return f"{type(value).__name__}-{kind}"


@pytest.mark.filterwarnings("ignore:No clean set was given:UserWarning")
@pytest.mark.filterwarnings("ignore:.*were not in the noisy set and get:UserWarning")
@pytest.mark.filterwarnings("ignore:The clean set has no row of class:UserWarning")
@pytest.mark.filterwarnings("ignore:All .* rows.* were found to be wrong:UserWarning")
@pytest.mark.parametrize(("estimator", "check"), CHECKS, ids=name)
def test_scikit_learn_check(estimator, check):
    if "sparse" in check.func.__name__ and isinstance(estimator, CorruptionDetector) and estimator.net is not None:
        estimator = clone(estimator).set_params(cv=None)  # they fit a dozen times
    check(estimator)


@pytest.mark.parametrize("wanted", WITH_DEFAULTS)
@pytest.mark.filterwarnings("ignore:No clean set was given:UserWarning")
@pytest.mark.filterwarnings("ignore:.*were not in the noisy set and get:UserWarning")
def test_scikit_learn_check_of_the_default(wanted):
    pairs = estimator_checks_generator(CorruptionDetector())
    ((estimator, check),) = (pair for pair in pairs if pair[1].func.__name__ == wanted)
    check(estimator)


def test_no_check_has_vanished():
    assert len(CHECKS) > 40 * len(ESTIMATORS)
