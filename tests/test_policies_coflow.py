"""SRPT, FIFO-LM, Aalo and Philae: what they must not see and what always holds; SRPT and FIFO-LM by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from coflow_cases import BLIND, SMALL, finishes, first_view, mean_cct, sent, watched
from hypothesis import given, settings
from hypothesis import strategies as st
from result_cases import star
from sim_cases import Case

from netsched.control import decide
from netsched.errors import ScenarioError
from netsched.model import Spec, View
from netsched.policies import make
from netsched.policies.aalo import Aalo
from netsched.policies.fifo import Fifo
from netsched.policies.fifo_lm import FifoLm
from netsched.policies.philae import Philae
from netsched.policies.sebf import Sebf
from netsched.policies.srpt import Srpt
from netsched.testing import check_policy

by_name = pytest.mark.parametrize("policy", SMALL, ids=lambda policy: policy.name)


# ------------------------------------------------------------------ the contract


@pytest.mark.parametrize(
    "policy",
    [
        FifoLm(heavy=20e6),
        Aalo(queues=3, first=1e6, sync=0.01),
        Philae(thin=0, pilots=1.0),
        Philae(thin=2, pilots=0.4),
    ],
    ids=repr,
)
def test_keeps_the_contract_of_policies(policy):
    check_policy(policy, star(6, 1e8))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("srpt", {"first": "0B"}, "first is 0.0 B, factor 8.0: they must be above 0 and above 1"),
        ("srpt", {"factor": 1}, "factor 1.0: they must be above 0 and above 1"),
        ("fifo-lm", {"heavy": "0B"}, "heavy is 0.0 B, sync 0.08 s: both must be above 0"),
        ("fifo-lm", {"sync": 0}, "sync 0.0 s: both must be above 0"),
        ("aalo", {"queues": 0}, "queues is 0, must be 1 or more"),
        ("aalo", {"factor": 0.5}, "factor 0.5: they must be above 0 and above 1"),
        ("aalo", {"sync": "0s"}, "sync is 0.0 s, must be above 0"),
        ("aalo", {"first": 10}, "10 is not a size"),
        ("philae", {"pilots": 0}, "pilots 0.0: they must be 0 or more, and above 0 up to 1"),
        ("philae", {"thin": -1}, "thin is -1"),
        ("philae", {"factor": 1}, "factor 1.0: they must be above 0 and above 1"),
    ],
)
def test_parameters_without_sense_are_refused(name, params, message):
    with pytest.raises(ScenarioError, match=rf"policies\.{name}.*{message}"):
        make(Spec(name, params))


@pytest.mark.parametrize("policy", BLIND, ids=lambda policy: policy.name)
@pytest.mark.parametrize("queues", [None, 4])
def test_what_may_not_see_sizes_says_the_same_whatever_they_are(policy, queues):
    assert not policy.clairvoyant
    for seed in range(4):
        for view, _ in watched(policy, seed, queues).seen:
            # Asked past the gate that would hide them: true sizes, others, and none.
            plans = [policy(with_sizes(view, factor)) for factor in (1.0, 7.0, np.nan)]
            assert plans[0].rank.tolist() == plans[1].rank.tolist() == plans[2].rank.tolist()
            assert plans[0].review_in == plans[1].review_in == plans[2].review_in
            watched_by = [None if plan.watch is None else plan.watch.tolist() for plan in plans]
            assert watched_by[0] == watched_by[1] == watched_by[2]


def with_sizes(view: View, factor: float) -> View:
    """The view with all sizes, and what is left of them, times so much."""
    flows = replace(view.flows, size=factor * view.flows.size, remaining=factor * view.flows.remaining)
    return replace(view, flows=flows, coflows=replace(view.coflows, size=factor * view.coflows.size))


# ------------------------------------------------------------------ what always holds


queue_counts = st.one_of(st.none(), st.integers(1, 8))


@by_name
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), queues=queue_counts)
def test_plans_are_total_and_the_same_when_asked_again(policy, seed, queues):
    for view, plan in watched(policy, seed, queues).seen:
        assert len(plan.rank) == len(view.flows)
        assert queues is None or plan.rank.max(initial=0) < queues
        again = decide(policy, view, queues)
        assert again.rank.tolist() == plan.rank.tolist()
        assert again.review_in == plan.review_in


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), queues=queue_counts, policy=st.sampled_from((SMALL[1], SMALL[2])))
def test_aalo_and_fifo_lm_give_all_flows_of_a_coflow_one_class(seed, queues, policy):
    for view, plan in watched(policy, seed, queues).seen:
        for row in range(len(view.coflows)):
            assert len(set(plan.rank[view.flows.coflow == row].tolist())) == 1


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), queues=st.integers(1, 8), policy=st.sampled_from((SMALL[1], SMALL[2])))
def test_hardware_classes_of_aalo_and_fifo_lm_only_grow(seed, queues, policy):
    for view, plan in watched(policy, seed, queues).seen:
        assert (plan.rank >= view.coflows.cls[view.flows.coflow]).all()


# ------------------------------------------------------------------ srpt


def test_srpt_lets_a_shorter_flow_pass():
    # One link: 10 B from 0 s, 3 B from 2 s. At 2 s the first has 8 B left: 3 B until 5 s, 8 B until 13 s.
    case = Case(4)
    case.coflow((0, 1, 10.0))
    case.coflow((0, 1, 3.0), at=2.0)
    assert finishes(case, Srpt()) == pytest.approx([13.0, 5.0])


def test_srpt_orders_anew_when_a_flow_ends():
    # 9 B over 1 -> 2 hold up 10 B over 0 -> 2, so 11 B go over 0 -> 3. At 9 s those have 2 B left, less than
    # 10 B: they go on until 11 s, then the 10 B until 21 s. In the order of 0 s it were 9, 19 and 21 s.
    case = Case(4)
    case.coflow((1, 2, 9.0), (0, 2, 10.0), (0, 3, 11.0))
    assert finishes(case, Srpt()) == pytest.approx([9.0, 21.0, 11.0])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0.1, 9)), min_size=1, max_size=7))
def test_srpt_on_one_link_is_the_textbook_rule(flows):
    case = Case(2)
    for at, size in flows:
        case.coflow((0, 1, size), at=at)
    np.testing.assert_allclose(
        finishes(case, Srpt(), hosts=2), one_server([a for a, _ in flows], [s for _, s in flows])
    )


def one_server(arrival: list[float], size: list[float]) -> list[float]:
    """When jobs end on one server of speed 1 that serves the one with the least left, ties by arrival."""
    left, end, now = list(size), [0.0] * len(size), 0.0
    while any(end[i] == 0.0 for i in range(len(size))):
        here = [i for i in range(len(size)) if arrival[i] <= now and end[i] == 0.0]
        later = min((a for a in arrival if a > now), default=np.inf)
        if not here:
            now = later
            continue
        job = min(here, key=lambda i: (left[i], arrival[i], i))
        step = min(left[job], later - now)
        if left[job] <= later - now:
            end[job] = now + left[job]
        left[job] -= step
        now += step
    return end


def test_srpt_with_few_classes_bins_whole_sizes():
    # `first` 1 B, factor 2, four classes: up to 1, 2, 4 B, and more.
    view = first_view([(0, 1, size) for size in (0.2, 1.0, 1.5, 2.0, 3.9, 4.1, 100.0)])
    policy = Srpt(first=1.0, factor=2.0)
    assert policy(replace(view, queues=4)).rank.tolist() == [0, 0, 1, 1, 2, 3, 3]
    # What is left does not count, so that a flow keeps its class.
    partly = replace(view, queues=4, flows=replace(view.flows, remaining=np.full(7, 0.1)))
    assert policy(partly).rank.tolist() == [0, 0, 1, 1, 2, 3, 3]


# ------------------------------------------------------------------ fifo-lm


def test_fifo_lm_shares_between_a_heavy_coflow_and_the_next_one_only():
    # One link, A 10 B, B 3 B, C 2 B in this order; heavy is 4 B. A alone until it has 4 B at 4 s. A and B
    # at 1/2 B/s each: B ends at 10 s, A has 3 B left. A and C at 1/2: C ends at 14 s, A's last B at 15 s.
    case = Case(4)
    for size in (10.0, 3.0, 2.0):
        case.coflow((0, 1, size))
    assert finishes(case, FifoLm(heavy=4.0, sync=0.01)) == pytest.approx([15.0, 10.0, 14.0])
    assert finishes(case, FifoLm(heavy=100.0)) == pytest.approx(finishes(case, Fifo()))


def test_fifo_lm_multiplexes_one_more_for_each_heavy_coflow():
    # A 10 B, B 10 B, C 1 B; heavy is 2 B, looked at every 1 s. A alone until 2 s; A and B at 1/2 B/s until B
    # has sent 2 B at 6 s (A: 4 B); all three at 1/3: C ends at 9 s (A: 5 B, B: 3 B); A and B at 1/2: A's 5 B
    # end at 19 s, and B's last 2 B at 21 s.
    case = Case(4)
    for size in (10.0, 10.0, 1.0):
        case.coflow((0, 1, size))
    assert finishes(case, FifoLm(heavy=2.0, sync=1.0)) == pytest.approx([19.0, 21.0, 9.0])


def test_fifo_lm_ranks_by_the_light_coflows_ahead():
    view = first_view(*[[(0, 1, 1.0)]] * 6)
    # Heavy: the first, second and fifth. Light ones ahead of each: none, none, none, 1, 2, 2.
    plan = FifoLm(heavy=3.0)(sent(view, 3.0, 8.0, 1.0, 0.0, 4.0, 2.0))
    assert plan.rank.tolist() == [0, 0, 0, 1, 2, 2]


def test_fifo_lm_with_few_classes_lets_heavy_coflows_sink_to_the_next_light_one():
    view = replace(first_view(*[[(0, 1, 1.0)]] * 5), queues=4)

    def classes(held: list[int], *amounts: float) -> list[int]:
        shown = sent(view, *amounts)
        shown = replace(shown, coflows=replace(shown.coflows, cls=np.array(held)))
        return FifoLm(heavy=3.0)(shown).rank.tolist()

    assert classes([-1] * 5, 0.0, 0.0, 0.0, 0.0, 0.0) == [0, 1, 2, 3, 3]
    # The first is heavy and joins the second; once that is heavy too, both join the third.
    assert classes([0, 1, 2, 3, 3], 3.0, 0.0, 0.0, 0.0, 0.0) == [1, 1, 2, 3, 3]
    assert classes([1, 1, 2, 3, 3], 5.0, 3.0, 0.0, 0.0, 0.0) == [2, 2, 2, 3, 3]
    # All are heavy: all are with the last one.
    assert classes([0, 0, 1, 2, 3], 3.0, 3.0, 3.0, 3.0, 3.0) == [3, 3, 3, 3, 3]
    # Nothing changes where nothing has happened.
    assert classes([1, 1, 2, 3, 3], 5.0, 0.0, 0.0, 0.0, 0.0) == [1, 1, 2, 3, 3]


# ------------------------------------------------------------------ against each other


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.05, 50), min_size=2, max_size=6))
def test_on_one_link_nothing_is_better_than_the_shortest_coflow_first(sizes):
    # All there at 0 s: the least mean is that of the sizes in ascending order, which SEBF and SRPT know.
    case = Case(2)
    for size in sizes:
        case.coflow((0, 1, size))
    workload = case.build()
    best = np.cumsum(np.sort(sizes)).mean()
    assert mean_cct(workload, Srpt()) == pytest.approx(best)
    assert mean_cct(workload, Sebf()) == pytest.approx(best)
    for policy in BLIND:
        assert mean_cct(workload, policy) >= best * (1 - 1e-9)
