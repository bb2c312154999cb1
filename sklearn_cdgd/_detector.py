"""CorruptionDetector: learn which rows are wrong by differentiating through the training of a network."""

from __future__ import annotations

import os
import time
from numbers import Integral, Real

import numpy as np
import torch

from ._base import BaseDetector, TrainingData, draw_seed
from ._compat import Interval, StrOptions, fit_context
from ._decision import flag_by_threshold, loss_limit
from ._hypergradient import forecast, hypergradient
from ._network import Network, trains_networks
from ._outer import Trace, learn_alpha
from ._recording import record
from ._unroll import stacked
from ._verdict import judge

# Up to so many rows a step takes as long as its number of operations, so initialisations are trained at once.
_STACKED_ROWS = 256


class CorruptionDetector(BaseDetector):
    """Find wrong rows of a large noisy set with the help of a small clean set.

    One inclusion variable alpha in [0, 1] is learnt for every noisy row, so that a network trained on the
    alpha-weighted noisy set does best on the clean set. The derivative of the clean loss by alpha goes through the
    whole training (CDGD, arXiv 1905.05843).

    Parameters
    ----------
    net : None, skorch.NeuralNet, or torch.nn.Module class, instance or factory, default=None
        The network to be trained. It is cloned, never changed. A skorch net brings its criterion, optimiser
        (`torch.optim.SGD`, `Adam` or `AdamW`), learning rate, batch size (-1 is full batch) and number of epochs; its
        validation split and callbacks are not used. A plain module is trained by SGD with momentum; it returns one
        column per class (logits or probabilities), or a single column of logits for two classes. A module instance
        stands for its architecture: its layers are initialised afresh before every training, except frozen ones.
        ``None`` builds a network with one hidden layer that scales its input itself.
    method : {"trained", "alpha"}, default="trained"
        What ``predict`` flags: ``"trained"`` (CDGD_T) rows whose given label is not what the network trained with alpha
        predicts, or in regression rows whose loss is above `loss_limit`; ``"alpha"`` (CDGD_alpha) rows with alpha below
        `threshold`. Read when ``predict`` is called.
    task : {"auto", "classification", "regression"}, default="auto"
        What y holds. ``"auto"`` goes by the kind of net, and else by y: numbers that are not whole, more than 20
        different ones of which the average one stands in fewer than ten rows, or several columns are regression. A net
        with a criterion of its own is trained as it asks for in either case; in regression its targets are passed on
        as float32, and rows are flagged by their loss.
    loss_limit : "auto" or float, default="auto"
        Regression: ``method="trained"`` flags rows whose loss is above. ``"auto"`` takes what 95 % of the clean rows
        stay below under networks that did not see them. Read when ``predict`` is called.
    threshold : float, default=0.5
        In [0, 1]; used by ``method="alpha"``. Read when ``predict`` is called, so no new fit is needed to change it.
    max_iter : int, default=24
        Number of outer steps. Each trains the network once from a fresh initialisation, and moves alpha once.
    outer_lr : float, default=0.5
        Learning rate of Adam on alpha.
    outer_eps : float, default=1.0
        What Adam adds to the root of its second moment, in units of that root's mean over all rows. At 0 every row
        moves at the same speed whatever its hypergradient, as in the paper; larger values hold back rows that hardly
        matter, which keeps good but redundant rows.
    outer_patience : int, default=15
        The outer learning rate is divided by 10 after so many outer steps without a better clean loss.
    n_inits : int, default=2
        Number of initialisations that the hypergradient of one outer step is averaged over.
    truncation : int or None, default=None
        Cut the dependence of the network on alpha every so many epochs (Algorithm 2 of the paper). ``None`` is exact.
    clean_every : int or "epoch", default=1
        The clean loss is taken after every so many inner steps, or once an epoch.
    average : bool, default=True
        Whether ``alpha_`` is the mean over all outer steps, which keeps the clean set from being overfitted, or the
        alpha of the last one, as in the paper.
    cv : int or None, default=5
        Folds for CDGD_T: a row is judged by networks trained without it. ``None``: by networks trained on all rows, as
        in the paper.
    n_judges : int, default=2
        Number of networks, each from its own initialisation, that judge a row; their answers are averaged.
    clean_weight : float, default=0.3
        Weight of the whole clean set in the training of the judging networks, in units of the whole noisy set; 0 leaves
        it out, as in the paper.
    clean_fraction : float, default=0.2
        Share of the rows that stand in for a clean set when ``fit`` is given none.
    compile : bool, default=False
        Compile the inner steps with `torch.compile`. Takes some 10 to 40 seconds and a C++ compiler, and pays from some
        ten thousand inner steps on. Where it is not possible a warning says why, and the fit goes on without.
    memory_budget : float or None, default=None
        Bytes for what the reverse sweep keeps of an inner training: the state before every inner step, or, for a net
        whose steps cannot be recorded, the graph of as many steps as fit. What does not fit is computed again, at the
        price of one more training pass; the result is the same to rounding. ``None`` takes an eighth of the machine's
        memory.
    random_state : int, RandomState instance or None, default=None
        One integer gives the same alpha on every run on a CPU. The global generators of torch are left alone.
    verbose : int, default=0
        1 prints a line per outer step.

    Attributes
    ----------
    alpha_ : ndarray of shape (n_noisy,)
        Inclusion variable of every noisy row, in [0, 1]; large = keep.
    net_ : skorch.NeuralNet
        The network trained with alpha on the whole noisy set (and the clean rows): the cleaned-up model. It predicts
        positions in `classes_`.
    probabilities_ : ndarray of shape (n_noisy, n_classes)
        Classification: what the judging networks say of every noisy row.
    predictions_ : ndarray of shape (n_noisy, ...)
        Regression: what the judging networks predict for every noisy row.
    loss_limit_ : float
        Regression: the limit that ``loss_limit="auto"`` stands for.
    loss_ : ndarray of shape (n_noisy,)
        Loss of the given label of every noisy row under the judging networks.
    classes_ : ndarray of shape (n_classes,)
        Labels of either set, sorted.
    n_iter_ : int
        Number of outer steps taken.
    clean_loss_curve_ : ndarray of shape (`n_iter_`,)
        Clean loss, averaged over the inner training, at every outer step.
    n_features_in_ : int
        Number of features (size of the second axis).
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Defined when `X` has string column names.

    See Also
    --------
    NoisySetDetector : Train on the noisy set alone and flag what the network gets wrong.
    CleanSetDetector : Train on the clean set alone and flag what the network gets wrong.

    Notes
    -----
    The procedure of the paper is the parameter set ``outer_lr=0.2, outer_eps=0, max_iter=250, n_inits=1,
    average=False, cv=None, n_judges=1, clean_weight=0`` with a net that trains by plain SGD; on its spheres 600
    full-batch steps with ``lr=1.4``.

    References
    ----------
    Golkar and Cho, "Task-Driven Data Verification via Gradient Descent", arXiv 1905.05843.

    Examples
    --------
    >>> from sklearn_cdgd import CorruptionDetector
    >>> from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres
    >>> X, y = make_concentric_spheres(300, 2, random_state=0)
    >>> X, y, X_clean, y_clean = X[:250], y[:250], X[250:], y[250:]
    >>> y_noisy, is_corrupted = flip_labels(y, 0.2, random_state=0)
    >>> detector = CorruptionDetector(random_state=0).fit(X, y_noisy, X_clean, y_clean)
    >>> flags = detector.predict(X)
    >>> bool((flags == is_corrupted).mean() > 0.9)
    True
    """

    _parameter_constraints = {
        "net": "no_validation",
        "task": [StrOptions({"auto", "classification", "regression"})],
        "loss_limit": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "method": [StrOptions({"trained", "alpha"})],
        "threshold": [Interval(Real, 0, 1, closed="both")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "outer_lr": [Interval(Real, 0, None, closed="neither")],
        "outer_eps": [Interval(Real, 0, None, closed="left")],
        "outer_patience": [Interval(Integral, 1, None, closed="left")],
        "n_inits": [Interval(Integral, 1, None, closed="left")],
        "truncation": [None, Interval(Integral, 1, None, closed="left")],
        "clean_every": [StrOptions({"epoch"}), Interval(Integral, 1, None, closed="left")],
        "average": ["boolean"],
        "cv": [None, Interval(Integral, 2, None, closed="left")],
        "n_judges": [Interval(Integral, 1, None, closed="left")],
        "clean_weight": [Interval(Real, 0, None, closed="left")],
        "clean_fraction": [Interval(Real, 0, 1, closed="neither")],
        "compile": ["boolean"],
        "memory_budget": [None, Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        net=None,
        *,
        task="auto",
        loss_limit="auto",
        method="trained",
        threshold=0.5,
        max_iter=24,
        outer_lr=0.5,
        outer_eps=1.0,
        outer_patience=15,
        n_inits=2,
        truncation=None,
        clean_every=1,
        average=True,
        cv=5,
        n_judges=2,
        clean_weight=0.3,
        clean_fraction=0.2,
        compile=False,
        memory_budget=None,
        random_state=None,
        verbose=0,
    ):
        self.net = net
        self.task = task
        self.loss_limit = loss_limit
        self.method = method
        self.threshold = threshold
        self.max_iter = max_iter
        self.outer_lr = outer_lr
        self.outer_eps = outer_eps
        self.outer_patience = outer_patience
        self.n_inits = n_inits
        self.truncation = truncation
        self.clean_every = clean_every
        self.average = average
        self.cv = cv
        self.n_judges = n_judges
        self.clean_weight = clean_weight
        self.clean_fraction = clean_fraction
        self.compile = compile
        self.memory_budget = memory_budget
        self.random_state = random_state
        self.verbose = verbose

    @fit_context(prefer_skip_nested_validation=True)
    @trains_networks
    def fit(self, X, y, X_clean=None, y_clean=None):
        """Learn alpha.

        Parameters
        ----------
        X : array-like of shape (n_noisy, n_features) or (n_noisy, ...)
            Rows of the noisy set.
        y : array-like of shape (n_noisy,)
            Their labels, some of them wrong.
        X_clean : array-like of shape (n_clean, n_features) or (n_clean, ...), or a tuple of one, default=None
            Rows of the clean set. Without a clean set, a part of the noisy set is assumed to be right.
        y_clean : array-like of shape (n_clean,), or a tuple of one, default=None
            Their labels, all of them right.

        Returns
        -------
        self : CorruptionDetector

        Raises
        ------
        ValueError
            If the input is not what is described here, or if the training diverges; nothing is trained before all
            arguments have been checked.
        """
        rng, seed = draw_seed(self.random_state)
        data = self._check_training_data(X, y, X_clean, y_clean, rng)
        network = Network(self.net, *data.noisy, data.task.n_classes, seed=seed)
        alpha = torch.ones(len(data.free), device=network.device)
        trace = learn_alpha(
            self._outer_objective(network, data, seed),
            alpha,
            lr=self.outer_lr,
            eps=self.outer_eps,
            max_iter=self.max_iter,
            patience=self.outer_patience,
            free=torch.as_tensor(data.free, device=network.device),
            on_step=self._progress(),
        )
        self.alpha_ = (trace.mean if self.average else trace.alpha).cpu().numpy().astype(np.float64)
        self.n_iter_, self.clean_loss_curve_ = len(trace.values), np.array(trace.values)

        verdict = judge(
            network,
            data.noisy,
            data.clean,
            self.alpha_,
            clean_weight=self.clean_weight if data.has_clean_set else 0,
            n_folds=self.cv,
            n_judges=self.n_judges,
            seed=seed,
            rng=rng,
        )
        self.net_ = network.fitted(verdict.state)
        self._remember_verdict(verdict.answers, verdict.losses, loss_limit(verdict.clean_losses))
        return self

    def _outer_objective(self, network: Network, data: TrainingData, seed: int):
        """Return the function of alpha and the outer step that gives the outer objective and its hypergradient."""
        problem, alpha = network.problem(data.noisy, data.clean), torch.ones(len(data.free), device=network.device)
        plan = network.plan(len(alpha), seed)
        recording, n_trainings = None, self.n_inits
        if self.n_inits > 2 and plan.rows_per_step <= _STACKED_ROWS:
            recording = record(stacked(problem, self.n_inits), plan, alpha, compile=self.compile)
        if recording is not None:
            problem, n_trainings = recording.problem, 1
        else:
            recording = record(problem, plan, alpha, compile=self.compile)
        options = {
            "recording": recording,
            "memory_budget": _default_memory_budget() if self.memory_budget is None else self.memory_budget,
            "truncation": None if self.truncation is None else self.truncation * plan.steps_per_epoch,
            "clean_every": plan.steps_per_epoch if self.clean_every == "epoch" else self.clean_every,
        }

        def objective(alpha, outer_step):
            first = seed + 1 + outer_step * self.n_inits
            plans = [network.plan(len(alpha), first + n) for n in range(n_trainings)]
            results = [hypergradient(problem, alpha, plan, **options) for plan in plans]
            return sum(r.value for r in results) / n_trainings, sum(r.grad for r in results) / n_trainings

        if self.verbose:
            one, n_times = forecast(problem, alpha, plan, **options), n_trainings * self.max_iter
            print(
                f"[CorruptionDetector] forecast: {n_times * plan.n_steps} inner steps, "
                f"about {n_times * one.seconds:.0f} s to learn alpha, {one.n_bytes / 1e6:.0f} MB beside the data",
                flush=True,
            )
        return objective

    def _progress(self):
        if not self.verbose:
            return None
        start = time.perf_counter()

        def report(trace: Trace) -> None:
            done = len(trace.values)
            left = (time.perf_counter() - start) / done * (self.max_iter - done)
            kept = (trace.alpha >= 0.5).float().mean().item()
            print(
                f"[CorruptionDetector] outer step {done}/{self.max_iter}: clean loss {trace.values[-1]:.4f}, "
                f"{kept:.1%} kept, {left:.0f} s left",
                flush=True,
            )

        return report

    def _training_scores(self):
        return self.alpha_

    def _training_flags(self):
        self._validate_params()
        if self.method == "alpha":
            return flag_by_threshold(self.alpha_, self.threshold)
        return self._task.flags(*self._verdict())

    def _review_order(self):
        return (self.alpha_, -self.loss_) if self.method == "alpha" else (-self.loss_, self.alpha_)


def _default_memory_budget() -> float:
    """Return an eighth of the machine's memory, in bytes: the same at every call, so that results are."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 8
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 1e9
