"""P4: wrong labels and targets in tables, after the protocol of OpenDataVal.

1,000 noisy rows (fewer where a set is smaller) and 100 more to verify them by, 5 to 20 % of the labels replaced by
another class drawn uniformly, of the targets by those of other rows. With validation=clean the 100 rows are right; with
validation=dirty they have the same share of errors, as in OpenDataVal, so the two must not be mixed. F1 is given by the
method's own rule and by 2-means on its scores. Every method has the default network and its defaults; ours were chosen
on concentric spheres, digits and these sets with seeds 10 and up, the tables judge seeds from 0: other draws of rows,
which for diabetes are the same 442 rows in another order. Film reviews are the first 100 latent dimensions of their
word counts. Categories are 0/1 columns.
"""

from __future__ import annotations

import functools
import itertools
import sys

import numpy as np

from _data import TABLES
from _run import Benchmark, Task, main
from sklearn_cdgd.datasets import corrupt_targets, flip_labels

N_CLEAN = 100
load = functools.cache(lambda name: TABLES[name]())


def configurations(options) -> list[dict]:
    if options.quick:
        return [dict(set=name, rate=0.2, validation="clean") for name in ("phoneme", "diabetes")]
    grid = itertools.product(("clean", "dirty"), options.sets, (0.05, 0.1, 0.15, 0.2))
    return [dict(set=name, rate=rate, validation=validation) for validation, name, rate in grid]


def make_task(configuration: dict, seed: int, options) -> Task:
    table, rate = load(configuration["set"]), configuration["rate"]
    rng = np.random.RandomState(seed)
    rows = rng.permutation(len(table.X))[: (300 if options.quick else 1000) + N_CLEAN]
    X, y = table.X[rows], table.y[rows]
    plant = corrupt_targets if table.is_regression else functools.partial(flip_labels, kind="uniform")
    y_noisy, is_corrupted = plant(y[N_CLEAN:], rate, random_state=rng)
    y_clean = plant(y[:N_CLEAN], rate, random_state=rng)[0] if configuration["validation"] == "dirty" else y[:N_CLEAN]
    return Task((X[N_CLEAN:], y_noisy), (X[:N_CLEAN], y_clean), is_corrupted)


def arguments(parser) -> None:
    parser.add_argument("--sets", nargs="+", choices=TABLES, default=list(TABLES), help="default: all")


BENCHMARK = Benchmark(
    name="tabular",
    about=__doc__,
    configurations=configurations,
    make_task=make_task,
    seeds=3,
    tables={
        "F1 / average precision": ("f1", "average_precision"),
        "F1 by 2-means on the scores": ("f1_two_means",),
    },
    compare=("f1", "f1_two_means", "average_precision"),
    split_by="validation",
    mean_over="set",
    arguments=arguments,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
