"""A ring that is never switched: what fixed optical cabling would give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from netsched.circuits.planes import Steps, assemble, planes
from netsched.model import CircuitPlan, CircuitView, Event


@dataclass(frozen=True)
class StaticRing:
    """A ring of circuits over all ends, set up once; the next switch of the same ends jumps one further.

    End i is joined to i + `jump` over the first switch of its group, to i + `jump` + 1 over the second, and
    so on, modulo the number of ends.
    """

    jump: int = 1
    hops: int = 1
    without_circuit: Literal["eps", "wait"] = "eps"

    name: ClassVar[str] = "static"
    events: ClassVar[Event] = Event.NONE

    def __post_init__(self) -> None:
        if self.jump < 1 or self.hops < 1:
            raise ValueError(f"jump is {self.jump}, hops {self.hops}: both must be 1 or more")

    def __call__(self, view: CircuitView) -> CircuitPlan:
        parts = []
        for plane in planes(view):
            n = len(plane.ends)
            jump = (self.jump - 1 + np.arange(len(plane.switches))) % max(n - 1, 1) + 1
            out = (np.arange(n)[None, :] + jump[:, None]) % n
            parts.append((plane, Steps(out[None], np.full(1, np.inf))))
        return assemble(view, parts, float("inf"))
