"""scikit-learn's own checks, without an expected failure."""

from __future__ import annotations

import pytest
import torch
from sklearn.utils.estimator_checks import estimator_checks_generator
from skorch import NeuralNetClassifier
from skorch.callbacks import InputShapeSetter
from torch import nn

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector


class Linear(nn.Module):
    """A module for data of any width; it has more outputs than any check has classes."""

    def __init__(self, input_dim=2):
        super().__init__()
        self.linear = nn.Linear(input_dim, 12)

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
ESTIMATORS = [cls(net) for cls in (CorruptionDetector, NoisySetDetector, CleanSetDetector) for net in (None, NET)]
CHECKS = [pair for estimator in ESTIMATORS for pair in estimator_checks_generator(estimator)]


def name(value):
    if hasattr(value, "func"):
        return value.func.__name__
    return f"{type(value).__name__}-{'default' if value.net is None else 'skorch'}"


@pytest.mark.filterwarnings("ignore:No clean set was given:UserWarning")
@pytest.mark.filterwarnings("ignore:.*were not in the noisy set and get:UserWarning")
@pytest.mark.filterwarnings("ignore:The clean set has no row of class:UserWarning")
@pytest.mark.parametrize(("estimator", "check"), CHECKS, ids=name)
def test_scikit_learn_check(estimator, check):
    if "sparse" in check.func.__name__ and isinstance(estimator, CorruptionDetector):
        estimator.set_params(max_iter=2, n_inits=1, cv=None)  # they fit a dozen times
    check(estimator)


def test_no_check_has_vanished():
    assert len(CHECKS) > 40 * len(ESTIMATORS)
