"""The method with the closed-form inner learner: prior, alpha, cross-fitting, stacking, label quality.

1. *Prior.* Kernel machines and forests are trained on all noisy rows and the clean rows; stacked, their out-of-fold
   predictions say how probable every given label is.
2. *alpha* begins there, and moves along the hypergradient of the clean loss through the best kernel machine, until
   held-out clean rows tell of no further progress.
3. *Read-out* (CDGD_T). Kernel machines weighted by alpha join, then others, and forests, weighted by what all of these
   say. Stacked, their leave-one-out predictions judge the rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from ._closed_form import Ridge, huber_loss, leave_one_out, log_loss, outer_gradient, weighted_gram
from ._default_network import target_units
from ._forests import grow_forests
from ._kernels import kernel_features
from ._label_noise import noise_transition
from ._learning import Folds, Learner, Learnt, Settings
from ._new_pairs_closed_form import AlphaSteps, Encoding, KernelEnsemble, LabelPrior, TargetPrior
from ._outer import OuterState
from ._stacking import OutOfFold, StackedEnsemble
from ._task import LabelQuality, Task
from ._verdict import Verdict, with_network
from ._workers import Workers

_PENALTIES = (0.3, 1.0, 3.0, 10.0)
# What a clean row weighs, beside a noisy row's 1.
_CLEAN_WEIGHTS = (1.0, 5.0)
# One-hot targets are predicted this much too flat, about; each member's own temperature is fitted in stacking.
INVERSE_TEMPERATURE = 6.0
# The outer objective is not steeper than this, lest few clean rows decide.
_STEEPEST = 10.0
# alpha stops after so many outer steps without progress on held-out clean rows.
_MAX_WAIT = 3


class Member(NamedTuple):
    """What is kept of a kernel machine.

    Attributes
    ----------
    kernel : int
        Which of the features.
    penalty : float
    coefficients : ndarray of shape (n_folds, n_features, n_outputs)
        Without each clean fold.
    """

    kernel: int
    penalty: float
    coefficients: np.ndarray


class ClosedFormLearner(Learner):
    """The learner whose inner training is a formula.

    Parameters
    ----------
    workers : Workers
        Of a :class:`Trainer`; they grow the forests.
    task : Task
    settings : Settings
    folds : Folds
    seed : int

    Notes
    -----
    With N rows, D landmarks and C classes a fit costs some tens of N * D * (D + C) operations.
    """

    def __init__(self, workers: Workers, task: Task, settings: Settings, folds: Folds, seed: int):
        super().__init__(workers, task, settings, folds, seed)
        self.max_wait = _MAX_WAIT if settings.stops_early else None
        trainer = workers.tool
        self.noisy, self.clean, self.network = trainer.noisy, trainer.clean, trainer.network
        self.n_noisy = len(self.noisy[1])
        self.n_folds = int(folds.clean.max()) + 1
        self.features = kernel_features(self.noisy[0], self.clean[0], seed)
        self.noisy_features = [of_kernel(self.noisy[0]) for of_kernel in self.features]
        self.clean_features = [of_kernel(self.clean[0]) for of_kernel in self.features]
        self.has_labels = task.n_classes is not None
        self.encoding = Encoding(task.n_classes) if self.has_labels else Encoding(None, *target_units(self.noisy[1]))
        self.targets = self.encoding.encode(self.noisy[1]).astype(np.float32)
        self.clean_targets = self.encoding.encode(self.clean[1]).astype(np.float32)
        permuted = np.random.RandomState(seed).permutation(self.n_noisy)
        self.permuted_targets = None if self.has_labels else self.noisy[1][permuted]
        self.members: dict[tuple[str, str], OutOfFold] = {}
        self.machines: dict[tuple[str, str], Member] = {}
        self._prior: StackedEnsemble | None = None

    # --- the method, step by step -------------------------------------------------------------------------------------

    def hear_all(self, learnt: Learnt, label_seed: int) -> tuple[StackedEnsemble, None]:
        """Cross-fit members weighted by alpha, and by what all members say, and stack them."""
        alphas = np.broadcast_to(self.settings.alphas(learnt.state), (self.n_folds, self.n_noisy))
        self.prior_ensemble()
        self._cross_fit("rows weighted by alpha", alphas)
        suggested = self.task.rightness(self._stack().cross_fitted, self.noisy[1], self.folds.clean)
        self._cross_fit("rows weighted by what these say", suggested)
        self._grow("rows weighted by what these say", suggested)
        return self._stack(), None

    def judge(self, learnt: Learnt) -> Verdict:
        """Judge every row, and train the network on what is held to be right."""
        alpha = self.alpha(learnt)
        if self.folds.noisy.max() == 0:  # the paper's read-out
            quality, judges = self._in_sample(alpha)
        else:
            ensemble, _ = self.hear_all(learnt, self.seed)
            quality = self.task.estimate_label_quality(
                ensemble, self.noisy[1], self.clean[1], alpha, None, self.folds.clean
            )
            judges = self.ensemble_of_new_pairs(ensemble)
        verdict = with_network(self.workers.tool, quality, self.settings.clean_weight, self.seed)
        return verdict._replace(judges=judges)

    def prior_ensemble(self) -> StackedEnsemble:
        """Return the stack of the members that see every noisy row at its full weight."""
        if self._prior is None:
            ones = np.ones((self.n_folds, self.n_noisy))
            self._cross_fit("all rows as they are", ones)
            self._grow("all rows as they are", ones)
            self._prior = self._stack()
        return self._prior

    def prior(self) -> np.ndarray:
        """Return the probability that each label is right, shape (n_folds, n_noisy)."""
        return self.task.rightness(self.prior_ensemble().cross_fitted, self.noisy[1], self.folds.clean)

    # --- members ------------------------------------------------------------------------------------------------------

    def _cross_fit(self, kind: str, weights: np.ndarray) -> None:
        """Train kernel machines of every kernel, penalty and clean weight on weighted noisy rows.

        Parameters
        ----------
        kind : str
        weights : ndarray of shape (n_folds, n_noisy)
        """
        clean_weights = _CLEAN_WEIGHTS if self.settings.clean_weight > 0 else (0.0,)
        for number, of_kernel in enumerate(self.features):
            rows = np.concatenate([self.noisy_features[number], self.clean_features[number]])
            noisy_gram = [
                weighted_gram(self.noisy_features[number], w)
                for w in (weights[:1] if (weights == weights[0]).all() else weights)
            ]
            clean_gram = [
                weighted_gram(self.clean_features[number], self._seen(fold).astype(rows.dtype))
                for fold in self._all_folds()
            ]
            for clean_weight in clean_weights:
                scores = {penalty: self._empty() for penalty in _PENALTIES}
                coefficients = {penalty: [] for penalty in _PENALTIES}
                for fold in self._all_folds():
                    seen = self._seen(fold)
                    ridge = Ridge(
                        rows,
                        np.concatenate([weights[fold], clean_weight * seen]).astype(rows.dtype),
                        noisy_gram[fold % len(noisy_gram)] + clean_weight * clean_gram[fold],
                    )
                    held_out = ~seen if self.n_folds > 1 else seen
                    targets = np.concatenate([self.targets, self.clean_targets])
                    for penalty in _PENALTIES:
                        theta = ridge.coefficients(targets, penalty)
                        found = leave_one_out(rows @ theta, targets, ridge.leverages(penalty))
                        noisy_scores, clean_scores = scores[penalty]
                        noisy_scores[fold] = found[: self.n_noisy]
                        clean_scores[held_out] = found[self.n_noisy :][held_out]
                        coefficients[penalty].append(theta)
                for penalty in _PENALTIES:
                    name = f"{of_kernel.kernel.name}, {kind}", f"penalty {penalty:g}, clean rows {clean_weight:g}"
                    self.members[name] = self._out_of_fold(*scores[penalty])
                    self.machines[name] = Member(number, penalty, np.stack(coefficients[penalty]))

    def _grow(self, kind: str, weights: np.ndarray) -> None:
        """Grow forests on weighted noisy rows and the clean rows."""
        if self.settings.witnesses == "networks" or self.settings.clean_weight == 0 or self.folds.noisy.max() == 0:
            return
        seed = self.seed + len(self.members)
        self.members |= grow_forests(self.workers, kind, weights, self.folds.clean, self.permuted_targets, seed)

    def _stack(self) -> StackedEnsemble:
        return self.task.fit_stacking(self.members, self.noisy[1], self.clean[1], self.folds.clean)

    def _out_of_fold(self, scores: np.ndarray, clean_scores: np.ndarray) -> OutOfFold:
        """Turn scores into what a member says: probabilities and log-losses, or predictions and Huber losses."""
        answers = self.encoding.decode(scores, INVERSE_TEMPERATURE)
        clean_answers = self.encoding.decode(clean_scores, INVERSE_TEMPERATURE)
        losses = np.stack([self.encoding.losses(of_fold, self.noisy[1]) for of_fold in answers])
        clean_losses = self.encoding.losses(clean_answers, self.clean[1])
        permuted = np.zeros_like(losses)
        if not self.has_labels:
            permuted = np.stack([self.encoding.losses(of_fold, self.permuted_targets) for of_fold in answers])
        of_clean = clean_answers, clean_losses
        return OutOfFold(answers, losses, *of_clean, *of_clean, permuted)

    def _in_sample(self, alpha: np.ndarray) -> tuple[LabelQuality, KernelEnsemble]:
        """Judge rows by the best kernel machine, trained on them with alpha."""
        number, penalty, power = self.best_machine()
        features, clean_features = self.noisy_features[number], self.clean_features[number]
        clean_weight = 1.0 if self.settings.clean_weight > 0 else 0.0
        rows, targets = np.concatenate([features, clean_features]), np.concatenate([self.targets, self.clean_targets])
        ridge = Ridge(rows, np.concatenate([alpha, np.full(len(clean_features), clean_weight)]).astype(rows.dtype))
        theta = ridge.coefficients(targets, penalty)
        scores = rows @ theta
        answers = self.encoding.decode(scores, power)
        losses = self.encoding.losses(answers, np.concatenate([self.noisy[1], self.clean[1]]))
        n = self.n_noisy
        limit = self.task.plain_limit(losses[n:])
        quality = LabelQuality(answers[:n], losses[:n], limit, answers[n:], losses[n:], alpha)
        coefficients = [np.zeros((1, f.n_features, self.targets.shape[1])) for f in self.features]
        coefficients[number][0] = theta * (power if self.has_labels else 1.0)
        return quality, KernelEnsemble(self.features, coefficients, self.encoding)

    # --- alpha --------------------------------------------------------------------------------------------------------

    def best_machine(self) -> tuple[int, float, float]:
        """Return kernel, penalty and inverse temperature of the kernel machine with the largest weight."""
        prior = self.prior_ensemble()
        weights = [w if name in self.machines else -1.0 for name, w in zip(prior.names, prior.weights, strict=True)]
        best = int(np.argmax(weights))
        machine = self.machines[prior.names[best]]
        power = INVERSE_TEMPERATURE * prior.inverse_temperatures[best]
        return machine.kernel, machine.penalty, float(min(power, _STEEPEST))

    def _begin(self, start: Learnt) -> OuterState:
        """Let rows that no outer step has seen begin at the prior."""
        state = start.state
        if state.n_steps and not start.snapshots:  # other data than those of the last fit: go on from what was kept
            state = replace(state, alpha=state.kept, mean=state.kept, kept_losses=(), kept_step=state.n_steps)
        is_new = state.count == 0
        if not is_new.any():
            return state
        prior = self.prior()
        prior = prior.mean(axis=0, keepdims=True) if len(state.alpha) == 1 else prior
        prior = torch.as_tensor(prior, dtype=state.alpha.dtype)
        return replace(state, **{n: torch.where(is_new, prior, getattr(state, n)) for n in ("alpha", "mean", "kept")})

    def _objective(self) -> ClosedFormObjective:
        number, penalty, power = self.best_machine()
        loss = log_loss(self.clean[1], power) if self.has_labels else huber_loss(self.clean_targets)
        folds = self.folds.clean if self.settings.clean_cv is not None else np.full(len(self.clean[1]), -1)
        return ClosedFormObjective(
            self.noisy_features[number], self.targets, self.clean_features[number], loss, penalty, folds
        )

    def alpha_estimate(self, learnt: Learnt, alpha: np.ndarray) -> AlphaSteps:
        """Return what estimates alpha of pairs that come later."""
        state, steps = learnt
        n_before = state.n_steps - len(steps)  # on other data
        n_kept = state.kept_step if self.settings.stops_early else state.n_steps
        return AlphaSteps(
            prior=self._prior_of_new_pairs(),
            features=self.features[self.best_machine()[0]],
            steps=steps[: max(0, n_kept - n_before)],
            lrs=state.lrs[n_before:n_kept],
            scales=state.scales[n_before:n_kept],
            eps=self.settings.outer_eps,
            average=self.settings.average,
        )

    def _prior_of_new_pairs(self) -> LabelPrior | TargetPrior:
        ensemble = self.ensemble_of_new_pairs(self.prior_ensemble())
        cross_fitted = self.prior_ensemble().cross_fitted
        if not self.has_labels:
            return TargetPrior.of_rows(ensemble, cross_fitted.losses, self.prior())
        return LabelPrior(
            ensemble, np.stack([noise_transition(answers, self.noisy[1]) for answers in cross_fitted.answers])
        )

    def ensemble_of_new_pairs(self, ensemble: StackedEnsemble) -> KernelEnsemble:
        """Return the kernel machines of an ensemble, their weights scaled up to a sum of 1."""
        members = zip(ensemble.names, ensemble.weights, ensemble.inverse_temperatures, strict=True)
        machines = [(self.machines[name], weight, power) for name, weight, power in members if name in self.machines]
        total = sum(weight for _, weight, _ in machines)
        factor = INVERSE_TEMPERATURE * ensemble.inverse_temperature if self.has_labels else 1.0
        coefficients = [0.0 for _ in self.features]
        for machine, weight, power in machines:
            share = weight / total if total > 0 else 1 / len(machines)
            coefficients[machine.kernel] = coefficients[machine.kernel] + factor * share * power * machine.coefficients
        return KernelEnsemble(self.features, coefficients, self.encoding)

    # --- small pieces -------------------------------------------------------------------------------------------------

    def _empty(self) -> tuple[np.ndarray, np.ndarray]:
        n_outputs = self.targets.shape[1]
        return (
            np.empty((self.n_folds, self.n_noisy, n_outputs), dtype=np.float32),
            np.empty((len(self.clean_targets), n_outputs), dtype=np.float32),
        )

    def _all_folds(self) -> range:
        return range(self.n_folds)

    def _seen(self, fold: int) -> np.ndarray:
        """Return the clean rows that are trained on where a fold is held out; all of them if there is one fold."""
        return (self.folds.clean != fold) | (self.n_folds == 1)


class ClosedFormObjective:
    """The clean loss of the best kernel machine, as a function of the inclusion variables.

    Parameters
    ----------
    features : ndarray of shape (n_noisy, n_features)
    targets : ndarray of shape (n_noisy, n_outputs)
    clean_features : ndarray of shape (n_clean, n_features)
    clean_loss : callable
        See :func:`outer_gradient`.
    penalty : float
    clean_folds : ndarray of shape (n_clean,)
        -1 for rows that are never held out.

    Attributes
    ----------
    snapshots : list of list of (ndarray, ndarray)
        For every outer step and fold, the coefficients and adjoints from which the influence of any pair follows.
    """

    def __init__(self, features, targets, clean_features, clean_loss, penalty: float, clean_folds: np.ndarray):
        self.features, self.targets, self.clean_features = features, targets, clean_features
        self.clean_loss, self.penalty, self.clean_folds = clean_loss, penalty, clean_folds
        self.snapshots: list[list[tuple[np.ndarray, np.ndarray]]] = []

    def __call__(self, alphas: torch.Tensor, outer_step: int) -> tuple[float, torch.Tensor, np.ndarray]:
        """Return the mean clean loss, its hypergradient by the alpha of every fold, and losses of held-out clean rows.

        Held-out losses are a single NaN where no clean row is left out.
        """
        held_out, values, gradients, steps = np.full(len(self.clean_folds), np.nan), [], [], []
        for fold, alpha in enumerate(alphas.numpy().astype(self.features.dtype)):
            own = self.clean_folds == fold
            seen = ~own if not own.all() else own
            found = outer_gradient(
                self.features, self.targets, alpha, self.penalty, self.clean_features, self.clean_loss, seen
            )
            held_out[own & ~seen] = found.losses[own & ~seen]
            values.append(found.losses[seen].mean())
            gradients.append(found.gradient)
            steps.append((found.coefficients, found.adjoint))
        self.snapshots.append(steps)
        gradient = torch.as_tensor(np.stack(gradients), dtype=alphas.dtype)
        held_out = held_out[~np.isnan(held_out)] if not np.isnan(held_out).all() else held_out[:1]
        return float(np.mean(values)), gradient, held_out

    def describe(self, n_steps: int) -> str:
        """Say how long so many outer steps can take."""
        n_rows, n_features = self.features.shape
        return f"up to {n_steps} outer steps on {n_rows:,} rows and {n_features} features in closed form"
