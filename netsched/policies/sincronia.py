"""Sincronia: an order of coflows whose total completion time is within 4 times of the best, and no rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies.base import classes_in_order, plan_of
from netsched.policies.sebf import whole_bottlenecks


@dataclass(frozen=True)
class Sincronia:
    """BSSI order and greedy rates (Agarwal et al., "Sincronia", SIGCOMM 2018).

    Order: Bottleneck-Select-Scale-Iterate over the bytes still to be sent, with the coflows' weights; ties
    by arrival. Rates: strict priority in that order, max-min inside a coflow. The paper asks for no more than
    that a flow waits only for flows of coflows before its own or of its own; so do these rates. Where all
    coflows arrive together, and every path has two links (a big switch), the weighted sum of completion times
    is then within 4 times of the least. On longer paths the proof gives 2 x (links of a path).

    Online the paper gathers arrivals in epochs that double in length, and orders anew at each epoch's begin
    the coflows that a linear program admits to it; the others follow behind. Here are no epochs, of which a
    policy would have to remember who is in (`Plan.memory`): coflows are ordered anew whenever flows are
    released: a small newcomer need not wait for an epoch's end, and the factor proven for epochs does
    not carry over. The control's `period` gathers arrivals, in steps of one length. An order stays when a
    coflow ends: it is as good for those that are left, and the proof is of one order.

    Where the hardware has only so many classes, a coflow gets, when it comes, the one that costs least by
    `classes_in_order`, and keeps it. INFERRED, and not what the authors' program does: it deals out
    priority max(7 - place, 0) anew. But bytes under way keep the class that they left with: where coflows
    moved up at each release, the emulation's stages took a fifth longer than the simulator says.
    """

    name: ClassVar[str] = "sincronia"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED
    starves: ClassVar[str] = (
        "large or light coflows, as long as small or heavy ones come: the epochs that would age them "
        "are left out"
    )

    def __call__(self, view: View) -> Plan:
        from netsched.bssi import bssi  # noqa: PLC0415 (numba, which a host agent never loads)

        flows = view.flows
        place = bssi(
            flows.coflow, view.coflows.weight, flows.remaining, flows.indptr, flows.links, view.capacity
        )
        if view.queues is not None:
            # BSSI says who goes first, not by how much: the sorted times stand for that.
            seconds = np.sort(whole_bottlenecks(view))[place]
            place = classes_in_order(seconds, view.coflows.cls, view.queues)
        return plan_of(view, place[flows.coflow])
