"""Detect, then fit any scikit-learn estimator on what is left."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from helpers import quick_detector, skorch_net
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron, Ridge
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_cdgd import (
    CleanSetDetector,
    CorruptionDetector,
    FilteredClassifier,
    FilteredRegressor,
    NoisySetDetector,
)
from sklearn_cdgd._checks import columns_off
from sklearn_cdgd.datasets import flip_labels


class Recorder(LogisticRegression):
    """Remembers what it was fitted to."""

    def fit(self, X, y, sample_weight=None):
        self.given_ = X, y, sample_weight
        return super().fit(X, y, sample_weight)


def flagging(cls):
    """Return a detector whose network is trained long enough to flag some rows of both classes."""
    return quick_detector(cls, net=skorch_net(lr=0.5, max_epochs=60))


def filtered(detector, **options):
    return FilteredClassifier(Recorder(), detector, **options)


@pytest.fixture
def all_wrong(monkeypatch):
    """Make detectors flag all rows of class 1, the less the later, and give them no weight."""

    def score(self):
        ones = self._targets == 1
        return np.where(ones, -1 + np.arange(len(ones)) / len(ones), 1)

    monkeypatch.setattr(NoisySetDetector, "_training_scores", score)
    monkeypatch.setattr(NoisySetDetector, "_training_flags", lambda self: score(self) < 0)


class TestModes:
    def test_drop(self, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        detector = flagging(CorruptionDetector)
        flags = clone(detector).fit(X, y, X_clean, y_clean).predict()
        assert 0 < flags.sum() < len(X) / 2
        model = filtered(detector).fit(X, y, X_clean, y_clean)
        np.testing.assert_array_equal(model.sample_indices_, np.flatnonzero(~flags))
        given_X, given_y, weights = model.estimator_.given_
        np.testing.assert_array_equal(given_X, np.r_[X[~flags], X_clean])
        np.testing.assert_array_equal(given_y, np.r_[y[~flags], y_clean])
        assert weights is None
        model = filtered(detector, use_clean=False).fit(X, y, X_clean, y_clean)
        np.testing.assert_array_equal(model.estimator_.given_[0], X[~flags])

    def test_weight(self, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        detector = flagging(CorruptionDetector)
        alpha = clone(detector).fit(X, y, X_clean, y_clean).alpha_
        model = filtered(detector, mode="weight").fit(X, y, X_clean, y_clean)
        given_X, given_y, weights = model.estimator_.given_
        np.testing.assert_array_equal(given_X, np.r_[X, X_clean])
        np.testing.assert_array_equal(given_y, np.r_[y, y_clean])
        np.testing.assert_array_equal(weights, np.r_[alpha, np.ones(len(y_clean))])
        np.testing.assert_array_equal(model.sample_indices_, np.arange(len(X)))

    @pytest.mark.parametrize(
        "names", [np.array([0, 1]), np.array(["bad", "very good"]), np.array(["a", "b"], dtype=object)]
    )
    def test_relabel(self, names, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        detector = flagging(CorruptionDetector)
        flags = clone(detector).fit(X, y, X_clean, y_clean).predict()
        model = filtered(detector, mode="relabel", use_clean=False).fit(X, names[y], X_clean, names[y_clean])
        # With two classes a flagged label can only be the other one.
        np.testing.assert_array_equal(model.estimator_.given_[1], names[np.where(flags, 1 - y, y)])
        np.testing.assert_array_equal(model.classes_, names)

    def test_weights_reach_the_last_step_of_a_pipeline(self, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        detector = flagging(NoisySetDetector)
        weights = clone(detector).fit(X, y, X_clean, y_clean).decision_function()
        for routing in (False, True):
            with config_context(enable_metadata_routing=routing):
                steps = StandardScaler(), Recorder()
                if routing:
                    steps[0].set_fit_request(sample_weight=False)
                    steps[1].set_fit_request(sample_weight=True)
                model = FilteredClassifier(make_pipeline(*steps), detector, mode="weight").fit(X, y, X_clean, y_clean)
            np.testing.assert_array_equal(model.estimator_[-1].given_[2][: len(X)], weights)

    def test_weights_for_an_estimator_that_takes_none(self, spheres):
        for estimator in (KNeighborsClassifier(), make_pipeline(StandardScaler(), KNeighborsClassifier())):
            with pytest.raises(
                ValueError, match=r"mode='weight' needs an estimator whose fit takes sample_weight; .* mode='drop'"
            ):
                FilteredClassifier(estimator, flagging(NoisySetDetector), mode="weight").fit(*spheres()[:4])

    @pytest.mark.parametrize("mode", ["drop", "weight", "relabel"])
    def test_regression(self, mode):
        """Whole numbers are targets here, not labels."""
        rng = np.random.RandomState(0)
        X = rng.uniform(size=(150, 2))
        y = np.round(10 * X[:, 0])
        y_noisy = y.copy()
        y_noisy[:30] = 100
        model = FilteredRegressor(LinearRegression(), CleanSetDetector(random_state=0), mode=mode)
        model.fit(X[:100], y_noisy[:100], X[100:], y[100:])
        raw = LinearRegression().fit(X[:100], y_noisy[:100])
        error, raw_error = (np.abs(m.predict(X[100:]) - y[100:]).mean() for m in (model, raw))
        assert error < raw_error / 4
        if mode == "drop":
            assert model.sample_indices_.min() == 30

    def test_two_targets(self):
        X = np.random.RandomState(0).uniform(size=(120, 2))
        y = np.c_[X[:, 0], X[:, 1]]
        y_noisy = y.copy()
        y_noisy[:20] += 10
        model = FilteredRegressor(Ridge(), CleanSetDetector(random_state=0), mode="relabel")
        assert model.fit(X[:80], y_noisy[:80], X[80:], y[80:]).predict(X).max() < 3


class TestClassesThatWouldDisappear:
    @pytest.mark.usefixtures("all_wrong")
    @pytest.mark.parametrize("mode", ["drop", "weight", "relabel"])
    def test_the_least_suspicious_row_is_kept(self, mode, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        last = np.flatnonzero(y == 1)[-1]
        words = f"All {(y == 1).sum()} rows of class 1 were found to be wrong. The least suspicious of them is kept"
        with pytest.warns(UserWarning, match=words):
            model = filtered(flagging(NoisySetDetector), mode=mode, use_clean=False).fit(X, y, X_clean, y_clean)
        given_X, given_y, weights = model.estimator_.given_
        assert model.classes_.tolist() == [0, 1]
        assert X[last] in given_X[given_y == 1]
        if mode == "weight":
            assert weights[last] == 1

    @pytest.mark.usefixtures("all_wrong")
    def test_clean_rows_can_speak_for_the_class(self, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        with pytest.warns(UserWarning, match="All .* rows of class 1 were found .* Only clean rows speak for them now"):
            model = filtered(flagging(NoisySetDetector)).fit(X, y, X_clean, y_clean)
        np.testing.assert_array_equal(model.sample_indices_, np.flatnonzero(y == 0))

    @pytest.mark.parametrize("use_clean", [False, True])
    def test_regression_with_all_rows_wrong(self, use_clean):
        X, y = np.random.RandomState(0).uniform(size=(60, 2)), np.linspace(0, 1, 60)
        model = FilteredRegressor(Ridge(), CleanSetDetector(loss_limit=1e-12, random_state=0), use_clean=use_clean)
        kept = "Only clean rows speak for them now" if use_clean else "The least suspicious of them is kept"
        with pytest.warns(UserWarning, match=f"All 40 rows were found to be wrong. {kept}"):
            model.fit(X[:40], y[:40], X[40:], y[40:])
        assert len(model.sample_indices_) == (0 if use_clean else 1)

    @pytest.mark.usefixtures("all_wrong")
    def test_fit_resample(self, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        with pytest.warns(
            UserWarning, match="rows of class 1 were found to be wrong. The least suspicious of them is kept"
        ):
            _, kept = flagging(NoisySetDetector).fit_resample(X, y, X_clean, y_clean)
        assert (kept == 1).sum() == 1


class TestInterface:
    def test_methods_are_those_of_the_estimator(self, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        model = filtered(flagging(NoisySetDetector))
        for name in ("predict_proba", "predict_log_proba", "decision_function", "score"):
            assert hasattr(model, name)
            assert not hasattr(FilteredRegressor(Ridge(), flagging(NoisySetDetector)), name) or name == "score"
        assert not hasattr(FilteredClassifier(Perceptron(), flagging(NoisySetDetector)), "predict_proba")
        model.fit(X, y, X_clean, y_clean)
        for name in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
            np.testing.assert_array_equal(getattr(model, name)(X), getattr(model.estimator_, name)(X))
        assert model.score(X_clean, y_clean) == model.estimator_.score(X_clean, y_clean)

    @pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
    def test_frames_stay_frames(self, frame, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        expected = filtered(flagging(NoisySetDetector)).fit(X, y, X_clean, y_clean).estimator_.given_[0]
        names = ["a", "b", "c"]
        noisy, clean = (frame(dict(zip(names, part.T, strict=True))) for part in (X, X_clean))
        for given in (clean, (clean,)):
            model = filtered(flagging(NoisySetDetector)).fit(noisy, y, X_clean=given, y_clean=y_clean)
            assert isinstance(model.estimator_.given_[0], frame)
            # scikit-learn 1.6 does not know the names of new releases of polars.
            if hasattr(model.estimator_, "feature_names_in_") or frame is pd.DataFrame:
                assert model.feature_names_in_.tolist() == model.estimator_.feature_names_in_.tolist() == names
            np.testing.assert_array_equal(model.estimator_.given_[0].to_numpy(), expected)

    @pytest.mark.filterwarnings("ignore:All .* rows of class .* were found to be wrong:UserWarning")
    def test_without_a_clean_set(self, spheres):
        X, y, *_ = spheres()
        with pytest.warns(UserWarning, match="No clean set was given"):
            model = filtered(flagging(NoisySetDetector)).fit(X, y)
        assert len(model.estimator_.given_[0]) == len(model.sample_indices_) < len(X)

    def test_other_detectors_are_refused(self, spheres):
        with pytest.raises(ValueError, match="The 'detector' parameter of FilteredClassifier must be an instance of"):
            FilteredClassifier(Recorder(), DummyClassifier()).fit(*spheres()[:4])

    @pytest.mark.filterwarnings("ignore:All .* rows of class .* were found to be wrong:UserWarning")
    def test_a_grid_over_nested_parameters(self, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        model = filtered(flagging(NoisySetDetector))
        assert {"detector__net__module__hidden", "detector__net__lr", "estimator__C"} <= model.set_params(
            detector__net__module__hidden=4
        ).get_params().keys()
        grid = {"detector__net__module__hidden": [2, 3], "detector__net__lr": [0.1], "estimator__C": [1.0]}
        search = GridSearchCV(model, grid, cv=2, error_score="raise")
        search.fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,))
        hidden = search.best_estimator_.detector_.net_.module_[0].out_features
        assert hidden == search.best_params_["detector__net__module__hidden"]

    @pytest.mark.filterwarnings("ignore:All .* rows of class .* were found to be wrong:UserWarning")
    def test_representations_and_set_output(self, spheres):
        model = filtered(flagging(CorruptionDetector))
        assert "FilteredClassifier" in model._repr_html_()
        assert "CorruptionDetector" in model._repr_html_()
        assert "CorruptionDetector" in repr(model)
        piped = make_pipeline(StandardScaler(), model).set_output(transform="pandas")
        X, y, *_ = spheres()
        with pytest.warns(UserWarning, match="No clean set was given"):
            piped.fit(X, y)
        assert piped[-1].n_features_in_ == 3
        assert isinstance(piped[-1].estimator_.given_[0], pd.DataFrame)


def test_digits():
    """Ten points of accuracy above the noisy rows, and above the clean rows alone."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X / 16, y, test_size=797, stratify=y, random_state=0)
    X, X_clean, y, y_clean = train_test_split(X, y, test_size=200, stratify=y, random_state=0)
    y_noisy, _ = flip_labels(y, 0.4, random_state=0)
    model = LogisticRegression(max_iter=200)
    filtered = FilteredClassifier(model, CorruptionDetector(random_state=0)).fit(X, y_noisy, X_clean, y_clean)
    accuracy = filtered.score(X_test, y_test)
    of_noisy, of_clean = (clone(model).fit(*rows).score(X_test, y_test) for rows in [(X, y_noisy), (X_clean, y_clean)])
    print(f"\ndigits, 40 % mirrored: filtered {accuracy:.3f}, noisy rows {of_noisy:.3f}, clean rows {of_clean:.3f}")
    assert accuracy >= of_noisy + 0.1
    assert accuracy > of_clean


