"""Crux: the paper's worked example, the two-job comparison, and cuts against all there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_cases import star
from sim_cases import Case, GlobalTable, by_hand, run

from netsched.cut import best_of_orders, cut_of_order
from netsched.model import Policy, TaskKind, Workload
from netsched.policies.crux import Crux
from netsched.two_jobs import Cycle, first_share, gain_per_loss, second_share

LONG, SHORT = Cycle(2.0, 2.0, 2.0), Cycle(1.0, 1.0, 1.0)
"""Crux, SIGCOMM 2024, example 1: W = (10, 5), t = (2 s, 1 s), nobody computes while sending."""


def example(iterations: int) -> Workload:
    """Both jobs between host 0 and host 1, computing elsewhere: 2 s and 1 s of each in turn."""
    case = Case(4)
    for host, seconds in ((2, 2.0), (3, 1.0)):
        job = case.job(iterations=iterations)
        before = None
        for i in range(iterations):
            task = case.builder.add_task(job, TaskKind.OTHER, host, seconds, i)
            (flow,) = case.coflow((0, 1, seconds), job=job, iteration=i)
            case.builder.depend(flow, task)
            if before is not None:
                case.builder.depend(task, before)
            before = flow
    return case.build()


def utilisation(policy: Policy) -> float:
    """Mean share of time that the two processors compute, 12 s from the 12th on: whole periods of both."""
    workload = example(40)
    outcome = run(workload, star(4, 1.0), policy, horizon=30.0)
    overlap = np.minimum(outcome.task_finish, 24.0) - np.maximum(outcome.task_start, 12.0)
    return float(np.nansum(np.maximum(overlap, 0.0)) / 24.0)


def test_the_papers_example():
    assert utilisation(Crux()) == pytest.approx(5 / 12)  # 41.7 %
    workload = example(40)
    long_first = dict(enumerate(workload.coflows.job[workload.flows.coflow].tolist()))
    assert utilisation(GlobalTable(rank=long_first)) == pytest.approx(3 / 8)  # 37.5 %
    assert gain_per_loss(SHORT, LONG, most=100.0) == pytest.approx(1.5)


def test_two_jobs_share_a_link():
    # First, a job sends half of the time. Second, the long one's iterations take 6 s, the short one's 4 s.
    assert first_share(LONG) == first_share(SHORT) == 0.5
    assert second_share(SHORT, LONG) == pytest.approx(2 / 6)
    assert second_share(LONG, SHORT) == pytest.approx(1 / 4)
    # Behind a job that never stops nobody sends, and behind one that never sends as if alone.
    assert second_share(Cycle(0.0, 0.0, 3.0), SHORT) == 0.0
    assert second_share(Cycle(5.0, 0.0, 0.0), SHORT) == 0.5
    assert gain_per_loss(SHORT, Cycle(5.0, 0.0, 0.0), most=100.0) == 1.0


times = st.floats(0.01, 10.0)
cycles = st.builds(lambda c, part, link: Cycle(c, part * c, link), times, st.floats(0.0, 1.0), times)


@given(cycles, cycles)
def test_the_second_job_gets_no_more_than_there_is(first, second):
    rate = second_share(first, second)
    assert 0 <= rate <= first_share(second) * (1 + 1e-9)
    # Where nothing repeats itself in 2000 iterations, the begin, when the first has not sent yet, counts.
    assert rate + first_share(first) <= 1 + 1e-3


@pytest.mark.parametrize(
    ("first", "second"), [(Cycle(1.0, 0.25, 0.5), Cycle(0.7, 0.7, 0.4)), (Cycle(0.3, 0.3, 1.1), LONG)]
)
def test_the_second_job_against_the_simulator(first, second):
    # Iterations whose computation goes on while they send: a task of the lead, a flow after it, and the rest.
    case, n = Case(4), 150
    for host, cycle in ((2, first), (3, second)):
        job = case.job(iterations=n)
        before = []
        for i in range(n):
            lead, rest = (
                case.builder.add_task(job, TaskKind.OTHER, host, seconds, i)
                for seconds in (cycle.lead, cycle.compute - cycle.lead)
            )
            (flow,) = case.coflow((0, 1, cycle.link), job=job, iteration=i)
            case.builder.depend(flow, lead)
            case.builder.depend(rest, lead)
            case.builder.depend(lead, *before)
            before = [flow, rest]
    workload = case.build()
    job = workload.coflows.job[workload.flows.coflow]
    ranks = dict(enumerate(job.tolist()))
    outcome = run(workload, star(4, 1.0), GlobalTable(rank=ranks))
    ended = np.sort(outcome.flow_finish[job == 1])
    until = float(outcome.flow_finish[job == 0].max())
    whole = ended[ended <= until]
    sent = second.link * len(whole) / whole[-1]
    assert sent == pytest.approx(second_share(first, second), rel=0.02)


# ------------------------------------------------------------------ few classes


def weight_of(edges: np.ndarray, level: np.ndarray) -> float:
    return float(edges[level[:, None] < level[None, :]].sum())


def all_cuts(edges: np.ndarray, levels: int) -> float:
    """The heaviest of all assignments in which no edge leads upward."""
    n = len(edges)
    best = 0.0
    for each in itertools.product(range(levels), repeat=n):
        level = np.array(each)
        if not (edges[level[:, None] > level[None, :]] > 0).any():
            best = max(best, weight_of(edges, level))
    return best


def random_edges(rng: np.random.Generator, n: int) -> np.ndarray:
    """As Crux makes them: priorities in some order, an edge to each lower one that shares a link."""
    meet = rng.random((n, n)) < 0.5
    edges = np.triu(meet | meet.T, 1) * rng.lognormal(0.0, 1.0, n)[:, None]
    shuffled = rng.permutation(n)
    return edges[np.ix_(shuffled, shuffled)]


@pytest.mark.parametrize("levels", [2, 3])
def test_cuts_are_near_the_best_of_all(levels):
    # The paper has 97 % on average over 1500 small cases.
    rng = np.random.default_rng(7)
    reached = []
    for _ in range(40):
        edges = random_edges(rng, 6)
        level = best_of_orders(edges, levels, 10, np.random.default_rng(0))
        assert level.max() < levels
        assert not (edges[level[:, None] > level[None, :]] > 0).any()
        best = all_cuts(edges, levels)
        reached.append(weight_of(edges, level) / best if best else 1.0)
    assert np.mean(reached) > 0.97
    assert min(reached) > 0.85


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 4))
def test_the_cut_of_one_order_is_the_best_into_intervals(seed, n, levels):
    edges = np.triu(np.random.default_rng(seed).random((n, n)), 1)
    weight, level = cut_of_order(edges, levels)
    cuts = itertools.combinations_with_replacement(range(n + 1), levels - 1)
    best = max(weight_of(edges, np.searchsorted(np.array(c), np.arange(n), side="right")) for c in cuts)
    assert weight == pytest.approx(best)
    assert weight_of(edges, level) == pytest.approx(best)
    assert level.max(initial=0) < levels
    assert (np.diff(level) >= 0).all()


def test_nothing_to_keep_apart_is_one_class():
    assert best_of_orders(np.zeros((5, 5)), 3, 10, np.random.default_rng(0)).tolist() == [0] * 5


def test_jobs_in_fewer_classes_than_jobs():
    # Over one link, computing 4, 3, 2 and 1 s for 1 s of sending that follows: ranks 0 to 3 by intensity, and
    # in two classes the cut that keeps 4 before 2 and 1, and 3 before both: (4 + 3) x 2 = 14, any other less.
    case = Case(6)
    for seconds in (1.0, 3.0, 2.0, 4.0):
        job = case.job()
        task = case.builder.add_task(job, TaskKind.OTHER, 2 + int(seconds) % 4, seconds)
        (flow,) = case.coflow((0, 1, 1.0), job=job)
        (now,) = case.coflow((0, 1, 1.0), job=job)
        case.builder.depend(flow, task)
        case.builder.depend(case.builder.add_task(job, TaskKind.BARRIER), now)
    policy = Crux()
    workload = case.build()
    outcome = run(workload, star(6, 1.0), policy, queues=2, horizon=0.1)
    first = outcome.flow_class[1::2]
    assert first.tolist() == [1, 0, 1, 0]
    oracle = by_hand(workload, star(6, 1.0), policy, queues=2, horizon=0.1)
    assert [oracle.cls[f] for f in (1, 3, 5, 7)] == [1, 0, 1, 0]
