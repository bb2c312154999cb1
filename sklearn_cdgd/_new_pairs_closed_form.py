"""Pairs that come after the fit, by the closed form: what the kernel machines say of them, and their alpha."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ._closed_form import influence, softmax
from ._kernels import KernelFeatures
from ._label_noise import posterior
from ._outer import adam_step
from ._stacking import log_losses

# A target so many units from the median teaches no more than one at that distance.
_FARTHEST_TARGET = 4.0
# Losses that say how the probability that a target is right falls with them.
_KNOTS = 200


class Encoding(NamedTuple):
    """Targets as a regression takes them: labels one-hot and centred, numbers in units of their spread.

    Attributes
    ----------
    n_classes : int or None
        ``None`` if the targets are numbers.
    center, unit : ndarray of shape (n_outputs,) or None
        Of numbers.
    """

    n_classes: int | None
    center: np.ndarray | None = None
    unit: np.ndarray | None = None

    def encode(self, targets: np.ndarray) -> np.ndarray:
        """Return targets of shape (n_rows, n_outputs)."""
        if self.n_classes is not None:
            return np.eye(self.n_classes)[targets] - 1 / self.n_classes
        scaled = (targets.reshape(len(targets), -1) - self.center) / self.unit
        return scaled.clip(-_FARTHEST_TARGET, _FARTHEST_TARGET)

    def decode(self, scores: np.ndarray, inverse_temperature: float = 1.0) -> np.ndarray:
        """Return probabilities, or predictions in the units of the targets; a single one has no axis of its own."""
        if self.n_classes is not None:
            return softmax(inverse_temperature * scores)
        predictions = scores * self.unit + self.center
        return predictions[..., 0] if predictions.shape[-1] == 1 else predictions

    def losses(self, answers: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return log-losses, or Huber losses in units of the spread, shape (n_rows,)."""
        if self.n_classes is not None:
            return log_losses(answers, targets)
        residuals = ((answers - targets).reshape(len(targets), -1)) / self.unit
        near = residuals.clip(-1, 1)
        return (near * (residuals - near / 2)).mean(axis=1)


class KernelEnsemble(NamedTuple):
    """The kernel machines of a stacked ensemble: the average of their scores is one machine for each kernel.

    Attributes
    ----------
    features : list of KernelFeatures
    coefficients : list of ndarray of shape (n_folds, n_features, n_outputs)
        At the temperature of the ensemble.
    encoding : Encoding
    """

    features: list[KernelFeatures]
    coefficients: list[np.ndarray]
    encoding: Encoding

    def predict(self, X) -> np.ndarray:
        """Return class probabilities or predictions, shape (n_folds, n_rows, ...)."""
        pairs = zip(self.features, self.coefficients, strict=True)
        return self.encoding.decode(sum(of_kernel(X) @ coefficients for of_kernel, coefficients in pairs))


class LabelPrior(NamedTuple):
    """The probability that a label is right, by the members that see all rows at their full weight.

    Attributes
    ----------
    ensemble : KernelEnsemble
        Of every clean fold.
    transitions : ndarray of shape (n_folds, n_classes, n_classes)
    """

    ensemble: KernelEnsemble
    transitions: np.ndarray

    def __call__(self, X, targets: np.ndarray) -> np.ndarray:
        """Return it for every clean fold and pair, shape (n_folds, n_rows)."""
        pairs = zip(self.ensemble.predict(X), self.transitions, strict=True)
        rows = np.arange(len(targets))
        return np.stack([posterior(answers, targets, transition)[rows, targets] for answers, transition in pairs])


