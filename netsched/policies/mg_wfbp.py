"""MG-WFBP: gradients are merged where a start-up costs more than waiting for the next gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from netsched.model import Event, Floats, Ints, Plan, View
from netsched.policies.base import plan_of
from netsched.policies.rings import in_a_ring, ring_cost
from netsched.shape import Profile, Shape
from netsched.units import Duration


@dataclass(frozen=True)
class MgWfbp:
    """Merged-gradient wait-free backpropagation (Shi et al., IEEE INFOCOM 2019; abstract and code were read).

    An all-reduce of x bytes takes a + b x seconds, and one follows the other. From the last tensor on, a
    bucket takes in the tensor before it if the bucket's all-reduce could not have ended when that tensor's
    gradient is ready, and has not begun by then or has begun less than `a` before: then waiting for it costs
    less than the start-up that it saves. `merge` "never" is the paper's baseline WFBP (layer by layer),
    "always" its SyncEASGD (one bucket after the whole backward pass).

    The authors fit `startup` (a) and `per_byte` (b, s/B) to measurements; for 8 workers and 10 GbE their
    code has 523 us and 0.857 ns/B. Here, where one is not given, it is that of a ring over the job's slowest
    port: a = 2(N-1) theta, b = 2(N-1)/N / rate.

    The work is done before the job runs: bucket by bucket, serially, and the plan asks for nothing. A job
    whose workers do not reduce round a ring is refused; `without_servers` turns one with servers into a
    ring-allreduce among its workers, whose servers then have nothing to do. INFERRED: a tensor is a layer.
    """

    startup: Duration | None = None
    per_byte: float | None = None
    merge: Literal["rule", "never", "always"] = "rule"
    without_servers: bool = False

    name: ClassVar[str] = "mg-wfbp"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = True
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __post_init__(self) -> None:
        if not (self.startup or 0) >= 0 or not (self.per_byte or 0) >= 0:
            raise ValueError(f"startup is {self.startup} s, per_byte {self.per_byte} s/B: must be 0 or more")

    def reshape(self, profile: Profile, shape: Shape) -> Shape:
        """Buckets by the rule, one all-reduce at a time. ScenarioError for a job that has no ring."""
        if profile.experts:
            return shape
        shape = in_a_ring(profile, shape, self.without_servers)
        a, b = ring_cost(profile)
        a = a if self.startup is None else self.startup
        b = b if self.per_byte is None else self.per_byte
        n = len(profile.size)
        first = {"never": np.arange(n), "always": np.zeros(1, np.int64)}.get(self.merge)
        return replace(
            shape, first=merged(profile.size, profile.ready, a, b) if first is None else first, serial=True
        )

    def __call__(self, view: View) -> Plan:
        return plan_of(view, np.zeros(len(view.flows), np.int64))


def merged(size: Floats, ready: Floats, a: float, b: float) -> Ints:
    """Where the buckets begin. `size`: bytes per tensor, forward order; `ready`: seconds to its gradient.

    Shi et al., algorithm 1, in the form of the released code: what is merged is decided from the last tensor
    on, with the start of each all-reduce that follows from what has been merged so far.
    """
    firsts: list[int] = []
    last = len(size) - 1
    held, start = float(size[last]), float(ready[last])
    for tensor in range(last, 0, -1):
        end, following = start + a + b * held, float(ready[tensor - 1])
        if following < end and (start > following or following - start < a):
            held += float(size[tensor - 1])
            # A bucket that grows is ready later, but the stream is free for it no later than before.
            start = max(start, following)
            continue
        firsts.append(tensor)
        held, start = float(size[tensor - 1]), max(end, following)
    return np.array([0, *reversed(firsts)], np.int64)
