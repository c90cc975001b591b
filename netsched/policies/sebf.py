"""Varys: the coflow with the smallest effective bottleneck first, all its flows ending together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies.base import bottlenecks, plan_of
from netsched.units import Duration

_LEAST_S: Final = 1e-300
"""Stands for 0 s, which has no logarithm."""


@dataclass(frozen=True)
class Sebf:
    """SEBF order with MADD rates and backfilling (Varys, SIGCOMM 2014, sections 4.1 to 4.3).

    Order: ascending effective bottleneck of the bytes still to be sent, ties by arrival. Each coflow in
    turn gets the least rates that end all its flows together (remaining / Gamma on what is left of every
    link); of a coflow that finds a link used up, the flows that do not need that link get such rates among
    themselves. What is left over then tops up flows in that order, so that no link is idle that a flow
    could use; rates hold until the next decision, as in the paper.
    Asked again when flows are released or a coflow ends; the paper's own system does so on coflow
    arrival and completion, which is the same where all flows of a coflow are released together.

    Where the hardware has only so many classes, coflows are binned by the effective bottleneck of the whole
    coflow, and there are no rates: the first class takes those below `first` seconds, each next one up to
    `factor` times as much. INFERRED (the paper has no classes; Aalo bins bytes sent in this way): so a
    coflow keeps its class, which matters because bytes under way keep the class that they left with and
    would be overtaken, and any number of small coflows may share one.
    """

    first: Duration = 1e-3
    factor: float = 8.0

    name: ClassVar[str] = "sebf"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.COFLOW_FINISHED

    def __post_init__(self) -> None:
        if not self.first > 0 or not self.factor > 1:
            raise ValueError(
                f"first is {self.first} s, factor {self.factor}: they must be above 0 and above 1"
            )

    def __call__(self, view: View) -> Plan:
        return self._exact(view) if view.queues is None else self._binned(view, view.queues)

    def _exact(self, view: View) -> Plan:
        from netsched.madd import rates_in_order  # noqa: PLC0415 (numba, which a host agent never loads)

        flows = view.flows
        order = np.argsort(bottlenecks(view, flows.remaining), kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        rank = place[flows.coflow]
        rate = rates_in_order(rank, len(order), flows.remaining, flows.indptr, flows.links, view.capacity)
        return plan_of(view, rank, rate=rate)

    def _binned(self, view: View, queues: int) -> Plan:
        coflow = view.flows.coflow
        shown = np.bincount(coflow, weights=view.flows.size, minlength=len(view.coflows))
        # Flows that have ended, or not begun, are not shown: what is seen stands for the whole.
        whole = bottlenecks(view, view.flows.size) * view.coflows.size / np.where(shown > 0, shown, 1.0)
        bins = np.ceil(np.log(np.maximum(whole, _LEAST_S) / self.first) / np.log(self.factor))
        held = view.coflows.cls
        cls = np.where(held >= 0, held, np.clip(bins, 0, queues - 1).astype(np.int64))
        return plan_of(view, cls[coflow])
