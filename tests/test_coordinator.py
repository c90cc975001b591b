"""The coordinator without a network: messages, what is known, views, and when which plan is in effect."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_cases import PER_FLOW, Case

from netsched.control import NO_PROFILES, decide
from netsched.coordinator import config, wire
from netsched.coordinator.planner import Network, Planner, Unwelcome
from netsched.coordinator.registry import ReportError
from netsched.coordinator.wire import (
    CoflowState,
    FlowState,
    Hello,
    PlanPart,
    Report,
    Share,
    Welcome,
    WireError,
)
from netsched.errors import PolicyError, ScenarioError
from netsched.fabrics import build
from netsched.model import Control, Event, Plan, Spec, View
from netsched.policies import POLICIES, make
from netsched.policies.base import plan_of
from netsched.policies.sebf import Sebf
from netsched.simulate import simulate

QUEUES = 8
FABRIC = build(Spec("single_switch", {"hosts": 4, "rate": "8Mbit/s"}))[1]  # 1 MB/s a port
HOSTS = ("h1", "h2", "h3", "h4")
NETWORK = Network(
    FABRIC, QUEUES, frozenset(HOSTS), {name: n for n, name in enumerate(HOSTS)} | {"10.0.0.2": 1}
)


def planner(policy=None, control: Control = Control(), stale: float = 10.0) -> Planner:  # noqa: B008
    return Planner(Sebf() if policy is None else policy, NETWORK, control, stale)


def flow(number: int, coflow: str, size: float, peer: str = "h2", **changes) -> FlowState:
    made = FlowState(number, 1000, f"job {coflow}", coflow, peer, size, 0.0, 0, 1, 0.0, True)
    return replace(made, **changes)


def join(what: Planner, name: str, now: float = 0.0, *, proven: bool = True):
    return what.join(Hello(name, QUEUES, {}), now, proven=proven)


def told(what: Planner, host, now: float) -> dict[int, Share]:
    """All that an agent is told at `now`."""
    found: dict[int, Share] = {}
    while what.has_news(host):
        found |= what.tell(host, now).flows
    return found


# ------------------------------------------------------------------ messages

names = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), min_size=1, max_size=20
).filter(str.isprintable)
keys = st.tuples(st.integers(0, 2**32 - 1), names, names)
amounts = st.floats(1, 1e18)
flows = st.builds(
    lambda i, key, peer, size, share, need, age, on: FlowState(
        i, *key, peer, size, size * share, need, need + 1, age, on
    ),
    *(st.integers(0, 2**53), keys, names, amounts, st.floats(0, 1), st.integers(0, 1000), st.floats(0, 1e6)),
    st.booleans(),
)
coflows = st.builds(
    lambda key, weight, deadline, size, n: CoflowState(*key, weight, deadline, size, n),
    *(keys, st.floats(1e-3, 1e3), st.one_of(st.just(math.inf), st.floats(0, 1e6)), st.floats(0, 1e18)),
    st.integers(0, 10**6),
)
numbers = st.lists(st.integers(0, 2**53), max_size=5).map(tuple)
reports = st.builds(
    Report,
    *(st.lists(each, max_size=3).map(tuple) for each in (flows, coflows)),
    st.lists(st.tuples(st.integers(0, 2**53), st.floats(0, 1e18)), max_size=3).map(tuple),
    *(numbers, numbers, st.lists(keys, max_size=3).map(tuple)),
)
shares = st.builds(
    Share,
    *(st.integers(0, 7), st.one_of(st.none(), st.floats(0, 1e6)), st.one_of(st.none(), st.floats(0, 1e12))),
    st.booleans(),
)


@given(reports)
def test_a_report_is_read_as_it_was_written(report):
    assert wire.read_report(wire.report_bytes(report)) == report


@given(st.integers(0, 2**53), st.dictionaries(st.integers(0, 2**53), shares, max_size=3))
def test_a_plan_is_read_as_it_was_written(revision, shared):
    plan = PlanPart(revision, shared, {7: "peer 'x' is no host"})
    assert wire.read_answer(wire.plan_bytes(plan)) == plan


def test_the_first_two_messages_are_read_as_they_were_written():
    hello = Hello("h1", 8, {"bulk": 6})
    assert wire.read_hello(wire.hello_bytes(hello)) == hello
    assert wire.read_answer(wire.welcome_bytes(Welcome("sebf", 2.5))) == Welcome("sebf", 2.5)


@pytest.mark.parametrize(
    ("packet", "says"),
    [
        (b"", "not one JSON object"),
        (b"[1]", "a JSON list"),
        (b'{"v": 2, "report": {}}', "v = 2"),
        (b'{"v": true, "report": {}}', "v = True"),
        (b'{"v": 1, "hello": {}}', "'report'"),
        (b'{"v": 1, "report": {"done": [1.5]}}', "report.done = 1.5"),
        (b'{"v": 1, "report": {"sent": [[1, NaN]]}}', "sent.bytes = nan"),
        (b'{"v": 1, "report": {"flows": [' + b"[" * 900 + b"]" * 900 + b"]}}", "mappings are expected"),
        (b'{"v": 1, "report": {"done": [' + b"9" * 5000 + b"]}}", "not one JSON object"),
        (b'{"v": 1, "report": {"done": ' + json.dumps([1] * 1001).encode() + b"}}", "at most 1000 rows"),
        (b" " * (wire.MAX_MESSAGE + 1), "a message has at most"),
    ],
)
def test_what_is_no_report_is_refused_with_what_would_be_right(packet, says):
    with pytest.raises(WireError, match=says.replace("[", r"\[")):
        wire.read_report(packet)


def damaged(packet: bytes, rng: random.Random) -> bytes:
    """The message with a value replaced by one that does not belong there, or with bytes overwritten."""
    if rng.random() < 0.3:
        at = rng.randrange(len(packet))
        return packet[:at] + rng.randbytes(rng.randint(0, 4)) + packet[at + rng.randint(0, 4) :]
    message = json.loads(packet)
    spots = []

    def walk(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(message)
    node, key = rng.choice(spots)
    odd = [None, True, -1, 0, 2**70, -1e300, 1.5, "", "x" * 200, "\x00", [], {}, [[]], "\ud800", 10**18, 1e18]
    node[key] = rng.choice(odd)
    return json.dumps(message).encode()


def test_an_agent_reads_a_plan_or_says_what_is_wrong_with_it():
    rng = random.Random(5)
    plan = PlanPart(3, {7: Share(2, 0.5, 1e6, True), 8: Share(0, None, None, False)}, {9: "no host"})
    read = {True: 0, False: 0}
    for _ in range(3000):
        packet = wire.plan_bytes(plan) if rng.random() < 0.8 else wire.welcome_bytes(Welcome("sebf", 1.0))
        try:
            found = wire.read_answer(damaged(packet, rng))
        except WireError:
            read[False] += 1
            continue
        read[True] += 1
        if isinstance(found, PlanPart):
            assert all(
                0 <= s.cls <= 7 and (s.hold or 0) >= 0 and (s.cap or 0) >= 0 for s in found.flows.values()
            )
    assert min(read.values()) > 300


def test_whatever_an_agent_sends_the_coordinator_goes_on_and_other_agents_keep_their_flows():
    rng = random.Random(4)
    what = planner(control=Control(delay=0.01, period=0.05))
    good = join(what, "h3")
    what.hear(good, Report(flows=(flow(1, "steady", 5e6, "h1"),)), 0.0)
    bad = join(what, "h1")
    now, refused = 0.0, 0
    for step in range(4000):
        now += 0.001
        report = Report(
            flows=tuple(
                flow(rng.randrange(30), f"c{rng.randrange(4)}", 1e6, f"h{rng.randint(1, 5)}")
                for _ in range(3)
            ),
            coflows=(CoflowState(1000, "job c1", f"c{rng.randrange(4)}", 1.0, math.inf, 1e6, 3),),
            sent=((rng.randrange(30), rng.uniform(0, 2e6)), (1, 5e6)),
            done=(rng.randrange(30), 1),
            gone=(rng.randrange(30),),
        )
        try:
            what.hear(bad, wire.read_report(damaged(wire.report_bytes(report), rng)), now)
        except (WireError, ReportError):
            refused += 1
            if step % 7 == 0:
                bad = join(what, "h1", now)
        what.hear(good, Report(), now)
        what.turn(now)
        for host in (good, bad):
            for share in told(what, host, now).values():
                assert 0 <= share.cls < QUEUES
    assert refused > 1000
    (kept,) = good.flows.values()
    assert what.registry.table.rows["sent"][kept.slot] == 0 and not kept.over, (
        "another agent's word touched this flow"
    )


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
        for column in vars(getattr(expected, part)):
            np.testing.assert_array_equal(
                getattr(getattr(found, part), column),
                getattr(getattr(expected, part), column),
                f"{part}.{column}",
            )
    np.testing.assert_array_equal(found.capacity, expected.capacity)


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


# ------------------------------------------------------------------ configuration

GOOD = """\
version: 1
listen: 127.0.0.1:9471
fabric: {kind: single_switch, hosts: 2, rate: 10Gbit/s}
hosts:
  h1: {name: node-17, addresses: [10.0.0.17, "fd00::17"]}
