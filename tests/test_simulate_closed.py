"""The simulator against answers worked out by hand. Rates are 1 byte/s unless said, so bytes are seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from result_cases import star
from sim_cases import PER_PAIR, Case, GlobalTable, Table, chain, run

from netsched import ledger
from netsched.errors import PolicyError
from netsched.model import BEST_EFFORT, Control, Event, Plan, View
from netsched.policies.aalo import Aalo
from netsched.policies.fair import Fair
from netsched.policies.fifo import Fifo
from netsched.policies.sebf import Sebf
from netsched.policies.tensorexpress import TensorExpress


def close(actual: np.ndarray, *right: float) -> None:
    np.testing.assert_allclose(actual, right, rtol=1e-12)


def one_link(*sizes: float, at: tuple[float, ...] = ()) -> Case:
    """Coflows of one flow each from host 0 to host 1, in jobs of their own."""
    case = Case(4)
    for i, size in enumerate(sizes):
        case.coflow((0, 1, size), at=at[i] if at else 0.0)
    return case


# ------------------------------------------------------------------ sharing


def test_a_flow_alone_takes_its_size_over_the_narrowest_link():
    workload = Case(3)
    workload.coflow((0, 2, 6.0))
    close(run(workload.build(), chain(2, [2.0, 3.0]), Fair()).flow_finish, 3.0)


def test_parking_lot_gives_every_flow_half():
    case = Case(3)
    case.coflow((0, 2, 1.0), (0, 1, 1.0), (1, 2, 1.0))
    close(run(case.build(), chain(2, 1.0), Fair()).flow_finish, 2.0, 2.0, 2.0)


def test_max_min_gives_the_rest_of_the_wide_link_to_the_short_flow():
    # Link 0 (1 B/s) is shared by two flows at 1/2; of link 1 (2 B/s) 3/2 are left for the third.
    case = Case(3)
    case.coflow((0, 2, 1.0), (0, 1, 1.0), (1, 2, 3.0))
    close(run(case.build(), chain(2, [1.0, 2.0]), Fair()).flow_finish, 2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("policy", "right"),
    [(Fair(), (3.0, 2.0)), (Fifo(), (2.0, 3.0)), (Sebf(), (3.0, 1.0)), (TensorExpress(), (3.0, 2.0))],
    ids=lambda value: getattr(value, "name", None),
)
@pytest.mark.parametrize("queues", [None, 8])
def test_two_coflows_of_2_and_1_on_one_link(policy, right, queues):
    close(run(one_link(2.0, 1.0).build(), star(4, 1.0), policy, queues=queues).flow_finish, *right)


def test_sebf_with_more_coflows_than_classes_lets_neighbours_share():
    # 1, 2 and 4 B at once and two classes: 2 takes class 0 (the middle of two), 1 shares it, 4 is behind.
    outcome = run(one_link(2.0, 1.0, 4.0).build(), star(4, 1.0), Sebf(), queues=2)
    assert outcome.flow_class.tolist() == [0, 0, 1]
    close(outcome.flow_finish, 3.0, 2.0, 7.0)


def test_the_flows_of_a_blocked_coflow_that_can_go_on_do():
    # A: 1 B over 0 -> 1 until 1. B: 1 B over 0 -> 3 finds port 0 used up, its 1 B over 2 -> 3 goes at once,
    # so C: 4 B over 2 -> 5 waits. At 1 both ports are free: B's other flow until 2, C until 5.
    case = Case(6)
    for flows in ([(0, 1, 1.0)], [(0, 3, 1.0), (2, 3, 1.0)], [(2, 5, 4.0)]):
        case.coflow(*flows)
    outcome = run(case.build(), star(6, 1.0), Sebf())
    close(outcome.flow_finish, 1.0, 2.0, 1.0, 5.0)


@pytest.mark.parametrize(
    ("queues", "right"),
    [
        # One class each, in order of arrival.
        (None, (4.0, 5.0, 6.0, 7.0)),
        (8, (4.0, 5.0, 6.0, 7.0)),
        # All but the first share class 1: 3 B from 4 s on.
        (2, (4.0, 7.0, 7.0, 7.0)),
        # One class for all is fair: each has sent 1 B at 4 s, and the first has 3 B to go.
        (1, (7.0, 4.0, 4.0, 4.0)),
    ],
)
def test_fifo_with_few_classes_lets_the_late_share_the_last_one(queues, right):
    outcome = run(one_link(4.0, 1.0, 1.0, 1.0).build(), star(4, 1.0), Fifo(), queues=queues)
    close(outcome.flow_finish, *right)


def test_under_fifo_with_few_classes_nobody_moves_up_and_an_empty_network_begins_anew():
    # The first ends at 1, the second has class 1 until 3 although class 0 is free. The third comes at 2,
    # behind it: class 2. All has drained at 4; the fourth comes at 10.
    case = one_link(1.0, 2.0, 1.0, 1.0, at=(0.0, 0.0, 2.0, 10.0))
    outcome = run(case.build(), star(4, 1.0), Fifo(), queues=8)
    close(outcome.flow_finish, 1.0, 3.0, 4.0, 11.0)
    assert outcome.flow_class.tolist() == [0, 1, 2, 0]


def test_sebf_ends_all_flows_of_a_coflow_together_and_gives_the_rest_away():
    # A: 4 B over port 0, 2 B over port 2: MADD gives 1 and 1/2 B/s. B: 3 B from host 2 gets the other 1/2.
    # A ends at 4, when B has 1 B left.
    case = Case(6)
    case.coflow((0, 1, 4.0), (2, 3, 2.0))
    case.coflow((2, 4, 3.0), (5, 4, 3.0))
    finish = run(case.build(), star(6, 1.0), Sebf()).flow_finish
    close(finish[:2], 4.0, 4.0)
    # Into host 4, B's own bottleneck (6 s), the flow from 5 gets what the flow from 2 leaves of it.
    close(finish[2:], 6.0, 6.0)


def test_what_an_ended_flow_had_reserved_goes_to_others_without_a_new_decision():
    # A: 6 B over 0 -> 1 (Gamma 6), 3 B over 2 -> 3 (reserve 1/2). B: 8 B over 5 -> 6 (Gamma 8), 1 B over
    # 2 -> 4 (reserve 1/8). The 3/8 that are left of port 2 go to A, the first in order: 7/8, until 24/7 s. No
    # coflow has ended then and nobody decides, but B's flow, with 4/7 B to go, has all of port 2 from then.
    case = Case(7)
    case.coflow((0, 1, 6.0), (2, 3, 3.0))
    case.coflow((2, 4, 1.0), (5, 6, 8.0))
    outcome = run(case.build(), star(7, 1.0), Sebf())
    close(outcome.flow_finish, 6.0, 24 / 7, 4.0, 8.0)
    assert outcome.decisions == 2  # at the arrivals and at A's end; after B's there is nothing to decide


def test_reserves_come_first_and_the_rest_goes_by_rank():
    # Of 1 B/s flow 0 (rank 1) has 1/4 reserved, flow 1 (rank 0) has nothing: 3/4. Flow 1's 3 B end at 4, when
    # flow 0 has sent 1 B; its last 2 B go alone until 6.
    policy = GlobalTable(reserve={0: 0.25}, rank={0: 1, 1: 0})
    close(run(one_link(3.0, 3.0).build(), star(4, 1.0), policy).flow_finish, 6.0, 4.0)


def test_a_cap_bounds_reserve_and_share_together():
    # Flow 0: 1/4 reserved and a cap of 1/2; flow 1 of the same rank has the other 1/2. A reserve above the
    # cap is cut to it.
    for reserve in (0.25, 0.9):
        policy = GlobalTable(reserve={0: reserve}, rate={0: 0.5}, rank={0: 0, 1: 0})
        close(run(one_link(2.0, 1.0).build(), star(4, 1.0), policy).flow_finish, 4.0, 2.0)


def test_weights_divide_a_link_in_proportion():
    close(run(one_link(3.0, 1.0).build(), star(4, 1.0), Table(weight={0: 3.0, 1: 1.0})).flow_finish, 4.0, 4.0)


def test_weights_meet_on_two_links_as_weighted_max_min():
    # Link 0: weights 1 and 3: level 1/4, so the long flow has 1/4 and leaves 3/4 of link 1.
    case = Case(3)
    case.coflow((0, 2, 1.0), (0, 1, 3.0), (1, 2, 3.0))
    close(run(case.build(), chain(2, 1.0), Table(weight={1: 3.0})).flow_finish, 4.0, 4.0, 4.0)


def test_a_cap_leaves_the_rest_to_others_and_holds_alone():
    close(run(one_link(1.0, 3.0).build(), star(4, 1.0), Table(rate={0: 0.25})).flow_finish, 4.0, 4.0)
    close(run(one_link(1.0).build(), star(4, 1.0), Table(rate={0: 0.25})).flow_finish, 4.0)


def test_a_lower_class_gets_exactly_what_the_higher_leaves():
    table = Table(rank={0: 0, 1: 1}, rate={0: 0.25})
    close(run(one_link(1.0, 3.0).build(), star(4, 1.0), table).flow_finish, 4.0, 4.0)
    close(run(one_link(1.0, 3.0).build(), star(4, 1.0), Table(rank={0: 1, 1: 0})).flow_finish, 4.0, 3.0)


def test_ranks_beyond_the_classes_share_the_last_one():
    workload, ranks = one_link(1.0, 1.0, 1.0).build(), {0: 0, 1: 1, 2: 2}
    for queues, right in ((None, (1.0, 2.0, 3.0)), (2, (1.0, 3.0, 3.0)), (1, (3.0, 3.0, 3.0))):
        close(run(workload, star(4, 1.0), Diary(rank=ranks), queues=queues).flow_finish, *right)
    # A coordinator that is asked when a coflow ends gives the free class to the next rank.
    close(run(workload, star(4, 1.0), GlobalTable(rank=ranks), queues=2).flow_finish, 1.0, 2.0, 3.0)


@pytest.mark.parametrize("queues", [None, 8])
def test_a_local_rank_is_the_same_class_whenever_its_flow_comes(queues):
    # Flow 1 (rank 0) comes at 1 into the middle of flow 0 (rank 5): seen alone, both have the least rank.
    case = one_link(2.0, 2.0, at=(0.0, 1.0))
    outcome = run(case.build(), star(4, 1.0), Table(rank={0: 5, 1: 0}), queues=queues)
    close(outcome.flow_finish, 4.0, 3.0)
    assert outcome.flow_class.tolist() == [5, 0]


def test_identical_flows_end_at_the_identical_time():
    case = Case(9)
    case.coflow(*((i, 8, 0.1) for i in range(8)))
    outcome = run(case.build(), star(9, 1.0), Fair())
    close(outcome.flow_finish, *[0.8] * 8)
    assert len(set(outcome.flow_finish.tolist())) == 1


def test_a_byte_beside_a_terabyte():
    # It comes at 500 s and gets half of 1 GB/s: 2 ns. A time of 500 s has a grain of 6e-14 s.
    outcome = run(one_link(1e12, 1.0, at=(0.0, 500.0)).build(), star(4, 1e9), Fair())
    assert outcome.flow_finish[1] - 500.0 == pytest.approx(2e-9, abs=1e-12)
    assert outcome.flow_finish[0] == pytest.approx(1000.0 + 1e-9, abs=1e-11)
    np.testing.assert_array_equal(outcome.link_bytes[[0, 3]], 1e12 + 1.0)


# ------------------------------------------------------------------ connections and queues


def test_one_connection_serves_its_flows_in_order_and_counts_once():
    # Job 1 has two flows of 1 B on a pair, job 2 one of 2 B: two connections, so 1/2 B/s each.
    case = Case(2)
    case.coflow((0, 1, 1.0), (0, 1, 1.0))
    case.coflow((0, 1, 2.0))
    workload = case.build()
    close(run(workload, star(2, 1.0), Fair(), transport=PER_PAIR).flow_finish, 2.0, 4.0, 4.0)
    # Three connections: all have 1 B at 3 s, and the third flow its second one alone.
    close(run(workload, star(2, 1.0), Fair()).flow_finish, 3.0, 3.0, 4.0)


def test_classes_of_one_pair_are_connections_of_their_own():
    case = Case(2)
    case.coflow((0, 1, 1.0), (0, 1, 1.0))
    table = Table(rank={0: 1, 1: 0})
    close(run(case.build(), star(2, 1.0), table, transport=PER_PAIR).flow_finish, 2.0, 1.0)


def test_a_queue_may_use_the_caps_of_all_its_flows():
    case = Case(2)
    case.coflow((0, 1, 1.0), (0, 1, 1.0))
    table = Table(rate={0: 0.25, 1: 0.25})
    # 1/2 B/s while both wait, 1/4 B/s for the last one alone.
    close(run(case.build(), star(2, 1.0), table, transport=PER_PAIR).flow_finish, 2.0, 6.0)
    # Behind a flow with a cap of 0 a queue does not stall: it spends its caps in order.
    table = Table(rate={0: 0.0, 1: 0.5})
    close(run(case.build(), star(2, 1.0), table, transport=PER_PAIR).flow_finish, 2.0, 4.0)


def test_a_queue_has_the_weight_of_its_first_flow():
    # Until 4/3 s weights 3 and 1: job 1 sends its first byte, job 2 1/3 B. Then both have 1/2 B/s for 2 s.
    case = Case(2)
    case.coflow((0, 1, 1.0), (0, 1, 1.0))
    case.coflow((0, 1, 4 / 3))
    table = Table(weight={0: 3.0})
    outcome = run(case.build(), star(2, 1.0), table, transport=PER_PAIR)
    close(outcome.flow_finish, 4 / 3, 10 / 3, 10 / 3)


@dataclass(frozen=True)
class Demote:
    """Class 0 for all until the review at 1 s; from then on class 1 for flow 0."""

    name: ClassVar[str] = "demote"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        n, late = len(view.flows), view.now >= 1.0
        rank = np.where((view.flows.id == 0) & late, 1, 0)
        nothing = np.full(n, -np.inf), np.full(n, -1)
        return Plan(
            rank, np.zeros(n), np.full(n, np.inf), np.ones(n), *nothing, review_in=math.inf if late else 1.0
        )


def test_a_flow_that_changes_class_in_the_middle_lets_the_next_in_its_queue_go_first():
    # Flow 0 sends 1 of its 2 B, flow 1 then all of its 2 B in class 0, and flow 0 its second byte.
    case = Case(2)
    case.coflow((0, 1, 2.0), (0, 1, 2.0))
    outcome = run(case.build(), star(2, 1.0), Demote(), transport=PER_PAIR)
    close(outcome.flow_finish, 4.0, 3.0)
    assert outcome.flow_class.tolist() == [1, 0]


# ------------------------------------------------------------------ the DAG and its clocks


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


# ------------------------------------------------------------------ gates, reviews, coordinators


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


@dataclass(frozen=True)
class Diary:
    """Remembers when it was asked and why; wants to be asked again every `every` seconds."""

    every: float = math.inf
    rank: dict[int, int] = field(default_factory=dict)
    asked: list[tuple[float, Event]] = field(default_factory=list)

    name: ClassVar[str] = "diary"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        self.asked.append((view.now, view.events))
        n = len(view.flows)
        rank = np.array([self.rank.get(f, BEST_EFFORT) for f in view.flows.id.tolist()], np.int64)
        return Plan(
            rank, np.zeros(n), np.full(n, np.inf), np.ones(n), np.full(n, -np.inf), np.full(n, -1), self.every
        )


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


def test_the_ledger_speaks_of_events_by_the_bits_of_the_model():
    named = ("FLOW_RELEASED", "FLOW_FINISHED", "COFLOW_RELEASED", "COFLOW_FINISHED", "REVIEW")
    assert [getattr(ledger, name) for name in named] == [Event[name].value for name in named]
