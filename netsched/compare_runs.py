"""The runs of results, read for a comparison: that they carried one workload, and what each did with it.

Apart from the figures, because a ratio of two coflows with one number and different bytes would say nothing:
nothing leaves this file that has not been checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import yaml

from netsched import results
from netsched.errors import ScenarioError
from netsched.metrics import Table
from netsched.model import Floats
from netsched.results import Key, Result
from netsched.scenario import QUEUES

_METRIC: Final = "coflow_completion_time"
_WORKLOAD: Final = {
    "jobs": ("job", "arrival", "weight", "iterations"),
    "coflows": ("coflow", "stage", "job", "iteration", "label", "weight", "deadline", "width", "bytes"),
    "flows": ("flow", "coflow", "src", "dst", "size", "need", "need_span"),
    "tasks": ("task", "job", "iteration", "host", "kind", "seconds"),
}
"""Columns that the workload alone decides, whatever the policy and the engine do."""


@dataclass(frozen=True)
class Measured:
    """What one run did with the coflows. Seconds, one `cct` per coflow (NaN: unfinished).

    makespan  first arrival to last finish of all coflows, None if one has not finished
    bound     lower bound of the mean of the finished coflows, None where none is known
    bounds    by name, the known bounds that it is the best of
    network   equal in runs over the same links
    queues    hardware classes, None for as many as there are ranks
    setting   equal in runs of one engine with the same transport, control and emulation
    on_time   share of the coflows with a deadline that met it, None where there are none
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
    queues: int | None
    setting: str
    on_time: float | None


def names(folders: Sequence[Path]) -> list[str]:
    """What each result is called: its folder's name, or its path where two folders have the same name."""
    short = [folder.resolve().name for folder in folders]
    return [
        name if short.count(name) == 1 else str(folder) for name, folder in zip(short, folders, strict=True)
    ]


def workload_of(result: Result) -> dict[str, Table]:
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


def same(first: Path, other: Path, mine: dict[str, Table], yours: dict[str, Table]) -> None:
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


def measured(result: Result, name: str) -> list[Measured]:
    """What each run of the result, which is called `name`, did. ScenarioError if a file of it is damaged."""
    found = []
    network, (queues, setting) = _network(result), _setting(result)
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
                queues=queues,
                setting=setting,
                on_time=entry.get("deadlines_met", {}).get("share"),
            )
        )
    return found


def _network(result: Result) -> str:
    table = results.read(result, "links", result.runs[0], ("src", "dst", "capacity"))
    digest = hashlib.sha256()
    for column in table.values():
        digest.update(repr(column.tolist()).encode())
    return digest.hexdigest()


def _setting(result: Result) -> tuple[int | None, str]:
    """The classes that a result's scenario has, and what else of it decides how a policy is carried out."""
    path = result.path / results.SCENARIO
    try:
        source = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ScenarioError(f"{path}: damaged: {str(error).splitlines()[0]}") from error
    if not isinstance(source, dict):
        raise ScenarioError(f"{path}: damaged: is no mapping: run it again")
    queues = source.get("queues", QUEUES)
    rest = {key: source.get(key) for key in ("transport", "control", "horizon", "emulation")}
    return queues if isinstance(queues, int) else None, repr(rest)
