"""Results on disk: a folder with the scenario as run, summary.json and one Parquet file per table and run.

A run is recorded when it has finished and not touched again, so that an interrupted comparison keeps what
it has. `summary.json` is the table of contents: it is replaced, by rename, after the files of a run are in
place, and what it does not list is not part of the result. docs/results.md describes every column and key.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from netsched import bounds as lower
from netsched import metrics
from netsched.bounds import Bounds
from netsched.errors import ScenarioError
from netsched.metrics import METRICS, Table
from netsched.model import Ints, Outcome, Scenario, TaskKind, Workload
from netsched.schema import TABLES, Column

if TYPE_CHECKING:
    from netsched.fabric import Fabric

VERSION: Final = 1
"""Of the format of summary.json and the tables. It grows when old readers would misread new files."""

SUMMARY: Final = "summary.json"
SCENARIO: Final = "scenario.yaml"
PLOTS: Final = "plots"
FIGURES: Final = ("stage_completion_time_cdf", "stage_completion_time_bars", "timeline")
"""How the names of the figures begin that belong to a result."""


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


@dataclass(frozen=True)
class Result:
    """A result folder that has been checked. `runs` are the keys in the order in which they were recorded."""

    path: Path
    scenario: str
    summary: Mapping[str, Any]
    runs: tuple[Key, ...]

    def entry(self, key: Key) -> Mapping[str, Any]:
        """What summary.json says of a run."""
        entries: Sequence[Mapping[str, Any]] = self.summary["runs"]
        return entries[self.runs.index(key)]


# ------------------------------------------------------------------ from an outcome to a run


def record(key: Key, workload: Workload, fabric: Fabric, outcome: Outcome, bounds: Bounds) -> Run:
    """The tables and the summary of one run. Nothing is written yet."""
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
    }
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

    jobs, iterations = tables["jobs"], tables["iterations"]
    done = ~np.isnan(iterations["iteration_time"])
    # JCT / n bounds the mean of all n iterations of a job, not of the first few of a job that was cut short.
    partial = np.isin(iterations["job"][done], jobs["job"][np.isnan(jobs["jct"])]).any()
    rows = iterations["job"][done if not partial else done & False]
    return {
        "stage_completion_time": lower.mean_bound(bounds.stage, finished("stages", "completion_time")),
        "coflow_completion_time": lower.mean_bound(bounds.coflow, finished("coflows", "cct")),
        "iteration_time": lower.mean_bound(bounds.job, rows, per_job[done] if not partial else 1),
        "job_completion_time": lower.mean_bound(bounds.job, finished("jobs", "jct")),
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
    raise TypeError(f"{value!r} ({type(value).__name__}) has no place in {SUMMARY}")


# ------------------------------------------------------------------ writing


def create(folder: Path, scenario: Scenario) -> None:
    """Make `folder` an empty result of this scenario, replacing an earlier result in it.

    Only files that a result consists of are removed. ScenarioError if there is something else than a
    result in the folder, or it cannot be written.
    """
    try:
        _claim(folder)
        text = yaml.safe_dump(_plain(scenario.source), sort_keys=False, allow_unicode=True)
        _replace(folder / SCENARIO, lambda path: path.write_text(text, encoding="utf-8"))
        _write_summary(folder, {"scenario": scenario.name, "version": VERSION, "runs": []})
    except OSError as error:
        raise ScenarioError(f"{folder}: cannot be written: {error.strerror}") from error


def add(folder: Path, run: Run) -> None:
    """Record a finished run in the result `folder`, in place of one with the same key.

    All or nothing: until summary.json has been replaced the run is not part of the result.
    """
    summary = load(folder).summary
    try:
        for name, table in run.tables.items():
            target = folder / name / f"{run.key.stem}.parquet"
            target.parent.mkdir(exist_ok=True)
            _replace(target, _parquet_writer(_arrow(table, TABLES[name])))
        runs = [entry for entry in summary["runs"] if _key(entry) != run.key]
        _write_summary(folder, {**summary, "runs": [*runs, run.entry]})
    except OSError as error:
        raise ScenarioError(f"{folder}: cannot be written: {error.strerror}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _claim(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ScenarioError(f"{folder}: is a file; the results need a folder of their own (--out)")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        if not (folder / SUMMARY).is_file():
            raise ScenarioError(
                f"{folder}: holds other files and is no result: choose an empty folder (--out)"
            )
        load(folder)
        # The table of contents goes first: interrupted in between, what is left claims nothing.
        ours = [folder / SUMMARY]
        ours += [path for name in TABLES for path in (folder / name).glob("*.seed*.parquet*")]
        drawn = (folder / PLOTS).glob("*.*")
        ours += [path for path in drawn if path.name.startswith(FIGURES) and path.suffix in (".png", ".svg")]
        for path in ours:
            path.unlink()


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that a reader, and a kill at any moment, meets the old one or the new one."""
    # Dot files are skipped by readers of a folder of Parquet files.
    draft = path.with_name(f".{path.name}.part")
    write(draft)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)