class TargetPrior(NamedTuple):
    """The probability that a number is right: that of the training rows with the same loss.

    Attributes
    ----------
    ensemble : KernelEnsemble
        Of every clean fold.
    losses : ndarray of shape (n_knots,)
        Increasing.
    p_correct : ndarray of shape (n_folds, n_knots)
    """

    ensemble: KernelEnsemble
    losses: np.ndarray
    p_correct: np.ndarray

    @classmethod
    def of_rows(cls, ensemble: KernelEnsemble, losses: np.ndarray, p_correct: np.ndarray) -> TargetPrior:
        """Return the prior that training rows of shape (n_folds, n_rows) have."""
        mean = losses.mean(axis=0)
        knots = np.argsort(mean, kind="stable")[np.linspace(0, len(mean) - 1, min(_KNOTS, len(mean))).astype(int)]
        return cls(ensemble, mean[knots], p_correct[:, knots])

    def __call__(self, X, targets: np.ndarray) -> np.ndarray:
        """Return it for every clean fold and pair, shape (n_folds, n_rows)."""
        folds = zip(self.ensemble.predict(X), self.p_correct, strict=True)
        loss = self.ensemble.encoding.losses
        return np.stack([np.interp(loss(answers, targets), self.losses, known) for answers, known in folds])


class AlphaSteps(NamedTuple):
    """The way that alpha has taken, which a pair that comes later takes too.

    A new pair begins at the probability that it is right, and moves at every outer step along its own hypergradient,
    that of a pair of weight 0: the closed form has it without a new training.

    Attributes
    ----------
    prior : LabelPrior or TargetPrior
    features : KernelFeatures
        Of the inner learner.
    snapshots : list of list of (ndarray, ndarray)
        Coefficients and adjoints of every outer step and fold.
    lrs : tuple of float
        Learning rates of the steps that count: alpha may have gone back to an earlier one.
    scales : tuple of tuple of float
        What `eps` was in units of, for every step and fold.
    eps : float
    average : bool
        Whether alpha is the mean over the steps.
    """

    prior: LabelPrior | TargetPrior
    features: KernelFeatures
    snapshots: list
    lrs: tuple[float, ...]
    scales: tuple[tuple[float, ...], ...]
    eps: float
    average: bool

    def alpha(self, network, X, targets: np.ndarray) -> np.ndarray:
        """Return the estimated alpha of each pair."""
        alpha = torch.as_tensor(self.prior(X, targets))
        if self.snapshots and len(self.snapshots[0]) == 1:  # learnt from the whole clean set
            alpha = alpha.mean(dim=0, keepdim=True)
        features, encoded = self.features(X), self.prior.ensemble.encoding.encode(targets)
        first = second = torch.zeros_like(alpha)
        mean = alpha
        steps = zip(self.snapshots, self.lrs, self.scales, strict=False)
        for n, (step, lr, scale) in enumerate(steps, start=1):
            grad = torch.as_tensor(np.stack([influence(features, encoded, *of_fold) for of_fold in step]))
            count = torch.full_like(alpha, n)
            scale = torch.tensor(scale, dtype=alpha.dtype)[:, None]
            alpha, first, second, _ = adam_step(alpha, first, second, count, grad, lr=lr, eps=self.eps, scale=scale)
            mean = mean + (alpha - mean) / n
        return (mean if self.average else alpha).mean(dim=0).numpy()


class MeanAlpha(NamedTuple):
    """The mean of several estimates, one for each shard."""

    estimates: list
    # What a later fit needs to go on is in the state of every row.
    snapshots: tuple = ()

    def alpha(self, network, X, targets: np.ndarray) -> np.ndarray:
        """Return the estimated alpha of each pair."""
        return np.mean([estimate.alpha(network, X, targets) for estimate in self.estimates], axis=0)


class MeanEnsemble(NamedTuple):
    """The mean of several ensembles, one for each shard."""

    ensembles: list[KernelEnsemble]

    @property
    def encoding(self) -> Encoding:
        """That of all shards."""
        return self.ensembles[0].encoding

    def predict(self, X) -> np.ndarray:
        """Return class probabilities or predictions, shape (n_folds, n_rows, ...)."""
        return np.mean([ensemble.predict(X) for ensemble in self.ensembles], axis=0)
