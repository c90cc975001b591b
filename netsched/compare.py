"""Coflow completion times of many runs side by side: against each other, against `fair`, against the bound.

Runs may come from several results (other parameters, other days): here is decided which of them may be
divided by which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from netsched import metrics, results
from netsched.compare_runs import Measured, measured, names, same, workload_of
from netsched.errors import ScenarioError
from netsched.metrics import Table
from netsched.model import Bools, Floats, Ints
from netsched.report import BASELINE

CLASSES: Final = ("SN", "LN", "SW", "LW")
"""Short or Long, Narrow or Wide: position is (1 if long) + (2 if wide)."""


@dataclass(frozen=True)
class Limits:
    """Where the classes of coflows part: at most `narrow` flows is narrow, a longest flow of at most `short`
    bytes is short.

    The defaults are those of Varys (Chowdhury, Zhong, Stoica, SIGCOMM 2014, section 7.1 and table 4). "At
    most", and not "less than", because only so the public trace splits into that table's 60, 16, 12, 12 %.
    """

    narrow: int = 50
    short: float = 5e6


@dataclass(frozen=True)
class Comparison:
    """Runs of one workload. `of_class` is each coflow's position in CLASSES.

    `fair` is for each run the row of the run that it is compared with: `fair` on the same engine, of its own
    result or, if that has none, of the first other result over the same links; None without one.
    `unlimited` is for each run with so many classes the row of the first run that differs from it in having
    as many as there are ranks; None without one.
    """

    runs: tuple[Measured, ...]
    fair: tuple[int | None, ...]
    unlimited: tuple[int | None, ...]
    limits: Limits
    of_class: Ints

    @property
    def several(self) -> bool:
        """Are there runs of more than one result?"""
        return len({run.result for run in self.runs}) > 1


# ------------------------------------------------------------------ reading


def compare(folders: Sequence[Path], limits: Limits | None = None) -> Comparison:
    """Read the results. ScenarioError if one is missing, damaged or empty, or carried another workload."""
    limits = limits or Limits()
    seen: dict[Path, Path] = {}
    for folder in folders:
        if (first := seen.setdefault(folder.resolve(), folder)) is not folder:
            raise ScenarioError(f"{folder}: is given twice (also as {first}): name each result once")
    loaded = [results.load(folder) for folder in folders]
    for result in loaded:
        if not result.runs:
            raise ScenarioError(f"{result.path}: holds no finished run: nothing to compare")
    reference = workload_of(loaded[0])
    for other in loaded[1:]:
        same(loaded[0].path, other.path, reference, workload_of(other))
    runs = tuple(
        run for result, name in zip(loaded, names(folders), strict=True) for run in measured(result, name)
    )
    for run in runs:
        if len(run.cct) != len(reference["coflows"]["width"]):
            raise ScenarioError(
                f"{run.result}: {run.key.stem} has {len(run.cct)} coflows, another run "
                f"{len(reference['coflows']['width'])}: a policy that reshapes messages carries coflows of "
                "its own, whose times say nothing beside those of others: leave it out of the run "
                "(--policy), and compare iterations in its summary.json"
            )
    fair = tuple(_baseline(runs, run) for run in runs)
    unlimited = tuple(_unlimited(runs, run) for run in runs)
    of_class = classify(reference["flows"], reference["coflows"], limits)
    return Comparison(runs, fair, unlimited, limits, of_class)


def classify(flows: Table, coflows: Table, limits: Limits) -> Ints:
    """The position in CLASSES of each coflow, from `flows`' coflow and size and `coflows`' width."""
    longest = np.zeros(len(coflows["width"]))
    np.maximum.at(longest, flows["coflow"], flows["size"])
    kind: Ints = (longest > limits.short).astype(np.int64) + 2 * (coflows["width"] > limits.narrow)
    return kind


def _unlimited(runs: Sequence[Measured], run: Measured) -> int | None:
    def alike(other: Measured) -> bool:
        mine, yours = (run.key, run.network, run.setting), (other.key, other.network, other.setting)
        return other.queues is None and mine == yours

    rows = [row for row, other in enumerate(runs) if alike(other)]
    return rows[0] if rows and run.queues is not None else None


def _baseline(runs: Sequence[Measured], run: Measured) -> int | None:
    rows = [
        row
        for row, other in enumerate(runs)
        if (other.key.policy, other.key.engine) == (BASELINE, run.key.engine) and other.network == run.network
    ]
    return next((row for row in rows if runs[row].result == run.result), rows[0] if rows else None)


# ------------------------------------------------------------------ figures


def slowdown(comparison: Comparison, row: int) -> Floats | None:
    """CCT / CCT under `fair` of each coflow: below 1 is faster.

    NaN where one of them is unfinished or `fair` takes no time. None where there is no `fair` to compare
    with, and for that run itself.
    """
    base = comparison.fair[row]
    if base is None or base == row:
        return None
    cct, fair = comparison.runs[row].cct, comparison.runs[base].cct
    ratios: Floats = np.divide(cct, fair, out=np.full(len(cct), np.nan), where=fair > 0)
    return ratios


def speedup(comparison: Comparison, row: int, among: Bools | slice = slice(None)) -> float | None:
    """Mean CCT under `fair` / mean CCT of the run, over the coflows `among` that finished under both."""
    base = comparison.fair[row]
    return None if base is None else _mean_ratio(comparison, base, row, among)


def class_cost(comparison: Comparison, row: int) -> float | None:
    """Mean CCT of the run / that with unlimited classes, over the coflows that finished in both."""
    base = comparison.unlimited[row]
    return None if base is None else _mean_ratio(comparison, row, base)


def _mean_ratio(
    comparison: Comparison, above: int, below: int, among: Bools | slice = slice(None)
) -> float | None:
    a, b = comparison.runs[above].cct[among], comparison.runs[below].cct[among]
    both = ~np.isnan(a) & ~np.isnan(b)
    mean = float(b[both].mean()) if both.any() else 0.0
    return float(a[both].mean()) / mean if mean > 0 else None


def figures(comparison: Comparison) -> dict[str, Any]:
    """Everything that the table shows and more, as plain JSON values; seconds, bytes and plain ratios."""
    limits, of_class = comparison.limits, comparison.of_class
    return {
        "coflows": len(of_class),
        "classes": {
            "narrow_at_most_flows": limits.narrow,
            "short_at_most_bytes": limits.short,
            "coflows": {name: int((of_class == kind).sum()) for kind, name in enumerate(CLASSES)},
        },
        "runs": [_figures(comparison, row) for row in range(len(comparison.runs))],
    }


def _figures(comparison: Comparison, row: int) -> dict[str, Any]:
    run, base, of_class = comparison.runs[row], comparison.fair[row], comparison.of_class
    unlimited = comparison.unlimited[row]
    cct = metrics.summary(run.cct)
    mean = cct["mean"]
    best = max(run.bounds, key=lambda name: run.bounds[name], default=None)
    return {
        "result": run.result,
        "scenario": run.scenario,
        "engine": run.key.engine,
        "policy": run.key.policy,
        "seed": run.key.seed,
        "valid": run.valid,
        "cct": cct,
        "makespan": run.makespan,
        "fair": None if base is None else comparison.runs[base].result,
        "speedup": speedup(comparison, row),
        "slowdown": _slowdown(comparison, row),
        "bound": {"mean": run.bound, "names": dict(run.bounds), "best": best},
        "above_bound": mean / run.bound if mean is not None and run.bound else None,
        "queues": run.queues,
        "unlimited": None if unlimited is None else comparison.runs[unlimited].result,
        "over_unlimited": class_cost(comparison, row),
        "deadlines_met": run.on_time,
        "classes": {
            name: {
                **metrics.summary(run.cct[of_class == kind]),
                "speedup": speedup(comparison, row, of_class == kind),
            }
            for kind, name in enumerate(CLASSES)
        },
    }


def _slowdown(comparison: Comparison, row: int) -> dict[str, Any] | None:
    ratios = slowdown(comparison, row)
    if ratios is None:
        return None
    known = ratios[~np.isnan(ratios)]
    slower = int((known > 1 + 1e-9).sum())
    figures = metrics.summary(ratios)
    return {
        **{name: figures[name] for name in ("count", "mean", "p50", "p95", "p99", "max")},
        "slower": slower / len(known) if len(known) else None,
    }
