"""The placements by name, and the one gate through which a scenario asks them.

Adding one is one file and one line here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from netsched.construct import construct
from netsched.errors import PolicyError
from netsched.model import Cluster, Placement, Placing, Spec
from netsched.placement.as_given import AsGiven
from netsched.placement.cassini import Cassini
from netsched.placement.first_fit import FirstFit
from netsched.placement.liquid import Liquid
from netsched.placement.tereis import Tereis

PLACEMENTS: Final[dict[str, type[Placement]]] = {
    kind.name: kind for kind in (AsGiven, FirstFit, Cassini, Liquid, Tereis)
}


def make(spec: Spec) -> Placement:
    """The placement of that name with those parameters. ScenarioError if none has it."""
    return construct("placement", "placement", PLACEMENTS, spec)


def decide(placement: Placement, cluster: Cluster, rng: np.random.Generator) -> Placing:
    """What the placement says, checked. PolicyError if that does not place every job on hosts that exist."""
    placing = placement(cluster, rng)

    def wrong(what: str) -> PolicyError:
        return PolicyError(f"placement {placement.name}: {what}")

    n, hosts = len(cluster.jobs), len(cluster.network.hosts)
    if (len(placing.hosts), len(placing.after), placing.shift.shape) != (n, n, (n,)):
        raise wrong(f"hosts, after and shift must have one entry for each of {n} jobs")
    if not (np.isfinite(placing.shift) & (placing.shift >= 0)).all():
        raise wrong("a shift is not a finite time of 0 s or more")
    for number, (job, given, after) in enumerate(
        zip(cluster.jobs, placing.hosts, placing.after, strict=True)
    ):
        if given.shape != job.hosts.shape or given.dtype.kind != "i":
            raise wrong(f"job {job.name!r} has {len(job.hosts)} places and needs so many hosts")
        if given.min(initial=0) < 0 or given.max(initial=0) >= hosts:
            raise wrong(f"job {job.name!r} is on a host that does not exist (there are 0 to {hosts - 1})")
        if len(set(given[job.computes].tolist())) < int(job.computes.sum()):
            raise wrong(f"job {job.name!r} computes in two places on one host")
        if not set(after) <= set(range(n)) - {number}:
            raise wrong(f"job {job.name!r} waits for a job that is not another one of the cluster")
    return placing
