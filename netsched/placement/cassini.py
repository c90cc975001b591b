"""CASSINI: jobs that share a link begin at such times that one sends while the other computes."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import networkx as nx
import numpy as np
from pydantic import Field

from netsched.model import Cluster, Floats, Ints, JobAlone, Placing
from netsched.placement.as_given import as_given
from netsched.placement.circles import Circle, turned
from netsched.units import Duration

_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Shared:
    """A link that several jobs load: who, the best score, and each job's shift on it in seconds."""

    jobs: tuple[int, ...]
    score: float
    shift: dict[int, float]


@dataclass(frozen=True)
class Cassini:
    """Time shifts from circles and an affinity graph (Rajasekaran et al., "CASSINI", NSDI 2024; see below).

    Read: the abstract and others' notes; the numbers in them are from memory. Each job's demand on each link
    over an iteration is rolled around a circle; jobs of one link are turned on their common circle so that
    demand exceeds the link as little as possible, which gives the link a score. A graph of jobs and the links
    that they share carries the shifts from one job of each component to all others; a placement whose graph
    has a loop is dropped, and of several the one with the best mean score is taken.

    `angles` 72 (of 5 degrees), `candidates` 10: from memory. `quantum`: periods are rounded to it. `turns`: a
    common circle is at most so many of the longest iterations; then periods fit it approximately. INFERRED.
    INFERRED too: candidates are the scenario's placement and, with `move`, others that exchange its hosts at
    random (the paper takes them from a cluster scheduler). Links with the same jobs, or some of the jobs of
    another link, count as one, for which the lowest score's shifts stand (else each two jobs that meet on two
    links were a loop). Links that the jobs cannot overload together are left out. Two jobs meet if, alone,
    one would not have ended when the other arrives.

    A shift is a later begin of the whole job. The paper's agents also align an iteration anew when it has
    drifted by more than 5 %: that is not done here, and iterations that take longer than alone drift.
    """

    angles: Annotated[int, Field(ge=4, le=3600)] = 72
    quantum: Annotated[Duration, Field(gt=0)] = 0.001
    turns: Annotated[int, Field(ge=1, le=100)] = 12
    candidates: Annotated[int, Field(ge=1, le=1000)] = 10
    move: bool = False

    name: ClassVar[str] = "cassini"

    def __call__(self, cluster: Cluster, rng: np.random.Generator) -> Placing:
        best: tuple[float, Placing] | None = None
        loops: tuple[str, ...] = ()
        for hosts in self._candidates(cluster, rng):
            links = shared_links(self, cluster, hosts)
            if (loop := _loop(cluster, links)) is not None:
                loops = loops or (loop,)
                continue
            mean = float(np.mean([link.score for link in links])) if links else 1.0
            if best is None or mean > best[0] + _ROUNDING:
                shift = _shifts(cluster, links)
                notes = tuple(f"{_names(cluster, link.jobs)}: score {link.score:.3f}" for link in links)
                best = mean, Placing(hosts, ((),) * len(cluster.jobs), shift, notes)
        return best[1] if best is not None else as_given(cluster, loops)

    def _candidates(self, cluster: Cluster, rng: np.random.Generator) -> list[tuple[Ints, ...]]:
        found = [tuple(job.hosts for job in cluster.jobs)]
        for _ in range(self.candidates - 1 if self.move else 0):
            other = rng.permutation(len(cluster.network.hosts))
            found.append(tuple(other[job.hosts] for job in cluster.jobs))
        return found


def shared_links(params: Cassini, cluster: Cluster, hosts: tuple[Ints, ...]) -> list[Shared]:
    """The links on which jobs at these hosts can collide; one for all whose jobs are among another's."""
    circles: dict[int, dict[int, Circle]] = defaultdict(dict)
    for j, job in enumerate(cluster.jobs):
        for link, circle in _circles(cluster, j, job, hosts[j]).items():
            circles[link][j] = circle
    capacity = cluster.network.capacity
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for link, of_job in sorted(circles.items()):
        for jobs in _together(cluster, sorted(of_job)):
            peaks = sum(float(of_job[j].demand(params.angles).max()) for j in jobs)
            if peaks > capacity[link] * (1 + _ROUNDING):
                groups[jobs].append(link)
    found: list[Shared] = []
    for jobs in sorted(groups, key=lambda each: (-len(each), each)):
        holder = next((i for i, other in enumerate(found) if set(jobs) <= set(other.jobs)), None)
        if holder is not None and len(jobs) < len(found[holder].jobs):
            continue
        worst = min((_turned(params, circles[k], jobs, float(capacity[k])) for k in groups[jobs]), key=_score)
        found.append(worst)
    return found


