"""OSDL: rings of circuits for the ring all-reduce jobs that gain most from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from netsched.circuits.planes import nothing
from netsched.circuits.topoopt import ring_of
from netsched.model import CircuitPlan, CircuitView, Event, Floats, Ints
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
    events: ClassVar[Event] = Event.COFLOW_RELEASED | Event.COFLOW_FINISHED
    hops: ClassVar[int] = 1

    def __call__(self, view: CircuitView) -> CircuitPlan:
        jobs = _rings(view)
        out = view.out.copy()
        owner = np.full(out.shape, -1, np.int64)
        used = np.zeros(out.shape, bool)
        load = np.zeros(len(view.packet_rate))
        for each in jobs:
            load[each.ring] += each.bytes
        without: list[RingJob] = []
        for each in sorted(jobs, key=lambda j: (-j.gain(view, load), j.row)):
            switch = _present(out, used, each.ring)
            if switch is None:
                without.append(each)
            else:
                used[switch, each.ring] = True
                owner[switch, each.ring] = view.jobs.id[each.row]
        for each in (j for j in jobs if j not in without):
            load[each.ring] -= each.bytes
        while (chosen := self._best(view, without, load, used)) is not None:
            each, switch = chosen
            _set(out[switch], each.ring)
            used[switch, each.ring] = True
            owner[switch, each.ring] = view.jobs.id[each.row]
            load[each.ring] -= each.bytes
            without.remove(each)
        if self.dedicated:
            return CircuitPlan(out[None], np.full(1, np.inf), owner=owner)
        if np.array_equal(out, view.out):
            return nothing(view)
        return CircuitPlan(out[None], np.full(1, np.inf))

    def _best(
        self, view: CircuitView, jobs: list[RingJob], load: Floats, used: np.ndarray
    ) -> tuple[RingJob, int] | None:
        """The job that gains most per port from new circuits, and the switch that has its ports free."""
        offers = [(each.gain(view, load), each) for each in jobs]
        for gain, each in sorted(offers, key=lambda o: (-o[0] / len(o[1].ring), o[1].row)):
            switch = _free(view, used, each.ring)
            if switch is not None and gain > self._cost(view, each, switch):
                return each, switch
        return None

    def _cost(self, view: CircuitView, job: RingJob, switch: int) -> float:
        moved = self.checkpoint if view.jobs.iterations_done[job.row] > 0 else 0.0
        return float(view.delay[switch]) + moved


@dataclass(frozen=True, eq=False)
class RingJob:
    """A job (row of the view's jobs) whose traffic is one ring of ends; bytes of its busiest pair."""

    row: int
    ring: Ints
    bytes: float

    def gain(self, view: CircuitView, load: Floats) -> float:
        """Seconds that a slice saves over what the job has left, -inf where no switch has all its ports.

        `load`: bytes per iteration that each end sends by packets, those of this job included.
        """
        rate = view.rate[:, self.ring].min(axis=1).max(initial=0.0)
        if rate <= 0:
            return float("-inf")
        packets: Floats = load[self.ring] / np.maximum(view.packet_rate[self.ring], 1e-300)
        left = max(int(view.jobs.iterations[self.row] - view.jobs.iterations_done[self.row]), 0)
        return left * (float(packets.max()) - self.bytes / float(rate))


def _rings(view: CircuitView) -> list[RingJob]:
    work = view.work
    found = []
    for job in np.unique(work.owner).tolist():
        rows = work.owner == job
        ring = ring_of(work.src[rows], work.dst[rows])
        if ring:
            found.append(RingJob(job, np.array(ring), float(work.bytes[rows].max())))
    return found


def _present(out: Ints, used: np.ndarray, ring: Ints) -> int | None:
    """The first switch on which the ring is up and in nobody's use."""
    up = (out[:, ring] == np.roll(ring, -1)).all(axis=1) & ~used[:, ring].any(axis=1)
    return int(np.argmax(up)) if up.any() else None


def _free(view: CircuitView, used: np.ndarray, ring: Ints) -> int | None:
    """The first switch that has all ports of the ring, none of them in use."""
    free = (view.rate[:, ring] > 0).all(axis=1) & ~used[:, ring].any(axis=1)
    return int(np.argmax(free)) if free.any() else None


def _set(row: Ints, ring: Ints) -> None:
    """Join the ring on one switch; circuits of others that end at its ports go."""
    row[np.isin(row, ring)] = -1
    row[ring] = np.roll(ring, -1)
