"""When things begin and end, against answers worked out by hand.

Rates are 1 byte/s unless said, so bytes are seconds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from result_cases import star
from sim_cases import PER_PAIR, Case, chain, close, one_link, run

from netsched.policies.fair import Fair
from netsched.policies.fifo import Fifo
from netsched.policies.sebf import Sebf


def test_jobs_start_at_their_arrival():
    outcome = run(one_link(2.0, 1.0, at=(0.0, 2.5)).build(), star(4, 1.0), Fair())
    close(outcome.flow_release, 0.0, 2.5)
    close(outcome.flow_finish, 2.0, 3.5)


def test_tasks_and_flows_wait_for_their_last_dependency():
    case = Case(2)
    job = case.job(at=1.0)
    (flow, after) = case.coflow((0, 1, 2.0), (1, 0, 0.5), job=job)
    slow, fast, last = case.task(3.0, job), case.task(1.0, job), case.task(0.25, job)
    case.builder.depend(flow, fast)
    case.builder.depend(last, flow, slow)
    case.builder.depend(after, last)
    outcome = run(case.build(), star(2, 1.0), Fair())
    close(outcome.task_start, 1.0, 1.0, 4.0)
    close(outcome.task_finish, 4.0, 2.0, 4.25)
    close(outcome.flow_release, 2.0, 4.25)
    close(outcome.flow_finish, 4.0, 4.75)


@pytest.mark.parametrize("policy", [Fair(), Fifo(), Sebf()], ids=lambda policy: policy.name)
def test_a_run_may_end_with_a_task(policy):
    case = Case(2)
    job = case.job()
    (flow,) = case.coflow((0, 1, 2.0), job=job)
    case.builder.depend(case.task(5.0, job), flow)
    close(run(case.build(), star(2, 1.0), policy).task_finish, 7.0)


def test_a_chain_of_barriers_takes_no_time():
    case = Case(2)
    job = case.job()
    first, last = case.coflow((0, 1, 1.0), (0, 1, 1.0), job=job)
    node = first
    for _ in range(2000):
        barrier = case.task(0.0, job)
        case.builder.depend(barrier, node)
        node = barrier
    case.builder.depend(last, node)
    outcome = run(case.build(), star(2, 1.0), Fair())
    close(outcome.flow_finish, 1.0, 2.0)
    assert set(outcome.task_finish.tolist()) == {1.0}


def test_delay_is_added_once_per_link_and_holds_nobody_up():
    # Two links of 1/4 s. The second flow follows at once on the same connection; its successor waits.
    case = Case(3)
    job = case.job()
    _, second, third = case.coflow((0, 2, 1.0), (0, 2, 1.0), (0, 2, 1.0), job=job)
    case.builder.depend(third, second)
    workload = case.build()
    outcome = run(workload, chain(2, 1.0, 0.25), Fair(), transport=PER_PAIR)
    close(outcome.flow_finish, 1.5, 2.5, 4.0)
    close(outcome.flow_release[2:], 2.5)


def test_a_flow_to_its_own_host_uses_its_port_or_nothing():
    case = Case(2)
    case.coflow((0, 0, 2.0), (0, 1, 2.0))
    outcome = run(case.build(hairpin=True), star(2, 1.0), Fair())
    close(outcome.flow_finish, 4.0, 4.0)
    close(outcome.link_bytes, 4.0, 2.0, 0.0, 2.0)
    outcome = run(case.build(hairpin=False), star(2, 1.0), Fair())
    close(outcome.flow_finish, 0.0, 2.0)
    close(outcome.link_bytes, 2.0, 0.0, 0.0, 2.0)


def test_an_empty_flow_ends_when_it_is_released_even_over_a_slow_link():
    case = Case(3)
    first, empty = case.coflow((0, 2, 1.0), (0, 2, 0.0))
    case.builder.depend(empty, first)
    outcome = run(case.build(), chain(2, 1.0, 0.25), Fair())
    close(outcome.flow_finish, 1.5, 1.5)


def test_the_horizon_cuts_where_it_says():
    workload = one_link(1.0, 2.0, at=(0.0, 1.0)).build()
    outcome = run(workload, star(4, 1.0), Fair(), horizon=1.5)
    np.testing.assert_array_equal(outcome.flow_finish, [1.0, math.nan])
    close(outcome.link_bytes[[0, 3]], 1.5, 1.5)
    assert outcome.simulated_s == 1.5
    # What happens at the horizon has happened; what would be released after it has not.
    np.testing.assert_array_equal(
        run(workload, star(4, 1.0), Fair(), horizon=1.0).flow_finish, [1.0, math.nan]
    )
    assert math.isnan(run(workload, star(4, 1.0), Fair(), horizon=0.5).flow_release[1])
