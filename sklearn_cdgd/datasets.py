"""Toy data and planted errors, each with the truth about which rows are wrong."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np
from sklearn.utils import check_random_state, column_or_1d

__all__ = ["flip_labels", "make_concentric_spheres"]


def make_concentric_spheres(n_samples=1000, n_features=15, *, radii=(1.0, 1.3), random_state=None):
    """Draw points on concentric spheres, the toy problem of arXiv 1905.05843 (experiment 1).

    Parameters
    ----------
    n_samples : int, default=1000
        Number of points, spread evenly over the spheres.
    n_features : int, default=15
        Dimension of the space, at least 1.
    radii : sequence of float, default=(1.0, 1.3)
        Radius of every sphere, positive; sphere k is class k.
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    X : ndarray of shape (n_samples, n_features)
    y : ndarray of shape (n_samples,)
        The class of every point, as an integer.

    Raises
    ------
    ValueError
        If a size is not a positive integer or a radius is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_cdgd.datasets import make_concentric_spheres
    >>> X, y = make_concentric_spheres(6, 3, random_state=0)
    >>> np.linalg.norm(X, axis=1)[np.argsort(y)].round(3).tolist()
    [1.0, 1.0, 1.0, 1.3, 1.3, 1.3]
    """
    for name, value in [("n_samples", n_samples), ("n_features", n_features)]:
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a positive integer; got {value!r}.")
    radii = np.asarray(radii, dtype=float)
    if radii.ndim != 1 or not len(radii) or not (radii > 0).all():
        raise ValueError(f"radii must be a sequence of positive numbers; got {radii.tolist()!r}.")
    rng = check_random_state(random_state)
    y = rng.permutation(np.arange(n_samples) % len(radii))
    X = rng.standard_normal((n_samples, n_features))
    X *= (radii[y] / np.linalg.norm(X, axis=1))[:, None]
    return X, y


def flip_labels(y, rate, *, kind="mirror", random_state=None):
    """Give a share of the rows a wrong label.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        True labels, of any kind that can be sorted.
    rate : float
        Share of wrong labels, in [0, 1]; exactly ``round(rate * n_samples)`` rows are chosen.
    kind : {"mirror", "uniform", "pair"}, default="mirror"
        How the wrong label of the k-th of K classes (in sorted order, from 0) is found: ``"mirror"`` takes class
        K-1-k, the paper's ``y -> 9 - y``, which leaves the middle class of an odd K as it is, so rows are chosen from
        the other classes; ``"uniform"`` draws from the other classes; ``"pair"`` takes class k+1, or 0 after the
        last.
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    y_noisy : ndarray of shape (n_samples,)
        A copy with wrong labels.
    is_corrupted : ndarray of shape (n_samples,)
        The truth: True where the label was changed.

    Raises
    ------
    ValueError
        If `rate` or `kind` is not one of the above, if there are fewer than two classes, or if there are fewer rows
        that can be changed than were asked for.

    Examples
    --------
    >>> from sklearn_cdgd.datasets import flip_labels
    >>> y_noisy, is_corrupted = flip_labels([0, 1, 2, 3], 0.5, random_state=0)
    >>> y_noisy.tolist(), is_corrupted.tolist()
    ([0, 1, 1, 0], [False, False, True, True])
    """
    y = column_or_1d(y)
    if not isinstance(rate, Real) or not 0 <= rate <= 1:
        raise ValueError(f"rate must be a number in [0, 1]; got {rate!r}.")
    classes, codes = np.unique(y, return_inverse=True)
    n_classes = len(classes)
    if n_classes < 2:
        raise ValueError("y needs at least two classes for a label to be wrong.")
    rng = check_random_state(random_state)
    if kind == "mirror":
        wrong = n_classes - 1 - codes
    elif kind == "uniform":
        wrong = (codes + rng.randint(1, n_classes, len(codes))) % n_classes
    elif kind == "pair":
        wrong = (codes + 1) % n_classes
    else:
        raise ValueError(f"kind must be 'mirror', 'uniform' or 'pair'; got {kind!r}.")
    changeable = np.flatnonzero(wrong != codes)
    n_wrong = round(rate * len(y))
    if n_wrong > len(changeable):
        raise ValueError(
            f"rate={rate} asks for {n_wrong} wrong labels, but kind={kind!r} can change {len(changeable)} only."
        )
    chosen = rng.choice(changeable, n_wrong, replace=False)
    is_corrupted = np.zeros(len(y), dtype=bool)
    is_corrupted[chosen] = True
    return classes[np.where(is_corrupted, wrong, codes)], is_corrupted
