"""Displays hold the right numbers and draw them where they are told to."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_score, recall_score

from sklearn_cdgd import (
    CleanSetDetector,
    CleanupDisplay,
    CorruptionDetector,
    InclusionDisplay,
    NoisySetDetector,
    OuterLossDisplay,
    ReviewSheetDisplay,
    ThresholdCurveDisplay,
)

plt = pytest.importorskip("matplotlib.pyplot")

TRUTH = [True, True, False, False]


@pytest.fixture(autouse=True)
def no_window():
    """Draw into memory, and forget the figures of a test."""
    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def fitted():
    """Return a detector, and its noisy set with the truth."""
    rng = np.random.RandomState(0)
    X = rng.standard_normal((60, 2))
    y = (X[:, 0] > 0).astype(int)
    is_corrupted = rng.random_sample(40) < 0.3
    y_noisy = np.where(is_corrupted, 1 - y[:40], y[:40])
    detector = CorruptionDetector(random_state=0)
    return detector.fit(X[:40], y_noisy, X[40:], y[40:]), X[:40], y_noisy, is_corrupted


@pytest.fixture
def drawn(fitted):
    """Return a function that draws a display of the given class on given axes."""
    detector, X, y, is_corrupted = fitted

    def draw(cls, ax=None, **style):
        arguments = {
            ThresholdCurveDisplay: (is_corrupted,),
            InclusionDisplay: (is_corrupted,),
            CleanupDisplay: (X, y, is_corrupted),
            ReviewSheetDisplay: (X, y),
            OuterLossDisplay: (),
        }[cls]
        options = {"image_shape": (1, 2), "n_images": 2} if cls is ReviewSheetDisplay else {}
        return cls.from_estimator(detector, *arguments, ax=ax, **options, **style)

    return draw


ONE_AXES = [ThresholdCurveDisplay, InclusionDisplay, OuterLossDisplay]
ALL = [*ONE_AXES, CleanupDisplay, ReviewSheetDisplay]


# --- where things are drawn -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ONE_AXES)
def test_draws_on_the_given_axes(cls, drawn):
    figure, ax = plt.subplots()
    display = drawn(cls, ax)
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert plt.get_fignums() == [figure.number]


@pytest.mark.parametrize("cls", [CleanupDisplay, ReviewSheetDisplay])
def test_draws_on_the_given_sequence_of_axes(cls, drawn):
    figure, axes = plt.subplots(1, 2)
    display = drawn(cls, axes)
    assert list(display.axes_) == list(axes)
    assert display.figure_ is figure
    assert plt.get_fignums() == [figure.number]
    with pytest.raises(ValueError, match="ax must hold 2 Axes; got 1"):
        drawn(cls, axes[:1])


@pytest.mark.parametrize("cls", ALL)
def test_a_new_figure_can_be_rendered(cls, drawn):
    drawn(cls).figure_.canvas.draw()


@pytest.mark.parametrize("cls", ALL)
def test_without_matplotlib_the_error_says_how_to_install_it(cls, drawn, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    message = f"{cls.__name__} needs matplotlib to draw. Install it with: pip install matplotlib"
    with pytest.raises(ImportError, match=message):
        drawn(cls)


def test_style_keywords_reach_matplotlib(drawn):
    assert {line.get_linewidth() for line in drawn(ThresholdCurveDisplay, curve_kwargs={"linewidth": 7}).lines_} == {7}
    assert drawn(OuterLossDisplay, curve_kwargs={"color": "red"}).line_.get_color() == "red"
    assert drawn(InclusionDisplay, hist_kwargs={"bins": 3}).bars_[0].datavalues.shape == (3,)
    assert drawn(CleanupDisplay, scatter_kwargs={"marker": "s"}).axes_[0].collections[0].get_offsets().shape == (40, 2)
    assert drawn(ReviewSheetDisplay, imshow_kwargs={"cmap": "hot"}).axes_[0].images[0].get_cmap().name == "hot"


# --- what is drawn ----------------------------------------------------------------------------------------------------


def test_threshold_curves_are_the_scores_of_the_flags():
    rng = np.random.RandomState(0)
    alpha, is_corrupted = rng.random_sample(50).round(1), rng.random_sample(50) < 0.4
    display = ThresholdCurveDisplay.from_predictions(is_corrupted, alpha)
    for n, threshold in enumerate(display.thresholds):
        flags = alpha < threshold
        if flags.any():
            assert display.precision[0, n] == pytest.approx(precision_score(is_corrupted, flags))
        else:
            assert np.isnan(display.precision[0, n])
        assert display.recall[0, n] == pytest.approx(recall_score(is_corrupted, flags))
        assert display.f1[0, n] == pytest.approx(f1_score(is_corrupted, flags))
    floor = display.ax_.lines[-1].get_ydata()[0]
    assert floor == pytest.approx(f1_score(is_corrupted, np.ones(50, dtype=bool)))
    assert not display.bands_


def test_several_runs_are_drawn_as_mean_with_a_band_of_the_standard_error():
    runs = [[0.0, 0.4, 0.6, 1.0], [0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
    display = ThresholdCurveDisplay.from_predictions(TRUTH, runs, thresholds=[0.5])
    recall = [1.0, 0.5, 1.0]
    assert display.recall[:, 0].tolist() == recall
    assert display.lines_[1].get_ydata() == pytest.approx([np.mean(recall)])
    half = np.std(recall, ddof=1) / np.sqrt(3)
    edges = display.bands_[1].get_paths()[0].vertices[:, 1]
    assert [edges.min(), edges.max()] == pytest.approx([np.mean(recall) - half, np.mean(recall) + half])


def test_runs_may_have_a_truth_each():
    display = ThresholdCurveDisplay.from_predictions(
        [[True, False], [False, True]], [[0.0, 1.0], [0.0, 1.0]], thresholds=[0.5]
    )
    assert display.recall[:, 0].tolist() == [1.0, 0.0]


def test_curves_of_detectors_use_their_scores(fitted):
    detector, _, _, is_corrupted = fitted
    of_two = ThresholdCurveDisplay.from_estimator([detector, detector], is_corrupted)
    of_alpha = ThresholdCurveDisplay.from_predictions(is_corrupted, detector.alpha_)
    np.testing.assert_array_equal(of_two.f1, np.repeat(of_alpha.f1, 2, axis=0))


def test_histogram_counts_right_and_wrong_rows():
    display = InclusionDisplay.from_predictions([0.0, 0.1, 0.2, 1.0], TRUTH, bins=2)
    right, wrong = display.bars_
    assert right.datavalues.tolist() == [1, 1]
    assert wrong.datavalues.tolist() == [2, 0]
    assert [bar.get_y() for bar in wrong] == [1, 1]  # on top
    assert [text.get_text() for text in display.ax_.get_legend().get_texts()] == ["right rows", "wrong rows"]


@pytest.mark.parametrize(("cls", "name"), [(CleanSetDetector, "score"), (CorruptionDetector, "alpha")])
def test_histogram_says_what_it_shows(cls, name, fitted):
    detector, X, y, _ = fitted
    if cls is CleanSetDetector:
        detector = CleanSetDetector(random_state=0).fit(X, y, X[:10], y[:10])
    display = InclusionDisplay.from_estimator(detector)
    assert display.ax_.get_xlabel() == name
    assert display.bars_[0].datavalues.sum() == len(X)


def test_cleanup_leaves_the_flagged_rows_out(fitted):
    detector, X, y, is_corrupted = fitted
    display = CleanupDisplay.from_estimator(detector, X, y, is_corrupted)
    flags = detector.predict(X)
    before, after = (ax.collections[0].get_offsets() for ax in display.axes_)
    np.testing.assert_allclose(before, X)
    np.testing.assert_allclose(after, X[~flags])
    circled = display.axes_[1].collections[1].get_offsets()
    np.testing.assert_allclose(circled, X[~flags & is_corrupted])
    assert display.axes_[1].get_title() == f"after: {(~flags).sum()} rows, {(~flags & is_corrupted).sum()} wrong"


def test_cleanup_takes_labels_of_any_kind_and_colours_per_row():
    X = np.arange(8.0).reshape(4, 2)
    flags, y = [False, True, False, False], ["b", "a", "b", "a"]
    display = CleanupDisplay.from_predictions(X, y, flags)
    assert display.axes_[0].collections[0].get_array().tolist() == [1, 0, 1, 0]
    display = CleanupDisplay.from_predictions(X, y, flags, scatter_kwargs={"c": [1, 2, 3, 4]})
    assert display.axes_[1].collections[0].get_array().tolist() == [1, 3, 4]


def test_review_sheet_shows_what_the_review_table_says(fitted):
    pytest.importorskip("pandas")
    detector, X, y, _ = fitted
    sheet = ReviewSheetDisplay.from_estimator(detector, X, y, n_images=7, image_shape=(1, 2))
    assert sheet.rows.tolist() == detector.ranked_indices()[:7].tolist()
    frame = detector.to_frame().iloc[sheet.rows]
    assert sheet.given.tolist() == frame["given_label"].tolist()
    assert sheet.suggested.tolist() == frame["suggested_label"].tolist()
    np.testing.assert_allclose(sheet.images[:, 0], X[sheet.rows])
    assert sheet.axes_[0].get_title() == f"{sheet.given[0]}, rather {sheet.suggested[0]}"
    assert len(sheet.axes_) == 10


def test_review_sheet_of_targets(fitted):
    _, X, _, _ = fitted
    y = X.sum(axis=1)
    detector = CorruptionDetector(random_state=0).fit(X, y, X[:10], y[:10])
    sheet = ReviewSheetDisplay.from_estimator(detector, X, y, n_images=1, image_shape=(2, 1))
    row = sheet.rows[0]
    assert sheet.axes_[0].get_title() == f"{y[row]:.3g}, rather {detector.predictions_[row]:.3g}"


@pytest.mark.parametrize(
    ("shape", "image_shape", "drawn_as"),
    [
        ((4, 5), None, (4, 5)),
        ((1, 4, 5), None, (4, 5)),
        ((4, 5, 1), None, (4, 5)),
        ((3, 4, 5), None, (4, 5, 3)),
        ((4, 5, 3), None, (4, 5, 3)),
        ((20,), (4, 5), (4, 5)),
        ((60,), (3, 4, 5), (4, 5, 3)),
    ],
)
def test_review_sheet_takes_images_of_every_layout(shape, image_shape, drawn_as):
    X = np.linspace(0, 1, 2 * np.prod(shape)).reshape(2, *shape)
    sheet = ReviewSheetDisplay.from_predictions(X, [0, 1], [1, 1], [1, 0], image_shape=image_shape)
    assert sheet.axes_[0].images[0].get_array().shape == drawn_as
    assert sheet.axes_[0].images[0].get_array().max() == 1


def test_loss_curve_counts_from_one(fitted):
    display = OuterLossDisplay.from_estimator(fitted[0])
    assert display.line_.get_xdata().tolist() == list(range(1, fitted[0].n_iter_ + 1))
    np.testing.assert_array_equal(display.line_.get_ydata(), fitted[0].clean_loss_curve_)
    assert display.ax_.get_xlabel() == "outer step"


def test_loss_curve_shows_the_held_out_rows_too(fitted):
    display = OuterLossDisplay.from_estimator(fitted[0])
    assert display.validation_line_.get_xdata().tolist() == list(range(1, fitted[0].n_iter_ + 1))
    np.testing.assert_array_equal(display.validation_line_.get_ydata(), fitted[0].validation_loss_curve_)
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == ["clean loss, during the training", "held-out clean rows, at its end"]
    assert display.line_.get_color() != display.validation_line_.get_color()


def test_loss_curve_has_one_line_where_no_clean_rows_are_held_out():
    detector = SimpleNamespace(alpha_=[1.0], clean_loss_curve_=[0.5, 0.4], validation_loss_curve_=[np.nan, np.nan])
    for display in (OuterLossDisplay.from_estimator(detector), OuterLossDisplay.from_predictions([0.5, 0.4])):
        assert display.validation_line_ is None
        assert len(display.ax_.get_lines()) == 1
        assert display.ax_.get_legend() is None
        assert display.ax_.get_ylabel() == "clean loss"


def test_loss_curve_of_the_baseline_counts_epochs(fitted):
    _, X, y, _ = fitted
    baseline = NoisySetDetector(random_state=0).fit(X, y, X[:10], y[:10])
    assert OuterLossDisplay.from_estimator(baseline).ax_.get_xlabel() == "epoch"


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: ThresholdCurveDisplay.from_predictions(TRUTH, [0, 0, 1]), "is_corrupted has 4 entries for 3 rows"),
        (lambda: ThresholdCurveDisplay.from_predictions([1, 2], [0, 1]), r"must hold True \(wrong row\) or False"),
        (lambda: ThresholdCurveDisplay.from_predictions([False, False], [0, 1]), "marks no row as wrong"),
        (lambda: ThresholdCurveDisplay.from_predictions([TRUTH, TRUTH], [[0, 0, 1, 1]]), "a list of 2 runs, but .* 1"),
        (lambda: ThresholdCurveDisplay.from_predictions([True], [1.5]), r"alpha must lie in \[0, 1\]; got 1.5 to 1.5"),
        (lambda: ThresholdCurveDisplay.from_predictions([True], [1], thresholds=[-1]), r"thresholds must lie in \[0"),
        (lambda: InclusionDisplay.from_predictions([np.nan]), r"alpha must lie in \[0, 1\]"),
        (lambda: InclusionDisplay.from_predictions([0.5], [True, False]), "is_corrupted has 2 entries for 1 rows"),
        (lambda: CleanupDisplay.from_predictions([[1, 2, 3]], [1], [True]), "X must have two columns"),
        (lambda: CleanupDisplay.from_predictions([[1, 2]], [1, 2], [True]), "inconsistent numbers of samples"),
        (lambda: CleanupDisplay.from_predictions([[1, 2]], [1], [3]), "is_flagged must hold True"),
        (lambda: ReviewSheetDisplay.from_predictions(np.ones((2, 64)), [0, 1], [0, 1], [0]), "Pass image_shape="),
        (lambda: ReviewSheetDisplay.from_predictions(np.ones((2, 4)), [0], [0, 1], [0]), "inconsistent numbers"),
        (lambda: OuterLossDisplay.from_predictions([[1, 2]]), "should be a 1d array"),
        (lambda: OuterLossDisplay.from_predictions([1], validation_loss=[[1, 2]]), "should be a 1d array"),
        (
            lambda: OuterLossDisplay.from_predictions([1], validation_loss=[1, 2]),
            "validation_loss has 2 entries for 1 steps of clean_loss",
        ),
    ],
)
def test_bad_input_is_named(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
