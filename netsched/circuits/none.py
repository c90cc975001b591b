"""No circuits: what the packet switches carry alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from netsched.circuits.planes import nothing
from netsched.model import CircuitPlan, CircuitView, Event


@dataclass(frozen=True)
class NoCircuits:
    """Packet switches only, the optical ones stay dark."""

    name: ClassVar[str] = "none"
    events: ClassVar[Event] = Event.NONE
    without_circuit: ClassVar[str] = "eps"
    hops: ClassVar[int] = 1

    def __call__(self, view: CircuitView) -> CircuitPlan:
        return nothing(view)
