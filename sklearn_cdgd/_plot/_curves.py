"""Displays of numbers: thresholds, inclusion variables, losses."""

from __future__ import annotations

import numpy as np
from sklearn.utils import column_or_1d

from ._common import RIGHT, WRONG, check_mask, check_scores, one_axes


class ThresholdCurveDisplay:
    """Precision, recall and F1 of the flags ``alpha < threshold``, against the threshold.

    Several runs, say over seeds, are drawn as their mean with a band of one standard error on either side.

    Parameters
    ----------
    thresholds : ndarray of shape (n_thresholds,)
        Thresholds on alpha, in [0, 1].
    precision, recall, f1 : ndarray of shape (n_runs, n_thresholds)
        In [0, 1]. Precision is NaN where a run flags nothing.
    rate : float or None, default=None
        Share of wrong rows. If given, the F1 of flagging every row, ``2 * rate / (1 + rate)``, is drawn too.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib Line2D
        Of precision, recall and F1.
    bands_ : list of matplotlib FillBetweenPolyCollection
        The bands of the standard error; empty for a single run.

    References
    ----------
    Golkar and Cho, "Task-Driven Data Verification via Gradient Descent", arXiv 1905.05843, appendix.

    Examples
    --------
    >>> from sklearn_cdgd import ThresholdCurveDisplay
    >>> curves = ThresholdCurveDisplay.from_predictions(
    ...     [True, True, False, False], [0.1, 0.6, 0.4, 0.9], thresholds=[0.5, 0.7]
    ... )
    >>> curves.recall.tolist(), curves.precision.round(2).tolist()
    ([[0.5, 1.0]], [[0.5, 0.67]])
    """

    def __init__(self, thresholds, precision, recall, f1, *, rate=None):
        self.thresholds = thresholds
        self.precision = precision
        self.recall = recall
        self.f1 = f1
        self.rate = rate

    @classmethod
    def from_estimator(cls, detector, is_corrupted, *, thresholds=None, ax=None, curve_kwargs=None, band_kwargs=None):
        """Draw the curves of one or several fitted detectors.

        Parameters
        ----------
        detector : fitted detector, or list of fitted detectors
        is_corrupted : array-like of shape (n_noisy,), or list of such
            The truth about the rows of the noisy set, True = wrong; one for all detectors, or a list of one each.
        thresholds, ax, curve_kwargs, band_kwargs
            As in :meth:`from_predictions`.

        Returns
        -------
        display : ThresholdCurveDisplay

        Raises
        ------
        ValueError, ImportError
            As in :meth:`from_predictions`.
        """
        detectors = detector if isinstance(detector, list | tuple) else [detector]
        alpha = [one.decision_function() for one in detectors]
        return cls.from_predictions(
            is_corrupted, alpha, thresholds=thresholds, ax=ax, curve_kwargs=curve_kwargs, band_kwargs=band_kwargs
        )

    @classmethod
    def from_predictions(cls, is_corrupted, alpha, *, thresholds=None, ax=None, curve_kwargs=None, band_kwargs=None):
        """Draw the curves of one or several runs.

        Parameters
        ----------
        is_corrupted : array-like of shape (n_noisy,), or list of such
            The truth, True = wrong; one for all runs, or a list of one for each run.
        alpha : array-like of shape (n_noisy,), or list of such
            Inclusion of every row, in [0, 1]; large = keep. A list has one for each run.
        thresholds : array-like of shape (n_thresholds,) or None, default=None
            ``None`` takes 0, 0.01, ..., 1.
        ax : matplotlib Axes or None, default=None
            ``None`` makes a new figure.
        curve_kwargs, band_kwargs : dict or None, default=None
            Passed on to ``Axes.plot`` and to ``Axes.fill_between``.

        Returns
        -------
        display : ThresholdCurveDisplay

        Raises
        ------
        ValueError
            If truth and alpha differ in length or in the number of runs, hold something else, or if no row is wrong.
        ImportError
            If matplotlib is not installed.
        """
        runs = [check_scores(run) for run in (alpha if _is_several(alpha) else [alpha])]
        truths = list(is_corrupted) if _is_several(is_corrupted) else [is_corrupted] * len(runs)
        if len(truths) != len(runs):
            raise ValueError(f"is_corrupted is a list of {len(truths)} runs, but alpha of {len(runs)}.")
        truths = [check_mask(truth, len(run)) for truth, run in zip(truths, runs, strict=True)]
        if not all(truth.any() for truth in truths):
            raise ValueError("is_corrupted marks no row as wrong, so there is nothing to be found.")
        thresholds = np.linspace(0, 1, 101) if thresholds is None else check_scores(thresholds, "thresholds")
        curves = [_curves(truth, run, thresholds) for truth, run in zip(truths, runs, strict=True)]
        precision, recall, f1 = (np.array(curve) for curve in zip(*curves, strict=True))
        rate = float(np.mean([truth.mean() for truth in truths]))
        display = cls(thresholds, precision, recall, f1, rate=rate)
        return display.plot(ax, curve_kwargs=curve_kwargs, band_kwargs=band_kwargs)

    def plot(self, ax=None, *, curve_kwargs=None, band_kwargs=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or None, default=None
            ``None`` makes a new figure.
        curve_kwargs, band_kwargs : dict or None, default=None
            Passed on to ``Axes.plot`` and to ``Axes.fill_between``.

        Returns
        -------
        self : ThresholdCurveDisplay

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        ax = one_axes(self, ax)
        self.lines_, self.bands_ = [], []
        for name, runs in [("precision", self.precision), ("recall", self.recall), ("F1", self.f1)]:
            mean = runs.mean(axis=0)
            self.lines_ += ax.plot(self.thresholds, mean, **{"label": name} | (curve_kwargs or {}))
            if len(runs) > 1:
                error = runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
                style = {"color": self.lines_[-1].get_color(), "alpha": 0.25, "linewidth": 0} | (band_kwargs or {})
                self.bands_.append(ax.fill_between(self.thresholds, mean - error, mean + error, **style))
        if self.rate is not None:
            ax.axhline(2 * self.rate / (1 + self.rate), color="gray", linestyle=":", label="F1 of flagging every row")
        ax.set(xlabel="threshold on alpha", ylim=(-0.02, 1.02))
        ax.legend()
        return self


class InclusionDisplay:
    """Histogram of alpha, or of another detector's score, split by the truth where it is known.

    Parameters
    ----------
    alpha : ndarray of shape (n_noisy,)
        Inclusion of every noisy row, in [0, 1]; large = keep.
    is_corrupted : ndarray of shape (n_noisy,) or None, default=None
        The truth, True = wrong.
    name : str, default="alpha"
        What the horizontal axis shows.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    bars_ : list of matplotlib BarContainer
        Of all rows; or of the right and of the wrong ones, if the truth is known.

    Examples
    --------
    >>> from sklearn_cdgd import InclusionDisplay
    >>> InclusionDisplay.from_predictions([0.0, 0.1, 1.0, 1.0], bins=10).bars_[0].datavalues.tolist()
    [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0]
    """

    def __init__(self, alpha, is_corrupted=None, *, name="alpha"):
        self.alpha = alpha
        self.is_corrupted = is_corrupted
        self.name = name

    @classmethod
    def from_estimator(cls, detector, is_corrupted=None, *, bins=25, ax=None, hist_kwargs=None):
        """Draw what a fitted detector gives the rows of its noisy set.

        Parameters
        ----------
        detector : fitted detector
        is_corrupted, bins, ax, hist_kwargs
            As in :meth:`from_predictions`.

        Returns
        -------
        display : InclusionDisplay

        Raises
        ------
        ValueError, ImportError
            As in :meth:`from_predictions`.
        """
        name = "alpha" if hasattr(detector, "alpha_") else "score"
        scores = detector.decision_function()
        return cls.from_predictions(scores, is_corrupted, bins=bins, ax=ax, hist_kwargs=hist_kwargs, name=name)

    @classmethod
    def from_predictions(cls, alpha, is_corrupted=None, *, bins=25, ax=None, hist_kwargs=None, name="alpha"):
        """Draw given numbers.

        Parameters
        ----------
        alpha : array-like of shape (n_noisy,)
            Inclusion of every row, in [0, 1].
        is_corrupted : array-like of shape (n_noisy,) or None, default=None
            The truth, True = wrong.
        bins : int, default=25
            Number of bins between 0 and 1.
        ax : matplotlib Axes or None, default=None
            ``None`` makes a new figure.
        hist_kwargs : dict or None, default=None
            Passed on to ``Axes.hist``.
        name : str, default="alpha"
            What the horizontal axis shows.

        Returns
        -------
        display : InclusionDisplay

        Raises
        ------
        ValueError
            If alpha is not in [0, 1], or the truth not as described.
        ImportError
            If matplotlib is not installed.
        """
        alpha = check_scores(alpha)
        is_corrupted = None if is_corrupted is None else check_mask(is_corrupted, len(alpha))
        return cls(alpha, is_corrupted, name=name).plot(ax, bins=bins, hist_kwargs=hist_kwargs)

    def plot(self, ax=None, *, bins=25, hist_kwargs=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or None, default=None
            ``None`` makes a new figure.
        bins : int, default=25
            Number of bins between 0 and 1.
        hist_kwargs : dict or None, default=None
            Passed on to ``Axes.hist``.

        Returns
        -------
        self : InclusionDisplay

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        ax = one_axes(self, ax)
        options = {"bins": bins, "range": (0, 1), "stacked": True} | (hist_kwargs or {})
        if self.is_corrupted is None:
            bars = ax.hist(self.alpha, **{"color": RIGHT} | options)[2]
            self.bars_ = [bars]
        else:
            parts = [self.alpha[~self.is_corrupted], self.alpha[self.is_corrupted]]
            style = {"color": [RIGHT, WRONG], "label": ["right rows", "wrong rows"]}
            self.bars_ = list(ax.hist(parts, **style | options)[2])
            ax.legend()
        ax.set(xlabel=self.name, ylabel="rows", xlim=(-0.02, 1.02))
        return self


class OuterLossDisplay:
    """The clean loss at every outer step, and the loss of clean rows that alpha was learnt without.

    The two are not on one scale by nature: the clean loss is a mean over the inner training, the other is taken at its
    end. What matters is whether the second still falls. Where it rises, the clean set is overfitted.

    Parameters
    ----------
    clean_loss : ndarray of shape (n_steps,)
        Clean loss, in the units of the net's criterion.
    validation_loss : ndarray of shape (n_steps,) or None, default=None
        Loss of held-out clean rows, in the same units.
    step : str, default="outer step"
        What the horizontal axis counts.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    line_ : matplotlib Line2D
    validation_line_ : matplotlib Line2D or None
        ``None`` without `validation_loss`.

    Examples
    --------
    >>> from sklearn_cdgd import OuterLossDisplay
    >>> display = OuterLossDisplay.from_predictions([0.7, 0.5, 0.4], validation_loss=[0.6, 0.5, 0.6])
    >>> display.line_.get_xdata().tolist(), display.validation_line_.get_ydata().tolist()
    ([1, 2, 3], [0.6, 0.5, 0.6])
    """

    def __init__(self, clean_loss, validation_loss=None, *, step="outer step"):
        self.clean_loss = clean_loss
        self.validation_loss = validation_loss
        self.step = step

    @classmethod
    def from_estimator(cls, detector, *, ax=None, curve_kwargs=None):
        """Draw ``clean_loss_curve_`` of a fitted detector, and ``validation_loss_curve_`` where there is one.

        Parameters
        ----------
        detector : fitted CorruptionDetector or NoisySetDetector
        ax, curve_kwargs
            As in :meth:`from_predictions`.

        Returns
        -------
        display : OuterLossDisplay

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        held_out = getattr(detector, "validation_loss_curve_", None)
        if held_out is not None and np.isnan(held_out).all():  # clean_cv=None
            held_out = None
        step = "outer step" if hasattr(detector, "alpha_") else "epoch"
        return cls.from_predictions(
            detector.clean_loss_curve_, validation_loss=held_out, ax=ax, curve_kwargs=curve_kwargs, step=step
        )

    @classmethod
    def from_predictions(cls, clean_loss, *, validation_loss=None, ax=None, curve_kwargs=None, step="outer step"):
        """Draw given losses.

        Parameters
        ----------
        clean_loss : array-like of shape (n_steps,)
        validation_loss : array-like of shape (n_steps,) or None, default=None
            Loss of clean rows that were held out; a second line.
        ax : matplotlib Axes or None, default=None
            ``None`` makes a new figure.
        curve_kwargs : dict or None, default=None
            Passed on to ``Axes.plot``, for both lines.
        step : str, default="outer step"
            What the horizontal axis counts.

        Returns
        -------
        display : OuterLossDisplay

        Raises
        ------
        ValueError
            If the losses have more than one dimension, or differ in length.
        ImportError
            If matplotlib is not installed.
        """
        clean_loss = column_or_1d(clean_loss)
        if validation_loss is not None:
            validation_loss = column_or_1d(validation_loss)
            if len(validation_loss) != len(clean_loss):
                raise ValueError(
                    f"validation_loss has {len(validation_loss)} entries for {len(clean_loss)} steps of clean_loss."
                )
        return cls(clean_loss, validation_loss, step=step).plot(ax, curve_kwargs=curve_kwargs)

    def plot(self, ax=None, *, curve_kwargs=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes or None, default=None
            ``None`` makes a new figure.
        curve_kwargs : dict or None, default=None
            Passed on to ``Axes.plot``, for both lines.

        Returns
        -------
        self : OuterLossDisplay

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        ax = one_axes(self, ax)
        steps, style = np.arange(1, len(self.clean_loss) + 1), curve_kwargs or {}
        options = {"marker": ".", "color": RIGHT, "label": "clean loss, during the training"} | style
        (self.line_,) = ax.plot(steps, self.clean_loss, **options)
        self.validation_line_ = None
        if self.validation_loss is not None:
            options = {"marker": ".", "color": WRONG, "label": "held-out clean rows, at its end"} | style
            (self.validation_line_,) = ax.plot(steps, self.validation_loss, **options)
            ax.legend()
        ax.set(xlabel=self.step, ylabel="clean loss" if self.validation_loss is None else "loss")
        return self


def _curves(is_corrupted, alpha, thresholds):
    """Return precision, recall and F1 of ``alpha < threshold``."""
    n_flagged = np.searchsorted(np.sort(alpha), thresholds)
    n_hits = np.searchsorted(np.sort(alpha[is_corrupted]), thresholds)
    n_wrong = is_corrupted.sum()
    precision = np.where(n_flagged > 0, n_hits / np.maximum(n_flagged, 1), np.nan)
    return precision, n_hits / n_wrong, 2 * n_hits / (n_flagged + n_wrong)


def _is_several(values) -> bool:
    """Return whether these are the values of several runs."""
    if isinstance(values, list | tuple):
        return len(values) > 0 and np.ndim(values[0]) > 0
    return np.ndim(values) == 2
