"""What the benchmark scripts share: the command line, the loop over configurations, and the file of results.

A script describes itself by a :class:`Benchmark` and calls :func:`main`. Every finished run is written to
``benchmarks/results/NAME.json`` at once, and a run that is there with the same settings is not run again, so that a
benchmark can be stopped and started at will.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

import sklearn_cdgd
from _data import DataNotAvailable
from _peers import LABELS_ONLY, PEERS, Verdict, cdgd, default_net, two_means

RESULTS = Path(__file__).parent / "results"


class Task(NamedTuple):
    """One noisy set with the truth about it.

    Attributes
    ----------
    noisy, clean : (X, y)
    is_corrupted : bool array
        The truth.
    net_of : callable
        Makes the network of all methods, see :mod:`_peers`.
    own_net_of : callable or None
        The network of ours, where it is trained in another way than that of the rest.
    options : dict
        What CorruptionDetector gets beside its defaults.
    fdrs : tuple of float
        False discovery rates that ours is asked for.
    judge : callable(method, verdict) -> dict, or None
        Metrics of the benchmark's own, such as the accuracy after cleaning.
    """

    noisy: tuple
    clean: tuple
    is_corrupted: np.ndarray
    net_of: Callable = default_net
    own_net_of: Callable | None = None
    options: dict = {}
    fdrs: tuple[float, ...] = ()
    judge: Callable[[str, Verdict], dict] | None = None


@dataclass(frozen=True)
class Benchmark:
    """Everything that is special to one script.

    Parameters
    ----------
    name : str
        Of the file of results.
    about : str
        What is measured and how, for the head of the rendered tables.
    configurations : callable(options) -> list of dict
        The grid at its stated size, or the few that ``--quick`` runs.
    make_task : callable(configuration, seed, options) -> Task or None
        ``None`` where a seed is not run.
    seeds : int
        How many seeds by default.
    methods : tuple of str
        Names in :mod:`_peers`; ``"CDGD"`` stands for ours, both read-outs.
    tables : dict of str to tuple of str
        Title and metrics of every rendered table; the metrics share its cells.
    compare : tuple of str
        Metrics that wins and losses are counted by.
    split_by, mean_over : str or None
        Keys of the configuration: what must not be mixed when wins are counted, and what means are taken over.
    figures : tuple of dict
        What :mod:`render` is to draw.
    arguments : callable(parser), or None
        Adds options of the script's own.
    """

    name: str
    about: str
    configurations: Callable[[argparse.Namespace], list[dict]]
    make_task: Callable[[dict, int, argparse.Namespace], Task | None]
    seeds: int
    methods: tuple[str, ...] = ("CDGD", *PEERS)
    tables: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"F1 / average precision": ("f1", "average_precision")}
    )
    compare: tuple[str, ...] = ("f1", "average_precision")
    split_by: str | None = None
    mean_over: str | None = None
    figures: tuple[dict, ...] = ()
    arguments: Callable[[argparse.ArgumentParser], object] | None = None

    def describe(self) -> dict:
        """Return what the rendering needs to know."""
        rest = {name: getattr(self, name) for name in ("name", "about", "split_by", "mean_over")}
        lists = {name: list(getattr(self, name)) for name in ("compare", "figures")}
        return rest | lists | {"tables": {title: list(names) for title, names in self.tables.items()}}


# --- the numbers ------------------------------------------------------------------------------------------------------


def floor(rate: float) -> float:
    """Return the F1 of flagging everything when a share `rate` is corrupted."""
    return 2 * rate / (1 + rate)


def metrics(is_corrupted: np.ndarray, verdict: Verdict) -> dict[str, float]:
    """Return what is reported of every verdict; the positive class is corrupted."""
    precision, recall, f1, _ = precision_recall_fscore_support(
        is_corrupted, verdict.flags, average="binary", zero_division=0
    )
    _, _, f1_two_means, _ = precision_recall_fscore_support(
        is_corrupted, two_means(verdict.scores), average="binary", zero_division=0
    )
    return {
        "f1": f1,
        "precision": precision,
        "recall": recall,
        "average_precision": average_precision_score(is_corrupted, -verdict.scores),
        "f1_two_means": f1_two_means,
        "floor": floor(is_corrupted.mean()),
        "flagged": verdict.flags.mean(),
    }


def machine() -> dict:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    threads = torch.get_num_threads()
    system = f"{platform.system()} {platform.machine()}"
    return dict(processor=processor, cores=os.cpu_count(), torch_threads=threads, gpu=device, system=system)


def versions() -> dict:
    found = dict(python=platform.python_version(), sklearn_cdgd=sklearn_cdgd.__version__)
    for package in ("torch", "skorch", "scikit-learn", "numpy", "scipy", "cleanlab"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


# --- the file of results ----------------------------------------------------------------------------------------------


class Results:
    """The runs of one benchmark, in a JSON file that is rewritten after each of them.

    Every run has ``configuration, seed, method`` and the ``settings`` that it was made with; a run whose settings have
    changed since counts as not there, and is replaced. ``session`` points to the machine and the versions.
    """

    def __init__(self, path: Path, about: dict):
        self.path, self.about = Path(path), about
        document = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.runs, self.sessions = document.get("runs", []), document.get("sessions", [])
        self._session = None

    def find(self, configuration: dict, seed: int, method: str, settings: str) -> dict | None:
        """Return the run, or ``None`` if it is still to be made; one that failed is to be made again."""
        wanted = dict(configuration=configuration, seed=seed, method=method, settings=settings)
        done = (run for run in self.runs if "failed" not in run)
        return next((run for run in done if all(run[key] == value for key, value in wanted.items())), None)

    def add(self, run: dict) -> None:
        """Put a run in the place of an older one of its kind, and write the file."""
        if self._session is None:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            self.sessions.append(dict(started=now, machine=machine(), versions=versions()))
            self._session = len(self.sessions) - 1
        same = ("configuration", "seed", "method")
        self.runs = [old for old in self.runs if any(old[key] != run[key] for key in same)]
        self.runs.append(run | {"session": self._session})
        self._write()

    def document(self) -> dict:
        return self.about | {"sessions": self.sessions, "runs": self.runs}

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".part")
        fresh.write_text(json.dumps(self.document(), indent=1, default=float) + "\n")
        fresh.replace(self.path)


# --- the loop ---------------------------------------------------------------------------------------------------------


def run_all(benchmark: Benchmark, options: argparse.Namespace, results: Results) -> int:
    """Make the runs that are not there yet; return how many failed."""
    wanted = [(c, seed) for c in benchmark.configurations(options) for seed in options.seeds]
    n_failed, start = 0, time.perf_counter()
    for n, (configuration, seed) in enumerate(wanted):
        task = benchmark.make_task(configuration, seed, options)
        if task is None:
            continue
        for method in options.methods or benchmark.methods:
            if method in LABELS_ONLY and np.asarray(task.noisy[1]).dtype.kind == "f":
                continue
            settings = settings_of(method, task)
            run = results.find(configuration, seed, method, settings)
            if run is None:
                run = make_run(task, method, seed) | dict(configuration=configuration, settings=settings)
                results.add(run)
            n_failed += "failed" in run
            print(
                f"[{n + 1}/{len(wanted)} {time.perf_counter() - start:.0f} s] {label(configuration)} seed {seed} "
                f"{said(run)}",
                file=sys.stderr,
                flush=True,
            )
    return n_failed


def make_run(task: Task, method: str, seed: int) -> dict:
    """Let one method judge one task. A failure is a result too."""
    start = time.perf_counter()
    run = dict(seed=seed, method=method)
    try:
        with warnings.catch_warnings():
            # A small clean set without a row of some class is a part of the protocols.
            warnings.filterwarnings("ignore", "The clean set has no row of class", UserWarning)
            verdicts = judge(task, method, seed)
        seconds = time.perf_counter() - start
        found = {name: metrics(task.is_corrupted, verdict) for name, verdict in verdicts.items()}
        if task.judge is not None:
            found = {name: found[name] | task.judge(name, verdict) for name, verdict in verdicts.items()}
    except (ValueError, RuntimeError) as error:
        return run | dict(failed=f"{type(error).__name__}: {error}", seconds=time.perf_counter() - start)
    return run | dict(metrics=found, seconds=seconds)


def judge(task: Task, method: str, seed: int) -> dict[str, Verdict]:
    if method == "CDGD":
        net_of = task.own_net_of or task.net_of
        return cdgd(*task.noisy, *task.clean, seed=seed, net_of=net_of, fdrs=task.fdrs, **task.options)
    return {method: PEERS[method](*task.noisy, *task.clean, seed=seed, net_of=task.net_of)}


def settings_of(method: str, task: Task) -> str:
    """Return what a run depends on beside its configuration, so that new defaults are run anew.

    On which device it ran is no part of it. Changes of code are not seen: ``--fresh`` is for those.
    """
    is_ours = method == "CDGD"
    net = ((is_ours and task.own_net_of) or task.net_of)(2)
    options = {} if net is None else net.get_params()
    found = {f"net__{name}": value for name, value in options.items() if name != "device"}
    if is_ours:
        parameters = sklearn_cdgd.CorruptionDetector(**task.options).get_params()
        found |= {name: value for name, value in parameters.items() if name not in ("net", "method")}
    simple = {name: value for name, value in found.items() if value is None or isinstance(value, int | float | str)}
    return ", ".join(f"{name}={value!r}" for name, value in sorted(simple.items()))


def label(configuration: dict) -> str:
    return ", ".join(f"{name}={value}" for name, value in configuration.items())


def said(run: dict) -> str:
    if "failed" in run:
        return f"{run['method']}: {run['failed']}"
    parts = [f"{name} {m['f1']:.3f}/{m['average_precision']:.3f}" for name, m in run["metrics"].items()]
    return f"{', '.join(parts)} ({run['seconds']:.1f} s)"


# --- the command line -------------------------------------------------------------------------------------------------


def main(benchmark: Benchmark, arguments: list[str] | None = None) -> int:
    """Run a benchmark as the command line says; return the exit status."""
    options = parse(benchmark, arguments)
    name = f"{benchmark.name}.quick.json" if options.quick else f"{benchmark.name}.json"
    path = options.results / name
    if options.fresh:
        path.unlink(missing_ok=True)
    results = Results(path, benchmark.describe())
    try:
        n_failed = run_all(benchmark, options, results)
    except DataNotAvailable as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(results.document(), indent=1))
    else:
        from render import as_text

        print(as_text(results.document()))
    print(f"results are in {path}", file=sys.stderr)
    return int(n_failed > 0)


def parse(benchmark: Benchmark, arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=benchmark.about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="a few minutes, to see that it runs; its own file")
    parser.add_argument("--seeds", type=int, nargs="+", default=None, help=f"default: 0 to {benchmark.seeds - 1}")
    parser.add_argument("--methods", nargs="+", choices=benchmark.methods, help="default: all")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument(
        "--fresh", action="store_true", help="forget the results that are there; needed when code has changed"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="default: benchmarks/results")
    if benchmark.arguments is not None:
        benchmark.arguments(parser)
    options = parser.parse_args(arguments)
    if options.seeds is None:
        options.seeds = [0] if options.quick else list(range(benchmark.seeds))
    return options
