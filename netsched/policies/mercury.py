"""Mercury: whenever a sender's wire is free, the data with the highest priority in its buffer goes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies.senders import filling, let_go, senders, turns
from netsched.shape import SERVERS, Profile, Shape
from netsched.units import Size


@dataclass(frozen=True)
class Mercury:
    """Packet-level priority at the sender (Duan et al., IEEE INFOCOM 2022, TPDS 2023; abstracts were read).

    Tensors are not cut; each sender keeps one buffer and always sends the packet of highest priority in it.
    In a fluid model that is strict priority by consumption order among the flows of one sender, at every
    moment, parts of one tensor in the order of their release; copies for several hosts share. Switches know
    nothing of it: where flows of several senders meet, they share. So a sender lets go as many of its flows,
    in its order, as it takes to fill its port when every receiver shares evenly. Two classes carry that; the
    rest is in the second one. Give the scenario `transport: {connections: per-flow}`: a connection that keeps
    the order of release would undo the buffer's.

    The paper's other half is "immediate aggregation": a server aggregates packet by packet, so that a pull
    follows the slowest worker's pushed prefix, and no tensor pays for being cut. Where a job has servers, its
    tensors go on from there in steps of `step` bytes (smaller ones cost simulation time), and a tensor has
    one start-up from host to host. With a step above all tensors this is Mercury without immediate
    aggregation. Jobs without servers stay as they are.

    INFERRED: priority is the layer index; a sender is one job's process on a host, so that jobs which meet
    on a host share its port; how many flows fill a port (the paper's transport finds out by sending); that a
    tensor pays a start-up each way.
    """

    step: Size = 4e6

    name: ClassVar[str] = "mercury"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.WATCHED_FINISHED
    starves: ClassVar[str] = (
        "tensors that are needed later, as long as the same sender has others of its job to send"
    )

    def __post_init__(self) -> None:
        if not self.step > 0:
            raise ValueError(f"step is {self.step} B: must be above 0")

    def reshape(self, profile: Profile, shape: Shape) -> Shape:
        """Aggregation in steps, where there are servers."""
        return replace(shape, step=self.step) if shape.sync == SERVERS else shape

    def __call__(self, view: View) -> Plan:
        flows, sender = view.flows, senders(view)
        place = turns(senders(view, flows.dst, flows.need), np.arange(len(flows)))
        turn = turns(sender, flows.need, place)
        return let_go(view, turn, filling(view, sender, turn, abreast=False))
