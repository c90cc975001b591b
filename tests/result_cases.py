"""Small workloads with known answers, and feasible schedules of them, for the tests of what is measured."""

from __future__ import annotations

import numpy as np

from netsched.fabric import Fabric
from netsched.model import (
    Control,
    Floats,
    Ints,
    Outcome,
    Scenario,
    Spec,
    TaskKind,
    Transport,
    Workload,
)
from netsched.workloads.builder import WorkloadBuilder

RATE = 1e6
"""Bytes/s of every link: a flow of x MB takes x seconds alone."""


def star(hosts: int, rate: float = RATE) -> Fabric:
    """`hosts` hosts around one switch; link 2h is up from host h, link 2h + 1 down to it."""
    names = tuple(f"h{i + 1}" for i in range(hosts))
    host, switch = np.arange(hosts), np.full(hosts, hosts)
    return Fabric(
        name="star",
        nodes=(*names, "s1"),
        kinds=("host",) * hosts + ("eps",),
        hosts=names,
        link_src=np.stack((host, switch), 1).ravel(),
        link_dst=np.stack((switch, host), 1).ravel(),
        capacity=np.full(2 * hosts, rate),
        delay=np.zeros(2 * hosts),
    )


def star_paths(workload: Workload) -> tuple[Ints, Ints]:
    """CSR of each flow's two links in a star; a flow to its own host crosses none."""
    flows = workload.flows
    both = np.stack((2 * flows.src, 2 * flows.dst + 1), 1)
    apart = (flows.src != flows.dst) | workload.hairpin
    return np.concatenate(([0], np.cumsum(2 * apart))), both[apart].ravel()


def outcome(
    workload: Workload,
    times: Floats,
    *,
    fidelity: dict[str, object] | None = None,
    simulated_s: float = 10.0,
    wall_s: float = 0.5,
) -> Outcome:
    """An outcome from one (start, finish) per node, flows first; links carry what the finished flows hold."""
    n = workload.n_flows
    indptr, links = star_paths(workload)
    done = np.where(np.isnan(times[:n, 1]), 0.0, workload.flows.size)
    hosts = 1 + int(max(workload.flows.src.max(initial=0), workload.flows.dst.max(initial=0)))
    return Outcome(
        flow_release=times[:n, 0],
        flow_finish=times[:n, 1],
        flow_class=np.full(n, 7),
        task_start=times[n:, 0],
        task_finish=times[n:, 1],
        link_bytes=np.bincount(links, np.repeat(done, np.diff(indptr)), 2 * hosts),
        simulated_s=simulated_s,
        wall_s=wall_s,
        peak_rss_bytes=10**8,
        decisions=3,
        fidelity=fidelity or {"valid": True},
        mechanisms={"priority": "fluid"},
    )


def serial_schedule(workload: Workload, rate: float, rng: np.random.Generator) -> Floats:
    """A feasible run: flows one at a time on each port, in a random order of those that are ready.

    Returns (release, finish) per node. Feasible, because a flow has its two ports for itself.
    """
    n_flows, dag = workload.n_flows, workload.dag
    total = n_flows + workload.n_tasks
    times = np.full((total, 2), np.nan)
    waits, ready_at = dag.n_deps.copy(), np.zeros(total)
    jobs = np.concatenate((workload.coflows.job[workload.flows.coflow], workload.tasks.job))
    ready = [n for n in range(total) if waits[n] == 0]
    for n in ready:
        ready_at[n] = workload.jobs.arrival[jobs[n]]
    free = np.zeros(4096)
    while ready:
        node = ready.pop(int(rng.integers(len(ready))))
        begin = ready_at[node]
        times[node, 0] = begin
        if node >= n_flows:
            end = begin + workload.tasks.seconds[node - n_flows]
        elif workload.flows.src[node] == workload.flows.dst[node]:
            end = begin
        else:
            up, down = 2 * workload.flows.src[node], 2 * workload.flows.dst[node] + 1
            end = max(begin, free[up], free[down]) + workload.flows.size[node] / rate
            free[up] = free[down] = end
        times[node, 1] = end
        for after in dag.successors[dag.indptr[node] : dag.indptr[node + 1]]:
            waits[after] -= 1
            ready_at[after] = max(ready_at[after], end)
            if waits[after] == 0:
                ready.append(int(after))
    return times


def training(iterations: int = 3, layers: int = 4, workers: int = 2) -> Workload:
    """One training job with a parameter server on host 0: push, aggregate, pull."""
    b = WorkloadBuilder(workers + 1)
    job = b.add_job("net", arrival=1.0, iterations=iterations)
    pulled: dict[tuple[int, int], int] = {}
    for i in range(iterations):
        stage = b.add_stage(job, f"iteration {i}", i)
        last = {}
        for w in range(1, workers + 1):
            for layer in range(layers):
                task = b.add_task(job, TaskKind.FORWARD, w, 0.1, i, label=f"layer {layer}")
                if layer:
                    b.depend(task, last[w])
                if i:
                    b.depend(task, pulled[w, layer])
                last[w] = task
        gradient = {}
        for w in range(1, workers + 1):
            for layer in reversed(range(layers)):
                task = b.add_task(job, TaskKind.BACKWARD, w, 0.2, i, label=f"layer {layer}")
                b.depend(task, last[w])
                last[w] = gradient[w, layer] = task
        for layer in range(layers):
            push = b.add_coflow(job, stage, f"push {layer}", i)
            pull = b.add_coflow(job, stage, f"pull {layer}", i)
            ready = b.add_task(job, TaskKind.BARRIER, 0, 0.0, i, label=f"aggregate {layer}")
            for w in range(1, workers + 1):
                size = 1e5 * (1 + layer)
                flow = b.add_flow(push, w, 0, size, need=layer, need_span=layers)
                b.depend(flow, gradient[w, layer])
                b.depend(ready, flow)
                pulled[w, layer] = b.add_flow(pull, 0, w, size, need=layer, need_span=layers)
                b.depend(pulled[w, layer], ready)
    return b.build()


def scenario(name: str = "case") -> Scenario:
    return Scenario(
        name=name,
        fabric=Spec("single_switch"),
        workload=(),
        policies=(),
        queues=8,
        seed=1,
        horizon=float("inf"),
        transport=Transport(),
        control=Control(),
        emulation=None,
        source={"name": name, "policies": ["fair"]},
        path="case.yaml",
    )