def _write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
    _replace(folder / SUMMARY, lambda path: path.write_text(text, encoding="utf-8"))


def _parquet_writer(table: pa.Table) -> Callable[[Path], object]:
    return lambda path: pq.write_table(table, path, compression="zstd")


def _arrow(table: Table, columns: Sequence[Column]) -> pa.Table:
    types = {"int64": pa.int64(), "float64": pa.float64(), "text": pa.string()}
    arrays = []
    for column in columns:
        array = pa.array(table[column.name], types[column.kind], from_pandas=False)
        arrays.append(array.dictionary_encode() if column.kind == "text" else array)
    units = [{"unit": column.unit} if column.unit else None for column in columns]
    fields = [
        pa.field(c.name, a.type, metadata=unit) for c, a, unit in zip(columns, arrays, units, strict=True)
    ]
    schema = pa.schema(fields, metadata={"netsched.format": str(VERSION)})
    return pa.Table.from_arrays(arrays, schema=schema)


# ------------------------------------------------------------------ reading


def load(folder: Path) -> Result:
    """The result in `folder`. ScenarioError if there is none, or it is damaged or of an unknown version."""
    path = folder / SUMMARY
    if not folder.is_dir():
        raise ScenarioError(f"{folder}: is no folder; a result is the folder that `netsched run` wrote")
    if not path.is_file():
        raise ScenarioError(f"{folder}: is no result: {SUMMARY} is missing")
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: damaged, not JSON: {error}") from error
    if not isinstance(summary, dict) or not {"scenario", "version", "runs"} <= summary.keys():
        raise ScenarioError(f"{path}: damaged: needs the keys scenario, version and runs")
    if summary["version"] != VERSION:
        raise ScenarioError(
            f"{path}: version {summary['version']!r} is not known, only {VERSION}: run it again"
        )
    try:
        keys = tuple(_key(entry) for entry in summary["runs"])
    except (TypeError, KeyError, AttributeError) as error:
        raise ScenarioError(f"{path}: damaged: every run needs engine, policy and seed") from error
    for key in keys:
        for name in TABLES:
            if not _file(folder, name, key).is_file():
                raise ScenarioError(f"{_file(folder, name, key)}: missing, but listed in {SUMMARY}")
    return Result(folder, str(summary["scenario"]), summary, keys)


def read(result: Result, name: str, key: Key, columns: Sequence[str] | None = None) -> Table:
    """Columns of one table of one run (all of them by default), names as Python strings."""
    path = _file(result.path, name, key)
    wanted = list(columns) if columns is not None else [column.name for column in TABLES[name]]
    try:
        table = pq.read_table(path, columns=wanted, partitioning=None)
        return {column: table[column].to_numpy() for column in wanted}
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ScenarioError(f"{path}: damaged: {str(error).splitlines()[0]}") from error


def _key(entry: Mapping[str, Any]) -> Key:
    return Key(str(entry["engine"]), str(entry["policy"]), int(entry["seed"]))


def _file(folder: Path, name: str, key: Key) -> Path:
    return folder / name / f"{key.stem}.parquet"
