"""From what an engine did to the record of a run: its tables by name, and its entry in summary.json.

Nothing here touches a file, so that every figure can be tested before it is written.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from netsched import bounds as lower
from netsched import metrics
from netsched.bounds import Bounds, Named
from netsched.metrics import METRICS, Table
from netsched.model import Floats, Ints, Outcome, TaskKind, Workload
from netsched.schema import TABLES
from netsched.shared_bounds import Shared

if TYPE_CHECKING:
    from netsched.fabric import Fabric


@dataclass(frozen=True)
class Key:
    """What tells the runs of one result apart."""

    engine: str
    policy: str
    seed: int

    @property
    def stem(self) -> str:
        """A file name for it. A policy label that is no safe name is told apart by a digest of itself."""
        safe = re.sub(r"[^A-Za-z0-9_-]+", "_", self.policy).strip("_")
        if safe != self.policy:
            safe += "-" + hashlib.sha256(self.policy.encode()).hexdigest()[:8]
        return f"{self.engine}.{safe}.seed{self.seed}"


@dataclass(frozen=True)
class Run:
    """A finished run, ready to be written: its entry in summary.json, and its tables by name."""

    key: Key
    entry: Mapping[str, Any]
    tables: Mapping[str, Table]


def record(
    key: Key,
    workload: Workload,
    fabric: Fabric,
    outcome: Outcome,
    bounds: Bounds,
    placement: Mapping[str, Any] | None = None,
) -> Run:
    """The tables and the summary of one run. Nothing is written yet.

    `placement`: where its jobs were put, and when they began, if a placement said so.
    """
    flows = metrics.flows(workload, outcome)
    coflows = metrics.coflows(workload, outcome)
    stages = metrics.stages(workload, outcome)
    iterations = metrics.iterations(workload, outcome)
    jobs = metrics.jobs(workload, outcome)
    per_job = np.bincount(iterations["job"], minlength=len(workload.jobs.arrival))[iterations["job"]]
    coflows["bound"] = lower.best(bounds.coflow)[coflows["coflow"]]
    stages["bound"] = lower.best(bounds.stage)[stages["stage"]]
    jobs["bound"] = lower.best(bounds.job)[jobs["job"]]
    iterations["bound"] = lower.best(bounds.job)[iterations["job"]] / per_job
    plain = {"coflows": coflows, "stages": stages, "iterations": iterations, "jobs": jobs}
    entry = {
        "engine": key.engine,
        "policy": key.policy,
        "seed": key.seed,
        "metrics": {name: metrics.summary(plain[table][column]) for name, (table, column) in METRICS.items()},
        "bound": _mean_bounds(plain, bounds, per_job),
        "bytes": float(flows["size"][~np.isnan(flows["finish"])].sum()),
        "simulated_s": outcome.simulated_s,
        "wall_s": outcome.wall_s,
        "peak_rss_bytes": outcome.peak_rss_bytes,
        "fidelity": outcome.fidelity,
        "mechanisms": outcome.mechanisms,
        "weighted_cct": _weighted(coflows, bounds),
    }
    if (on_time := metrics.deadlines_met(coflows, outcome.simulated_s)) is not None:
        entry["deadlines_met"] = on_time
    if placement is not None:
        entry["placement"] = placement
    plain |= {
        "flows": flows,
        "links": metrics.links(fabric, outcome),
        "tasks": metrics.tasks(workload, outcome),
    }
    tables = {name: _named(plain[name], name, key, workload, fabric) for name in TABLES}
    return Run(key, _jsonable(entry), tables)


def _mean_bounds(tables: Mapping[str, Table], bounds: Bounds, per_job: Ints) -> dict[str, Any]:
    """The bound of each metric's mean, over the same rows as that mean: the finished ones."""

    def finished(name: str, column: str) -> Ints:
        table = tables[name]
        ids: Ints = table["job" if name == "iterations" else name[:-1]]
        return ids[~np.isnan(table[column])]

    def whole(groups: Shared, named: Named, start: Floats, rows: Ints, n: int) -> dict[str, float]:
        return {name: total / n for name, total in lower.sums(groups, named, rows, start).items() if n}

    coflows, stages, jobs = tables["coflows"], tables["stages"], tables["jobs"]
    of_coflow, of_stage = finished("coflows", "cct"), finished("stages", "completion_time")
    of_job, iterations = finished("jobs", "jct"), tables["iterations"]
    done = ~np.isnan(iterations["iteration_time"])
    # JCT / n bounds the mean of all n iterations of a job, not of the first few of a job that was cut short,
    # nor where the last one is not the last to end (then some iteration's time is negative).
    partial = np.isin(iterations["job"][done], jobs["job"][np.isnan(jobs["jct"])]).any()
    partial |= (iterations["iteration_time"][done] < 0).any()
    rows = iterations["job"][done if not partial else done & False]
    by_coflow = whole(bounds.shared_coflow, bounds.coflow, coflows["arrival"], of_coflow, len(of_coflow))
    by_stage = whole(bounds.shared_stage, bounds.stage, stages["start"], of_stage, len(of_stage))
    by_job = whole(bounds.shared_job, bounds.job, jobs["arrival"], of_job, len(of_job))
    # Not partial: these are all iterations of the finished jobs, and their times sum up to the jobs'.
    per_row = {name: mean * len(of_job) / len(rows) for name, mean in by_job.items() if len(rows)}
    divide = per_job[done] if not partial else 1
    return {
        "stage_completion_time": lower.mean_bound(bounds.stage, of_stage, whole=by_stage),
        "coflow_completion_time": lower.mean_bound(bounds.coflow, of_coflow, whole=by_coflow),
        "iteration_time": lower.mean_bound(bounds.job, rows, divide, per_row),
        "job_completion_time": lower.mean_bound(bounds.job, of_job, whole=by_job),
    }


