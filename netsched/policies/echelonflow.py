"""EchelonFlow: flows of an iteration need not end together, but each when its bytes are computed with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np

from netsched.model import Event, Floats, Ints, Plan, View
from netsched.policies.base import bottlenecks, classes_in_order, plan_of

_LEAST_WEIGHT: Final = 1e-6
"""Of the largest amount of flows that end together: below it rounding would show in the rates."""

_LATE: Final = 1e-12
"""Seconds left to what is late: it gets all that there is."""

_APART: Final = 1e-6
"""Coflows of equal times get times that differ by this share, in their order."""


@dataclass(frozen=True)
class EchelonFlow:
    """Finish times that follow the computation (Pan et al., "EchelonFlow", HotNets 2022; abstract read).

    The paper: related flows have ideal finish times d_j = r + offset_j, with r the start of the first of them
    and offsets from the profiled computation; what is to be small is the sum over groups of the tardiness,
    the most by which a flow of the group ends after its d_j. Flows that all have d_j = r are a coflow.

    A group is a stage of the workload (an iteration of a job), d_j the `due` of its coflow's profile: as long
    after the stage's first flow as its bytes would be needed if the network took no time.

    INFERRED, the order and the rates; it is a position paper. Groups go by their bottleneck (the seconds
    that their flows in view need on their most loaded link) plus, with `slack: add`, the time until the
    first of them is due: who needs its bytes later can wait. Late groups have no time left, so that groups
    of d_j = r go as under SEBF; `slack: ignore` is that for all. Inside a group the earlier due goes first
    (EDF), and what is due together ends together: each flow reserves its bytes left over the time left, or
    over the seconds that they need at the least. What the reserves leave over goes in the same order.

    Hardware classes know no reserves: a coflow gets one by `classes_in_order` when it comes, and keeps it.
    """

    slack: Literal["add", "ignore"] = "add"

    name: ClassVar[str] = "echelonflow"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.COFLOW_FINISHED
    profiled: ClassVar[bool] = True
    starves: ClassVar[str] = "large groups, as long as smaller ones that are due come over one of their links"

    def __call__(self, view: View) -> Plan:
        assert view.profile is not None  # noqa: S101 # the gate refuses a profiled policy without one
        flows = view.flows
        left = np.maximum(view.profile.due - view.now, 0.0)
        order, unit = self._order(view, view.profile.due, left)
        if view.queues is not None:
            # The order does not say by how much one goes first: sorted times stand for that.
            seconds = np.sort(bottlenecks(view, flows.remaining))
            of_coflow = np.empty(len(order))
            of_coflow[order] = seconds * (1.0 + _APART * np.arange(len(order)))
            return plan_of(view, classes_in_order(of_coflow, view.coflows.cls, view.queues)[flows.coflow])
        rank = unit[flows.coflow]
        reserve, weight = _rates(view, rank, left)
        return plan_of(view, rank, reserve=reserve, weight=weight)

    def _order(self, view: View, due: Floats, left: Floats) -> tuple[Ints, Ints]:
        """The coflows in their order, and the place of each among those that are due together."""
        from netsched.madd import most_loaded  # noqa: PLC0415 (numba, which a host agent never loads)

        flows, n = view.flows, len(view.coflows)
        _, group = np.unique(view.coflows.stage, return_inverse=True)
        groups = int(group.max(initial=-1)) + 1
        of_flow = group[flows.coflow]
        urgency = most_loaded(of_flow, groups, flows.remaining, flows.indptr, flows.links, view.capacity)
        oldest = np.full(groups, n)
        np.minimum.at(oldest, group, np.arange(n))
        if self.slack == "add":
            soonest = np.full(groups, np.inf)
            np.minimum.at(soonest, group, left)
            urgency = urgency + soonest
        order = np.lexsort((np.arange(n), due, oldest[group], urgency[group]))
        begins = np.ones(n, np.bool_)
        begins[1:] = (group[order][1:] != group[order][:-1]) | (due[order][1:] != due[order][:-1])
        unit = np.empty(n, np.int64)
        unit[order] = np.cumsum(begins) - 1
        return order.astype(np.int64), unit


def _rates(view: View, unit: Ints, left: Floats) -> tuple[Floats, Floats]:
    """Reserve (bytes/s) and weight of each flow. `unit`: of the flow; `left`: seconds left to each coflow."""
    from netsched.madd import reserve_until  # noqa: PLC0415 (numba, which a host agent never loads)

    flows, n = view.flows, int(unit.max(initial=-1)) + 1
    time_left, most = np.full(n, np.inf), np.zeros(n)
    np.minimum.at(time_left, unit, np.maximum(left[flows.coflow], _LATE))
    np.maximum.at(most, unit, flows.remaining)
    reserve, _ = reserve_until(
        unit, n, time_left, np.full(n, -1.0), flows.remaining, flows.indptr, flows.links, view.capacity
    )
    largest = most[unit]
    return reserve, np.maximum(flows.remaining / np.where(largest > 0, largest, 1.0), _LEAST_WEIGHT)
