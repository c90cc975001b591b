"""DeAR: gradients are summed behind the backward pass, and spread behind the next forward pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from netsched.model import Event, Floats, Ints, Plan, View
from netsched.policies.base import plan_of
from netsched.policies.rings import in_a_ring
from netsched.shape import Profile, Shape
from netsched.units import Size


@dataclass(frozen=True)
class DeAr:
    """Decoupled all-reduce (Zhang et al., IEEE ICDCS 2023; abstract and released code were read).

    An all-reduce is cut into reduce-scatter and all-gather, which together cost what it costs. Tensors are
    fused in forward order up to `fuse` bytes; a group is reduced when its last gradient is ready. When all
    are, the first group is gathered; when the forward pass comes to a group it waits for its gather and
    starts the next one's. `fuse` 0 is no fusion; the paper also tunes it.

    The work is done by the graph of the job (see `netsched.workloads.deferred`), and the plan asks for
    nothing. A job whose workers do not reduce round a ring is refused; `without_servers` turns one with
    servers into a ring among its workers, whose servers then have nothing to do. INFERRED: a group ends
    before the tensor with which it would exceed `fuse` (the code counts modules, not tensors).
    """

    fuse: Size = 25 * 2.0**20
    without_servers: bool = False

    name: ClassVar[str] = "dear"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = True
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def reshape(self, profile: Profile, shape: Shape) -> Shape:
        """Two halves of groups of `fuse` bytes. ScenarioError for a job that has no ring."""
        if profile.experts:
            return shape
        shape = in_a_ring(profile, shape, self.without_servers)
        return replace(
            shape, first=groups(profile.size, self.fuse), sync="reduce-scatter-all-gather", gather="forward"
        )

    def __call__(self, view: View) -> Plan:
        return plan_of(view, np.zeros(len(view.flows), np.int64))


def groups(size: Floats, limit: float) -> Ints:
    """Where groups begin that take tensors in forward order while they hold at most `limit` bytes."""
    begins, held = [0], 0.0
    for tensor, each in enumerate(size.tolist()):
        if tensor > begins[-1] and held + each > limit:
            begins.append(tensor)
            held = 0.0
        held += each
    return np.array(begins, np.int64)
