"""What a plain cluster manager does: a job waits until enough hosts are free, then takes the first ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from netsched.model import Cluster, Ints, Placing
from netsched.placement.pool import Pool, at_workers, by_arrival


@dataclass(frozen=True)
class FirstFit:
    """First come, first served: the free hosts of lowest number, `room` jobs on each at a time.

    Hosts to compute on are all those on which some job computes in the scenario. Places that do not compute
    (servers, storage) stay where they are, or with `servers: move` go to the next hosts in order on which
    fewest jobs compute, each on one where the job is not yet (as far as there are such). When a host is free
    is told from what jobs take alone; a job begins when those that had its hosts before have really ended.
    """

    room: Annotated[int, Field(ge=1, le=1000)] = 1
    servers: Literal["stay", "move"] = "stay"

    name: ClassVar[str] = "first-fit"

    def __call__(self, cluster: Cluster, rng: np.random.Generator) -> Placing:
        pool, now = Pool.of(cluster, self.room), 0.0
        hosts: list[Ints] = [job.hosts for job in cluster.jobs]
        after: list[tuple[int, ...]] = [()] * len(hosts)
        for j in by_arrival(cluster):
            job = cluster.jobs[j]
            now, n = max(now, job.arrival), int(job.computes.sum())
            while len(pool.free(now)) < n:
                now = pool.next_end(now)
            workers = pool.free(now)[:n]
            hosts[j] = at_workers(job, workers)
            if self.servers == "move":
                hosts[j][~job.computes] = _next_hosts(pool, workers, int((~job.computes).sum()), now)
            after[j] = pool.take(j, workers, now, now + job.duration)
        return Placing(tuple(hosts), tuple(after), np.zeros(len(hosts)))


def _next_hosts(pool: Pool, workers: list[int], n: int, at: float) -> list[int]:
    """`n` hosts for places that do not compute, those of the job's own workers after all others."""
    order = sorted(pool.hosts.tolist(), key=lambda host: (host in workers, pool.busy(host, at), host))
    return [order[i % len(order)] for i in range(n)]
