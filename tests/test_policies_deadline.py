"""Varys with deadlines: what is admitted, what that reserves, and that promises are kept.

Ports carry 1 B/s, so that bytes are seconds. `slack` is 10 %.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_cases import star
from sim_cases import PER_FLOW, Case, run

from netsched.control import decide
from netsched.errors import ScenarioError
from netsched.fabric import Fabric
from netsched.fabrics import build
from netsched.metrics import coflows as coflow_table
from netsched.model import BEST_EFFORT, PLAN_COLUMNS, Control, Plan, Spec, View, Workload
from netsched.policies import make
from netsched.policies.fair import Fair
from netsched.policies.sebf import Sebf
from netsched.policies.varys_deadline import VarysDeadline
from netsched.testing import check_policy


@dataclass(frozen=True)
class Watched(VarysDeadline):
    """Keeps what it was shown and what it said."""

    seen: list[tuple[View, Plan]] = field(default_factory=list)

    name: ClassVar[str] = "watched"

    def __call__(self, view: View) -> Plan:
        plan = super().__call__(view)
        self.seen.append((view, plan))
        return plan


def finishes(case: Case, *, queues: int | None = None, policy: VarysDeadline | None = None) -> list[float]:
    """Seconds at which each flow ends on a switch of six ports."""
    return run(case.build(), star(6, 1.0), policy or VarysDeadline(), queues=queues).flow_finish.tolist()


# ------------------------------------------------------------------ by hand


@pytest.mark.parametrize("queues", [None, 8, 2])
def test_an_admitted_coflow_takes_what_its_deadline_needs_and_no_more(queues):
    # 2 B within 4 s reserve 1/2 B/s, until 4 s. The other half goes to 10 B without a deadline: 2 B by 4 s,
    # the other 8 at full rate until 12 s.
    case = Case(6)
    case.coflow((0, 1, 2.0), deadline=4.0)
    case.coflow((0, 1, 10.0))
    assert finishes(case, queues=queues) == pytest.approx([4.0, 12.0], rel=1e-12)


def test_what_nobody_else_wants_an_admitted_coflow_takes_where_classes_have_no_limit():
    case = Case(6)
    case.coflow((0, 1, 2.0), deadline=4.0)
    assert finishes(case) == [2.0]
    # Hardware classes pace it: it ends at its deadline, even alone.
    assert finishes(case, queues=8) == pytest.approx([4.0])


@pytest.mark.parametrize("queues", [None, 8])
def test_who_needs_more_than_its_deadline_less_the_slack_is_refused(queues):
    # 2 B take 2 s. With 10 % more that fits into 2.25 s, not into 2.15 s. 1 B without a deadline goes before
    # what was refused (the smaller bottleneck first), and takes 1 - 2/2.25 = 1/9 B/s beside what was
    # admitted: 0.25 B by 2.25 s, the other 0.75 B by 3 s.
    for deadline, right in ((2.25, [2.25, 3.0]), (2.15, [3.0, 1.0])):
        case = Case(6)
        case.coflow((0, 1, 2.0), deadline=deadline)
        case.coflow((0, 1, 1.0))
        assert finishes(case, queues=queues) == pytest.approx(right, rel=1e-12)


def test_without_deadlines_it_is_sebf():
    rng = np.random.default_rng(3)
    case = Case(6)
    for at in np.cumsum(rng.exponential(1.0, 30)).tolist():
        ends = rng.integers(0, 6, (3, 2)).tolist()
        case.coflow(*((a, b, float(rng.lognormal())) for a, b in ends), at=at)
    for queues in (None, 8, 3, 1):
        mine, right = (
            run(case.build(True), star(6, 1.0), p, queues=queues) for p in (VarysDeadline(), Sebf())
        )
        if queues in (None, 1):
            np.testing.assert_array_equal(mine.flow_finish, right.flow_finish)
        else:
            # One class less: the first is for admitted coflows.
            fewer = run(case.build(True), star(6, 1.0), Sebf(), queues=queues - 1)
            np.testing.assert_array_equal(mine.flow_finish, fewer.flow_finish)


@pytest.mark.parametrize("queues", [None, 8])
def test_newcomers_are_weighed_on_what_is_not_reserved(queues):
    # 2 B within 4 s leave 1/2 B/s. On that 1 B takes 2 s, which with the slack fits into 2.3 s, not into
    # 2.1 s, though alone it would be done in 1 s. 100 B without a deadline take all that is left over.
    for deadline, admitted in ((2.3, True), (2.1, False)):
        case = Case(6)
        case.coflow((0, 1, 2.0), deadline=4.0)
        case.coflow((0, 1, 1.0), deadline=deadline)
        case.coflow((0, 1, 100.0))
        ends = finishes(case, queues=queues)
        assert ends[0] == pytest.approx(4.0, rel=1e-12)
        # Refused, it goes before the 100 B, by the smaller bottleneck: at 1/2 B/s it takes 2 s after all.
        assert ends[1] == pytest.approx(2.3 if admitted else 2.0, rel=1e-12)
        assert ends[2] == pytest.approx(103.0)


@pytest.mark.parametrize("queues", [None, 8])
def test_a_refused_coflow_stays_refused_and_an_admitted_one_admitted(queues):
    # 5 B within 5.1 s are refused at 0 s, 2 B within 4 s come at 1 s and are admitted. Nothing is weighed
    # anew when others come and end.
    case = Case(6)
    case.coflow((0, 1, 5.0), deadline=5.1)
    case.coflow((0, 2, 2.0), at=1.0, deadline=4.0)
    case.coflow((0, 3, 1.0), at=1.5)
    case.coflow((0, 4, 0.1), at=6.0)
    spy = Watched()
    run(case.build(), star(6, 1.0), spy, queues=queues)
    mark = BEST_EFFORT if queues is None else 0
    for view, plan in spy.seen:
        promised = plan.reserve if queues is None else np.where(np.isfinite(plan.rate), plan.rate, 0.0)
        for coflow, expected in ((0, False), (1, True)):
            rows = view.coflows.id[view.flows.coflow] == coflow
            if rows.any():
                assert (plan.rank[rows] == mark).all() == expected
                if expected:
                    left = 5.0 - view.now
                    assert promised[rows] == pytest.approx(view.flows.remaining[rows] / left)


def test_all_flows_of_an_admitted_coflow_reserve_or_none():
    # 2 B into port 1 and 1 B into port 2 from port 0, within 5 s: 0.4 and 0.2 B/s. Then port 3 sends 2 B into
    # port 1 (0.6 B/s free: 3.34 s), and 1 B into port 4, within 3.5 s: with the slack that is not enough.
    case = Case(6)
    case.coflow((0, 1, 2.0), (0, 2, 1.0), deadline=5.0)
    case.coflow((3, 1, 2.0), (3, 4, 1.0), deadline=3.5)
    spy = Watched()
    run(case.build(), star(6, 1.0), spy)
    _, plan = spy.seen[0]
    assert plan.reserve[:2] == pytest.approx([0.4, 0.2])
    assert (plan.rank == BEST_EFFORT).tolist() == [True, True, False, False]


def test_with_one_class_nobody_is_admitted():
    case = Case(6)
    case.coflow((0, 1, 2.0), deadline=2.5)
    case.coflow((0, 1, 2.0))
    assert finishes(case, queues=1) == pytest.approx([4.0, 4.0])


def test_a_coflow_with_flows_to_come_is_not_admitted():
    case = Case(6)
    first, second = case.coflow((0, 1, 1.0), (0, 1, 1.0), deadline=10.0)
    case.builder.depend(second, first)
    case.coflow((0, 1, 0.5))
    spy = Watched()
    run(case.build(), star(6, 1.0), spy)
    assert all((plan.rank != BEST_EFFORT).all() for _, plan in spy.seen)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"slack": -0.1}, "slack is -0.1, must be 0 or more"),
        ({"slack": float("inf")}, "slack is inf, must be 0 or more"),
        ({"path_delay": 5}, "5 is not a time"),
        ({"control_delay": "-1ms"}, "must be 0 or more"),
    ],
)
def test_parameters_without_sense_are_refused(params, message):
    with pytest.raises(ScenarioError, match=rf"policies\.varys-deadline.*{message}"):
        make(Spec("varys-deadline", params))


# ------------------------------------------------------------------ promises


FABRICS: tuple[Fabric, ...] = (
    star(6, 1.0),
    build(
        Spec(
            "leaf_spine",
            {
                "leaves": 3,
                "spines": 2,
                "hosts_per_leaf": 2,
                "host_rate": "8bit/s",
                "uplink_rate": "8bit/s",
                "delay": "20ms",
            },
        )
    )[1],
)


def crowd(seed: int) -> Workload:
    """Forty coflows at random times, three quarters of them with deadlines, some of those too short."""
    rng = np.random.default_rng(seed)
    case = Case(6)
    for at in np.cumsum(rng.exponential(0.8, 40)).tolist():
        ends = rng.integers(0, 6, (int(rng.integers(1, 5)), 2)).tolist()
        flows = [(a, b, float(rng.lognormal(-0.5, 1.0))) for a, b in ends if a != b]
        due = float(rng.uniform(0.8, 6.0)) * max((size for *_, size in flows), default=1.0)
        if flows:
            case.coflow(*flows, at=at, deadline=due if rng.random() < 0.75 else np.inf)
    return case.build()


def on_time(workload: Workload, fabric: Fabric, spy: Watched, queues: int | None, control: Control) -> tuple:
    """Coflows that the last plan about them admits, and whether each of those was on time."""
    outcome = run(workload, fabric, spy, queues=queues, transport=PER_FLOW, control=control)
    table = coflow_table(workload, outcome)
    mark = BEST_EFFORT if queues is None else 0
    last: dict[int, bool] = {}
    for view, plan in spy.seen:
        finite = np.isfinite(view.coflows.deadline)[view.flows.coflow]
        admitted = (plan.rank == mark) & finite
        for coflow, yes in zip(view.coflows.id[view.flows.coflow].tolist(), admitted, strict=True):
            last[coflow] = bool(yes)
    who = np.array([c for c, yes in last.items() if yes], np.int64)
    return who, table["cct"][who] <= table["deadline"][who] * (1 + 1e-9)


@pytest.mark.parametrize("queues", [None, 8, 3])
@pytest.mark.parametrize("fabric", FABRICS, ids=["switch", "leaf-spine"])
def test_every_promise_is_kept(fabric, queues):
    total = refused = 0
    for seed in range(12):
        workload = crowd(seed)
        # The longest path has four links of 20 ms.
        spy = Watched(path_delay=0.08 if fabric.delay.any() else 0.0)
        who, good = on_time(workload, fabric, spy, queues, Control())
        assert good.all(), (seed, who[~good])
        total += len(who)
        refused += int(np.isfinite(workload.coflows.deadline).sum()) - len(who)
    assert total > 100 and refused > 30


@pytest.mark.parametrize(
    "control", [Control(delay=0.15), Control(delay=0.2, period=0.3)], ids=["delay", "both"]
)
def test_every_promise_is_kept_when_decisions_take_time(control):
    total = 0
    for seed in range(12):
        spy = Watched(control_delay=control.delay)
        who, good = on_time(crowd(seed), FABRICS[0], spy, None, control)
        assert good.all(), (seed, who[~good])
        total += len(who)
    assert total > 60


def test_a_promise_that_forgets_the_delay_can_be_broken():
    # That the parameters above matter: 2 B within 2.25 s, in effect 0.2 s late behind 100 B.
    case = Case(6)
    case.coflow((0, 1, 100.0))
    case.coflow((0, 1, 2.0), at=1.0, deadline=2.25)
    for policy, late in ((VarysDeadline(), True), (VarysDeadline(slack=0.0, control_delay=0.2), False)):
        outcome = run(case.build(), star(6, 1.0), policy, control=Control(delay=0.2))
        assert (outcome.flow_finish[1] - 1.0 > 2.25 * (1 + 1e-9)) == late


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([None, 8]))
def test_promises_fit_on_every_link(seed, queues):
    spy = Watched()
    run(crowd(seed), star(6, 1.0), spy, queues=queues)
    for view, plan in spy.seen:
        promised = plan.reserve if queues is None else np.where(np.isfinite(plan.rate), plan.rate, 0.0)
        booked = np.bincount(view.flows.links, np.repeat(promised, np.diff(view.flows.indptr)), 12)
        assert (booked <= 1 + 1e-9).all()


@pytest.mark.parametrize("queues", [None, 8])
def test_its_plan_is_a_function_of_the_view(queues):
    # Deadlines included, which the checker's own workloads have not; the columns of a view cannot be written.
    spy = Watched()
    run(crowd(1), star(6, 1.0), spy, queues=queues)
    for view, plan in reversed(spy.seen):
        again = VarysDeadline()(view)
        for column in PLAN_COLUMNS:
            np.testing.assert_array_equal(getattr(again, column), getattr(plan, column))


def test_asked_before_the_run_it_says_something_sane():
    # As the emulator does, to open connections: nothing has come, so that arrivals are no numbers.
    case = Case(6)
    case.coflow((0, 1, 2.0), deadline=4.0)
    case.coflow((0, 1, 1.0))
    spy = Watched()
    run(case.build(), star(6, 1.0), spy)
    view = spy.seen[0][0]
    for queues in (None, 8):
        unborn = replace(
            view, queues=queues, coflows=replace(view.coflows, arrival=np.full(len(view.coflows), np.nan))
        )
        plan = decide(VarysDeadline(), unborn, queues)
        assert (plan.rank != (BEST_EFFORT if queues is None else 0)).all()
        assert np.isinf(plan.rate).all() and np.isfinite(plan.reserve).all()


def test_it_keeps_the_contract_of_policies():
    check_policy(VarysDeadline(slack=0.0, path_delay=0.01, control_delay=0.01), star(6, 1e8))


def test_more_deadlines_are_met_than_when_all_share():
    # What the mode is for (Varys, SIGCOMM 2014: up to twice as many as per-flow fairness).
    met = {"varys-deadline": 0, "fair": 0}
    for seed in range(12):
        workload = crowd(seed)
        for policy in (VarysDeadline(), Fair()):
            table = coflow_table(workload, run(workload, star(6, 1.0), policy))
            on_time = table["cct"] <= table["deadline"] * (1 + 1e-9)
            met[policy.name] += int(on_time[np.isfinite(table["deadline"])].sum())
    assert met["varys-deadline"] > 1.2 * met["fair"], met
