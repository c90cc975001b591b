"""Flows with a place in the consumption order, and tiny jobs that train, to test systems at the sender."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from result_cases import star
from sim_cases import PER_FLOW, random_workload, run
from workload_fabric import big_switch

from netsched.model import Outcome, Policy, Spec, TaskKind, Transport, Workload
from netsched.shape import reshape_of
from netsched.workloads import build
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.models import MODELS, Architecture
from netsched.workloads.tensors import Tensor

Needed = tuple[int, int, float, int]
"""A flow: source, destination, bytes, and when its job needs it (of 16 places)."""

SPAN = 16


def tensors(*jobs: list[tuple[float, Needed]], hosts: int = 6) -> Workload:
    """Jobs of flows, each a coflow of its own, released after so many seconds."""
    made = WorkloadBuilder(hosts)
    for number, flows in enumerate(jobs):
        job = made.add_job(f"job {number}")
        stage = made.add_stage(job, "stage")
        for at, (src, dst, size, need) in flows:
            coflow = made.add_coflow(job, stage, "tensor")
            flow = made.add_flow(coflow, src, dst, size, need=need, need_span=SPAN)
            if at:
                made.depend(flow, made.add_task(job, TaskKind.OTHER, seconds=at))
    return made.build()


def finishes(policy: Policy, *jobs: list[tuple[float, Needed]], queues: int | None = None) -> list[float]:
    """Seconds at which the flows of `tensors` end on a switch with 6 ports, a connection for each flow."""
    return run(tensors(*jobs), star(6, 1.0), policy, queues=queues).flow_finish.tolist()


def now(*flows: Needed) -> list[tuple[float, Needed]]:
    """A job whose flows are all there from the start."""
    return [(0.0, flow) for flow in flows]


def with_needs(seed: int, span: int) -> Workload:
    """A random DAG of flows, each with a random place out of `span`."""
    rng = np.random.default_rng(seed)
    workload = random_workload(rng, 4)
    n = workload.n_flows
    need = rng.integers(0, span, n)
    return replace(workload, flows=replace(workload.flows, need=need, need_span=np.full(n, span)))


# ------------------------------------------------------------------ tiny jobs


def model(patch: pytest.MonkeyPatch, sizes: list[int], forward: list[float]) -> None:
    """Have a model `tiny` of these bytes and seconds of forward per tensor (with `tiny_job`)."""
    names = [f"t{number}" for number in range(len(sizes))]
    table = tuple(Tensor(n, (size,), 1e6 * s) for n, size, s in zip(names, sizes, forward, strict=True))
    patch.setitem(MODELS, "tiny", Architecture(lambda _: table))


def tiny_job(policy: Policy, rate: float, also: dict[str, Any] | None = None, **params: Any) -> Workload:
    """One job of `tiny`, a byte a parameter, on ports of `rate` B/s, as the policy reshapes it.

    And another one that differs by `also`, where that is given.
    """
    known = {
        "model": "tiny",
        "batch": 1,
        "iterations": 1,
        "device": {"flops": "1MFLOP/s", "efficiency": 1.0},
        "bytes_per_parameter": 1,
    }
    jobs = [{**known, **params, **more} for more in ([{}] if also is None else [{}, also])]
    specs = tuple(Spec("training", job) for job in jobs)
    return build(specs, big_switch(4, rate), 1, reshape_of(policy))


def ran(
    policy: Policy, rate: float, transport: Transport = PER_FLOW, **params: Any
) -> tuple[Workload, Outcome]:
    """The tiny job under the policy."""
    workload = tiny_job(policy, rate, **params)
    return workload, run(workload, big_switch(4, rate), policy, transport=transport)


def ends(workload: Workload, outcome: Outcome, what: str, iteration: int = 0) -> list[float]:
    """When the coflows whose labels begin with `what` ended, in the order in which they were added."""
    last = np.zeros(len(workload.coflows.label))
    np.maximum.at(last, workload.flows.coflow, outcome.flow_finish)
    return [
        float(last[row])
        for row, label in enumerate(workload.coflows.label)
        if label.startswith(what) and workload.coflows.iteration[row] == iteration
    ]


def forward_ends(workload: Workload, outcome: Outcome) -> list[float]:
    """When each iteration's forward pass ended on the last worker."""
    tasks = workload.tasks
    passes = tasks.kind == TaskKind.FORWARD
    return [
        float(outcome.task_finish[passes & (tasks.iteration == iteration)].max())
        for iteration in range(int(tasks.iteration.max()) + 1)
    ]
