"""
How long does a default fit take?
=================================

This script times ``CorruptionDetector(random_state=0).fit(X, y, X_clean, y_clean)`` without a net, next to cleanlab on
out-of-fold predictions (ten trainings of the default network) and to a single training of the default network on the
same rows::

    python benchmarks/bench_fit.py            # everything, some hours on two cores, most of them for tfidf
    python benchmarks/bench_fit.py --quick    # half a minute; no warm-up, so it says only that all runs
    python benchmarks/bench_fit.py --against ../other    # the default fit of another checkout of this package too

Every case and number of threads has a fresh process, with ``OMP_NUM_THREADS`` set, and the other checkout another one.
The methods alternate: ours, cleanlab, plain, against, ours, and so on. The first round is the warm-up; medians are over
the others, of an even number the lower one of the middle two. What takes more than a minute is measured less often:
ours once after the warm-up, of the others the warm-up itself counts. Imports and the making of data are not timed.

Stages of our fit are exclusive times: what a stage calls that is a stage itself counts there only, so that they add up
to the whole. Those in the table are of the fit with the median time. Peak memory is the highest resident memory of the
process when it has done nothing but the imports, the data and one fit of ours.

The cases, all made with the seed 0; clean rows come on top of the noisy ones:

spheres
    1,000 noisy and 100 clean rows of two concentric spheres in 15 dimensions, 40 % of the noisy labels flipped.
digits
    scikit-learn's digits, 1,597 noisy and 200 clean rows of 64 pixels, 20 % of the labels redrawn from the other nine.
small
    300 noisy and 50 clean rows of 4 columns in three classes (``make_classification``), 20 % redrawn.
large
    10,000 noisy and 200 clean rows of 50 columns in two classes (``make_classification``, 10 informative columns), 20 %
    flipped.
embeddings
    1,000 noisy and 100 clean rows of 1,024 columns: one of ten class centres, drawn from N(0, 0.1**2), plus noise from
    N(0, 1); 20 % redrawn.
tfidf
    5,000 noisy and 200 clean documents over 20,000 words, as a sparse CSR array: some 100 words each, drawn from the
    distribution of one of two topics. A topic multiplies word frequencies of Zipf's law by exp(N(0, 0.25)), and
    ``TfidfTransformer`` weighs the counts. 20 % flipped.

Leave the machine alone meanwhile: threads wait for each other, so with two of them and one core that is busy elsewhere
everything here takes ten times as long or more.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib.util
import json
import os
import pickle
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array, csr_array
from sklearn.datasets import load_digits, make_classification
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.model_selection import train_test_split

import sklearn_cdgd
from sklearn_cdgd import CorruptionDetector
from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres

ROOT = Path(__file__).resolve().parents[1]
SEED = 0
OURS, CLEANLAB, PLAIN, AGAINST = "ours", "cleanlab", "plain", "against"
# In this order within a round.
METHODS = (OURS, CLEANLAB, PLAIN, AGAINST)
RATIOS = {
    "ours_vs_cleanlab": (OURS, CLEANLAB),
    "ours_vs_plain": (OURS, PLAIN),
    "against_vs_ours": (AGAINST, OURS),
}
# What takes longer has fewer rounds, the warm-up included.
LONG_SECONDS = 60.0
ROUNDS_OF_LONG = {OURS: 2, CLEANLAB: 1, PLAIN: 1, AGAINST: 1}

# --- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Rows to fit.

    Parameters
    ----------
    make_rows : callable(n_rows) -> (X, y)
        All rows, noisy ones first, with their right labels.
    n_noisy, n_clean : int
    rate : float
        Share of the noisy rows whose label is turned into another one.
    n_quick : int or None, default=None
        Noisy rows of ``--quick``; ``None`` if the case is no part of it.
    """

    make_rows: Callable[[int], tuple]
    n_noisy: int
    n_clean: int
    rate: float
    n_quick: int | None = None

    def data(self, quick: bool) -> tuple:
        """Return X, y, X_clean, y_clean."""
        n_noisy = self.n_quick if quick else self.n_noisy
        X, y = self.make_rows(n_noisy + self.n_clean)
        y_noisy, _ = flip_labels(y[:n_noisy], self.rate, kind="uniform", random_state=SEED)
        return X[:n_noisy], y_noisy, X[n_noisy:], y[n_noisy:]


