"""TensorExpress: switches send first what the next forward pass needs first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import Event, Plan, View
from netsched.policies.base import plan_of


@dataclass(frozen=True)
class TensorExpress:
    """Switch queue by consumption order of the tensor (Kang, Yang, Yoo, Yoo, IEEE CLOUD 2020).

    Tensor l of a job with L tensors goes to queue floor(l * Q / L), strict priority between queues,
    first in first out inside. The paper states the idea (packets of sooner needed tensors overtake in the
    switch); the equal split of tensors over queues is INFERRED. `levels` is Q, 0 for as many as the
    hardware has (or one per tensor where that is unlimited).
    """

    levels: int = 0

    name: ClassVar[str] = "tensorexpress"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = True
    events: ClassVar[Event] = Event.FLOW_RELEASED
    starves: ClassVar[str] = (
        "tensors that are needed later, as long as others come: switches are strict in priority"
    )

    def __post_init__(self) -> None:
        if self.levels < 0:
            raise ValueError(f"levels is {self.levels}, must be 0 (as many as the hardware has) or more")

    def __call__(self, view: View) -> Plan:
        flows = view.flows
        levels = self.levels or view.queues
        rank = flows.need if levels is None else flows.need * levels // np.maximum(flows.need_span, 1)
        return plan_of(view, rank)
