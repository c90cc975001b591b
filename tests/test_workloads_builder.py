"""The builder numbers rows as documented and refuses what no engine could run."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsched.errors import ScenarioError
from netsched.model import TaskKind
from netsched.workloads.builder import MAX_NODES, Node, WorkloadBuilder


def one_coflow(hosts: int = 4) -> tuple[WorkloadBuilder, int, int]:
    builder = WorkloadBuilder(hosts)
    job = builder.add_job("job")
    return builder, job, builder.add_coflow(job, builder.add_stage(job, "stage"), "coflow")


def test_columns_keep_the_order_of_the_calls_whether_bulk_or_single():
    builder, job, coflow = one_coflow()
    a = builder.add_flow(coflow, 0, 1, 10.0, need=2, need_span=3)
    b, c = builder.add_flows(coflow, [1, 2], 3, [20, 30]).tolist()
    d = builder.add_flow(coflow, 3, 0, 40)
    t = builder.add_task(job, TaskKind.FORWARD, host=2, seconds=0.5, label="t")
    u, v = builder.add_tasks(job, TaskKind.BACKWARD, [0, 1], 2.0, iteration=1, label="u").tolist()
    w = builder.build()
    assert (a, b, c, d) == (0, 1, 2, 3)
    assert (t, u, v) == (-1, -2, -3)
    assert w.flows.size.tolist() == [10, 20, 30, 40]
    assert w.flows.src.tolist() == [0, 1, 2, 3]
    assert w.flows.dst.tolist() == [1, 3, 3, 0]
    assert w.flows.need.tolist() == [2, 0, 0, 0]
    assert w.flows.need_span.tolist() == [3, 1, 1, 1]
    assert w.tasks.host.tolist() == [2, 0, 1]
    assert w.tasks.seconds.tolist() == [0.5, 2, 2]
    assert w.tasks.kind.tolist() == [TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.BACKWARD]
    assert w.tasks.label == ("t", "u", "u")
    assert w.tasks.iteration.tolist() == [0, 1, 1]
    assert not w.hairpin


def test_dependencies_become_successor_lists_without_duplicates():
    builder, job, coflow = one_coflow()
    flows = builder.add_flows(coflow, 0, 1, [1, 1])
    task = builder.add_task(job, TaskKind.OTHER)
    builder.depend(task, Node(0), Node(1))
    builder.depend_each(task, flows)  # said twice, counts once
    w = builder.build()
    assert w.dag.n_deps.tolist() == [0, 0, 2]
    assert w.dag.indptr.tolist() == [0, 1, 2, 2]
    assert w.dag.successors.tolist() == [2, 2]


@given(st.integers(2, 30), st.data())
def test_any_graph_whose_edges_go_forward_is_accepted_and_one_edge_back_is_not(n, data):
    pairs = st.tuples(st.integers(0, n - 2), st.integers(1, n - 1)).map(
        lambda p: (min(p), max(*p, min(p) + 1))
    )
    edges = data.draw(st.lists(pairs, min_size=1, max_size=60))
    order = data.draw(st.permutations(range(n)))
    builder, job, _ = one_coflow()
    builder.add_flow(0, 0, 1, 1.0)
    tasks = builder.add_tasks(job, TaskKind.OTHER, np.zeros(n), 1.0, label="task")
    for before, after in edges:
        builder.depend(tasks[order[after]], tasks[order[before]])
    assert builder.build().dag.n_deps.sum() == len(set(edges))
    before, after = edges[0]
    builder.depend(tasks[order[before]], tasks[order[after]])
    with pytest.raises(ScenarioError, match="cyclic dependencies: task 'task' of job 'job' -> "):
        builder.build()


def test_a_cycle_is_named_by_its_members_only():
    builder, job, coflow = one_coflow()
    flow = builder.add_flow(coflow, 0, 1, 1.0)
    outside, inside = (builder.add_task(job, TaskKind.OTHER, label=name) for name in ("outside", "inside"))
    builder.depend(flow, outside, inside)
    builder.depend(inside, flow)
    with pytest.raises(ScenarioError) as caught:
        builder.build()
    assert str(caught.value) == (
        "cyclic dependencies: coflow 'coflow' of job 'job' -> task 'inside' of job 'job' -> "
        "coflow 'coflow' of job 'job': remove one of them"
    )


def test_a_node_that_waits_for_itself_is_a_cycle():
    builder, _, coflow = one_coflow()
    flow = builder.add_flow(coflow, 0, 1, 1.0)
    builder.depend(flow, flow)
    with pytest.raises(ScenarioError, match="coflow 'coflow' of job 'job' waits for itself"):
        builder.build()


@pytest.mark.parametrize(
    ("size", "src", "dst", "message"),
    [
        (-1.0, 0, 1, "size -1.0 bytes must be a finite number, 0 or more"),
        (math.nan, 0, 1, "size nan bytes must be"),
        (math.inf, 0, 1, "size inf bytes must be"),
        (1.0, 4, 1, r"source host 4 is not one of 0\.\.3"),
        (1.0, -1, 1, r"source host -1 is not one of 0\.\.3"),
        (1.0, 0, 9, r"destination host 9 is not one of 0\.\.3"),
    ],
)
def test_bad_flows_are_refused_by_name(size, src, dst, message):
    builder, _, coflow = one_coflow(hosts=4)
    builder.add_flow(coflow, src, dst, size)
    with pytest.raises(ScenarioError, match=f"coflow 'coflow' of job 'job': {message}"):
        builder.build()


@pytest.mark.parametrize(
    ("seconds", "host", "message"),
    [
        (-1.0, 0, "-1.0 s must be a finite time"),
        (math.nan, 0, "nan s must be a finite time"),
        (1.0, 4, r"host 4 is not one of 0\.\.3"),
        (1.0, -2, r"host -2 is not one of 0\.\.3"),
    ],
)
def test_bad_tasks_are_refused_by_name(seconds, host, message):
    builder, job, coflow = one_coflow(hosts=4)
    builder.add_flow(coflow, 0, 1, 1.0)
    builder.add_task(job, TaskKind.OTHER, host=host, seconds=seconds, label="work")
    with pytest.raises(ScenarioError, match=f"task 'work' of job 'job': {message}"):
        builder.build()


def test_what_has_no_content_is_refused():
    with pytest.raises(ScenarioError, match="the workload is empty"):
        WorkloadBuilder(4).build()
    builder, job, coflow = one_coflow()
    builder.add_task(job, TaskKind.OTHER)
    with pytest.raises(ScenarioError, match="coflow 'coflow' has no flow"):
        builder.build()
    builder.add_flow(coflow, 0, 1, 1.0)
    builder.add_stage(job, "idle")
    with pytest.raises(ScenarioError, match="stage 'idle' has no coflow"):
        builder.build()


def test_references_to_nothing_are_refused():
    builder, _, coflow = one_coflow()
    builder.add_flow(coflow, 0, 1, 1.0)
    builder.add_flow(7, 0, 1, 1.0)
    with pytest.raises(ScenarioError, match="flow: coflow 7 was never added"):
        builder.build()
    builder, _, coflow = one_coflow()
    flow = builder.add_flow(coflow, 0, 1, 1.0)
    builder.depend(flow, Node(-5))
    with pytest.raises(ScenarioError, match="a dependency names a flow or task that was never added"):
        builder.build()


def test_jobs_have_unique_names_and_sane_numbers():
    builder = WorkloadBuilder(2)
    builder.add_job("a")
    with pytest.raises(ScenarioError, match="job 'a' exists twice"):
        builder.add_job("a")
    for bad in (
        {"arrival": -1.0},
        {"arrival": math.nan},
        {"weight": 0.0},
        {"weight": math.inf},
        {"iterations": 0},
    ):
        with pytest.raises(ScenarioError, match="job 'b': "):
            builder.add_job("b", **bad)


def test_more_than_a_scenario_may_hold_is_refused_before_it_is_made():
    builder, _, _ = one_coflow()
    builder.admit(MAX_NODES)
    with pytest.raises(ScenarioError, match="unrolls to 20,000,001 flows and tasks"):
        builder.admit(MAX_NODES + 1)


def test_a_million_nodes_are_built_and_checked_in_seconds():
    builder, job, coflow = one_coflow()
    started = time.perf_counter()
    flows = builder.add_flows(coflow, np.arange(700_000) % 4, 1, 5.0)
    assert time.perf_counter() - started < 1.0
    tasks = builder.add_tasks(job, TaskKind.OTHER, np.zeros(300_000), 1.0, label="link of the chain")
    builder.depend_each(flows[:300_000], tasks)
    builder.depend_each(tasks[1:], flows[:299_999])
    w = builder.build()
    assert time.perf_counter() - started < 10.0
    assert w.dag.n_deps.sum() == 599_999
