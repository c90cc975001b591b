"""FIFO with limited multiplexing: who has sent much no longer keeps those behind waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import Bools, Event, Ints, Plan, View
from netsched.policies import reach
from netsched.policies.base import plan_of
from netsched.units import Duration, Size


@dataclass(frozen=True)
class FifoLm:
    """FIFO-LM of Baraat (SIGCOMM 2014, section 3): FIFO, but heavy coflows share with those behind them.

    Coflows go by arrival. One that has sent `heavy` bytes or more has the same rank as the next one behind it
    that has not (and as all heavy ones in between); flows of one rank share max-min.

    INFERRED. The paper sets the threshold from the distribution of task sizes (from memory: their 80th
    percentile), so it belongs to a workload: 48.7 GB in the public coflow trace; the default of 1 GB is ours.
    Sharing is among flows; whether the paper's is among flows or tasks is not known here. Baraat's switches
    decide for themselves; here a coordinator does, which notices a heavy coflow at most `sync` too late, and
    does not look as long as none can have become heavy.

    Where the hardware has only so many classes, a coflow gets the class behind the last one in use and keeps
    it until it is heavy; then it takes the class of the next one behind it that is not. Classes only grow, so
    that no byte overtakes one that left earlier. When they are used up all that come share the last one.
    """

    heavy: Size = 1e9
    sync: Duration = 0.08

    name: ClassVar[str] = "fifo-lm"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.COFLOW_RELEASED | Event.COFLOW_FINISHED

    def __post_init__(self) -> None:
        if not self.heavy > 0 or not self.sync > 0:
            raise ValueError(f"heavy is {self.heavy} B, sync {self.sync} s: both must be above 0")

    def __call__(self, view: View) -> Plan:
        limit = np.array([self.heavy])
        light = reach.levels(view.coflows.sent, limit) == 0
        if view.queues is None:
            rank = np.cumsum(light) - light
        else:
            rank = _descend(light, view.coflows.cls, view.queues)
        return plan_of(view, rank[view.flows.coflow], review_in=reach.review_in(view, limit, self.sync))


def _descend(light: Bools, held: Ints, queues: int) -> Ints:
    """The classes that coflows hold, newcomers' behind them, heavy ones beside the next light one."""
    newcomer = held < 0
    behind = held.max(initial=-1) + np.cumsum(newcomer)
    cls = np.where(newcomer, np.minimum(behind, queues - 1), held)
    # Classes follow arrival, so that of the next one that is light (or the last one of all) is the least.
    stays = light.copy()
    stays[-1:] = True
    beside = np.minimum.accumulate(np.where(stays, cls, queues)[::-1])[::-1]
    return np.where(stays, cls, np.maximum(cls, beside))
