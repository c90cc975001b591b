"""Shuffle: every host sends to every other host, one coflow.

What a MapReduce stage or a mixture-of-experts step does to a network, with every port loaded alike.
"""

from __future__ import annotations

import numpy as np

from netsched.errors import ScenarioError
from netsched.units import Duration, Size
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.deadlines import Deadline, deadlines
from netsched.workloads.kind import (
    FabricView,
    HostNamesOrAll,
    JobName,
    Kind,
    Params,
    Weight,
    host_ordinals,
)


class ShuffleParams(Params):
    """`size` is what each host sends to each other host.

    `weight` is the coflow's in the sum of completion times.
    """

    hosts: HostNamesOrAll = "all"
    size: Size
    at: Duration = 0.0
    weight: Weight = 1.0
    deadline: Deadline | None = None
    name: JobName = "shuffle"


def build(
    params: ShuffleParams, fabric: FabricView, builder: WorkloadBuilder, rng: np.random.Generator
) -> None:
    """Add one job: one coflow with a flow for every ordered pair of different hosts, by source."""
    hosts = host_ordinals(fabric, params.hosts, "hosts")
    n = len(hosts)
    if n < 2:
        raise ScenarioError(f"hosts: {n} host cannot shuffle: name 2 or more")
    builder.admit(n * (n - 1))
    src, dst = np.repeat(hosts, n), np.tile(hosts, n)
    different = src != dst
    one = np.zeros(n * (n - 1), np.int64)
    flows = one, src[different], dst[different], np.full(len(one), params.size)
    (deadline,) = deadlines(params.deadline, fabric, flows, 1, rng).tolist()
    job = builder.add_job(params.name, arrival=params.at, weight=params.weight)
    coflow = builder.add_coflow(job, builder.add_stage(job, "shuffle"), params.name, deadline=deadline)
    builder.add_flows(coflow, *flows[1:])


SHUFFLE = Kind(ShuffleParams, build, "all-to-all between hosts, one coflow")
