"""How flows share links, against answers worked out by hand.

Rates are 1 byte/s unless said, so bytes are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from result_cases import star
from sim_cases import PER_PAIR, Case, Diary, GlobalTable, Table, chain, close, one_link, run

from netsched.model import Event, Plan, View
from netsched.policies.fair import Fair
from netsched.policies.fifo import Fifo
from netsched.policies.sebf import Sebf
from netsched.policies.tensorexpress import TensorExpress


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
