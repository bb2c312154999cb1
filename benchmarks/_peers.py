"""Every method that the benchmarks compare, under one interface.

A method is called as ``method(X, y, X_clean, y_clean, seed=0, net_of=...)`` and returns for the noisy rows ``scores``
(large = keep) and ``flags`` (True = corrupted). `net_of` makes the network: called with a number of outputs it
returns what :class:`CorruptionDetector` takes as `net`; ``None`` stands for the default network. All methods train
the same network with the same optimiser and number of epochs, and all get both sets.

What a method leaves open is chosen inside the call by means of the clean rows, never by the truth about the noisy
ones: the K of KNN-Shapley and the base learner of Data-OOB by their accuracy on the clean rows. The rest are the
values of their papers, or of the packages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import issparse, vstack
from sklearn.cluster import KMeans
from sklearn.ensemble import BaggingClassifier, BaggingRegressor
from sklearn.metrics import pairwise_distances
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector
from sklearn_cdgd._network import Network, trains_networks
from sklearn_cdgd._unroll import advance, train

NetOf = Callable[[int], object]


class Verdict(NamedTuple):
    """What a method says of the noisy rows.

    Attributes
    ----------
    scores : ndarray of shape (n_noisy,)
        Large = keep.
    flags : bool ndarray of shape (n_noisy,)
        True = corrupted.
    suggested : ndarray of shape (n_noisy,) or None, default=None
        The labels that a method would give, if it does.
    """

    scores: np.ndarray
    flags: np.ndarray
    suggested: np.ndarray | None = None


def default_net(n_outputs: int) -> None:
    """Stand for the network that the detectors build from the data: 200 hidden units."""
    return None


# --- ours and the paper's baselines -----------------------------------------------------------------------------------


# One alpha from the whole clean set, and one network that is trained with it and judges its own rows.
PAPER_READ_OUT = dict(n_inits=1, clean_cv=None, cv=None, n_judges=1, clean_weight=0)


def cdgd(
    X, y, X_clean, y_clean, *, seed, net_of: NetOf = default_net, fdrs: tuple[float, ...] = (), **options
) -> dict[str, Verdict]:
    """Return the read-outs of one fit of CorruptionDetector: T, alpha, and the flags of every false discovery rate.

    T is scored by the loss of the given label under the networks that judge, alpha by itself.
    """
    net = net_of(_n_outputs(y, y_clean))
    # A tuple of one says that no splitter is to touch the clean set, also where it is as long as the noisy one.
    detector = CorruptionDetector(net, random_state=seed, **options).fit(X, y, (X_clean,), (y_clean,))
    flags = {method: detector.set_params(method=method).predict() for method in ("trained", "alpha")}
    suggested = detector.classes_[detector.probabilities_.argmax(axis=1)] if hasattr(detector, "classes_") else None
    verdicts = {
        "T": Verdict(-detector.loss_, flags["trained"], suggested),
        "alpha": Verdict(detector.alpha_, flags["alpha"]),
    }
    for fdr in fdrs:
        flagged = detector.set_params(method="conformal", fdr=fdr).predict()
        verdicts[f"fdr={fdr:g}"] = Verdict(detector.p_values_, flagged)
    return verdicts


def noisy_set(X, y, X_clean, y_clean, *, seed, net_of: NetOf = default_net) -> Verdict:
    """S_n: a network trained on the noisy rows, stopped by the clean rows; flagged is what it gets wrong."""
    return _baseline(NoisySetDetector, X, y, X_clean, y_clean, seed, net_of)


def clean_set(X, y, X_clean, y_clean, *, seed, net_of: NetOf = default_net) -> Verdict:
    """S_c: a network trained on the clean rows alone; flagged is what it gets wrong."""
    return _baseline(CleanSetDetector, X, y, X_clean, y_clean, seed, net_of)


def _baseline(cls, X, y, X_clean, y_clean, seed, net_of) -> Verdict:
    detector = cls(net_of(_n_outputs(y, y_clean)), random_state=seed).fit(X, y, (X_clean,), (y_clean,))
    return Verdict(detector.decision_function(), detector.predict())


# --- the others -------------------------------------------------------------------------------------------------------


def confident_learning(X, y, X_clean, y_clean, *, seed, net_of: NetOf = default_net, n_folds=5, n_nets=2) -> Verdict:
    """Cleanlab on out-of-fold answers: a fold of the noisy rows is judged by networks trained on the rest.

    The clean rows join every training. As many folds and networks as CorruptionDetector's own judges. Labels are scored
    by self-confidence and flagged by the package's default rule, pruning by noise rate; targets are scored by its rank
    method for regression, which has no rule, so that they are flagged by 2-means.
    """
    data = _Rows(X, y, X_clean, y_clean)
    answers = []
    for kept, judged in data.folds(n_folds, seed):
        rows = np.concatenate([kept, data.clean_rows])
        nets = [data.trained(rows, net_of, seed + 1 + n) for n in range(n_nets)]
        answers.append((judged, np.mean([net(data.X[judged]) for net in nets], axis=0)))
    order = np.argsort(np.concatenate([judged for judged, _ in answers]))
    answers = np.concatenate([answer for _, answer in answers])[order]
    given = data.targets[: data.n_noisy]
    if data.n_classes is None:
        from cleanlab.regression.rank import get_label_quality_scores

        scores = get_label_quality_scores(given, answers)
        return Verdict(scores, two_means(scores))
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    # Labels that no noisy row has are unknown to cleanlab.
    known = np.unique(given)
    given, answers = np.searchsorted(known, given), answers[:, known]
    answers = answers / answers.sum(axis=1, keepdims=True)
    scores = get_label_quality_scores(given, answers, method="self_confidence")
    return Verdict(scores, find_label_issues(given, answers, n_jobs=1))


def knn_shapley(X, y, X_clean, y_clean, *, seed, net_of: NetOf = default_net, ks=(1, 3, 5, 10, 20, 50)) -> Verdict:
    """Shapley values of the noisy rows for a K-nearest-neighbour classifier that is scored on the clean rows.

    The closed form of Jia et al. 2019 (arXiv 1908.08619) on standardised features; pyDVL, which has it too, does not
    install beside NumPy 2. K is the one with the best accuracy on the clean rows. Flags: 2-means. Labels only.
    """
    data = _Rows(X, y, X_clean, y_clean)
    Z = StandardScaler().fit_transform(data.X)
    distances = pairwise_distances(Z[data.n_noisy :], Z[: data.n_noisy])
    given, clean = data.targets[: data.n_noisy], data.targets[data.n_noisy :]
    order = np.argsort(distances, axis=1, kind="stable")
    accuracy = {k: _knn_accuracy(given[order[:, :k]], clean, data.n_classes) for k in ks if k <= data.n_noisy}
    k = max(accuracy, key=accuracy.get)
    values = np.zeros(data.n_noisy)
    matches = (given[order] == clean[:, None]).astype(float)
    np.add.at(values, order, _knn_shapley_values(matches, k) / len(clean))
    return Verdict(values, two_means(values))


def _knn_accuracy(neighbours: np.ndarray, truth: np.ndarray, n_classes: int) -> float:
    votes = (neighbours[:, :, None] == np.arange(n_classes)).sum(axis=1)
    return float((votes.argmax(axis=1) == truth).mean())


def _knn_shapley_values(matches: np.ndarray, k: int) -> np.ndarray:
    """Return the value of every row, nearest first, for each test point; `matches` says whether the labels agree."""
    n = matches.shape[1]
    rank = np.arange(1, n)
    steps = (matches[:, :-1] - matches[:, 1:]) / k * np.minimum(k, rank) / rank
    last = matches[:, -1:] * min(k, n) / (k * n)
    return np.concatenate([last, steps[:, ::-1]], axis=1).cumsum(axis=1)[:, ::-1]


def data_oob(X, y, X_clean, y_clean, *, seed, net_of: NetOf = default_net, n_trees=200, n_nets=20) -> Verdict:
    """How often models that did not draw a row in their bootstrap sample get it right (Kwon and Zou 2023).

    The clean rows are drawn along with the noisy ones. The base learner, trees as in the paper or the network, is the
    one with the better accuracy on the clean rows when trained on the noisy ones (in regression: the smaller squared
    error). Flags: 2-means. pyDVL, which has it too, does not install beside NumPy 2.
    """
    data = _Rows(X, y, X_clean, y_clean)
    flat, noisy, rng = data.X.reshape(len(data.X), -1), np.arange(data.n_noisy), np.random.RandomState(seed)

    def quality(answers, rows):
        given = data.targets[rows]
        return -((answers - given) ** 2) if data.n_classes is None else (answers == given).astype(float)

    trees = _bagged_trees(data.n_classes is not None, flat.shape[1], n_trees, seed)
    by_trees = trees.fit(flat[noisy], data.targets[noisy]).predict(flat[data.clean_rows])
    by_net = data.predictor(noisy, net_of, seed)(data.clean_rows)
    if quality(by_trees, data.clean_rows).mean() >= quality(by_net, data.clean_rows).mean():
        trees.fit(flat, data.targets)
        predictors = [lambda rows, tree=tree: tree.predict(flat[rows]) for tree in trees]
        models = zip(trees.estimators_samples_, predictors, strict=True)
    else:
        samples = [rng.randint(0, len(flat), len(flat)) for _ in range(n_nets)]
        models = ((rows, data.predictor(rows, net_of, seed + n)) for n, rows in enumerate(samples))
    total, count = np.zeros(data.n_noisy), np.zeros(data.n_noisy)
    for rows, predict in models:
        out = np.setdiff1d(noisy, rows)
        total[out] += quality(predict(out), out)
        count[out] += 1
    # A row that every sample drew has no value; the mean keeps it out of the way.
    scores = np.where(count > 0, total / np.maximum(count, 1), total.sum() / count.sum())
    return Verdict(scores, two_means(scores))


def _bagged_trees(is_label: bool, n_columns: int, n_trees: int, seed: int):
    # A tree looks at all columns of a table; of the many pixels of an image at so many that it takes no minute.
    share = min(1.0, 64 / n_columns)
    tree = (DecisionTreeClassifier if is_label else DecisionTreeRegressor)(max_features=share)
    return (BaggingClassifier if is_label else BaggingRegressor)(tree, n_estimators=n_trees, random_state=seed)


@trains_networks
def area_under_the_margin(X, y, X_clean, y_clean, *, seed, net_of: NetOf = default_net, share=0.01) -> Verdict:
    """AUM (Pleiss et al. 2020): the margin of the given label, averaged over all epochs of a training.

    As in the paper, ``N / (K + 1)`` rows get a label of their own, K + 1, and what lies below the 99th percentile of
    theirs is flagged; a second training with other rows judges the first ones. The clean rows join the training. Labels
    only.
    """
    data = _Rows(X, y, X_clean, y_clean)
    K, n = data.n_classes, len(data.X)
    shuffled = np.random.RandomState(seed).permutation(n)
    size = n // (K + 1)
    margins, limits, judged = [], [], []
    for run, fake in enumerate([shuffled[:size], shuffled[size : 2 * size]]):
        targets = data.targets.copy()
        targets[fake] = K
        margin = _mean_margins(net_of(K + 1), data.X, targets, K + 1, seed + run)
        limits.append(np.quantile(margin[fake], 1 - share))
        margins.append(margin[: data.n_noisy] - limits[-1])
        judged.append(~np.isin(np.arange(data.n_noisy), fake))
    scores = np.average(margins, axis=0, weights=judged)
    return Verdict(scores, scores < 0)


def _mean_margins(net, X, targets, n_classes, seed) -> np.ndarray:
    network = Network(net, X, targets, n_classes, seed=seed)
    problem, plan = network.problem((X, targets), (X[:1], targets[:1])), network.plan(len(X), seed)
    weights, state = torch.ones(len(X), device=network.device), problem.initial_state(seed)
    everyone, total = np.arange(len(X)), np.zeros(len(X))
    for epoch in range(plan.n_epochs):
        first = epoch * plan.steps_per_epoch
        state = advance(problem, state, weights, plan, first, first + plan.steps_per_epoch)
        # The difference of two logits is that of the logarithms of the probabilities.
        logits = np.log(network.answers(state, X).clip(1e-30))
        given = logits[everyone, targets]
        logits[everyone, targets] = -np.inf
        total += given - logits.max(axis=1)
    return total / plan.n_epochs


# --- what they share --------------------------------------------------------------------------------------------------


class _Rows:
    """Noisy rows, then clean rows, as float32, with labels as 0 .. K-1. Sparse rows stay so."""

    def __init__(self, X, y, X_clean, y_clean):
        self.n_noisy = len(y)
        rows = vstack([X, X_clean], format="csr") if issparse(X) else np.concatenate([X, X_clean])
        self.X = rows.astype(np.float32)
        y = np.concatenate([y, y_clean])
        self.n_classes = None if y.dtype.kind == "f" else len(np.unique(y))
        self.targets = y if self.n_classes is None else np.unique(y, return_inverse=True)[1]
        self.clean_rows = np.arange(self.n_noisy, len(y))

    def folds(self, n_folds: int, seed: int):
        """Yield the noisy rows to train on and those to judge."""
        given = self.targets[: self.n_noisy]
        by_label = self.n_classes is not None and np.bincount(given).max() >= n_folds
        split = (StratifiedKFold if by_label else KFold)(n_folds, shuffle=True, random_state=seed)
        return split.split(given, given if by_label else None)

    @trains_networks
    def trained(self, rows: np.ndarray, net_of: NetOf, seed: int) -> Callable[[np.ndarray], np.ndarray]:
        """Train the network on some rows; return what gives its probabilities or predictions."""
        net = net_of(self.n_classes or 1)
        part = self.X[rows], self.targets[rows]
        network = Network(net, *part, self.n_classes, seed=seed)
        state = train(
            network.problem(part, part), torch.ones(len(rows), device=network.device), network.plan(len(rows), seed)
        )
        return lambda X: network.answers(state, X)

    def predictor(self, rows: np.ndarray, net_of: NetOf, seed: int) -> Callable[[np.ndarray], np.ndarray]:
        """Train the network on some rows; return what gives its labels or numbers for others."""
        answers = self.trained(rows, net_of, seed)
        if self.n_classes is None:
            return lambda others: answers(self.X[others])
        return lambda others: answers(self.X[others]).argmax(axis=1)


def _n_outputs(y, y_clean) -> int:
    return 1 if np.asarray(y).dtype.kind == "f" else len(np.union1d(y, y_clean))


def two_means(scores: np.ndarray) -> np.ndarray:
    """Flag the lower of two clusters of scores, the rule of OpenDataVal; nothing if all scores are equal."""
    if np.ptp(scores) == 0:
        return np.zeros(len(scores), dtype=bool)
    clusters = KMeans(2, n_init=10, random_state=0).fit(np.reshape(scores, (-1, 1)))
    return clusters.labels_ == clusters.cluster_centers_[:, 0].argmin()


PEERS: dict[str, Callable[..., Verdict]] = {
    "S_n": noisy_set,
    "S_c": clean_set,
    "cleanlab": confident_learning,
    "KNN-Shapley": knn_shapley,
    "Data-OOB": data_oob,
    "AUM": area_under_the_margin,
}
# Methods that know labels only.
LABELS_ONLY = {"KNN-Shapley", "AUM"}
