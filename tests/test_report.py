"""What a report says, of made-up arrays: the numbers by hand, and the words of every piece of advice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sklearn_cdgd._report import as_good_as, expected_quality, report_of
from sklearn_cdgd._stacking import NEIGHBORS, TREES, StackedEnsemble

EARLY, LATE = "a third", "all of it"
AS_THEY_ARE, CLEAN_ALONE = "all rows as they are", "clean rows alone"
HURTS_NOT = "All rows as they are do as well as the best model: the noise may hardly hurt it."
NETWORKS_HAVE_LITTLE = "Networks have less than half of the weight: another net, or a longer training, may do better."
ADDS_LITTLE = "Clean rows alone do as well as the best model: the noisy rows may add little."


def panel_of(held_out: dict, weights=None) -> StackedEnsemble:
    """Return an ensemble of the kinds and parts that are the keys, with their losses of clean rows."""
    losses = np.array(list(held_out.values()), dtype=float)
    return StackedEnsemble(
        names=tuple(held_out),
        clean_losses=losses,
        weights=np.full(len(losses), 1 / len(losses)) if weights is None else weights,
        inverse_temperatures=np.ones(len(losses)),
        inverse_temperature=1.0,
        ensemble=None,
    )


PANEL = panel_of({("weighted", LATE): [0.1, 0.1, 0.1], (AS_THEY_ARE, LATE): [0.5, 0.6, 0.5]})


def report(**changes) -> str:
    """Return the report of ten rows, of which two are surely wrong and flagged, with something changed."""
    right = np.array([0.0, 0.0] + [1.0] * 8)
    arguments = dict(
        flags=right < 0.5,
        rule='method="trained"',
        n_clean=3,
        rightness=right,
        flag_frequency=1 - right,
        transition=np.array([[0.75, 0.25], [0.1, 0.9]]),
        classes=np.array(["cat", "dog"]),
        panel=PANEL,
    )
    return report_of(**arguments | changes)


class TestExpectedQuality:
    def test_it_is_what_the_flags_have_on_average(self):
        """Over truths that are drawn with these probabilities; a recall is a ratio, so it takes many rows."""
        rng = np.random.RandomState(0)
        right, flags = rng.rand(2000), rng.rand(2000) < 0.3
        wrong = rng.rand(200, 2000) > right
        hits = (wrong & flags).sum(axis=1)
        precision, recall = expected_quality(right, flags)
        assert precision == pytest.approx((hits / flags.sum()).mean(), abs=0.01)
        assert recall == pytest.approx((hits / wrong.sum(axis=1)).mean(), abs=0.01)

    def test_flagging_every_row(self):
        precision, recall = expected_quality(np.array([0.5, 1.0, 0.25, 0.25]), np.ones(4, dtype=bool))
        assert (precision, recall) == (0.5, 1.0)

    def test_a_share_of_nothing_is_nan(self):
        precision, recall = expected_quality(np.array([0.5, 0.5]), np.zeros(2, dtype=bool))
        assert math.isnan(precision)
        assert recall == 0
        precision, recall = expected_quality(np.ones(2), np.ones(2, dtype=bool))
        assert precision == 0
        assert math.isnan(recall)


class TestAsGoodAs:
    def test_the_best_is_as_good_as_itself(self):
        assert as_good_as(PANEL, "weighted")

    def test_one_that_is_clearly_worse_is_not(self):
        assert not as_good_as(PANEL, AS_THEY_ARE)

    def test_one_that_did_not_judge_is_not(self):
        assert not as_good_as(PANEL, CLEAN_ALONE)

    @pytest.mark.parametrize(("behind", "expected"), [(0.9, True), (1.1, False)])
    def test_a_standard_error_is_not_counted(self, behind, expected):
        """Of the difference row by row: what both find hard does not count."""
        rng = np.random.RandomState(0)
        hard, difference = 10 * rng.rand(50), rng.randn(50)
        difference = (difference - difference.mean()) / difference.std() / np.sqrt(50)  # its standard error is 1/50
        panel = panel_of({("weighted", LATE): hard, (AS_THEY_ARE, LATE): hard + difference + behind / 50})
        assert as_good_as(panel, AS_THEY_ARE) == expected

    def test_networks_are_compared_with_networks(self):
        """That a forest does better does not say what the noise does to a network."""
        held_out = {("weighted", LATE): [0.3, 0.4], (AS_THEY_ARE, LATE): [0.3, 0.4]}
        others = {(f"{TREES}, rows weighted by alpha", LATE): [0.0, 0.1], (NEIGHBORS, LATE): [0.1, 0.1]}
        assert as_good_as(panel_of(held_out | others), AS_THEY_ARE)

    def test_kernel_machines_are_compared_with_kernel_machines(self):
        """A kind is a kernel and a weighting; a forest with the same weighting is another matter."""
        held_out = {("a kernel, rows weighted by alpha", LATE): [0.3, 0.4], (f"a kernel, {AS_THEY_ARE}", LATE): [3, 4]}
        others = {(f"{TREES}, {AS_THEY_ARE}", LATE): [0.0, 0.1]}
        assert not as_good_as(panel_of(held_out | others), AS_THEY_ARE)
        held_out[f"another kernel, {AS_THEY_ARE}", LATE] = [0.3, 0.4]
        assert as_good_as(panel_of(held_out | others), AS_THEY_ARE)

    def test_networks_are_taken_where_their_training_was_best(self):
        held_out = {("weighted", EARLY): [0.3, 0.4], (AS_THEY_ARE, EARLY): [0.3, 0.4], (AS_THEY_ARE, LATE): [3.0, 4.0]}
        assert as_good_as(panel_of(held_out), AS_THEY_ARE)


def test_kernel_machines_get_no_advice_about_networks():
    panel = panel_of({("a kernel, weighted", LATE): [0.1, 0.2], (TREES, LATE): [0.1, 0.2]}, np.array([0.2, 0.8]))
    assert not any("another net" in line for line in advice(panel=panel))


class TestWords:
    def test_the_counts(self):
        lines = report().splitlines()
        assert lines[0] == "10 noisy rows, 3 clean rows."
        assert '  method="trained" flags 2 rows (20.0%).' in lines
        assert "  To be expected: 100% of them are wrong, 100% of all wrong rows are among them." in lines
        assert "  About 20.0% of the rows seem to be wrong." in lines

    def test_large_numbers_are_grouped(self):
        right = np.ones(12_345)
        right[0] = 0
        text = report(rightness=right, flags=right < 0.5, flag_frequency=np.zeros(12_345), n_clean=1_000)
        assert text.startswith("12,345 noisy rows, 1,000 clean rows.")

    def test_coin_tosses_lie_in_the_middle(self):
        frequency = np.array([0, 0.25, 0.26, 0.5, 0.74, 0.75, 1, 0, 0, 0])
        assert "  3 rows are coin tosses" in report(flag_frequency=frequency)

    def test_classes_come_by_their_noise(self):
        lines = report(classes=np.array(["cat", "dog", "cow"]), transition=three_classes()).splitlines()
        start = lines.index("Noise")
        assert lines[start + 2 : start + 5] == [
            "  dog: 40% wrong, most often given as cow (30%)",
            "  cow: 20% wrong, most often given as cat (15%)",
            "  cat: 10% wrong, most often given as dog (6%)",
        ]

    def test_one_rate_of_all_classes_is_told_once(self):
        text = report(classes=np.arange(3), transition=np.full((3, 3), 0.1) + 0.7 * np.eye(3))
        assert "All classes share one rate, 20%" in text
        assert "most often given as" not in text

    def test_without_flags_nothing_is_expected_of_them(self):
        assert "nan" not in report(flags=np.zeros(10, dtype=bool))

    def test_ten_classes_are_told_of(self):
        transition = np.full((12, 12), 0.01) + np.diag(np.linspace(0.8, 0.88, 12))
        text = report(classes=np.arange(100, 112), transition=transition)
        assert text.count("most often given as") == 10
        assert "  2 more classes have less." in text

    def test_where_there_are_no_labels_no_class_is_told_of(self):
        text = report(transition=None, classes=None)
        assert "About 20.0% of the rows seem to be wrong." in text
        assert "given as" not in text

    def test_a_kind_of_network_has_one_line(self):
        """With the loss where its training was best, and all of its say."""
        held_out = {("weighted", EARLY): [0.25, 0.75], ("weighted", LATE): [2, 2], (CLEAN_ALONE, LATE): [1, 3]}
        lines = report(panel=panel_of(held_out, np.array([0.5, 0.25, 0.25]))).splitlines()
        start = lines.index("Members: mean loss on held-out clean rows, weight")
        assert [line.split() for line in lines[start + 1 : start + 4]] == [
            ["weighted", "0.500", "75%"],
            [*CLEAN_ALONE.split(), "2.000", "25%"],
            [],
        ]

    def test_the_best_threshold_of_alpha(self):
        """By hand: flagging the three rows with the least alpha, of which two are wrong for sure and one by half."""
        right = np.array([0.0, 0.0, 0.5] + [1.0] * 7)
        alpha = np.array([0.1, 0.3, 0.6] + [0.9] * 7)
        text = report(rightness=right, alpha=alpha, flags=alpha < 0.5)
        assert "  threshold=0.75 has the best expected F1, and flags 3 rows." in text
        assert "threshold=" not in report()

    def test_without_folds_it_says_what_it_cannot_say(self):
        nothing = dict.fromkeys(["rightness", "flag_frequency", "transition", "panel"])
        text = report(flags=np.arange(10) < 3, rule='method="alpha"', **nothing)
        assert 'method="alpha" flags 3 rows (30.0%).' in text
        assert text.endswith("cannot be said. Fit with cv=5.")
        assert "To be expected" not in text


class TestAdvice:
    def test_flags_that_are_mostly_right(self):
        assert advice() == ["Drop the flagged rows, or correct them: to_frame() suggests what they should be."]

    def test_flags_that_are_often_wrong(self):
        right = np.array([0.4, 0.4] + [0.9] * 8)
        assert advice(rightness=right) == [
            "Many flags are wrong: have a person check rows in the order of ranked_indices()."
        ]

    def test_hardly_any_noise(self):
        right = np.full(10, 0.995)
        assert advice(rightness=right) == ["Hardly a row seems to be wrong: the set can be used as it is."]

    def test_many_coin_tosses(self):
        tossed = "Many rows are coin tosses: move some of them, checked, to the clean set and fit again."
        assert tossed in advice(flag_frequency=np.array([0.5] + [0.0] * 9))
        assert tossed not in advice(flag_frequency=np.array([0.9] + [0.0] * 9))

    @pytest.mark.parametrize(("kind", "words"), [(AS_THEY_ARE, HURTS_NOT), (CLEAN_ALONE, ADDS_LITTLE)])
    def test_networks_that_learn_as_well_in_a_simpler_way(self, kind, words):
        held_out = {("weighted", LATE): np.array([0.1, 0.2]), (kind, LATE): np.array([0.1, 0.2])}
        assert words in advice(panel=panel_of(held_out))
        held_out[kind, LATE] += 1
        assert words not in advice(panel=panel_of(held_out))

    @pytest.mark.parametrize("share", [0.45, 0.55])
    def test_networks_that_others_outdo(self, share):
        panel = panel_of({("weighted", LATE): [0.1, 0.2], (TREES, LATE): [0.1, 0.2]}, np.array([share, 1 - share]))
        assert (NETWORKS_HAVE_LITTLE in advice(panel=panel)) == (share < 0.5)


def three_classes() -> np.ndarray:
    return np.array([[0.9, 0.06, 0.04], [0.1, 0.6, 0.3], [0.15, 0.05, 0.8]])


def advice(**changes) -> list[str]:
    """Return the lines below "Next"."""
    return [line.strip() for line in report(**changes).partition("\nNext\n")[2].splitlines()]
