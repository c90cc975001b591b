"""Coflow completion times of many runs side by side: against each other, against `fair`, against the bound.

Runs may come from several results (other parameters, other days), so this is where it is made sure that they
carried the same workload: a ratio of two coflows with one number and different bytes would say nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from netsched import metrics, results
from netsched.errors import ScenarioError
from netsched.metrics import Table
from netsched.model import Floats, Ints
from netsched.report import BASELINE
from netsched.results import Key, Result

CLASSES: Final = ("SN", "LN", "SW", "LW")
"""Short or Long, Narrow or Wide: position is (1 if long) + (2 if wide)."""

_METRIC: Final = "coflow_completion_time"
_WORKLOAD: Final = {
    "jobs": ("job", "arrival", "weight", "iterations"),
    "coflows": ("coflow", "stage", "job", "iteration", "label", "weight", "deadline", "width", "bytes"),
    "flows": ("flow", "coflow", "src", "dst", "size", "need", "need_span"),
    "tasks": ("task", "job", "iteration", "host", "kind", "seconds"),
}
"""Columns that the workload alone decides, whatever the policy and the engine do."""


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
class Measured:
    """What one run did with the coflows. Seconds, one `cct` per coflow (NaN: unfinished).

    makespan  first arrival to last finish of all coflows, None if one has not finished
    bound     lower bound of the mean of the finished coflows, None where none is known
    bounds    by name, the known bounds that it is the best of
    network   equal in runs over the same links
    """

    result: str
    scenario: str
    key: Key
    valid: bool
    cct: Floats
    makespan: float | None
    bound: float | None
    bounds: Mapping[str, float]
    network: str


@dataclass(frozen=True)
class Comparison:
    """Runs of one workload. `of_class` is each coflow's position in CLASSES.

    `fair` is for each run the row of the run that it is compared with: `fair` on the same engine, of its own
    result or, if that has none, of the first other result over the same links; None without one.
    """

    runs: tuple[Measured, ...]
    fair: tuple[int | None, ...]
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
    reference = _workload(loaded[0])
    for other in loaded[1:]:
        _same(loaded[0].path, other.path, reference, _workload(other))
    runs = tuple(
        run for result, name in zip(loaded, _names(folders), strict=True) for run in _measured(result, name)
    )
    for run in runs:
        if len(run.cct) != len(reference["coflows"]["width"]):
            raise ScenarioError(
                f"{run.result}: damaged: {run.key.stem} has {len(run.cct)} coflows, "
                f"another run {len(reference['coflows']['width'])}: run it again"
            )
    fair = tuple(_baseline(runs, run) for run in runs)
    return Comparison(runs, fair, limits, classify(reference["flows"], reference["coflows"], limits))


def classify(flows: Table, coflows: Table, limits: Limits) -> Ints:
    """The position in CLASSES of each coflow, from `flows`' coflow and size and `coflows`' width."""
    longest = np.zeros(len(coflows["width"]))
    np.maximum.at(longest, flows["coflow"], flows["size"])
    kind: Ints = (longest > limits.short).astype(np.int64) + 2 * (coflows["width"] > limits.narrow)
    return kind


def _names(folders: Sequence[Path]) -> list[str]:
    """What each result is called: its folder's name, or its path where two folders have the same name."""
    short = [folder.resolve().name for folder in folders]
    return [
        name if short.count(name) == 1 else str(folder) for name, folder in zip(short, folders, strict=True)
    ]


def _workload(result: Result) -> dict[str, Table]:
    """The workload of a result's runs: of the first, because `results.create` empties a folder for each."""
    tables = {name: _read(result, name, result.runs[0], columns) for name, columns in _WORKLOAD.items()}
    of_coflow, n = tables["flows"]["coflow"], len(tables["coflows"]["coflow"])
    if len(of_coflow) and not 0 <= of_coflow.min() <= of_coflow.max() < n:
        raise ScenarioError(
            f"{result.path}: damaged: flows of coflows that are none of its {n}: run it again"
        )
    return tables


def _read(result: Result, name: str, key: Key, columns: Sequence[str]) -> Table:
    """Columns of a table, its rows by number where the first column is one; ScenarioError if one is missing.

    A table may have been rewritten in another order by other programs; coflows are matched by number.
    """
    table = results.read(result, name, key, columns)
    number = table[columns[0]]
    if columns[0] != name[:-1] or name == "jobs":
        return table
    order = np.argsort(number, kind="stable")
    if not np.array_equal(number[order], np.arange(len(number))):
        what = f"its {name} are not numbered from 0 without a gap"
        raise ScenarioError(f"{result.path}: damaged: {what} in {key.stem}.parquet: run it again")
    return {column: values[order] for column, values in table.items()}


def _same(first: Path, other: Path, mine: dict[str, Table], yours: dict[str, Table]) -> None:
    """ScenarioError naming the first difference, if the two workloads differ."""
    start = f"{other}: another workload than {first}"
    end = "compare results of one scenario and seed"
    for name, columns in _WORKLOAD.items():
        a, b = mine[name], yours[name]
        if len(a[columns[0]]) != len(b[columns[0]]):
            raise ScenarioError(
                f"{start}: {len(b[columns[0]])} {name} instead of {len(a[columns[0]])}: {end}"
            )
        for column in columns:
            differs = np.flatnonzero(a[column] != b[column])
            if len(differs):
                row = int(differs[0])
                what = f"{name[:-1]} {row} has {column} {b[column][row]} instead of {a[column][row]}"
                raise ScenarioError(f"{start}: {what}: {end}")


def _measured(result: Result, name: str) -> list[Measured]:
    found = []
    network = _network(result)
    for key in result.runs:
        entry = result.entry(key)
        table = _read(result, "coflows", key, ("coflow", "arrival", "finish", "cct"))
        whole = len(table["cct"]) and not np.isnan(table["finish"]).any()
        makespan = float(table["finish"].max() - table["arrival"].min()) if whole else None
        bound = entry["bound"][_METRIC]
        found.append(
            Measured(
                result=name,
                scenario=result.scenario,
                key=key,
                valid=bool(entry["fidelity"].get("valid", True)),
                cct=table["cct"],
                makespan=makespan,
                bound=bound["mean"],
                bounds={name: mean for name, mean in bound["names"].items() if mean is not None},
                network=network,
            )
        )
    return found


def _network(result: Result) -> str:
    table = results.read(result, "links", result.runs[0], ("src", "dst", "capacity"))
    digest = hashlib.sha256()
    for column in table.values():
        digest.update(repr(column.tolist()).encode())
    return digest.hexdigest()


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


def speedup(
    comparison: Comparison, row: int, among: npt.NDArray[np.bool_] | slice = slice(None)
) -> float | None:
    """Mean CCT under `fair` / mean CCT of the run, over the coflows `among` that finished under both."""
    base = comparison.fair[row]
    if base is None:
        return None
    cct, fair = comparison.runs[row].cct[among], comparison.runs[base].cct[among]
    both = ~np.isnan(cct) & ~np.isnan(fair)
    mean = float(cct[both].mean()) if both.any() else 0.0
    return float(fair[both].mean()) / mean if mean > 0 else None


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
