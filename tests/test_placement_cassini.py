"""CASSINI: rotations of circles by hand, the affinity graph, and what shifts do to jobs that run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_cases import LinkNetwork, alone, cluster_of, turns

from netsched.metrics import jobs as job_table
from netsched.model import Control, Transport
from netsched.placement import decide
from netsched.placement.alone import jobs_alone
from netsched.placement.apply import placed
from netsched.placement.cassini import Cassini, shared_links
from netsched.placement.circles import Circle, perimeter, turned
from netsched.policies.fair import Fair
from netsched.simulate import simulate

RNG = np.random.default_rng(0)


def circle(period: float, begin: float, end: float, rate: float = 1.0) -> Circle:
    return Circle(period, np.array([begin]), np.array([end]), np.array([rate]))


def test_two_equal_jobs_that_send_half_of_the_time_fit_half_a_period_apart():
    both = turned([circle(2.0, 0.0, 1.0), circle(2.0, 0.0, 1.0)], 1.0, 72, 0.001, 12)
    assert both.score == pytest.approx(1.0)
    assert both.shift.tolist() == pytest.approx([0.0, 1.0])


def test_what_does_not_fit_is_the_score_and_may_be_below_0():
    # Each sends 3/4 of the time: half of it both, at twice the link's rate at best: 1 - 1/2.
    both = turned([circle(4.0, 0.0, 3.0), circle(4.0, 0.0, 3.0)], 1.0, 72, 0.001, 12)
    assert both.score == pytest.approx(0.5)
    # Three that never stop ask for three times the link.
    all_the_time = [circle(1.0, 0.0, 1.0)] * 3
    assert turned(all_the_time, 1.0, 12, 0.001, 12).score == pytest.approx(-1.0)


def test_a_job_with_room_on_both_sides_goes_to_the_middle():
    # A quarter of the time each: the second may begin 1 to 3 s after the first; 2 s is farthest from both.
    both = turned([circle(4.0, 0.0, 1.0), circle(4.0, 0.0, 1.0)], 1.0, 72, 0.001, 12)
    assert (both.score, both.shift[1]) == (pytest.approx(1.0), pytest.approx(2.0))


def test_three_thirds_fit():
    three = turned([circle(3.0, 0.0, 1.0)] * 3, 1.0, 12, 0.001, 12)
    assert three.score == pytest.approx(1.0)
    assert sorted(three.shift.tolist()) == pytest.approx([0.0, 1.0, 2.0])


def test_a_job_of_half_the_period_goes_round_twice():
    # 4 s: sends from 0 to 1 s and computes. 2 s: sends 0.5 s. The short one has to miss [0, 1) mod 2.
    both = turned([circle(4.0, 0.0, 1.0), circle(2.0, 0.0, 0.5)], 1.0, 72, 0.001, 12)
    assert both.score == pytest.approx(1.0)
    assert 1.0 - 1e-9 <= both.shift[1] <= 1.5 + 1e-9


def test_many_jobs_are_turned_one_at_a_time():
    # Eight eighths: too many combinations to try, and there is a way to fit.
    eight = turned([circle(8.0, 0.0, 1.0)] * 8, 1.0, 64, 0.001, 12)
    assert eight.score == pytest.approx(1.0)


def test_the_common_perimeter():
    assert perimeter([0.2, 0.3], 0.001, 12) == pytest.approx(0.6)
    assert perimeter([1.0, 1.0], 0.001, 12) == pytest.approx(1.0)
    # 0.211 and 0.3 have 63.3 s in common; of up to 12 turns of 0.3, 12 are nearly 17 of 0.211 (3.587).
    assert perimeter([0.211, 0.3], 0.001, 12) == pytest.approx(3.6)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 5), st.floats(0.1, 3)), min_size=1, max_size=5),
    st.floats(0.5, 4),
    st.integers(4, 90),
)
def test_no_bytes_get_lost_on_a_circle(flows, period, parts):
    begin, length, rate = (np.array(column) for column in zip(*flows, strict=True))
    demand = Circle(period, begin, begin + length, rate).demand(parts)
    assert demand.min() >= -1e-9
    assert demand.mean() * period == pytest.approx(float((length * rate).sum()), rel=1e-6)


# ------------------------------------------------------------------ several links


def test_shifts_travel_over_the_affinity_graph():
    # Job 1 meets job 0 on link 0 and job 2 on link 1, all half of 2 s: 1 is turned by 1 s, 2 by 0 again.
    network = LinkNetwork(6, {(0, 1): [0], (2, 3): [0, 1], (4, 5): [1]})
    jobs = [alone(f"j{i}", hosts, 2.0, (0.0, 1.0)) for i, hosts in enumerate(((0, 1), (2, 3), (4, 5)))]
    placing = decide(Cassini(), cluster_of(network, *jobs), RNG)
    assert placing.shift.tolist() == pytest.approx([0.0, 1.0, 0.0])
    assert placing.notes == ("j0, j1: score 1.000", "j1, j2: score 1.000")


def test_the_arrival_counts():
    # The second job arrives 1.5 s into the first one's period of 2 s: it waits for the middle of the next.
    network = LinkNetwork(4, {(0, 1): [0], (2, 3): [0]})
    first, second = (alone(f"j{i}", h, 2.0, (0.0, 1.0)) for i, h in enumerate(((0, 1), (2, 3))))
    late = alone("j1", (2, 3), 2.0, (0.0, 1.0), arrival=1.5)
    assert decide(Cassini(), cluster_of(network, first, late), RNG).shift.tolist() == pytest.approx([0, 1.5])
    # And one that arrives when the other has ended meets nobody.
    after = alone("j1", (2, 3), 2.0, (0.0, 1.0), arrival=1000.0)
    assert decide(Cassini(), cluster_of(network, first, after), RNG).shift.tolist() == [0.0, 0.0]
    assert second.duration == 20.0


def test_a_loop_is_not_shifted_and_said():
    # Three jobs, each two of which meet on a link of their own.
    network = LinkNetwork(6, {(0, 1): [0, 2], (2, 3): [0, 1], (4, 5): [1, 2]})
    jobs = [alone(f"j{i}", hosts, 2.0, (0.0, 1.0)) for i, hosts in enumerate(((0, 1), (2, 3), (4, 5)))]
    placing = decide(Cassini(), cluster_of(network, *jobs), RNG)
    assert placing.shift.tolist() == [0.0, 0.0, 0.0]
    assert placing.notes == ("j0, j1, j2: not shifted, they meet on several links in a loop",)
    # Other placements may do without: with both jobs of a pair on the same two hosts of the network.
    moved = decide(Cassini(move=True, candidates=60), cluster_of(network, *jobs), np.random.default_rng(1))
    assert "loop" not in "".join(moved.notes)


def test_links_that_carry_the_same_jobs_are_one():
    network = LinkNetwork(4, {(0, 1): [0, 1], (2, 3): [1, 0]}, rates=(1.0, 0.5))
    jobs = [alone(f"j{i}", hosts, 2.0, (0.0, 1.0)) for i, hosts in enumerate(((0, 1), (2, 3)))]
    cluster = cluster_of(network, *jobs)
    (link,) = shared_links(Cassini(), cluster, tuple(job.hosts for job in jobs))
    # The narrower link decides: 1 B/s over 0.5 B/s all the time is 1 above 0.5.
    assert link.score == pytest.approx(0.0)


# ------------------------------------------------------------------ with jobs that run


def test_shifted_jobs_run_as_if_alone():
    # Two jobs that compute 1 s and send 1 s over one link: together they take 3 s for each of the first
    # iterations; half a period apart, 2 s. The shift is part of the second one's completion time.
    fabric, workload = turns(jobs=2, iterations=6, seconds=1.0, size=1.0)
    cluster = cluster_of(fabric, *jobs_alone(workload, fabric, Transport()))
    placing = decide(Cassini(), cluster, RNG)
    assert placing.shift.tolist() == pytest.approx([0.0, 1.0])
    shifted = placed(workload, cluster, placing)
    outcome = simulate(shifted, fabric, Fair(), queues=None, transport=Transport(), control=Control())
    assert job_table(shifted, outcome)["jct"].tolist() == pytest.approx([12.0, 13.0])
    plain = simulate(workload, fabric, Fair(), queues=None, transport=Transport(), control=Control())
    assert job_table(workload, plain)["jct"].tolist() == pytest.approx([18.0, 18.0])
