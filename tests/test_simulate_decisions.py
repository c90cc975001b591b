"""What decisions do, and when, against answers worked out by hand.

Rates are 1 byte/s unless said, so bytes are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from result_cases import star
from sim_cases import PER_PAIR, Case, Diary, GlobalTable, Table, close, one_link, run

from netsched.errors import PolicyError
from netsched.model import Control, Event, Plan, View
from netsched.policies.aalo import Aalo
from netsched.policies.fifo import Fifo
from netsched.policies.sebf import Sebf


def test_a_gate_holds_a_flow_back_until_its_time():
    close(run(one_link(1.0).build(), star(4, 1.0), Table(not_before={0: 2.0})).flow_finish, 3.0)


def test_a_flow_behind_its_gate_does_not_hold_up_its_queue():
    # Flow 1 sends until the gate opens at 1, flow 0 was released before it and goes 1..3, flow 1 goes on.
    case = Case(2)
    case.coflow((0, 1, 2.0), (0, 1, 3.0))
    table = Table(not_before={0: 1.0})
    close(run(case.build(), star(2, 1.0), table, transport=PER_PAIR).flow_finish, 3.0, 5.0)


@dataclass(frozen=True)
class Pause:
    """Caps all flows at `rate`; from its review at 1 s on nobody may send before 3 s."""

    rate: float

    name: ClassVar[str] = "pause"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        n, late = len(view.flows), view.now >= 1.0
        gate = np.full(n, 3.0 if late else -math.inf)
        rank, path = np.zeros(n, np.int64), np.full(n, -1)
        return Plan(
            rank, np.zeros(n), np.full(n, self.rate), np.ones(n), gate, path, math.inf if late else 1.0
        )


@pytest.mark.parametrize(("rate", "right"), [(math.inf, 4.0), (0.5, 6.0)])
def test_a_flow_under_way_can_be_stopped_for_a_while(rate, right):
    # 2 B: `rate` (at most 1 B/s) until 1 s, nothing until 3 s, then the rest.
    close(run(one_link(2.0).build(), star(4, 1.0), Pause(rate)).flow_finish, right)
    close(run(one_link(2.0).build(), star(4, 1.0), Pause(rate), transport=PER_PAIR).flow_finish, right)


def test_a_run_ends_with_its_last_flow_whatever_review_was_asked_for():
    # Aalo wants to be asked again when 1e4 B could have been sent, 1e4 s on; the only flow ends at 1 s.
    outcome = run(one_link(1.0).build(), star(4, 1.0), Aalo(first=1e4), queues=8)
    close(outcome.flow_finish, 1.0)
    assert outcome.simulated_s == 1.0


def test_a_review_comes_when_asked_for_and_says_so():
    diary = Diary(every=0.75)
    run(one_link(2.0).build(), star(4, 1.0), diary)
    assert diary.asked == [(0.0, Event.FLOW_RELEASED), (0.75, Event.REVIEW), (1.5, Event.REVIEW)]


def test_decisions_keep_the_period_whatever_asks_for_them():
    arrivals = (0.0, 0.25, 0.5, 1.25)
    diary = Diary()
    run(one_link(1.0, 1.0, 1.0, 1.0, at=arrivals).build(), star(4, 1.0), diary, control=Control(period=1.0))
    assert [at for at, _ in diary.asked] == [0.0, 1.0, 2.0]
    diary = Diary(every=0.25)
    run(one_link(2.5).build(), star(4, 1.0), diary, control=Control(period=1.0))
    assert [at for at, _ in diary.asked] == [0.0, 1.0, 2.0]


def test_a_decision_takes_effect_exactly_its_delay_later():
    # Until 0.5 both share in the first class: 0.25 B each. Then flow 1 has the link: 0.5 + 1.75 = 2.25.
    policy = GlobalTable(rank={0: 1, 1: 0})
    outcome = run(one_link(2.0, 2.0).build(), star(4, 1.0), policy, control=Control(delay=0.5))
    close(outcome.flow_finish, 4.0, 2.25)


def test_delayed_decisions_take_effect_one_after_the_other():
    # Decided at 0 and 0.25, in effect at 1 and 1.25. Until 1.25 both are in the first class (alone, flow 0's
    # rank is the first): flow 0 alone until 0.25, then half each for 1 s. Then flow 1 goes with its 0.5 B.
    policy = GlobalTable(rank={0: 1, 1: 0})
    outcome = run(
        one_link(2.0, 1.0, at=(0.0, 0.25)).build(), star(4, 1.0), policy, control=Control(delay=1.0)
    )
    close(outcome.flow_finish, 3.0, 1.75)


def test_a_new_flow_rides_with_its_coflow_until_a_decision_covers_it():
    # Coflow 0 has class 0. Its second flow, released at 1, keeps it although the decision comes at 10.
    case = Case(2)
    job = case.job()
    first, second = case.coflow((0, 1, 1.0), (0, 1, 1.0), job=job)
    case.builder.depend(second, first)
    case.coflow((0, 1, 1.0))
    policy = GlobalTable(rank={0: 0, 1: 0, 2: 1})
    outcome = run(case.build(), star(2, 1.0), policy, control=Control(period=10.0))
    close(outcome.flow_finish, 1.0, 2.0, 3.0)


def test_a_flow_that_has_ended_keeps_the_class_it_had():
    # All flows end before the first decision takes effect, in the first class, where every coflow starts.
    policy = GlobalTable(rank={0: 3, 1: 2})
    outcome = run(one_link(1.0, 1.0).build(), star(4, 1.0), policy, queues=8, control=Control(delay=5.0))
    assert outcome.flow_class.tolist() == [0, 0]


def test_a_local_policy_pays_no_control_cost():
    table = Table(rank={0: 1, 1: 0})
    outcome = run(one_link(1.0, 1.0).build(), star(4, 1.0), table, control=Control(delay=5.0, period=9.0))
    close(outcome.flow_finish, 2.0, 1.0)


def test_a_coflow_that_runs_dry_makes_way_although_it_has_not_ended():
    # Coflow 0's second flow waits for coflow 1's flow, and that for a port that coflow 0 was given.
    case = Case(2)
    first, second = case.coflow((0, 1, 1.0), (0, 1, 1.0))
    (other,) = case.coflow((0, 1, 2.0))
    case.builder.depend(second, first, other)
    for policy in (Fifo(), Sebf()):
        close(run(case.build(), star(2, 1.0), policy).flow_finish, 1.0, 4.0, 3.0)


def test_fifo_goes_by_arrival_also_when_a_coflow_comes_back():
    # Coflow 0 runs dry at 1, and coflows 1 and 2 move up. Its second flow, at 3, goes first again.
    case = Case(2)
    job = case.job()
    first, second = case.coflow((0, 1, 1.0), (0, 1, 1.0), job=job)
    pause = case.task(2.0, job)
    case.builder.depend(pause, first)
    case.builder.depend(second, pause)
    case.coflow((0, 1, 3.0))
    case.coflow((0, 1, 1.0))
    close(run(case.build(), star(2, 1.0), Fifo()).flow_finish, 1.0, 4.0, 5.0, 6.0)


def test_a_policy_that_starves_all_is_named():
    with pytest.raises(PolicyError, match=r"policy table: at 1 s it leaves all of 1 unfinished flows"):
        run(one_link(1.0, 1.0).build(), star(4, 1.0), Table(rate={1: 0.0}))