class TestResampling:
    @pytest.mark.parametrize("container", [np.asarray, pd.DataFrame, pl.DataFrame, np.ndarray.tolist])
    def test_rows_stay_in_their_type(self, container, spheres):
        X, y, X_clean, y_clean, _ = spheres()
        detector = flagging(NoisySetDetector)
        flags = clone(detector).fit(X, y, X_clean, y_clean).predict()
        noisy = container(X) if container is not pl.DataFrame else pl.DataFrame(X, schema=["a", "b", "c"])
        names = {"schema": ["a", "b", "c"]} if container is pl.DataFrame else {}
        X_kept, y_kept = detector.fit_resample(noisy, pd.Series(y), container(X_clean, **names), y_clean)
        assert type(X_kept) is type(noisy)
        assert isinstance(y_kept, pd.Series)
        np.testing.assert_array_equal(np.asarray(X_kept), X[~flags])
        np.testing.assert_array_equal(y_kept, y[~flags])
        np.testing.assert_array_equal(detector.sample_indices_, np.flatnonzero(~flags))

    def test_in_a_routed_pipeline_of_imbalanced_learn(self, spheres):
        """The class is older than the import of imbalanced-learn, and is handed the clean set all the same."""
        imblearn = pytest.importorskip("imblearn.pipeline")
        X, y, X_clean, y_clean, _ = spheres()
        detector = flagging(NoisySetDetector)
        flags = clone(detector).fit(X, y, X_clean, y_clean).predict()
        with config_context(enable_metadata_routing=True):
            pipeline = imblearn.make_pipeline(detector, StandardScaler(), Recorder())
            pipeline.fit(X, y, X_clean=X_clean, y_clean=y_clean)
            np.testing.assert_array_equal(pipeline[-1].given_[0], StandardScaler().fit_transform(X[~flags]))
            np.testing.assert_array_equal(pipeline[-1].given_[1], y[~flags])
            # New rows are predicted, not resampled.
            assert pipeline.predict(X_clean).shape == (len(X_clean),)

    def test_what_imbalanced_learn_does_not_hand_on_is_noticed(self, spheres):
        """Its pipelines hand samplers no parameter without routing, and ignore transform_input for them with it."""
        imblearn = pytest.importorskip("imblearn.pipeline")
        X, y, X_clean, y_clean, _ = spheres()
        steps = [("scale", StandardScaler()), ("detector", flagging(NoisySetDetector)), ("model", Recorder())]
        with pytest.warns(UserWarning, match="No clean set was given"):
            imblearn.Pipeline(steps).fit(X, y, detector__X_clean=X_clean, detector__y_clean=y_clean)
        with (
            config_context(enable_metadata_routing=True),
            pytest.warns(UserWarning, match="3 of 3 columns of X_clean lie far from those of X"),
        ):
            imblearn.Pipeline(steps, transform_input=["X_clean"]).fit(
                X * 100 + 500, y, X_clean=X_clean * 100 + 500, y_clean=y_clean
            )


