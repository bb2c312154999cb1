"""Turn the results in ``benchmarks/results/*.json`` into tables and figures that the documentation includes.

``python benchmarks/render.py`` writes ``NAME.rst``, and ``NAME_N.svg`` where there are figures, beside every
``NAME.json``, ``headline.inc``, which the README has too, and ``totals.inc``, the counts of wins.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

RESULTS = Path(__file__).parent / "results"
OURS = ("T", "alpha")
NAMES = {"f1": "F1", "average_precision": "AP", "f1_two_means": "F1 by 2-means", "f1_kept": "F1 kept"}
# What a difference must exceed to be called clear, in standard errors.
CLEAR = 2

# The rows of the headline: name, document, and the parts of a configuration that choose what the mean is taken over.
HEADLINE = (
    ("spheres, 15 features, 10 % wrong", "spheres", {"N": 1000, "d": 15, "rate": 0.1, "M": 100}),
    ("the same, 40 % wrong", "spheres", {"N": 1000, "d": 15, "rate": 0.4, "M": 100}),
    ("spheres, 80 features, 10 % wrong", "spheres", {"N": 1000, "d": 80, "rate": 0.1, "M": 100}),
    ("digits, 40 % mirrored", "digits", {"kind": "mirror", "rate": 0.4, "M": 100}),
    ("digits, 10 % at random", "digits", {"kind": "uniform", "rate": 0.1, "M": 100}),
    *(
        (f"tables, {100 * rate:.0f} % wrong", "tabular", {"rate": rate, "validation": "clean"})
        for rate in (0.05, 0.1, 0.2)
    ),
)
HEADLINE_METHODS = ("T", "cleanlab", "Data-OOB", "AUM", "KNN-Shapley", "S_n", "S_c")

# What wins are counted over: name, document, which of its configurations, and whether the targets are labels.
REGRESSION = ("bikeshare", "wage", "diabetes")
GROUPS = (
    ("spheres, 15 features", "spheres", lambda c: c["d"] == 15, True),
    ("spheres, 80 features", "spheres", lambda c: c["d"] == 80, True),
    ("digits", "digits", lambda c: True, True),
    ("tables, labels", "tabular", lambda c: c["validation"] == "clean" and c["set"] not in REGRESSION, True),
    ("tables, numbers", "tabular", lambda c: c["validation"] == "clean" and c["set"] in REGRESSION, False),
)
# Whom T is to be ahead of: of these, and of all.
RIVALS = (("cleanlab, S_n, S_c", ("cleanlab", "S_n", "S_c")), ("all", None))


class Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]


# --- the numbers ------------------------------------------------------------------------------------------------------


class Values:
    """The metrics of a document, by configuration, method and seed."""

    def __init__(self, runs: list[dict]):
        self._values: dict = {}
        self.configurations: list[dict] = []
        self.methods: list[str] = []
        self.failures = [run for run in runs if "failed" in run]
        for run in runs:
            if run["configuration"] not in self.configurations:
                self.configurations.append(run["configuration"])
            for method, metrics in run.get("metrics", {}).items():
                if method not in self.methods:
                    self.methods.append(method)
                for metric, value in metrics.items():
                    key = _key(run["configuration"]), method, metric
                    self._values.setdefault(key, {})[run["seed"]] = value

    def of(self, configuration: dict, method: str, metric: str) -> dict[int, float]:
        """Return the value of every seed."""
        return self._values.get((_key(configuration), method, metric), {})

    @property
    def metrics(self) -> list[str]:
        return sorted({metric for _, _, metric in self._values})

    def floor(self, configuration: dict) -> float:
        seen = [self.of(configuration, method, "floor") for method in self.methods]
        return float(np.mean([value for values in seen for value in values.values()] or [np.nan]))

    def mean_over(self, key: str) -> Values:
        """Return the means over one key of the configuration, seed by seed; seeds that lack a part are left out."""
        pooled, groups = Values([]), {}
        for configuration in self.configurations:
            rest = {name: value for name, value in configuration.items() if name != key}
            groups.setdefault(_key(rest), (rest, []))[1].append(configuration)
        pooled.methods = self.methods
        for name, (rest, members) in groups.items():
            pooled.configurations.append(rest)
            for _, method, metric in [k for k in self._values if k[0] == _key(members[0])]:
                parts = [self.of(member, method, metric) for member in members]
                common = set.intersection(*(set(part) for part in parts))
                if common:
                    means = {seed: float(np.mean([part[seed] for part in parts])) for seed in sorted(common)}
                    pooled._values[name, method, metric] = means
        return pooled


def _key(configuration: dict) -> str:
    return json.dumps(configuration, sort_keys=True)


def mean_and_error(values) -> tuple[float, float]:
    """Return the mean and its standard error, NaN where there is one value only."""
    values = np.array(list(values), dtype=float)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(values.mean()), float(error)


def difference(values: Values, configuration: dict, ours: str, peer: str, metric: str) -> tuple[float, float] | None:
    """Return by how much ours is ahead, seed by seed, and the standard error; ``None`` without a common seed."""
    a, b = values.of(configuration, ours, metric), values.of(configuration, peer, metric)
    common = sorted(a.keys() & b.keys())
    return mean_and_error(a[seed] - b[seed] for seed in common) if common else None


# --- the tables -------------------------------------------------------------------------------------------------------


def tables(document: dict) -> list[Table]:
    """Return everything that is said of a document."""
    values = Values(document["runs"])
    found = [metric_table(values, title, metrics) for title, metrics in document["tables"].items()]
    if document["mean_over"] and values.configurations:
        pooled = values.mean_over(document["mean_over"])
        for title, metrics in document["tables"].items():
            found.append(metric_table(pooled, f"{title}, mean over every {document['mean_over']}", metrics))
    for part, chosen in parts(values, document["split_by"]) if document["compare"] else ():
        found += [wins_table(values, chosen, document["compare"], part)]
        found += [losses_table(values, chosen, document["compare"], part)]
    found.append(seconds_table(document["runs"]))
    found.append(promises_table(values))
    if values.failures:
        rows = [[label(r["configuration"]), str(r["seed"]), r["method"], r["failed"]] for r in values.failures]
        found.append(Table("Failures", ["configuration", "seed", "method", "error"], rows))
    return [table for table in found if table.rows]


def parts(values: Values, key: str | None):
    """Yield the sets of configurations that may be counted together."""
    if key is None:
        yield "", values.configurations
        return
    for value in dict.fromkeys(configuration[key] for configuration in values.configurations):
        yield f", {value} {key}", [c for c in values.configurations if c[key] == value]


def metric_table(values: Values, title: str, metrics: list[str]) -> Table:
    """Mean and standard error of some metrics: a row for each configuration, a column for each method."""
    methods = [m for m in values.methods if any(values.of(c, m, metrics[0]) for c in values.configurations)]
    shows_f1 = "f1" in metrics
    header = ["configuration", "seeds", *(["floor"] if shows_f1 else []), *methods]
    if shows_f1 and "T" in methods and len(methods) > 2:
        header.append("T / best other F1")
    rows = []
    for configuration in values.configurations:
        n_seeds = sorted({len(values.of(configuration, method, metrics[0])) for method in methods} - {0})
        cells = [" / ".join(cell(values.of(configuration, m, metric).values()) for metric in metrics) for m in methods]
        floor = [f"{values.floor(configuration):.3f}"] if shows_f1 else []
        row = [label(configuration), ranges(n_seeds), *floor, *cells]
        if "T / best other F1" in header:
            row.append(ratio(values, configuration, methods))
        rows.append(row)
    return Table(title, header, rows)


def cell(values) -> str:
    values = list(values)
    if not values:
        return "n/a"
    mean, error = mean_and_error(values)
    return f"{mean:.3f}" if np.isnan(error) else f"{mean:.3f} ± {error:.3f}"


def ratio(values: Values, configuration: dict, methods: list[str]) -> str:
    """Return F1 of T as a part of that of the best other method, each over the seeds that both have run."""
    ours, ratios = values.of(configuration, "T", "f1"), []
    for others in (values.of(configuration, method, "f1") for method in methods if method not in OURS):
        common = ours.keys() & others.keys()
        if theirs := sum(others[seed] for seed in common):
            ratios.append(sum(ours[seed] for seed in common) / theirs)
    return f"{min(ratios):.2f}" if ratios else "n/a"


def wins_table(values: Values, configurations: list[dict], metrics: list[str], part: str) -> Table:
    """In how many configurations ours has the better mean; in brackets, by more than two standard errors."""
    rows = []
    for ours in [m for m in OURS if m in values.methods]:
        for peer in [m for m in values.methods if m not in OURS]:
            cells = []
            for metric in metrics:
                pairs = [difference(values, c, ours, peer, metric) for c in configurations]
                pairs = [pair for pair in pairs if pair is not None]
                won = [error for mean, error in pairs if mean > 0]
                lost = [error for mean, error in pairs if mean < 0]
                clear = [sum(abs(m) > CLEAR * e for m, e in pairs if m * sign > 0) for sign in (1, -1)]
                cells.append(f"{len(won)} ({clear[0]}) : {len(lost)} ({clear[1]})")
            rows.append([ours, peer, *cells])
    header = ["ours", "peer", *(f"{NAMES.get(metric, metric)} won : lost" for metric in metrics)]
    return Table(
        f"Wins and losses over the configurations (in brackets: by more than {CLEAR} standard errors){part}",
        header,
        rows,
    )


def losses_table(values: Values, configurations: list[dict], metrics: list[str], part: str) -> Table:
    """Every configuration in which a peer has the better mean than T."""
    rows = []
    for configuration in configurations:
        for peer in [m for m in values.methods if m not in OURS]:
            for metric in metrics:
                pair = difference(values, configuration, "T", peer, metric)
                if pair is not None and pair[0] < 0:
                    error = "" if np.isnan(pair[1]) else f" ± {pair[1]:.3f}"
                    rows.append([label(configuration), peer, NAMES.get(metric, metric), f"{pair[0]:.3f}{error}"])
    return Table(f"Where T loses{part}", ["configuration", "against", "by", "difference"], rows)


def seconds_table(runs: list[dict]) -> Table:
    """Median seconds of a run; both read-outs of ours, and flags of every rate, come from one fit."""
    seconds: dict = {}
    for run in runs:
        if "metrics" in run:
            seconds.setdefault(_key(run["configuration"]), {}).setdefault(run["method"], []).append(run["seconds"])
    methods = list(dict.fromkeys(run["method"] for run in runs))
    over = {method: [np.median(found[method]) for found in seconds.values() if method in found] for method in methods}
    methods = [method for method in methods if over[method]]
    rows = [
        ["median", *(f"{np.median(over[method]):.1f}" for method in methods)],
        ["least to most", *(f"{min(over[method]):.1f} to {max(over[method]):.1f}" for method in methods)],
    ]
    title = "Seconds of a fit, over the configurations, on machines that were often busy"
    return Table(title, ["", *methods], rows if methods else [])


def promises_table(values: Values) -> Table:
    """In how many draws flags of a promised rate exceed it, and in how many there are none."""
    promised = {method: float(method.removeprefix("fdr=")) for method in values.methods if method.startswith("fdr=")}
    rows = []
    for configuration in values.configurations if promised else ():
        shares = {method: values.of(configuration, method, "false_discovery_proportion") for method in promised}
        exceeded = [sum(share > promised[method] for share in of_seeds.values()) for method, of_seeds in shares.items()]
        empty = [sum(part == 0 for part in values.of(configuration, m, "flagged").values()) for m in promised]
        n_draws = max(map(len, shares.values()))
        rows.append([label(configuration), str(n_draws), *(f"{a} / {b}" for a, b in zip(exceeded, empty, strict=True))])
    title = "In how many draws more of the flagged rows are right than asked for / nothing is flagged"
    return Table(title, ["configuration", "draws", *promised], rows)


def label(configuration: dict) -> str:
    return ", ".join(f"{name}={value}" for name, value in configuration.items())


def seeds_of_all(values: Values, configuration: dict) -> set[int]:
    """Return the seeds that every method of the headline has run."""
    return set.intersection(*(set(values.of(configuration, method, "f1")) for method in HEADLINE_METHODS))


def headline(folder: Path) -> str:
    """Return F1 / average precision of every method in a few lines, as a table of reStructuredText.

    Means are taken over the seeds that all methods have run, and then over the sets that all have judged.
    """
    rows = [["F1 / average precision", "floor", *HEADLINE_METHODS]]
    for name, document, chosen in HEADLINE:
        values = Values(json.loads((folder / f"{document}.json").read_text())["runs"])
        members = [(c, seeds_of_all(values, c)) for c in values.configurations if chosen.items() <= c.items()]
        members = [(c, seeds) for c, seeds in members if seeds]
        if not members:
            continue
        means = [
            [
                np.mean([np.mean([values.of(c, method, metric)[seed] for seed in seeds]) for c, seeds in members])
                for metric in ("f1", "average_precision")
            ]
            for method in HEADLINE_METHODS
        ]
        floor = np.mean([values.floor(c) for c, _ in members])
        name = f"{len(members)} {name}" if len(members) > 1 else name
        rows.append([name, f"{floor:.2f}", *(f"{f1:.2f} / {ap:.2f}" for f1, ap in means)])
    return simple_table(rows)


def totals(folder: Path) -> str:
    """Return in how many configurations the mean of T is ahead of every rival, as a table of reStructuredText.

    In brackets stand those where it is so by more than two standard errors of the difference; after a plus sign those
    where one rival or more is ahead, by less than one. The standard error of a single seed is not known: such a lead is
    not clear, and such a loss not a small one.
    """
    metrics = ("f1", "average_precision")
    columns = [f"{NAMES[metric]}: {whom}" for whom, _ in RIVALS for metric in metrics]
    rows, sums = [["T is ahead of", "configurations", "seeds", *columns]], np.zeros((len(columns), 3), dtype=int)
    n_classified = 0
    for name, document, belongs, has_labels in GROUPS:
        values = Values(json.loads((folder / f"{document}.json").read_text())["runs"])
        members = [c for c in values.configurations if belongs(c) and values.of(c, "T", "f1")]
        if not members:
            continue
        counts = [leads(values, members, rivals, metric) for _, rivals in RIVALS for metric in metrics]
        n_seeds = sorted({len(values.of(c, "T", "f1")) for c in members})
        rows.append([name, str(len(members)), ranges(n_seeds), *map(_in_words, counts)])
        if has_labels:
            sums, n_classified = sums + counts, n_classified + len(members)
    if n_classified:
        rows.append(["all with labels", str(n_classified), "", *map(_in_words, sums)])
    return simple_table(rows)


def _in_words(counts) -> str:
    ahead, clearly, close = counts
    return f"{ahead} ({clearly}) + {close}" if close else f"{ahead} ({clearly})"


def leads(values: Values, configurations: list[dict], rivals, metric: str) -> tuple[int, int, int]:
    """Return how often T is ahead of all rivals, how often clearly, and how often not, by less than an error."""
    ahead = clearly = close = 0
    for configuration in configurations:
        peers = [m for m in values.methods if m not in OURS and (rivals is None or m in rivals)]
        found = [difference(values, configuration, "T", peer, metric) for peer in peers]
        found = [pair for pair in found if pair is not None]
        if all(mean > 0 for mean, _ in found):
            ahead += 1
            clearly += all(mean > CLEAR * error for mean, error in found)
        elif all(mean > -np.nan_to_num(error) for mean, error in found):
            close += 1
    return ahead, clearly, close


def simple_table(rows: list[list[str]]) -> str:
    """Return rows, the first of which is the header, as a simple table of reStructuredText."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule]) + "\n"


