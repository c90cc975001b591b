"""What the files of a result contain: the columns of the tables (name, type, unit) and the keys of a run.

One list that the writer obeys and that docs/results.md is tested against, so that a reader of a file can
trust the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["int64", "float64", "text"]


@dataclass(frozen=True)
class Column:
    """`unit` is "" for counts, ordinals and names. Text is stored once per distinct value (dictionary)."""

    name: str
    kind: Kind
    unit: str = ""


def _ints(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "int64") for name in names)


def _texts(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "text") for name in names)


def _floats(unit: str, *names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "float64", unit) for name in names)


RUN: Final = (*_texts("engine", "policy"), *_ints("seed"))
"""The first columns of every table: which run the row is from."""

TABLES: Final[Mapping[str, tuple[Column, ...]]] = {
    "flows": (
        *RUN,
        *_ints("flow", "coflow", "stage"),
        *_texts("job"),
        *_ints("iteration"),
        *_texts("src", "dst"),
        *_floats("bytes", "size"),
        *_ints("need", "need_span", "class"),
        *_floats("s", "release", "finish", "fct"),
    ),
    "coflows": (
        *RUN,
        *_ints("coflow", "stage"),
        *_texts("job"),
        *_ints("iteration"),
        *_texts("label"),
        *_floats("", "weight"),
        *_floats("s", "deadline"),
        *_ints("width"),
        *_floats("bytes", "bytes"),
        *_floats("s", "arrival", "finish", "cct", "bound"),
    ),
    "stages": (
        *RUN,
        *_ints("stage"),
        *_texts("job"),
        *_ints("iteration"),
        *_texts("label"),
        *_ints("flows"),
        *_floats("bytes", "bytes"),
        *_floats("s", "start", "finish", "completion_time", "bound"),
    ),
    "iterations": (
        *RUN,
        *_texts("job"),
        *_ints("iteration"),
        *_floats("s", "start", "finish", "iteration_time", "bound"),
    ),
    "jobs": (
        *RUN,
        *_texts("job"),
        *_floats("", "weight"),
        *_ints("iterations"),
        *_floats("bytes", "bytes"),
        *_floats("s", "arrival", "finish", "jct", "bound"),
    ),
    "links": (
        *RUN,
        *_ints("link"),
        *_texts("src", "dst"),
        *_floats("bytes/s", "capacity"),
        *_floats("bytes", "bytes"),
        *_floats("", "utilisation"),
    ),
    "tasks": (
        *RUN,
        *_ints("task"),
        *_texts("job"),
        *_ints("iteration"),
        *_texts("host", "kind", "label"),
        *_floats("s", "seconds", "start", "finish"),
    ),
}

RUN_KEYS: Final = (
    *("engine", "policy", "seed", "metrics", "bound", "bytes"),
    *("simulated_s", "wall_s", "peak_rss_bytes", "fidelity", "mechanisms"),
)
"""Of each run in summary.json, in this order."""

FIGURES_OF_METRIC: Final = ("count", "mean", "p50", "p95", "p99", "max", "unfinished")
"""Of each metric of a run, in this order."""
