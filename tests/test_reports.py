"""What a coordinator knows: reports that come late, or never; the ideal; the same seed, the same losses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from result_cases import star
from sim_cases import ALL_EVENTS, PER_FLOW, Case, GlobalTable, random_workload, run

from netsched.errors import PolicyError
from netsched.model import Control, Event, Plan, View, Workload
from netsched.policies.aalo import Aalo
from netsched.policies.fair import Fair
from netsched.policies.fifo import Fifo
from netsched.policies.sebf import Sebf
from netsched.reports import Reports, generator, reports_for
from netsched.scenario import load
from netsched.simulate import simulate


@dataclass(frozen=True)
class Diary(Fifo):
    """Asks to be asked every 0.5 s and keeps (time, bytes per active flow, bytes per coflow)."""

    seen: list[tuple[float, dict[int, float], dict[int, float]]] = field(default_factory=list)

    name: ClassVar[str] = "diary"
    events: ClassVar[Event] = ALL_EVENTS

    def __call__(self, view: View) -> Plan:
        flows, coflows = view.flows, view.coflows
        self.seen.append(
            (
                view.now,
                dict(zip(flows.id.tolist(), flows.sent.tolist(), strict=True)),
                dict(zip(coflows.id.tolist(), coflows.sent.tolist(), strict=True)),
            )
        )
        return replace(super().__call__(view), review_in=0.5)


def diary(workload: Workload, control: Control, seed: int = 0) -> dict[float, tuple[dict, dict]]:
    """What was seen at each time, on a switch with ports of 1 B/s."""
    spy = Diary()
    run(workload, star(4, 1.0), spy, control=control, seed=seed)
    return {round(now, 9): (flows, coflows) for now, flows, coflows in spy.seen}


def one_flow(size: float = 4.0) -> Workload:
    case = Case(4)
    case.coflow((0, 1, size))
    return case.build()


# ------------------------------------------------------------------ late


def test_without_reports_the_view_is_what_is():
    for now, (flows, coflows) in diary(one_flow(), Control()).items():
        assert flows == {0: pytest.approx(now)} and coflows == {0: pytest.approx(now)}


def test_a_report_holds_until_the_next_one():
    # 1 B/s, reports at 0, 1, 2 s that arrive at once, decisions every 0.5 s.
    seen = diary(one_flow(), Control(report_period=1.0))
    assert {now: flows[0] for now, (flows, _) in seen.items()} == pytest.approx(
        {0.0: 0.0, 0.5: 0.0, 1.0: 1.0, 1.5: 1.0, 2.0: 2.0, 2.5: 2.0, 3.0: 3.0, 3.5: 3.0}
    )


def test_a_report_takes_its_time():
    # Made at 0, 1, 2, 3 s, each is there 0.7 s later: what is known is 0.7 to 1.7 s old.
    seen = diary(one_flow(), Control(report_period=1.0, report_delay=0.7))
    assert {now: flows[0] for now, (flows, _) in seen.items()} == pytest.approx(
        {0.0: 0.0, 0.5: 0.0, 1.0: 0.0, 1.5: 0.0, 2.0: 1.0, 2.5: 1.0, 3.0: 2.0, 3.5: 2.0}
    )


def test_several_reports_can_be_under_way():
    seen = diary(one_flow(), Control(report_period=0.5, report_delay=1.5))
    assert {now: flows[0] for now, (flows, _) in seen.items()} == pytest.approx(
        {0.0: 0.0, 0.5: 0.0, 1.0: 0.0, 1.5: 0.0, 2.0: 0.5, 2.5: 1.0, 3.0: 1.5, 3.5: 2.0}
    )


def test_what_has_ended_is_known_at_once():
    # Flow 0 has 1 B and ends at 1 s; flow 1 of the same coflow, over other ports, has 4 B and never reports
    # within the run. The coflow's bytes are 1 from 1 s on.
    case = Case(4)
    case.coflow((0, 1, 1.0), (2, 3, 4.0))
    seen = diary(case.build(), Control(report_period=10.0))
    assert {now: coflows[0] for now, (_, coflows) in seen.items()} == {
        now: (1.0 if now >= 1.0 else 0.0) for now in seen
    }
    assert max(seen) == 3.5


def test_a_flow_released_between_two_reports_has_sent_nothing_until_the_next():
    case = Case(4)
    case.coflow((0, 1, 2.0), at=0.25)
    seen = diary(case.build(), Control(report_period=1.0))
    assert {now: flows[0] for now, (flows, _) in seen.items()} == pytest.approx(
        {0.25: 0.0, 0.75: 0.0, 1.25: 0.75, 1.75: 0.75}
    )


def test_bytes_under_way_are_known_from_reports_too():
    # 1 B over a path of 2 x 1 s: sent at 1 s, there at 3 s. From the report of 1 s on the coflow has sent it;
    # another flow keeps the coflow in view.
    fabric = replace(star(4, 1.0), delay=np.full(8, 1.0))
    case = Case(4)
    case.coflow((0, 1, 1.0), (2, 3, 4.0))
    spy = Diary()
    run(case.build(), fabric, spy, control=Control(report_period=1.0, report_delay=0.5))
    known = {now: coflows[0] for now, _, coflows in spy.seen if coflows}
    assert known[1.0] == 0.0
    assert known[2.0] == pytest.approx(2.0)  # 1 B each, as of 1 s
    assert known[3.0] == pytest.approx(1.0 + 2.0)  # ended, and 2 B as of 2 s


def test_policies_that_do_not_look_at_bytes_are_not_concerned():
    for seed in range(4):
        workload = random_workload(np.random.default_rng(seed), 4)
        plain = run(workload, star(4, 1.0), Fifo())
        late = run(workload, star(4, 1.0), Fifo(), control=Control(report_period=0.13, report_delay=0.4))
        np.testing.assert_allclose(late.flow_finish, plain.flow_finish, rtol=1e-12)
        assert late.decisions == plain.decisions


def test_stale_reports_cost_aalo_time():
    # Limit 2 B on one link. A: 5 B. B: 1 B from 2.5 s on. Aalo looks at 2 s, when A has 2 B, and puts it into
    # the second queue: B goes first and takes 1 s. If the report of 2 s comes at 3 s, A is thought at 2.5 s
    # to have 1 B and to need another second for the limit: by arrival it goes before B until 3.5 s.
    case = Case(4)
    case.coflow((0, 1, 5.0))
    case.coflow((0, 1, 1.0), at=2.5)
    policy = Aalo(queues=2, first=2.0, sync=0.5)
    plain = run(case.build(), star(4, 1.0), policy)
    late = run(case.build(), star(4, 1.0), policy, control=Control(report_period=1.0, report_delay=1.0))
    assert plain.flow_finish.tolist() == pytest.approx([6.0, 3.5])
    assert late.flow_finish.tolist() == pytest.approx([6.0, 4.5])


# ------------------------------------------------------------------ lost


def test_a_lost_report_leaves_the_older_one():
    control = Control(report_period=1.0, report_loss=0.5)
    rng = np.random.default_rng(7)
    # One draw for each sending host, in order: the only sender is host 0.
    lost = [bool(rng.random(1)[0] < 0.5) for _ in range(12)]
    seen = diary(one_flow(10.0), control, seed=7)
    assert any(lost) and not all(lost)
    for now, (flows, _) in seen.items():
        made = [k for k in range(int(now) + 1) if not lost[k]]
        assert flows[0] == pytest.approx(float(made[-1]) if made else 0.0)


def test_a_loss_is_one_hosts_whole_report():
    case = Case(4)
    case.coflow((0, 1, 5.0), (0, 2, 5.0))
    case.coflow((3, 1, 5.0))
    rng = np.random.default_rng(3)
    lost = [(rng.random(4) < 0.5).tolist() for _ in range(12)]
    spy = Diary()
    run(case.build(), star(4, 1.0), spy, control=Control(report_period=1.0, report_loss=0.5), seed=3)
    for now, flows, _ in spy.seen:
        for mine, other in ((0, 1), (1, 0)):
            if mine in flows and other in flows:
                # Both of host 0 are known as of one time, and share its port.
                assert (flows[mine] > 0) == (flows[other] > 0)
        last = max((k for k in range(int(now + 1e-9) + 1) if not lost[k][0]), default=None)
        if 0 in flows:
            assert (flows[0] > 0) == (last is not None and last > 0)


def test_the_same_seed_loses_the_same_reports():
    workload = random_workload(np.random.default_rng(1), 4)
    control = Control(report_period=0.1, report_delay=0.05, report_loss=0.6)
    policy = Aalo(queues=5, first=0.25, factor=2.0, sync=0.1)

    def finish(seed: int) -> bytes:
        return run(workload, star(4, 1.0), policy, control=control, seed=seed).flow_finish.tobytes()

    assert finish(1) == finish(1)
    assert len({finish(seed) for seed in range(8)}) > 1


def test_reports_that_nobody_made_are_drawn_all_the_same():
    # 1000 s apart: which report after the gap is lost depends on its number, not on how the gap was spent.
    control = Control(report_period=1.0, report_loss=0.5)
    one, two = (
        Reports(control, np.zeros(1, np.int64), 1, np.zeros(1), np.random.default_rng(5)) for _ in "ab"
    )

    def sent(amount: float):
        return lambda: (np.zeros(1, np.int64), np.array([amount]))

    for second in range(1001):
        one.make(float(second), sent(float(second)))
    two.make(1000.0, sent(1000.0))
    assert one.number == two.number == 1001
    assert (one.at(1000.0)[0] == 1000.0) == (two.at(1000.0)[0] == 1000.0)
    assert one.rng.random() == two.rng.random()


def test_only_reports_under_way_are_kept_however_rarely_they_are_read():
    made = Reports(
        Control(report_period=1.0, report_delay=2.5), np.zeros(1, np.int64), 1, np.zeros(1), generator(1)
    )
    for second in range(100):
        made.make(float(second), lambda: (np.zeros(1, np.int64), np.ones(1)))
        assert len(made.under_way) <= 4


def test_losses_need_a_generator():
    with pytest.raises(ValueError, match="needs a random generator"):
        simulate(
            one_flow(),
            star(4, 1.0),
            Fifo(),
            queues=None,
            transport=PER_FLOW,
            control=Control(report_period=1.0, report_loss=0.1),
        )


def test_local_policies_and_ideal_coordinators_keep_no_reports():
    control = Control(report_period=1.0, report_loss=0.1)
    assert reports_for(Fair(), control, one_flow(), generator(1)) is None
    assert reports_for(Sebf(), Control(delay=1.0, period=1.0), one_flow(), generator(1)) is None
    assert reports_for(Sebf(), control, one_flow(), generator(1)) is not None


# ------------------------------------------------------------------ around it


def test_reports_alone_keep_no_run_alive():
    # A cap of 0 forever: the error that it is without reports, and no endless run.
    for control in (Control(), Control(report_period=0.1)):
        with pytest.raises(PolicyError, match="leaves all of 1 unfinished flows without a rate"):
            run(one_flow(), star(4, 1.0), GlobalTable(rate={0: 0.0}), control=control)
    # A decision that comes at the time of a report may end the standstill.
    outcome = run(one_flow(), star(4, 1.0), Reluctant(), control=Control(report_period=0.5))
    assert outcome.flow_finish.tolist() == [6.0]
    # A task that is still to end is something to wait for.
    case = Case(4)
    job = case.job()
    case.coflow((0, 1, 1.0), job=job)
    case.task(5.0, job)
    outcome = run(case.build(), star(4, 1.0), Fifo(), control=Control(report_period=0.1))
    assert outcome.simulated_s == 5.0


@dataclass(frozen=True)
class Reluctant(GlobalTable):
    """Lets nobody send before 2 s, and then all."""

    name: ClassVar[str] = "reluctant"

    def __call__(self, view: View) -> Plan:
        begun = view.now >= 2.0
        rate = np.full(len(view.flows), np.inf if begun else 0.0)
        return replace(super().__call__(view), rate=rate, review_in=np.inf if begun else 2.0 - view.now)


SCENARIO = """\
name: t
fabric: {{kind: single_switch, hosts: 4, rate: 1Gbit/s}}
workload: {{kind: incast, senders: [h2, h3], receiver: h1, size: 1MB}}
policies: [fifo]
control: {control}
"""


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("{}", Control()),
        ("{delay: 5ms, period: 10ms}", Control(0.005, 0.01)),
        # Without a period one report is made when the last has come.
        ("{report_delay: 10ms, report_loss: 0.01}", Control(0, 0, 0.01, 0.01, 0.01)),
        ("{report_period: 20ms, report_delay: 10ms}", Control(0, 0, 0.02, 0.01, 0)),
        ("{report_period: 20ms, report_loss: 0.5}", Control(0, 0, 0.02, 0, 0.5)),
    ],
)
def test_a_scenario_says_it(tmp_path, text, right):
    path = tmp_path / "t.yaml"
    path.write_text(SCENARIO.format(control=text))
    assert load(path).control == right
