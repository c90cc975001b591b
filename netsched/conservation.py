"""Work conservation, seen from outside: whoever has bytes to send and a way crosses a link that is full.

Two looks at a run, a moment apart, between which nothing happens: what a link carried meanwhile says whether
it was full. A flow all of whose links had something left could have had it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from netsched.fabric import Fabric
from netsched.model import Circuits, Floats, Outcome, Policy, Transport, Workload
from netsched.simulate import Glance, glances

_FULL: Final = 1 - 1e-6
"""A link that carries this share of what it could is full: bytes are differences of large sums."""
_MOMENTS: Final = 24
_APART: Final = 1e-3
"""Seconds between two looks, at most; less where something happens sooner."""


class Wasted(NamedTuple):
    """A flow that could have had more, and when (s)."""

    flow: int
    at: float


def wasted(
    policy: Policy,
    workload: Workload,
    fabric: Fabric,
    queues: int | None,
    transport: Transport,
    outcome: Outcome,
    circuits: Circuits | None = None,
) -> tuple[Wasted | None, int]:
    """The first flow found that could have had more, and at how many moments was looked.

    `outcome` is that of the same run and says what happens when. A moment in which somebody decides, or a
    circuit comes or goes, is left out.
    """
    begins, ends = _moments(outcome)
    moments = np.stack([begins, ends], axis=1).ravel().tolist()
    seen = list(
        glances(workload, fabric, policy, moments, queues=queues, transport=transport, circuits=circuits)
    )
    looked = 0
    pairs = zip(begins.tolist(), (ends - begins).tolist(), seen[::2], seen[1::2], strict=True)
    for at, seconds, before, after in pairs:
        if not _alike(before, after):
            continue
        looked += 1
        full = after.link_bytes - before.link_bytes >= fabric.capacity * seconds * _FULL
        for row, flow in enumerate(after.flows.tolist()):
            if not full[after.links[after.indptr[row] : after.indptr[row + 1]]].any():
                return Wasted(flow, at), looked
    return None, looked


def _moments(outcome: Outcome) -> tuple[Floats, Floats]:
    """Begin and end of moments spread over the run, each between two things that happen."""
    times = (outcome.flow_release, outcome.flow_finish, outcome.task_finish)
    happens = np.unique(np.concatenate(times))
    gap = np.diff(happens)
    wide = np.flatnonzero(gap > 1e-6 * happens[1:])
    chosen = wide[np.unique(np.linspace(0, len(wide) - 1, _MOMENTS).astype(np.int64))] if len(wide) else wide
    begins = happens[:-1][chosen] + 0.4 * gap[chosen]
    return begins, begins + np.minimum(0.2 * gap[chosen], _APART)


def _alike(before: Glance, after: Glance) -> bool:
    same_ways = np.array_equal(before.links, after.links) and np.array_equal(before.indptr, after.indptr)
    return before.decisions == after.decisions and np.array_equal(before.flows, after.flows) and same_ways
