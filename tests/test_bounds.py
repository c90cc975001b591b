"""Lower bounds: closed forms, a slow oracle of the path bound, and no schedule that beats any of them."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_cases import RATE, outcome, serial_schedule, star, star_paths, training

from netsched import metrics
from netsched.bounds import Bounds, best, lower_bounds, mean_bound
from netsched.model import TaskKind, Workload
from netsched.workloads.builder import WorkloadBuilder


def bounds_of(workload: Workload, hosts: int) -> Bounds:
    return lower_bounds(workload, star(hosts).capacity, *star_paths(workload))


def one_stage(hosts: int) -> tuple[WorkloadBuilder, int, int]:
    b = WorkloadBuilder(hosts)
    job = b.add_job("j")
    return b, job, b.add_coflow(job, b.add_stage(job, "s"), "c")


def test_isolation_is_the_busiest_link():
    b, _, coflow = one_stage(4)
    b.add_flows(coflow, [0, 1, 2, 0], [3, 3, 3, 1], [1e6, 2e6, 3e6, 4e6])
    # Into h4: 1 + 2 + 3 MB at 1 MB/s = 6 s; out of h1: 1 + 4 MB = 5 s.
    assert bounds_of(b.build(), 4).coflow["isolation"].tolist() == [6.0]


def test_the_narrowest_link_of_a_path_counts():
    b, _, coflow = one_stage(2)
    b.add_flow(coflow, 0, 1, 1e6)
    workload = b.build()
    capacity = np.array([2e6, 2e6, 2e6, 5e5])
    bounds = lower_bounds(workload, capacity, *star_paths(workload))
    assert bounds.coflow["isolation"].tolist() == [2.0]
    assert bounds.job["path"].tolist() == [2.0]


def test_a_flow_to_its_own_host_takes_no_time():
    b, _, coflow = one_stage(2)
    b.add_flow(coflow, 1, 1, 1e6)
    bounds = bounds_of(b.build(), 2)
    assert [best(named).tolist() for named in (bounds.coflow, bounds.stage, bounds.job)] == [[0.0]] * 3


def test_stage_path_runs_from_the_last_layers_gradient_to_the_first_layers_pull():
    b, job, coflow = one_stage(2)
    last = b.add_task(job, TaskKind.BACKWARD, 0, 0.2)
    first = b.add_task(job, TaskKind.BACKWARD, 0, 0.5)
    b.depend(first, last)
    for gradient, size in ((last, 1e6), (first, 2e6)):
        push, pull = b.add_flow(coflow, 0, 1, size), b.add_flow(coflow, 1, 0, size)
        ready = b.add_task(job, TaskKind.BARRIER)
        b.depend(push, gradient)
        b.depend(ready, push)
        b.depend(pull, ready)
    stage = bounds_of(b.build(), 2).stage
    assert stage["path"].tolist() == [pytest.approx(4.5)]  # after `last`: backward 0.5, push 2, pull 2
    assert stage["port"].tolist() == [3.0]  # 1 + 2 MB each way


def test_a_flow_that_waits_for_two_nodes_does_not_date_the_stages_start_to_either():
    b, job, coflow = one_stage(3)
    a, slow = b.add_task(job, TaskKind.OTHER, 0, 1.0), b.add_task(job, TaskKind.OTHER, 0, 10.0)
    f = b.add_flow(coflow, 0, 1, 1e6)
    b.depend(f, a, slow)
    middle = b.add_task(job, TaskKind.OTHER, 0, 7.0)
    b.depend(middle, a)
    g = b.add_flow(coflow, 0, 2, 5e5)
    b.depend(g, middle)
    # Released at 10 and 8, finished at 11 and 8.5 at best: 3 s. A path from the end of `a` would claim 7.5.
    assert bounds_of(b.build(), 3).stage["path"].tolist() == [1.0]


def test_a_flow_that_waits_for_nothing_dates_the_start_to_the_arrival():
    b, job, coflow = one_stage(3)
    b.add_flow(coflow, 0, 1, 1e6)
    late = b.add_flow(coflow, 0, 2, 5e5)
    b.depend(late, b.add_task(job, TaskKind.OTHER, 0, 7.0))
    assert bounds_of(b.build(), 3).stage["path"].tolist() == [7.5]


def test_job_port_bound_has_a_head_and_a_tail():
    b, job, coflow = one_stage(2)
    before, after = b.add_task(job, TaskKind.OTHER, 0, 1.0), b.add_task(job, TaskKind.OTHER, 1, 3.0)
    for _ in range(4):
        flow = b.add_flow(coflow, 0, 1, 2e6)
        b.depend(flow, before)
        b.depend(after, flow)
    b.add_flow(coflow, 0, 1, 0.0)  # carries nothing, so it must not pull the head to 0
    job_bounds = bounds_of(b.build(), 2).job
    assert job_bounds["port"].tolist() == [12.0]  # 1 + 4 x 2 + 3
    assert job_bounds["path"].tolist() == [6.0]  # 1 + 2 + 3


def test_a_job_that_waits_for_another_counts_from_its_own_arrival():
    b = WorkloadBuilder(2)
    first, second = b.add_job("first", arrival=0.0), b.add_job("second", arrival=4.0)
    gate = b.add_task(first, TaskKind.OTHER, 0, 9.0)
    flow = b.add_flow(b.add_coflow(second, b.add_stage(second, "s"), "c"), 0, 1, 1e6)
    b.depend(flow, gate)
    assert bounds_of(b.build(), 2).job["path"].tolist() == [9.0, 6.0]  # 9 + 1 - 4


def test_mean_bound_is_of_the_best_bound_row_by_row():
    named = {"port": np.array([1.0, 5.0, 100.0]), "path": np.array([3.0, 2.0, 0.0])}
    assert mean_bound(named, np.array([0, 1])) == {"mean": 4.0, "names": {"port": 3.0, "path": 2.5}}
    assert mean_bound(named, np.array([0, 1]), 2)["mean"] == 2.0
    assert mean_bound(named, np.array([], np.int64)) == {"mean": None, "names": {"port": None, "path": None}}


# ------------------------------------------------------------------ a slow oracle, and schedules


def random_workload(rng: np.random.Generator, hosts: int) -> Workload:
    """Several jobs whose flows and tasks depend on each other at random (a later one on earlier ones)."""
    b = WorkloadBuilder(hosts)
    for j in range(int(rng.integers(1, 4))):
        job = b.add_job(f"j{j}", arrival=float(rng.integers(0, 5)), iterations=2)
        coflows = [
            b.add_coflow(job, b.add_stage(job, "s", i % 2), "c", i % 2) for i in range(rng.integers(1, 4))
        ]
        # A flow for each coflow, then more flows of any coflow and tasks (-1), in any order.
        nodes: list[int] = []
        for coflow in rng.permutation([*coflows, *rng.choice([*coflows, -1, -1], rng.integers(0, 9))]):
            if coflow >= 0:
                src, dst = (int(host) for host in rng.integers(0, hosts, 2))
                node = b.add_flow(int(coflow), src, dst, float(rng.integers(0, 5)) * 1e6)
            else:
                seconds = float(rng.integers(0, 4))
                node = b.add_task(job, TaskKind.OTHER, 0, seconds, int(rng.integers(0, 2)))
            for other in nodes:
                if rng.random() < 0.25:
                    b.depend(node, other)
            nodes.append(node)
    return b.build()


def slow_stage_path(workload: Workload, stage: int) -> float:
    """The definition in `bounds._stage_paths`, by recursion over every path."""
    dag, n = workload.dag, workload.n_flows
    member = workload.coflows.stage[workload.flows.coflow] == stage
    away = (workload.flows.src != workload.flows.dst) | workload.hairpin
    own = np.concatenate((workload.flows.size / RATE * away, workload.tasks.seconds))
    after = [dag.successors[dag.indptr[i] : dag.indptr[i + 1]] for i in range(len(own))]

    def chain(node: int) -> float:
        here = own[node] if node < n and member[node] else -np.inf
        return max([here, *(own[node] + chain(int(s)) for s in after[node])])

    longest = 0.0
    jobs = np.concatenate((workload.coflows.job[workload.flows.coflow], workload.tasks.job))
    for f in np.flatnonzero(member):
        starts = [int(f)]
        if dag.n_deps[f] == 1:
            u = next(i for i in range(len(own)) if f in after[i])
            starts += [int(s) for s in after[u]]
        if dag.n_deps[f] == 0:
            starts += [i for i in range(len(own)) if dag.n_deps[i] == 0 and jobs[i] == jobs[f]]
        longest = max(longest, *(chain(s) for s in starts))
    return longest


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_stage_paths_agree_with_the_oracle(seed):
    workload = random_workload(np.random.default_rng(seed), 3)
    fast = bounds_of(workload, 3).stage["path"]
    slow = [slow_stage_path(workload, stage) for stage in range(len(workload.stages.job))]
    np.testing.assert_allclose(fast, slow, rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_feasible_schedule_beats_a_bound(seed):
    rng = np.random.default_rng(seed)
    workload = random_workload(rng, 3)
    assert_bounded(workload, bounds_of(workload, 3), rng)


def assert_bounded(workload: Workload, bounds: Bounds, rng: np.random.Generator) -> None:
    run = outcome(workload, serial_schedule(workload, RATE, rng))
    coflows, stages, jobs = (f(workload, run) for f in (metrics.coflows, metrics.stages, metrics.jobs))
    assert (coflows["cct"] >= best(bounds.coflow)[coflows["coflow"]] - 1e-9).all()
    assert (stages["completion_time"] >= best(bounds.stage)[stages["stage"]] - 1e-9).all()
    assert (jobs["jct"] >= best(bounds.job)[jobs["job"]] - 1e-9).all()


def test_training_is_bounded_and_the_bound_is_reached_without_contention():
    workload = training(workers=1)
    bounds = bounds_of(workload, 2)
    rng = np.random.default_rng(0)
    assert_bounded(workload, bounds, rng)
    # One layer, one worker: everything runs one after the other, so the job's path bound is its time:
    # 3 x (forward 0.1 + backward 0.2 + push 0.1 + pull 0.1).
    chain = training(layers=1, workers=1)
    run = outcome(chain, serial_schedule(chain, RATE, rng))
    assert metrics.jobs(chain, run)["jct"].tolist() == [pytest.approx(1.5)]
    assert best(bounds_of(chain, 2).job).tolist() == [pytest.approx(1.5)]
    assert best(bounds_of(chain, 2).stage).tolist() == pytest.approx([0.2] * 3)


def test_many_flows_behind_one_barrier_are_not_quadratic():
    # 2 stages x 100,000 flows that all wait for the same task: the successors are walked once per stage.
    b, job, coflow = one_stage(50)
    other = b.add_coflow(job, b.add_stage(job, "t"), "d")
    gate, n, rng = b.add_task(job, TaskKind.BARRIER), 200_000, np.random.default_rng(0)
    flows = b.add_flows(
        np.repeat([coflow, other], n // 2), rng.integers(0, 50, n), rng.integers(0, 50, n), 1e6
    )
    b.depend_each(flows, gate)
    workload = b.build()
    bounds_of(training(), 3)  # compiled before the clock starts
    begin = time.process_time()
    assert bounds_of(workload, 50).stage["path"].tolist() == [1.0, 1.0]
    assert time.process_time() - begin < 2.0
