"""Coflows one after the other in the order of their arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies.base import plan_of


@dataclass(frozen=True)
class Fifo:
    """Strict priority by coflow arrival (Varys, SIGCOMM 2014, section 7, "FIFO" as Orchestra has it).

    Flows of one coflow share max-min; what a coflow cannot use goes to the next one.

    Where the hardware has only so many classes, a coflow gets the class behind the last one in use and
    keeps it; when the classes are used up, all that come share the last one, until it drains. INFERRED:
    the paper has no classes. Moving coflows up as others end would follow the order more closely, but a
    coflow's bytes under way keep the class that they left with, and would then be overtaken by later ones.
    """

    name: ClassVar[str] = "fifo"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.COFLOW_RELEASED | Event.COFLOW_FINISHED

    def __call__(self, view: View) -> Plan:
        flows, held = view.flows, view.coflows.cls
        if view.queues is None:
            return plan_of(view, flows.coflow)
        newcomer = held < 0
        behind = held.max(initial=-1) + np.cumsum(newcomer)
        rank = np.where(newcomer, np.minimum(behind, view.queues - 1), held)
        return plan_of(view, rank[flows.coflow])
