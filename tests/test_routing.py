"""How a clean set gets to the detector through pipelines and searches: transformed and whole, or with a warning."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers import assert_same_result, closed_form_detector, quick_detector
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, FilteredClassifier, NoisySetDetector
from sklearn_cdgd.metrics import make_clean_scorer, make_detection_scorer

DETECTORS = [CorruptionDetector, NoisySetDetector, CleanSetDetector]
FAR = "columns of X_clean lie far from those of X.*Did X go through a transformer"


@pytest.fixture
def data(spheres):
    X, y, X_clean, y_clean, is_corrupted = spheres(n_noisy=60, n_clean=25)
    return X * 100 + 500, y, X_clean * 100 + 500, y_clean, is_corrupted


@pytest.fixture(params=[False, True], ids=["routing off", "routing on"])
def routing(request):
    with config_context(enable_metadata_routing=request.param):
        yield request.param


@pytest.fixture
def routed():
    with config_context(enable_metadata_routing=True):
        yield


def pipeline(detector, *before, **options):
    return Pipeline([(f"step{n}", step) for n, step in enumerate(before)] + [("detector", detector)], **options)


def by_hand(detector, transformer, X, y, X_clean, y_clean):
    """Return the detector, fitted to data that were transformed without a pipeline."""
    transformer = clone(transformer).fit(X)
    return clone(detector).fit(transformer.transform(X), y, transformer.transform(X_clean), y_clean)


class TestFit:
    """The rows of the table: call x routing."""

    def test_detector_alone(self, data, routing):
        X, y, X_clean, y_clean, _ = data
        expected = quick_detector(NoisySetDetector).fit(X, y, X_clean, y_clean).loss_
        for clean in ({"X_clean": X_clean, "y_clean": y_clean}, {"X_clean": (X_clean,), "y_clean": (y_clean,)}):
            np.testing.assert_array_equal(quick_detector(NoisySetDetector).fit(X, y, **clean).loss_, expected)

    def test_pipeline_without_routing_warns(self, data):
        X, y, X_clean, y_clean, _ = data
        with pytest.warns(UserWarning, match=f"3 of 3 {FAR}"):
            pipeline(quick_detector(NoisySetDetector), StandardScaler()).fit(
                X, y, detector__X_clean=X_clean, detector__y_clean=y_clean
            )

    def test_pipeline_without_routing_takes_a_transformed_clean_set(self, data):
        X, y, X_clean, y_clean, _ = data
        fitted = pipeline(quick_detector(NoisySetDetector), StandardScaler()).fit(
            X, y, detector__X_clean=StandardScaler().fit(X).transform(X_clean), detector__y_clean=y_clean
        )
        expected = by_hand(quick_detector(NoisySetDetector), StandardScaler(), X, y, X_clean, y_clean)
        np.testing.assert_array_equal(fitted[-1].loss_, expected.loss_)

    @pytest.mark.usefixtures("routed")
    def test_pipeline_with_routing_but_without_transform_input_warns(self, data):
        X, y, X_clean, y_clean, _ = data
        with pytest.warns(UserWarning, match=f"3 of 3 {FAR}"):
            pipeline(quick_detector(NoisySetDetector), StandardScaler()).fit(X, y, X_clean=X_clean, y_clean=y_clean)

    @pytest.mark.usefixtures("routed")
    @pytest.mark.parametrize("asked", [False, True], ids=["by default", "set_fit_request"])
    @pytest.mark.parametrize("wrap", [lambda part: part, lambda part: (part,)], ids=["array", "tuple"])
    @pytest.mark.parametrize("cls", DETECTORS)
    def test_pipeline_with_routing_transforms_the_clean_set(self, cls, wrap, asked, data):
        X, y, X_clean, y_clean, _ = data
        detector = quick_detector(cls)
        expected = by_hand(detector, StandardScaler(), X, y, X_clean, y_clean)
        if asked:
            detector.set_fit_request(X_clean=True, y_clean=True)
        fitted = pipeline(detector, StandardScaler(), transform_input=["X_clean"]).fit(
            X, y, X_clean=wrap(X_clean), y_clean=wrap(y_clean)
        )
        np.testing.assert_array_equal(fitted[-1].loss_, expected.loss_)

    @pytest.mark.usefixtures("routed")
    def test_the_default_in_a_routed_pipeline(self, data):
        X, y, X_clean, y_clean, _ = data
        detector = CorruptionDetector(max_iter=3, random_state=0)
        expected = by_hand(detector, StandardScaler(), X, y, X_clean, y_clean)
        fitted = pipeline(detector, StandardScaler(), transform_input=["X_clean"])
        fitted.fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,))
        assert_same_result(fitted[-1], expected)
        np.testing.assert_array_equal(fitted.predict(X), expected.predict())

    @pytest.mark.usefixtures("routed")
    def test_a_refused_clean_set_is_refused(self, data):
        X, y, X_clean, y_clean, _ = data
        detector = quick_detector(NoisySetDetector).set_fit_request(X_clean=False, y_clean=False)
        with pytest.raises(TypeError, match="X_clean"):
            pipeline(detector, StandardScaler()).fit(X, y, X_clean=X_clean, y_clean=y_clean)

    @pytest.mark.usefixtures("routed")
    @pytest.mark.parametrize("before", [PCA(3), FeatureUnion([("a", StandardScaler()), ("b", MinMaxScaler())])])
    def test_other_transformers(self, before, data):
        """A FeatureUnion is handed no clean set; its twin columns go to a network that is built from the data."""
        X, y, X_clean, y_clean, _ = data
        detector = NoisySetDetector(random_state=0)
        fitted = pipeline(detector, before, transform_input=["X_clean"]).fit(X, y, X_clean=X_clean, y_clean=y_clean)
        expected = by_hand(detector, before, X, y, X_clean, y_clean)
        np.testing.assert_allclose(fitted[-1].loss_, expected.loss_, rtol=1e-2, atol=1e-3)

    def test_column_transformer(self, data):
        X, y, X_clean, y_clean, _ = data
        X, X_clean = (pd.DataFrame(part, columns=["a", "b", "c"]) for part in (X, X_clean))
        before = make_column_transformer((StandardScaler(), ["a", "b"]), remainder=MinMaxScaler())
        expected = by_hand(quick_detector(NoisySetDetector), before, X, y, X_clean, y_clean)
        with config_context(enable_metadata_routing=True):
            fitted = pipeline(quick_detector(NoisySetDetector), before, transform_input=["X_clean"]).fit(
                X, y, X_clean=X_clean, y_clean=y_clean
            )
        np.testing.assert_array_equal(fitted[-1].loss_, expected.loss_)
        with pytest.warns(UserWarning, match=FAR):
            pipeline(quick_detector(NoisySetDetector), before).fit(
                X, y, detector__X_clean=X_clean.to_numpy(), detector__y_clean=y_clean
            )


class TestPredict:
    @pytest.mark.parametrize("method", ["predict", "decision_function"])
    @pytest.mark.parametrize("cls", DETECTORS)
    def test_detector_alone(self, cls, method, data, routing):
        X, y, X_clean, y_clean, _ = data
        detector = quick_detector(cls).fit(X, y, X_clean, y_clean)
        answer = getattr(detector, method)
        for given in [(X,), (X, y)]:
            np.testing.assert_array_equal(answer(*given), answer())

    @pytest.mark.parametrize("method", ["predict", "decision_function"])
    def test_pipeline(self, method, data, routing):
        X, y, X_clean, y_clean, _ = data
        expected = by_hand(quick_detector(NoisySetDetector), StandardScaler(), X, y, X_clean, y_clean)
        if routing:
            fitted = pipeline(quick_detector(NoisySetDetector), StandardScaler(), transform_input=["X_clean"])
            fitted.fit(X, y, X_clean=X_clean, y_clean=y_clean)
        else:
            fitted = pipeline(quick_detector(NoisySetDetector), StandardScaler())
            X_clean = StandardScaler().fit(X).transform(X_clean)
            fitted.fit(X, y, detector__X_clean=X_clean, detector__y_clean=y_clean)
        np.testing.assert_array_equal(getattr(fitted, method)(X), getattr(expected, method)())
        np.testing.assert_array_equal(
            getattr(fitted[-1], method)(fitted[:-1].transform(X), y), getattr(expected, method)()
        )

    def test_a_pipeline_hands_labels_on_without_routing_only(self, data, routing):
        """What the user guide warns of; make_detection_scorer goes around it."""
        X, y, X_clean, y_clean, _ = data
        fitted = pipeline(quick_detector(NoisySetDetector)).fit(X, y, **clean(routing, X_clean, y_clean))
        if routing:
            with pytest.raises(TypeError, match=r"Pipeline\.predict got unexpected argument\(s\) \{'y'\}"):
                fitted.predict(X, y=y)
        else:
            np.testing.assert_array_equal(fitted.predict(X, y=y), fitted[-1].predict())
        scorer = make_detection_scorer(f1_score)
        flags = fitted[-1].predict()
        assert scorer(fitted, X, y, is_corrupted=flags) == f1_score(flags, flags, zero_division=0)


def clean(routing, X_clean, y_clean, step="detector"):
    prefix = "" if routing else f"{step}__"
    return {f"{prefix}X_clean": (X_clean,), f"{prefix}y_clean": (y_clean,)}


def folds(n_rows):
    """Return folds whose test rows are training rows too, so that every detector knows them."""
    everything = np.arange(n_rows)
    return [(everything, everything[::2]), (everything[:-10], everything[:20])]


class TestSearches:
    def test_grid_search_with_routing_takes_truth_and_clean_set(self, data, routing):
        X, y, X_clean, y_clean, is_corrupted = data
        scorer = make_detection_scorer(
            average_precision_score, response="scores", truth=None if routing else (X, y, is_corrupted)
        )
        search = GridSearchCV(
            quick_detector(NoisySetDetector),
            {"net__lr": [0.01, 0.5]},
            scoring=scorer,
            cv=folds(len(X)),
            error_score="raise",
        )
        truth = {"is_corrupted": is_corrupted} if routing else {}
        search.fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,), **truth)
        rows = folds(len(X))[1]
        detector = (
            quick_detector(NoisySetDetector).set_params(net__lr=0.5).fit(X[rows[0]], y[rows[0]], X_clean, y_clean)
        )
        by_hand = average_precision_score(is_corrupted[rows[1]], -detector.decision_function()[rows[1]])
        assert search.cv_results_["split1_test_score"][1] == by_hand

    def test_grid_search_over_the_default(self, data, routing):
        """New pairs of the test folds are judged in closed form."""
        X, y, X_clean, y_clean, is_corrupted = data
        scorer = make_detection_scorer(f1_score, truth=None if routing else (X, y, is_corrupted))
        options = dict(scoring=scorer, cv=2, error_score="raise")
        search = GridSearchCV(closed_form_detector(max_iter=3), {"loss_limit": [0.3, 0.7]}, **options)
        truth = {"is_corrupted": is_corrupted} if routing else {}
        search.fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,), **truth)
        train, test = next(KFold(2).split(X))
        detector = closed_form_detector(max_iter=3, loss_limit=0.7).fit(X[train], y[train], X_clean, y_clean)
        expected = f1_score(is_corrupted[test], detector.predict(X[test], y[test]))
        assert search.cv_results_["split0_test_score"][1] == expected

    @pytest.mark.usefixtures("routed")
    def test_cross_validation_of_a_pipeline(self, data):
        X, y, X_clean, y_clean, is_corrupted = data
        scorer = make_detection_scorer(f1_score)
        result = cross_validate(
            pipeline(quick_detector(NoisySetDetector), StandardScaler(), transform_input=["X_clean"]),
            X,
            y,
            scoring={"found": scorer},
            cv=folds(len(X)),
            params={"X_clean": (X_clean,), "y_clean": (y_clean,), "is_corrupted": is_corrupted},
            return_estimator=True,
            error_score="raise",
        )
        test = folds(len(X))[0][1]
        flags = result["estimator"][0][-1].predict()[test]
        assert result["test_found"][0] == f1_score(is_corrupted[test], flags)

    def test_a_clean_set_as_long_as_the_noisy_set(self, data, routing):
        """Only a tuple of one gets through cross-validation whole."""
        X, y, X_clean, y_clean, _ = data
        X, y = X[: len(X_clean)], y[: len(X_clean)]
        options = {"scoring": make_clean_scorer(size_of_clean_set, X_clean, y_clean), "cv": folds(len(X))}
        search = GridSearchCV(quick_detector(Counting), {"net__lr": [0.5]}, refit=False, **options)
        with pytest.warns(UserWarning, match="X_clean has as many rows as X .* Pass tuples of one, X_clean=.X_clean,."):
            search.fit(X, y, X_clean=X_clean, y_clean=y_clean)
        assert search.cv_results_["split1_test_score"][0] == 15
        search.fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,))
        assert search.cv_results_["split1_test_score"][0] == 25

    def test_clone_keeps_requests(self, routed):
        detector = quick_detector(CorruptionDetector).set_fit_request(X_clean="verified_rows", y_clean=False)
        for estimator in (detector, make_pipeline(StandardScaler(), detector)[-1]):
            requests = clone(estimator).get_metadata_routing().fit.requests
            assert requests == {"X_clean": "verified_rows", "y_clean": False}

    @pytest.mark.usefixtures("routed")
    def test_filtered_classifier_in_a_routed_pipeline(self, data):
        X, y, X_clean, y_clean, _ = data
        filtered = FilteredClassifier(LogisticRegression(), quick_detector(NoisySetDetector))
        expected = by_hand(filtered, StandardScaler(), X, y, X_clean, y_clean)
        fitted = make_pipeline(StandardScaler(), filtered, transform_input=["X_clean"])
        fitted.fit(X, y, X_clean=(X_clean,), y_clean=(y_clean,))
        np.testing.assert_array_equal(fitted[-1].sample_indices_, expected.sample_indices_)
        np.testing.assert_array_equal(fitted[-1].estimator_.coef_, expected.estimator_.coef_)
        np.testing.assert_array_equal(
            fitted.predict_proba(X), expected.predict_proba(StandardScaler().fit(X).transform(X))
        )


class Counting(NoisySetDetector):
    """Remembers how many clean rows reached it."""

    def fit(self, X, y, X_clean=None, y_clean=None):
        self.n_clean_ = len(X_clean[0] if isinstance(X_clean, tuple) else X_clean)
        return super().fit(X, y, X_clean, y_clean)


def size_of_clean_set(estimator, X, y):
    return estimator.n_clean_