def _weighted(coflows: Table, bounds: Bounds) -> dict[str, Any]:
    """Mean completion time of the finished coflows with their weights, and its lower bounds."""
    rows = np.flatnonzero(~np.isnan(coflows["cct"]))
    weight = coflows["weight"]
    total = float(weight[rows].sum())
    if not total:
        return {"mean": None, "bound": lower.mean_bound(bounds.coflow, rows[:0])}
    whole = lower.sums(bounds.shared_coflow, bounds.coflow, rows, coflows["arrival"], weight)
    return {
        "mean": float((weight * coflows["cct"])[rows].sum()) / total,
        "bound": lower.mean_bound(
            {name: weight * seconds for name, seconds in bounds.coflow.items()},
            rows,
            total / len(rows),
            {name: seconds / total for name, seconds in whole.items()},
        ),
    }


def _named(table: Table, name: str, key: Key, workload: Workload, fabric: Fabric) -> Table:
    """The table with names for ordinals and its run in front, in the order of the schema."""
    ends: Sequence[str] = fabric.nodes if name == "links" else fabric.hosts
    names: dict[str, Sequence[str]] = {
        "job": workload.jobs.name,
        "src": ends,
        "dst": ends,
        "host": ends,
        "kind": [kind.name.lower() for kind in TaskKind],
    }
    rows = len(next(iter(table.values())))
    full = table | {"engine": _repeat(key.engine, rows), "policy": _repeat(key.policy, rows)}
    full["seed"] = np.full(rows, key.seed)
    for column, values in names.items():
        if column in full:
            # Ordinal -1 is "nowhere": the appended empty name.
            full[column] = np.array([*values, ""], dtype=object)[full[column]]
    return {column.name: full[column.name] for column in TABLES[name]}


def _repeat(text: str, rows: int) -> Any:
    column = np.empty(rows, dtype=object)
    column[:] = text
    return column


def _jsonable(value: Any) -> Any:
    """Plain JSON: numpy's scalars and arrays as Python's, and null for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"{value!r} ({type(value).__name__}) has no place in a summary")
