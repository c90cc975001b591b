"""What jobs compute and send in an iteration, by hand and against the slow profile of the oracle."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from profile_oracle import Profiled
from result_cases import star
from sim_cases import PER_FLOW, random_workload

from netsched.control import decide
from netsched.errors import PolicyError
from netsched.fabrics import build
from netsched.ledger import iteration_offsets, open_ledger
from netsched.model import Event, Spec, TaskKind
from netsched.observe import static, view
from netsched.policies import POLICIES
from netsched.profiles import profiles_of
from netsched.routes import route
from netsched.workloads import build as unroll
from netsched.workloads.builder import WorkloadBuilder


def training(iterations: int):
    """One worker and one server, two tensors (0 used first): forward 1 s + 2 s, backward 4 s + 2 s.

    Tensor 1's gradient (10 B, 2 flows) is ready 4 s into the backward pass, tensor 0's (4 B) at its end.
    """
    made = WorkloadBuilder(2)
    job = made.add_job("j", arrival=5.0, iterations=iterations)
    stages = [made.add_stage(job, f"i{i}", i) for i in range(iterations)]
    arrived: list = []
    for i in range(iterations):
        chain = [made.add_task(job, TaskKind.FORWARD, 0, seconds, i) for seconds in (1.0, 2.0, 4.0, 2.0)]
        for before, after in pairwise(chain):
            made.depend(after, before)
        for tensor, pulls in enumerate(arrived):
            made.depend(chain[tensor], *pulls)
        arrived = []
        for tensor, size in ((0, 4.0), (1, 5.0)):
            push = made.add_coflow(job, stages[i], f"push {tensor}", i)
            pull = made.add_coflow(job, stages[i], f"pull {tensor}", i)
            sums = made.add_task(job, TaskKind.BARRIER, 1, 0.0, i)
            up = [made.add_flow(push, 0, 1, size) for _ in range(1 + tensor)]
            down = [made.add_flow(pull, 1, 0, size) for _ in range(1 + tensor)]
            for flow in up:
                made.depend(flow, chain[3 - tensor])
                made.depend(sums, flow)
            for flow in down:
                made.depend(flow, sums)
            arrived.append([*down, chain[3]])
    return made.build()


def test_of_training_by_hand():
    workload, fabric = training(3), star(2, 2.0)
    got = profiles_of(workload, route(workload, fabric, PER_FLOW), fabric.capacity)
    # 9 s of computing an iteration, the first gradient after 1 + 2 + 4 s, 14 B at 2 B/s either way.
    assert (got.compute.tolist(), got.work.tolist()) == ([9.0], [9.0])
    assert (got.lead.tolist(), got.traffic.tolist()) == ([7.0], [7.0])
    # The stage begins with tensor 1's push. Tensor 0 is needed when the backward pass ends, 2 s later, and
    # tensor 1 after tensor 0's forward, 1 s later; in the last iteration both when all is computed.
    by_label = dict(zip(workload.coflows.label, got.due_after.reshape(3, 4).T.tolist(), strict=False))
    right = {"push 0": [2.0, 2.0, 2.0], "push 1": [3.0, 3.0, 2.0]}
    right |= {label.replace("push", "pull"): due for label, due in right.items()}
    assert by_label == right


def test_a_bare_coflow_is_due_at_once():
    case = WorkloadBuilder(2)
    job = case.add_job("j", arrival=3.0)
    case.add_flow(case.add_coflow(job, case.add_stage(job, "s"), "c"), 0, 1, 8.0)
    workload, fabric = case.build(), star(2, 2.0)
    got = profiles_of(workload, route(workload, fabric, PER_FLOW), fabric.capacity)
    assert (got.due_after.tolist(), got.traffic.tolist(), got.work.tolist()) == ([0.0], [4.0], [0.0])


def test_agrees_with_the_slow_profile():
    fabrics = (
        star(4, 3.0),
        build(Spec("leaf_spine", {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "8bit/s"}))[1],
    )
    for seed in range(30):
        fabric = fabrics[seed % 2]
        workload = random_workload(np.random.default_rng(seed), 4, hairpin=bool(seed % 3 == 0))
        routes = route(workload, fabric, PER_FLOW)
        indptr, links = routes.of_flows(np.arange(workload.n_flows))
        paths = [tuple(links[a:b].tolist()) for a, b in pairwise(indptr)]
        mine, right = profiles_of(workload, routes, fabric.capacity), Profiled(workload, fabric, paths)
        for name in ("compute", "lead", "work", "traffic", "due_after"):
            np.testing.assert_allclose(getattr(mine, name), getattr(right, name), rtol=1e-9, atol=1e-12)


def test_of_a_model_of_the_catalogue():
    params = {"model": "vgg16", "workers": ["h1", "h2"], "servers": ["h3"], "iterations": 2, "batch": 32}
    spec = Spec("training", {**params, "device": {"flops": "10TFLOP/s", "efficiency": 0.5}})
    fabric = build(Spec("single_switch", {"hosts": 3, "rate": "10Gbit/s"}))[1]
    workload = unroll((spec,), fabric, 0)
    got = profiles_of(workload, route(workload, fabric, PER_FLOW), fabric.capacity)
    # Three times 30.95 GFLOP an image (docs/workloads.md), and both workers' gradients into one port.
    seconds = 3 * 32 * 30.95e9 / 5e12
    assert got.compute[0] == pytest.approx(seconds, rel=1e-3)
    assert got.work[0] == pytest.approx(2 * seconds, rel=1e-3)
    assert got.traffic[0] == pytest.approx(2 * 4 * 138_357_544 / 1.25e9)
    assert 1 / 3 < got.lead[0] / got.compute[0] < 0.4


@pytest.mark.parametrize("name", ["crux", "echelonflow"])
def test_without_profiles_a_policy_that_needs_them_is_refused(name):
    workload, fabric = training(1), star(2, 2.0)
    routes = route(workload, fabric, PER_FLOW)
    ledger = open_ledger(workload, routes.local)
    fixed = static(workload, routes, fabric.capacity, 8, iteration_offsets(workload))
    seen = view(fixed, ledger, np.arange(2), workload.flows.size[:2], 0.0, Event.NONE)
    with pytest.raises(PolicyError, match=f"policy {name}: it goes by what jobs compute"):
        decide(POLICIES[name](), seen, 8)
