"""ByteScheduler: tensors in partitions, by priority, as many under way as a credit of bytes allows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from netsched.errors import ScenarioError
from netsched.model import Event, Plan, View
from netsched.policies.senders import within_credit
from netsched.shape import Profile, Shape, Slicing
from netsched.units import Size


@dataclass(frozen=True)
class ByteScheduler:
    """Partitions under a credit window (Peng et al., SOSP 2019; abstract and released code were read).

    The released code: a tensor of more than `partition` bytes is cut into pieces of that size; ready pieces
    wait in a heap, those of the earliest layer in front; while there is credit the first one starts and takes
    its bytes from the credit, which may go below zero by one piece; its end gives them back. Defaults:
    1,000,000 and 4,000,000 parameters of 4 bytes. `netsched.tuning` is its tuner. Tensors are not merged;
    without servers each piece is an all-reduce by itself.

    What has begun goes on, and what the credit does not cover waits, even if its receiver is free: with too
    little credit links are idle. Pieces under way share their sender's port as connections do (with
    `transport: {connections: per-pair}` those to one host go in the order of their release), so with too much
    credit the order of the heap means nothing. That is why it is tuned.

    Choices. A sender is one job's process on a host, servers included. In the released code a worker's credit
    is held from the begin of a piece's push to the end of its pull; here each of the two holds its sender's
    while it is sent: between the two the piece waits for other workers' and is no active flow, so no view
    shows that it holds credit (and this policy keeps no memory). So a credit lets more pieces out here than
    there, most where workers differ. In a ring credit is held by what a worker sends in the current round.
    """

    partition: Size = 4e6
    credit: Size = 16e6

    name: ClassVar[str] = "bytescheduler"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.WATCHED_FINISHED
    idles: ClassVar[str] = "what the credit does not cover waits, whoever is free to receive it"

    def __post_init__(self) -> None:
        if not (self.partition > 0 and self.credit > 0):
            raise ValueError(f"partition is {self.partition} B, credit {self.credit} B: must be above 0")

    def reshape(self, profile: Profile, shape: Shape) -> Shape:
        """Tensors one by one, in pieces of at most `partition` bytes. ScenarioError for a sharded job."""
        if profile.experts:
            return shape
        if shape.sync == "fsdp":
            raise ScenarioError(
                f"a job of {profile.model} has sync: fsdp, whose units cannot be cut: "
                "use servers or an all-reduce"
            )
        cut = Slicing(self.partition, self.partition)
        return replace(shape, first=np.arange(len(profile.size)), slicing=cut)

    def __call__(self, view: View) -> Plan:
        return within_credit(view, self.credit)
