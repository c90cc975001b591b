"""Incast: many senders, one receiver, one coflow.

The smallest workload with a shared bottleneck whose completion time has a closed form.
"""

from __future__ import annotations

import numpy as np

from netsched.errors import ScenarioError
from netsched.units import Duration, Size
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.kind import FabricView, HostNamesOrAll, JobName, Kind, Params, host_ordinals


class IncastParams(Params):
    """`size` is what each sender sends; "all" senders are all hosts but the receiver."""

    senders: HostNamesOrAll
    receiver: str
    size: Size
    at: Duration = 0.0
    name: JobName = "incast"


def build(
    params: IncastParams, fabric: FabricView, builder: WorkloadBuilder, rng: np.random.Generator
) -> None:
    """Add one job: one coflow with a flow from every sender to the receiver."""
    receiver = int(host_ordinals(fabric, [params.receiver], "receiver")[0])
    senders = host_ordinals(fabric, params.senders, "senders")
    if params.senders == "all":
        senders = senders[senders != receiver]
    elif receiver in senders:
        raise ScenarioError(f"senders: {params.receiver!r} is the receiver: name only other hosts")
    if not len(senders):
        raise ScenarioError(
            "senders: the fabric has no host besides the receiver: an incast needs 2 or more hosts"
        )
    builder.admit(len(senders))
    job = builder.add_job(params.name, arrival=params.at)
    coflow = builder.add_coflow(job, builder.add_stage(job, "incast"), params.name)
    builder.add_flows(coflow, senders, receiver, params.size)


INCAST = Kind(IncastParams, build, "many senders, one receiver, one coflow")
