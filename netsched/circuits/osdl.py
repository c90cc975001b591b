"""OSDL: rings of circuits for the ring all-reduce jobs that gain most from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from netsched.circuits.planes import NONE, nothing
from netsched.circuits.topoopt import ring_of
from netsched.model import Bools, CircuitPlan, CircuitView, Event, Floats, Ints
from netsched.ondemand import frozen
from netsched.units import Duration


@dataclass(frozen=True)
class Osdl:
    """Optical slices for ring all-reduce jobs by gain per port (OSDL, Computer Networks 198, 2022).

    The paper names what is decided (which jobs get a ring of circuits, reuse of rings that are there,
    circuits and packets jointly, moving running jobs); the rules are INFERRED:

    A job's gain is the iterations it has left times the seconds that each saves: its busiest pair's bytes
    over the packet network, shared by all jobs there that have no slice, against over a circuit. A ring that
    is up and that no job of more gain uses costs nothing. New circuits cost the reconfiguration delay, and
    `checkpoint` for a job that has finished an iteration (it would have to be moved); a job gets them if its
    gain is more, the most gain per port first, where a switch has all their ports free. Rings of jobs that
    have ended stay up until their ports are needed, so that the next job like them finds one.

    A ring is over ends: of the workers behind one rack the neighbours stay on its packet switch. Which hosts
    a job gets is the placement's matter: what moves is a job's traffic. With `dedicated` a slice is its job's
    alone, which only the simulator can do; without, flows of other jobs between two of its ends use it too.
    """

    checkpoint: Duration = 0.0
    dedicated: bool = False
    without_circuit: Literal["eps", "wait"] = "eps"

    name: ClassVar[str] = "osdl"
    events: ClassVar[Event] = Event.COFLOW_RELEASED | Event.COFLOW_FINISHED | Event.PORTS_CHANGED
    hops: ClassVar[int] = 1

    def __call__(self, view: CircuitView) -> CircuitPlan:
        work = view.work
        columns = (each.tobytes() for each in (work.owner, work.src, work.dst, work.bytes))
        rings = _rings(*columns, len(view.packet_rate))
        rate = _port_rate(view, rings)
        out, owner = view.out.copy(), np.full(view.out.shape, -1, np.int64)
        used = np.zeros(out.shape, bool)
        load = rings.bytes @ rings.member
        without = np.ones(len(rings.row), bool)
        up = ((out[:, None, :] == rings.after) | ~rings.member).all(axis=2)
        gain = _gains(view, rings, rate.max(axis=0, initial=0.0), load)
        for r in np.lexsort((rings.row, -gain)).tolist():
            free = up[:, r] & ~used[:, rings.member[r]].any(axis=1)
            if free.any():
                self._give(view, rings, r, int(free.argmax()), used, owner)
                without[r] = False
        load -= rings.bytes[~without] @ rings.member[~without]
        while (chosen := self._best(view, rings, rate, load, used, without)) is not None:
            r, switch = chosen
            _join(out[switch], rings.after[r])
            self._give(view, rings, r, switch, used, owner)
            load -= rings.bytes[r] * rings.member[r]
            without[r] = False
        if not self.dedicated and np.array_equal(out, view.out):
            return nothing(view)
        return CircuitPlan(out[None], np.full(1, np.inf), owner=owner if self.dedicated else None)

    def _give(self, view: CircuitView, rings: Rings, r: int, switch: int, used: Bools, owner: Ints) -> None:
        used[switch, rings.member[r]] = True
        owner[switch, rings.member[r]] = view.jobs.id[rings.row[r]]

    def _best(
        self, view: CircuitView, rings: Rings, rate: Floats, load: Floats, used: Bools, without: Bools
    ) -> tuple[int, int] | None:
        """The ring that gains most per port from new circuits, and the switch that has its ports free."""
        free = (rate > 0) & ~(used[:, None, :] & rings.member).any(axis=2)
        switch = free.argmax(axis=0)
        gain = _gains(view, rings, rate.max(axis=0, initial=0.0), load)
        moved = np.where(view.jobs.iterations_done[rings.row] > 0, self.checkpoint, 0.0)
        able = np.flatnonzero(without & free.any(axis=0) & (gain > view.delay[switch] + moved))
        if not len(able):
            return None
        per_port = gain[able] / rings.member[able].sum(axis=1)
        r = int(able[np.lexsort((rings.row[able], -per_port))[0]])
        return r, int(switch[r])


@dataclass(frozen=True, eq=False)
class Rings:
    """R jobs (`row` of the view's jobs) whose traffic is one ring of ends each.

    after   (R, E) the end that follows in the ring, -1 for an end that is not in it (`member` says which are)
    bytes   (R,) of the busiest pair, per iteration
    """

    row: Ints
    after: Ints
    member: Bools
    bytes: Floats


@lru_cache(maxsize=16)
def _rings(owner: bytes, src: bytes, dst: bytes, amount: bytes, ends: int) -> Rings:
    """The rings among rows (job, pair, bytes), as the bytes of their columns.

    Kept, since they are asked for again whenever a coflow comes or ends.
    """
    job, one, other = (np.frombuffer(each, np.int64) for each in (owner, src, dst))
    size = np.frombuffer(amount, np.float64)
    found = []
    for rows in np.split(np.arange(len(job)), np.flatnonzero(np.diff(job)) + 1):
        if len(rows) and ring_of(one[rows], other[rows]):
            found.append(rows)
    after = np.full((len(found), ends), NONE, np.int64)
    for r, rows in enumerate(found):
        after[r, one[rows]] = other[rows]
    return Rings(
        row=frozen(np.array([job[rows[0]] for rows in found], np.int64)),
        after=frozen(after),
        member=frozen(after >= 0),
        bytes=frozen(np.array([size[rows].max() for rows in found], np.float64)),
    )


def _port_rate(view: CircuitView, rings: Rings) -> Floats:
    """(S, R) bytes/s of the slowest port of each ring on each switch, 0 where one has none."""
    rate: Floats = np.where(rings.member, view.rate[:, None, :], np.inf).min(axis=2, initial=np.inf)
    return rate


def _gains(view: CircuitView, rings: Rings, rate: Floats, load: Floats) -> Floats:
    """(R,) seconds that a slice at `rate` saves over what each job has left, -inf where it has no ports.

    `load`: bytes per iteration that each end sends by packets, those of the job itself included.
    """
    by_packets = load / np.maximum(view.packet_rate, 1e-300)
    packets = np.where(rings.member, by_packets, 0.0).max(axis=1, initial=0.0)
    left = np.maximum(view.jobs.iterations[rings.row] - view.jobs.iterations_done[rings.row], 0)
    by_circuit = rings.bytes / np.where(rate > 0, rate, 1.0)
    return np.where(rate > 0, left * (packets - by_circuit), -np.inf)


def _join(row: Ints, after: Ints) -> None:
    """Join the ring on one switch; circuits of others that end at its ports go."""
    ring = np.flatnonzero(after >= 0)
    row[np.isin(row, ring)] = NONE
    row[ring] = after[ring]
