"""The table at the end of a run: policies against each other, against `fair` and against the lower bound.

It is made from summary.json alone, so that it can be printed again from a result folder and cannot say
anything that the files do not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from netsched import units
from netsched.results import Result

BASELINE: Final = "fair"
"""The policy that the others are compared with: what the network does when nobody schedules it."""

_STAGE: Final = "stage_completion_time"
_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_MISSING: Final = "–"


@dataclass(frozen=True)
class Row:
    """One run's line. Times in seconds, None where there is nothing to say.

    speedup     mean stage completion time of `fair` on the same engine / this mean: above 1 is faster
    over_bound  mean stage completion time / the best lower bound of that mean: 1 is optimal
    on_time     share of the coflows with a deadline that met it
    difference  (this mean - the first engine's mean of this policy) / the latter; None on the first engine
    """

    policy: str
    engine: str
    valid: bool
    mean: float | None
    p50: float | None
    p95: float | None
    max: float | None
    iteration: float | None
    speedup: float | None
    over_bound: float | None
    on_time: float | None
    difference: float | None


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def rows(summary: Mapping[str, Any]) -> list[Row]:
    """The lines of the table, by policy and then by engine, both in the order in which they ran."""
    runs: Sequence[Mapping[str, Any]] = summary["runs"]
    means = {(run["policy"], run["engine"]): run["metrics"][_STAGE]["mean"] for run in runs}
    engines = list(dict.fromkeys(run["engine"] for run in runs))
    lines = []
    for policy in dict.fromkeys(run["policy"] for run in runs):
        for run in (each for each in runs if each["policy"] == policy):
            engine, stage = run["engine"], run["metrics"][_STAGE]
            mean = stage["mean"]
            against = _ratio(mean, means.get((policy, engines[0]))) if engine != engines[0] else None
            lines.append(
                Row(
                    policy=policy,
                    engine=engine,
                    valid=bool(run["fidelity"].get("valid", True)),
                    mean=mean,
                    p50=stage["p50"],
                    p95=stage["p95"],
                    max=stage["max"],
                    iteration=run["metrics"]["iteration_time"]["mean"],
                    speedup=_ratio(means.get((BASELINE, engine)), mean),
                    over_bound=_ratio(mean, run["bound"][_STAGE]["mean"]),
                    on_time=run.get("deadlines_met", {}).get("share"),
                    difference=against - 1 if against is not None else None,
                )
            )
    return lines


def table(summary: Mapping[str, Any]) -> Table:
    """One row per policy with a line per engine. All times in one unit, which the headers name."""
    lines = rows(summary)
    engines = list(dict.fromkeys(line.engine for line in lines))
    factor, unit = _unit(lines)
    view = Table(box=box.SIMPLE_HEAD, title=f"{summary['scenario']}: stage completion time", pad_edge=False)
    view.add_column("policy", overflow="fold")
    view.add_column("engine", no_wrap=True)
    headers = [f"{name}\n[{unit}]" for name in ("mean", "p50", "p95", "max", "iteration")]
    headers += [f"speed-up\nvs {BASELINE} [x]", "above\nbound [x]"]
    due = any(line.on_time is not None for line in lines)
    if due:
        headers.append("deadlines\nmet [%]")
    if len(engines) > 1:
        headers.append(f"mean vs\n{engines[0]} [%]")
    for header in headers:
        # Text, because rich would take "[x]" for markup.
        view.add_column(Text(header), justify="right", no_wrap=True)
    for policy in dict.fromkeys(line.policy for line in lines):
        cells = [_cells(line, factor, due, len(engines) > 1) for line in lines if line.policy == policy]
        view.add_row(Text(policy), *(Text("\n".join(column)) for column in zip(*cells, strict=True)))
    return view


def _cells(line: Row, factor: float, due: bool, engines: bool) -> list[str]:
    """A line as text; `due` and `engines`: is there a column of deadlines, and one against another engine?"""
    times = (line.mean, line.p50, line.p95, line.max, line.iteration)
    cells = [
        line.engine if line.valid else f"{line.engine} INVALID",
        *(_MISSING if time is None else f"{time / factor:.3f}" for time in times),
        _MISSING if line.speedup is None else f"{line.speedup:.2f}",
        _MISSING if line.over_bound is None else f"{line.over_bound:.2f}",
    ]
    if due:
        cells.append(_MISSING if line.on_time is None else f"{100 * line.on_time:.1f}")
    if engines:
        cells.append(_MISSING if line.difference is None else f"{100 * line.difference:+.1f}")
    return cells


def _unit(lines: Sequence[Row]) -> tuple[float, str]:
    """The largest unit in which the smallest mean is at least 0.1: three decimals are then three digits."""
    smallest = min((line.mean for line in lines if line.mean), default=1.0)
    return next(((factor, unit) for factor, unit in _UNITS if smallest >= factor / 10), _UNITS[-1])


def best_bound(bound: Mapping[str, Any]) -> str | None:
    """Name of the bound that a `bound` of summary.json takes its mean from, None where there is none.

    Where that mean is above each of them, it is of the best of several in each row, and all are named.
    """
    known = {name: mean for name, mean in bound["names"].items() if mean is not None}
    if bound["mean"] is None or not known:
        return None
    highest = max(known, key=lambda name: known[name])
    return highest if known[highest] >= bound["mean"] * (1 - 1e-12) else " or ".join(known)


def notes(summary: Mapping[str, Any]) -> list[str]:
    """What no cell can say: what the ratios are, which runs to distrust and why, what did not finish."""
    said = []
    runs: Sequence[Mapping[str, Any]] = summary["runs"]
    if any(line.speedup is not None for line in rows(summary)):
        said.append(f"speed-up: mean under {BASELINE} / mean under the policy, on the same engine")
    if any(line.over_bound is not None for line in rows(summary)):
        named = ", ".join(dict.fromkeys(filter(None, (best_bound(run["bound"][_STAGE]) for run in runs))))
        said.append("above bound: mean / the best lower bound of it (1.00 cannot be beaten)")
        said[-1] += f", here {named}" if named else ""
    if any(line.on_time is not None for line in rows(summary)):
        said.append("deadlines met: share of the coflows with a deadline that ended within it")
    for run in summary["runs"]:
        name = f"{run['policy']} on {run['engine']}"
        if not run["fidelity"].get("valid", True):
            reasons = "; ".join(run["fidelity"].get("reasons") or ["the engine gave no reason"])
            said.append(f"INVALID: {name}: {reasons}")
        stage = run["metrics"][_STAGE]
        if left := stage.get("unfinished", 0):
            total, end = stage["count"] + left, units.show_time(run["simulated_s"])
            said.append(f"{name}: {left} of {total} stages unfinished after {end}, not in the figures")
        elif not stage["count"]:
            said.append(f"{name}: no stages")
    return said


def show(result: Result, console: Console | None = None) -> None:
    """Print the table and its notes, on standard output unless told otherwise.

    Where the output is no terminal the table is as wide as it needs to be: a log or a pager has no edge.
    """
    target = console or Console()
    if not target.is_terminal:
        target = Console(file=target.file, width=max(target.width, 200), color_system=None)
    target.print(table(result.summary))
    for note in notes(result.summary):
        target.print(Text(note))


def as_json(result: Result) -> str:
    """The summary as it is on disk, for `--json`."""
    return json.dumps(result.summary, indent=2, allow_nan=False)
