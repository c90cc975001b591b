"""The circuit schedulers by name, and the one gate through which engines ask them.

Adding one is one file and one line here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from netsched.circuits.eclipse import Eclipse
from netsched.circuits.helios import Helios
from netsched.circuits.none import NoCircuits
from netsched.circuits.osdl import Osdl
from netsched.circuits.rotor import Rotor
from netsched.circuits.solstice import Solstice
from netsched.circuits.static import StaticRing
from netsched.circuits.sunflow import Sunflow
from netsched.circuits.topoopt import TopoOpt
from netsched.construct import construct
from netsched.errors import PolicyError
from netsched.model import CircuitPlan, Circuits, CircuitView, Spec
from netsched.precedence import LEAST_CLASSES

CIRCUITS: Final[dict[str, type[Circuits]]] = {
    kind.name: kind
    for kind in (NoCircuits, StaticRing, Helios, Solstice, Eclipse, Sunflow, Rotor, TopoOpt, Osdl)
}


def make(spec: Spec) -> Circuits:
    """The circuit scheduler of that name with those parameters. ScenarioError if none has it."""
    return construct("circuits", "scheduler", CIRCUITS, spec)


def decide(circuits: Circuits, view: CircuitView, queues: int | None = None) -> CircuitPlan:
    """The scheduler's plan for this view, with so many classes (None: any number) on every port.

    PolicyError if it is no sequence of matchings of ports, or cannot be had with these classes.
    """
    plan = circuits(view)

    def wrong(what: str) -> PolicyError:
        return PolicyError(f"circuits {circuits.name}: at {view.now:.6g} s {what}")

    steps, ends = len(plan.hold), view.out.shape[1]
    if plan.out.shape != (steps, *view.out.shape) or plan.out.dtype.kind != "i":
        raise wrong(f"plan.out is {plan.out.dtype}{plan.out.shape}, must be int64{(steps, *view.out.shape)}")
    if not (plan.hold > 0).all() or not plan.review_in > 0:
        raise wrong("a hold or review_in is not more than 0 s")
    simple = circuits.hops == 1 and steps == 1 and not plan.slot_bytes
    if plan.owner is not None and not (simple and plan.owner.shape == view.out.shape):
        raise wrong(f"plan.owner must be int64{view.out.shape}, in a plan of one step, without detours")
    if plan.first is not None:
        if not (circuits.hops == 1 and steps) or plan.first.shape != (ends, ends):
            raise wrong(f"plan.first must be int64{(ends, ends)}, in a plan of steps, without detours")
        if queues is not None and queues < LEAST_CLASSES:
            raise wrong(f"coflows go first on their circuits: that takes queues: {LEAST_CLASSES} or more")
    if not 0 <= plan.slot_bytes < np.inf or (plan.slot_bytes and circuits.without_circuit != "relay"):
        raise wrong(
            f"plan.slot_bytes is {plan.slot_bytes}, must be 0, or more where without_circuit is relay"
        )
    if view.now + min(plan.review_in, plan.hold.min(initial=np.inf)) <= view.now:
        raise wrong("a hold or review_in is too short for the clock to move")
    up = plan.out >= 0
    if plan.out.min(initial=-1) < -1 or plan.out.max(initial=-1) >= ends:
        raise wrong(f"plan.out names an end that is not: write -1 or 0 to {ends - 1}")
    k, s, e = np.nonzero(up)
    if (view.rate[s, e] <= 0).any() or (view.rate[s, plan.out[up]] <= 0).any():
        raise wrong("plan.out joins an end that has no port on that switch")
    if (plan.out[up] == e).any():
        raise wrong("plan.out joins an end to itself")
    reached = np.bincount((k * len(view.out) + s) * ends + plan.out[up])
    if reached.max(initial=0) > 1:
        raise wrong("plan.out is no matching: two ends reach one over the same switch")
    return plan
