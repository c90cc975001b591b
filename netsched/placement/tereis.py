"""Tereis: while a job waits for its data, a short one computes on its processors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from netsched.model import Cluster, Ints, JobAlone, Placing
from netsched.placement.pool import Pool, at_workers, by_arrival
from netsched.units import Duration


@dataclass(frozen=True)
class Tereis:
    """Safe packaging of two jobs on a processor (Tereis, ICPADS 2022; its abstract was read).

    The paper: it predicts how long a job computes and how long its data take to come from remote storage, and
    puts a second job on the same processors if that one ends before the first one's data are there, so that
    the two never compute at once. Queues of several levels prevent starvation.

    Both times are measured of each job alone in the simulator: what comes before its first computation is its
    loading (`data` and `storage` of a training workload), the rest it computes.

    INFERRED. A job A fits into the loading of B if T_compute(A) <= (1 - `margin`) x what is left of
    T_load(B), A has no data to load and no more workers than B. One job for each loading; of several that fit
    the one that computes longest, then the first to arrive. `levels`: a job waits in the first one if it
    computes for at most `first`, in the next up to `growth` times that, and so on; it rises by one for each
    `age` waited. Jobs begin by level, then arrival; who does not find enough free hosts lets those behind it
    try. A job has its hosts alone but for such a guest; where A takes longer than predicted, both compute.
    """

    margin: Annotated[float, Field(ge=0, lt=1)] = 0.1
    levels: Annotated[int, Field(ge=1, le=100)] = 3
    first: Annotated[Duration, Field(gt=0)] = 10.0
    growth: Annotated[float, Field(gt=1, le=1e6)] = 10.0
    age: Annotated[Duration, Field(gt=0)] = 60.0

    name: ClassVar[str] = "tereis"

    def __call__(self, cluster: Cluster, rng: np.random.Generator) -> Placing:
        queue = _Queue(self, cluster, Pool.of(cluster))
        now = 0.0
        while queue.waiting:
            coming = [cluster.jobs[j].arrival for j in queue.waiting if cluster.jobs[j].arrival > now]
            queue.begin(now)
            queue.package(now)
            now = min([queue.pool.next_end(now), *coming])
        return Placing(
            tuple(queue.hosts), tuple(queue.after), np.zeros(len(cluster.jobs)), tuple(queue.notes)
        )

    def level(self, job: JobAlone, now: float) -> int:
        """The level in which the job waits at `now`, 0 first."""
        level, limit = 0, self.first
        while level < self.levels - 1 and computing(job) > limit:
            level, limit = level + 1, limit * self.growth
        return max(0, level - int((now - job.arrival) / self.age))


def computing(job: JobAlone) -> float:
    """Seconds from the job's first computation to its end."""
    return job.duration - job.loading


@dataclass
class _Queue:
    """The jobs that wait, and where those went that no longer do."""

    params: Tereis
    cluster: Cluster
    pool: Pool
    waiting: list[int] = field(default_factory=list)
    hosts: list[Ints] = field(default_factory=list)
    after: list[tuple[int, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    loading: list[tuple[float, int, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting = by_arrival(self.cluster)
        self.hosts = [job.hosts for job in self.cluster.jobs]
        self.after = [()] * len(self.hosts)

    def _arrived(self, now: float) -> list[int]:
        jobs = self.cluster.jobs
        here = [j for j in self.waiting if jobs[j].arrival <= now]
        return sorted(here, key=lambda j: (self.params.level(jobs[j], now), jobs[j].arrival, j))

    def _start(self, j: int, workers: list[int], now: float) -> None:
        job = self.cluster.jobs[j]
        self.hosts[j] = at_workers(job, workers)
        self.after[j] = self.pool.take(j, workers, now, now + job.duration)
        self.waiting.remove(j)

    def begin(self, now: float) -> None:
        """Those that find enough free hosts take them."""
        for j in self._arrived(now):
            job, free = self.cluster.jobs[j], self.pool.free(now)
            if len(free) < (n := int(job.computes.sum())):
                continue
            self._start(j, free[:n], now)
            if job.loading > 0:
                self.loading.append((now + job.loading, j, free[:n]))

    def package(self, now: float) -> None:
        """Each job that still loads gets at most one guest."""
        jobs = self.cluster.jobs
        for entry in list(self.loading):
            until, host_job, workers = entry
            fits = [
                j
                for j in self._arrived(now)
                if jobs[j].loading == 0
                and int(jobs[j].computes.sum()) <= len(workers)
                and computing(jobs[j]) <= (1 - self.params.margin) * (until - now)
            ]
            if fits:
                guest = max(fits, key=lambda j: computing(jobs[j]))
                self._start(guest, workers[: int(jobs[guest].computes.sum())], now)
                self.notes.append(f"{jobs[guest].name}: computes while {jobs[host_job].name} loads its data")
                self.loading.remove(entry)
