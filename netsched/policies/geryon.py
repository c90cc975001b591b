"""Geryon: connections of different priority between each two hosts, urgent parameters on the higher ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from netsched.model import Event, Ints, Plan, View
from netsched.policies.base import plan_of


@dataclass(frozen=True)
class Geryon:
    """Class by urgency level of the parameter (Wang, Li, Geng, IEEE INFOCOM 2020; its abstract was read).

    The paper: parameters have urgency levels, flows of different priority carry them, and network cards and
    switches, strict in priority, thereby coordinate all servers without a controller. For its connections,
    one per worker, server and level, give the scenario `transport: {connections: per-pair}`: inside a
    connection parameters go in the order in which they were handed over. Its "parameter slicing" is `slice`
    of the workload.

    INFERRED. Urgency is the consumption order (an earlier layer is more urgent). `levels` (K) of 4, which
    common switches have; 0 is for as many as the hardware has, or one per tensor. Where levels begin:
    `split` "geometric" halves: the last level has the later half of the tensors, each one before it half of
    what is left, so that the first layers have levels of their own; "equal" gives each level the same number
    of tensors. Levels of equal bytes, or tuned ones (CEFS, CoNEXT 2020, of the same first author, searches
    the boundaries online), are given as `bounds`: the ascending shares of the tensor order at which level 1
    and those after it begin; they count instead of `levels` and `split`. A host knows a tensor's place only.

    With one level this is what the paper calls vanilla: every connection first come, first served, and all
    alike. With as many levels as tensors it is TensorExpress with as many queues.
    """

    levels: int = 4
    split: Literal["geometric", "equal"] = "geometric"
    bounds: tuple[float, ...] = ()

    name: ClassVar[str] = "geryon"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = True
    events: ClassVar[Event] = Event.FLOW_RELEASED
    starves: ClassVar[str] = (
        "tensors of less urgent levels, as long as others come: switches are strict in priority"
    )

    def __post_init__(self) -> None:
        if self.levels < 0:
            raise ValueError(f"levels is {self.levels}, must be 0 (as many as the hardware has) or more")
        edges = (0.0, *self.bounds, 1.0)
        if any(not low < high for low, high in pairwise(edges)):
            raise ValueError(f"bounds are {self.bounds}, must ascend between 0 and 1 (both excluded)")

    def __call__(self, view: View) -> Plan:
        need, span = view.flows.need, np.maximum(view.flows.need_span, 1)
        levels = self.levels or view.queues
        if self.bounds:
            # The slack takes rounding out: a third of 3 tensors is a whole one.
            begins = np.ceil(np.outer(self.bounds, span) - 1e-9)
            return plan_of(view, (need >= begins).sum(axis=0))
        if levels is None:
            return plan_of(view, need)
        return plan_of(view, need * levels // span if self.split == "equal" else _halves(need, span, levels))


def _halves(need: Ints, span: Ints, levels: int) -> Ints:
    """The last level has the later half of the tensors, the one before it half of the rest, and so on.

    The level k that begins at ceil(span / 2^(levels - k)), but at tensor k at the earliest: no level is empty
    where there are tensors enough.
    """
    level = np.zeros(len(need), np.int64)
    for k in range(1, min(levels, int(span.max(initial=0)) + 1)):
        begin = np.maximum(np.ceil(np.ldexp(span.astype(np.float64), k - levels)), k)
        level += need >= begin
    return level
