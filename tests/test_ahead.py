"""A local policy says of all flows at once what it says of each at its release; a view stays as it was.

Both spare work, and neither may show: the same policy is also run so that it cannot be spared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np
import pytest
from sim_cases import ALL_EVENTS, Case, run

from netsched.fabrics import build
from netsched.model import BEST_EFFORT, Event, Plan, Spec, View, Workload
from netsched.policies.base import plan_of

FABRIC = build(Spec("single_switch", {"hosts": 4, "rate": "80bit/s"}))[1]


@dataclass(frozen=True)
class ByNeed:
    """A class by what never changes of a flow. `looks` names a column that it also reads."""

    looks: str = ""
    asked: list[int] = field(default_factory=list, compare=False)

    name: ClassVar[str] = "by-need"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = True
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        if self.looks:
            table, _, column = self.looks.rpartition(".")
            getattr(getattr(view, table) if table else view, column)
        self.asked.append(len(view.flows))
        return plan_of(view, np.where(view.flows.dst % 2 == 0, 1, BEST_EFFORT), weight=1.0 + view.flows.src)


def crossing() -> Workload:
    """Twelve flows in three instants; one is empty, one from a host to itself, one waits for another."""
    case = Case(4)
    first = case.coflow((0, 1, 30.0), (1, 2, 20.0), (2, 3, 10.0), (3, 0, 40.0))
    (last,) = case.coflow((1, 3, 25.0))
    case.builder.depend(last, first[2])
    case.coflow((0, 2, 5.0), (2, 2, 5.0), (3, 1, 0.0), (1, 0, 15.0), at=1.0)
    case.coflow((3, 2, 35.0), (0, 3, 12.0), (2, 1, 8.0), at=2.5)
    return case.build()


CHANGING = (
    *("now", "capacity", "events", "jobs.iterations_done"),
    *("flows.sent", "flows.release", "coflows.sent", "coflows.arrival", "coflows.cls", "coflows.n_finished"),
)


@pytest.mark.parametrize("looks", CHANGING)
def test_a_policy_that_looks_at_the_moment_is_asked_in_it_and_says_the_same(looks: str) -> None:
    ahead, asked = ByNeed(), ByNeed(looks)
    one, other = run(crossing(), FABRIC, ahead), run(crossing(), FABRIC, asked)
    # All but the empty one and the one from a host to itself have to be sent.
    assert ahead.asked == [12]
    assert sum(asked.asked) == 10 and len(asked.asked) == other.decisions > 1
    assert one.decisions == other.decisions
    for column in ("flow_release", "flow_finish", "flow_class", "link_bytes"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))


def test_flows_that_never_had_to_send_stay_unmarked_whatever_was_said_ahead() -> None:
    policy = ByNeed()
    outcome = run(crossing(), FABRIC, policy, queues=8, horizon=2.0)
    sent = np.isfinite(outcome.flow_release)
    sent[[6, 7]] = False  # to itself, and empty
    to_even = crossing().flows.dst % 2 == 0
    assert policy.asked == [12]
    assert outcome.flow_class.tolist() == np.where(sent & to_even, 1, 7).tolist()


@dataclass(frozen=True)
class _Keeper:
    """Keeps every view, and with `at_once` also what its columns say in its moment."""

    at_once: bool
    kept: list[View] = field(default_factory=list, compare=False)
    then: list[dict[str, list[float]]] = field(default_factory=list, compare=False)

    name: ClassVar[str] = "keeper"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = ALL_EVENTS

    def __call__(self, view: View) -> Plan:
        if self.at_once:
            self.then.append(_columns(view))
        self.kept.append(view)
        return plan_of(view, view.flows.coflow, review_in=math.inf)


def _columns(view: View) -> dict[str, list[float]]:
    tables = {"flows": view.flows, "coflows": view.coflows, "jobs": view.jobs}
    return {
        f"{name}.{each.name}": getattr(table, each.name).tolist()
        for name, table in tables.items()
        for each in fields(table)
    }


def test_a_view_says_the_same_whenever_it_is_looked_at() -> None:
    at_once, later = _Keeper(True), _Keeper(False)
    run(crossing(), FABRIC, at_once)
    run(crossing(), FABRIC, later)
    assert len(at_once.then) > 5
    assert [_columns(view) for view in later.kept] == at_once.then


def test_no_column_of_a_view_can_be_written_and_no_other_one_read() -> None:
    keeper = _Keeper(False)
    run(crossing(), FABRIC, keeper)
    view = keeper.kept[0]
    for table in (view.flows, view.coflows, view.jobs):
        assert not any(getattr(table, each.name).flags.writeable for each in fields(table))
    with pytest.raises(AttributeError, match="has no sizes"):
        view.flows.sizes  # type: ignore[attr-defined] # noqa: B018
