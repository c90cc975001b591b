"""The coordinator without a network: what is known, views, and when which plan is in effect."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import numpy as np
import pytest
from coordinator_cases import FABRIC, HOSTS, QUEUES, flow, join, planner, told
from sim_cases import PER_FLOW, Case

from netsched.control import NO_PROFILES, decide
from netsched.coordinator.planner import Unwelcome
from netsched.coordinator.registry import ReportError
from netsched.coordinator.wire import (
    CoflowState,
    Hello,
    PlanPart,
    Report,
    Share,
)
from netsched.errors import PolicyError
from netsched.model import Control, Event, Plan, Spec, View
from netsched.policies import POLICIES, make
from netsched.policies.base import plan_of
from netsched.policies.sebf import Sebf
from netsched.simulate import simulate

# ------------------------------------------------------------------ what a policy sees


@dataclass(frozen=True)
class Recorder:
    """Notes what it is shown; everything goes in class 0."""

    seen: list[View] = field(default_factory=list)
    name: ClassVar[str] = "recorder"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.COFLOW_FINISHED

    def __call__(self, view: View) -> Plan:
        self.seen.append(view)
        return plan_of(view, np.zeros(len(view.flows), np.int64))


def test_a_policy_sees_in_the_coordinator_what_it_sees_in_the_simulator():
    case = Case(4)
    size = {"a": [(0, 1, 3e6), (2, 1, 1e6)], "b": [(0, 3, 2e6)], "c": [(1, 0, 5e5), (2, 0, 5e5), (0, 2, 7e5)]}
    for rows in size.values():
        case.coflow(*rows)
    recorder = Recorder()
    simulate(case.build(), FABRIC, recorder, transport=PER_FLOW, control=Control(), queues=QUEUES)
    expected = recorder.seen[0]

    recorder.seen.clear()
    what = planner(recorder)
    hosts = {name: join(what, name) for name in HOSTS}
    for number, (label, row) in enumerate((label, row) for label, rows in size.items() for row in rows):
        src, dst, amount = row
        what.hear(hosts[HOSTS[src]], Report(flows=(flow(number, label, amount, HOSTS[dst]),)), 0.0)
    what.turn(0.0)
    (found,) = recorder.seen
    assert found.now == expected.now == 0.0 and found.queues == expected.queues
    assert found.events == expected.events
    for part in ("flows", "coflows", "jobs"):
        for column in (each.name for each in fields(getattr(expected, part)) if each.name != "id"):
            np.testing.assert_array_equal(
                getattr(getattr(found, part), column),
                getattr(getattr(expected, part), column),
                f"{part}.{column}",
            )
        # Here numbers count up in the order in which things became known, whatever they are numbers of.
        assert (np.diff(getattr(found, part).id) > 0).all(), part
    np.testing.assert_array_equal(found.capacity, expected.capacity)


@dataclass(frozen=True)
class Counting(Recorder):
    """Counts its decisions in what it keeps."""

    def __call__(self, view: View) -> Plan:
        kept = view.memory[0] if view.memory else np.zeros(1, np.int64)
        return replace(super().__call__(view), memory=(kept + 1,))


def test_what_a_plan_keeps_is_shown_again_and_numbers_stay():
    recorder = Counting()
    what = planner(recorder)
    one, two = join(what, "h1"), join(what, "h3")
    what.hear(one, Report(flows=(flow(1, "a", 8e6), flow(2, "b", 1e6))), 0.0)
    what.turn(0.0)
    what.hear(two, Report(flows=(flow(1, "c", 8e6),)), 1.0)
    what.turn(1.0)
    what.hear(one, Report(done=(1,)), 2.0)
    what.turn(2.0)
    assert [[int(kept[0]) for kept in view.memory] for view in recorder.seen] == [[], [1], [2]]
    first, second, third = recorder.seen
    for part in ("flows", "coflows", "jobs"):
        ids = [getattr(view, part).id.tolist() for view in (first, second, third)]
        assert ids[1][: len(ids[0])] == ids[0] and ids[2] == ids[1][1:], part


def test_the_classes_are_the_policy_s_own_and_a_smaller_coflow_comes_first():
    what = planner()
    one, two = join(what, "h1"), join(what, "h3")
    what.hear(one, Report(flows=(flow(1, "large", 8e6), flow(2, "small", 1e6))), 0.0)
    what.hear(two, Report(flows=(flow(1, "large", 8e6), flow(2, "small", 1e6))), 0.0)
    view = what._camera.take(what.registry, None, 0.0, Event.FLOW_RELEASED, {}).view
    what.turn(0.0)
    cls = decide(Sebf(), view, QUEUES).rank
    # Ports h1 to h4 send 1 MB/s: 2 MB of the small coflow meet at h2, 16 MB of the large one.
    first, second = told(what, one, 0.0), told(what, two, 0.0)
    assert [first[n].cls for n in (1, 2)] == [second[n].cls for n in (1, 2)] == cls[:2].tolist()
    assert first[2].cls < first[1].cls
    assert all(share.decided and share.hold is None and share.cap is None for share in first.values())
    assert not what.has_news(one), "what was told is told once"


def test_ended_and_announced_flows_count_for_their_coflow_and_have_no_row():
    what = planner(Recorder())
    host, other = join(what, "h1"), join(what, "h3")
    announced = flow(3, "a", 5e5, active=False)
    what.hear(host, Report(flows=(flow(1, "a", 2e6), flow(2, "a", 1e6), announced)), 1.0)
    what.hear(other, Report(flows=(flow(1, "a", 4e6, "h4", sent=1e6, age=0.25),)), 1.0)
    what.turn(1.0)
    what.hear(host, Report(done=(2,), sent=((1, 5e5),)), 2.0)
    what.hear(host, Report(flows=(flow(9, "b", 1e6),)), 2.0)
    what.turn(2.0)
    view = what.policy.seen[-1]
    assert view.flows.size.tolist() == [4e6, 2e6, 1e6], "in order of release: 0.75 s, 1 s, 2 s"
    assert view.flows.release.tolist() == [0.75, 1.0, 2.0]
    assert view.flows.remaining.tolist() == [3e6, 1.5e6, 1e6]
    assert view.coflows.size.tolist() == [7.5e6, 1e6]
    # 1 MB by the ended flow, 1 MB and 0.5 MB by the others.
    assert view.coflows.sent.tolist() == [2.5e6, 0.0]
    assert view.coflows.n_flows.tolist() == [4, 1] and view.coflows.n_finished.tolist() == [1, 0]
    assert view.coflows.arrival.tolist() == [0.75, 2.0]


def test_what_was_declared_of_a_coflow_counts_where_it_is_more_than_is_known():
    what = planner(Recorder())
    host, other = join(what, "h1"), join(what, "h3")
    whole = CoflowState(1000, "job a", "a", 4.0, 3.0, 9e6, 12)
    what.hear(host, Report(flows=(flow(1, "a", 2e6),), coflows=(whole,)), 0.0)
    what.hear(other, Report(coflows=(replace(whole, weight=1.0, deadline=math.inf, size=1.0, flows=1),)), 0.0)
    what.turn(0.0)
    seen = what.policy.seen[-1].coflows
    assert (seen.size[0], seen.n_flows[0], seen.weight[0], seen.deadline[0]) == (9e6, 12, 4.0, 3.0)
    what.hear(host, Report(flows=(flow(2, "a", 2e6),), closed=(whole.key,)), 1.0)
    what.turn(1.0)
    seen = what.policy.seen[-1].coflows
    assert (seen.size[0], seen.n_flows[0], seen.weight[0]) == (4e6, 2, 1.0)


def test_jobs_of_one_name_are_two_if_they_are_two_users():
    what = planner(Recorder())
    host = join(what, "h1")
    what.hear(host, Report(flows=(flow(1, "a", 2e6), flow(2, "a", 2e6, uid=1001))), 0.0)
    what.turn(0.0)
    assert len(what.policy.seen[0].coflows) == len(what.policy.seen[0].jobs.id) == 2


# ------------------------------------------------------------------ when


def test_a_decision_takes_effect_after_the_delay_and_the_next_is_made_after_the_period():
    what = planner(control=Control(delay=0.2, period=1.0))
    host = join(what, "h1")
    what.hear(host, Report(flows=(flow(1, "a", 1e6),)), 0.0)
    assert what.turn(0.0) == pytest.approx(0.2)
    # Until then the flow rides in the first class, as in the emulator.
    assert told(what, host, 0.0) == {1: Share(0, None, None, False)}
    what.turn(0.19)
    assert not what.has_news(host)
    what.turn(0.2)
    (share,) = told(what, host, 0.2).values()
    assert share.decided and what.decisions == 1
    what.hear(host, Report(flows=(flow(2, "b", 4e6),)), 0.3)
    assert what.turn(0.3) == pytest.approx(1.0)
    assert told(what, host, 0.3) == {2: Share(0, None, None, False)}
    what.turn(0.99)
    assert what.decisions == 1
    assert what.turn(1.0) == pytest.approx(1.2)
    assert what.decisions == 2
    what.turn(1.2)
    assert told(what, host, 1.2)[2].decided


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_of_the_simulator_plans_for_agents_or_is_refused(name):
    what = planner(make(Spec(name, {})))
    host, other = join(what, "h1"), join(what, "h3")
    what.hear(host, Report(flows=(flow(1, "large", 8e6), flow(2, "small", 1e6))), 0.0)
    what.hear(other, Report(flows=(flow(1, "large", 8e6),)), 0.0)
    try:
        what.turn(0.0)
    except PolicyError as error:
        sockets = "weights, reserves or paths cannot be carried out by TCP sockets"
        assert sockets in str(error) or NO_PROFILES in str(error)
        return
    for agent in (host, other):
        shares = told(what, agent, 0.0)
        assert shares.keys() == agent.flows.keys() and all(share.decided for share in shares.values())
    what.hear(host, Report(sent=((1, 4e6), (2, 1e6))), 1.0)
    what.turn(1.0)
    what.hear(host, Report(done=(2,)), 1.5)
    what.turn(1.5)
    assert what.decisions >= 1


@dataclass(frozen=True)
class Gate:
    """Lets everything start half a second after the view, at 1 kB/s; asks again after two."""

    name: ClassVar[str] = "gate"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        n = len(view.flows)
        plan = plan_of(view, np.full(n, 2), rate=np.full(n, 1e3), review_in=2.0)
        return replace(plan, not_before=np.full(n, 0.5))


def test_gates_reach_the_agent_as_seconds_from_when_it_is_told():
    what = planner(Gate())
    host = join(what, "h1")
    what.hear(host, Report(flows=(flow(1, "a", 1e6),)), 0.1)
    assert what.turn(0.1) == pytest.approx(2.1), "the review that the policy asked for"
    (share,) = told(what, host, 0.2).values()
    assert share == Share(2, pytest.approx(0.3), 1e3, True)
    what.turn(2.1)
    assert what.decisions == 2 and not what.has_news(host), "the same again is not told again"


def test_a_new_flow_rides_with_its_coflow():
    what = planner(Gate(), Control(period=1.0))
    host = join(what, "h1")
    what.hear(host, Report(flows=(flow(1, "a", 1e6),)), 0.0)
    what.turn(0.0)
    told(what, host, 0.0)
    what.hear(host, Report(flows=(flow(2, "a", 1e6), flow(3, "b", 1e6))), 0.1)
    what.turn(0.1)
    assert {n: (s.cls, s.decided) for n, s in told(what, host, 0.1).items()} == {2: (2, False), 3: (0, False)}


def test_a_local_policy_decides_once_per_flow_and_waits_for_no_period():
    what = planner(make(Spec("tensorexpress", {})), Control(delay=5.0, period=5.0))
    host = join(what, "h1")
    rows = tuple(flow(n, "a", 1e6, need=n, need_span=8) for n in range(8))
    what.hear(host, Report(flows=rows), 0.0)
    what.turn(0.0)
    assert {n: s.cls for n, s in told(what, host, 0.0).items()} == {n: n for n in range(8)}
    what.hear(host, Report(flows=(flow(9, "a", 1e6, need=3, need_span=8),), sent=((1, 5e5),)), 0.1)
    what.turn(0.1)
    assert {n: s.cls for n, s in told(what, host, 0.1).items()} == {9: 3}


def test_a_plan_that_agents_cannot_carry_out_is_an_error_and_not_half_done():
    @dataclass(frozen=True)
    class Weighted(Gate):
        def __call__(self, view: View) -> Plan:
            return plan_of(view, np.zeros(len(view.flows), np.int64), weight=np.full(len(view.flows), 2.0))

    what = planner(Weighted())
    what.hear(join(what, "h1"), Report(flows=(flow(1, "a", 1e6),)), 0.0)
    with pytest.raises(PolicyError, match="cannot be carried out by TCP sockets"):
        what.turn(0.0)


# ------------------------------------------------------------------ who


def test_who_is_not_of_the_fabric_or_of_other_queues_is_unwelcome():
    what = planner()
    with pytest.raises(
        Unwelcome, match="host 'h9' is not of this coordinator's fabric: its hosts are h1, h2"
    ):
        join(what, "h9")
    with pytest.raises(Unwelcome, match="queues = 4, but plans are made for 8"):
        what.join(Hello("h1", 4, {}), 0.0, proven=True)


def test_a_second_agent_of_a_host_needs_a_certificate_to_take_the_first_one_s_place():
    what = planner(Recorder())
    first = join(what, "h1")
    what.hear(first, Report(flows=(flow(1, "a", 1e6),)), 0.0)
    with pytest.raises(Unwelcome, match="host h1 has an agent here already"):
        join(what, "h1", proven=False)
    assert what.is_current(first)
    second = join(what, "h1", proven=True)
    assert not what.is_current(first) and what.is_current(second) and not list(what.registry.flows())
    what.part(second)
    assert what.is_current(join(what, "h1", proven=False))


def test_an_agent_s_numbers_mean_its_own_flows_only():
    what = planner(Recorder())
    one, two = join(what, "h1"), join(what, "h3")
    what.hear(one, Report(flows=(flow(7, "a", 1e6),)), 0.0)
    what.hear(two, Report(sent=((7, 9e5),), done=(7,), gone=(7,), closed=((1000, "job a", "a"),)), 0.0)
    what.turn(0.0)
    assert what.policy.seen[-1].flows.remaining.tolist() == [1e6]


def test_a_silent_agent_s_flows_stop_counting_and_come_back_with_it():
    what = planner(Recorder(), stale=3.0)
    one, two = join(what, "h1"), join(what, "h3")
    what.hear(one, Report(flows=(flow(1, "a", 1e6),)), 0.0)
    what.hear(two, Report(flows=(flow(1, "b", 1e6),)), 0.0)
    what.turn(0.0)
    what.part(one)
    what.hear(two, Report(), 2.5)
    assert what.turn(2.5) == pytest.approx(3.0), "a broken connection alone takes nothing away"
    assert len(list(what.registry.flows())) == 2
    what.turn(3.0)
    assert [f.state.coflow for f in what.registry.flows()] == ["b"]
    assert what.policy.seen[-1].events & Event.COFLOW_FINISHED
    assert not what.is_current(one)
    again = join(what, "h1", 4.0, proven=False)
    what.hear(again, Report(flows=(flow(1, "a", 1e6, age=4.0),)), 4.0)
    what.turn(4.0)
    assert what.policy.seen[-1].flows.release.tolist() == [0.0, 0.0]


def test_flows_to_nowhere_are_refused_by_name_and_addresses_are_names():
    what = planner(Recorder())
    host = join(what, "h1")
    rows = (flow(1, "a", 1e6, "10.0.0.2"), flow(2, "a", 1e6, "10.9.9.9"), flow(3, "a", 1e6, "h1"))
    what.hear(host, Report(flows=rows), 0.0)
    what.turn(0.0)
    part = what.tell(host, 0.0)
    assert set(part.flows) == {1} and what.policy.seen[-1].flows.dst.tolist() == [1]
    assert part.refused == {
        2: "peer '10.9.9.9' is no host of the coordinator's fabric",
        3: "peer 'h1' is this host itself",
    }


def test_one_user_has_so_many_coflows_and_the_rest_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("netsched.coordinator.registry.MAX_COFLOWS", 3)
    what = planner()
    hosts = join(what, "h1"), join(what, "h3")
    for at, host in enumerate(hosts):
        rows = [flow(n, f"{at} {n}", 1e6) for n in range(2)]
        what.hear(host, Report(flows=(*rows, flow(9, "0 0", 1e6))), 0.0)
    what.hear(hosts[1], Report(flows=(flow(5, "other", 1e6, uid=1001),)), 0.0)
    what.turn(0.0)
    # The fourth coflow of user 1000 is one too many; more flows of the others are not.
    assert hosts[0].refused == {} and hosts[1].refused == {1: "user 1000 has 3 coflows already"}
    assert set(told(what, hosts[1], 0.0)) == {0, 5, 9}
    what.hear(hosts[0], Report(done=(1,)), 0.1)
    what.hear(hosts[1], Report(flows=(flow(7, "1 7", 1e6),)), 0.1)
    assert 7 in hosts[1].flows, "there is room again"
    what.registry.forget("h1")
    what.registry.forget("h3")
    assert not what.registry._coflows_of


def test_a_refused_flow_that_is_put_right_is_planned():
    what = planner()
    host = join(what, "h1")
    what.hear(host, Report(flows=(flow(1, "a", 1e6, "h9"),)), 0.0)
    what.hear(host, Report(flows=(flow(1, "a", 1e6, "h2"),)), 0.0)
    assert what.tell(host, 0.0) == PlanPart(0, {}, {}), "nothing is in effect for it yet"
    what.turn(0.0)
    assert told(what, host, 0.0)[1].decided


def test_a_flow_keeps_what_it_is():
    what = planner()
    host = join(what, "h1")
    what.hear(host, Report(flows=(flow(1, "a", 1e6),)), 0.0)
    for wrong in (flow(1, "b", 1e6), flow(1, "a", 1e6, "h3"), flow(1, "a", 1e6, active=False)):
        with pytest.raises(ReportError, match="flow 1: a "):
            what.hear(host, Report(flows=(wrong,)), 0.0)


def test_nothing_is_left_of_what_has_ended():
    what = planner(control=Control(delay=0.5))
    host = join(what, "h1")
    for step in range(200):
        now = float(step)
        declared = CoflowState(1000, f"job c{step}", f"c{step}", 1.0, math.inf, 1e6, 1)
        what.hear(host, Report(flows=(flow(step, f"c{step}", 1e6),), coflows=(declared,)), now)
        what.turn(now)
        what.turn(now + 0.5)
        what.tell(host, now + 0.5)
        what.hear(host, Report(done=(step,), closed=(declared.key,)), now + 0.6)
        what.turn(now + 0.6)
    assert not what.registry.known and not len(what.registry.table.live()) and not what._class_of
    assert len(what.registry.table.rows) == 256 and not what._untold["h1"]
    assert not host.ended and not host.declared and not what.registry.fresh
