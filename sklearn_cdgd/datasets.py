"""Toy data and planted errors, each with the truth about which rows are wrong."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np
from sklearn.utils import check_array, check_random_state, column_or_1d

__all__ = ["corrupt_features", "corrupt_targets", "flip_labels", "make_concentric_spheres"]


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
    _check_rate(rate)
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
    chosen = _choose_rows(rng, changeable, rate, len(y), f"wrong labels, but kind={kind!r}")
    is_corrupted = np.zeros(len(y), dtype=bool)
    is_corrupted[chosen] = True
    return classes[np.where(is_corrupted, wrong, codes)], is_corrupted


def corrupt_targets(y, rate, *, kind="shuffle", strength=3.0, random_state=None):
    """Give a share of the rows a wrong regression target.

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        True targets, finite numbers.
    rate : float
        Share of wrong targets, in [0, 1]; exactly ``round(rate * n_samples)`` rows are chosen.
    kind : {"shift", "scale", "shuffle", "outliers"}, default="shuffle"
        How the wrong target of a chosen row is found, with the median and the standard deviation of every column taken
        over all rows: ``"shift"`` adds or subtracts ``strength`` standard deviations, with one random sign per row;
        ``"scale"`` multiplies the deviation from the median by ``strength``; ``"shuffle"`` permutes the targets of the
        chosen rows at random, so that every chosen row gets the target of another one; ``"outliers"`` replaces the
        target by ``median + strength * standard deviation * t``, where t is drawn for every value from Student's
        t distribution with 2 degrees of freedom, whose tails are heavy.
    strength : float, default=3.0
        Size of the error, positive; ``"shuffle"`` does not use it.
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    y_noisy : ndarray of y's shape, float64
        A copy with wrong targets.
    is_corrupted : ndarray of shape (n_samples,)
        The truth: True where the target was changed, in one column at least.

    Raises
    ------
    ValueError
        If `y` is not as above, if `rate`, `kind` or `strength` is not one of the above, or if there are fewer rows that
        can be changed than were asked for.

    Notes
    -----
    Every chosen row ends up with a different value. Rows that `kind` would leave as they are, such as those at the
    median for ``"scale"``, are not chosen. ``"shuffle"`` chooses rows and permutation so that no row gets a target
    equal to its own. This takes two rows or more, and no value may be that of more than half of the chosen rows: where
    one is that frequent in `y`, fewer of its rows are chosen; if the rest does not suffice, a ValueError says how many
    rows can be changed.

    Examples
    --------
    >>> from sklearn_cdgd.datasets import corrupt_targets
    >>> y_noisy, is_corrupted = corrupt_targets([1.0, 2.0, 3.0, 4.0], 0.5, random_state=0)
    >>> y_noisy.tolist(), is_corrupted.tolist()
    ([1.0, 2.0, 4.0, 3.0], [False, False, True, True])
    """
    y = _check_numbers(y, "y", "(n_samples,) or (n_samples, n_outputs)", 1, 2)
    _check_rate(rate)
    _check_strength(strength)
    rng = check_random_state(random_state)
    columns = y.reshape(len(y), -1)
    center, spread = np.median(columns, axis=0), _standard_deviation(columns)
    request = f"wrong targets, but kind={kind!r}"
    if kind == "shuffle":
        chosen, givers = _choose_swaps(rng, columns, rate, request)
        return _plant(y, chosen, columns[givers])
    if kind == "shift":
        wrong = columns + strength * spread * rng.choice([-1, 1], (len(y), 1))
    elif kind == "scale":
        # Written as a difference, so that rounding changes neither rows at the median nor, with strength 1, any other.
        wrong = columns + (strength - 1) * (columns - center)
    elif kind == "outliers":
        wrong = center + strength * spread * rng.standard_t(2, columns.shape)
    else:
        raise ValueError(f"kind must be 'shift', 'scale', 'shuffle' or 'outliers'; got {kind!r}.")
    chosen = _choose_rows(rng, np.flatnonzero((wrong != columns).any(axis=1)), rate, len(y), request)
    return _plant(y, chosen, wrong[chosen])


def corrupt_features(X, rate, *, kind="noise", strength=3.0, share=0.5, random_state=None):
    """Give a share of the rows wrong features.

    Parameters
    ----------
    X : array-like of shape (n_samples, ...)
        True features, finite numbers. All axes but the first are flattened to columns, in C order.
    rate : float
        Share of wrong rows, in [0, 1]; exactly ``round(rate * n_samples)`` rows are chosen.
    kind : {"noise", "missing", "swapped"}, default="noise"
        What happens to a chosen row, with the median and the standard deviation of every column taken over all rows:
        ``"noise"`` adds normal noise of ``strength`` standard deviations to some columns, drawn for every row from
        those that are not constant; ``"missing"`` sets a contiguous block of columns to their medians, as imputation
        would; ``"swapped"`` permutes the features of the chosen rows at random, so that every chosen row gets those of
        another one.
    strength : float, default=3.0
        Size of the noise, positive; only ``"noise"`` uses it.
    share : float, default=0.5
        Share of the columns that change, in (0, 1], rounded to one column at least: of those that are not constant for
        ``"noise"``, of all for ``"missing"``; ``"swapped"`` does not use it.
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    X_noisy : ndarray of X's shape, float64
        A copy with wrong features.
    is_corrupted : ndarray of shape (n_samples,)
        The truth: True where the features were changed, in one column at least.

    Raises
    ------
    ValueError
        If `X` is not as above, if `rate`, `kind`, `strength` or `share` is not one of the above, if there are fewer
        rows that can be changed than were asked for, or if the noise is so weak that rounding swallows it.

    Notes
    -----
    Every chosen row ends up with different features. Rows that equal the medians are not chosen for ``"missing"``, and
    the block of a chosen row is drawn from those that change it. ``"swapped"`` chooses rows and permutation so that no
    row gets features equal to its own, under the conditions of the ``"shuffle"`` of `corrupt_targets`.

    Examples
    --------
    >>> from sklearn_cdgd.datasets import corrupt_features
    >>> X = [[0, 1], [2, 3], [4, 5], [6, 7]]
    >>> X_noisy, is_corrupted = corrupt_features(X, 0.5, kind="swapped", random_state=0)
    >>> X_noisy.tolist(), is_corrupted.tolist()
    ([[0.0, 1.0], [2.0, 3.0], [6.0, 7.0], [4.0, 5.0]], [False, False, True, True])
    """
    X = _check_numbers(X, "X", "(n_samples, ...), with at least one column", 2)
    _check_rate(rate)
    _check_strength(strength)
    if not isinstance(share, Real) or not 0 < share <= 1:
        raise ValueError(f"share must be a number in (0, 1]; got {share!r}.")
    rng = check_random_state(random_state)
    columns = X.reshape(len(X), -1)
    request = f"wrong rows, but kind={kind!r}"
    if kind == "noise":
        spread = _standard_deviation(columns)
        varying = np.flatnonzero(spread)
        chosen = _choose_rows(rng, np.arange(len(X) if len(varying) else 0), rate, len(X), request)
        n_drawn = max(1, round(share * len(varying)))
        drawn = varying[rng.random_sample((len(chosen), len(varying))).argsort(axis=1)[:, :n_drawn]]
        wrong = columns[chosen]
        wrong[np.arange(len(chosen))[:, None], drawn] += strength * spread[drawn] * rng.standard_normal(drawn.shape)
        if not (wrong != columns[chosen]).any(axis=1).all():
            raise ValueError(f"strength={strength} is too small: rounding swallows the noise of a row.")
    elif kind == "missing":
        center = np.median(columns, axis=0)
        chosen = _choose_rows(rng, np.flatnonzero((columns != center).any(axis=1)), rate, len(X), request)
        wrong = columns[chosen]
        block = _draw_blocks(rng, wrong != center, max(1, round(share * columns.shape[1])))
        np.put_along_axis(wrong, block, center[block], axis=1)
    elif kind == "swapped":
        chosen, givers = _choose_swaps(rng, columns, rate, request)
        wrong = columns[givers]
    else:
        raise ValueError(f"kind must be 'noise', 'missing' or 'swapped'; got {kind!r}.")
    return _plant(X, chosen, wrong)


def _check_rate(rate):
    if not isinstance(rate, Real) or not 0 <= rate <= 1:
        raise ValueError(f"rate must be a number in [0, 1]; got {rate!r}.")


def _check_strength(strength):
    if not isinstance(strength, Real) or not 0 < strength < np.inf:
        raise ValueError(f"strength must be a positive finite number; got {strength!r}.")


def _check_numbers(array, name, shape, min_axes, max_axes=np.inf):
    try:
        array = check_array(array, dtype=np.float64, ensure_2d=False, allow_nd=True, input_name=name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
    if not min_axes <= array.ndim <= max_axes or not array.size:
        raise ValueError(f"{name} must have shape {shape}; got {array.shape}.")
    return array


def _standard_deviation(columns):
    # Rounding gives a constant column a tiny one, which would pass for a change.
    return np.where(np.ptp(columns, axis=0) > 0, columns.std(axis=0), 0.0)


def _choose_rows(rng, changeable, rate, n_rows, request):
    """Return exactly the asked number of the `changeable` rows."""
    n_wrong = round(rate * n_rows)
    if n_wrong > len(changeable):
        raise ValueError(f"rate={rate} asks for {n_wrong} {request} can change {len(changeable)} only.")
    return rng.choice(changeable, n_wrong, replace=False)


def _choose_swaps(rng, columns, rate, request):
    """Return exactly the asked number of rows, and for each another one of them that has a different value."""
    n_rows = len(columns)
    n_wrong = round(rate * n_rows)
    # Comparing rows as bytes is much faster than column by column; adding zero makes -0.0 the same as 0.0.
    rows = np.ascontiguousarray(columns + 0.0)
    _, codes, counts = np.unique(
        rows.view(f"V{rows.itemsize * rows.shape[1]}").ravel(), return_inverse=True, return_counts=True
    )
    # Half of the swapped rows at most may share a value. With two values, both must be equally frequent.
    possible = min(n_wrong, 2 * (n_rows - counts.max()))
    if possible == 1 or len(counts) == 2:
        possible -= possible % 2
    if n_wrong > possible:
        raise ValueError(
            f"rate={rate} asks for {n_wrong} {request} can change {possible} only: it swaps two rows or more, "
            "and each must get a value that differs from its own."
        )
    if not n_wrong:
        return np.array([], dtype=int), np.array([], dtype=int)
    # The first rows of a random order, without those by which a value would take more than its half.
    order = rng.permutation(n_rows)
    by_value = np.argsort(codes[order], kind="stable")
    rank = np.empty(n_rows, dtype=int)
    rank[by_value] = np.arange(n_rows) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = order[rank < n_wrong // 2][:n_wrong]
    # In a ring in which equal values stand together, any step as long as the longest run leads out of every run.
    ring = chosen[np.argsort(rng.permutation(len(counts))[codes[chosen]], kind="stable")]
    longest = np.bincount(codes[chosen]).max()
    return ring, np.roll(ring, rng.randint(longest, n_wrong - longest + 1))


def _draw_blocks(rng, differs, width):
    """Return the columns of a block for every row, drawn from the blocks in which the row `differs` somewhere."""
    n_before = np.pad(np.cumsum(differs, axis=1), [(0, 0), (1, 0)])
    is_useful = n_before[:, width:] > n_before[:, :-width]
    start = np.where(is_useful, rng.random_sample(is_useful.shape), -1.0).argmax(axis=1)
    return start[:, None] + np.arange(width)


def _plant(array, chosen, wrong):
    """Return a copy of the array with the wrong values in the chosen rows, and which rows these are."""
    noisy = array.copy()
    noisy[chosen] = wrong.reshape(len(chosen), *array.shape[1:])
    is_corrupted = np.zeros(len(array), dtype=bool)
    is_corrupted[chosen] = True
    return noisy, is_corrupted
