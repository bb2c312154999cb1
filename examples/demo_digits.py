"""
Find wrong labels of handwritten digits
=======================================

Of scikit-learn's 1,797 handwritten digits, 200 were checked by hand: the clean set. Of the other 1,597, two in five
carry the label of the mirrored class (0 for 9, 1 for 8, ...). Which ones? ``make demo`` runs this script; it prints a
table and writes ``suspicious_digits.png``, the 25 digits that a person should look at first.
"""

from __future__ import annotations

import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score, precision_recall_fscore_support
from sklearn.model_selection import train_test_split

from sklearn_cdgd import CleanSetDetector, CorruptionDetector, NoisySetDetector
from sklearn_cdgd.datasets import flip_labels

SEED = 0


def table_row(name, is_corrupted, flags, suspicion, seconds):
    precision, recall, f1, _ = precision_recall_fscore_support(is_corrupted, flags, average="binary", zero_division=0)
    ranking = average_precision_score(is_corrupted, suspicion)
    return f"{name:<26}{precision:>10.3f}{recall:>8.3f}{f1:>8.3f}{ranking:>10.3f}{seconds:>10.1f}"


def main():
    X, y = load_digits(return_X_y=True)
    X, X_clean, y, y_clean = train_test_split(X, y, test_size=200, stratify=y, random_state=SEED)
    y_noisy, is_corrupted = flip_labels(y, 0.4, kind="mirror", random_state=SEED)

    print(f"{len(X)} noisy rows, {is_corrupted.mean():.0%} of them with a wrong label; {len(X_clean)} clean rows\n")
    print(f"{'':<26}{'precision':>10}{'recall':>8}{'F1':>8}{'avg.prec.':>10}{'seconds':>10}")
    start = time.perf_counter()
    detector = CorruptionDetector(random_state=SEED).fit(X, y_noisy, X_clean, y_clean)
    seconds = time.perf_counter() - start
    print(table_row("CDGD_T (default)", is_corrupted, detector.predict(), detector.loss_, seconds))
    by_alpha = detector.set_params(method="alpha").predict()
    print(table_row("CDGD_alpha (same fit)", is_corrupted, by_alpha, -detector.alpha_, seconds))
    for name, baseline in [("S_n, noisy set alone", NoisySetDetector), ("S_c, clean set alone", CleanSetDetector)]:
        start = time.perf_counter()
        other = baseline(random_state=SEED).fit(X, y_noisy, X_clean, y_clean)
        print(table_row(name, is_corrupted, other.predict(), other.loss_, time.perf_counter() - start))
    everything = np.ones_like(is_corrupted)
    print(table_row("flag everything", is_corrupted, everything, everything, 0.0))

    detector.set_params(method="trained")
    draw_review_sheet(X, detector, "suspicious_digits.png")
    print("\nThe 25 most suspicious digits: suspicious_digits.png")


def draw_review_sheet(X, detector, path):
    frame = detector.to_frame()
    figure, axes = plt.subplots(5, 5, figsize=(7, 8), layout="constrained")
    for ax, row in zip(axes.flat, detector.ranked_indices(), strict=False):
        ax.imshow(X[row].reshape(8, 8), cmap="gray_r")
        given, suggested = frame["given_label"].iloc[row], frame["suggested_label"].iloc[row]
        ax.set_title(f"given {given}, rather {suggested}", fontsize=9)
        ax.set_axis_off()
    figure.suptitle("The 25 most suspicious digits")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
