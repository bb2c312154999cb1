"""Displays of rows: a plane before and after the cleanup, a sheet of images."""

from __future__ import annotations

import numpy as np
from sklearn.utils import check_consistent_length, column_or_1d

from ._common import check_mask, several_axes


class CleanupDisplay:
    """Scatter plot of a two-dimensional noisy set before and after the flagged rows are left out.

    Parameters
    ----------
    X : ndarray of shape (n_noisy, 2)
        Rows of the noisy set.
    y : ndarray of shape (n_noisy,)
        Their given labels, or targets.
    is_flagged : ndarray of shape (n_noisy,)
        True for the rows that are left out.
    is_corrupted : ndarray of shape (n_noisy,) or None, default=None
        The truth, True = wrong. If given, wrong rows are circled.

    Attributes
    ----------
    axes_ : ndarray of shape (2,) of matplotlib Axes
        Before and after.
    figure_ : matplotlib Figure

    References
    ----------
    Golkar and Cho, "Task-Driven Data Verification via Gradient Descent", arXiv 1905.05843: the figure of the circle.

    Examples
    --------
    >>> from sklearn_cdgd import CleanupDisplay
    >>> X, y = [[0, 0], [0, 1], [1, 0], [1, 1]], [0, 0, 1, 0]
    >>> display = CleanupDisplay.from_predictions(X, y, [False, False, False, True])
    >>> [ax.get_title() for ax in display.axes_]
    ['before: 4 rows', 'after: 3 rows']
    """

    def __init__(self, X, y, is_flagged, is_corrupted=None):
        self.X = X
        self.y = y
        self.is_flagged = is_flagged
        self.is_corrupted = is_corrupted

    @classmethod
    def from_estimator(cls, detector, X, y, is_corrupted=None, *, ax=None, scatter_kwargs=None):
        """Draw the noisy set that a detector was fitted on.

        Parameters
        ----------
        detector : fitted detector
        X, y, is_corrupted, ax, scatter_kwargs
            As in :meth:`from_predictions`.

        Returns
        -------
        display : CleanupDisplay

        Raises
        ------
        ValueError, ImportError
            As in :meth:`from_predictions`.
        """
        return cls.from_predictions(X, y, detector.predict(X), is_corrupted, ax=ax, scatter_kwargs=scatter_kwargs)

    @classmethod
    def from_predictions(cls, X, y, is_flagged, is_corrupted=None, *, ax=None, scatter_kwargs=None):
        """Draw given rows and flags.

        Parameters
        ----------
        X : array-like of shape (n_noisy, 2)
        y : array-like of shape (n_noisy,)
            Given labels, of any kind, or targets.
        is_flagged : array-like of shape (n_noisy,)
            True for the rows that are left out.
        is_corrupted : array-like of shape (n_noisy,) or None, default=None
            The truth, True = wrong. If given, wrong rows are circled.
        ax : sequence of two matplotlib Axes or None, default=None
            ``None`` makes a new figure.
        scatter_kwargs : dict or None, default=None
            Passed on to ``Axes.scatter``.

        Returns
        -------
        display : CleanupDisplay

        Raises
        ------
        ValueError
            If the arrays differ in length, or `X` has another number of columns than 2.
        ImportError
            If matplotlib is not installed.
        """
        X, y = np.asarray(X), column_or_1d(y)
        if X.ndim != 2 or X.shape[1] != 2:
            raise ValueError(f"X must have two columns to be drawn; got shape {X.shape}. Pass two of its columns.")
        check_consistent_length(X, y)
        is_flagged = check_mask(is_flagged, len(X), "is_flagged")
        is_corrupted = None if is_corrupted is None else check_mask(is_corrupted, len(X))
        return cls(X, y, is_flagged, is_corrupted).plot(ax, scatter_kwargs=scatter_kwargs)

    def plot(self, ax=None, *, scatter_kwargs=None):
        """Draw.

        Parameters
        ----------
        ax : sequence of two matplotlib Axes or None, default=None
            ``None`` makes a new figure.
        scatter_kwargs : dict or None, default=None
            Passed on to ``Axes.scatter``.

        Returns
        -------
        self : CleanupDisplay

        Raises
        ------
        ValueError
            If `ax` does not hold two Axes.
        ImportError
            If matplotlib is not installed.
        """
        several_axes(self, ax, 2, figsize=(8, 4), sharex=True, sharey=True)
        classes, codes = np.unique(self.y, return_inverse=True)
        options = {"c": codes, "cmap": "coolwarm", "s": 25, "vmin": 0, "vmax": max(len(classes) - 1, 1)}
        options |= scatter_kwargs or {}
        for ax, title, shown in zip(
            self.axes_, ["before", "after"], [np.ones(len(self.X), dtype=bool), ~self.is_flagged], strict=True
        ):
            style = options | {"c": np.asarray(options["c"])[shown]} if np.ndim(options["c"]) else options
            ax.scatter(*self.X[shown].T, **style)
            title = f"{title}: {shown.sum()} rows"
            if self.is_corrupted is not None:
                wrong = shown & self.is_corrupted
                title += f", {wrong.sum()} wrong"
                ax.scatter(*self.X[wrong].T, s=90, facecolors="none", edgecolors="black", linewidths=1)
            ax.set(title=title, aspect="equal")
        return self