NOTEBOOK = """
import numpy as np, torch
from torch import nn
from skorch import NeuralNetClassifier
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV
from sklearn_cdgd import NoisySetDetector
from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres
from sklearn_cdgd.metrics import make_detection_scorer

class Net(nn.Module):
    def __init__(self, hidden=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 2))
    def forward(self, X):
        return self.layers(X)

if __name__ == "__main__":
    X, y = make_concentric_spheres(100, 2, random_state=0)
    y_noisy, is_corrupted = flip_labels(y[:70], 0.2, random_state=0)
    everything = np.arange(70)
    before = torch.get_num_threads()
    scores = []
    for n_jobs in (1, 2):
        net = NeuralNetClassifier(Net, criterion=nn.CrossEntropyLoss, lr=0.5, batch_size=-1, verbose=0)
        search = GridSearchCV(
            NoisySetDetector(net, random_state=0), {"net__module__hidden": [3, 30]},
            scoring=make_detection_scorer(f1_score, truth=(X[:70], y_noisy, is_corrupted)),
            cv=[(everything, everything)], n_jobs=n_jobs, error_score="raise",
        )
        search.fit(X[:70], y_noisy, X_clean=(X[70:],), y_clean=(y[70:],))
        scores.append(search.cv_results_["mean_test_score"])
    np.testing.assert_array_equal(*scores)
    assert torch.get_num_threads() == before
    print("both alike")
"""


