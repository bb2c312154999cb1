"""The two detectors that use one set only; what CDGD has to beat."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Real

import numpy as np
import torch

from ._base import BaseDetector, TrainingData, all_or_nothing, draw_seed
from ._compat import Interval, StrOptions, fit_context
from ._network import Network, trains_networks
from ._task import LabelQuality
from ._unroll import State, train, train_early_stopped
from ._verdict import held_out_losses


class _BaselineDetector(BaseDetector):
    """One network, trained on one of the two sets, judges the noisy set."""

    _parameter_constraints = {
        "net": "no_validation",
        "task": [StrOptions({"auto", "classification", "regression"})],
        "loss_limit": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "clean_fraction": [Interval(Real, 0, 1, closed="neither")],
        "random_state": ["random_state"],
    }

    def __init__(self, net=None, *, task="auto", loss_limit="auto", clean_fraction=0.2, random_state=None):
        self.net = net
        self.task = task
        self.loss_limit = loss_limit
        self.clean_fraction = clean_fraction
        self.random_state = random_state

    @abstractmethod
    def _train(self, network: Network, data: TrainingData, seed: int, rng) -> tuple[State, np.ndarray]:
        """Return the trained network, and the losses of clean rows under networks that were not trained on them."""

    @all_or_nothing
    @fit_context(prefer_skip_nested_validation=True)
    @trains_networks
    def fit(self, X, y, X_clean=None, y_clean=None):
        """Train the network and let it judge the noisy set.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_noisy, n_features) or (n_noisy, ...)
            Rows of the noisy set: numbers, taken as float32, or integers if `net` looks them up in an embedding. Sparse
            rows are made dense batch by batch.
        y : array-like of shape (n_noisy,)
            Their labels, some of them wrong.
        X_clean : {array-like, sparse matrix} of shape (n_clean, n_features) or (n_clean, ...), or a tuple of one, \
                default=None
            Rows of the clean set. Without a clean set, a part of the noisy set is assumed to be right.
        y_clean : array-like of shape (n_clean,), or a tuple of one, default=None
            Their labels, all of them right.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the input is not what is described here, or if the training diverges.
        """
        rng, seed = draw_seed(self.random_state)
        data = self._check_training_data(X, y, X_clean, y_clean, rng)
        network = Network(self.net, *data.noisy, data.task.n_classes, seed=seed)
        state, clean_losses = self._train(network, data, seed, rng)
        self.net_ = network.fitted(state)
        answers, losses = network.answers(state, data.noisy[0]), network.row_losses(state, *data.noisy)
        limit = data.task.plain_limit(clean_losses)
        self._remember_verdict(
            data, LabelQuality(answers, losses, limit, network.answers(state, data.clean[0]), clean_losses)
        )
        return self

    def _training_scores(self):
        return self._task.scores(*self._verdict())

    def _training_flags(self):
        self._validate_params()
        return self._task.flags(*self._verdict())

    def _new_scores(self, X, targets):
        return self._task.scores(*self._new_verdict(X, targets))

    def _new_flags(self, X, targets):
        self._validate_params()
        return self._task.flags(*self._new_verdict(X, targets))

    def _review_order(self):
        return (-self.loss_,)


class NoisySetDetector(_BaselineDetector):
    """Train on the noisy set and flag what the network gets wrong (the baseline S_n of arXiv 1905.05843).

    The clean set decides when to stop: the network of the epoch with the least clean loss is kept.

    Parameters
    ----------
    net : None, skorch.NeuralNet, or torch.nn.Module class, instance or factory, default=None
        As in :class:`CorruptionDetector`.
    task, loss_limit
        As in :class:`CorruptionDetector`.
    clean_fraction : float, default=0.2
        Share of the rows that stand in for a clean set when ``fit`` is given none.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    net_ : skorch.NeuralNet
        The trained network. It predicts positions in `classes_`.
    probabilities_ : ndarray of shape (n_noisy, n_classes)
        Classification: what the network says of every noisy row.
    predictions_ : ndarray of shape (n_noisy, ...)
        Regression: what the network predicts for every noisy row.
    loss_limit_ : float or None
        The limit that ``loss_limit="auto"`` stands for; ``None`` where rows are flagged by the predicted class.
    loss_ : ndarray of shape (n_noisy,)
        Loss of every noisy row.
    classes_ : ndarray of shape (n_classes,)
        Classification only.
    clean_loss_curve_ : ndarray of shape (n_epochs,)
        Clean loss after every epoch.
    n_features_in_ : int
        Number of features (size of the second axis).
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Defined when `X` has string column names.

    See Also
    --------
    CorruptionDetector, CleanSetDetector

    Examples
    --------
    >>> from sklearn_cdgd import NoisySetDetector
    >>> from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres
    >>> X, y = make_concentric_spheres(300, 2, random_state=0)
    >>> y_noisy, is_corrupted = flip_labels(y[:250], 0.2, random_state=0)
    >>> detector = NoisySetDetector(random_state=0).fit(X[:250], y_noisy, X[250:], y[250:])
    >>> detector.predict().shape
    (250,)
    """

    def _train(self, network, data, seed, rng):
        problem, n_rows = network.problem(data.noisy, data.clean), len(data.noisy[1])
        weights = torch.ones(n_rows, device=network.device)
        state, clean_losses = train_early_stopped(problem, weights, network.plan(n_rows, seed))
        self.clean_loss_curve_ = np.array(clean_losses)
        return state, network.row_losses(state, *data.clean)


class CleanSetDetector(_BaselineDetector):
    """Train on the clean set and flag what the network gets wrong (the baseline S_c of arXiv 1905.05843).

    Parameters
    ----------
    net : None, skorch.NeuralNet, or torch.nn.Module class, instance or factory, default=None
        As in :class:`CorruptionDetector`.
    task, loss_limit
        As in :class:`CorruptionDetector`.
    clean_fraction : float, default=0.2
        Share of the rows that stand in for a clean set when ``fit`` is given none.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    net_ : skorch.NeuralNet
        The trained network. It predicts positions in `classes_`.
    probabilities_ : ndarray of shape (n_noisy, n_classes)
        Classification: what the network says of every noisy row.
    predictions_ : ndarray of shape (n_noisy, ...)
        Regression: what the network predicts for every noisy row.
    loss_limit_ : float or None
        The limit that ``loss_limit="auto"`` stands for; ``None`` where rows are flagged by the predicted class.
    loss_ : ndarray of shape (n_noisy,)
        Loss of every noisy row.
    classes_ : ndarray of shape (n_classes,)
        Classification only.
    n_features_in_ : int
        Number of features (size of the second axis).
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Defined when `X` has string column names.

    See Also
    --------
    CorruptionDetector, NoisySetDetector

    Examples
    --------
    >>> from sklearn_cdgd import CleanSetDetector
    >>> from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres
    >>> X, y = make_concentric_spheres(300, 2, random_state=0)
    >>> y_noisy, is_corrupted = flip_labels(y[:250], 0.2, random_state=0)
    >>> detector = CleanSetDetector(random_state=0).fit(X[:250], y_noisy, X[250:], y[250:])
    >>> detector.predict().shape
    (250,)
    """

    def _train(self, network, data, seed, rng):
        n_rows = len(data.clean[1])
        weights = torch.ones(n_rows, device=network.device)
        state = train(network.problem(data.clean, data.clean), weights, network.plan(n_rows, seed))
        if n_rows == 1:  # one row cannot be left out of itself
            return state, network.row_losses(state, *data.clean)
        return state, held_out_losses(network, data.clean, min(5, n_rows), seed=seed, rng=rng)
