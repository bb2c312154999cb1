"""What a fit found, in words."""

from __future__ import annotations

import numpy as np

from ._decision import best_alpha_threshold
from ._stacking import StackedEnsemble

# Classes that are told of one by one.
_SHOWN_CLASSES = 10
# Flag frequencies in between are coin tosses.
_TOSS = 0.25, 0.75


def report_of(
    *,
    flags: np.ndarray,
    rule: str,
    n_clean: int,
    rightness: np.ndarray | None,
    flag_frequency: np.ndarray | None,
    transition: np.ndarray | None,
    classes: np.ndarray | None,
    panel: StackedEnsemble | None,
    alpha: np.ndarray | None = None,
) -> str:
    """Return the text of :meth:`CorruptionDetector.report`.

    Parameters
    ----------
    flags : bool ndarray of shape (n_noisy,)
    rule : str
        What made the flags.
    n_clean : int
    rightness : ndarray of shape (n_noisy,) or None
        Estimated probabilities that rows are right.
    flag_frequency : ndarray of shape (n_noisy,) or None
    transition : ndarray of shape (n_classes, n_classes) or None
    classes : ndarray of shape (n_classes,) or None
    panel : StackedEnsemble or None
        ``None`` where no rows were kept from the models that judge them: then nothing can be said of how good the flags
        are.
    alpha : ndarray of shape (n_noisy,) or None, default=None
        The inclusion variables, if these are what is flagged by.
    """
    lines = [f"{len(flags):,} noisy rows, {n_clean:,} clean rows.", "", "Flags"]
    lines.append(f"  {rule} flags {flags.sum():,} rows ({flags.mean():.1%}).")
    if panel is None:
        lines.append("  With cv=None no rows are kept from the models that judge them: how good the flags are")
        lines.append("  cannot be said. Fit with cv=5.")
        return "\n".join(lines)
    precision, recall = expected_quality(rightness, flags)
    if flags.any():
        found = f"{recall:.0%} of all wrong rows are among them"
        lines.append(f"  To be expected: {precision:.0%} of them are wrong, {found}.")
    if alpha is not None:
        threshold = best_alpha_threshold(alpha, 1 - rightness)
        n_flagged = (alpha < threshold).sum()
        lines.append(f"  threshold={threshold:.2f} has the best expected F1, and flags {n_flagged:,} rows.")
    tosses = ((flag_frequency > _TOSS[0]) & (flag_frequency < _TOSS[1])).sum()
    lines.append(f"  {tosses:,} rows are coin tosses: members disagree on them (flag_frequency_).")
    lines += ["", "Noise", f"  About {1 - rightness.mean():.1%} of the rows seem to be wrong."]
    if transition is not None:
        lines += _noise_lines(transition, [str(label) for label in classes.tolist()])
    lines += ["", "Members: mean loss on held-out clean rows, weight"]
    kinds = list(dict.fromkeys(kind for kind, _ in panel.names))
    width = max(map(len, kinds))
    for kind in kinds:
        rows = _of_kind(panel, kind)
        losses, share = panel.clean_losses[rows].mean(axis=1).min(), panel.weights[rows].sum()
        lines.append(f"  {kind:{width}}  {losses:8.3f}  {share:4.0%}")
    lines += ["", "Next", *(f"  {line}" for line in _advice(precision, flags, tosses, rightness, panel))]
    return "\n".join(lines)


def expected_quality(rightness: np.ndarray, flags: np.ndarray) -> tuple[float, float]:
    """Return the precision and the recall that flags are expected to have; NaN for a share of nothing."""
    wrong = 1 - rightness
    found = wrong[flags].sum()
    return (
        float(found / flags.sum()) if flags.any() else float("nan"),
        float(found / wrong.sum()) if wrong.sum() > 0 else float("nan"),
    )


def as_good_as(panel: StackedEnsemble, kind: str) -> bool:
    """Return whether one way of weighting rows gives models within a standard error of the best on clean rows."""
    own = [n for n in np.flatnonzero(panel.are_learners) if f", {panel.names[n][0]}".endswith(f", {kind}")]
    if not own:
        return False
    losses = panel.clean_losses[own]
    learners = panel.clean_losses[panel.are_learners]
    behind = losses[losses.mean(axis=1).argmin()] - learners[learners.mean(axis=1).argmin()]
    return bool(behind.mean() <= behind.std() / np.sqrt(len(behind)))


def _of_kind(panel: StackedEnsemble, kind: str) -> list[int]:
    return [n for n, (name, _) in enumerate(panel.names) if name == kind]


def _noise_lines(transition: np.ndarray, names: list[str]) -> list[str]:
    rates = 1 - np.diag(transition)
    if np.allclose(rates, rates[0]) and np.allclose(transition[~np.eye(len(names), dtype=bool)], transition[0, 1]):
        return [f"  All classes share one rate, {rates[0]:.0%}, and no wrong label stands out."]
    lines = []
    for c in np.argsort(-rates, kind="stable")[:_SHOWN_CLASSES]:
        others = np.where(np.arange(len(names)) == c, -1.0, transition[c])
        into = int(others.argmax())
        lines.append(f"  {names[c]}: {rates[c]:.0%} wrong, most often given as {names[into]} ({others[into]:.0%})")
    if len(names) > _SHOWN_CLASSES:
        lines.append(f"  {len(names) - _SHOWN_CLASSES} more classes have less.")
    return lines


def _advice(
    precision: float, flags: np.ndarray, tosses: int, rightness: np.ndarray, panel: StackedEnsemble
) -> list[str]:
    lines = []
    if (1 - rightness).mean() < 0.01:
        lines.append("Hardly a row seems to be wrong: the set can be used as it is.")
    elif precision >= 0.9:
        lines.append("Drop the flagged rows, or correct them: to_frame() suggests what they should be.")
    elif flags.any():
        lines.append("Many flags are wrong: have a person check rows in the order of ranked_indices().")
    if tosses > 0.05 * len(flags):
        lines.append("Many rows are coin tosses: move some of them, checked, to the clean set and fit again.")
    if as_good_as(panel, "all rows as they are"):
        lines.append("All rows as they are do as well as the best model: the noise may hardly hurt it.")
    if as_good_as(panel, "clean rows alone"):
        lines.append("Clean rows alone do as well as the best model: the noisy rows may add little.")
    if not panel.is_closed_form and panel.weights[panel.are_learners].sum() < 0.5:
        lines.append("Networks have less than half of the weight: another net, or a longer training, may do better.")
    return lines
