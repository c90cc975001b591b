"""P3: a worker sends slices of layers one at a time, those of the layers that are needed first in front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies.senders import plan_by_turn, senders, turns


@dataclass(frozen=True)
class P3:
    """Priority-based parameter propagation (Jayarajan et al., MLSys 2019, section 4; its released code).

    One thread per process takes the message of highest priority, the earliest layer's, from a queue and
    sends it. The slices that it sends are the workload's: `slice: 160kB` is the released code's bound of
    40,000 parameters of 4 bytes. Messages of one layer go in the order of their release. The network is not
    part of P3: where several senders meet, their current messages share.

    `blocking` is the released code's sender to the letter: the thread sends nothing else until its message
    is out, even if the receiver is busy and other receivers are free; a message that has begun is ended
    first. Then links can be idle that a flow could use (not work-conserving). Without it a sender's later
    messages take, in their turn, what the current one cannot use, and an urgent one does not wait for one
    that has begun; with small slices that is no great difference to what is sent when, and all of it to a
    blocked thread. INFERRED, as sockets buffer some of what the thread has sent.

    Choices. The released code answers a worker from the server without another queue; here a server's
    messages go by priority too, for a view does not tell pushes from pulls. A sender is one job's process.
    """

    blocking: bool = False

    name: ClassVar[str] = "p3"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.WATCHED_FINISHED

    def __call__(self, view: View) -> Plan:
        flows, sender = view.flows, senders(view)
        by_release = np.arange(len(flows))
        if not self.blocking:
            return plan_by_turn(view, turns(sender, flows.need, by_release))
        begun = (flows.sent <= 0).astype(np.int64)
        turn = turns(sender, begun, flows.need, by_release)
        return plan_by_turn(view, np.minimum(turn, 1), rate=np.where(turn == 0, np.inf, 0.0))
