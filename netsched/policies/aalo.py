"""Aalo: coflows sink through priority queues as they send, so small ones pass large ones unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies import reach
from netsched.policies.base import plan_of
from netsched.units import Duration, Size


@dataclass(frozen=True)
class Aalo:
    """D-CLAS: `queues` queues by bytes sent (Aalo, SIGCOMM 2015, section 4.2; its released code).

    A coflow is in the first queue until all its flows together have sent `first` bytes, in each next one up
    to `factor` times as much, in the last one for good. Inside a queue coflows go by arrival, flows of one
    coflow share max-min. The defaults are those of the released code.

    `sync` is the coordinator's period: a coflow that passes a limit is moved at most so much later. It is
    looked at less often while no coflow can have passed one, and also when one is released; a new coflow goes
    into the first queue at once, as with the paper's daemons, which need not ask for that.

    Choices. Queues go strictly one before the other, as in the released code; the paper also describes a
    weighted sharing of links between queues, which a plan cannot say: its weights divide what is left inside
    one rank, among flows, not among ranks. Bytes are counted per coflow; the released code counts those of
    all coflows of one DAG together, of which a view shows only the present ones. Rates inside a coflow are
    max-min, where the code divides each port equally among the coflow's flows.

    Where the hardware has only so many classes, they are the queues, the last one taking all later ones, and
    coflows of one queue share max-min instead of going by arrival. A coflow changes class only downwards, at
    most once per queue, so that no byte overtakes one that left earlier.
    """

    queues: int = 10
    first: Size = 10e6
    factor: float = 10.0
    sync: Duration = 0.08

    name: ClassVar[str] = "aalo"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.COFLOW_RELEASED
    starves: ClassVar[str] = (
        "coflows that have sent more, as long as others come: the released code's queues are strict"
    )

    def __post_init__(self) -> None:
        if self.queues < 1:
            raise ValueError(f"queues is {self.queues}, must be 1 or more")
        if not self.first > 0 or not self.factor > 1:
            raise ValueError(
                f"first is {self.first} B, factor {self.factor}: they must be above 0 and above 1"
            )
        if not self.sync > 0:
            raise ValueError(f"sync is {self.sync} s, must be above 0")

    def __call__(self, view: View) -> Plan:
        n_queues = self.queues if view.queues is None else min(self.queues, view.queues)
        limits = self.first * self.factor ** np.arange(n_queues - 1, dtype=np.float64)
        queue = reach.levels(view.coflows.sent, limits)
        if view.queues is None:
            order = np.argsort(queue, kind="stable")
            rank = np.empty(len(order), np.int64)
            rank[order] = np.arange(len(order))
        else:
            rank = queue
        return plan_of(view, rank[view.flows.coflow], review_in=reach.review_in(view, limits, self.sync))
