"""RotorNet and Opera: all matchings in turn, whatever the demand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

import numpy as np

from netsched.circuits.planes import Plane, Steps, assemble, planes
from netsched.model import CircuitPlan, CircuitView, Event, Floats, Ints
from netsched.units import Duration

_DELAYS_PER_SLOT: Final = 10
_LEAST_SLOT: Final = 1e-3
_SAME: Final = 1e-9


@dataclass(frozen=True)
class Rotor:
    """Round robin over the n - 1 cyclic shifts of the ends (RotorNet, SIGCOMM 2017; Opera, NSDI 2020).

    Nothing is measured: a matching is a function of the time alone. The switches of a group share out the
    shifts and turn one after the other, a `slot` divided by their number apart, so that not all are dark at
    once (Opera's offset). A slot of 0 stands for ten reconfiguration delays (1 ms at least), which is up
    for nine tenths of the time.

    With `hops` of 2 or more a flow without a direct circuit takes several that are up together, as Opera's
    low-latency traffic does. With `without_circuit: relay` it takes two that are up one after the other, as
    RotorLB has it (RotorNet, section 4): what a circuit has left goes to other ends' bytes, kept by the end
    that it leads to until its own circuit comes up. An end keeps for each other at most what two slots
    carry, on behalf of all third ones (as in the code of Opera's authors). Only the simulator has buffers.
    """

    slot: Duration = 0.0
    hops: int = 1
    without_circuit: Literal["eps", "wait", "relay"] = "eps"

    name: ClassVar[str] = "rotor"
    events: ClassVar[Event] = Event.PORTS_CHANGED

    def __post_init__(self) -> None:
        if self.hops < 1:
            raise ValueError(f"hops is {self.hops}, must be 1 or more")

    def __call__(self, view: CircuitView) -> CircuitPlan:
        slot = self.slot or max(_DELAYS_PER_SLOT * float(view.delay.max(initial=0.0)), _LEAST_SLOT)
        each = planes(view)
        # One round of the largest group at a time: so long nothing needs to be asked.
        ahead = slot * max((math.ceil((len(p.ends) - 1) / len(p.switches)) for p in each), default=1)
        end = (math.floor(view.now / slot * (1 + _SAME) + _SAME) * slot) + ahead - view.now
        parts = [(plane, turns(plane, view.now, slot, end)) for plane in each if len(plane.ends) > 1]
        plan = assemble(view, parts, end)
        if self.without_circuit != "relay":
            return plan
        lit = [plane.rate * max(slot - plane.delay, 0.0) for plane, _ in parts]
        return replace(plan, slot_bytes=min(lit, default=0.0))


def turns(plane: Plane, now: float, slot: float, span: float) -> Steps:
    """The steps of one group from `now` on for `span` seconds: switch u turns at (k + u/m) slots."""
    n, m = len(plane.ends), len(plane.switches)
    apart = slot / m
    first = math.floor(now / apart * (1 + _SAME) + _SAME)
    last = max(first + 1, math.ceil((now + span) / apart * (1 - _SAME)))
    ticks = np.arange(first, last)
    begin = np.maximum(ticks * apart, now)
    hold: Floats = np.diff(np.append(begin, now + span))
    # Switch u has the shifts u + 1, u + 1 + m, ...; a tick k turns switch k mod m.
    turn: Ints = (ticks[:, None] - np.arange(m)[None, :]) // m
    shares = np.array([len(range(u, n - 1, m)) for u in range(m)])
    place = turn % np.maximum(shares, 1)
    shift = np.where(shares > 0, 1 + np.arange(m) + m * place, 0)
    out = (np.arange(n)[None, None, :] + shift[:, :, None]) % n
    out[shift == 0] = -1
    return Steps(out, hold)
