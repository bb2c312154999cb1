"""
What does a hypergradient cost, next to plain training?
=======================================================

One outer step is one inner training plus the derivative of the mean clean loss, taken after every inner step, by alpha.
This script measures it for the engines of this package and for other ways to the same gradient, against plain training
of the same length by ``torch.optim.SGD``::

    python benchmarks/bench_hypergradient.py            # everything, tens of minutes on two cores
    python benchmarks/bench_hypergradient.py --quick    # under a minute

Every measurement has a process of its own, so that none inherits the memory, the caches or the threads of another. The
engines alternate, and a ratio is the median over rounds of the ratio within one round, so that a machine that slows
down for a while slows both sides of it. TorchOpt and higher are optional: ``pip install torchopt higher``.

Leave the machine alone meanwhile: torch's threads wait for each other, and a busy core makes a step many times slower.
With ``OMP_NUM_THREADS=1`` in the environment a second program does less harm; the output says how many threads ran.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import functools
import gc
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import sklearn_cdgd
from sklearn_cdgd._hypergradient import hypergradient
from sklearn_cdgd._optimizers import SGD
from sklearn_cdgd._recording import Recording
from sklearn_cdgd._unroll import BatchPlan, Problem
from sklearn_cdgd.datasets import flip_labels, make_concentric_spheres

RESULTS = Path(__file__).parent / "results" / "hypergradient.json"
SEED = 0
WARM_UP_STEPS = 5
# Engines that hold the whole graph are left out where it would take more than this many bytes.
LARGEST_GRAPH = 8e9


# --- tasks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A network, its data and the inner training, for every engine the same.

    Parameters
    ----------
    make_module : callable() -> Module
        The network; draws its initial values from torch's global generator.
    make_data : callable() -> (X, y, X_clean, y_clean)
    criterion : callable(outputs, y, reduction=...) -> Tensor
    batch_size : int
        -1 for full batch.
    graph_bytes : float
        About what the graph of one inner step and its clean loss takes.
    steps : tuple of int
        Numbers of inner steps to measure.
    time_limit : float, default=60
        Engines that would need more seconds for one measurement are left out.
    lr : float, default=0.1
    dtype : torch.dtype, default=torch.float32
    """

    make_module: Callable[[], nn.Module]
    make_data: Callable[[], tuple[Tensor, Tensor, Tensor, Tensor]]
    criterion: Callable[..., Tensor]
    batch_size: int
    graph_bytes: float
    steps: tuple[int, ...]
    time_limit: float = 60.0
    lr: float = 0.1
    dtype: torch.dtype = torch.float32

    def module(self, seed: int = SEED) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make_module().to(self.dtype)

    @functools.cached_property
    def data(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # Rounded to float32 first: the float64 reference solves the very same problem.
        return tuple(t.float().to(self.dtype) if t.is_floating_point() else t for t in self.make_data())

    @property
    def clean(self) -> tuple[Tensor, Tensor]:
        return self.data[2:]

    @functools.cached_property
    def alpha(self) -> Tensor:
        """Weights that differ from row to row, so that an engine that mixes up rows is found out."""
        generator = torch.Generator().manual_seed(SEED + 1)
        return (0.5 + 0.5 * torch.rand(len(self.data[0]), generator=generator)).to(self.dtype)

    def plan(self, n_steps: int) -> BatchPlan:
        n_rows = len(self.data[0])
        batch_size = self.batch_size if 0 < self.batch_size < n_rows else n_rows
        if batch_size < n_rows:
            n_rows = min(n_rows, n_steps * batch_size)  # less than an epoch sees the first rows only
        n_epochs, rest = divmod(n_steps * batch_size, n_rows)
        if rest:
            raise ValueError(f"{n_steps} steps of {batch_size} rows are no whole number of epochs.")
        return BatchPlan(n_rows, batch_size, n_epochs, SEED)

    @functools.cached_property
    def problem(self) -> Problem:
        """The task as the engine of this package takes it."""
        module = self.module()
        names = [name for name, _ in module.named_parameters()]
        X, y, X_clean, y_clean = self.data

        def losses(params, buffers, X, y):
            outputs = functional_call(module, dict(zip(names, params, strict=True)), (X,))
            return self.criterion(outputs, y, reduction="none")

        return Problem(
            lambda seed: (tuple(p.detach() for p in self.module(seed).parameters()), ()),
            lambda params, buffers, X, y: (losses(params, buffers, X, y), buffers),
            losses,
            SGD(self.lr),
            lambda rows: select(rows, X, y),
            lambda rows: select(rows, X_clean, y_clean),
        )

    def recording(self, n_steps: int, compile: bool) -> Recording:
        """Return the recorded operations of the problem; recorded, and compiled, in the warm-up."""
        if compile not in self._recordings:
            self._recordings[compile] = Recording(self.problem, self.plan(n_steps), self.alpha, compile=compile)
        return self._recordings[compile]

    @functools.cached_property
    def _recordings(self) -> dict[bool, Recording]:
        return {}


def select(rows: Tensor | None, *arrays: Tensor) -> tuple[Tensor, ...]:
    return arrays if rows is None else tuple(array[rows] for array in arrays)


def spheres(n_features: int, **options) -> Task:
    """The first experiment of arXiv 1905.05843, with a tenth of the labels flipped."""

    def make_data():
        X, y = make_concentric_spheres(1100, n_features, random_state=SEED)
        y_noisy, _ = flip_labels(y[:1000], 0.1, random_state=SEED)
        return tuple(torch.tensor(a, dtype=torch.float64) for a in (X[:1000], y_noisy, X[1000:], y[1000:]))

    def make_module():
        return nn.Sequential(nn.Linear(n_features, 1000), nn.ReLU(), nn.Linear(1000, 1), nn.Flatten(0))

    return Task(make_module, make_data, binary_cross_entropy_with_logits, -1, **options)


def random_classes(n_noisy: int, n_clean: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return random rows of ten classes: what is learnt does not matter for what it costs."""
    generator = torch.Generator().manual_seed(SEED)
    X = torch.randn(n_noisy + n_clean, *shape, generator=generator)
    y = torch.randint(10, (len(X),), generator=generator)
    return X[:n_noisy], y[:n_noisy], X[n_noisy:], y[n_noisy:]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))


def six_convolutions() -> nn.Module:
    """The network of the second experiment of arXiv 1905.05843, without its dropout."""
    channels = (3, 48, 64, 96, 128, 168, 10)
    options = [(5, 2, 1), (3, 2, 1), (3, 1, 0), (3, 2, 1), (3, 1, 0), (3, 2, 1)]  # size, stride, padding
    layers = []
    for n_in, n_out, option in zip(channels[:-1], channels[1:], options, strict=True):
        layers += [nn.Conv2d(n_in, n_out, *option), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())


TASKS = {
    "spheres-15": spheres(15, graph_bytes=6.5e6, steps=(50, 200, 600, 2000), time_limit=math.inf),
    "spheres-80": spheres(80, graph_bytes=6.5e6, steps=(50, 200)),
    "mnist-mlp": Task(mlp, lambda: random_classes(5000, 500, (784,)), cross_entropy, 100, 1.5e6, (50, 200)),
    "cifar-conv": Task(
        six_convolutions, lambda: random_classes(800, 200, (3, 32, 32)), cross_entropy, 80, 36e6, (50, 200)
    ),
}


# --- engines ----------------------------------------------------------------------------------------------------------


def plain(task: Task, n_steps: int) -> None:
    """Train, and take no hypergradient: the yardstick."""
    (X, y, *_), plan, model = task.data, task.plan(n_steps), task.module()
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)
    for step in range(n_steps):
        X_batch, y_batch = select(plan.rows(step), X, y)
        optimizer.zero_grad()
        task.criterion(model(X_batch), y_batch).backward()
        optimizer.step()


def ours_graph(task: Task, n_steps: int, memory_budget: float) -> Tensor:
    return hypergradient(task.problem, task.alpha, task.plan(n_steps), memory_budget=memory_budget).grad


def ours(task: Task, n_steps: int, memory_budget: float, compile: bool) -> Tensor:
    """The default of the detectors."""
    plan, recording = task.plan(n_steps), task.recording(n_steps, compile)
    return hypergradient(task.problem, task.alpha, plan, recording=recording, memory_budget=memory_budget).grad


def batches(task: Task, n_steps: int, alpha: Tensor) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Yield the rows, the labels and the weights of every inner step."""
    plan = task.plan(n_steps)
    for step in range(n_steps):
        yield select(plan.rows(step), *task.data[:2], alpha)


def autograd(task: Task, n_steps: int) -> Tensor:
    """Unroll the training as one writes it down, and send one backward pass through all of it."""
    model, alpha = task.module(), task.alpha.clone().requires_grad_()
    params, objective = dict(model.named_parameters()), 0.0
    X_clean, y_clean = task.clean
    for X, y, weights in batches(task, n_steps, alpha):
        losses = task.criterion(functional_call(model, params, (X,)), y, reduction="none")
        grads = torch.autograd.grad((weights * losses).mean(), params.values(), create_graph=True)
        params = {name: p - task.lr * g for (name, p), g in zip(params.items(), grads, strict=True)}
        objective = objective + task.criterion(functional_call(model, params, (X_clean,)), y_clean)
    return torch.autograd.grad(objective / n_steps, alpha)[0]


def torchopt_sgd(task: Task, n_steps: int) -> Tensor:
    import torchopt

    model, alpha = task.module(), task.alpha.clone().requires_grad_()
    optimizer, objective = torchopt.MetaSGD(model, lr=task.lr), 0.0
    X_clean, y_clean = task.clean
    for X, y, weights in batches(task, n_steps, alpha):
        optimizer.step((weights * task.criterion(model(X), y, reduction="none")).mean())
        objective = objective + task.criterion(model(X_clean), y_clean)
    return torch.autograd.grad(objective / n_steps, alpha)[0]


def higher_sgd(task: Task, n_steps: int) -> Tensor:
    import higher

    module, alpha, objective = task.module(), task.alpha.clone().requires_grad_(), 0.0
    X_clean, y_clean = task.clean
    with higher.innerloop_ctx(module, torch.optim.SGD(module.parameters(), lr=task.lr)) as (model, optimizer):
        for X, y, weights in batches(task, n_steps, alpha):
            optimizer.step((weights * task.criterion(model(X), y, reduction="none")).mean())
            objective = objective + task.criterion(model(X_clean), y_clean)
        return torch.autograd.grad(objective / n_steps, alpha)[0]


PLAIN, AMPLE, BUDGET, COMPILED = "plain", "ours", "ours 0.3 GB", "ours compiled 0.3 GB"
GRAPH, GRAPH_BUDGET = "ours whole graph", "ours graph 0.3 GB"
OURS = (AMPLE, BUDGET, COMPILED, GRAPH, GRAPH_BUDGET)
# Engines that hold the graph of the whole training, and how much they hold for each byte of `Task.graph_bytes`.
HOLD_ALL = {GRAPH: 1.0, "autograd": 1.0, "torchopt": 1.0, "higher": 1.5}
# In this order within a round; what is compared with each other stands close together.
ENGINES: dict[str, Callable[[Task, int], Tensor | None]] = {
    PLAIN: plain,
    AMPLE: functools.partial(ours, memory_budget=1e12, compile=False),
    BUDGET: functools.partial(ours, memory_budget=0.3e9, compile=False),
    COMPILED: functools.partial(ours, memory_budget=0.3e9, compile=True),
    GRAPH: functools.partial(ours_graph, memory_budget=1e12),
    GRAPH_BUDGET: functools.partial(ours_graph, memory_budget=0.3e9),
    "autograd": autograd,
    "torchopt": torchopt_sgd,
    "higher": higher_sgd,
}
REFERENCE = "reference"
# --quick measures all but the compiled engine at the first, and these at the second number of inner steps.
QUICK_STEPS = (50, 200)
QUICK_ENGINES = (PLAIN, AMPLE, BUDGET, "torchopt")


# --- one measurement, in its own process ------------------------------------------------------------------------------


class PeakMemory:
    """How far the resident memory of this process rises above where it stood.

    The kernel keeps a high-water mark. Linux can lower it to the present level, so that an earlier peak, of the imports
    or of a warm-up, does not hide a later one. Elsewhere the mark can only be compared with what it was before the
    warm-up, which counts memory that the warm-up takes for good to the step.
    """

    def __init__(self):
        self._mark = _resource_mark()

    def start(self) -> None:
        """Call this after the warm-up."""
        gc.collect()
        _give_back_free_memory()
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self._level = _status_bytes("VmRSS")
        except OSError:
            self._level = None

    @property
    def exact(self) -> bool:
        return self._level is not None

    def extra(self) -> int:
        """Return the peak since `start`, in bytes above the level at `start`."""
        above = _resource_mark() - self._mark if self._level is None else _status_bytes("VmHWM") - self._level
        return max(above, 0)


def _resource_mark() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def _give_back_free_memory() -> None:
    """Return what the warm-up freed to the system: the step would fill it unseen."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


def measure(engine: str, task: Task, n_steps: int, reference: Path | None) -> dict:
    """Time one outer step and weigh its memory."""
    run = ENGINES[engine]
    memory = PeakMemory()
    start = time.perf_counter()
    run(task, WARM_UP_STEPS)
    warm_up_seconds = time.perf_counter() - start
    memory.start()
    start = time.perf_counter()
    grad = run(task, n_steps)
    seconds = time.perf_counter() - start
    result = dict(
        seconds=seconds, warm_up_seconds=warm_up_seconds, peak_bytes=memory.extra(), peak_is_exact=memory.exact
    )
    if grad is not None and reference is not None and reference.exists():
        result["relative_error"] = relative_error(grad.numpy(), np.load(reference))
    return result


def relative_error(grad: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(grad - reference) / np.linalg.norm(reference))


def save_reference(task: Task, n_steps: int, path: Path) -> dict:
    """Compute the hypergradient in float64."""
    start = time.perf_counter()
    grad = ours_graph(dataclasses.replace(task, dtype=torch.float64), n_steps, memory_budget=1e9)
    np.save(path, grad.numpy())
    return dict(seconds=time.perf_counter() - start)


def work(engine: str, task_name: str, n_steps: int, reference: Path | None) -> dict:
    task = TASKS[task_name]
    if engine == REFERENCE:
        return save_reference(task, n_steps, reference)
    return measure(engine, task, n_steps, reference)


# --- all measurements -------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """What was seen of one engine on one task; lists have one entry a round."""

    task: str
    n_steps: int
    engine: str
    skipped: str | None = None
    seconds: list[float] = dataclasses.field(default_factory=list)
    warm_up_seconds: list[float] = dataclasses.field(default_factory=list)
    peak_bytes: list[int] = dataclasses.field(default_factory=list)
    relative_error: float | None = None
    vs_plain: float | None = None

    @property
    def failed(self) -> bool:
        return self.skipped is not None and self.skipped.startswith("failed")

    def add(self, result: dict) -> None:
        if "failed" in result:
            self.skipped = f"failed: {result['failed']}"
            return
        self.seconds.append(result["seconds"])
        self.warm_up_seconds.append(result["warm_up_seconds"])
        self.peak_bytes.append(result["peak_bytes"])
        self.relative_error = result.get("relative_error", self.relative_error)


Rows = dict[tuple[str, int, str], Row]


def run_worker(engine: str, task: str, n_steps: int, reference: Path | None) -> dict:
    """Run one measurement in a fresh process; a failure comes back as its last words."""
    command = [sys.executable, __file__, "--worker", engine, task, str(n_steps)]
    if reference is not None:
        command += ["--reference", str(reference)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last_words = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return dict(failed=last_words)
    return json.loads(done.stdout.splitlines()[-1])


def why_not(engine: str, task: Task, n_steps: int, quick: bool, earlier: Row | None) -> str | None:
    """Say why an engine cannot or should not be measured; ``None`` if it should.

    `earlier` is the same engine on the same task with fewer steps.
    """
    if engine in ("torchopt", "higher") and importlib.util.find_spec(engine) is None:
        return "not installed"
    if quick and (engine == COMPILED or (n_steps > QUICK_STEPS[0] and engine not in QUICK_ENGINES)):
        return "left out of --quick"
    n_bytes = n_steps * task.graph_bytes * HOLD_ALL.get(engine, 0)
    if n_bytes > LARGEST_GRAPH:
        return f"the graph would take about {n_bytes / 1e9:.0f} GB"
    if earlier is not None and earlier.seconds:
        seconds = max(earlier.seconds) * n_steps / earlier.n_steps
        if seconds > task.time_limit:
            return f"would take about {seconds:.0f} s"
    return None


def run_all(tasks: list[str], repeats: int, quick: bool) -> Rows:
    """Measure every engine on every task."""
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            for n_steps in QUICK_STEPS if quick else TASKS[task].steps:
                earlier = {row.engine: row for row in rows.values() if row.task == task}
                reasons = {e: why_not(e, TASKS[task], n_steps, quick, earlier.get(e)) for e in ENGINES}
                these = {e: Row(task, n_steps, e, reason) for e, reason in reasons.items()}
                reference = None if quick and n_steps > QUICK_STEPS[0] else Path(folder) / f"{task}-{n_steps}.npy"
                run_rounds(these, repeats, reference)
                rows |= {(task, n_steps, e): row for e, row in these.items()}
    return rows


def run_rounds(rows: dict[str, Row], repeats: int, reference: Path | None) -> None:
    """Measure all engines on one task, one after the other, again and again.

    `reference` is where the float64 gradient is kept; ``None`` does without.
    """
    for row in rows.values():
        if row.skipped:
            progress(row, row.skipped)
    wanted = [row for row in rows.values() if not row.skipped]
    if reference is not None:
        result = run_worker(REFERENCE, wanted[0].task, wanted[0].n_steps, reference)
        progress(wanted[0], result.get("failed") or f"{result['seconds']:.1f} s", REFERENCE)
    for _ in range(repeats):
        for row in wanted:
            if row.skipped:
                continue
            row.add(run_worker(row.engine, row.task, row.n_steps, reference))
            progress(row, row.skipped or f"{row.seconds[-1]:.2f} s, {row.peak_bytes[-1] / 1e6:.0f} MB")
    for row in wanted:
        if row.engine != PLAIN and not row.skipped and not rows[PLAIN].skipped:
            row.vs_plain = ratio(row.seconds, rows[PLAIN].seconds)


def ratio(seconds: list[float], others: list[float]) -> float:
    """Return the median over rounds of the ratio within one round."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))


def progress(row: Row, what: str, engine: str | None = None) -> None:
    print(f"{row.task:<11} {row.n_steps:>5} steps  {engine or row.engine:<21} {what}", file=sys.stderr, flush=True)


# --- what it says -----------------------------------------------------------------------------------------------------

MAIN_TASK = "spheres-15"


def summary_steps(rows: Rows) -> int | None:
    """Return the number of inner steps that ratios against plain training are taken at: the paper's, if measured."""
    measured = [n for task, n, _ in rows if task == MAIN_TASK]
    return 600 if 600 in measured else max(measured, default=None)


def ratios(rows: Rows) -> dict[str, float | None]:
    """Sum up in a few numbers; ``None`` where something was not measured."""
    n_steps = summary_steps(rows)

    def get(engine: str, n: int | None) -> Row | None:
        row = rows.get((MAIN_TASK, n, engine))
        return None if row is None or row.skipped else row

    def compare(one: Row | None, other: Row | None) -> float | None:
        return ratio(one.seconds, other.seconds) if one and other else None

    def peak(n: int) -> float | None:
        row = get(BUDGET, n)
        return statistics.median(row.peak_bytes) if row else None

    per_step = compare(get(BUDGET, 2000), get(BUDGET, 50))
    errors = [row.relative_error for row in rows.values() if row.engine in OURS and row.relative_error is not None]
    return {
        "eager_whole_vs_plain": compare(get(AMPLE, n_steps), get(PLAIN, n_steps)),
        "eager_budget_vs_plain": compare(get(BUDGET, n_steps), get(PLAIN, n_steps)),
        "compiled_budget_vs_plain": compare(get(COMPILED, n_steps), get(PLAIN, n_steps)),
        "graph_whole_vs_plain": compare(get(GRAPH, n_steps), get(PLAIN, n_steps)),
        "graph_budget_vs_plain": compare(get(GRAPH_BUDGET, n_steps), get(PLAIN, n_steps)),
        "torchopt_vs_eager_200": compare(get("torchopt", 200), get(AMPLE, 200)),
        "torchopt_vs_compiled_200": compare(get("torchopt", 200), get(COMPILED, 200)),
        "extra_peak_600": peak(600),
        "extra_peak_2000": peak(2000),
        "time_per_step_2000_vs_50": per_step and per_step * 50 / 2000,
        "max_relative_error": max(errors, default=None),
    }


def definitions(n_steps: int | None) -> dict[str, str]:
    """Say what the numbers of `ratios` are."""
    where = f"{MAIN_TASK}, {n_steps} inner steps, time of one outer step"
    return {
        "eager_whole_vs_plain": f"{where}: '{AMPLE}' / '{PLAIN}'",
        "eager_budget_vs_plain": f"{where}: '{BUDGET}' / '{PLAIN}'",
        "compiled_budget_vs_plain": f"{where}, compilation not counted: '{COMPILED}' / '{PLAIN}'",
        "graph_whole_vs_plain": f"{where}: '{GRAPH}' / '{PLAIN}'",
        "graph_budget_vs_plain": f"{where}: '{GRAPH_BUDGET}' / '{PLAIN}'",
        "torchopt_vs_eager_200": f"{MAIN_TASK}, 200 inner steps, time of one outer step: 'torchopt' / '{AMPLE}'",
        "torchopt_vs_compiled_200": f"{MAIN_TASK}, 200 inner steps, compilation not counted: 'torchopt' / '{COMPILED}'",
        "extra_peak_600": f"{MAIN_TASK}, 600 inner steps: bytes that '{BUDGET}' takes above the memory before the step",
        "extra_peak_2000": f"the same at 2000 inner steps: bytes of '{BUDGET}'",
        "time_per_step_2000_vs_50": f"{MAIN_TASK}, '{BUDGET}': time per inner step at 2000 / at 50",
        "max_relative_error": "largest error of a float32 gradient of ours against float64, all tasks, in the 2-norm",
    }


def machine() -> dict[str, str | int]:
    return dict(
        processor=processor(), cores=os.cpu_count(), torch_threads=torch.get_num_threads(), system=platform.platform()
    )


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions() -> dict[str, str | None]:
    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    found = {package: version(package) for package in ("torch", "numpy", "scikit-learn", "torchopt", "higher")}
    return dict(python=platform.python_version(), sklearn_cdgd=sklearn_cdgd.__version__) | found


def document(rows: Rows, repeats: int) -> dict:
    n_steps = summary_steps(rows)
    return dict(
        machine=machine(),
        versions=versions(),
        seed=SEED,
        repeats=repeats,
        warm_up_steps=WARM_UP_STEPS,
        ratios=ratios(rows),
        definitions=definitions(n_steps),
        measurements=[dataclasses.asdict(row) for row in rows.values()],
    )


def table(rows: Rows, repeats: int) -> str:
    """Render the measurements and the summary for people."""
    header = (
        f"{'task':<11} {'steps':>5}  {'engine':<21} {'ms/step':>8} {'/ plain':>8} {'extra MB':>9} {'rel. error':>10}"
    )
    lines = [header, "-" * len(header)]
    before = None
    for row in rows.values():
        if before not in (None, (row.task, row.n_steps)):
            lines.append("")
        before = row.task, row.n_steps
        name = f"{row.task:<11} {row.n_steps:>5}  {row.engine:<21}"
        if row.skipped:
            lines.append(f"{name}  {row.skipped}")
            continue
        ms, mb = 1e3 * statistics.median(row.seconds) / row.n_steps, statistics.median(row.peak_bytes) / 1e6
        versus, error = number(row.vs_plain, ".2f"), number(row.relative_error, ".1e")
        lines.append(f"{name} {ms:>8.2f} {versus:>8} {mb:>9.0f} {error:>10}")
    meanings = definitions(summary_steps(rows))
    lines += ["", *(f"{name:<25} {number(x, '.4g'):>10}  {meanings[name]}" for name, x in ratios(rows).items())]
    lines += ["", " | ".join(f"{k} {v}" for k, v in (machine() | versions()).items() if v), f"repeats: {repeats}"]
    return "\n".join(lines)


def number(x: float | None, spec: str) -> str:
    return "-" if x is None else format(x, spec)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{MAIN_TASK} at 50 and 200 steps, once; writes no file")
    parser.add_argument("--repeats", type=int, default=3, help="rounds over the engines (default 3)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="default: all")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead of a table")
    parser.add_argument(
        "--worker", nargs=3, metavar=("ENGINE", "TASK", "STEPS"), help="one measurement in this process, as JSON"
    )
    parser.add_argument("--reference", type=Path, metavar="FILE", help="of a worker: the float64 gradient (npy)")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    if options.quick:
        options.tasks, options.repeats = [MAIN_TASK], 1
    return options


def main() -> int:
    options = parse()
    if options.worker:
        engine, task, n_steps = options.worker
        print(json.dumps(work(engine, task, int(n_steps), options.reference)))
        return 0
    rows = run_all(options.tasks, options.repeats, options.quick)
    as_json = json.dumps(document(rows, options.repeats), indent=2)
    print(as_json if options.json else table(rows, options.repeats))
    if not options.quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(as_json + "\n")
        print(f"wrote {RESULTS}", file=sys.stderr)
    return int(any(row.failed for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