# --- as text and as rst -----------------------------------------------------------------------------------------------


def as_text(document: dict) -> str:
    """Return the tables for a terminal."""
    lines = []
    for table in tables(document):
        widths = [max(len(row[n]) for row in [table.header, *table.rows]) for n in range(len(table.header))]
        lines += [table.title, ""]
        for row in [table.header, ["-" * width for width in widths], *table.rows]:
            lines.append("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        lines.append("")
    return "\n".join(lines)


def as_rst(document: dict, figures: list[str]) -> str:
    """Return the tables as a part of a page, without a heading."""
    lines = [document["about"].strip(), ""]
    for figure in figures:
        lines += [f".. image:: {figure}", ""]
    for table in tables(document):
        lines += [f".. list-table:: {table.title}", "   :header-rows: 1", ""]
        for row in [table.header, *table.rows]:
            lines += [f"   {'* ' if n == 0 else '  '}- {escaped(text)}" for n, text in enumerate(row)]
        lines.append("")
    return "\n".join([*lines, *provenance(document)]) + "\n"


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("_", "\\_").replace("*", "\\*")


def provenance(document: dict) -> list[str]:
    """Say on which machines and with which versions the numbers were made."""
    runs, lines = document["runs"], []
    for n, session in enumerate(document["sessions"]):
        own = [run for run in runs if run.get("session") == n]
        if own:
            seeds = sorted({run["seed"] for run in own})
            facts = session["machine"] | {k: v for k, v in session["versions"].items() if v}
            what = ", ".join(f"{name} {value}" for name, value in facts.items())
            seconds = sum(run["seconds"] for run in own)
            lines.append(
                f"{len(own)} runs, seeds {ranges(seeds)}, {seconds:.0f} seconds, {session['started']}: {what}."
            )
    return [escaped(line) for line in lines]


def ranges(numbers: list[int]) -> str:
    """Return rising numbers in words, "0 to 3, 7"."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(f"{a} to {b}" if b > a else str(a) for a, b in zip(starts, ends, strict=True))


# --- figures ----------------------------------------------------------------------------------------------------------


def draw(document: dict, folder: Path) -> list[str]:
    """Draw the figures that a document asks for; return the names of their files."""
    import matplotlib

    values, names = Values(document["runs"]), []
    for n, spec in enumerate(document["figures"]):
        figure = lines_figure(values, spec) if "x" in spec else threshold_figure(values)
        names.append(f"{document['name']}_{n}.svg")
        with matplotlib.rc_context({"svg.hashsalt": names[-1]}):  # the same file from the same numbers
            figure.savefig(folder / names[-1], metadata={"Date": None})
    return names


def lines_figure(values: Values, spec: dict):
    """Metrics against one key of the configuration: a row of panels for each of the other keys' values."""
    from matplotlib.figure import Figure

    x, metrics = spec["x"], spec["metrics"]
    groups: dict = {}
    for configuration in values.configurations:
        rest = {name: value for name, value in configuration.items() if name != x}
        groups.setdefault(label(rest), []).append(configuration)
    figure = Figure(figsize=(4 * len(metrics), 3 * len(groups)), layout="constrained")
    axes = figure.subplots(len(groups), len(metrics), squeeze=False, sharey=True)
    for row, (name, members) in zip(axes, groups.items(), strict=True):
        for ax, metric in zip(row, metrics, strict=True):
            for method in values.methods:
                points = [
                    (c[x], *mean_and_error(values.of(c, method, metric).values()))
                    for c in members
                    if values.of(c, method, metric)
                ]
                if points:
                    at, means, errors = np.array(sorted(points)).T
                    style = "-" if method in OURS else "--"
                    ax.errorbar(at, means, np.nan_to_num(errors), label=method, linestyle=style, marker=".")
            ax.set(xlabel=x, ylabel=NAMES.get(metric, metric), title=name, xscale="log", ylim=(0, 1.02))
            ticks = sorted({c[x] for c in members})
            ax.set_xticks(ticks, [str(tick) for tick in ticks])
            ax.minorticks_off()
    axes[0, 0].legend(fontsize="small")
    return figure


def threshold_figure(values: Values):
    """F1 of the rule alpha < threshold, against the threshold."""
    from matplotlib.figure import Figure

    n_panels = max(1, len(values.configurations))
    figure = Figure(figsize=(4 * n_panels, 3), layout="constrained")
    axes = figure.subplots(1, n_panels, squeeze=False, sharey=True)[0]
    at = [metric for metric in values.metrics if metric.startswith("f1_at_")]
    others = [method for method in values.methods if method != "alpha"]
    for ax, configuration in zip(axes, values.configurations, strict=False):
        means = [mean_of(values, configuration, "alpha", metric) for metric in at]
        ax.plot([float(metric.removeprefix("f1_at_")) for metric in at], means, label="alpha")
        for n, method in enumerate(others):
            f1 = mean_of(values, configuration, method, "f1")
            ax.axhline(f1, color=f"C{n + 1}", linestyle="--", linewidth=1, label=method)
        ax.set(xlabel="threshold", ylabel="F1", title=label(configuration), ylim=(0, 1.02))
    axes[0].legend(fontsize="small")
    return figure


def mean_of(values: Values, configuration: dict, method: str, metric: str) -> float:
    return mean_and_error(values.of(configuration, method, metric).values() or [np.nan])[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=RESULTS, help="default: benchmarks/results")
    options = parser.parse_args(arguments)
    for path in sorted(options.folder.glob("*.json")):
        document = json.loads(path.read_text())
        if "runs" in document:
            figures = draw(document, options.folder)
            path.with_suffix(".rst").write_text(as_rst(document, figures))
            print(f"wrote {path.with_suffix('.rst')}", file=sys.stderr)
    if all((options.folder / f"{name}.json").exists() for _, name, _ in HEADLINE):
        (options.folder / "headline.inc").write_text(headline(options.folder))
        (options.folder / "totals.inc").write_text(totals(options.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