def test_classes_of_a_notebook_in_a_parallel_search(tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text(NOTEBOOK)
    run = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True)
    assert run.stdout == "both alike\n", run.stderr


class TestColumnsOff:
    """Rows of one source raise no alarm, whatever their distribution; rows on another scale do."""

    @pytest.mark.parametrize(
        "draw",
        [
            lambda rng, n: rng.randn(n, 4),
            lambda rng, n: rng.standard_cauchy((n, 4)),
            lambda rng, n: np.exp(3 * rng.randn(n, 4)),
            lambda rng, n: (rng.rand(n, 4) < 0.34).astype(float),
            lambda rng, n: np.where(rng.rand(n, 4) < 0.34, 100, 0) + 0.01 * rng.randn(n, 4),
            lambda rng, n: np.eye(4)[rng.randint(4, size=n)],
        ],
        ids=["normal", "Cauchy", "log-normal", "binary", "two clusters", "one-hot"],
    )
    def test_false_alarms(self, draw):
        rng = np.random.RandomState(0)
        off = [columns_off(draw(rng, 300), draw(rng, 20)) for _ in range(500)]
        assert np.mean(off) <= 0.001

    @pytest.mark.parametrize("factor", [1 / 255, 255])
    def test_another_scale(self, factor):
        X = np.random.RandomState(0).uniform(0, 255, size=(120, 3))
        assert columns_off(X[20:], factor * X[:20]).all()

    def test_constant_columns(self):
        X = np.ones((50, 2))
        assert columns_off(X, X[:20] * [1, 2]).tolist() == [False, True]
