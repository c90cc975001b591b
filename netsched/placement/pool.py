"""Who computes on which host, as far ahead as can be told from what jobs take alone.

A placement is made before anything runs. Whether a host is free at some time is therefore a prediction; that
a job waits for the real end of those that had its hosts before is what keeps two from computing there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from netsched.model import Cluster, Ints, JobAlone


@dataclass
class Pool:
    """`room` jobs may compute on each of `hosts` at a time; `held` has who does and until when (s)."""

    hosts: Ints
    room: int = 1
    held: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster, room: int = 1) -> Pool:
        """The hosts on which some job computes in the scenario."""
        hosts = np.unique(np.concatenate([job.hosts[job.computes] for job in cluster.jobs]))
        return cls(hosts, room)

    def busy(self, host: int, at: float) -> int:
        """How many jobs compute on the host then."""
        return sum(end > at for _, end in self.held.get(host, ()))

    def free(self, at: float) -> list[int]:
        """The hosts with room for one more, in order."""
        return [host for host in self.hosts.tolist() if self.busy(host, at) < self.room]

    def next_end(self, at: float) -> float:
        """When a job ends next after `at`, inf if none does."""
        ends = [end for jobs in self.held.values() for _, end in jobs if end > at]
        return min(ends, default=np.inf)

    def take(self, job: int, hosts: list[int], at: float, end: float) -> tuple[int, ...]:
        """The job computes on these hosts from `at` to `end`. Returns those that had them and have to end."""
        before = {other for host in hosts for other, until in self.held.get(host, ()) if until <= at}
        for host in hosts:
            self.held.setdefault(host, []).append((job, end))
        return tuple(sorted(before))


def at_workers(job: JobAlone, workers: list[int]) -> Ints:
    """The job's hosts with its computing places at `workers`, the others where the scenario has them."""
    hosts = job.hosts.copy()
    hosts[job.computes] = workers
    return hosts


def by_arrival(cluster: Cluster) -> list[int]:
    """The jobs in order of arrival, then as listed."""
    return sorted(range(len(cluster.jobs)), key=lambda j: (cluster.jobs[j].arrival, j))
