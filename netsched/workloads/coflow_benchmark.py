"""Reads a trace in the Coflow-Benchmark format: one job, one stage and one coflow per line.

The public trace of this format is what the coflow literature compares itself on: Chowdhury, Zhong and
Stoica, "Efficient Coflow Scheduling with Varys" (SIGCOMM 2014); Chowdhury and Stoica, "Efficient Coflow
Scheduling Without Prior Knowledge" (Aalo, SIGCOMM 2015).

Line 1: ports, coflows. Any other line: id, arrival in ms, number of mappers, their ports, number of
reducers, `port:megabytes` of each reducer. Ports count from 0; port p is the p-th host of the fabric. A
megabyte is 10^6 bytes, and a reducer receives an equal share of its megabytes from every mapper, the mapper
on its own port included, whose share crosses that port like any other (as in the reference simulators).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from netsched.errors import ScenarioError
from netsched.model import Floats, Ints
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.deadlines import Deadline, deadlines
from netsched.workloads.kind import Count, FabricView, JobName, Kind, Params

MEGABYTE: Final = 1e6
_WHOLE: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?([eE][+-]?[0-9]{1,2})?", re.ASCII)
_LONGEST_LINE: Final = 1 << 24


class TraceParams(Params):
    """`path` of the trace, relative to the working directory; `limit` takes only its first coflows."""

    path: str
    limit: Count | None = None
    deadline: Deadline | None = None
    name: JobName = "coflow"


@dataclass(frozen=True)
class TraceCoflow:
    """One line: mapper ports, reducer ports and the bytes of each reducer; `arrival` in seconds."""

    id: int
    arrival: float
    mappers: Ints
    reducers: Ints
    reducer_bytes: Floats


@dataclass(frozen=True)
class Trace:
    """A whole file, in the order of its lines."""

    ports: int
    coflows: tuple[TraceCoflow, ...]


class _Words:
    """The words of one line, taken from left to right; every complaint names file, line and finding."""

    def __init__(self, where: str, line: str) -> None:
        self._where = where
        self._words = line.split()
        self._next = 0

    def bad(self, found: str, right: str) -> ScenarioError:
        return ScenarioError(f"{self._where}: {found}: {right}")

    def word(self, what: str) -> str:
        if self._next >= len(self._words):
            raise self.bad(
                f"the line ends where {what} should be", "a count is too large or the line was cut"
            )
        self._next += 1
        return self._words[self._next - 1]

    def whole(self, what: str, low: int, high: int) -> int:
        return self.to_whole(self.word(what), what, low, high)

    def to_whole(self, text: str, what: str, low: int, high: int) -> int:
        if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
            raise self.bad(f"{what} is {_shown(text)}", f"it must be a whole number from {low} to {high}")
        return int(text)

    def to_number(self, text: str, what: str) -> float:
        if not _NUMBER.fullmatch(text) or float(text) > 1e15:
            raise self.bad(f"{what} is {_shown(text)}", "it must be a number from 0 to 1e15, such as 12.5")
        return float(text)

    def end(self) -> None:
        if self._next < len(self._words):
            raise self.bad(
                f"{_shown(self._words[self._next])} follows the last value",
                "the line must end there, or a count is too small",
            )


def read(path: Path) -> Trace:
    """The trace in `path`. ScenarioError, with file and line, for whatever is wrong with it."""
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise ScenarioError(f"path: {path} {what}: give a trace in the Coflow-Benchmark format")
    try:
        with path.open("rb") as file:
            return _read(_lines(file, path), path)
    except OSError as error:
        raise ScenarioError(f"path: {path} cannot be read: {error.strerror}") from None


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[str, str]]:
    """(place, text) of every line up to the last one with a word in it. ScenarioError if it is not text."""
    blank = 0
    number = 0
    while raw := file.readline(_LONGEST_LINE):
        number += 1
        where = f"{path}:{number}"
        if len(raw) == _LONGEST_LINE:
            raise ScenarioError(
                f"{where}: the line has {_LONGEST_LINE >> 20} MiB or more: this is not a coflow trace"
            )
        try:
            text = raw.decode("ascii")
        except UnicodeDecodeError as error:
            raise ScenarioError(
                f"{where}: byte 0x{raw[error.start]:02x} is not text: the file must be plain ASCII"
            ) from None
        if "\0" in text:
            raise ScenarioError(f"{where}: byte 0x00 is not text: the file must be plain ASCII")
        if not text.strip():
            blank = blank or number
            continue
        if blank:
            raise ScenarioError(
                f"{path}:{blank}: the line is empty: every line but the first must be a coflow"
            )
        yield where, text


def _read(lines: Iterator[tuple[str, str]], path: Path) -> Trace:
    first = next(lines, None)
    if first is None:
        raise ScenarioError(f"{path}: the file is empty: line 1 must be the numbers of ports and of coflows")
    head = _Words(*first)
    ports = head.whole("the number of ports", 1, 10**7)
    count = head.whole("the number of coflows", 1, 10**7)
    head.end()
    coflows: list[TraceCoflow] = []
    line_of: dict[int, str] = {}
    for where, text in lines:
        if len(coflows) == count:
            raise ScenarioError(
                f"{where}: one coflow more than the {count} that line 1 announces: correct one of them"
            )
        words = _Words(where, text)
        coflow = _coflow(words, ports)
        if coflow.id in line_of:
            raise words.bad(f"id {coflow.id} is used in {line_of[coflow.id]} already", "ids must be unique")
        line_of[coflow.id] = where
        coflows.append(coflow)
    if len(coflows) < count:
        raise ScenarioError(
            f"{path}:1: announces {count} coflows, {len(coflows)} follow: correct it or add the rest"
        )
    return Trace(ports, tuple(coflows))


def _coflow(words: _Words, ports: int) -> TraceCoflow:
    number = words.whole("the coflow's id", 0, 10**15 - 1)
    arrival = words.to_number(words.word("the arrival in ms"), "the arrival in ms") / 1000
    n_mappers = words.whole("the number of mappers", 1, ports)
    mappers = [words.whole(f"the port of mapper {m + 1}", 0, ports - 1) for m in range(n_mappers)]
    n_reducers = words.whole("the number of reducers", 1, ports)
    reducers: list[int] = []
    sizes: list[float] = []
    for r in range(n_reducers):
        text = words.word(f"reducer {r + 1}")
        port, colon, megabytes = text.partition(":")
        if not colon:
            raise words.bad(f"reducer {r + 1} is {_shown(text)}", "it must be port:megabytes, such as 12:3.5")
        reducers.append(words.to_whole(port, f"the port of reducer {r + 1}", 0, ports - 1))
        sizes.append(words.to_number(megabytes, f"the megabytes of reducer {r + 1}") * MEGABYTE)
    words.end()
    return TraceCoflow(number, arrival, np.array(mappers), np.array(reducers), np.array(sizes))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")


def build(
    params: TraceParams, fabric: FabricView, builder: WorkloadBuilder, rng: np.random.Generator
) -> None:
    """Add a job per coflow; its flows are ordered by reducer, then mapper."""
    trace = read(Path(params.path).expanduser())
    if trace.ports > len(fabric.hosts):
        raise ScenarioError(
            f"path: {params.path}:1: the trace has {trace.ports} ports, the fabric {len(fabric.hosts)} "
            f"hosts: use a fabric of {trace.ports} hosts or more"
        )
    if params.limit is not None and params.limit > len(trace.coflows):
        raise ScenarioError(
            f"limit: {params.limit} is more than the {len(trace.coflows)} coflows of {params.path}"
        )
    chosen = trace.coflows[: params.limit]
    builder.admit(sum(len(c.mappers) * len(c.reducers) for c in chosen))
    for c in chosen:
        label = f"{params.name} {c.id}"
        flows = (
            np.zeros(len(c.mappers) * len(c.reducers), np.int64),
            np.tile(c.mappers, len(c.reducers)),
            np.repeat(c.reducers, len(c.mappers)),
            np.repeat(c.reducer_bytes / len(c.mappers), len(c.mappers)),
        )
        (deadline,) = deadlines(params.deadline, fabric, flows, 1, rng, hairpin=True).tolist()
        job = builder.add_job(label, arrival=c.arrival)
        coflow = builder.add_coflow(job, builder.add_stage(job, label), label, deadline=deadline)
        builder.add_flows(coflow, *flows[1:])


COFLOW_BENCHMARK = Kind(
    TraceParams, build, "a trace file in the Coflow-Benchmark format, one job per coflow", hairpin=True
)
