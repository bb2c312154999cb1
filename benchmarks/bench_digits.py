"""Digits: scikit-learn's handwritten digits with wrong labels, the task of the demo, against all peers.

All rows but M are noisy, 10 % or 40 % of their labels are wrong: mirrored, y to 9 - y, or drawn uniformly. Every
method has the default network and its defaults; ours were chosen on seeds 10 and up, the tables judge seeds from 0.
"""

from __future__ import annotations

import itertools
import sys

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from _run import Benchmark, Task, main
from sklearn_cdgd.datasets import flip_labels


def configurations(options) -> list[dict]:
    if options.quick:
        return [dict(kind="mirror", rate=0.4, M=100)]
    grid = itertools.product(("mirror", "uniform"), (0.1, 0.4), (50, 100, 300))
    return [dict(kind=kind, rate=rate, M=M) for kind, rate, M in grid]


def make_task(configuration: dict, seed: int, options) -> Task:
    X, y = load_digits(return_X_y=True)
    X, X_clean, y, y_clean = train_test_split(X, y, test_size=configuration["M"], stratify=y, random_state=seed)
    if options.quick:
        X, y = X[:500], y[:500]
    y_noisy, is_corrupted = flip_labels(y, configuration["rate"], kind=configuration["kind"], random_state=seed)
    return Task((X, y_noisy), (X_clean, y_clean), is_corrupted)


BENCHMARK = Benchmark(
    name="digits",
    about=__doc__,
    configurations=configurations,
    make_task=make_task,
    seeds=3,
    figures=(dict(x="M", metrics=["precision", "recall", "f1"]),),
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
