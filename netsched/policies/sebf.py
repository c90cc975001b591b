"""Varys: the coflow with the smallest effective bottleneck first, all its flows ending together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from netsched.model import Event, Floats, Ints, Plan, View
from netsched.policies.base import bottlenecks, classes_in_order, plan_of

_LEAST_WEIGHT: Final = 1e-6
"""Of the coflow's largest flow's: below it rounding in the sums of weights would show in the rates."""


@dataclass(frozen=True)
class Sebf:
    """SEBF order with MADD rates and backfilling (Varys, SIGCOMM 2014, sections 4.1 to 4.3).

    Order: ascending effective bottleneck of the bytes still to be sent, ties by arrival. Each coflow in
    turn reserves the least rates that end all its flows together (remaining / Gamma on what is left of every
    link); of a coflow that finds a link used up, the flows that do not need that link get such rates among
    themselves. What the reserves leave over goes to the coflows in the same order, at every moment, so that
    no link is idle that a flow could use; inside a coflow in proportion to what its flows have left, so that
    those of one bottleneck end together (the paper does not say how).
    Asked again when flows are released or a coflow ends; the paper's own system does so on coflow
    arrival and completion, which is the same where all flows of a coflow are released together.

    Hardware classes give order but no reserves. With only so many of them a coflow gets, when it comes, the
    one that costs least by `classes_in_order`, as a rule between those of its neighbours in the order, and
    keeps it. INFERRED (the paper has no classes): bytes under way keep the class that they left with and
    would be overtaken if their coflow moved.
    """

    name: ClassVar[str] = "sebf"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.COFLOW_FINISHED
    starves: ClassVar[str] = (
        "large coflows, as long as smaller ones come over one of their links: Varys has a share for "
        "them that is not modelled"
    )

    def __call__(self, view: View) -> Plan:
        return self._exact(view) if view.queues is None else self._classed(view, view.queues)

    def _exact(self, view: View) -> Plan:
        rank, rate, weight = shortest_first(view, view.flows.remaining, view.capacity)
        return plan_of(view, rank, reserve=rate, weight=weight)

    def _classed(self, view: View, queues: int) -> Plan:
        cls = classes_in_order(whole_bottlenecks(view), view.coflows.cls, queues)
        return plan_of(view, cls[view.flows.coflow])


def shortest_first(view: View, amount: Floats, free: Floats) -> tuple[Ints, Floats, Floats]:
    """Rank, reserve (bytes/s) and weight of each flow: SEBF's order of `amount` (bytes per flow), MADD rates.

    `free` is what may be reserved of each link, in bytes/s. A flow of no amount gets no reserve.
    """
    from netsched.madd import rates_in_order  # noqa: PLC0415 (numba, which a host agent never loads)

    flows = view.flows
    order = np.argsort(bottlenecks(view, amount), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rank = place[flows.coflow]
    rate = rates_in_order(rank, len(order), amount, flows.indptr, flows.links, free)
    largest = np.zeros(len(order))
    np.maximum.at(largest, flows.coflow, amount)
    most = largest[flows.coflow]
    weight = np.maximum(amount / np.where(most > 0, most, 1.0), _LEAST_WEIGHT)
    return rank, rate, weight


def whole_bottlenecks(view: View) -> Floats:
    """Seconds that each coflow still needs alone, its flows that have not begun included.

    Those are not shown: what is seen stands for the whole.
    """
    flows, coflows = view.flows, view.coflows
    shown = np.bincount(flows.coflow, weights=flows.remaining, minlength=len(coflows))
    left = np.maximum(coflows.size - coflows.sent, shown)
    gamma: Floats = bottlenecks(view, flows.remaining) * left / np.where(shown > 0, shown, 1.0)
    return gamma
