"""What a plain cluster manager does: a job waits until enough hosts are free, then takes the first ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from netsched.model import Cluster, Ints, Placing
from netsched.placement.pool import Pool, at_workers, by_arrival


@dataclass(frozen=True)
class FirstFit:
    """First come, first served: the free hosts of lowest number, `room` jobs on each at a time.

    Hosts to compute on are all those on which some job computes in the scenario; places that do not compute
    (servers, storage) stay where they are. When a host is free is told from what jobs take alone; a job
    begins when those that had its hosts before have really ended.
    """

    room: Annotated[int, Field(ge=1, le=1000)] = 1

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
            after[j] = pool.take(j, workers, now, now + job.duration)
        return Placing(tuple(hosts), tuple(after), np.zeros(len(hosts)))