class ReviewSheetDisplay:
    """The images that a person should look at first, with the labels they were given and those that are suggested.

    Parameters
    ----------
    images : ndarray of shape (n_images, height, width) or (n_images, height, width, 3)
        The most suspicious first.
    given, suggested : ndarray of shape (n_images,)
        Labels, or targets.
    rows : ndarray of shape (n_images,)
        Where the images stand in the noisy set.

    Attributes
    ----------
    axes_ : ndarray of shape (n_axes,) of matplotlib Axes
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_cdgd import ReviewSheetDisplay
    >>> X, given, suggested = np.zeros((2, 64)), ["cat", "dog"], ["cat", "cat"]
    >>> sheet = ReviewSheetDisplay.from_predictions(X, given, suggested, order=[1], image_shape=(8, 8))
    >>> sheet.axes_[0].get_title()
    'dog, rather cat'
    """

    def __init__(self, images, given, suggested, rows):
        self.images = images
        self.given = given
        self.suggested = suggested
        self.rows = rows

    @classmethod
    def from_estimator(cls, detector, X, y, *, n_images=20, image_shape=None, ax=None, imshow_kwargs=None):
        """Draw the most suspicious rows of the noisy set that a detector was fitted on.

        Parameters
        ----------
        detector : fitted detector
        X : array-like of shape (n_noisy, ...)
            The rows that were passed to ``fit``, in the same order.
        y : array-like of shape (n_noisy,)
            Their given labels, or targets.
        n_images, image_shape, ax, imshow_kwargs
            As in :meth:`from_predictions`.

        Returns
        -------
        display : ReviewSheetDisplay

        Raises
        ------
        ValueError, ImportError
            As in :meth:`from_predictions`.
        """
        if hasattr(detector, "probabilities_"):
            suggested = detector.classes_[detector.probabilities_.argmax(axis=1)]
        else:
            suggested = detector.predictions_
        return cls.from_predictions(
            X,
            y,
            suggested,
            detector.ranked_indices(),
            n_images=n_images,
            image_shape=image_shape,
            ax=ax,
            imshow_kwargs=imshow_kwargs,
        )

    @classmethod
    def from_predictions(
        cls, X, given, suggested, order, *, n_images=20, image_shape=None, ax=None, imshow_kwargs=None
    ):
        """Draw the first rows of a given order.

        Parameters
        ----------
        X : array-like of shape (n_noisy, ...)
            Images of shape (height, width), with 1 or 3 channels before or behind; or rows of pixels and `image_shape`.
        given, suggested : array-like of shape (n_noisy,)
            Labels, or targets.
        order : array-like of shape (at least n_images,)
            Row numbers, the most suspicious first.
        n_images : int, default=20
            Number of images; fewer if there are fewer rows.
        image_shape : tuple of int or None, default=None
            Shape of one image, for rows that are not images yet.
        ax : sequence of matplotlib Axes or None, default=None
            At least `n_images` of them; ``None`` makes a new figure of five columns.
        imshow_kwargs : dict or None, default=None
            Passed on to ``Axes.imshow``.

        Returns
        -------
        display : ReviewSheetDisplay

        Raises
        ------
        ValueError
            If the arrays differ in length, or the rows are not images.
        ImportError
            If matplotlib is not installed.
        """
        X, given, suggested = np.asarray(X), np.asarray(given), np.asarray(suggested)
        check_consistent_length(X, given, suggested)
        rows = np.asarray(order)[:n_images]
        images = _images(X[rows], image_shape)
        display = cls(images, given[rows], suggested[rows], rows)
        return display.plot(ax, imshow_kwargs=imshow_kwargs)

    def plot(self, ax=None, *, imshow_kwargs=None):
        """Draw.

        Parameters
        ----------
        ax : sequence of matplotlib Axes or None, default=None
            At least one for every image; ``None`` makes a new figure of five columns.
        imshow_kwargs : dict or None, default=None
            Passed on to ``Axes.imshow``.

        Returns
        -------
        self : ReviewSheetDisplay

        Raises
        ------
        ValueError
            If `ax` holds fewer Axes than there are images.
        ImportError
            If matplotlib is not installed.
        """
        n_columns = min(5, len(self.images))
        n_rows = -(-len(self.images) // n_columns)
        size = {"figsize": (1.5 * n_columns, 1.75 * n_rows)}
        several_axes(self, ax, len(self.images), nrows=n_rows, ncols=n_columns, **size)
        style = {"cmap": "gray_r"} | (imshow_kwargs or {})
        for ax in self.axes_:
            ax.set_axis_off()
        for ax, image, given, suggested in zip(self.axes_, self.images, self.given, self.suggested, strict=False):
            ax.imshow(image, **style)
            ax.set_title(f"{_label(given)}, rather {_label(suggested)}", fontsize="small")
        return self


def _images(X, shape):
    """Return images with the channels, if any, behind height and width."""
    images = X if shape is None else X.reshape(len(X), *shape)
    if images.ndim == 4 and images.shape[1] in (1, 3):
        images = np.moveaxis(images, 1, -1)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.ndim != 3 and not (images.ndim == 4 and images.shape[3] == 3):
        raise ValueError(
            f"rows of shape {images.shape[1:]} are no images. Pass image_shape=(height, width) for rows of pixels; "
            "images may have 1 or 3 channels."
        )
    return images


def _label(value) -> str:
    return f"{value:.3g}" if isinstance(value, float | np.floating) else str(value)
