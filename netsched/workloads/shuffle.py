"""Shuffle: every host sends to every other host, one coflow.

What a MapReduce stage or a mixture-of-experts step does to a network, with every port loaded alike.
"""

from __future__ import annotations

import numpy as np

from netsched.errors import ScenarioError
from netsched.units import Duration, Size
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.kind import FabricView, HostNamesOrAll, JobName, Kind, Params, host_ordinals


class ShuffleParams(Params):
    """`size` is what each host sends to each other host."""

    hosts: HostNamesOrAll = "all"
    size: Size
    at: Duration = 0.0
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
    job = builder.add_job(params.name, arrival=params.at)
    coflow = builder.add_coflow(job, builder.add_stage(job, "shuffle"), params.name)
    src, dst = np.repeat(hosts, n), np.tile(hosts, n)
    different = src != dst
    builder.add_flows(coflow, src[different], dst[different], params.size)


SHUFFLE = Kind(ShuffleParams, build, "all-to-all between hosts, one coflow")
