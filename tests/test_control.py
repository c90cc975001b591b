"""The gate between engines and policies: what it hides, what it refuses, how it fits ranks, when it asks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_cases import star
from sim_cases import Case, GlobalTable, Odd, Table, run

from netsched.control import Cadence, classes, decide, fixed_classes, interim_class, unmarked_class
from netsched.errors import PolicyError
from netsched.ledger import PARCEL_SENT
from netsched.model import BEST_EFFORT, Control, Event, Plan, View
from netsched.policies.base import plan_of
from netsched.policies.fair import Fair

ranks = st.lists(st.one_of(st.integers(0, 12), st.just(BEST_EFFORT)), max_size=20)


def column(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("rank", "queues", "right"),
    [
        # Ranks that fit are kept, gaps and all: class 7 is shared with what is not marked.
        ([0, 3, 7, BEST_EFFORT], 8, [0, 3, 7, 7]),
        # 9 does not fit: the seven first distinct ranks get a class each, the rest the last.
        ([9, 0, 5], 8, [2, 0, 1]),
        ([10, 11, 12, 13, 10], 3, [0, 1, 2, 2, 0]),
        ([5, BEST_EFFORT], 2, [0, 1]),
        ([4, 2, BEST_EFFORT], 1, [0, 0, 0]),
        # Without a limit: closed up, and unmarked traffic stays last.
        ([40, 10, BEST_EFFORT, 10], None, [1, 0, BEST_EFFORT, 0]),
        ([], 8, []),
        ([], None, []),
    ],
)
def test_ranks_become_classes(rank, queues, right):
    assert classes(column(rank), queues).tolist() == right


@given(ranks, st.one_of(st.none(), st.integers(1, 8)))
def test_classes_never_turn_an_order_around(rank, queues):
    for fit in (classes, fixed_classes):
        found = fit(column(rank), queues).tolist()
        for i, a in enumerate(rank):
            for j, b in enumerate(rank):
                assert not (a < b and found[i] > found[j])
                assert not (a == b and found[i] != found[j])
        assert all(queues is None or 0 <= c < queues for c in found)
        assert all(c == unmarked_class(queues) for r, c in zip(rank, found, strict=True) if r == BEST_EFFORT)


@given(ranks, st.one_of(st.none(), st.integers(1, 8)))
def test_a_local_rank_is_the_same_class_in_any_company(rank, queues):
    together = fixed_classes(column(rank), queues).tolist()
    assert together == [int(fixed_classes(column([r]), queues)[0]) for r in rank]


def test_what_no_decision_covers_rides_with_its_coflow_or_at_the_top():
    # Coflows never decided on (-1), in the first class, in class 3, and in the last of an unlimited number.
    given_class = column([-1, 0, 3, BEST_EFFORT])
    assert interim_class(given_class).tolist() == [0, 0, 3, BEST_EFFORT]


@pytest.fixture(scope="module")
def shown() -> View:
    """A view of three flows in two coflows."""
    seen: list[View] = []

    @dataclass(frozen=True)
    class Spy(Odd):
        def __call__(self, view: View) -> Plan:
            seen.append(view)
            return super().__call__(view)

    case = Case(4)
    case.coflow((0, 1, 1.0), (0, 2, 2.0))
    case.coflow((3, 1, 4.0))
    run(case.build(), star(4, 1.0), Spy())
    return seen[0]


@dataclass(frozen=True)
class Answer(Table):
    """A fair plan with some columns replaced."""

    name: ClassVar[str] = "answer"
    change: tuple[tuple[str, Any], ...] = ()

    def __call__(self, view: View) -> Plan:
        return replace(super().__call__(view), **dict(self.change))


INF = math.inf


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rank", np.zeros(2, np.int64), r"plan\.rank must be an array of 3 values, is \(2,\)"),
        ("rate", 5.0, r"plan\.rate must be an array of 3 values, is float"),
        ("rank", np.zeros(3), r"plan\.rank is float64, must be int64"),
        ("path", np.zeros(3), r"plan\.path is float64, must be int64"),
        ("rank", column([0, -1, 2]), r"plan\.rank has -1, must be 0 to 2147483647"),
        ("rank", column([0, 1, BEST_EFFORT + 1]), r"plan\.rank has 2147483648, must be 0 to 2147483647"),
        ("rate", np.array([1.0, math.nan, 1.0]), r"plan\.rate has NaN"),
        ("reserve", np.array([1.0, -2.0, 1.0]), r"plan\.reserve must be finite and 0 B/s or more"),
        ("reserve", np.array([1.0, INF, 1.0]), r"plan\.reserve must be finite and 0 B/s or more"),
        ("reserve", np.array([0.0, 1.0, 0.0]), r"a local policy sees one flow at a time .* local = False"),
        ("rate", np.array([1.0, -2.0, 1.0]), r"plan\.rate has -2\.0 B/s, must be 0 or more"),
        ("weight", np.array([1.0, 0.0, 1.0]), r"plan\.weight must be positive and finite"),
        ("weight", np.array([1.0, INF, 1.0]), r"plan\.weight must be positive and finite"),
        ("not_before", np.array([0.0, math.nan, 0.0]), r"plan\.not_before has NaN"),
        ("review_in", 0.0, r"plan\.review_in is 0\.0 s, must be more than 0"),
        ("review_in", math.nan, r"plan\.review_in is nan s, must be more than 0"),
    ],
)
def test_a_broken_plan_is_refused_by_name(shown, name, value, message):
    with pytest.raises(PolicyError, match=f"^policy answer: {message}$"):
        decide(Answer(change=((name, value),)), shown, 8)


def test_reserves_that_do_not_fit_on_a_link_together_are_refused():
    # Flows 0 and 1 leave host 0 over link 0, whose 1 B/s carries 0.5 + 0.5 B/s and no more.
    case = Case(3)
    case.coflow((0, 1, 1.0), (0, 2, 1.0))
    run(case.build(), star(3, 1.0), GlobalTable(reserve={0: 0.5, 1: 0.5}))
    message = r"^policy global-table: plan\.reserve books 1\.1 B/s of link \d+, which carries 1 B/s$"
    with pytest.raises(PolicyError, match=message):
        run(case.build(), star(3, 1.0), GlobalTable(reserve={0: 0.5, 1: 0.6}))


def test_sizes_are_hidden_from_a_policy_without_the_right_to_see_them(shown):
    seen: list[View] = []

    class Curious(Fair):
        def __call__(self, view: View) -> Plan:
            seen.append(view)
            return super().__call__(view)

    decide(Curious(), shown, 8)
    (view,) = seen
    for hidden in (view.flows.size, view.flows.remaining, view.coflows.size):
        assert np.isnan(hidden).all()
        assert not hidden.flags.writeable
    np.testing.assert_array_equal(view.flows.sent, shown.flows.sent)
    assert np.isfinite(shown.flows.size).all()


def test_a_view_cannot_be_written(shown):
    with pytest.raises(ValueError, match="read-only"):
        shown.flows.remaining[0] = 0.0
    with pytest.raises(ValueError, match="read-only"):
        shown.capacity[0] = 0.0


def test_a_local_policy_that_wants_a_review_is_refused():
    case = Case(2)
    case.coflow((0, 1, 1.0))
    with pytest.raises(PolicyError, match=r"policy answer: a local policy is asked once .* review in 2\.0 s"):
        run(case.build(), star(2, 1.0), Answer(change=(("review_in", 2.0),)))


# ------------------------------------------------------------------ when to decide


def plan(review_in: float = INF) -> Plan:
    none = np.zeros(0)
    return Plan(column([]), none, none, none, none, column([]), review_in)


def test_only_events_of_concern_call_for_a_decision():
    cadence = Cadence(Event.COFLOW_FINISHED, Control())
    assert cadence.due() == INF
    cadence.note(Event.FLOW_RELEASED | Event.COFLOW_RELEASED)
    assert cadence.due() == INF
    cadence.note(Event.FLOW_FINISHED | Event.COFLOW_FINISHED)
    assert cadence.due() <= 0.0
    assert cadence.since(3.0) == Event.COFLOW_FINISHED
    cadence.decided(3.0, plan())
    assert cadence.due() == INF
    assert cadence.since(3.0) == Event.NONE


def test_the_period_holds_back_events_and_reviews_alike():
    cadence = Cadence(Event.FLOW_RELEASED, Control(period=2.0))
    cadence.note(Event.FLOW_RELEASED)
    cadence.decided(10.0, plan(review_in=0.5))
    assert cadence.due() == 12.0
    cadence.note(Event.FLOW_RELEASED)
    assert cadence.due() == 12.0
    assert cadence.since(12.0) == Event.FLOW_RELEASED | Event.REVIEW
    cadence.decided(12.0, plan(review_in=5.0))
    assert cadence.due() == 17.0
    cadence.note(Event.FLOW_RELEASED)
    assert cadence.due() == 14.0
    assert cadence.since(14.0) == Event.FLOW_RELEASED


def test_the_bit_for_parcels_is_no_event_of_policies():
    assert not any(event.value & PARCEL_SENT for event in Event)


@dataclass(frozen=True)
class Sated:
    """Who has sent more than 0.25 B goes last; the others go one after another."""

    name: ClassVar[str] = "sated"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.FLOW_FINISHED

    def __call__(self, view: View) -> Plan:
        return plan_of(view, np.where(view.flows.sent > 0.25, 9, view.flows.id))


def test_a_flow_that_ends_as_a_decision_falls_due_is_not_decided_about():
    """0.1 + 0.2 B end 5e-17 s after a decision is due: put last with 1e-17 B left they would take 1 s."""
    case = Case(4)
    case.coflow((0, 1, 0.1 + 0.2))
    case.coflow((0, 1, 1.0))
    case.coflow((2, 3, 0.1))
    finish = run(case.build(), star(4, 1.0), Sated(), control=Control(period=0.3)).flow_finish
    assert finish == pytest.approx([0.3, 1.3, 0.1])
