"""TicTac: parameters go to each worker in the order in which its computation can make use of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies.senders import let_go, senders, turns


@dataclass(frozen=True)
class TicTac:
    """TIC, independent of timing (Hashemi et al., MLSys 2019; abstract and released code were read).

    A transfer's priority is the least number of transfers that an operation depending on it and on another
    one needs in all. In a network that is a chain of layers the operation of layer l needs the parameters of
    layers 0 to l, so the priority of layer l is l + 1, and layers 0 and 1 share one (2). The paper's other
    order, TAC, weighs in compute times; on a chain only the first missing layer lets anything be computed,
    so TAC is plainly the consumption order: `timing: true`.

    The paper enforces the order where parameters leave: a server hands a worker's transfers to the network
    one after the other. So a turn counts the flows of one job from one host to another; the first ones of
    all pairs share. Tensors are whole (no slices in the paper), and equal priorities share.

    Choices. The paper orders parameters only, not gradients; a view does not tell pushes from pulls, so both
    are ordered. Two classes: those that go, and the rest. A model with branches has ties
    that its consumption order does not show: INFERRED to be a chain.
    """

    timing: bool = False

    name: ClassVar[str] = "tictac"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.WATCHED_FINISHED
    starves: ClassVar[str] = (
        "tensors that are needed later, as long as their job has others between the same hosts"
    )

    def __call__(self, view: View) -> Plan:
        need = view.flows.need if self.timing else np.maximum(view.flows.need, 1)
        turn = turns(senders(view, view.flows.dst), need)
        return let_go(view, turn, turn == 0)
