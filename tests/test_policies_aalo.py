"""Aalo: schedules worked by hand, its limits, when it looks, and what of a view tells it that."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from coflow_cases import SMALL, Watched, finishes, first_view, mean_cct, sent, watched
from hypothesis import given, settings
from hypothesis import strategies as st
from result_cases import star
from sim_cases import Case, run

from netsched.policies import reach
from netsched.policies.aalo import Aalo
from netsched.policies.fifo import Fifo


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


# ------------------------------------------------------------------ what views tell of speed and contention


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
