"""Sunflow: ports are reserved for one coflow after the other, the shortest first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal, NamedTuple

import numpy as np

from netsched.circuits.planes import AT_ONCE, NONE, Plane, Steps, apart, assemble, nothing, planes
from netsched.circuits.reservations import book
from netsched.model import CircuitPlan, CircuitView, Event, Floats, Ints
from netsched.routes import gather
from netsched.units import Duration

_SHORTEST: Final = 0.1
_LEAST: Final = 1e-6
"""No circuit is wanted for less than this share of its set-up, or so many seconds: what shares a port with
others leaves less and less of its bytes behind, and would be planned for again and again."""


class Reservation(NamedTuple):
    """A circuit from port `src` to port `dst` in [begin, end) seconds from now, its set-up included."""

    begin: float
    end: float
    src: int
    dst: int


@dataclass(frozen=True)
class Sunflow:
    """Coflow by coflow, shortest first; a circuit stays until its bytes are through (Sunflow, CoNEXT 2016).

    A coflow's length is its most loaded port's. Inside a coflow no circuit is given up before it has carried
    what it was set up for, which alone is within twice the optimum. A later coflow gets what is free, its
    circuits cut where an earlier one has reserved a port; gaps too short for the set-up stay empty. A pair
    of ends is reserved for the first coflow that needs it, whose flows go first over its circuit: shared by
    classes with others it would not carry in its time what it was reserved for. Made anew when a coflow
    comes or ends, when all that was reserved is over, and after `ahead` seconds: reservations further ahead
    than that would mostly not live to be used.

    As in the released simulator, a coflow's bytes are known when it comes, and ports whose circuits do not
    change are not disturbed; on a circuit the first coflow in the order that has bytes has all of it.
    INFERRED: those behind it share what it leaves by the policy's classes; a circuit that is there when plans
    are made anew goes on without a new set-up; one that nobody else needs stays after its bytes are through;
    none is wanted for less than a tenth of its set-up; several switches of the same ends are one of their
    added rates.
    """

    ahead: Duration = 1.0
    without_circuit: Literal["eps", "wait"] = "wait"

    name: ClassVar[str] = "sunflow"
    events: ClassVar[Event] = Event.COFLOW_RELEASED | Event.COFLOW_FINISHED | Event.PORTS_CHANGED
    hops: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not self.ahead > 0:
            raise ValueError(f"ahead is {self.ahead} s, must be more than 0")

    def __call__(self, view: CircuitView) -> CircuitPlan:
        if not len(view.announced.bytes):
            return nothing(view)
        parts = []
        review = self.ahead
        # Where planes share ends, the last one's word counts: their orders differ by rates only.
        first = np.full((len(view.packet_rate),) * 2, NONE, np.int64)
        for plane in planes(view):
            owner, src, dst, seconds = _rows(view, plane)
            dark = plane.dark.max(axis=0).tolist()
            present = {(i, int(j)): dark[i] for i, j in enumerate(plane.out[0].tolist()) if j != NONE}
            made, holder = reserve(owner, src, dst, seconds, plane.delay, self.ahead, present)
            if made:
                inside = np.ix_(plane.ends[: len(holder)], plane.ends[: len(holder)])
                first[inside] = np.where(holder == NONE, first[inside], holder)
                parts.append((plane, _steps(made, plane)))
                # Bytes that were slower than their circuit are left over then.
                review = min(review, max(each.end for each in made))
        plan = assemble(view, parts, review)
        return replace(plan, first=first) if len(plan.hold) else plan


def _rows(view: CircuitView, plane: Plane) -> tuple[Ints, Ints, Ints, Floats]:
    """The announced pairs among the plane's ends, in its numbers and in seconds of a circuit."""
    local = np.full(len(view.packet_rate), NONE, np.int64)
    local[plane.ends] = np.arange(len(plane.ends))
    rows = view.announced
    src, dst = local[rows.src], local[rows.dst]
    inside = (src >= 0) & (dst >= 0)
    seconds = rows.bytes[inside] / (plane.rate * len(plane.switches))
    seconds = np.maximum(seconds, max(plane.delay * _SHORTEST, _LEAST))
    return rows.owner[inside], src[inside], dst[inside], seconds


def reserve(
    owner: Ints,
    src: Ints,
    dst: Ints,
    seconds: Floats,
    delay: float,
    ahead: float,
    present: dict[tuple[int, int], float],
) -> tuple[list[Reservation], Ints]:
    """Reservations that begin within `ahead` seconds for the rows (coflow, pair, seconds of a circuit).

    With them (n, n) the coflow for which each pair is reserved, or would be further ahead, -1 for none.

    `present` are the pairs that have circuits, and the seconds until these are up: at time 0 that is all the
    set-up that they need.
    """
    if not len(owner):
        return [], np.zeros((0, 0), np.int64)
    n = int(max(src.max(), dst.max(), max((max(pair) for pair in present), default=0))) + 1
    up_in = np.full((n, n), np.inf)
    for pair, wait in present.items():
        up_in[pair] = wait
    cuts, rows = _shortest_first(owner, src, dst, seconds, n)
    begin, end, row, holder = book(
        cuts, rows, src, dst, seconds.astype(np.float64), float(delay), float(ahead), up_in
    )
    columns = begin.tolist(), end.tolist(), src[row].tolist(), dst[row].tolist()
    made = [Reservation(*each) for each in zip(*columns, strict=True)]
    return made, np.append(owner, NONE)[holder]


def _shortest_first(owner: Ints, src: Ints, dst: Ints, seconds: Floats, ends: int) -> tuple[Ints, Ints]:
    """Rows by coflow as CSR, coflows ascending by their most loaded port, ties by number."""
    first = np.concatenate([[0], np.flatnonzero(np.diff(owner)) + 1, [len(owner)]])
    number = np.repeat(np.arange(len(first) - 1), np.diff(first))
    busiest = np.zeros(len(first) - 1)
    for port in (src, dst):
        load = np.bincount(number * ends + port, seconds, len(busiest) * ends).reshape(-1, ends)
        busiest = np.maximum(busiest, load.max(axis=1))
    order = np.lexsort((owner[first[:-1]], busiest))
    return gather(first, np.arange(len(owner)), order)


def _steps(made: list[Reservation], plane: Plane) -> Steps:
    """Matchings at every time at which a reservation begins; circuits stay until their ports are needed."""
    made = sorted(made)
    times = apart(np.array([0.0, *(each.begin for each in made)])).tolist()
    m, n = plane.out.shape
    now: list[int] = plane.out[0].tolist()
    source = {dst: src for src, dst in enumerate(now) if dst != NONE}
    out = np.empty((len(times), n), np.int64)
    k = 0
    for i, t in enumerate(times):
        while k < len(made) and made[k].begin <= t + AT_ONCE:
            src, dst = made[k].src, made[k].dst
            if dst in source:
                now[source[dst]] = NONE
            if now[src] != NONE:
                del source[now[src]]
            now[src], source[dst] = dst, src
            k += 1
        out[i] = now
    end = max(each.end for each in made)
    return Steps(np.repeat(out[:, None, :], m, axis=1), np.diff(np.append(times, end)))
