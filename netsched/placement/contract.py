"""The checker that every placement must pass, ours and yours: `check_placement(placement, fabric)`.

Both engines build the placed workload on their own, the emulator in another process: they carry the same only
if a placement is a function of what it is shown and of what its generator draws.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Final

import numpy as np

from netsched.errors import PolicyError
from netsched.fabric import Fabric
from netsched.model import Cluster, Placement, Placing, TaskKind, Transport, Workload
from netsched.placement import decide
from netsched.placement.alone import jobs_alone
from netsched.placement.apply import placed
from netsched.workloads.builder import Node, WorkloadBuilder

_CLUSTERS: Final = 4


def check_placement(placement: Placement, fabric: Fabric, *, seed: int = 0) -> None:
    """Hold a placement to the contract of `model.Placement` on random jobs over `fabric` (4 hosts or more).

    Every job gets a host that exists for each of its places, computes in one place of a host only, and begins
    in the end; the same cluster and draws give the same placing; the cluster is left as it was.
    Raises PolicyError, which names what is broken.
    """
    parameters = getattr(placement, "__dataclass_params__", None)
    if not (is_dataclass(placement) and parameters is not None and parameters.frozen):
        raise PolicyError(
            f"placement {placement.name}: must be a frozen dataclass, its fields its parameters"
        )
    rng = np.random.default_rng(seed)
    for _ in range(_CLUSTERS):
        workload = sample_jobs(rng, fabric)
        cluster = Cluster(jobs_alone(workload, fabric, Transport()), fabric)
        before = _bytes(cluster)
        draws = int(rng.integers(2**32))
        first, again = (decide(placement, cluster, np.random.default_rng(draws)) for _ in range(2))
        if _bytes(cluster) != before:
            raise PolicyError(f"placement {placement.name}: it changed the cluster; copy before writing")
        if _said(first) != _said(again):
            raise PolicyError(
                f"placement {placement.name}: one cluster gave two placings; it may depend on nothing but "
                "the cluster, its parameters and the generator that it is given"
            )
        placed(workload, cluster, first)


def sample_jobs(rng: np.random.Generator, fabric: Fabric) -> Workload:
    """Three to five jobs of two workers and a server, some with data to load, that arrive one by one."""
    builder, hosts = WorkloadBuilder(len(fabric.hosts)), len(fabric.hosts)
    second = float(np.median(fabric.capacity))
    arrival = 0.0
    for number in range(int(rng.integers(3, 6))):
        iterations = int(rng.integers(1, 5))
        job = builder.add_job(f"job {number}", arrival, iterations=iterations)
        arrival += float(rng.choice([0.0, 0.5, 3.0]))
        *workers, server = rng.permutation(hosts)[:3].tolist()
        before: list[Node] = []
        if rng.random() < 0.4:
            coflow = builder.add_coflow(job, builder.add_stage(job, "load"), "data")
            before = [builder.add_flow(coflow, server, worker, second) for worker in workers]
        for i in range(iterations):
            coflow = builder.add_coflow(job, builder.add_stage(job, f"iteration {i}", i), "push", i)
            pushes: list[Node] = []
            for worker in workers:
                task = builder.add_task(job, TaskKind.BACKWARD, worker, float(rng.exponential(0.3)), i)
                builder.depend(task, *before)
                push = builder.add_flow(coflow, worker, server, second * float(rng.exponential(0.2)))
                builder.depend(push, task)
                pushes.append(push)
            before = pushes
    return builder.build()


def _bytes(cluster: Cluster) -> list[bytes]:
    return [
        array.tobytes()
        for job in cluster.jobs
        for array in (job.hosts, job.computes, job.traffic, job.bursts.begin, job.bursts.end, job.bursts.rate)
    ]


def _said(placing: Placing) -> tuple[object, ...]:
    return (
        [hosts.tolist() for hosts in placing.hosts],
        placing.after,
        placing.shift.tolist(),
        placing.notes,
    )
