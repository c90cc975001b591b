"""Bounds of a mean: closed forms, who may be counted, and no schedule or policy that beats any of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_cases import RATE, outcome, serial_schedule, star, star_paths, training
from sim_cases import run
from test_bounds import random_workload

from netsched import metrics, port_lp
from netsched.bounds import best, lower_bounds, mean_bound, sums
from netsched.model import Outcome, TaskKind, Workload
from netsched.policies.fair import Fair
from netsched.policies.sebf import Sebf
from netsched.policies.sincronia import Sincronia
from netsched.record import Key, record
from netsched.report import best_bound
from netsched.workloads.builder import WorkloadBuilder


def coflow_sums(
    workload: Workload, hosts: int, start: list[float], weight: list[float] | None = None
) -> dict[str, float]:
    bounds = lower_bounds(workload, star(hosts).capacity, *star_paths(workload))
    heavy = None if weight is None else np.array(weight)
    rows = np.arange(len(start))
    return sums(bounds.shared_coflow, bounds.coflow, rows, np.array(start), heavy)


def of_flows(
    *coflows: tuple[float, list[tuple[int, int, float]]], hosts: int, weight: float = 1.0
) -> Workload:
    """Coflows (arrival in s, flows of so many MB), each a job of its own."""
    b = WorkloadBuilder(hosts)
    for c, (at, flows) in enumerate(coflows):
        job = b.add_job(f"j{c}", arrival=at)
        coflow = b.add_coflow(job, b.add_stage(job, "s"), "c", weight=weight)
        for src, dst, size in flows:
            b.add_flow(coflow, src, dst, size * 1e6)
    return b.build()


def test_one_link_is_shared_shortest_remaining_first():
    # 6 s from 0; 2 s from 1, which interrupt: they end at 3; 4 s from 4, when as much is left of the first.
    # One of these two ends at 8 and the other at 12: completion times 8 + 2 + 8.
    workload = of_flows((0.0, [(0, 1, 6.0)]), (1.0, [(2, 1, 2.0)]), (4.0, [(3, 1, 4.0)]), hosts=4)
    assert coflow_sums(workload, 4, [0.0, 1.0, 4.0])["shortest-first"] == pytest.approx(8 + 2 + 8)


def test_weights_are_shared_by_mean_busy_times():
    # All at 0: exact, by weight per second (Smith's rule): 4 s at weight 8, then 2 s at 1: 8 x 4 + 6.
    workload = of_flows((0.0, [(0, 1, 4.0)]), (0.0, [(2, 1, 2.0)]), hosts=3)
    found = coflow_sums(workload, 3, [0.0, 0.0], [8.0, 1.0])
    assert found["shortest-first"] == pytest.approx(38.0)
    assert found["port-lp"] == pytest.approx(38.0, rel=1e-5)
    # The heavy one comes at 1 and interrupts: it passes from 1 to 5, the other from 0 to 1 and 5 to 6. Mean
    # busy times 3 and (0.5 + 5.5) / 2 = 3, plus halves of 4 and 2 s: ends of 5 and 4, less the arrival at 1.
    late = of_flows((1.0, [(0, 1, 4.0)]), (0.0, [(2, 1, 2.0)]), hosts=3)
    assert coflow_sums(late, 3, [1.0, 0.0], [8.0, 1.0])["shortest-first"] == pytest.approx(8 * (5 - 1) + 4)


def test_links_add_up_for_coflows_that_do_not_meet():
    # Two pairs, each into one host, 1 and 2 s: 1 + 3 twice. No one link knows of more than 1 + 3 + 1 + 2.
    flows = [(0, 4, 1.0), (1, 4, 2.0), (2, 5, 1.0), (3, 5, 2.0)]
    workload = of_flows(*((0.0, [flow]) for flow in flows), hosts=6)
    found = coflow_sums(workload, 6, [0.0] * 4)
    assert found["shortest-first"] == pytest.approx(8.0)
    assert found["port-lp"] == pytest.approx(8.0, rel=1e-5)


def test_the_program_sees_what_no_choice_of_one_link_each_does():
    # A, B, C of 2 s meet in pairs on three links: one of each pair is second, so no more than one ends at 2
    # if all are whole; any link gives 2 + 4 + 2 = 8. In halves of the rows the program has at least
    # 3 x (A + B >= 6) / 2 = 9, and the best schedule takes 2 + 4 + 4 = 10.
    pairs = [[(0, 3, 2.0), (2, 5, 2.0)], [(6, 3, 2.0), (1, 4, 2.0)], [(7, 4, 2.0), (8, 5, 2.0)]]
    workload = of_flows(*((0.0, flows) for flows in pairs), hosts=9)
    found = coflow_sums(workload, 9, [0.0] * 3)
    assert found["shortest-first"] == pytest.approx(8.0)
    assert found["port-lp"] == pytest.approx(9.0, rel=1e-5)


def test_a_coflow_that_others_release_is_not_counted_among_those_that_share():
    b = WorkloadBuilder(3)
    job = b.add_job("j")
    first, second = (b.add_coflow(job, b.add_stage(job, f"s{i}"), f"c{i}") for i in range(2))
    head = b.add_flow(first, 0, 2, 1e6)
    b.depend(b.add_flow(second, 1, 2, 1e6), head)
    bounds = lower_bounds(b.build(), star(3).capacity, np.array([0, 2, 4]), np.array([0, 5, 2, 5]))
    assert bounds.shared_coflow.dated.tolist() == [True, False]
    found = sums(bounds.shared_coflow, bounds.coflow, np.arange(2), np.array([0.0, 1.0]))
    # Run one after the other, as they must, each takes 1 s: sharing would claim 3.
    assert found == pytest.approx({"shortest-first": 2.0, "port-lp": 2.0}, rel=1e-5)


def test_jobs_share_with_their_heads_and_tails():
    # Two training steps, 1 s of computing, 2 s of sending into host 0, 3 s of computing: 6 and 8 s.
    b = WorkloadBuilder(3)
    for worker in (1, 2):
        job = b.add_job(f"j{worker}")
        before, after = (b.add_task(job, TaskKind.OTHER, worker, seconds) for seconds in (1.0, 3.0))
        flow = b.add_flow(b.add_coflow(job, b.add_stage(job, "s"), "c"), worker, 0, 2e6)
        b.depend(flow, before)
        b.depend(after, flow)
    workload = b.build()
    bounds = lower_bounds(workload, star(3).capacity, *star_paths(workload))
    found = sums(bounds.shared_job, bounds.job, np.arange(2), np.zeros(2))
    assert found == pytest.approx({"shortest-first": 14.0, "port-lp": 14.0}, rel=1e-5)
    assert best(bounds.job).tolist() == [6.0, 6.0]


def test_a_job_that_another_may_begin_before_it_arrives_is_not_counted():
    b = WorkloadBuilder(2)
    early, late = b.add_job("early"), b.add_job("late", arrival=10.0)
    flow = b.add_flow(b.add_coflow(late, b.add_stage(late, "s"), "c"), 0, 1, 1e6)
    b.depend(flow, b.add_task(early, TaskKind.OTHER, 0, 1.0))
    workload = b.build()
    bounds = lower_bounds(workload, star(2).capacity, *star_paths(workload))
    assert not bounds.shared_job.dated.any()
    assert sums(bounds.shared_job, bounds.job, np.arange(2), np.array([0.0, 10.0])) == {}


def test_the_program_is_left_out_where_it_would_be_too_large(monkeypatch):
    workload = of_flows((0.0, [(0, 1, 4.0)]), (0.0, [(2, 1, 2.0)]), hosts=3)
    monkeypatch.setattr(port_lp, "LARGEST", 1)
    assert coflow_sums(workload, 3, [0.0, 0.0]).keys() == {"shortest-first"}


# ------------------------------------------------------------------ no schedule and no policy beats them


def assert_sound(workload: Workload, hosts: int, done: Outcome) -> None:
    """Every mean in the record is at least its bound, for all rows and for those that ended early."""
    bounds = lower_bounds(workload, star(hosts).capacity, *star_paths(workload))
    done = replace(done, link_bytes=np.zeros(2 * hosts))  # not of interest, and short of hosts unused
    entry = record(Key("sim", "x", 1), workload, star(hosts), done, bounds).entry
    for name in metrics.METRICS:
        mean, bound = entry["metrics"][name]["mean"], entry["bound"][name]
        for value in (bound["mean"], *bound["names"].values()):
            assert value is None or mean >= value * (1 - 1e-6) - 1e-9, name
    weighted = entry["weighted_cct"]
    if weighted["mean"] is not None:
        assert weighted["mean"] >= weighted["bound"]["mean"] * (1 - 1e-6) - 1e-9


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_feasible_schedule_beats_a_bound_of_the_mean(seed):
    rng = np.random.default_rng(seed)
    workload = random_workload(rng, 3)
    times = serial_schedule(workload, RATE, rng)
    assert_sound(workload, 3, outcome(workload, times))
    # The same cut short: the bounds are of what has ended.
    cut = np.where(times > np.quantile(times, 0.7), np.nan, times)
    if not np.isnan(cut[: workload.n_flows, 1]).all():
        assert_sound(workload, 3, outcome(workload, cut))


def open_workload(rng: np.random.Generator, hosts: int) -> Workload:
    """Twelve coflows of up to four flows at random times, with weights."""
    b = WorkloadBuilder(hosts)
    for c, at in enumerate(np.cumsum(rng.exponential(1.0, 12)).tolist()):
        job = b.add_job(f"j{c}", arrival=at)
        coflow = b.add_coflow(job, b.add_stage(job, "s"), "c", weight=float(rng.integers(1, 5)))
        for src, dst in rng.integers(0, hosts, (int(rng.integers(1, 5)), 2)).tolist():
            b.add_flow(coflow, src, (dst if dst != src else (src + 1) % hosts), float(rng.lognormal()) * 1e6)
    return b.build()


@pytest.mark.parametrize("seed", range(15))
def test_no_policy_beats_a_bound_of_the_mean(seed):
    workload = open_workload(np.random.default_rng(seed), 4)
    for policy in (Fair(), Sebf(), Sincronia()):
        assert_sound(workload, 4, run(workload, star(4), policy))


@pytest.mark.parametrize("policy", [Fair(), Sincronia()], ids=lambda p: p.name)
def test_no_policy_beats_a_bound_of_training(policy):
    workload = training()
    assert_sound(workload, 3, run(workload, star(3), policy))


# ------------------------------------------------------------------ as it is reported


def test_the_best_bound_of_the_mean_is_taken_and_named():
    named = {"port": np.array([1.0, 5.0]), "path": np.array([3.0, 2.0])}
    rows = np.arange(2)
    by_row = mean_bound(named, rows, whole={"shortest-first": 3.5})
    assert by_row == {"mean": 4.0, "names": {"port": 3.0, "path": 2.5, "shortest-first": 3.5}}
    assert best_bound(by_row) == "port or path or shortest-first"
    above = mean_bound(named, rows, whole={"shortest-first": 4.5, "port-lp": 4.25})
    assert above["mean"] == 4.5
    assert best_bound(above) == "shortest-first"
    assert best_bound({"mean": None, "names": {"port": None}}) is None


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_the_program_is_as_good_in_any_unit_of_time_and_weight(unit):
    # As above, 9 of the sum's 10; sizes in MB, so `unit` seconds for each second there.
    pairs = [[(0, 3, 2.0), (2, 5, 2.0)], [(6, 3, 2.0), (1, 4, 2.0)], [(7, 4, 2.0), (8, 5, 2.0)]]
    scaled = ((0.0, [(src, dst, size * unit) for src, dst, size in flows]) for flows in pairs)
    found = coflow_sums(of_flows(*scaled, hosts=9), 9, [0.0] * 3, [unit] * 3)
    assert found["port-lp"] == pytest.approx(9.0 * unit**2, rel=1e-5)
    assert found["port-lp"] <= 9.0 * unit**2
