"""The profiles of jobs once more, slowly and from the words of `model.Profile` alone."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from netsched.fabric import Fabric
from netsched.metrics import node_jobs
from netsched.model import Floats, Workload


class Profiled:
    """`paths[f]` are the links of flow f. All columns are lists by job, coflow or stage."""

    def __init__(self, w: Workload, fabric: Fabric, paths: list[tuple[int, ...]]) -> None:
        n, dag = w.n_flows, w.dag
        nodes = range(n + w.n_tasks)
        self.stage = w.coflows.stage.tolist()
        job = node_jobs(w).tolist()
        after = [dag.successors[dag.indptr[v] : dag.indptr[v + 1]].tolist() for v in nodes]
        before: list[list[int]] = [[] for _ in nodes]
        for v in nodes:
            for follower in after[v]:
                before[follower].append(v)
        seconds = [0.0] * n + w.tasks.seconds.tolist()

        @cache
        def start(v: int) -> float:
            own = [start(u) + seconds[u] for u in before[v]]
            return max(own) if own else float(w.jobs.arrival[job[v]])

        def end(v: int) -> float:
            return start(v) + seconds[v]

        @cache
        def needed(v: int) -> float:
            times = [start(u) if seconds[u] > 0 else needed(u) for u in after[v]]
            return min(times) if times else max(end(u) for u in nodes if job[u] == job[v])

        def iteration(v: int) -> int:
            return int(w.coflows.iteration[w.flows.coflow[v]] if v < n else w.tasks.iteration[v - n])

        self.compute, self.lead, self.work, self.traffic = [], [], [], []
        for j in range(len(w.jobs.name)):
            mine, turns = [v for v in nodes if job[v] == j], int(w.jobs.iterations[j])
            self.compute.append((max(map(end, mine)) - min(map(start, mine))) / turns)
            leads = []
            for i in {iteration(v) for v in mine}:
                flows = [start(v) for v in mine if iteration(v) == i and v < n]
                if flows:
                    leads.append(min(flows) - min(start(v) for v in mine if iteration(v) == i))
            self.lead.append(sum(leads) / len(leads) if leads else 0.0)
            self.work.append(sum(seconds[v] for v in mine if v >= n and w.tasks.host[v - n] >= 0) / turns)
            load = [0.0] * len(fabric.capacity)
            for v in mine:
                for link in paths[v] if v < n else ():
                    load[link] += float(w.flows.size[v])
            self.traffic.append(
                max((b / c for b, c in zip(load, fabric.capacity, strict=True)), default=0) / turns
            )
        self.due_after = []
        for c, stage in enumerate(self.stage):
            first = min(start(f) for f in range(n) if self.stage[w.flows.coflow[f]] == stage)
            self.due_after.append(min(needed(f) for f in range(n) if w.flows.coflow[f] == c) - first)

    def due(self, arrival: dict[int, float], coflows: list[int]) -> Floats:
        """When the bytes of each of these coflows are needed, given when each coflow began."""
        begun: dict[int, float] = {}
        for c, at in arrival.items():
            begun[self.stage[c]] = min(at, begun.get(self.stage[c], math.inf))
        return np.array([begun[self.stage[c]] + self.due_after[c] for c in coflows], np.float64)