def spheres(n_rows: int) -> tuple:
    return make_concentric_spheres(n_rows, 15, random_state=SEED)


def digits(n_rows: int) -> tuple:
    X, y = load_digits(return_X_y=True)
    if n_rows == len(X):
        order = np.random.RandomState(SEED).permutation(n_rows)
        return X[order], y[order]
    X, _, y, _ = train_test_split(X, y, train_size=n_rows, stratify=y, random_state=SEED)
    return X, y


def small(n_rows: int) -> tuple:
    return make_classification(
        n_rows, 4, n_informative=4, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=SEED
    )


def large(n_rows: int) -> tuple:
    return make_classification(n_rows, 50, n_informative=10, n_redundant=5, random_state=SEED)


def embeddings(n_rows: int) -> tuple:
    rng = np.random.RandomState(SEED)
    centers = 0.1 * rng.standard_normal((10, 1024))
    y = rng.randint(10, size=n_rows)
    X = centers[y] + rng.standard_normal((n_rows, 1024))
    return X.astype(np.float32), y


def tfidf(n_rows: int) -> tuple:
    rng, n_words = np.random.RandomState(SEED), 20_000
    frequencies = np.exp(0.5 * rng.standard_normal((2, n_words))) / np.arange(1, n_words + 1)
    y, lengths = rng.randint(2, size=n_rows), rng.poisson(100, n_rows)
    # Trees of scikit-learn take sparse rows with indices of 32 bits only, which its vectorizers make.
    documents = np.repeat(np.arange(n_rows, dtype=np.int32), lengths)
    topics = y[documents]
    words = np.empty(len(documents), dtype=np.int32)
    for topic in range(2):
        own = topics == topic
        words[own] = rng.choice(n_words, own.sum(), p=frequencies[topic] / frequencies[topic].sum())
    counts = coo_array((np.ones(len(words)), (documents, words)), shape=(n_rows, n_words)).tocsr()
    return csr_array(TfidfTransformer().fit_transform(counts)), y


CASES = {
    "spheres": Case(spheres, 1_000, 100, 0.4, n_quick=200),
    "digits": Case(digits, 1_597, 200, 0.2),
    "small": Case(small, 300, 50, 0.2, n_quick=120),
    "large": Case(large, 10_000, 200, 0.2),
    "embeddings": Case(embeddings, 1_000, 100, 0.2),
    "tfidf": Case(tfidf, 5_000, 200, 0.2),
}
QUICK_CASES = [name for name, case in CASES.items() if case.n_quick]

# --- methods ----------------------------------------------------------------------------------------------------------


def fit_default(X, y, X_clean, y_clean) -> None:
    CorruptionDetector(random_state=SEED).fit(X, y, X_clean, y_clean)


def train_once(X, y, X_clean, y_clean) -> None:
    """Train the default network on the rows of both sets."""
    import _peers

    rows = _peers._Rows(X, y, X_clean, y_clean)
    rows.trained(np.arange(len(rows.targets)), _peers.default_net, SEED)


def method_of(name: str) -> Callable:
    """Return a function of X, y, X_clean, y_clean, with its imports done."""
    if name in (OURS, AGAINST):
        return fit_default
    # Late, as the peers take this checkout of the package, not any that it is compared with, and so that they are not
    # in the memory of a fit of ours.
    import _peers

    if name == PLAIN:
        return train_once
    import cleanlab.filter
    import cleanlab.rank  # noqa: F401

    return functools.partial(_peers.confident_learning, seed=SEED)


# --- where the time goes ----------------------------------------------------------------------------------------------

FEATURES, MACHINES, FORESTS, STACKING = "features", "kernel machines", "forests", "stacking"
ALPHA, NETWORK, REST = "alpha", "network", "rest"
STAGES = (FEATURES, MACHINES, FORESTS, STACKING, ALPHA, NETWORK, REST)


