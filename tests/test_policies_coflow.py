"""SRPT, FIFO-LM, Aalo and Philae: schedules worked by hand, what they must not see, what always holds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_cases import star
from sim_cases import Case, random_workload, run

from netsched.control import decide
from netsched.errors import ScenarioError
from netsched.metrics import coflows as coflow_table
from netsched.model import Control, Event, Plan, Policy, Spec, View, Workload
from netsched.policies import make, reach
from netsched.policies.aalo import Aalo
from netsched.policies.fifo import Fifo
from netsched.policies.fifo_lm import FifoLm
from netsched.policies.philae import Philae
from netsched.policies.sebf import Sebf
from netsched.policies.srpt import Srpt
from netsched.testing import check_policy

SMALL: tuple[Policy, ...] = (
    Srpt(first=0.5, factor=2.0),
    FifoLm(heavy=1.5, sync=0.2),
    Aalo(queues=4, first=0.5, factor=2.0, sync=0.2),
    Philae(thin=1, pilots=0.3, first=1.0, factor=3.0),
)
"""Parameters that matter for flows of about 1 B on links of 1 B/s."""
BLIND = SMALL[1:]
by_name = pytest.mark.parametrize("policy", SMALL, ids=lambda policy: policy.name)


@dataclass(frozen=True)
class Watched:
    """Asks a policy and keeps what it was shown and what it said."""

    policy: Policy
    seen: list[tuple[View, Plan]] = field(default_factory=list)

    name: ClassVar[str] = "watched"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False

    @property
    def events(self) -> Event:  # type: ignore[override]
        return self.policy.events

    def __call__(self, view: View) -> Plan:
        plan = decide(self.policy, view, view.queues)
        self.seen.append((view, plan))
        return plan


def finishes(case: Case, policy: Policy, hosts: int = 4, queues: int | None = None) -> list[float]:
    """Seconds at which each flow ends on a switch with ports of 1 B/s."""
    return run(case.build(), star(hosts, 1.0), policy, queues=queues).flow_finish.tolist()


def first_view(*coflows: list[tuple[int, int, float]], queues: int | None = None) -> View:
    """The view at 0 s of coflows (source, destination, bytes) on a switch with 8 ports of 1 B/s."""
    case, spy = Case(8), Watched(Fifo())
    for flows in coflows:
        case.coflow(*flows)
    run(case.build(), star(8, 1.0), spy, queues=queues)
    return spy.seen[0][0]


def sent(view: View, *amounts: float) -> View:
    """The view with these bytes sent per coflow."""
    return replace(view, coflows=replace(view.coflows, sent=np.array(amounts)))


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


def watched(policy: Policy, seed: int, queues: int | None, control: Control | None = None) -> Watched:
    """The policy on a random DAG of flows of about 1 B on a switch with ports of 1 B/s."""
    rng, spy = np.random.default_rng(seed), Watched(policy)
    run(random_workload(rng, 4), star(4, 1.0), spy, queues=queues, control=control or Control())
    return spy


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


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_philae_gives_a_coflow_one_class_or_two_where_it_is_being_sampled(seed):
    for view, plan in watched(SMALL[3], seed, None).seen:
        for row in range(len(view.coflows)):
            n_flows, n_finished = view.coflows.n_flows[row], view.coflows.n_finished[row]
            ranks = plan.rank[view.flows.coflow == row]
            pilots = max(1, int(np.ceil(0.3 * n_flows))) - n_finished
            if n_flows <= 1 or pilots <= 0:
                assert len(set(ranks.tolist())) == 1
            else:
                assert np.count_nonzero(ranks == ranks.min()) == min(pilots, len(ranks))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), sync=st.sampled_from((0.01, 0.2, 1.0)))
def test_no_coflow_passes_a_limit_while_aalo_does_not_look(seed, sync):
    # Where Aalo waits for longer than `sync`, it says that no coflow can reach a limit before it looks again.
    policy = replace(SMALL[2], sync=sync)
    limits = 0.5 * 2.0 ** np.arange(3)
    seen = watched(policy, seed, None).seen
    for (before, plan), (after, _) in pairwise(seen):
        if after.now - before.now <= sync * (1 + 1e-9) or plan.review_in == np.inf:
            continue
        known = dict(zip(before.coflows.id.tolist(), before.coflows.sent.tolist(), strict=True))
        for coflow, now in zip(after.coflows.id.tolist(), after.coflows.sent.tolist(), strict=True):
            at = int(reach.levels(np.array([known.get(coflow, now)]), limits)[0])
            assert at == len(limits) or now <= limits[at] * (1 + 1e-9)


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


# ------------------------------------------------------------------ aalo


def test_aalo_lets_a_new_coflow_pass_one_that_has_sent_much():
    # One link, limit 2 B. A: 5 B from 0 s, in the second queue from 2 s on. B: 1 B, comes at 3 s and ends at
    # 4 s, when A still has 2 B, until 6 s.
    case = Case(4)
    case.coflow((0, 1, 5.0))
    case.coflow((0, 1, 1.0), at=3.0)
    assert finishes(case, Aalo(queues=2, first=2.0)) == pytest.approx([6.0, 4.0])
    # With a limit of 5 B they are in one queue, where the first to come goes first.
    assert finishes(case, Aalo(queues=2, first=5.0)) == pytest.approx([5.0, 6.0])


def test_aalo_goes_by_arrival_inside_a_queue_and_shares_inside_a_hardware_class():
    # Two coflows of 6 B on one link, limit 2 B, looked at every 1 s. A until 2 s, B until 4 s; in the second
    # queue A comes first again: its 4 B end at 8 s, B's at 12 s.
    case = Case(4)
    case.coflow((0, 1, 6.0))
    case.coflow((0, 1, 6.0))
    policy = Aalo(queues=2, first=2.0, sync=1.0)
    assert finishes(case, policy) == pytest.approx([8.0, 12.0])
    # In hardware classes both share throughout: 12 B at 12 s.
    assert finishes(case, policy, queues=8) == pytest.approx([12.0, 12.0])


def test_aalo_counts_the_bytes_of_all_flows_and_demotes_all():
    # A: 4 B over 0 -> 2 and 4 B over 1 -> 3: 2 B together at 1 s, when B comes with 1 B over 0 -> 2 and goes
    # first, until 2 s. A's flows end at 5 s and, undisturbed, at 4 s.
    case = Case(4)
    case.coflow((0, 2, 4.0), (1, 3, 4.0))
    case.coflow((0, 2, 1.0), at=1.0)
    assert finishes(case, Aalo(queues=2, first=2.0)) == pytest.approx([5.0, 4.0, 2.0])


def test_aalo_looks_when_a_coflow_can_reach_a_limit_and_at_most_its_period_late():
    # Limit 2 B. Two senders into one port of 1 B/s: 2 B not before 2 s, and then all is said.
    case, spy = Case(4), Watched(Aalo(queues=2, first=2.0, sync=0.5))
    case.coflow((0, 1, 6.0), (2, 1, 0.5))
    run(case.build(), star(4, 1.0), spy)
    assert [view.now for view, _ in spy.seen] == pytest.approx([0.0, 2.0])
    assert spy.seen[-1][1].review_in == np.inf
    # A: 1.5 B over 0 -> 2. B: 6 B over 0 -> 2, which wait for A until 1.5 s, and 6 B over 1 -> 3. At 2 B/s B
    # could have 2 B at 1 s; it has 1 B, and could have 2 B at 1.5 s; it has 1.5 B, and has 2 B at 1.75 s,
    # which is seen at 2 s.
    case, spy = Case(4), Watched(Aalo(queues=2, first=2.0, sync=0.5))
    case.coflow((0, 2, 1.5))
    case.coflow((0, 2, 6.0), (1, 3, 6.0))
    run(case.build(), star(4, 1.0), spy)
    assert [view.now for view, _ in spy.seen] == pytest.approx([0.0, 1.0, 1.5, 2.0])
    assert spy.seen[-1][0].coflows.sent.tolist() == pytest.approx([2.5])


def test_aalo_queues_by_limits_that_grow_by_the_factor():
    # 10 MB, 100 MB, 1 GB and so on; ten queues. A coflow at a limit is in the next queue.
    view = first_view(*[[(0, 1, 1.0)]] * 6)
    shown = sent(view, 0.0, 9.9e6, 10e6, 99e6, 5e9, 1e30)
    assert Aalo()(replace(shown, queues=8)).rank.tolist() == [0, 0, 1, 1, 3, 7]
    assert Aalo()(replace(shown, queues=3)).rank.tolist() == [0, 0, 1, 1, 2, 2]
    # Without classes: by queue, then by arrival.
    mixed = sent(view, 5e9, 0.0, 10e6, 9.9e6, 1e30, 99e6)
    assert Aalo()(mixed).rank.tolist() == [4, 0, 2, 1, 5, 3]


def test_no_coflow_is_faster_than_its_senders_or_its_receivers():
    # Ports of 1 B/s. Two senders into one receiver: 1 B/s; two into three: 2 B/s; one flow: 1 B/s.
    view = first_view([(0, 1, 1.0), (2, 1, 1.0)], [(0, 1, 1.0), (0, 2, 1.0), (3, 4, 1.0)], [(5, 6, 1.0)])
    assert reach.fastest(view).tolist() == [1.0, 2.0, 1.0]
    # A flow of the second has not been released, and may use any port.
    counts = replace(view.coflows, n_flows=np.array([2, 4, 1]))
    assert reach.fastest(replace(view, coflows=counts)).tolist() == [1.0, np.inf, 1.0]


def test_contention_counts_the_coflows_met_on_any_link():
    # The first meets the second at host 1 and the third at host 0; the fourth meets nobody.
    view = first_view([(0, 1, 1.0)], [(2, 1, 1.0), (2, 3, 1.0)], [(0, 4, 1.0)], [(5, 6, 1.0)])
    assert reach.contention(view).tolist() == [3, 2, 2, 1]


def test_many_pairs_are_found_like_few(monkeypatch):
    view = first_view([(0, 1, 1.0), (2, 1, 1.0)], [(2, 3, 1.0)], [(0, 4, 1.0)])
    few = reach.fastest(view).tolist(), reach.contention(view).tolist()
    monkeypatch.setattr(reach, "_MOST_CELLS", 0)
    assert (reach.fastest(view).tolist(), reach.contention(view).tolist()) == few


# ------------------------------------------------------------------ philae


def test_philae_sends_pilots_first_then_the_coflow_that_they_show_to_be_shorter():
    # One link; of two flows each, one is the pilot. A: 2 x 4 B, B: 2 x 1 B. A's pilot until 4 s, B's until
    # 5 s. Then B has one flow of 1 B left, A one of 4 B: B ends at 6 s, A at 10 s.
    case = Case(4)
    case.coflow((0, 1, 4.0), (0, 1, 4.0))
    case.coflow((0, 1, 1.0), (0, 1, 1.0))
    end = finishes(case, Philae(thin=1, pilots=0.5))
    assert sorted(end[:2]) == pytest.approx([4.0, 10.0])
    assert sorted(end[2:]) == pytest.approx([5.0, 6.0])


def test_philae_lets_thin_coflows_pass_at_once():
    # A's pilot of 4 B has sent 2 B when C, one flow of 1 B, comes at 2 s and ends at 3 s. The pilot ends at
    # 5 s, the other flow at 9 s.
    case = Case(4)
    case.coflow((0, 1, 4.0), (0, 1, 4.0))
    case.coflow((0, 1, 1.0), at=2.0)
    end = finishes(case, Philae(thin=1, pilots=0.5))
    assert [*sorted(end[:2]), end[2]] == pytest.approx([5.0, 9.0, 3.0])


def test_philae_weighs_what_is_left_by_contention():
    # Three coflows of known size, of one ended and one active flow each. Left: 4, 3 and 9 B. The first meets
    # nobody else (4 * 1), the second and the third meet at host 3 (3 * 2 = 6, 9 * 2 = 18).
    view = known_view([(0, 1, 9.0)], [(2, 3, 9.0)], [(4, 3, 9.0)], means=(4.0, 3.0, 9.0))
    assert Philae(thin=1, pilots=0.5)(view).rank.argsort().tolist() == [0, 1, 2]
    # Were the second alone at its ports, it would go first: 3, 4, 9 B.
    view = known_view([(0, 1, 9.0)], [(2, 3, 9.0)], [(4, 5, 9.0)], means=(4.0, 3.0, 9.0))
    assert Philae(thin=1, pilots=0.5)(view).rank.argsort().tolist() == [1, 0, 2]


def test_philae_does_not_take_a_coflow_for_done_that_has_sent_more_than_was_expected():
    # Means of 2 and 3 B, one flow of each still active: the first goes first. It stays first with 1.5 B sent,
    # and with 5 B (more than the mean) it still has no less than a mean flow left: 2 against 3.
    view = known_view([(0, 1, 9.0)], [(0, 1, 9.0)], means=(2.0, 3.0))
    for more in (0.0, 1.5, 5.0):
        seen = replace(
            view,
            flows=replace(view.flows, sent=np.array([more, 0.0])),
            coflows=replace(view.coflows, sent=view.coflows.sent + np.array([more, 0.0])),
        )
        assert Philae(thin=1, pilots=0.5)(seen).rank.argsort().tolist() == [0, 1]
    # Taken off what is sent, 6 * 2 - 11 = 1 B would put six flows of 2 B before one of 3 B.
    view = replace(view, coflows=replace(view.coflows, n_flows=np.array([6, 2])))
    seen = replace(
        view,
        flows=replace(view.flows, sent=np.array([9.0, 0.0])),
        coflows=replace(view.coflows, sent=np.array([11.0, 3.0])),
    )
    assert Philae(thin=1, pilots=0.1)(seen).rank.argsort().tolist() == [1, 0]


def known_view(*coflows: list[tuple[int, int, float]], means: tuple[float, ...]) -> View:
    """Coflows of which one more flow, of `means` bytes, has ended, and the shown one has sent nothing."""
    view = sent(first_view(*coflows), *means)
    n = len(view.coflows)
    return replace(
        view, coflows=replace(view.coflows, n_flows=np.full(n, 2), n_finished=np.ones(n, np.int64))
    )


def test_philae_with_few_classes_keeps_the_first_for_thin_coflows_and_the_last_for_waiting_flows():
    # Estimates of 2 flows of 5, 6, 50 and 5000 MB: 10 MB in class 2, 12 and 100 MB in 3, 10 GB in class 5.
    means = (5e6, 6e6, 50e6, 5e9)
    view = known_view(*[[(0, 1, 1.0)]] * 4, means=means)
    policy = Philae(thin=1, pilots=0.5)
    assert policy(replace(view, queues=8)).rank.tolist() == [2, 3, 3, 5]
    assert policy(replace(view, queues=4)).rank.tolist() == [2, 3, 3, 3]
    # Nothing has ended: one pilot in class 1, the other flow in the last class; a coflow of one flow is thin.
    fresh = first_view([(0, 1, 1.0), (0, 2, 1.0)], [(0, 1, 1.0)])
    ranks = policy(replace(fresh, queues=8)).rank.tolist()
    assert sorted(ranks[:2]) == [1, 7]
    assert ranks[2] == 0
    assert policy(replace(fresh, queues=1)).rank.tolist() == [0, 0, 0]


def test_philae_watches_the_coflows_that_it_samples():
    policy = Philae(thin=1, pilots=0.5)
    view = first_view([(0, 1, 1.0), (0, 2, 1.0)], [(0, 1, 1.0)])
    assert policy(view).watch.tolist() == [True, True, False]
    assert policy(known_view([(0, 1, 1.0)], means=(2.0,))).watch.tolist() == [False]


def test_philae_decides_when_a_pilot_ends_and_not_otherwise():
    # Four flows of 1, 2, 3 and 4 B over 0 -> 1, one of them the pilot: decisions at 0 s, when the coflow
    # comes, and when the pilot ends. The other flows' ends say nothing new.
    case, spy = Case(4), Watched(Philae(thin=1, pilots=0.25))
    case.coflow((0, 1, 1.0), (0, 1, 2.0), (0, 1, 3.0), (0, 1, 4.0))
    outcome = run(case.build(), star(4, 1.0), spy)
    first = outcome.flow_finish.min()
    assert first in (1.0, 2.0, 3.0, 4.0)
    assert [view.now for view, _ in spy.seen] == pytest.approx([0.0, first])


# ------------------------------------------------------------------ against each other


def mean_cct(workload: Workload, policy: Policy) -> float:
    return float(coflow_table(workload, run(workload, star(2, 1.0), policy))["cct"].mean())


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


def test_aalo_helps_small_coflows_behind_a_large_one():
    # 100 B, and at 10 s ten coflows of 1 B, on one link. FIFO: 100 s, and 91 to 100 s for the small ones.
    # Aalo, limit 2 B: small ones take 1 to 10 s, the large one 110 s: mean (110 + 55) / 11 = 15.
    case = Case(2)
    case.coflow((0, 1, 100.0))
    for _ in range(10):
        case.coflow((0, 1, 1.0), at=10.0)
    workload = case.build()
    assert mean_cct(workload, Fifo()) == pytest.approx((100 + sum(range(91, 101))) / 11)
    assert mean_cct(workload, Aalo(queues=2, first=2.0)) == pytest.approx(15.0)
