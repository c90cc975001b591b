"""All hosts send at once: does this machine carry what the ports are set to?

Every host sends to the one half way round, which fills each NIC in both directions; what each flow should
take is computed by the simulator on the same fabric, so that shared uplinks are no surprise.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from netsched.emulation import play as stage_play
from netsched.fabric import Fabric
from netsched.model import Connections, Control, Floats, Outcome, Transport, Workload
from netsched.policies.fair import Fair
from netsched.simulate import simulate
from netsched.workloads.builder import WorkloadBuilder

SECONDS: Final = 0.4
"""How long each host sends at the full rate of its first port."""

ATTEMPTS: Final = 3
"""A machine that is too slow fails each of them; one that was busy for a moment does not."""

TRANSPORT: Final = Transport(Connections.PER_PAIR)


def workload(fabric: Fabric) -> Workload:
    """One flow per host of SECONDS at its NIC's rate, all at time 0."""
    n = len(fabric.hosts)
    builder = WorkloadBuilder(n)
    job = builder.add_job("preflight")
    stage = builder.add_stage(job, "all at once")
    coflow = builder.add_coflow(job, stage, "all at once")
    for host in range(n):
        first = int(np.flatnonzero(fabric.link_src == host)[0])
        builder.add_flow(coflow, host, (host + n // 2) % n, float(fabric.capacity[first]) * SECONDS)
    return builder.build()


def expected(fabric: Fabric) -> Outcome:
    """What the simulator says of it."""
    return simulate(workload(fabric), fabric, Fair(), queues=1, transport=TRANSPORT, control=Control())


def shares(play: stage_play.Play, due: Outcome) -> Floats:
    """Expected over measured time of each flow, once `play` has run that workload: 1 is as it should be."""
    n = play.fixed.workload.n_flows
    took = play.ledger.finish[:n] - play.ledger.start[:n]
    return np.asarray(due.flow_finish / np.maximum(took, 1e-9))