class StageClock:
    """Exclusive times of stages: the clock of a stage stands still while another one runs within it."""

    def start(self) -> None:
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._running = [REST]
        self._since = time.perf_counter()

    def stop(self) -> dict[str, float]:
        """Return the seconds of every stage since `start`."""
        self._book()
        return self._seconds

    def wrap(self, stage: str, function: Callable) -> Callable:
        """Return a function that does the same and counts as `stage`."""

        @functools.wraps(function)
        def timed(*args, **kwargs):
            self._book()
            self._running.append(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self._book()
                self._running.pop()

        return timed

    def _book(self) -> None:
        now = time.perf_counter()
        self._seconds[self._running[-1]] += now - self._since
        self._since = now

    def watch_fits(self) -> None:
        """Have every fit in this process timed by stage."""
        # The checkout that ours is compared with has other modules; this is for ours only.
        from sklearn_cdgd import _closed_form_learning, _kernel_machines, _task

        places = [
            (FEATURES, _kernel_machines.KernelRows, "__init__"),
            (MACHINES, _kernel_machines.KernelRows, "cross_fit"),
            (FORESTS, _closed_form_learning, "grow_forests"),
            (STACKING, _task.Task, "fit_stacking"),
            (ALPHA, _closed_form_learning.ClosedFormLearner, "learn"),
            (NETWORK, _closed_form_learning, "with_network"),
        ]
        for stage, owner, name in places:
            setattr(owner, name, self.wrap(stage, getattr(owner, name)))


# --- a process for each case ------------------------------------------------------------------------------------------


def peak_bytes() -> int:
    """Return the highest resident memory of this process so far.

    Linux hands the mark of the parent on to a new process. The parent here has done the imports and made the data, as
    every child does, and nothing beyond, so its mark hides no fit.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def work(folder: Path) -> None:
    """Read the data of a case from standard input, then names of methods, and answer each with a line of JSON."""
    # What anybody prints must not get between the answers.
    answers = sys.stdout
    sys.stdout = sys.stderr
    data = pickle.load(sys.stdin.buffer)
    if not Path(sklearn_cdgd.__file__).resolve().is_relative_to(folder):
        raise ImportError(f"sklearn_cdgd of {folder} was wanted, and another one is imported first.")
    print(json.dumps(dict(bytes_before=peak_bytes())), file=answers, flush=True)
    runs = {}
    clock = StageClock()
    for line in sys.stdin.buffer:
        method = line.decode().strip()
        if method not in runs:
            runs[method] = method_of(method)
            if method == OURS:
                clock.watch_fits()
        print(json.dumps(measure(runs[method], data, clock)), file=answers, flush=True)


def measure(run: Callable, data: tuple, clock: StageClock) -> dict:
    """Run a method once; a failure is a result too."""
    X, y, X_clean, y_clean = data
    gc.collect()
    clock.start()
    start = time.perf_counter()
    try:
        run(X, y, X_clean, y_clean)
    except (ValueError, RuntimeError, MemoryError) as error:
        return dict(failed=f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - start
    return dict(seconds=seconds, stages=clock.stop(), peak_bytes=peak_bytes())


class Child:
    """A process that holds the data of one case, and times methods on them.

    Parameters
    ----------
    folder : Path
        Checkout whose package is imported.
    n_threads : int
    data : bytes
        The case, pickled.
    """

    def __init__(self, folder: Path, n_threads: int, data: bytes):
        # Libraries have variables of their own for the number of threads, which would go first.
        env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
        path = os.pathsep.join(filter(None, [str(folder), env.get("PYTHONPATH")]))
        env |= {"OMP_NUM_THREADS": str(n_threads), "PYTHONPATH": path}
        command = [sys.executable, __file__, "--worker", str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self._send(data)

    def read(self) -> dict:
        """Wait for an answer."""
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        return dict(failed=f"the process ended, exit status {self._process.wait()}")

    def measure(self, method: str) -> dict:
        self._send(f"{method}\n".encode())
        return self.read()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _send(self, message: bytes) -> None:
        # Of a process that has died `read` tells.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(message)
            self._process.stdin.flush()


# --- all measurements -------------------------------------------------------------------------------------------------


def run_case(name: str, n_threads: int, options: argparse.Namespace) -> dict:
    """Measure all methods on one case, one after the other, again and again."""
    data = CASES[name].data(options.quick)
    pickled = pickle.dumps(data, protocol=pickle.HIGHEST_PROTOCOL)
    answers = {method: [] for method in METHODS}
    reasons = {method: why_not(method, options.against) for method in METHODS}
    wanted = [method for method, reason in reasons.items() if reason is None]
    with contextlib.ExitStack() as stack:
        children = {}
        for folder in {folder_of(method, options.against) for method in wanted}:
            children[folder] = stack.enter_context(contextlib.closing(Child(folder, n_threads, pickled)))
        # All imports are done before anything is timed.
        ready = {folder: child.read() for folder, child in children.items()}
        for _ in range(options.repeats + (not options.quick)):
            for method in wanted:
                if reasons[method] is None and not is_done(method, answers[method]):
                    answer = children[folder_of(method, options.against)].measure(method)
                    reasons[method] = answer.get("failed")
                    progress(name, n_threads, method, reasons[method] or f"{answer['seconds']:.2f} s")
                    answers[method].append(answer)
    found = {method: summarize(answers[method], reasons[method]) for method in METHODS}
    return row_of(name, n_threads, data, found, ready[ROOT].get("bytes_before"))


def folder_of(method: str, against: Path | None) -> Path:
    """Return the checkout that a method is run in."""
    return against if method == AGAINST else ROOT


def why_not(method: str, against: Path | None) -> str | None:
    """Say why a method is not measured; ``None`` if it is."""
    if method == AGAINST and against is None:
        return "not asked for"
    if method == CLEANLAB and importlib.util.find_spec("cleanlab") is None:
        return "not installed"
    return None


def is_done(method: str, answers: list[dict]) -> bool:
    """Return whether a method that takes long has been measured often enough."""
    return len(answers) >= ROUNDS_OF_LONG[method] and answers[0]["seconds"] > LONG_SECONDS


def summarize(answers: list[dict], reason: str | None) -> dict:
    """Return median, single times, stages and peak memory of one method, or why there are none."""
    if reason is not None:
        return dict(seconds=None, not_measured=reason)
    # Where nothing follows the warm-up it is the measurement.
    counted = answers[1:] or answers
    seconds = [answer["seconds"] for answer in counted]
    # The lower median is the time of one run, whose stages add up to it.
    median = statistics.median_low(seconds)
    return dict(
        seconds=median,
        all_seconds=seconds,
        warm_up_seconds=answers[0]["seconds"] if answers[1:] else None,
        stages=counted[seconds.index(median)]["stages"],
        # The mark only rises, so it is that of a method if this is the first one in its process.
        peak_bytes=answers[0]["peak_bytes"],
    )


def row_of(name: str, n_threads: int, data: tuple, found: dict[str, dict], bytes_before: int | None) -> dict:
    X, y, X_clean, _ = data
    stages = {method: result.pop("stages", None) for method, result in found.items()}
    peaks = {method: result.pop("peak_bytes", None) for method, result in found.items()}
    seconds = {method: result["seconds"] for method, result in found.items()}
    return dict(
        case=name,
        n_noisy=X.shape[0],
        n_clean=X_clean.shape[0],
        n_columns=X.shape[1],
        n_classes=len(np.unique(y)),
        threads=n_threads,
        seconds=seconds,
        ratios={ratio: divide(seconds[one], seconds[other]) for ratio, (one, other) in RATIOS.items()},
        bytes_before=bytes_before,
        peak_bytes={method: peaks[method] for method in (OURS, AGAINST)},
        stages=stages[OURS],
        methods=found,
    )


def divide(seconds: float | None, others: float | None) -> float | None:
    return None if seconds is None or others is None else seconds / others


def progress(name: str, n_threads: int, method: str, what: str) -> None:
    print(f"{name:<11} {n_threads} threads  {method:<9} {what}", file=sys.stderr, flush=True)


def failed(row: dict) -> bool:
    """Return whether a method that was to be measured was not."""
    reasons = {method: result.get("not_measured") for method, result in row["methods"].items()}
    return any(reason not in (None, "not installed", "not asked for") for reason in reasons.values())


# --- what it says -----------------------------------------------------------------------------------------------------

DEFINITIONS = {
    "seconds": f"median over the repeats; ours: CorruptionDetector(random_state={SEED}).fit; cleanlab: out-of-fold "
    "predictions of ten default networks and find_label_issues; plain: one training of the default network on the same "
    "rows; against: the default fit of the other checkout",
    "ours_vs_cleanlab": "seconds of ours / seconds of cleanlab",
    "ours_vs_plain": "seconds of ours / seconds of plain",
    "against_vs_ours": "seconds of against / seconds of ours",
    "peak_bytes": "highest resident memory of a process after imports, data and one default fit",
    "bytes_before": "highest resident memory of our process after imports and data",
    "stages": "exclusive seconds of the stages of the fit of ours that took the median time; rest: checks, result",
}


def document(rows: list[dict], options: argparse.Namespace) -> dict:
    # Imported late, as the peers in `method_of`.
    import _run

    return dict(
        machine=_run.machine(),
        versions=_run.versions(),
        commits={OURS: commit(ROOT), AGAINST: options.against and commit(options.against)},
        seed=SEED,
        quick=options.quick,
        repeats=options.repeats,
        definitions=DEFINITIONS,
        measurements=rows,
    )


def commit(folder: Path) -> str | None:
    """Name the commit of a checkout, ``None`` if it is none."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def table(about: dict) -> str:
    """Render the measurements for people."""
    rows = about["measurements"]
    head = f"{'case':<11} {'rows':>6} {'threads':>7}"
    timed = head + "".join(f" {name:>9}" for name in METHODS) + "  ours/cleanlab  ours/plain  against/ours  peak MB"
    lines = ["Seconds", "", timed, "-" * len(timed)]
    for row in rows:
        seconds = "".join(f" {number(row['seconds'][method], '.2f'):>9}" for method in METHODS)
        to_cleanlab, to_plain, of_against = (number(row["ratios"][name], ".2f") for name in RATIOS)
        peak = number(row["peak_bytes"][OURS] and row["peak_bytes"][OURS] / 1e6, ".0f")
        lines.append(f"{start_of(row)}{seconds}  {to_cleanlab:>13}  {to_plain:>10}  {of_against:>12}  {peak:>7}")
    staged = head + "".join(f"  {stage:>{max(len(stage), 6)}}" for stage in STAGES) + f"  {'sum':>6}"
    lines += ["", "Seconds of ours by stage", "", staged, "-" * len(staged)]
    for row in rows:
        stages = row["stages"] or dict.fromkeys(STAGES)
        cells = "".join(f"  {number(stages[stage], '.2f'):>{max(len(stage), 6)}}" for stage in STAGES)
        whole = number(row["stages"] and sum(row["stages"].values()), ".2f")
        lines.append(f"{start_of(row)}{cells}  {whole:>6}")
    for row in rows:
        for method, result in row["methods"].items():
            if result.get("not_measured") not in (None, "not asked for"):
                lines += ["", f"{row['case']}, {row['threads']} threads, {method}: {result['not_measured']}"]
    facts = about["machine"] | about["versions"]
    lines += ["", " | ".join(f"{name} {value}" for name, value in facts.items() if value)]
    of_ours, of_against = about["commits"][OURS], about["commits"][AGAINST]
    lines.append(f"repeats: {about['repeats']} | commit {of_ours}" + (f" | against {of_against}" if of_against else ""))
    return "\n".join(lines)


def start_of(row: dict) -> str:
    return f"{row['case']:<11} {row['n_noisy']:>6} {row['threads']:>7}"


def number(x: float | None, spec: str) -> str:
    return "-" if x is None else format(x, spec)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{' and '.join(QUICK_CASES)}, with fewer rows: one round, no warm-up, one thread",
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, help="default: all")
    parser.add_argument("--threads", nargs="+", type=int, metavar="N", help="default: 1 2")
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds after the warm-up (default 5)")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout of this package")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead of tables")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON document there too")
    parser.add_argument("--worker", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.cases = options.cases or (QUICK_CASES if options.quick else list(CASES))
    options.threads = options.threads or ([1] if options.quick else [1, 2])
    if options.repeats is None:
        options.repeats = 1 if options.quick else 5
    if min(options.threads) < 1 or options.repeats < 1:
        parser.error("--threads and --repeats must be at least 1")
    if options.quick and not set(options.cases) <= set(QUICK_CASES):
        parser.error(f"--quick has the cases {', '.join(QUICK_CASES)} only")
    if options.against is not None:
        options.against = options.against.resolve()
        if not (options.against / "sklearn_cdgd").is_dir():
            parser.error("--against must name a checkout of this package; there is no folder sklearn_cdgd in it")
    return options


def main() -> int:
    options = parse()
    if options.worker:
        work(options.worker)
        return 0
    rows = [run_case(name, n_threads, options) for name in options.cases for n_threads in options.threads]
    about = document(rows, options)
    as_json = json.dumps(about, indent=2)
    print(as_json if options.json else table(about))
    if options.output is not None:
        options.output.write_text(as_json + "\n")
        print(f"wrote {options.output}", file=sys.stderr)
    return int(any(failed(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
