"""Incast: many senders, one receiver, one coflow.

The smallest workload with a shared bottleneck whose completion time has a closed form.
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


class IncastParams(Params):
    """`size` is what each sender sends; "all" senders are all hosts but the receiver.

    `weight` is the coflow's in the sum of completion times.
    """

    senders: HostNamesOrAll
    receiver: str
    size: Size
    at: Duration = 0.0
    weight: Weight = 1.0
    deadline: Deadline | None = None
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
    n = len(senders)
    flows = np.zeros(n, np.int64), senders, np.full(n, receiver), np.full(n, params.size)
    (deadline,) = deadlines(params.deadline, fabric, flows, 1, rng).tolist()
    job = builder.add_job(params.name, arrival=params.at, weight=params.weight)
    coflow = builder.add_coflow(job, builder.add_stage(job, "incast"), params.name, deadline=deadline)
    builder.add_flows(coflow, *flows[1:])


INCAST = Kind(IncastParams, build, "many senders, one receiver, one coflow")
