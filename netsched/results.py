"""Results on disk: a folder with the scenario as run, summary.json and one Parquet file per table and run.

A run is recorded when it has finished and not touched again, so that an interrupted comparison keeps what
it has. `summary.json` is the table of contents: it is replaced, by rename, after the files of a run are in
place, and what it does not list is not part of the result. docs/results.md describes every column and key.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from netsched.errors import ScenarioError
from netsched.metrics import METRICS, Table
from netsched.model import Scenario
from netsched.record import Key, Run, record
from netsched.schema import FIGURES_OF_METRIC, RUN_KEYS, TABLES, Column

__all__ = [
    "COMPARISONS",
    "FIGURES",
    "PLOTS",
    "SCENARIO",
    "SUMMARY",
    "VERSION",
    "Key",
    "Result",
    "Run",
    "add",
    "create",
    "load",
    "read",
    "record",
]

VERSION: Final = 1
"""Of the format of summary.json and the tables. It grows when old readers would misread new files."""

SUMMARY: Final = "summary.json"
SCENARIO: Final = "scenario.yaml"
PLOTS: Final = "plots"
FIGURES: Final = ("stage_completion_time_cdf", "stage_completion_time_bars", "timeline")
"""How the names of the figures begin that belong to a result."""
COMPARISONS: Final = (
    *("coflow_completion_time_cdf", "coflow_completion_time_by_class"),
    "slowdown_against_fair_cdf",
)
"""How the names of the figures of `netsched compare` begin, which may lie beside them."""


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


# ------------------------------------------------------------------ writing


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other runs out of `folder` until the block ends or the process does.

    Two at once would clear each other's files and mix their runs. ScenarioError if one is at work there, or
    the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileExistsError:
        raise ScenarioError(f"{folder}: is a file; the results need a folder of their own (--out)") from None
    except OSError as error:
        raise ScenarioError(f"{folder}: cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        text = "another run writes its results there: wait for its end, or choose another folder (--out)"
        raise ScenarioError(f"{folder}: {text}") from None
    except OSError:
        # Some network file systems know no locks: there it is the user's care, as it was.
        pass
    try:
        yield
    finally:
        os.close(held)


def create(folder: Path, scenario: Scenario) -> None:
    """Make `folder` an empty result of this scenario, replacing an earlier result in it.

    Only files that a result consists of are removed. ScenarioError if there is something else than a
    result in the folder, or it cannot be written.
    """
    try:
        _claim(folder)
        # First, so that a folder in which this is interrupted is still known as a result, of no runs.
        _write_summary(folder, {"scenario": scenario.name, "version": VERSION, "runs": []})
        _clear(folder)
        text = yaml.safe_dump(_plain(scenario.source), sort_keys=False, allow_unicode=True)
        _replace(folder / SCENARIO, lambda path: path.write_text(text, encoding="utf-8"))
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
    if (folder / SUMMARY).exists():
        _summary(folder)
    elif any(path != _draft(folder / SUMMARY) for path in folder.iterdir()):
        raise ScenarioError(f"{folder}: holds other files and is no result: choose an empty folder (--out)")


def _clear(folder: Path) -> None:
    ours = [path for name in TABLES for path in (folder / name).glob("*.parquet*")]
    drawn = (folder / PLOTS).glob("*.*")
    ours += [
        path
        for path in drawn
        if path.name.startswith(FIGURES + COMPARISONS) and path.suffix in (".png", ".svg")
    ]
    for path in ours:
        path.unlink()


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that a reader, and a kill at any moment, meets the old one or the new one."""
    draft = _draft(path)
    write(draft)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)


def _draft(path: Path) -> Path:
    # Readers of a folder of Parquet files skip names with a dot in front.
    return path.with_name(f".{path.name}.part")


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
    if not folder.is_dir():
        raise ScenarioError(f"{folder}: is no folder; a result is the folder that `netsched run` wrote")
    summary = _summary(folder)
    if summary["version"] != VERSION:
        raise ScenarioError(
            f"{folder / SUMMARY}: version {summary['version']!r} is not known, only {VERSION}: run it again"
        )
    try:
        keys = tuple(_key(entry) for entry in summary["runs"])
    except (TypeError, KeyError, ValueError) as error:
        what = f"a run lacks {error}" if isinstance(error, KeyError) else f"runs: {error}"
        raise ScenarioError(f"{folder / SUMMARY}: damaged: {what}") from error
    for key in keys:
        for name in TABLES:
            if not _file(folder, name, key).is_file():
                raise ScenarioError(f"{_file(folder, name, key)}: missing, but listed in {SUMMARY}")
    return Result(folder, str(summary["scenario"]), summary, keys)


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / SUMMARY
    if not path.is_file():
        raise ScenarioError(f"{folder}: is no result: {SUMMARY} is missing")
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ScenarioError(f"{path}: damaged, not JSON: {error}") from error
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(summary, dict) or not {"scenario", "version", "runs"} <= summary.keys():
        raise ScenarioError(f"{path}: damaged: needs the keys scenario, version and runs")
    return summary


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
    """The key of a run. KeyError or TypeError if the entry lacks what readers of summary.json rely on."""
    for name in METRICS:
        _demand(entry["metrics"][name], FIGURES_OF_METRIC)
        _demand(entry["bound"][name], ("mean", "names"))
    _demand(entry, RUN_KEYS)
    _demand(entry["fidelity"], ())
    return Key(str(entry["engine"]), str(entry["policy"]), int(entry["seed"]))


def _demand(entry: Any, names: Iterable[str]) -> None:
    if not isinstance(entry, dict):
        raise TypeError(f"{entry!r} is not a mapping")
    for name in names:
        if name not in entry:
            raise KeyError(name)


def _file(folder: Path, name: str, key: Key) -> Path:
    return folder / name / f"{key.stem}.parquet"
