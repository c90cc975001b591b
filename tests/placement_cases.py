"""Jobs and networks made by hand for the tests of placements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from result_cases import star
from sim_cases import Case

from netsched.fabric import Fabric
from netsched.model import Bursts, Cluster, Floats, Ints, JobAlone, Network, TaskKind, Workload


@dataclass(frozen=True)
class LinkNetwork:
    """Hosts between which traffic takes the links listed for the pair of hosts, none if it is not listed."""

    n: int
    links: dict[tuple[int, int], list[int]]
    rates: tuple[float, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"h{i + 1}" for i in range(self.n))

    @property
    def capacity(self) -> Floats:
        most = max(link for links in self.links.values() for link in links)
        return np.array(self.rates or (1.0,) * (most + 1))

    def choose_path(
        self, job: npt.ArrayLike, src: npt.ArrayLike, dst: npt.ArrayLike, salt: npt.ArrayLike
    ) -> Ints:
        return np.zeros(len(np.atleast_1d(src)), np.int64)

    def paths(self, src: Ints, dst: Ints, p: Ints, hairpin: bool = False) -> tuple[Ints, Ints]:
        rows = [self.links.get(pair, []) for pair in zip(src.tolist(), dst.tolist(), strict=True)]
        indptr = np.cumsum([0, *map(len, rows)])
        return indptr, np.array([link for row in rows for link in row], np.int64)


def alone(
    name: str,
    hosts: tuple[int, ...],
    period: float,
    sends: tuple[float, float],
    *,
    arrival: float = 0.0,
    iterations: int = 10,
    loading: float = 0.0,
    duration: float | None = None,
    computes: tuple[bool, ...] | None = None,
) -> JobAlone:
    """A job whose first place sends 1 B/s to its second, from `sends[0]` to `sends[1]` of each period."""
    n = len(hosts)
    traffic = np.zeros((n, n))
    traffic[0, min(1, n - 1)] = sends[1] - sends[0]
    one = np.zeros(1, np.int64)
    bursts = Bursts(*(np.array([s]) for s in sends), one, one + min(1, n - 1), np.ones(1), one)
    return JobAlone(
        name=name,
        arrival=arrival,
        iterations=iterations,
        hosts=np.array(hosts, np.int64),
        computes=np.array(computes or (True,) * n),
        traffic=traffic,
        period=period,
        loading=loading,
        duration=iterations * period if duration is None else duration,
        bursts=bursts,
    )


def cluster_of(network: Network, *jobs: JobAlone) -> Cluster:
    return Cluster(jobs, network)


def turns(jobs: int, iterations: int, seconds: float, size: float) -> tuple[Fabric, Workload]:
    """Jobs that compute on a host of their own, then send to host 0 over its port of 1 B/s, and so on."""
    case = Case(jobs + 1)
    for number in range(jobs):
        job, before = case.job(iterations=iterations), None
        for i in range(iterations):
            task = case.builder.add_task(job, TaskKind.OTHER, number + 1, seconds, i)
            (flow,) = case.coflow((number + 1, 0, size), job=job, iteration=i)
            case.builder.depend(flow, task)
            if before is not None:
                case.builder.depend(task, before)
            before = flow
    return star(jobs + 1, 1.0), case.build()
