"""Per-flow fairness: what TCP does when nobody marks anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import BEST_EFFORT, Event, Plan, View
from netsched.policies.base import plan_of


@dataclass(frozen=True)
class Fair:
    """All connections share max-min: one class, no marks, no caps. The baseline of every coflow paper."""

    name: ClassVar[str] = "fair"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = True
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        return plan_of(view, np.full(len(view.flows), BEST_EFFORT))
