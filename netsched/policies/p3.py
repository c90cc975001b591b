"""P3: a worker sends slices of layers one at a time, those of the layers that are needed first in front."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies.senders import filling, let_go, senders, turns


@dataclass(frozen=True)
class P3:
    """Priority-based propagation (Jayarajan et al., MLSys 2019; abstract and released code were read).

    One thread per process takes the message of highest priority, the earliest layer's, from a queue and
    sends it. The slices that it sends are the workload's: `slice: 160kB` is the released code's bound of
    40,000 parameters of 4 bytes. Messages of one layer go in the order of their release. The network is not
    part of P3: where several senders meet, their current messages share.

    While its port is not full because receivers are busy, a sender goes on with its next messages, and an
    urgent message does not wait for one that has begun: INFERRED, for sockets buffer what the thread has
    handed over; with small slices that makes little difference. `blocking` is the other extreme, sockets
    without buffers: a sender sends nothing else until its message is out, even if the receiver is busy and
    others are free, and ends a message that has begun. Then links are idle that a flow could use (not
    work-conserving), most of all where all workers send to the same server first.

    Choices. The released code answers a worker from the server without another queue; here a server's
    messages go by priority too, for a view does not tell pushes from pulls. A sender is one job's process.
    """

    blocking: bool = False

    name: ClassVar[str] = "p3"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.WATCHED_FINISHED
    starves: ClassVar[str] = (
        "slices of later layers, as long as the same sender has others of its job to send"
    )

    @property
    def idles(self) -> str:
        """Why a link may be idle that a flow could use."""
        return (
            "a blocking sender waits for its message's receiver, whoever else is free"
            if self.blocking
            else ""
        )

    def __call__(self, view: View) -> Plan:
        flows, sender = view.flows, senders(view)
        by_release = np.arange(len(flows))
        if not self.blocking:
            turn = turns(sender, flows.need, by_release)
            return let_go(view, turn, filling(view, sender, turn))
        turn = turns(sender, flows.sent <= 0, flows.need, by_release)
        plan = let_go(view, turn, turn == 0)
        return replace(plan, rate=np.where(turn == 0, np.inf, 0.0))
