"""The method with the closed-form inner learner: prior, alpha, read-out.

1. *Prior.* Kernel machines, forests and nearest neighbours learn from all noisy rows and the clean rows; stacked, their
   out-of-fold predictions say how probable every given label is.
2. *alpha* begins there, and moves along the hypergradient of the clean loss through the best kernel machine, until
   held-out clean rows tell of no further progress.
3. *Read-out* (CDGD_T). Kernel machines weighted by alpha join, then machines, forests and neighbours weighted by what
   all of these say. Stacked, their out-of-fold predictions judge the rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from ._closed_form import Ridge, huber_loss, log_loss, outer_gradient
from ._default_network import target_units
from ._forests import grow_forests
from ._kernel_machines import INVERSE_TEMPERATURE, KernelMachine, KernelRows
from ._label_noise import noise_transition
from ._learning import Folds, Learner, Learnt, Settings
from ._neighbors import nearest_rows, opinion_of_neighbors
from ._new_pairs_closed_form import AlphaSteps, Encoding, KernelEnsemble, LabelPrior, TargetPrior
from ._stacking import NEIGHBORS, OutOfFold, StackedEnsemble
from ._task import LabelQuality, Task
from ._verdict import with_network
from ._workers import Workers

# The outer objective is not steeper than this, lest few clean rows decide.
_STEEPEST = 10.0
# The search for nearest neighbours can be quadratic in the number of rows.
_MOST_ROWS_TO_SEARCH = 20_000
# How the noisy rows are weighted in the training of members.
_ONES, _ALPHA, _SUGGESTED = "all rows as they are", "rows weighted by alpha", "rows weighted by what these say"


class Members(NamedTuple):
    """Members of the ensemble so far, and their stack.

    Attributes
    ----------
    machines : dict of (str, str) to KernelMachine
    others : dict of (str, str) to OutOfFold
    ensemble : StackedEnsemble
    """

    machines: dict[tuple[str, str], KernelMachine]
    others: dict[tuple[str, str], OutOfFold]
    ensemble: StackedEnsemble


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
        self.max_wait = settings.max_wait
        trainer, self.has_labels = workers.tool, task.n_classes is not None
        encoding = Encoding(task.n_classes) if self.has_labels else Encoding(None, *target_units(trainer.noisy[1]))
        permuted = np.random.RandomState(seed).permutation(trainer.noisy[1])
        self.rows = KernelRows(
            trainer.noisy,
            trainer.clean,
            encoding,
            folds.clean,
            permuted_targets=None if self.has_labels else permuted,
            uses_clean=settings.clean_weight > 0,
            seed=seed,
        )
        self.noisy_targets, self.clean_targets = trainer.noisy[1], trainer.clean[1]
        self._prior_members: Members | None = None
        self._nearest_rows: np.ndarray | None = None

    # --- the method, step by step -------------------------------------------------------------------------------------

    def prior(self) -> np.ndarray:
        """Return the probability that each label is right, shape (n_folds, n_noisy)."""
        return self._p_correct(self.prior_members())

    def prior_members(self) -> Members:
        """Return the members that see every noisy row at its full weight."""
        if self._prior_members is None:
            ones = np.ones((self.rows.n_folds, self.rows.n_noisy))
            self._prior_members = self._stack(self.rows.cross_fit(_ONES, ones), self._others(_ONES, ones))
        return self._prior_members

    def cross_fit(self, learnt: Learnt) -> Members:
        """Return all members, those weighted by alpha and by what these suggest among them."""
        alphas = np.broadcast_to(self.settings.alphas(learnt.state), (self.rows.n_folds, self.rows.n_noisy))
        machines, others, _ = self.prior_members()
        machines = machines | self.rows.cross_fit(_ALPHA, alphas)
        suggested = self._p_correct(self._stack(machines, others))
        machines = machines | self.rows.cross_fit(_SUGGESTED, suggested)
        return self._stack(machines, others | self._others(_SUGGESTED, suggested))

    def hear_all(self, learnt, label_seed):
        members = self.cross_fit(learnt)
        return members.ensemble, None, self.rows.averaged(members.machines, members.ensemble)

    def judge(self, learnt):
        alpha = self.alpha(learnt)
        if self.folds.noisy.max() == 0:  # the paper's read-out
            quality, judges = self._in_sample(alpha)
        else:
            ensemble, _, judges = self.hear_all(learnt, self.seed)
            quality = self.task.estimate_label_quality(
                ensemble, self.noisy_targets, self.clean_targets, alpha, None, self.folds.clean
            )
        verdict = with_network(self.workers.tool, quality, self.settings.clean_weight, self.seed)
        return verdict._replace(judges=judges)

    # --- members ------------------------------------------------------------------------------------------------------

    def _others(self, weighting: str, weights: np.ndarray) -> dict[tuple[str, str], OutOfFold]:
        """Return forests and nearest neighbours whose rows are weighted so."""
        settings = self.settings
        if settings.witnesses == "networks" or settings.clean_weight == 0 or settings.cv is None or self.rows.is_lean:
            return {}
        members = grow_forests(
            self.workers,
            weighting,
            weights,
            self.folds.clean,
            self.rows.permuted_targets,
            seed=self.seed + (weighting != _ONES),
        )
        n_rows = self.rows.n_noisy + len(self.clean_targets)
        if self.has_labels and n_rows <= _MOST_ROWS_TO_SEARCH:
            members[f"{NEIGHBORS}, {weighting}", ""] = opinion_of_neighbors(
                self._nearest(), self.noisy_targets, self.clean_targets, weights, self.folds.clean, self.task.n_classes
            )
        return members

    def _nearest(self) -> np.ndarray:
        """Return the nearest rows of every row, in the scale of the kernels."""
        if self._nearest_rows is None:
            columns, trainer = self.rows.features[0].columns, self.workers.tool
            self._nearest_rows = nearest_rows(columns.apart(trainer.noisy[0][:]), columns.apart(trainer.clean[0][:]))
        return self._nearest_rows

    def _stack(self, machines: dict[tuple[str, str], KernelMachine], others) -> Members:
        members = {name: machine.out_of_fold for name, machine in machines.items()} | others
        targets = self.noisy_targets, self.clean_targets
        return Members(machines, others, self.task.fit_stacking(members, *targets, self.folds.clean))

    def _p_correct(self, members: Members) -> np.ndarray:
        return self.task.rightness(members.ensemble.cross_fitted, self.noisy_targets, self.folds.clean)

    def _in_sample(self, alpha: np.ndarray) -> tuple[LabelQuality, KernelEnsemble]:
        """Judge rows by the best kernel machine, trained on them with alpha."""
        best, power = self.best_machine()
        rows, n = self.rows, self.rows.n_noisy
        features = np.concatenate([rows.noisy_features[best.kernel], rows.clean_features[best.kernel]])
        encoded = np.concatenate([rows.noisy_targets, rows.clean_targets])
        weights = np.concatenate([alpha, np.full(len(encoded) - n, min(rows.clean_weights))]).astype(features.dtype)
        coefficients = Ridge(features, weights).coefficients(encoded, best.penalty)
        answers = rows.encoding.decode(features @ coefficients, power)
        losses = rows.encoding.losses(answers, np.concatenate([self.noisy_targets, self.clean_targets]))
        quality = LabelQuality(
            answers[:n], losses[:n], self.task.plain_limit(losses[n:]), answers[n:], losses[n:], alpha
        )
        judge = KernelEnsemble(
            [rows.features[best.kernel]], [coefficients[None] * (power if self.has_labels else 1)], rows.encoding
        )
        return quality, judge

    # --- alpha --------------------------------------------------------------------------------------------------------

    def best_machine(self) -> tuple[KernelMachine, float]:
        """Return the kernel machine with the largest weight in the prior, and its inverse temperature."""
        machines, _, ensemble = self.prior_members()
        weights = [w if name in machines else -1 for name, w in zip(ensemble.names, ensemble.weights, strict=True)]
        best = int(np.argmax(weights))
        power = INVERSE_TEMPERATURE * ensemble.inverse_temperatures[best]
        return machines[ensemble.names[best]], float(min(power, _STEEPEST))

    def _begin(self, start):
        state = start.state
        is_new = state.count == 0
        if not is_new.any():
            return state
        prior = self.prior()
        prior = prior.mean(axis=0, keepdims=True) if len(state.alpha) == 1 else prior
        prior = torch.as_tensor(prior, dtype=state.alpha.dtype)
        return replace(state, **{n: torch.where(is_new, prior, getattr(state, n)) for n in ("alpha", "mean", "kept")})

    def _objective(self):
        best, power = self.best_machine()
        rows = self.rows
        return ClosedFormObjective(
            rows.noisy_features[best.kernel],
            rows.noisy_targets,
            rows.clean_features[best.kernel],
            log_loss(self.clean_targets, power) if self.has_labels else huber_loss(rows.clean_targets),
            best.penalty,
            self.folds.clean if self.settings.clean_cv is not None else np.full(len(self.clean_targets), -1),
        )

    def alpha_estimate(self, learnt, alpha):
        state, steps = learnt
        n_before = state.n_steps - len(steps)  # on other data
        n_kept = state.kept_step if self.settings.stops_early else state.n_steps
        return AlphaSteps(
            prior=self._prior_of_new_pairs(),
            features=self.rows.features[self.best_machine()[0].kernel],
            snapshots=steps,
            lrs=state.lrs[n_before:n_kept],
            scales=state.scales[n_before:n_kept],
            eps=self.settings.outer_eps,
            average=self.settings.average or self.settings.stops_early,
        )

    def _prior_of_new_pairs(self) -> LabelPrior | TargetPrior:
        machines, _, ensemble = self.prior_members()
        judges, cross_fitted = self.rows.averaged(machines, ensemble), ensemble.cross_fitted
        if not self.has_labels:
            return TargetPrior.of_rows(judges, cross_fitted.losses, self.prior())
        transitions = [noise_transition(answers, self.noisy_targets) for answers in cross_fitted.answers]
        return LabelPrior(judges, np.stack(transitions))


class ClosedFormObjective:
    """The clean loss of one kernel machine, as a function of the inclusion variables.

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
        held_out, found = np.full(len(self.clean_folds), np.nan), []
        for fold, alpha in enumerate(alphas.numpy().astype(self.features.dtype)):
            own = self.clean_folds == fold
            seen = own if own.all() else ~own
            one = outer_gradient(
                self.features, self.targets, alpha, self.penalty, self.clean_features, self.clean_loss, seen
            )
            held_out[~seen] = one.losses[~seen]
            found.append((one.losses[seen].mean(), one.gradient, (one.coefficients, one.adjoint)))
        values, gradients, steps = zip(*found, strict=True)
        self.snapshots.append(list(steps))
        gradient = torch.as_tensor(np.stack(gradients), dtype=alphas.dtype)
        return float(np.mean(values)), gradient, held_out if not np.isnan(held_out).any() else held_out[:1]

    def describe(self, n_steps: int) -> str:
        """Say how much so many outer steps are."""
        n_rows, n_features = self.features.shape
        return f"up to {n_steps} outer steps in closed form, on {n_rows} rows of {n_features} features"
