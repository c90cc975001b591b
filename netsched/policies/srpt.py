"""Flows by what they still have to send, whatever coflow they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies.base import plan_of
from netsched.units import Size

_LEAST_B: Final = 1e-300
"""Stands for a flow of no bytes, which has no logarithm."""


@dataclass(frozen=True)
class Srpt:
    """Shortest remaining flow first (the ideal scheduler of pFabric, SIGCOMM 2013, section 3).

    All flows in one strict order of the bytes that they have left, ties by release: each takes what those
    before it leave on its path. Ordered anew when a flow comes or ends, as there. Where every link has the
    same rate this is exact: a flow has a whole path or nothing, and one that becomes shorter than another
    between two events is already being served where they meet. On links of different rates the order may be
    as old as the last event. Called at every end of a flow: for many flows set control.period.

    Where the hardware has only so many classes, flows are binned by their whole size: the first class takes
    those up to `first` bytes, each next one up to `factor` times as much. INFERRED (pFabric's packets carry
    the exact figure): a flow keeps its class, for bytes under way keep theirs and would be overtaken.
    """

    first: Size = 100e3
    factor: float = 8.0

    name: ClassVar[str] = "srpt"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.FLOW_FINISHED
    starves: ClassVar[str] = (
        "large flows, as long as smaller ones come over one of their links: the paper's order knows no age"
    )

    def __post_init__(self) -> None:
        if not self.first > 0 or not self.factor > 1:
            raise ValueError(
                f"first is {self.first} B, factor {self.factor}: they must be above 0 and above 1"
            )

    def __call__(self, view: View) -> Plan:
        flows = view.flows
        if view.queues is not None:
            bins = np.ceil(np.log(np.maximum(flows.size, _LEAST_B) / self.first) / np.log(self.factor))
            return plan_of(view, np.clip(bins, 0, view.queues - 1).astype(np.int64))
        order = np.argsort(flows.remaining, kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return plan_of(view, rank)
