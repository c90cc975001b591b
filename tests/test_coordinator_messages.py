"""What agents and coordinator say to each other, and what is no message."""

from __future__ import annotations

import json
import math
import random

import pytest
from coordinator_cases import QUEUES, flow, join, planner, told
from hypothesis import given
from hypothesis import strategies as st

from netsched.coordinator import wire
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
from netsched.model import Control

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