def _score(link: Shared) -> float:
    return link.score


def _turned(params: Cassini, circles: dict[int, Circle], jobs: tuple[int, ...], capacity: float) -> Shared:
    best = turned([circles[j] for j in jobs], capacity, params.angles, params.quantum, params.turns)
    return Shared(jobs, best.score, dict(zip(jobs, best.shift.tolist(), strict=True)))


def _circles(cluster: Cluster, number: int, job: JobAlone, hosts: Ints) -> dict[int, Circle]:
    """What the job sends over each link if it runs at these hosts."""
    bursts, network = job.bursts, cluster.network
    src, dst = hosts[bursts.src], hosts[bursts.dst]
    if not len(src) or job.period <= 0:
        return {}
    path = network.choose_path(number, src, dst, bursts.salt)
    indptr, links = network.paths(src, dst, path)
    row = np.repeat(np.arange(len(src)), np.diff(indptr))
    found = {}
    for link in np.unique(links).tolist():
        rows = row[links == link]
        found[link] = Circle(job.period, bursts.begin[rows], bursts.end[rows], bursts.rate[rows])
    return found


def _together(cluster: Cluster, jobs: list[int]) -> list[tuple[int, ...]]:
    """The jobs in groups of two or more that run at the same time, directly or by others between them."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(jobs)
    for i, a in enumerate(jobs):
        for b in jobs[i + 1 :]:
            first, second = sorted((cluster.jobs[a], cluster.jobs[b]), key=lambda job: job.arrival)
            if second.arrival < first.arrival + first.duration:
                graph.add_edge(a, b)
    groups = [tuple(sorted(part)) for part in nx.connected_components(graph)]
    return sorted(part for part in groups if len(part) > 1)


def _affinity(links: list[Shared]) -> nx.Graph[tuple[str, int]]:
    graph: nx.Graph[tuple[str, int]] = nx.Graph()
    for i, link in enumerate(links):
        graph.add_edges_from((("link", i), ("job", j)) for j in link.jobs)
    return graph


def _loop(cluster: Cluster, links: list[Shared]) -> str | None:
    """What is wrong with the affinity graph, or None if it is a forest."""
    graph = _affinity(links)
    if not len(graph) or nx.is_forest(graph):
        return None
    cycle = sorted(number for kind, number in nx.cycle_basis(graph)[0] if kind == "job")
    return f"{_names(cluster, tuple(cycle))}: not shifted, they meet on several links in a loop"


def _shifts(cluster: Cluster, links: list[Shared]) -> Floats:
    """Seconds by which each job begins later, so that on every link the jobs are turned as they should be.

    From the earliest job of each component, t_k = t_j - (shift of j on the link) + (that of k), as time after
    a common origin; what counts is the job's begin after its arrival, within one iteration.
    """
    graph, begin = _affinity(links), {}
    shift = np.zeros(len(cluster.jobs))
    for part in nx.connected_components(graph):
        jobs = [number for kind, number in part if kind == "job"]
        root = min(jobs, key=lambda j: (cluster.jobs[j].arrival, j))
        begin[root] = cluster.jobs[root].arrival
        for (kind, number), (_, after) in nx.bfs_edges(graph, ("job", root)):
            if kind == "job":
                begin_of_link = begin[number] - links[after].shift[number]
                for k in links[after].jobs:
                    if k not in begin:
                        begin[k] = begin_of_link + links[after].shift[k]
    for j, at in begin.items():
        period = cluster.jobs[j].period
        late = math.fmod(at - cluster.jobs[j].arrival, period)
        late += period if late < 0 else 0.0
        # What is a whole iteration but for rounding is none.
        shift[j] = 0.0 if min(late, period - late) <= _ROUNDING * period else late
    return shift


def _names(cluster: Cluster, jobs: tuple[int, ...]) -> str:
    return ", ".join(cluster.jobs[j].name for j in jobs)
