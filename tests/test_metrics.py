"""Scorers ask about corruption, not about the noisy label, and come out the right way up."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from helpers import quick_detector
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.metrics import average_precision_score, f1_score, make_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_cdgd import CorruptionDetector, FilteredClassifier, NoisySetDetector
from sklearn_cdgd.metrics import make_clean_scorer, make_detection_scorer


class Knowing:
    """A detector that is always right."""

    def __init__(self, X, is_corrupted):
        self.known = dict(zip(map(bytes, np.asarray(X, dtype=float)), is_corrupted, strict=True))

    def predict(self, X, y):
        return np.array([self.known[bytes(row)] for row in np.asarray(X, dtype=float)])

    def decision_function(self, X, y):
        return 1 - 0.8 * self.predict(X, y)


@pytest.mark.parametrize(
    ("metric", "response"), [(f1_score, "flags"), (average_precision_score, "scores"), (roc_auc_score, "scores")]
)
def test_a_perfect_detector_scores_one(metric, response, spheres):
    X, y, *_, is_corrupted = spheres()
    scorer = make_detection_scorer(metric, response=response)
    assert scorer(Knowing(X, is_corrupted), X, y, is_corrupted=is_corrupted) == 1
    assert scorer(Knowing(X, ~is_corrupted), X, y, is_corrupted=is_corrupted) < 0.5


@pytest.mark.parametrize(
    "container", [np.asarray, pd.DataFrame, lambda X: X.astype(str).astype(object), np.ndarray.tolist]
)
def test_truth_is_found_by_value(container, spheres):
    X, y, *_, is_corrupted = spheres()
    X[3] = X[4]  # equal rows are told apart by their labels
    y[3], y[4], is_corrupted[3], is_corrupted[4] = 0, 1, True, False
    X = container(X)
    scorer = make_detection_scorer(f1_score, truth=(X, y, is_corrupted))
    rows = [50, 3, 4, 4, 7]
    some = X.iloc[rows] if hasattr(X, "iloc") else [X[n] for n in rows]
    np.testing.assert_array_equal(scorer._known(some, y[rows]), is_corrupted[rows])


@pytest.mark.parametrize(("response", "least"), [("flags", 0.7), ("scores", 0.7)])
def test_held_out_pairs_are_scored_in_cross_validation(response, least, spheres):
    """The folds that a detector is scored on were not in its fit: every pair gets an estimate, and no warning."""
    X, y, X_clean, y_clean, is_corrupted = spheres(n_noisy=200, n_features=2, rate=0.3)
    metric = f1_score if response == "flags" else average_precision_score
    scorer = make_detection_scorer(metric, response=response, truth=(X, y, is_corrupted))
    clean = {"X_clean": (X_clean,), "y_clean": (y_clean,)}
    detector = CorruptionDetector(random_state=0)
    found = cross_val_score(detector, X, y, cv=2, scoring=scorer, params=clean)
    assert (found > least).all()  # flagging all: F1 0.46


@pytest.mark.filterwarnings("ignore:All .* rows of class .* were found to be wrong:UserWarning")
def test_the_detector_inside_other_estimators_is_asked(spheres):
    X, y, X_clean, y_clean, is_corrupted = spheres()
    filtered = FilteredClassifier(DummyClassifier(), quick_detector(NoisySetDetector))
    pipeline = make_pipeline(StandardScaler(), make_pipeline(filtered))
    clean = {"pipeline__filteredclassifier__X_clean": (X_clean,), "pipeline__filteredclassifier__y_clean": (y_clean,)}
    scorer = make_detection_scorer(f1_score, truth=(X, y, is_corrupted))
    everything = np.arange(len(X))
    search = GridSearchCV(
        pipeline,
        {"pipeline__filteredclassifier__detector__net__lr": [0.5]},
        scoring=scorer,
        cv=[(everything, everything)],
    )
    search.fit(X, y, **clean)
    flags = search.best_estimator_[-1][-1].detector_.predict()
    assert search.best_score_ == scorer(search, X, y) == f1_score(is_corrupted, flags)


def test_clean_scorer_ignores_what_it_is_handed(spheres):
    X, y, X_clean, y_clean, _ = spheres()
    constant = DummyClassifier(strategy="constant", constant=1)
    for scoring in ("accuracy", make_scorer(lambda a, b: (a == b).mean())):
        scorer = make_clean_scorer(scoring, X_clean, y_clean)
        np.testing.assert_allclose(cross_val_score(constant, X, y, scoring=scorer, cv=3), y_clean.mean())


def test_scorers_survive_pickle_and_clone_and_name_themselves(spheres):
    X, y, X_clean, y_clean, is_corrupted = spheres()
    detection = make_detection_scorer(f1_score, truth=(X, y, is_corrupted))
    for scorer in (pickle.loads(pickle.dumps(detection)), clone(detection)):
        assert scorer(Knowing(X, is_corrupted), X, y) == 1
    assert repr(detection) == "make_detection_scorer(f1_score, response='flags')"
    clean = make_clean_scorer("accuracy", X_clean, y_clean)
    assert (
        repr(pickle.loads(pickle.dumps(clean)))
        == "make_clean_scorer(make_scorer(accuracy_score, response_method='predict'), 40 rows)"
    )


def test_errors(spheres):
    X, y, X_clean, y_clean, is_corrupted = spheres()
    with pytest.raises(ValueError, match="response must be 'flags' or 'scores'; got 'predict'"):
        make_detection_scorer(f1_score, response="predict")
    with pytest.raises(
        ValueError, match=r"not told which rows are corrupted\..* pass is_corrupted=.* truth=\(X, y, is_corr"
    ):
        make_detection_scorer(f1_score)(Knowing(X, is_corrupted), X, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        make_detection_scorer(f1_score, truth=(X, y, is_corrupted[1:]))
    scorer = make_detection_scorer(f1_score, truth=(X[1:], y[1:], is_corrupted[1:]))
    with pytest.raises(
        ValueError, match="truth knows nothing of 1 of 120 pairs of row and label, the first of them row 0"
    ):
        scorer(Knowing(X, is_corrupted), X, y)
    with pytest.raises(ValueError, match=r"truth says of row 120 that it is .*, and the opposite of an equal row with"):
        make_detection_scorer(
            f1_score, truth=(np.r_[X, X[:1]], np.r_[y, y[:1]], np.r_[is_corrupted, ~is_corrupted[:1]])
        )
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        make_clean_scorer("accuracy", X_clean, y_clean[1:])
    with pytest.raises(ValueError, match="'acuracy' is not a valid scoring value"):
        make_clean_scorer("acuracy", X_clean, y_clean)
