"""ScheMoE: the tokens of a mixture of experts in chunks, so that sending and computing overlap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies.base import plan_of
from netsched.shape import Mixture, Profile, Shape
from netsched.units import Rate


@dataclass(frozen=True)
class ScheMoe:
    """Scheduled mixture layers (Shi et al., EuroSys 2024; abstract and released code were read).

    The tokens of a layer come in `chunks`. The released order: pack and send each one to its experts; unpack,
    compute and pack each one, and send it back; unpack each one; on one stream of computing and one of
    sending. The plan asks for nothing, for all of that is the graph of the job; jobs without a mixture of
    experts over several replicas are left alone. Its all-to-all that uses links in and between machines at
    once is how any all-to-all is sent here.

    INFERRED: `chunks`; no compression unless `ratio` (bytes before over bytes sent) and `coder` (bytes/s of
    packing, as fast as of unpacking) are given; backward as forward.
    """

    chunks: int = 2
    ratio: float = 1.0
    coder: Rate | None = None

    name: ClassVar[str] = "schemoe"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = True
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __post_init__(self) -> None:
        if self.chunks < 1 or not self.ratio >= 1:
            raise ValueError(f"chunks is {self.chunks}, ratio {self.ratio}: must be 1 or more")

    def reshape(self, profile: Profile, shape: Shape) -> Shape:
        """Tokens in chunks; anything else as it is."""
        if not profile.experts:
            return shape
        coder = np.inf if self.coder is None else self.coder
        return replace(shape, mixture=Mixture(self.chunks, self.ratio, coder))

    def __call__(self, view: View) -> Plan:
        return plan_of(view, np.zeros(len(view.flows), np.int64))
