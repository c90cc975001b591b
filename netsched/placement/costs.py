"""What a layout of tasks on hosts costs Liquid, and the layout that takes the cheapest host task by task."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from netsched.model import Bools, Cluster, Floats, Ints

NOWHERE = -1


class Task(NamedTuple):
    """One place of a job: its number in the job, and whether it computes."""

    job: int
    place: int
    computes: bool


def tasks_of(cluster: Cluster, job: int) -> list[Task]:
    """The job's tasks with those that serve spread evenly among those that compute."""
    computes = cluster.jobs[job].computes
    turn = []
    for wanted in (False, True):
        places = np.flatnonzero(computes == wanted).tolist()
        turn += [((i + 0.5) / len(places), wanted, place) for i, place in enumerate(places)]
    return [Task(job, place, wanted) for _, wanted, place in sorted(turn)]


@dataclass(frozen=True)
class Layout:
    """Where tasks of `jobs` can go and what that costs.

    cost     (hosts, hosts) of a pair of tasks with the most traffic of their job
    busy     jobs that compute on each host already
    allowed  whether each host is one for computing
    room     how many jobs may compute on a host
    """

    cluster: Cluster
    jobs: tuple[int, ...]
    cost: Floats
    busy: Ints
    allowed: Bools
    room: int

    @cached_property
    def factor(self) -> dict[int, Floats]:
        """Of each pair of places of a job: bytes both ways over those of the job's largest pair."""
        found = {}
        for j in self.jobs:
            both = self.cluster.jobs[j].traffic + self.cluster.jobs[j].traffic.T
            np.fill_diagonal(both, 0.0)
            found[j] = both / both.max() if both.max(initial=0.0) > 0 else both
        return found

    def best_fit(self, tasks: list[Task], fixed: Ints | None = None) -> dict[int, Ints] | None:
        """The host of each place of each job, each task where it costs least; None if one finds no room."""
        hosts = self.fill(tasks, np.full(len(tasks), NOWHERE) if fixed is None else fixed, None)
        return None if hosts is None else self.by_job(tasks, hosts)

    def by_job(self, tasks: list[Task], hosts: Ints) -> dict[int, Ints]:
        found = {j: self.cluster.jobs[j].hosts.copy() for j in self.jobs}
        for task, host in zip(tasks, hosts.tolist(), strict=True):
            found[task.job][task.place] = host
        return found

    def fill(self, tasks: list[Task], hosts: Ints, rng: np.random.Generator | None) -> Ints | None:
        """`hosts` (one per task) with each NOWHERE replaced: by the cheapest host, or with `rng` by any."""
        hosts = hosts.copy()
        for i, task in enumerate(tasks):
            if hosts[i] != NOWHERE:
                continue
            can = np.flatnonzero(self._possible(tasks, hosts, task))
            if not len(can):
                return None
            if rng is not None:
                hosts[i] = rng.choice(can)
            else:
                hosts[i] = can[self._added(tasks, hosts, task, can).argmin()]
        return hosts

    def _possible(self, tasks: list[Task], hosts: Ints, task: Task) -> Bools:
        if not task.computes:
            may = self.allowed.copy()
            may[self.cluster.jobs[task.job].hosts[task.place]] = True
            return may
        computing = self._computing(tasks, hosts)
        may = self.allowed & (self.busy + computing < self.room)
        mates = [i for i, other in enumerate(tasks) if other.computes and other.job == task.job]
        may[[hosts[i] for i in mates if hosts[i] != NOWHERE]] = False
        return may

    def _computing(self, tasks: list[Task], hosts: Ints) -> Ints:
        mine = [h for task, h in zip(tasks, hosts.tolist(), strict=True) if task.computes and h != NOWHERE]
        return np.bincount(np.array(mine, np.int64), minlength=len(self.busy))

    def _added(self, tasks: list[Task], hosts: Ints, task: Task, can: Ints) -> Floats:
        """What the total cost grows by if the task goes to each of the hosts `can`."""
        placed = [i for i, other in enumerate(tasks) if other.job == task.job and hosts[i] != NOWHERE]
        net = np.zeros(len(can))
        for i in placed:
            net += self.factor[task.job][task.place, tasks[i].place] * self.cost[can, hosts[i]]
        new = ~np.isin(can, hosts[placed])
        return net + (self._load(task, self._computing(tasks, hosts))[can] + new) / len(tasks)

    def _load(self, task: Task, computing: Ints) -> Floats:
        need = int(task.computes)
        load: Floats = (self.busy + computing + 1 + need) / self.room
        return -load if task.computes else load

    def total(self, tasks: list[Task], hosts: Ints) -> float:
        """The cost of a whole layout."""
        computing = self._computing(tasks, hosts)
        net, load = 0.0, 0.0
        used = {(task.job, host) for task, host in zip(tasks, hosts.tolist(), strict=True)}
        for i, task in enumerate(tasks):
            others = computing.copy()
            others[hosts[i]] -= int(task.computes)
            load += float(self._load(task, others)[hosts[i]])
            for k in range(i):
                if tasks[k].job == task.job:
                    factor = self.factor[task.job][task.place, tasks[k].place]
                    net += float(factor * self.cost[hosts[i], hosts[k]])
        return net + (load + len(used)) / len(tasks)