policy: {aalo: {first: 1MB}}
control: {period: 10ms, delay: 1ms}
"""


def read(tmp_path, text: str) -> config.Config:
    file = tmp_path / "coordinator.yaml"
    file.write_text(text)
    return config.load(file)


def test_a_configuration_is_read_with_its_units(tmp_path):
    found = read(tmp_path, GOOD)
    assert found.listen == ("127.0.0.1", 9471) and found.tls is None
    assert found.network.names == {"node-17", "h2"}
    assert found.network.ordinal_of == {"node-17": 0, "10.0.0.17": 0, "fd00::17": 0, "h2": 1}
    assert found.network.queues == 8 and found.network.fabric.capacity.tolist() == [1.25e9] * 4
    assert found.policy.first == 1e6 and found.control == Control(0.001, 0.01) and found.stale == 10.0
    tls = GOOD.replace("127.0.0.1", "10.0.0.9") + "tls: {ca: ca.pem, cert: c.pem, key: /k.pem}\n"
    found = read(tmp_path, tls)
    assert found.tls is not None and found.tls.ca == tmp_path / "ca.pem" and str(found.tls.key) == "/k.pem"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("127.0.0.1:9471", "10.0.0.9:9471", r"listen: 10\.0\.0\.9 is not on loopback: without tls only"),
        ("127.0.0.1:9471", "node-1:9471", "is not an address and a port"),
        ("127.0.0.1:9471", "127.0.0.1:0", "is not an address and a port"),
        ("version: 1", "version: 2", "version"),
        ("single_switch", "single_swich", "did you mean 'single_switch'"),
        ("10Gbit/s", "10", "fabric.rate"),
        ("  h1:", "  h9:", "hosts.h9: no such host: the fabric has h1 to h2"),
        ("node-17", "h2", "'h2' is h1 already"),
        ("10.0.0.17", "10.0.0.999", "is not an address"),
        ("{aalo: {first: 1MB}}", "{aalo: {frist: 1MB}}", "policy.aalo.frist: unknown key"),
        ("{aalo: {first: 1MB}}", "sbef", "did you mean 'sebf'"),
        ("{aalo: {first: 1MB}}", "[sebf]", "is no policy"),
        ("{aalo: {first: 1MB}}", "crux", "policy: crux is for sim and mininet only: it goes by what jobs"),
        ("period: 10ms", "period: 10", "control.period"),
        ("control:", "stale: 1ms\ncontrol:", "stale: 1 ms is too short"),
        ("control:", "modus: x\ncontrol:", "modus: unknown key"),
    ],
)
def test_a_wrong_configuration_is_one_line_with_its_place(tmp_path, old, new, says):
    with pytest.raises(ScenarioError, match=says) as error:
        read(tmp_path, GOOD.replace(old, new))
    assert "\n" not in str(error.value) and "coordinator.yaml" in str(error.value)


@pytest.mark.parametrize(
    ("text", "before", "status", "says"),
    [
        (
            GOOD.replace("sebf", "x").replace("aalo", "alo"),
            "",
            2,
            "policy: 'alo' is no policy: did you mean 'aalo'",
        ),
        (GOOD, "sys.modules['grpc'] = None; ", 4, "no module grpc: pip install 'netsched[coordinator]'"),
    ],
)
def test_the_command_says_in_one_line_why_it_does_not_start(tmp_path, text, before, status, says):
    file = tmp_path / "coordinator.yaml"
    file.write_text(text)
    code = f"import sys; {before}from netsched.cli import main; "
    code += f"sys.exit(main(['coordinator', '--config', {str(file)!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and says in line
