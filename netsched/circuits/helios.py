"""Helios and c-Through: a max-weight matching of what waits, again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from netsched.circuits.planes import Steps, assemble, heaviest, nothing, planes
from netsched.model import CircuitPlan, CircuitView, Event
from netsched.units import Duration


@dataclass(frozen=True)
class Helios:
    """Max-weight matching of the bytes that wait, once per `slot` (Helios and c-Through, SIGCOMM 2010).

    Both measure demand between racks (flow counters, or socket buffers), join the pairs with the most bytes
    by a maximum weight matching (Edmonds in the papers; ends send and receive on ports of their own, so that
    the graph is bipartite and the assignment problem has the same answer), and leave the rest to the packet
    switches. The slot is that of Sunflow's simulator for this scheduler, 20 ms.

    INFERRED. With several switches of the same ends each takes in turn a matching of what those before it
    leave: a circuit takes what it can carry in a slot. An end that the matching leaves out goes dark.
    """

    slot: Duration = 0.02
    without_circuit: Literal["eps", "wait"] = "eps"

    name: ClassVar[str] = "helios"
    events: ClassVar[Event] = Event.PORTS_CHANGED
    hops: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not self.slot > 0:
            raise ValueError(f"slot is {self.slot} s, must be more than 0")

    def __call__(self, view: CircuitView) -> CircuitPlan:
        if not len(view.waiting.bytes):
            return nothing(view, self.slot)
        parts = []
        for plane in planes(view):
            left = plane.demand.copy()
            out = np.empty_like(plane.out)
            room = plane.rate * max(self.slot - plane.delay, 0.0)
            for m in range(len(out)):
                out[m] = heaviest(left)
                rows = np.flatnonzero(out[m] >= 0)
                left[rows, out[m, rows]] = np.maximum(0.0, left[rows, out[m, rows]] - room)
            parts.append((plane, Steps(out[None], np.full(1, self.slot))))
        return assemble(view, parts, self.slot)
