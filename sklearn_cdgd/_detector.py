"""CorruptionDetector: learn which rows are wrong by differentiating through the training of a network."""

from __future__ import annotations

import copy
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from ._base import BaseDetector, TrainingData, all_or_nothing, draw_seed
from ._cache import recall
from ._checks import refuse_nan
from ._compat import CallbackSupportMixin, HasMethods, Interval, StrOptions, fit_context
from ._decision import flag_by_p_value, flag_by_threshold, least_share_flagged
from ._learners import learner_of
from ._learning import Folds, Learnt, Settings, trainer_of
from ._network import Network, trains_networks
from ._outer import OuterState
from ._report import report_of
from ._shards import learn_in_shards
from ._task import LabelQuality
from ._tasks import FitTasks, OuterTasks
from ._trainer import Manner
from ._verdict import Verdict
from ._warm_start import CleanRows, Start, of_all_rows, start_after
from ._warnings import warn_user
from ._workers import Workers

# What no training depends on: read when predict is called, or already in the seed and the checked data.
_NOT_TRAINED_BY = {
    "clean_fraction",
    "fdr",
    "loss_limit",
    "memory",
    "method",
    "n_jobs",
    "random_state",
    "task",
    "threshold",
    "verbose",
    "warm_start",
}


class Outcome(NamedTuple):
    """What the training of one fit yields, in NumPy arrays but for the trained network.

    Attributes
    ----------
    state : OuterState
        The end of the outer loop.
    alpha : ndarray of shape (n_noisy,)
    alpha_estimate : object
        For pairs that come later.
    verdict : Verdict
    clean_folds : ndarray of shape (n_clean,)
    """

    state: OuterState
    alpha: np.ndarray
    alpha_estimate: object
    verdict: Verdict
    clean_folds: np.ndarray


