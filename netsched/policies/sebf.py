"""Varys: the coflow with the smallest effective bottleneck first, all its flows ending together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies.base import bottlenecks, plan_of


@dataclass(frozen=True)
class Sebf:
    """SEBF order with MADD rates and backfilling (Varys, SIGCOMM 2014, sections 4.1 to 4.3).

    Order: ascending effective bottleneck of the bytes still to be sent, ties by arrival. Each coflow in
    turn gets the least rates that end all its flows together (remaining / Gamma on what is left of every
    link); a coflow that finds a link used up waits. What is left over then tops up flows in that order.
    Asked again when flows are released or a coflow ends; the paper's own system does so on coflow
    arrival and completion, which is the same where all flows of a coflow are released together.
    """

    name: ClassVar[str] = "sebf"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.COFLOW_FINISHED

    def __call__(self, view: View) -> Plan:
        from netsched.madd import rates_in_order  # noqa: PLC0415 (numba, which a host agent never loads)

        order = np.argsort(bottlenecks(view, view.flows.remaining), kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        flows = view.flows
        rank_of_flow = rank[flows.coflow]
        rate = rates_in_order(rank_of_flow, len(order), flows.remaining, flows.indptr, flows.links, view.capacity)
        return plan_of(view, rank_of_flow, rate=rate)
