"""CorruptionDetector and its two baselines as a user meets them."""

from __future__ import annotations

import copy
import pickle
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import closed_form_detector, quick_detector, skorch_net
from sklearn.base import clone
from sklearn.metrics import average_precision_score
from skorch import NeuralNetBinaryClassifier
from torch import nn

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector
from sklearn_cdgd.datasets import make_concentric_spheres

DETECTORS = [CorruptionDetector, NoisySetDetector, CleanSetDetector]


def mlp(n_inputs=3, n_outputs=2):
    return nn.Sequential(nn.Linear(n_inputs, 16), nn.ReLU(), nn.Linear(16, n_outputs))


class Undecided(nn.Module):
    """Takes another way for other values, so its steps cannot be recorded."""

    def __init__(self):
        super().__init__()
        self.layers = mlp()

    def forward(self, X):
        Z = self.layers(X)
        return Z if Z.sum() > 0 else 2 * Z


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp()

    def forward(self, X):
        with torch.autocast(X.device.type, dtype=torch.bfloat16):
            return self.layers(X).float()


@pytest.mark.parametrize("cls", DETECTORS)
class TestSharedInterface:
    def test_methods_agree_with_each_other(self, cls, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        detector = quick_detector(cls).fit(X, y, X_clean, y_clean)
        scores, flags = detector.decision_function(), detector.predict()
        assert scores.shape == flags.shape == (len(X),)
        assert flags.dtype == bool
        assert ((scores >= 0) & (scores <= 1)).all()
        np.testing.assert_array_equal(scores, detector.decision_function(X))
        np.testing.assert_array_equal(flags, detector.predict(X, y))
        np.testing.assert_array_equal(flags, detector.probabilities_.argmax(axis=1) != np.searchsorted([0, 1], y))
        assert sorted(detector.ranked_indices()) == list(range(len(X)))
        assert (np.diff(detector.loss_[detector.ranked_indices()]) <= 0).all()

    def test_finds_planted_errors_of_an_easy_problem(self, cls, spheres):
        X, y, X_clean, y_clean, is_corrupted = spheres(n_features=2, n_clean=80)
        detector = cls(random_state=0).fit(X, y, X_clean, y_clean)
        prevalence = is_corrupted.mean()
        assert average_precision_score(is_corrupted, -detector.decision_function()) > 2 * prevalence
        assert average_precision_score(is_corrupted, detector.loss_) > 2 * prevalence

    def test_callers_arrays_and_net_are_unchanged(self, cls, spheres):
        arrays = spheres()[:4]
        before = copy.deepcopy(arrays)
        module = mlp()
        weights = copy.deepcopy(module.state_dict())
        net = skorch_net(module)
        params = net.get_params()
        quick_detector(cls, net=net).fit(*arrays)
        for a, b in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(a, b)
        assert all(torch.equal(weights[k], v) for k, v in module.state_dict().items())
        assert net.get_params().keys() == params.keys()
        assert not net.initialized_

    @pytest.mark.usefixtures("global_generators_untouched")
    def test_same_seed_same_answer_whatever_ran_before(self, cls, spheres):
        arrays = spheres()[:4]
        net = skorch_net(batch_size=32, module=lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 2)))
        first = quick_detector(cls, net=net).fit(*arrays)
        with torch.random.fork_rng():
            torch.manual_seed(99)
            second = quick_detector(cls, net=net).fit(*arrays)
        np.testing.assert_array_equal(first.decision_function(), second.decision_function())
        np.testing.assert_array_equal(first.loss_, second.loss_)
        other = quick_detector(cls, net=net, random_state=1).fit(*arrays)
        assert (first.loss_ != other.loss_).any()

    def test_gradients_switched_off_by_the_caller_do_no_harm(self, cls, spheres):
        arrays = spheres()[:4]
        expected = quick_detector(cls).fit(*arrays).decision_function()
        for off in (torch.no_grad, torch.inference_mode):
            with off():
                np.testing.assert_array_equal(quick_detector(cls).fit(*arrays).decision_function(), expected)

    def test_label_coding_does_not_matter(self, cls, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        expected = quick_detector(cls).fit(X, y, X_clean, y_clean)
        for names in (np.array(["bad", "good"]), np.array([1, 7]), np.array([-0.5, 2.0]), np.array([False, True])):
            if names.dtype == float:
                names = names.round()
            detector = quick_detector(cls).fit(X, names[y], X_clean, names[y_clean])
            np.testing.assert_array_equal(detector.decision_function(), expected.decision_function())
            np.testing.assert_array_equal(detector.classes_, names)
            assert set(detector.to_frame()["suggested_label"]) <= set(names.tolist())

    def test_pandas_index_and_names_are_kept(self, cls, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        frame = pd.DataFrame(X, columns=["a", "b", "c"], index=[f"row {n}" for n in range(len(X))])
        series = pd.Series(y, index=frame.index)
        detector = quick_detector(cls).fit(frame, series, pd.DataFrame(X_clean, columns=["a", "b", "c"]), y_clean)
        np.testing.assert_array_equal(
            detector.decision_function(), quick_detector(cls).fit(X, y, X_clean, y_clean).decision_function()
        )
        assert detector.feature_names_in_.tolist() == ["a", "b", "c"]
        table = detector.to_frame()
        assert table.index.tolist() == frame.index.tolist()
        suggested = ["suggested_label", "suggested_probability"]
        assert table.columns[1:].tolist() == ["is_corrupted", "given_label", *suggested, "loss"]
        np.testing.assert_array_equal(table["given_label"], y)
        np.testing.assert_array_equal(table["is_corrupted"], table["given_label"] != table["suggested_label"])
        # Of two classes the suggested one has the larger probability: that of the given label, or the rest.
        given = detector.probabilities_[np.arange(len(y)), y]
        np.testing.assert_allclose(table["suggested_probability"], np.where(table["is_corrupted"], 1 - given, given))

    def test_one_element_tuples_are_unwrapped(self, cls, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        expected = quick_detector(cls).fit(X, y, X_clean, y_clean)
        detector = quick_detector(cls).fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,))
        np.testing.assert_array_equal(detector.loss_, expected.loss_)

    def test_without_clean_set_some_rows_are_assumed_clean(self, cls, spheres):
        X, y, *_ = spheres()
        with pytest.warns(
            UserWarning, match="No clean set was given: 24 rows of X, drawn at random, are assumed to be right"
        ):
            detector = quick_detector(cls).fit(X, y)
        assert detector.predict().shape == (len(X),)

    def test_classes_missing_from_the_clean_set_are_named(self, cls):
        X, y = make_concentric_spheres(90, 3, radii=(1, 2, 3), random_state=0)
        names = np.array(["inner", "middle", "outer"])[y]
        clean = names[60:] != "outer"
        net = skorch_net(lambda: mlp(3, 3))
        with pytest.warns(UserWarning, match="The clean set has no row of class 'outer'"):
            detector = quick_detector(cls, net=net).fit(X[:60], names[:60], X[60:][clean], names[60:][clean])
        assert detector.classes_.tolist() == ["inner", "middle", "outer"]

    def test_rows_are_found_by_value(self, cls, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        detector = quick_detector(cls).fit(X, y, X_clean, y_clean)
        scores = detector.decision_function()
        some = [5, 3, 5, 77]
        np.testing.assert_array_equal(detector.decision_function(X[some]), scores[some])
        np.testing.assert_array_equal(detector.decision_function(X[some] * (1 + 1e-7)), scores[some])
        np.testing.assert_array_equal(detector.predict(X[some], y[some]), detector.predict()[some])

    def test_equal_rows_with_different_labels(self, cls, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        X, y = np.r_[X, X[:1]], np.r_[y, 1 - y[:1]]
        detector = quick_detector(cls).fit(X, y, X_clean, y_clean)
        scores = detector.decision_function(X)
        np.testing.assert_array_equal(scores, detector.decision_function())
        assert detector.decision_function(X[:1])[0] == min(scores[0], scores[-1])
        for label, row in [(y[0], 0), (y[-1], -1)]:
            assert detector.decision_function(X[:1], [label])[0] == scores[row]

    def test_unseen_rows_get_no_verdict(self, cls, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        detector = quick_detector(cls).fit(X, y, X_clean, y_clean)
        mixed = np.r_[X[:2], X_clean[:1]]
        with pytest.warns(UserWarning, match="1 of 3 rows of X, the first of them row 2, .* get nan.* pass y"):
            scores = detector.decision_function(mixed)
        np.testing.assert_array_equal(scores, [*detector.decision_function()[:2], np.nan])
        with pytest.warns(UserWarning, match=r"get False.* pass y"):
            assert not detector.predict(mixed)[2]

    def test_survives_pickle_deepcopy_and_clone(self, cls, spheres):
        arrays = spheres()[:4]
        detector = quick_detector(cls).fit(*arrays)
        for twin in (pickle.loads(pickle.dumps(detector)), copy.deepcopy(detector)):
            np.testing.assert_array_equal(twin.decision_function(arrays[0]), detector.decision_function())
        np.testing.assert_array_equal(clone(detector).fit(*arrays).loss_, detector.loss_)

    @pytest.mark.parametrize(
        "net",
        [
            mlp,
            mlp(),
            nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)),
            skorch_net(),
            skorch_net(lambda: mlp(3, 1), NeuralNetBinaryClassifier),
        ],
        ids=["function", "instance", "one logit", "skorch", "skorch binary"],
    )
    def test_any_kind_of_network(self, cls, net, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        detector = quick_detector(cls, net=net).fit(X, y, X_clean, y_clean)
        assert np.isfinite(detector.loss_).all()
        assert detector.net_.predict_proba(X.astype(np.float32)).shape == (len(X), 2)

    def test_images_stay_four_dimensional(self, cls, spheres):
        X, y, X_clean, y_clean, _ = spheres(n_features=16)
        module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
        detector = quick_detector(cls, net=skorch_net(module)).fit(
            X.reshape(-1, 1, 4, 4), y, X_clean.reshape(-1, 1, 4, 4), y_clean
        )
        assert detector.predict(X.reshape(-1, 1, 4, 4)[:7]).shape == (7,)


class TestCorruptionDetector:
    def test_method_and_threshold_are_read_when_predict_is_called(self, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        detector = quick_detector().fit(X, y, X_clean, y_clean)
        detector.set_params(method="alpha")
        for threshold in (0, 0.3, 0.5, 1):
            detector.set_params(threshold=threshold)
            np.testing.assert_array_equal(detector.predict(), detector.alpha_ < threshold)
        assert (np.diff(detector.alpha_[detector.ranked_indices()]) >= 0).all()

    def test_permuting_the_rows_permutes_alpha(self, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        order = np.random.RandomState(0).permutation(len(X))
        detector = quick_detector(max_iter=5)
        alpha = detector.fit(X, y, X_clean, y_clean).alpha_
        assert alpha.std() > 0.05
        np.testing.assert_allclose(detector.fit(X[order], y[order], X_clean, y_clean).alpha_, alpha[order], atol=1e-3)

    def test_equal_pairs_get_equal_alpha(self, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        alpha = quick_detector(max_iter=5).fit(np.r_[X, X[:30]], np.r_[y, y[:30]], X_clean, y_clean).alpha_
        np.testing.assert_allclose(alpha[:30], alpha[-30:], atol=1e-5)

    def test_rows_assumed_clean_keep_alpha_one(self, spheres):
        X, y, *_ = spheres()
        with pytest.warns(UserWarning, match="assumed to be right"):
            alpha = quick_detector(clean_fraction=0.5, max_iter=6).fit(X, y).alpha_
        assert (alpha == 1).sum() >= 60
        assert alpha.min() < 0.9

    def test_clean_loss_falls(self, spheres):
        X, y, X_clean, y_clean, _ = spheres(n_features=2, rate=0.4)
        net = skorch_net(lambda: mlp(2), optimizer__momentum=0.9, max_epochs=60)
        detector = quick_detector(net=net, max_iter=12).fit(X, y, X_clean, y_clean)
        assert detector.clean_loss_curve_.shape == (detector.n_iter_,) == (12,)
        assert detector.clean_loss_curve_[-3:].mean() < 0.9 * detector.clean_loss_curve_[:3].mean()

    def test_clean_loss_falls_in_closed_form(self, spheres):
        """And alpha is that of the step where clean rows that it was learnt without were predicted best."""
        detector = closed_form_detector().fit(*spheres(rate=0.4)[:4])
        assert detector.clean_loss_curve_.shape == detector.validation_loss_curve_.shape == (detector.n_iter_,)
        assert 1 < detector.n_iter_ <= detector.max_iter
        assert detector.clean_loss_curve_[-1] < 0.95 * detector.clean_loss_curve_[0]
        kept = detector._outer_state.kept_step
        assert detector.validation_loss_curve_[kept] <= detector.validation_loss_curve_[0]
        assert detector.validation_loss_curve_[kept] == pytest.approx(np.mean(detector._outer_state.kept_losses))

    @pytest.mark.parametrize("options", [{}, {"cv": None}, {"clean_cv": None}, {"average": False}], ids=str)
    def test_closed_form_permutes_with_the_rows(self, spheres, options):
        """Where every row is a landmark, their order means nothing."""
        X, y, X_clean, y_clean, _ = spheres()
        order = np.random.RandomState(0).permutation(len(X))
        detector = closed_form_detector(**options).fit(X, y, X_clean, y_clean)
        alpha, probabilities = detector.alpha_, detector.probabilities_
        assert alpha.std() > 0.05
        detector.fit(X[order], y[order], X_clean, y_clean)
        np.testing.assert_allclose(detector.alpha_, alpha[order], atol=0.05)
        np.testing.assert_allclose(detector.probabilities_, probabilities[order], atol=0.05)

    def test_one_clean_row(self, spheres):
        """No clean row can be kept from alpha, so there are no p-values."""
        X, y, X_clean, y_clean, _ = spheres()
        detector = CorruptionDetector(random_state=0)
        with pytest.warns(UserWarning, match="The clean set has no row of class"):
            detector.fit(X, y, X_clean[:1], y_clean[:1])
        assert ((detector.alpha_ >= 0) & (detector.alpha_ <= 1)).all()
        assert np.isfinite(detector.loss_).all()
        assert detector.p_values_ is None
        assert np.isnan(detector.validation_loss_curve_).all()
        scores = detector.decision_function(X_clean[1:], y_clean[1:])
        assert ((scores >= 0) & (scores <= 1)).all()

    @pytest.mark.parametrize("options", [{}, {"cv": None}, {"clean_cv": None}, {"shard_size": 100}], ids=str)
    def test_closed_form_finds_planted_errors(self, spheres, options):
        X, y, X_clean, y_clean, is_corrupted = spheres(n_noisy=200, n_clean=50, n_features=2, rate=0.3)
        detector = closed_form_detector(**options).fit(X, y, X_clean, y_clean)
        assert average_precision_score(is_corrupted, -detector.alpha_) > 0.8
        assert average_precision_score(is_corrupted, detector.loss_) > 0.8
        assert (detector.p_values_ is None) == bool(options.keys() & {"cv", "clean_cv"})

    def test_segments_do_not_change_alpha(self, spheres):
        arrays = spheres()[:4]
        expected = quick_detector().fit(*arrays).alpha_
        np.testing.assert_allclose(quick_detector(memory_budget=1).fit(*arrays).alpha_, expected, atol=1e-4)

    def test_minibatches_truncation_and_sparse_clean_losses(self, spheres):
        arrays = spheres()[:4]
        net = skorch_net(batch_size=50, max_epochs=6)
        exact = quick_detector(net=net).fit(*arrays).alpha_
        one_window = quick_detector(net=net, truncation=6).fit(*arrays).alpha_
        np.testing.assert_array_equal(one_window, exact)
        for options in (
            {"truncation": 2},
            {"clean_every": 4},
            {"clean_batch_size": 7},
            {"clean_every": "epoch"},
            {"n_inits": 2},
            {"clean_cv": None},
        ):
            alpha = quick_detector(net=net, **options).fit(*arrays).alpha_
            assert ((alpha >= 0) & (alpha <= 1)).all()
            assert (alpha != exact).any(), options

    def test_initialisations_trained_at_once_give_the_same_alpha(self, spheres, monkeypatch):
        arrays = spheres()[:4]
        at_once = quick_detector(n_inits=3).fit(*arrays).alpha_
        monkeypatch.setattr("sklearn_cdgd._trainer._STACKED_ROWS", 0)
        one_by_one = quick_detector(n_inits=3).fit(*arrays).alpha_
        np.testing.assert_allclose(at_once, one_by_one, atol=1e-4)

    def test_a_net_that_cannot_be_recorded_is_differentiated_all_the_same(self, spheres):
        arrays = spheres()[:4]
        for options in ({}, {"n_inits": 3}):
            alpha = quick_detector(net=skorch_net(Undecided), **options).fit(*arrays).alpha_
            assert alpha.std() > 0
        with pytest.warns(UserWarning, match="could not be compiled and run uncompiled: .*"):
            quick_detector(net=skorch_net(Undecided), compile=True).fit(*arrays)

    @pytest.mark.slow
    @pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
    def test_compiled(self, spheres):
        arrays = spheres()[:4]
        expected = quick_detector().fit(*arrays).alpha_
        np.testing.assert_allclose(quick_detector(compile=True).fit(*arrays).alpha_, expected, atol=1e-3)

    def test_autocast_in_the_module(self, spheres):
        """alpha stays in float32 while the module computes in bfloat16."""
        arrays = spheres()[:4]
        expected = quick_detector().fit(*arrays).alpha_
        alpha = quick_detector(net=skorch_net(Autocast)).fit(*arrays).alpha_
        assert np.corrcoef(alpha, expected)[0, 1] > 0.9

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_on_a_gpu(self, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        expected = quick_detector().fit(X, y, X_clean, y_clean).alpha_
        detector = quick_detector(net=skorch_net(device="cuda")).fit(X, y, X_clean, y_clean)
        assert np.corrcoef(detector.alpha_, expected)[0, 1] > 0.9

    def test_cross_fitting_judges_rows_by_networks_that_did_not_see_them(self, spheres):
        """A network that can memorise everything agrees with every label it was trained on."""
        X, y, X_clean, y_clean, is_corrupted = spheres(rate=0.3, n_features=10)
        wide = lambda: nn.Sequential(nn.Linear(10, 300), nn.ReLU(), nn.Linear(300, 2))  # noqa: E731
        net = skorch_net(wide, optimizer__momentum=0.9, max_epochs=300)
        options = dict(net=net, max_iter=1, outer_lr=1e-9, random_state=0, clean_weight=0)
        memorised = CorruptionDetector(cv=None, **options).fit(X, y, X_clean, y_clean).predict()
        judged = CorruptionDetector(cv=5, **options).fit(X, y, X_clean, y_clean).predict()
        assert memorised.sum() == 0
        assert judged[is_corrupted].mean() > 0.4

    def test_the_paper_settings_are_the_paper_written_out(self, spheres):
        """Alpha moves as by Adam along autograd's gradient through all inner steps, and is cut to [0, 1]."""
        X, y, X_clean, y_clean, _ = spheres()
        weights = [0.5 * torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in ((3, 20), (20, 1))]

        class Fixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.weights = nn.ParameterList(nn.Parameter(w.clone()) for w in weights)

            def forward(self, X):
                return logits(self.weights, X)

        def logits(weights, X):
            return torch.tanh(X @ weights[0]) @ weights[1]

        def losses(weights, X, y):
            return nn.functional.binary_cross_entropy_with_logits(logits(weights, X)[:, 0], y, reduction="none")

        def train(alpha):
            trained, clean_loss = [w.clone().requires_grad_() for w in weights], 0.0
            for _ in range(30):
                grads = torch.autograd.grad((alpha * losses(trained, *noisy)).mean(), trained, create_graph=True)
                trained = [w - 1.4 * grad for w, grad in zip(trained, grads, strict=True)]
                clean_loss = clean_loss + losses(trained, *clean).mean()
            return trained, clean_loss

        pairs = (X, y), (X_clean, y_clean)
        noisy, clean = ([torch.as_tensor(array, dtype=torch.float32) for array in pair] for pair in pairs)
        alpha = torch.ones(len(X), requires_grad=True)
        adam = torch.optim.Adam([alpha], lr=0.2, eps=1e-12)
        for _ in range(4):
            (alpha.grad,) = torch.autograd.grad(train(alpha)[1], alpha)
            adam.step()
            alpha.data.clamp_(0, 1)

        net = skorch_net(Fixed, NeuralNetBinaryClassifier, lr=1.4, optimizer__momentum=0, max_epochs=30, batch_size=-1)
        outer = dict(outer_lr=0.2, outer_eps=0, max_iter=4, clean_cv=None, average=False)
        detector = CorruptionDetector(net, **outer, cv=None, clean_weight=0, random_state=0)
        detector.fit(X, y, X_clean, y_clean)
        assert 0.1 < alpha.detach().min() < 0.9 < alpha.max()
        np.testing.assert_allclose(detector.alpha_, alpha.detach(), atol=1e-3)
        predicted = logits(train(alpha)[0], noisy[0])[:, 0] > 0
        np.testing.assert_array_equal(detector.predict(), predicted.numpy() != y)
        np.testing.assert_array_equal(detector.set_params(method="alpha").predict(), alpha.detach() < 0.5)

    def test_progress_line(self, spheres, capsys):
        quick_detector(max_iter=2, verbose=1).fit(*spheres()[:4])
        forecast, *lines = capsys.readouterr().out.splitlines()
        words = r"forecast: 30 inner steps, about \d+ s to learn alpha, \d+ MB beside the data"
        assert re.fullmatch(r"\[CorruptionDetector\] " + words, forecast)
        assert len(lines) == 2
        assert lines[1].startswith("[CorruptionDetector] outer step 2/2: clean loss ")
        assert "% kept, 0 s left" in lines[1]
        n_iter = closed_form_detector(verbose=1).fit(*spheres()[:4]).n_iter_
        forecast, *lines = capsys.readouterr().out.splitlines()
        words = r"forecast: up to 12 outer steps in closed form, on 120 rows of \d+ features"
        assert re.fullmatch(r"\[CorruptionDetector\] " + words, forecast)
        assert len(lines) == n_iter
        quick_detector(max_iter=2).fit(*spheres()[:4])
        assert capsys.readouterr().out == ""


def test_noisy_set_detector_keeps_the_best_epoch(spheres):
    X, y, X_clean, y_clean, _ = spheres()
    detector = quick_detector(NoisySetDetector).fit(X, y, X_clean, y_clean)
    probabilities = detector.net_.predict_proba(X_clean.astype(np.float32))
    loss = -np.log(probabilities[np.arange(len(y_clean)), y_clean]).mean()
    assert loss == pytest.approx(detector.clean_loss_curve_.min(), rel=1e-4)


def test_clean_set_detector_ignores_the_noisy_labels(spheres):
    X, y, X_clean, y_clean, _ = spheres()
    first = quick_detector(CleanSetDetector).fit(X, y, X_clean, y_clean).probabilities_
    second = quick_detector(CleanSetDetector).fit(X, y[::-1], X_clean, y_clean).probabilities_
    np.testing.assert_array_equal(first, second)
