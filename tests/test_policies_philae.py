"""Philae: schedules worked by hand, estimates, classes, and when it decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from coflow_cases import SMALL, Watched, finishes, first_view, sent, watched
from hypothesis import given, settings
from hypothesis import strategies as st
from result_cases import star
from sim_cases import Case, run

from netsched.model import View
from netsched.policies.philae import Philae


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
