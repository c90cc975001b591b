"""What must hold of every run, whatever the workload: laws of the model, checked from outside."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_cases import star
from sim_cases import PER_FLOW, PER_PAIR, Case, Odd, OddLocal, Table, random_workload, run
from test_simulate_oracle import ALL, drawn

from netsched.bounds import lower_bounds
from netsched.control import steers
from netsched.fabric import Fabric
from netsched.model import Control, Outcome, Policy, Workload
from netsched.policies.fair import Fair
from netsched.policies.fifo import Fifo
from netsched.policies.sebf import Sebf
from netsched.routes import route

quick = settings(max_examples=20, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
policies = st.sampled_from(ALL)
transports = st.sampled_from([PER_FLOW, PER_PAIR])


def scaled(workload: Workload, size: float, time: float) -> Workload:
    """The workload with all bytes times `size` and all its own times times `time`."""
    return dataclasses.replace(
        workload,
        jobs=dataclasses.replace(workload.jobs, arrival=time * workload.jobs.arrival),
        flows=dataclasses.replace(workload.flows, size=size * workload.flows.size),
        tasks=dataclasses.replace(workload.tasks, seconds=time * workload.tasks.seconds),
    )


def faster(fabric: Fabric, k: float, delay: float = 1.0) -> Fabric:
    """The fabric with all capacities times k, and all delays times `delay`."""
    return dataclasses.replace(fabric, capacity=k * fabric.capacity, delay=delay * fabric.delay)


def tuned(policy: Policy, size: float, time: float) -> Policy:
    """The policy with the bytes and the seconds among its parameters times `size` and `time`."""
    if not dataclasses.is_dataclass(policy):
        return policy
    kind = {each.name: each.type for each in dataclasses.fields(policy)}
    factor = {"Size": size, "Duration": time}
    changed = {name: factor[of] * getattr(policy, name) for name, of in kind.items() if of in factor}
    return dataclasses.replace(policy, **changed)


def times(outcome: Outcome) -> np.ndarray:
    return np.concatenate(
        [outcome.flow_release, outcome.flow_finish, outcome.task_start, outcome.task_finish]
    )


@quick
@given(seeds, policies, transports)
def test_links_carry_every_byte_once_and_nothing_else(seed, policy, transport):
    """Who chooses among paths, which are equally long, puts as many bytes on all links together."""
    workload, fabric, control, queues = drawn(seed)
    outcome = run(workload, fabric, policy, queues=queues, transport=transport, control=control)
    assert np.isfinite(times(outcome)).all()
    indptr, links = route(workload, fabric, transport).of_flows(np.arange(workload.n_flows))
    right = np.bincount(links, np.repeat(workload.flows.size, np.diff(indptr)), len(fabric.capacity))
    np.testing.assert_allclose(outcome.link_bytes.sum(), right.sum(), rtol=1e-9)
    if not steers(policy):
        np.testing.assert_allclose(outcome.link_bytes, right, rtol=1e-9)


@quick
@given(seeds, policies, transports)
def test_no_link_is_above_its_capacity_at_any_time(seed, policy, transport):
    """Bytes between any two moments of a run are at most capacity times the time between them."""
    workload, fabric, control, queues = drawn(seed)
    asked = {"queues": queues, "transport": transport, "control": control}
    end = run(workload, fabric, policy, **asked).simulated_s
    moments = np.sort(np.random.default_rng(seed).uniform(0.0, end, 12))
    carried = np.array([run(workload, fabric, policy, horizon=t, **asked).link_bytes for t in moments])
    between, seconds = np.diff(carried, axis=0), np.diff(moments)
    assert (between >= -1e-9).all()
    assert (between <= np.outer(seconds, fabric.capacity) * (1 + 1e-9) + 1e-9).all()


@quick
@given(seeds, policies, transports)
def test_nothing_ends_before_its_lower_bound(seed, policy, transport):
    workload, fabric, control, queues = drawn(seed)
    outcome = run(workload, fabric, policy, queues=queues, transport=transport, control=control)
    paths = route(workload, fabric, transport).of_flows(np.arange(workload.n_flows))
    bound = lower_bounds(workload, fabric.capacity, *paths).coflow["isolation"]
    for coflow in range(len(bound)):
        mine = workload.flows.coflow == coflow
        took = outcome.flow_finish[mine].max() - outcome.flow_release[mine].min()
        assert took >= bound[coflow] * (1 - 1e-9)


@quick
@given(seeds, policies, transports)
def test_the_same_run_twice_is_the_same_to_the_last_bit(seed, policy, transport):
    workload, fabric, control, queues = drawn(seed)
    asked = {"queues": queues, "transport": transport, "control": control}
    once, again = (run(workload, fabric, policy, **asked) for _ in range(2))
    np.testing.assert_array_equal(times(once), times(again))
    np.testing.assert_array_equal(once.link_bytes, again.link_bytes)
    np.testing.assert_array_equal(once.flow_class, again.flow_class)


@quick
@given(seeds, policies, transports, st.integers(-10, 30))
def test_sizes_and_capacities_times_k_leave_all_times_as_they_are(seed, policy, transport, exponent):
    """Exactly, because a power of two scales a float without rounding."""
    k = 2.0**exponent
    workload, fabric, control, queues = drawn(seed)
    asked = {"queues": queues, "transport": transport, "control": control}
    once = run(workload, fabric, policy, **asked)
    large = run(scaled(workload, k, 1.0), faster(fabric, k), tuned(policy, k, 1.0), **asked)
    np.testing.assert_array_equal(times(large), times(once))
    np.testing.assert_array_equal(large.link_bytes, k * once.link_bytes)


TIMELESS = st.sampled_from([policy for policy in ALL if not isinstance(policy, Odd)])
"""Policies without a time of their own: the odd ones have gates and reviews in seconds."""


@quick
@given(seeds, TIMELESS, transports, st.integers(-10, 20))
def test_sizes_times_k_take_k_times_as_long(seed, policy, transport, exponent):
    k = 2.0**exponent
    workload, fabric, control, queues = drawn(seed)
    asked = {"queues": queues, "transport": transport}
    once = run(workload, fabric, policy, control=control, **asked)
    slow = Control(
        *(k * seconds for seconds in dataclasses.astuple(control)[:4]), report_loss=control.report_loss
    )
    long = run(
        scaled(workload, k, k), faster(fabric, 1.0, delay=k), tuned(policy, k, k), control=slow, **asked
    )
    np.testing.assert_array_equal(times(long), k * times(once))


@quick
@given(seeds, TIMELESS, transports)
def test_all_arrivals_shifted_shift_all_times(seed, policy, transport):
    workload, fabric, control, queues = drawn(seed)
    later = dataclasses.replace(
        workload, jobs=dataclasses.replace(workload.jobs, arrival=workload.jobs.arrival + 64.0)
    )
    # Reports are made at multiples of their period, wherever the jobs begin.
    asked = {
        "queues": queues,
        "transport": transport,
        "control": dataclasses.replace(control, report_period=0.0),
    }
    once, shifted = run(workload, fabric, policy, **asked), run(later, fabric, policy, **asked)
    np.testing.assert_allclose(times(shifted), times(once) + 64.0, rtol=1e-10)


@quick
@given(seeds, st.sampled_from([Fair(), Fifo(), Sebf(), Table(weight={0: 3.0}, rank={1: 2})]))
def test_one_link_is_busy_until_all_is_sent(seed, policy):
    """Work conservation on one link: whoever goes first, the last byte leaves at the sum of all sizes."""
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(0.0, 2.0, 12)
    arrivals = np.sort(rng.exponential(2.0, 12))
    case = Case(2)
    for at, size in zip(arrivals.tolist(), sizes.tolist(), strict=True):
        case.coflow((0, 1, size), at=at)
    finish = run(case.build(), star(2, 1.0), policy).flow_finish
    busy_until = 0.0
    for at, size in zip(arrivals, sizes, strict=True):
        busy_until = max(busy_until, at) + size
    np.testing.assert_allclose(finish.max(), busy_until, rtol=1e-9)


@quick
@given(seeds, transports)
def test_what_a_lower_class_does_is_nothing_to_a_higher_one(seed, transport):
    """Flows of rank 0 end at the same times whether flows of rank 1 in other jobs are there or not."""
    rng = np.random.default_rng(seed)
    flows = [(*rng.integers(0, 4, 2).tolist(), float(size)) for size in rng.lognormal(0.0, 1.0, 16)]
    arrivals = rng.exponential(1.0, 16).tolist()
    both, high = Case(4), Case(4)
    for i, (flow, at) in enumerate(zip(flows, arrivals, strict=True)):
        both.coflow(flow, at=at)
        if i % 2 == 0:
            high.coflow(flow, at=at)
    fabric = star(4, 1.0)
    mixed = run(both.build(), fabric, Table(rank={i: i % 2 for i in range(16)}), transport=transport)
    alone = run(high.build(), fabric, Table(rank=dict.fromkeys(range(8), 0)), transport=transport)
    np.testing.assert_allclose(mixed.flow_finish[::2], alone.flow_finish, rtol=1e-9)


@quick
@given(seeds, st.floats(1.0, 3.0))
def test_fair_sharing_among_flows_of_one_link_is_processor_sharing(seed, rate):
    """Flow k of n released together ends at the sum over i of min(size_i, size_k) / rate."""
    sizes = np.random.default_rng(seed).lognormal(0.0, 2.0, 20)
    case = Case(2)
    case.coflow(*((0, 1, float(size)) for size in sizes))
    right = np.minimum.outer(sizes, sizes).sum(axis=1) / rate
    np.testing.assert_allclose(run(case.build(), star(2, rate), Fair()).flow_finish, right, rtol=1e-9)


@pytest.mark.parametrize("policy", [Fair(), Fifo(), Sebf()], ids=lambda policy: policy.name)
def test_a_wide_coflow_of_many_sizes_conserves_every_byte(policy: Policy) -> None:
    """3,000 flows from 1 B to 1 TB on 10 hosts: accumulated rounding stays below a billionth."""
    rng = np.random.default_rng(3)
    case = Case(10)
    for _ in range(10):
        ends = rng.integers(0, 10, (300, 2)).tolist()
        sizes = 10.0 ** rng.uniform(0.0, 12.0, 300)
        case.coflow(*((a, b, float(s)) for (a, b), s in zip(ends, sizes, strict=True)))
    workload = case.build(hairpin=True)
    outcome = run(workload, star(10, 1e9), policy)
    up = np.bincount(workload.flows.src, workload.flows.size, 10)
    np.testing.assert_allclose(outcome.link_bytes[::2], up, rtol=1e-12)
    assert not math.isnan(outcome.flow_finish.sum())
    assert outcome.flow_finish.max() >= up.max() / 1e9 * (1 - 1e-12)


def test_the_odd_policies_do_use_everything_that_a_plan_can_say():
    """Guards the tests above: caps bind, gates hold, classes differ, reviews come."""
    workload = random_workload(np.random.default_rng(1), 4)
    fabric = star(4, 1.0)
    outcome = run(workload, fabric, Odd(), queues=8)
    assert len(set(outcome.flow_class.tolist())) > 3
    assert outcome.decisions > workload.n_flows
    fair = run(workload, fabric, Fair(), queues=8)
    assert (abs(run(workload, fabric, OddLocal()).flow_finish - fair.flow_finish) > 1e-3).any()
