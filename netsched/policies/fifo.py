"""Coflows one after the other in the order of their arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from netsched.model import Event, Plan, View
from netsched.policies.base import plan_of


@dataclass(frozen=True)
class Fifo:
    """Strict priority by coflow arrival (Varys, SIGCOMM 2014, section 7, "FIFO" as Orchestra has it).

    Flows of one coflow share max-min; what a coflow cannot use goes to the next one.
    """

    name: ClassVar[str] = "fifo"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.COFLOW_RELEASED | Event.COFLOW_FINISHED

    def __call__(self, view: View) -> Plan:
        return plan_of(view, view.flows.coflow)
