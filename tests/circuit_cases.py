"""Views for the tests of circuit schedulers, from matrices and lists of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import CircuitPlan, CircuitView, Event, JobView, Pairs

Row = tuple[int, int, int, float]


def pairs(rows: Sequence[Row]) -> Pairs:
    """Rows (owner, src, dst, bytes), sorted."""
    table = sorted(rows)
    columns = [np.array([row[i] for row in table], np.int64) for i in range(3)]
    return Pairs(*columns, np.array([row[3] for row in table], np.float64))


def matrix_rows(demand: np.ndarray, owner: int = 0) -> list[Row]:
    return [(owner, int(i), int(j), float(demand[i, j])) for i, j in zip(*np.nonzero(demand), strict=True)]


def view(
    ends: int,
    waiting: Sequence[Row] = (),
    *,
    work: Sequence[Row] = (),
    switches: int = 1,
    rate: float = 1.0,
    packet_rate: float = 0.1,
    delay: float = 0.0,
    out: np.ndarray | None = None,
    now: float = 0.0,
    iterations: Sequence[int] = (),
    done: Sequence[int] = (),
) -> CircuitView:
    """A view in small numbers: ports of 1 byte/s unless said otherwise."""
    n = len(iterations)
    return CircuitView(
        now=now,
        waiting=pairs(waiting),
        announced=pairs(waiting),
        work=pairs(work),
        jobs=JobView(
            id=np.arange(n),
            arrival=np.zeros(n),
            weight=np.ones(n),
            iterations=np.array(iterations, np.int64),
            iterations_done=np.array(done or [0] * n, np.int64),
        ),
        out=np.full((switches, ends), -1, np.int64) if out is None else out,
        dark=np.zeros((switches, ends)),
        rate=np.full((switches, ends), rate),
        packet_rate=np.full(ends, packet_rate),
        delay=np.full(switches, delay),
    )


def ring(owner: int, ends: Sequence[int], amount: float) -> list[Row]:
    return [(owner, a, b, amount) for a, b in zip(ends, [*ends[1:], ends[0]], strict=True)]


@dataclass(frozen=True)
class Script:
    """Commands matchings of one switch at given times: (seconds, ends). Asked once, at the first release.

    `first`: a row per end, the coflow that goes first from there to each end.
    """

    steps: tuple[tuple[float, tuple[int, ...]], ...]
    without_circuit: str = "eps"
    hops: int = 1
    first: tuple[tuple[int, ...], ...] | None = None

    name: ClassVar[str] = "script"
    events: ClassVar[Event] = Event.NONE

    def __call__(self, view: CircuitView) -> CircuitPlan:
        begin = [at for at, _ in self.steps]
        out = np.array([[row] for _, row in self.steps], np.int64)
        dark = np.full((1, 1, out.shape[2]), -1)
        hold = np.diff([0.0, *begin, np.inf])
        first = None if self.first is None else np.array(self.first)
        return CircuitPlan(np.concatenate([dark, out])[hold > 0], hold[hold > 0], first=first)
