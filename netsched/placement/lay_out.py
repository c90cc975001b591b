"""From a placement's name to the workload as it wants it: jobs are run alone, placed, and put there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from netsched.errors import PolicyError, ScenarioError
from netsched.fabric import Fabric
from netsched.model import Cluster, Placing, Spec, Transport, Workload
from netsched.placement import decide, make
from netsched.placement.alone import jobs_alone
from netsched.placement.apply import placed


def lay_out(
    spec: Spec, workload: Workload, fabric: Fabric, transport: Transport, seed: int
) -> tuple[Workload, Mapping[str, Any]]:
    """The workload with its jobs where and when the placement says, and that in plain terms for summary.json.

    Random draws follow from `seed`, and not from what the workload has drawn. ScenarioError if the placement
    is unknown, or says what cannot be.
    """
    placement = make(spec)
    cluster = Cluster(jobs_alone(workload, fabric, transport), fabric)
    try:
        placing = decide(placement, cluster, np.random.default_rng([seed, 1]))
    except PolicyError as error:
        raise ScenarioError(str(error)) from None
    return placed(workload, cluster, placing), _plain(spec, cluster, placing)


def _plain(spec: Spec, cluster: Cluster, placing: Placing) -> Mapping[str, Any]:
    names = [job.name for job in cluster.jobs]
    rows = zip(cluster.jobs, placing.hosts, placing.after, placing.shift.tolist(), strict=True)
    return {
        "name": spec.label,
        "jobs": [
            {
                "job": job.name,
                "hosts": [cluster.network.hosts[host] for host in hosts.tolist()],
                "after": [names[other] for other in after],
                "shift_s": shift,
                "period_alone_s": job.period,
            }
            for job, hosts, after, shift in rows
        ],
        "notes": list(placing.notes),
    }
