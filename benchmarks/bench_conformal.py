"""Flags with a guarantee: is the share of right rows among the flagged ones what was asked for?

100 repeats with fresh rows. ``method="conformal"`` is asked for a false discovery rate of 5, 10 and 20 %; "false
discovery proportion" is the share of right rows among the flagged, 0 if nothing is flagged, and "power" the share of
all wrong rows that are flagged. T and cleanlab, which promise nothing, stand beside it. Spheres: 15 dimensions, 500
noisy rows with 20 % of the labels flipped, 200 clean rows. Phoneme: a table whose classes overlap, 500 noisy rows with
20 % of the labels flipped, 200 clean rows. The network and all settings are the defaults.
"""

from __future__ import annotations

import functools
import sys

import numpy as np

from _data import TABLES
from _run import Benchmark, Task, main
from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres

N_CLEAN = 200
load = functools.cache(lambda name: TABLES[name]())


def configurations(options) -> list[dict]:
    names = ("spheres",) if options.quick else ("spheres", "phoneme")
    return [dict(set=name, N=500, rate=0.2, M=N_CLEAN) for name in names]


def make_task(configuration: dict, seed: int, options) -> Task:
    n = configuration["N"] + N_CLEAN
    if configuration["set"] == "spheres":
        X, y = make_concentric_spheres(n, 15, random_state=seed)
    else:
        table = load(configuration["set"])
        rows = np.random.RandomState(seed).permutation(len(table.X))[:n]
        X, y = table.X[rows], table.y[rows]
    y_noisy, is_corrupted = flip_labels(y[N_CLEAN:], configuration["rate"], random_state=seed)
    return Task(
        (X[N_CLEAN:], y_noisy),
        (X[:N_CLEAN], y[:N_CLEAN]),
        is_corrupted,
        fdrs=(0.05, 0.1, 0.2),
        judge=functools.partial(discoveries, is_corrupted),
    )


def discoveries(is_corrupted: np.ndarray, method: str, verdict) -> dict:
    wrongly = ~is_corrupted[verdict.flags]
    return {
        "false_discovery_proportion": float(wrongly.mean()) if len(wrongly) else 0.0,
        "power": float(verdict.flags[is_corrupted].mean()),
    }


BENCHMARK = Benchmark(
    name="conformal",
    about=__doc__,
    configurations=configurations,
    make_task=make_task,
    seeds=100,
    methods=("CDGD", "cleanlab"),
    tables={"False discovery proportion / power": ("false_discovery_proportion", "power")},
    compare=(),
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
