"""Metrics against values worked out by hand: each test states the times, and what follows from them."""

from __future__ import annotations

import time

import numpy as np
import pytest
from result_cases import outcome, serial_schedule, star, star_paths, training

from netsched import metrics
from netsched.model import TaskKind, Workload
from netsched.workloads.builder import WorkloadBuilder

NEVER = float("nan")


def two_stages() -> Workload:
    """Job a (arrives at 2 s): one stage of two coflows. Job b: one coflow, one task."""
    b = WorkloadBuilder(3)
    a, other = b.add_job("a", arrival=2.0, iterations=2), b.add_job("b")
    stage = b.add_stage(a, "shuffle")
    late = b.add_stage(other, "late")
    first, second = b.add_coflow(a, stage, "one"), b.add_coflow(a, stage, "two", 1)
    third = b.add_coflow(other, late, "three")
    b.add_flows([first, first, second, third], [0, 1, 2, 0], [1, 2, 0, 2], [1e6, 2e6, 3e6, 4e6])
    b.add_task(other, TaskKind.OTHER, 1, 0.5, label="reduce")
    return b.build()


def test_groups_begin_with_the_first_release_and_end_with_the_last_finish():
    workload = two_stages()
    run = outcome(workload, np.array([[2.0, 4], [3, 5], [2.5, 9], [0, 4], [4, 4.5]]))
    coflows, stages, jobs = (f(workload, run) for f in (metrics.coflows, metrics.stages, metrics.jobs))
    assert coflows["arrival"].tolist() == [2, 2.5, 0]
    assert coflows["cct"].tolist() == [3, 6.5, 4]
    assert coflows["bytes"].tolist() == [3e6, 3e6, 4e6]
    assert coflows["width"].tolist() == [2, 1, 1]
    assert stages["label"].tolist() == ["shuffle", "late"]
    assert stages["completion_time"].tolist() == [7, 4]  # 9 - 2 and 4 - 0
    assert jobs["jct"].tolist() == [7, 4.5]  # 9 - arrival 2; the task ends job b
    assert jobs["bytes"].tolist() == [6e6, 4e6]
    assert metrics.flows(workload, run)["fct"].tolist() == [2, 2, 6.5, 4]


def test_an_unfinished_flow_leaves_its_groups_unfinished_and_no_others():
    workload = two_stages()
    run = outcome(workload, np.array([[2.0, 4], [NEVER, NEVER], [2.5, 9], [0, 4], [4, NEVER]]))
    coflows = metrics.coflows(workload, run)
    assert coflows["arrival"].tolist() == [2, 2.5, 0]  # of the flows that were released
    np.testing.assert_array_equal(coflows["cct"], [NEVER, 6.5, 4])
    np.testing.assert_array_equal(metrics.stages(workload, run)["completion_time"], [NEVER, 4])
    np.testing.assert_array_equal(metrics.jobs(workload, run)["jct"], [NEVER, NEVER])  # b: its task
    np.testing.assert_array_equal(metrics.iterations(workload, run)["iteration_time"], [NEVER, NEVER, NEVER])


def test_iteration_times_follow_each_other_from_the_arrival():
    workload = two_stages()
    run = outcome(workload, np.array([[2.0, 4], [3, 5], [2.5, 9], [0, 4], [4, 4.5]]))
    table = metrics.iterations(workload, run)
    assert table["job"].tolist() == [0, 0, 1]
    assert table["iteration"].tolist() == [0, 1, 0]
    assert table["finish"].tolist() == [5, 9, 4.5]
    assert table["iteration_time"].tolist() == [3, 4, 4.5]  # 5 - 2, 9 - 5, 4.5 - 0


def test_the_mean_iteration_time_is_the_job_completion_time_over_the_iterations():
    workload = training(iterations=5)
    run = outcome(workload, serial_schedule(workload, 1e6, np.random.default_rng(4)))
    jct = metrics.jobs(workload, run)["jct"][0]
    times = metrics.iterations(workload, run)["iteration_time"]
    assert len(times) == 5
    assert times.mean() == pytest.approx(jct / 5, rel=1e-12)


def test_links_carry_what_crosses_them():
    workload, fabric = two_stages(), star(3)
    run = outcome(workload, np.array([[2.0, 4], [3, 5], [2.5, 9], [0, 4], [4, 4.5]]))
    table = metrics.links(fabric, run)
    # Up and down of each: h1 sends 1 + 4 MB and gets 3, h2 sends 2 and gets 1, h3 sends 3 and gets 2 + 4.
    assert table["bytes"].tolist() == [5e6, 3e6, 2e6, 1e6, 3e6, 6e6]
    assert table["utilisation"].tolist() == pytest.approx([0.5, 0.3, 0.2, 0.1, 0.3, 0.6])  # of 1 MB/s x 10 s
    still = outcome(workload, np.full((5, 2), NEVER), simulated_s=0.0)
    assert metrics.links(fabric, still)["utilisation"].tolist() == [0.0] * 6


def test_summary_of_known_values():
    # Linear percentiles of 0..100: p is p. The NaN is counted and nothing else.
    values = np.append(np.arange(101.0), NEVER)
    assert metrics.summary(values) == {
        "count": 101,
        "mean": 50.0,
        "p50": 50.0,
        "p95": 95.0,
        "p99": 99.0,
        "max": 100.0,
        "unfinished": 1,
    }
    assert metrics.summary(np.array([1.0, 2.0]))["p95"] == pytest.approx(1.95)  # 1 + 0.95 (2 - 1)


@pytest.mark.parametrize("values", [np.empty(0), np.array([NEVER, NEVER])])
def test_summary_of_nothing_has_no_figures(values):
    figures = metrics.summary(values)
    assert (figures["count"], figures["unfinished"]) == (0, len(values))
    assert {figures[name] for name in ("mean", "p50", "p95", "p99", "max")} == {None}


def test_a_public_trace_sized_run_is_counted_in_a_second():
    n, rng = 706_397, np.random.default_rng(0)
    b = WorkloadBuilder(150)
    coflows = [
        b.add_coflow(job, b.add_stage(job, "c"), "c") for job in (b.add_job(f"j{i}") for i in range(526))
    ]
    b.add_flows(rng.choice(coflows, n), rng.integers(0, 150, n), rng.integers(0, 150, n), rng.random(n))
    workload = b.build(hairpin=True)
    run = outcome(workload, np.stack((np.zeros(n), rng.random(n)), 1))
    assert len(star_paths(workload)[1]) == 2 * n
    begin = time.process_time()
    for table in (metrics.flows, metrics.coflows, metrics.stages, metrics.iterations, metrics.jobs):
        metrics.summary(next(reversed(table(workload, run).values())))
    # 0.1 s here; process time, so that other work on the machine does not count.
    assert time.process_time() - begin < 1.0
