"""Liquid: tasks of a job on nodes between which its parameters travel at little cost."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from netsched.model import Cluster, Floats, Ints, Placing
from netsched.placement.costs import Layout, Task, tasks_of
from netsched.placement.genetic import Genetic, evolve
from netsched.placement.pool import Pool, by_arrival
from netsched.units import Duration


@dataclass(frozen=True)
class Liquid:
    """Placement by network cost (Gu et al., "Liquid", IEEE TPDS 2022; the released code was read).

    cost = Net + f x Load / (number of tasks) + Used / (number of tasks). Net: over pairs of tasks of a job
    that exchange parameters, `node` on one host, and `rack`, `domain` or `far` for hosts 2, up to 4, or more
    links apart (the code's tree has nodes in racks in domains; 0, 1, 4, 40 are its figures). Load: over
    tasks, (jobs that compute on the host + 1 + need) / `room`; f is +1 for a task that serves parameters and
    -1 for one that computes, as each is placed. Used: pairs of a job and a host that it is on.

    `mode: best-fit` places each job when it arrives, each task where the cost then is least, workers and
    servers in turn. `mode: batch` does so every `interval` for all jobs that wait: up to 3 tasks by best fit,
    more by a genetic search (`netsched.placement.genetic`); of jobs that find no room together one drawn at
    random waits for the next time.

    All hosts are looked at; the code stops after 3 x tasks + 5 that have room. INFERRED: a pair's bandwidth
    factor is its bytes over those of the job's largest pair; tasks that do not compute need no room. The
    code's estimate of what a job needs is not here: jobs are measured alone. Sharing a processor and loading
    ahead are off in the code by default, and are not here either.
    """

    mode: Literal["best-fit", "batch"] = "best-fit"
    interval: Annotated[Duration, Field(gt=0)] = 15.0
    node: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    rack: Annotated[float, Field(ge=0, le=1e9)] = 1.0
    domain: Annotated[float, Field(ge=0, le=1e9)] = 4.0
    far: Annotated[float, Field(ge=0, le=1e9)] = 40.0
    room: Annotated[int, Field(ge=1, le=1000)] = 1

    name: ClassVar[str] = "liquid"

    def __call__(self, cluster: Cluster, rng: np.random.Generator) -> Placing:
        pool, cost = Pool.of(cluster, self.room), self._pair_cost(cluster)
        hosts: list[Ints] = [job.hosts for job in cluster.jobs]
        after: list[tuple[int, ...]] = [()] * len(hosts)
        shift = np.zeros(len(hosts))
        waiting, now = by_arrival(cluster), 0.0
        while waiting:
            now = self._turn(now, cluster.jobs[waiting[0]].arrival)
            here = [j for j in waiting if cluster.jobs[j].arrival <= now]
            found = self._place(cluster, here, pool, cost, now, rng)
            for j, chosen in found.items():
                job = cluster.jobs[j]
                hosts[j] = chosen
                after[j] = pool.take(j, chosen[job.computes].tolist(), now, now + job.duration)
                # Waiting for those that had the hosts is what `after` says, and no shift.
                shift[j] = 0.0 if after[j] else now - job.arrival
                waiting.remove(j)
            if waiting and not found:
                now = min(pool.next_end(now), *self._arrivals(cluster, waiting, now))
        return Placing(tuple(hosts), tuple(after), shift)

    def _turn(self, now: float, arrival: float) -> float:
        """When jobs are placed next: at once, or at the next multiple of the interval."""
        at = max(now, arrival)
        return math.ceil(at / self.interval - 1e-9) * self.interval if self.mode == "batch" else at

    @staticmethod
    def _arrivals(cluster: Cluster, waiting: list[int], now: float) -> list[float]:
        return [math.inf, *(a for j in waiting if (a := cluster.jobs[j].arrival) > now)]

    def _pair_cost(self, cluster: Cluster) -> Floats:
        """Cost between every two hosts, by the number of links between them."""
        n = len(cluster.network.hosts)
        src, dst = (each.ravel() for each in np.indices((n, n)))
        hops = np.diff(cluster.network.paths(src, dst, np.zeros(n * n, np.int64))[0])
        steps = np.select([hops == 0, hops <= 2, hops <= 4], [self.node, self.rack, self.domain], self.far)
        return steps.astype(np.float64).reshape(n, n)

    def _place(
        self,
        cluster: Cluster,
        jobs: list[int],
        pool: Pool,
        cost: Floats,
        now: float,
        rng: np.random.Generator,
    ) -> dict[int, Ints]:
        """Where those of the jobs go that can begin now; in best-fit mode the first one only."""
        busy = np.array([pool.busy(host, now) for host in range(len(cost))])
        allowed = np.isin(np.arange(len(cost)), pool.hosts)
        chosen = jobs[:1] if self.mode == "best-fit" else list(jobs)
        while chosen:
            layout = Layout(cluster, tuple(chosen), cost, busy, allowed, self.room)
            tasks = list(itertools.chain.from_iterable(tasks_of(cluster, j) for j in chosen))
            placed = self._fit(layout, tasks, rng)
            if placed is not None:
                return {j: placed[j] for j in chosen}
            chosen.remove(int(rng.choice(chosen)))
        return {}

    def _fit(self, layout: Layout, tasks: list[Task], rng: np.random.Generator) -> dict[int, Ints] | None:
        if self.mode == "batch" and len(tasks) > 3:
            return evolve(layout, tasks, Genetic.of(len(tasks)), rng)
        return layout.best_fit(tasks)