class CorruptionDetector(CallbackSupportMixin, BaseDetector):
    """Find wrong rows of a large noisy set with the help of a small clean set.

    One inclusion variable alpha in [0, 1] is learnt for every noisy row, so that a model trained on the alpha-weighted
    noisy set does best on the clean set. The derivative of the clean loss by alpha goes through the whole training
    (CDGD, arXiv 1905.05843). The default model is the network of one hidden layer, made infinitely wide and trained to
    the end: its training, its leave-one-out predictions and its hypergradient are closed formulas, so a fit of a
    thousand rows takes seconds. With `net` the model is your own network, trained step by step.

    Parameters
    ----------
    net : None, skorch.NeuralNet, or torch.nn.Module class, instance or factory, default=None
        ``None`` is the closed form, for rows of numbers: columns are scaled, images flattened. Tokens need a network.
        Any other network is cloned, never changed. A skorch net brings its criterion, optimiser (`torch.optim.SGD`,
        `Adam` or `AdamW`), batch size (-1 is full batch), number of epochs, and learning rate with the schedule of its
        `LRScheduler` callbacks, unless that follows a score. Its validation split is not used; what else would change
        its training, such as early stopping, is named in a warning. Batches are drawn in a new order in every epoch,
        unless ``iterator_train__shuffle=False``. A plain module is trained by SGD with momentum; it returns one column
        per class (logits or probabilities), or a single column of logits for two classes. A module instance stands for
        its architecture: its layers are initialised afresh before every training, except frozen ones.
    method : {"trained", "alpha", "conformal"}, default="trained"
        What ``predict`` flags: ``"trained"`` (CDGD_T) rows whose loss under the ensemble is above `loss_limit`, or in
        classification with ``cv=None`` rows whose label is not the predicted one; ``"alpha"`` (CDGD_alpha) rows with
        alpha below `threshold`; ``"conformal"`` rows of the noisy set with small p-values, so that no more than `fdr`
        of the flagged rows are right on average. Read when ``predict`` is called.
    task : {"auto", "classification", "regression"}, default="auto"
        What y holds. ``"auto"`` goes by the kind of net, and else by y: y is regression if it has several columns,
        non-integer values, or more than 20 distinct values that occur fewer than ten times each on average. A net with
        a criterion of its own is trained as it asks for in either case; in regression its targets are passed on as
        float32, and rows are flagged by their loss.
    loss_limit : "auto" or float, default="auto"
        ``method="trained"`` flags rows whose loss is above. ``"auto"`` takes the limit with the best expected F1: in
        classification by the probabilities of the labels, in regression by whether losses look like those of clean
        rows or of targets that belong to other rows. With ``cv=None`` regression takes what 95 % of the clean rows stay
        below. Read when ``predict`` is called.
    threshold : float, default=0.5
        In [0, 1]; used by ``method="alpha"``. Read when ``predict`` is called, so no new fit is needed to change it.
    fdr : float, default=0.1
        In (0, 1); used by ``method="conformal"``: the false discovery rate, the expected share of right rows among the
        flagged ones. It holds if clean rows are drawn like the right rows of the noisy set. A p-value cannot be below
        one over the number of clean rows plus one, so small rates need clean rows; a warning says how many. Read when
        ``predict`` is called.
    max_iter : int, default=12
        Largest number of outer steps. Each trains the model once and moves alpha once. In closed form alpha begins at
        the probability that the label is right, and learning ends early if held-out clean rows tell of no progress for
        three steps; with `net` it begins at 1, and every step trains from a fresh initialisation. With `warm_start` the
        steps of earlier fits count.
    outer_lr : float, default=0.5
        Learning rate of Adam on alpha.
    outer_eps : float, default=1.0
        What Adam adds to the root of its second moment, in units of that root's mean over all rows. At 0 every row
        moves at the same speed whatever its hypergradient, as in the paper; larger values hold back rows that hardly
        matter, which keeps good but redundant rows.
    outer_patience : int, default=15
        The outer learning rate is divided by 10 after so many outer steps without a better clean loss.
    n_inits : int, default=1
        Networks only. Number of initialisations that the hypergradient of one outer step is averaged over, in every
        clean fold.
    clean_cv : int or None, default=3
        Folds of the clean set: alpha is learnt once without each fold, and averaged, so that held-out clean rows can
        stop alpha and weight the members of the ensemble. ``None``: alpha is learnt once, from the whole clean set, and
        takes all `max_iter` steps, as in the paper.
    truncation : int or None, default=None
        Networks only. Cut the dependence of the network on alpha every so many epochs (Algorithm 2 of the paper).
        ``None`` is exact.
    clean_every : int or "epoch", default=1
        Networks only. The clean loss is taken after every so many inner steps, or once an epoch; in closed form at the
        end of the training.
    clean_batch_size : int or None, default=None
        Networks only. The clean loss is taken on so many clean rows at a time, which rotate through the clean set, so
        that a large clean set costs no more than a small one. ``None`` takes it on all of them.
    average : bool, default=True
        Whether ``alpha_`` is the mean over the outer steps, which keeps the clean set from being overfitted, or the
        alpha of the last one, as in the paper. Where held-out clean rows stop alpha it is the mean up to there.
    cv : int or None, default=5
        How rows are kept from the members that judge them (CDGD_T). In closed form predictions are leave-one-out and
        out-of-bag, whatever the number. Networks are trained on all but one of so many folds of the noisy set.
        ``None``: rows are judged by a model that was trained on them, as in the paper: flagged are labels that it does
        not predict.
    n_judges : int, default=1
        Networks only. Number of networks of each kind, each from its own initialisation, for every pair of a noisy and
        a clean fold.
    clean_weight : float, default=0.3
        Weight of the whole clean set in the training of networks that judge, and of ``net_``, in units of the whole
        noisy set; some networks give it ten times as much, some train on the clean set alone. In minibatches no clean
        row weighs more than ten rows or a tenth of a batch. In closed form a clean row weighs one or five noisy rows,
        whichever predicts held-out clean rows better. 0 leaves clean rows out of all training, as in the paper.
    witnesses : {"all", "networks"}, default="all"
        Members of the ensemble: forests of trees and the nearest neighbours of a row beside kernel machines or
        networks; or neither. Forests find more wrong labels where a few columns tell the label. A
        forest looks past noise in single columns, so of rows whose features are wrong, and not their labels, the others
        alone find more. There are no forests with ``clean_weight=0`` or ``cv=None``, for integer rows that an embedding
        takes, and in regression for a net that is no ``NeuralNetRegressor``, or whose criterion is not least where the
        prediction is the target.
    clean_fraction : float, default=0.2
        Share of the rows that stand in for a clean set when ``fit`` is given none.
    compile : bool, default=False
        Networks only. Compile the inner steps with `torch.compile`. Takes some 10 to 40 seconds and a C++ compiler, and
        pays from some ten thousand inner steps on. Where it is not possible a warning says why, and the fit goes on
        without.
    memory_budget : float or None, default=None
        Networks only. Bytes for what the reverse sweep keeps of an inner training: the state before every inner step,
        or, for a net whose steps cannot be recorded, the graph of as many steps as fit. What does not fit is computed
        again, at the price of one more training pass; the result is the same to rounding. ``None`` takes an eighth of
        the machine's memory.
    warm_start : bool, default=False
        Whether ``fit`` takes up alpha, and all that its optimiser holds, where the last ``fit`` left them, until there
        have been `max_iter` outer steps in all: with the same data and an integer `random_state`, two fits give what
        one does. Other data are allowed, after suspicious rows have been moved to the clean set, say: pairs of row and
        label that are found again keep their alpha, new ones begin where all do. Raise `max_iter` to learn from the new
        data.
    memory : None, str or joblib.Memory, default=None
        Where to keep what a fit learnt: a folder, or joblib's object for one. A fit to the same data with the same net,
        seed and parameters is then read instead of trained. `method`, `threshold`, `fdr` and `loss_limit` do not
        count, so a search over them trains once per fold. Needs an integer `random_state`. Delete the folder to forget.
    shard_size : int or None, default=None
        Split a noisy set of more rows into parts of nearly the same size, at most this, each with its part of every
        class. alpha is learnt, and rows are judged, in every shard by itself, against the same clean set; there is one
        decision for all, and ``net_`` trains on all rows. Time is then linear in the number of rows, and a worker
        needs the memory of one shard; with `n_jobs` workers have one shard each. A smaller shard knows less of its
        noisy rows: see the user guide. With `warm_start` the learning-rate plateau is counted afresh, and in closed
        form alpha goes on from what was kept.
    n_jobs : int or None, default=None
        Number of joblib workers that train side by side: networks (the `clean_cv` times `n_inits` trainings of one
        outer step, and those that judge), forests, and shards. ``None`` is one, or what ``joblib.parallel_config``
        says, which also takes a cluster: ``backend="dask"``. The result does not depend on it, as long as torch has as
        many threads in the workers as here. `net` must be picklable.
    random_state : int, RandomState instance or None, default=None
        One integer gives the same alpha on every run on a CPU. The global generators of torch are left alone.
    verbose : int, default=0
        1 prints a line per outer step, or per shard. From scikit-learn 1.9 on, ``set_callbacks`` takes its progress
        bars and monitors, and callbacks that end the outer loop early.

    Attributes
    ----------
    alpha_ : ndarray of shape (n_noisy,)
        Inclusion variable of every noisy row, in [0, 1]; large = keep.
    net_ : skorch.NeuralNet
        The cleaned-up model: a network trained on the noisy set, every row weighted with its probability of being right
        (with alpha if ``cv=None``), and on the clean set. It predicts positions in `classes_`. With ``net=None`` it has
        one hidden layer of 200 units.
    probabilities_ : ndarray of shape (n_noisy, n_classes)
        Classification: probability of every class for every noisy row, given label and all evidence considered; with
        ``cv=None`` the predictions of one model, the given label not considered.
    predictions_ : ndarray of shape (n_noisy, ...)
        Regression: the ensemble's prediction for every noisy row.
    loss_ : ndarray of shape (n_noisy,)
        How badly the given label or target fits: minus the logarithm of its probability; in regression the loss under
        the ensemble, lowered or raised by alpha; with ``cv=None`` the plain loss under the model that judges.
    loss_limit_ : float or None
        The limit that ``loss_limit="auto"`` stands for; ``None`` where rows are flagged by the predicted class.
    noise_transition_ : ndarray of shape (n_classes, n_classes) or None
        Estimated rates at which labels of every class (row) were turned into others (column). ``None`` in regression
        and with ``cv=None``.
    classes_ : ndarray of shape (n_classes,)
        Classification: labels of either set, sorted.
    n_iter_ : int
        Number of outer steps taken.
    p_values_ : ndarray of shape (n_noisy,) or None
        Conformal p-value of every noisy row: the share of clean rows that look as bad to members that know neither
        (arXiv 2104.08279). Classes with at least 200 clean rows are compared with these only. ``None`` with
        ``cv=None``, ``clean_cv=None`` or a single clean row: then no row is kept from both alpha and the members.
    flag_frequency_ : ndarray of shape (n_noisy,) or None
        In [0, 1]: weighted fraction of members that flag the row on their own, as a mean over the clean folds. Values
        near 0.5 mean that the members disagree. ``None`` with ``cv=None``.
    interrupted_ : bool
        Whether learning alpha was interrupted before it was done.
    clean_loss_curve_ : ndarray of shape (`n_iter_`,)
        Clean loss at every outer step; with `net` averaged over the inner training.
    validation_loss_curve_ : ndarray of shape (`n_iter_`,)
        Loss of the clean rows that alpha is learnt without, at the end of the inner training, at every outer step. If
        it rises, the clean set is overfitted. NaN with ``clean_cv=None``.
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
    In closed form a fit of N rows with C classes costs about 100 N D (D + C) operations, with D landmarks: the square
    root of N times ten, between 400 and 1,500. No matrix has N rows and N columns.

    ``predict(X, y)`` and ``decision_function(X, y)`` also take pairs that were not in the noisy set. In closed form the
    kernel machines of the ensemble judge them, without forests, and their alpha takes the outer steps that a training
    pair takes, from the probability that the label is right. With `net`, ``net_`` alone judges them, and their alpha is
    estimated from the influence that they would have had on the clean loss: the trainings are watched at some 48 inner
    steps, and alpha falls with the influence as it does on the training rows; for this the fitted detector keeps
    snapshots of twice the size of the network: 48, or as many as fit in 100 MB, but at least four.

    A callback that asks for a fitted estimator after every outer step, such as ``ScoringMonitor``, has the rows judged
    as often.

    The procedure of the paper is the parameter set ``outer_lr=0.2, outer_eps=0, max_iter=250, clean_cv=None,
    average=False, cv=None, clean_weight=0`` with a net that trains by plain SGD; on its spheres 600 full-batch steps
    with ``lr=1.4``.

    References
    ----------
    Golkar and Cho, "Task-Driven Data Verification via Gradient Descent", arXiv 1905.05843.

    Jacot, Gabriel and Hongler, "Neural Tangent Kernel", arXiv 1806.07572.

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
        "method": [StrOptions({"trained", "alpha", "conformal"})],
        "threshold": [Interval(Real, 0, 1, closed="both")],
        "fdr": [Interval(Real, 0, 1, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "outer_lr": [Interval(Real, 0, None, closed="neither")],
        "outer_eps": [Interval(Real, 0, None, closed="left")],
        "outer_patience": [Interval(Integral, 1, None, closed="left")],
        "n_inits": [Interval(Integral, 1, None, closed="left")],
        "clean_cv": [None, Interval(Integral, 2, None, closed="left")],
        "truncation": [None, Interval(Integral, 1, None, closed="left")],
        "clean_every": [StrOptions({"epoch"}), Interval(Integral, 1, None, closed="left")],
        "clean_batch_size": [None, Interval(Integral, 1, None, closed="left")],
        "average": ["boolean"],
        "cv": [None, Interval(Integral, 2, None, closed="left")],
        "n_judges": [Interval(Integral, 1, None, closed="left")],
        "clean_weight": [Interval(Real, 0, None, closed="left")],
        "witnesses": [StrOptions({"all", "networks"})],
        "clean_fraction": [Interval(Real, 0, 1, closed="neither")],
        "compile": ["boolean"],
        "memory_budget": [None, Interval(Real, 0, None, closed="neither")],
        "warm_start": ["boolean"],
        "memory": [None, str, HasMethods("cache")],
        "shard_size": [None, Interval(Integral, 2, None, closed="left")],
        "n_jobs": [None, Integral],
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
        fdr=0.1,
        max_iter=12,
        outer_lr=0.5,
        outer_eps=1.0,
        outer_patience=15,
        n_inits=1,
        clean_cv=3,
        truncation=None,
        clean_every=1,
        clean_batch_size=None,
        average=True,
        cv=5,
        n_judges=1,
        clean_weight=0.3,
        witnesses="all",
        clean_fraction=0.2,
        compile=False,
        memory_budget=None,
        warm_start=False,
        memory=None,
        shard_size=None,
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.net = net
        self.task = task
        self.loss_limit = loss_limit
        self.method = method
        self.threshold = threshold
        self.fdr = fdr
        self.max_iter = max_iter
        self.outer_lr = outer_lr
        self.outer_eps = outer_eps
        self.outer_patience = outer_patience
        self.n_inits = n_inits
        self.clean_cv = clean_cv
        self.truncation = truncation
        self.clean_every = clean_every
        self.clean_batch_size = clean_batch_size
        self.average = average
        self.cv = cv
        self.n_judges = n_judges
        self.clean_weight = clean_weight
        self.witnesses = witnesses
        self.clean_fraction = clean_fraction
        self.compile = compile
        self.memory_budget = memory_budget
        self.warm_start = warm_start
        self.memory = memory
        self.shard_size = shard_size
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @all_or_nothing
    @fit_context(prefer_skip_nested_validation=True)
    @trains_networks
    def fit(self, X, y, X_clean=None, y_clean=None):
        """Learn alpha.

        An interrupt (Ctrl-C) while alpha is learnt ends that at once: the alpha of the outer steps so far is used, and
        a warning says how to go on. An interrupt before the first outer step or while the judging networks are trained,
        like any error, is raised and leaves the detector as it was before.

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
        self : CorruptionDetector

        Raises
        ------
        ValueError
            If the input is not what is described here, or if the training diverges; nothing is trained before all
            arguments have been checked. With `warm_start`, if more than `max_iter` outer steps were taken before.

        Warns
        -----
        ConvergenceWarning
            If learning alpha was interrupted.
        """
        last = copy.copy(self) if self.warm_start and hasattr(self, "_outer_state") else None
        tasks = FitTasks(self, X, y, self.max_iter + 1)
        rng, seed = draw_seed(self.random_state)
        data = self._check_training_data(X, y, X_clean, y_clean, rng)
        network = Network(self.net, *data.noisy, data.task.n_classes, seed=seed)
        start = start_after(last, self, data, seed)
        params = {name: value for name, value in self.get_params(deep=False).items() if name not in _NOT_TRAINED_BY}
        outcome = recall(
            self.memory,
            (params, seed, data, start),
            lambda: self._learn(network, data, start, seed, tasks),
            keep=lambda outcome: outcome.state.is_done(self.max_iter, self._settings().max_wait),
        )
        self._remember(network, data, outcome)
        tasks.close()
        return self

    def _learn(self, network: Network, data: TrainingData, start: Start, seed: int, tasks: FitTasks) -> Outcome:
        """Do all the training, a function of the arguments and the parameters alone."""
        settings = self._settings()

        def fitted(outcome: Outcome) -> dict:
            return vars(copy.copy(self)._remember(network, data, outcome))

        if self.shard_size is not None and self.shard_size < len(data.noisy[1]):
            tasks.begin("shards")
            options = {name: getattr(self, name) for name in ("shard_size", "n_jobs")}
            sets = network, data.noisy, data.clean, data.task
            learnt, estimate, verdict, clean_folds = learn_in_shards(*sets, settings, *start, **options, seed=seed)
            alpha = settings.alphas(learnt.state).mean(axis=0)
            result = Outcome(learnt.state, alpha, estimate, verdict, clean_folds)
        else:
            folds = Folds.dealt(settings, data.noisy[1], data.clean[1], seed, start.clean_folds)
            with Workers(self.n_jobs, trainer_of(network, data.noisy, data.clean, settings, folds)) as workers:
                learner = learner_of(settings)(workers, data.task, settings, folds, seed)

                def judged(learnt: Learnt) -> Outcome:
                    alpha = learner.alpha(learnt)
                    estimate = learner.alpha_estimate(learnt, alpha)
                    return Outcome(learnt.state, alpha, estimate, learner.judge(learnt), folds.clean)

                told = {"max_iter": self.max_iter, "verbose": self.verbose}
                learnt = learner.learn(start.learnt, OuterTasks(tasks, lambda learnt: fitted(judged(learnt)), **told))
                self._warn_of_interrupt(learnt.state)
                tasks.begin("judging networks")
                result = judged(learnt)
        tasks.end(lambda: fitted(result))
        return result

    def _settings(self) -> Settings:
        manner, settings = ({name: getattr(self, name, None) for name in of._fields} for of in (Manner, Settings))
        return Settings(**settings | {"manner": Manner(**manner), "closed_form": self.net is None})

    def _warn_of_interrupt(self, state: OuterState) -> None:
        if state.interrupted:
            warn_user(
                f"Learning alpha was interrupted after {state.n_steps} of {self.max_iter} outer steps. The fit goes on "
                "with what was learnt so far; interrupt again to give it up. To go on later, call fit again with "
                "warm_start=True.",
                ConvergenceWarning,
            )

    def _remember(self, network: Network, data: TrainingData, outcome: Outcome):
        """Set the fitted attributes."""
        state, alpha, self._alpha_estimate, verdict, clean_folds = outcome
        self._judges = verdict.judges
        self._clean_rows, self._outer_state = CleanRows.of(data.clean, clean_folds), of_all_rows(state, data.free)
        self.alpha_ = data.of_all_rows(alpha, np.ones((~data.free).sum()))
        self.n_iter_, self.interrupted_ = state.n_steps, state.interrupted
        self.clean_loss_curve_, self.validation_loss_curve_ = np.array(state.values), np.array(state.held_out)
        self.net_ = network.fitted(verdict.state)
        self._remember_verdict(data, verdict.conclusion)
        self._remember_evidence(data, verdict.conclusion)
        return self

    def _remember_evidence(self, data: TrainingData, conclusion: LabelQuality):
        """Set the attributes that say how sure the flags are; rows that stand in for a clean set count as right."""
        self.noise_transition_, self._panel, self._n_clean = conclusion.transition, conclusion.panel, len(data.clean[1])
        self._n_compared = conclusion.n_compared
        n_stand_ins = (~data.free).sum()
        frequency, p_values, right = conclusion.flag_frequency, conclusion.p_values, conclusion.rightness
        knows_alpha_alone = self.clean_cv is not None and len(data.clean[1]) > 1
        self.flag_frequency_ = None if frequency is None else data.of_all_rows(frequency, np.zeros(n_stand_ins))
        self.p_values_ = (
            data.of_all_rows(p_values, np.ones(n_stand_ins)) if p_values is not None and knows_alpha_alone else None
        )
        self._rightness = None if right is None else data.of_all_rows(right, np.ones(n_stand_ins))

    def _training_scores(self):
        return self.alpha_

    def _training_flags(self):
        self._validate_params()
        if self.method == "alpha":
            return flag_by_threshold(self.alpha_, self.threshold)
        if self.method == "conformal":
            return self._conformal_flags()
        return self._task.flags(*self._verdict())

    def _conformal_flags(self):
        if self.p_values_ is None:
            raise ValueError(
                'method="conformal" needs rows that are kept from the networks that judge them. Fit with cv and '
                f"clean_cv set, and at least two clean rows; got cv={self.cv}, clean_cv={self.clean_cv}, and "
                f"{self._n_clean} clean rows."
            )
        self._check_resolution()
        return flag_by_p_value(self.p_values_, self.fdr)

    def _check_resolution(self):
        """Warn if not even as many flags as there seem to be wrong rows could reach the asked level."""
        wrong = self._task.flags(*self._verdict()).mean()
        share = least_share_flagged(self.p_values_, self._n_compared, self.fdr)
        if share > wrong > 0:
            n_times = np.ceil(10 * share / wrong) / 10
            warn_user(
                f"The clean set of {self._n_clean} rows is small for fdr={self.fdr:g}: a row can only be flagged if at "
                f"least {share:.0%} of all rows are, and {wrong:.0%} seem to be wrong. Verify {n_times:.1f} times as "
                "many rows, or raise fdr."
            )

    def _new_scores(self, X, targets):
        network = self._fitted_network() if self._judges is None else None
        return refuse_nan(self._alpha_estimate.alpha(network, X, targets))

    def _new_flags(self, X, targets):
        self._validate_params()
        if self.method == "alpha":
            return flag_by_threshold(self._new_scores(X, targets), self.threshold)
        if self.method == "conformal":
            raise ValueError(
                f'method="conformal" can only flag rows of the noisy set; {len(targets)} pairs of X and y were not in '
                'it. Fit again with them in the noisy set, or set method="trained".'
            )
        return self._task.flags(*self._new_verdict(X, targets))

    def _judge_new(self, X, targets):
        if self._judges is None:
            answers, losses = super()._judge_new(X, targets)
        else:
            answers = self._judges.predict(X).mean(axis=0)
            losses = self._judges.encoding.losses(answers, targets)
        return self._task.confront(targets, answers, losses, self.noise_transition_)

    def _sureness(self):
        found = {"flag_frequency": self.flag_frequency_, "p_value": self.p_values_}
        return {name: values for name, values in found.items() if values is not None}

    def report(self):
        """Say in a few lines what was found, how far it can be trusted, and what to do next.

        Returns
        -------
        text : str
            The flags of `method`, with the share of them that is expected to be right, for ``method="alpha"`` also the
            threshold with the best expected F1; the noise rate of every class and what its labels most often turned
            into; each member's loss on held-out clean rows and its weight; and advice.

        Examples
        --------
        >>> from sklearn_cdgd import CorruptionDetector
        >>> from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres
        >>> X, y = make_concentric_spheres(300, 2, random_state=0)
        >>> y_noisy, _ = flip_labels(y[:250], 0.2, random_state=0)
        >>> detector = CorruptionDetector(random_state=0).fit(X[:250], y_noisy, X[250:], y[250:])
        >>> print(detector.report().splitlines()[0])
        250 noisy rows, 50 clean rows.
        """
        check_is_fitted(self)
        return report_of(
            flags=self._training_flags(),
            rule=f'method="{self.method}"',
            n_clean=self._n_clean,
            rightness=self._rightness,
            flag_frequency=self.flag_frequency_,
            transition=self.noise_transition_,
            classes=getattr(self, "classes_", None),
            panel=self._panel,
            alpha=self.alpha_ if self.method == "alpha" else None,
        )

    def _review_order(self):
        return (self.alpha_, -self.loss_) if self.method == "alpha" else (-self.loss_, self.alpha_)
