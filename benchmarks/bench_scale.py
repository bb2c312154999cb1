"""Time, memory and F1 from 10^3 to 10^6 rows, with one and two workers, and with one to eight shards.

Synthetic rows have 50 features and two classes that a small random network of 20 tanh units divides; MNIST's 60,000
training images stand as their first 50 principal components, with ten classes. 10 % of the labels are wrong, and 1,000
other rows are clean. Rows lie in a file and are read from there. The network is the default one; the other settings are
``max_iter=4, clean_cv=2, cv=2, clean_batch_size=256``, and ``shard_size=100_000`` where no number of shards is stated.
Every fit has a process of its own with one thread, and so has every worker. "CPU seconds" are those of all processes
together; "MB" is the largest sum of what they hold, memory that they share counted once, and "MB a worker" the largest
of one worker. The rows themselves count as far as they are held.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA
from sklearn.metrics import average_precision_score, f1_score

from _data import DataNotAvailable, load_mnist
from _run import Benchmark, Results, floor, parse, said
from sklearn_cdgd import CorruptionDetector
from sklearn_cdgd.datasets import flip_labels

SETTINGS = dict(max_iter=4, clean_cv=2, cv=2, clean_batch_size=256, shard_size=100_000)
N_FEATURES, N_CLEAN, RATE = 50, 1000, 0.1
_SHARDED_ROWS = 20_000


def configurations(options) -> list[dict]:
    if options.quick:
        return [dict(set="synthetic", rows=1000, workers=w, shards=s) for w, s in ((1, 1), (1, 2), (2, 2))]
    sizes, workers = (1000, 10_000, 100_000, 200_000, 400_000, 1_000_000), (1, 2)
    return [
        *(dict(set="synthetic", rows=n, workers=w, shards=n_shards(n)) for n, w in itertools.product(sizes, workers)),
        *(dict(set="synthetic", rows=_SHARDED_ROWS, workers=1, shards=n) for n in (1, 2, 4, 8)),
        *(dict(set="mnist", rows=60_000, workers=w, shards=n) for w, n in ((1, 1), (2, 4))),
    ]


def n_shards(n_rows: int) -> int:
    return -(-n_rows // SETTINGS["shard_size"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, nargs="+", help="only configurations with so many rows")
    parser.add_argument("--workers", type=int, nargs="+", help="only configurations with so many workers")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)


BENCHMARK = Benchmark(
    name="scale",
    about=__doc__,
    configurations=configurations,
    make_task=lambda configuration, seed, options: None,  # every fit has a process of its own
    seeds=3,
    methods=("CDGD",),
    tables={
        "Seconds / CPU seconds": ("seconds", "cpu_seconds"),
        "MB / MB a worker": ("mb", "mb_worker"),
        "F1 / average precision": ("f1", "average_precision"),
    },
    compare=(),
    arguments=add_arguments,
)


# --- in a process of its own ------------------------------------------------------------------------------------------


def fit(configuration: dict, seed: int, folder: Path) -> dict:
    """Fit to the rows in a folder, and return what was found."""
    n, n_shards = configuration["rows"], configuration["shards"]
    X = np.memmap(folder / "X", dtype=np.float32, mode="r", shape=(n, N_FEATURES))
    known = np.load(folder / "rest.npz")
    options = SETTINGS | dict(shard_size=-(-n // n_shards) if n_shards > 1 else None, n_jobs=configuration["workers"])
    start = time.perf_counter()
    detector = CorruptionDetector(random_state=seed, **options)
    detector.fit(X, known["y_noisy"], (known["X_clean"],), (known["y_clean"],))
    seconds, is_corrupted = time.perf_counter() - start, known["is_corrupted"]
    return {
        "seconds": seconds,
        "f1": f1_score(is_corrupted, detector.predict()),
        "average_precision": average_precision_score(is_corrupted, detector.loss_),
        "floor": floor(is_corrupted.mean()),
    }


def make_data(configuration: dict, seed: int, folder: Path) -> None:
    """Write the noisy rows into a file, block by block, and the rest beside them."""
    n, rng = configuration["rows"], np.random.RandomState(seed)
    rows = np.memmap(folder / "X", dtype=np.float32, mode="w+", shape=(n, N_FEATURES))
    if configuration["set"] == "mnist":
        images = load_mnist()
        pca = PCA(N_FEATURES, random_state=seed).fit(images.X.reshape(len(images.X), -1)[::10])
        rows[:] = pca.transform(images.X.reshape(len(images.X), -1))[:n]
        X_clean = pca.transform(images.X_test[:N_CLEAN].reshape(N_CLEAN, -1)).astype(np.float32)
        y, y_clean = images.y[:n], images.y_test[:N_CLEAN]
    else:
        hidden, output = rng.standard_normal((N_FEATURES, 20)) * 1.5 / N_FEATURES**0.5, rng.standard_normal(20)
        label = lambda X: (np.tanh(X @ hidden) @ output > 0).astype(int)  # noqa: E731
        blocks = [slice(first, min(first + 10_000, n)) for first in range(0, n, 10_000)]
        for block in blocks:
            rows[block] = rng.standard_normal((block.stop - block.start, N_FEATURES))
        y = np.concatenate([label(rows[block]) for block in blocks])
        X_clean = rng.standard_normal((N_CLEAN, N_FEATURES)).astype(np.float32)
        y_clean = label(X_clean)
    rows.flush()
    y_noisy, is_corrupted = flip_labels(y, RATE, random_state=seed)
    np.savez(folder / "rest.npz", y_noisy=y_noisy, is_corrupted=is_corrupted, X_clean=X_clean, y_clean=y_clean)


# --- from outside -----------------------------------------------------------------------------------------------------


class Watch(threading.Thread):
    """Looks at the memory of a process and its children until it ends (Linux only).

    Attributes
    ----------
    mb, mb_worker : float
        The most that all held together, and that one of the children held.
    """

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.pid, self.mb, self.mb_worker = pid, 0.0, 0.0

    def run(self) -> None:
        while Path(f"/proc/{self.pid}").exists():
            held = {pid: _megabytes(pid) for pid in _family(self.pid)}
            self.mb = max(self.mb, sum(held.values()))
            self.mb_worker = max(self.mb_worker, *(mb for pid, mb in held.items() if pid != self.pid), 0.0)
            time.sleep(0.5)


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *itertools.chain.from_iterable(_family(int(child)) for child in children)]


def _megabytes(pid: int) -> float:
    """Return the memory of a process; what it shares with others counts in part."""
    try:
        line = Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:", 1)[1]
    except (OSError, IndexError):
        return 0.0
    return float(line.split()[0]) / 1024


def make_run(configuration: dict, seed: int) -> dict:
    """Fit in a process of its own, and measure it."""
    run = dict(configuration=configuration, seed=seed, method="CDGD", settings=settings_of(configuration))
    with tempfile.TemporaryDirectory() as folder:
        make_data(configuration, seed, Path(folder))
        before, start = os.times(), time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, __file__, "--one", json.dumps(configuration), "--seeds", str(seed), "--folder", folder],
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            text=True,
        )
        watch = Watch(child.pid)
        watch.start()
        answer, _ = child.communicate()
        after, seconds = os.times(), time.perf_counter() - start
    if child.returncode:
        return run | dict(failed=f"exit status {child.returncode}", seconds=seconds)
    cpu = sum(getattr(after, name) - getattr(before, name) for name in ("children_user", "children_system"))
    found = json.loads(answer.splitlines()[-1])
    found |= {"cpu_seconds": cpu, "mb": watch.mb}
    if configuration["workers"] > 1:
        found["mb_worker"] = watch.mb_worker
    return run | dict(metrics={"T": found}, seconds=seconds)


def settings_of(configuration: dict) -> str:
    return json.dumps({name: value for name, value in SETTINGS.items() if name != "shard_size"})


def main(arguments: list[str] | None = None) -> int:
    options = parse(BENCHMARK, arguments)
    if options.one:
        print(json.dumps(fit(json.loads(options.one), options.seeds[0], options.folder)))
        return 0
    path = options.results / f"{BENCHMARK.name}{'.quick' * options.quick}.json"
    if options.fresh:
        path.unlink(missing_ok=True)
    results, n_failed = Results(path, BENCHMARK.describe()), 0
    chosen = {"rows": options.rows, "workers": options.workers}
    for configuration, seed in itertools.product(configurations(options), options.seeds):
        if any(wanted and configuration[name] not in wanted for name, wanted in chosen.items()):
            continue
        if seed > 0 and configuration["rows"] != _SHARDED_ROWS:  # what shards lose is noisy, time is not
            continue
        run = results.find(configuration, seed, "CDGD", settings_of(configuration))
        if run is None:
            try:
                run = make_run(configuration, seed)
            except DataNotAvailable as error:
                print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
                continue
            results.add(run)
        n_failed += "failed" in run
        print(configuration, said(run), file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(results.document(), indent=1))
    else:
        from render import as_text

        print(as_text(results.document()))
    print(f"results are in {path}", file=sys.stderr)
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
