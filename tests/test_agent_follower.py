"""The agent's side of its conversation with a coordinator, by a clock of the test's."""

from __future__ import annotations

import math
import socket
import time

import pytest
from agent_flows import followed

from hostagent.follower import Follower
from hostagent.server import Connection, Peer
from hostagent.uplink import MAX_QUEUED, Line, News
from netsched.coordinator.wire import PlanPart, Report, Share, Welcome, plan_bytes, read_report, welcome_bytes


class Wire:
    """Stands for the thread that talks to the coordinator: what it brings is put in by the test."""

    def __init__(self) -> None:
        self.brought: list[News] = []
        self.redialled = 0

    def news(self):
        while self.brought:
            yield self.brought.pop(0)

    def redial(self) -> None:
        self.redialled += 1


class Talk:
    """A follower with a clock and a coordinator that the test plays."""

    def __init__(self, monkeypatch, job: Connection) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.follower = Follower(followed(), lambda *_: {})
        self.wire = self.follower._uplink = Wire()
        self.line = Line(b"hello")
        self.job = job

    def hear(self, message: bytes = b"", down: str = "") -> None:
        self.wire.brought.append(News(self.line, message, down))
        self.follower.turn()

    def word(self, **fields) -> dict:
        answer = self.follower.flow(
            self.job, {"flow": "f", "coflow": "grad", "size": 9, "peer": "h2"} | fields, ()
        )
        self.follower.turn()
        return answer

    def sent(self) -> list[Report]:
        packets = []
        while self.line._queue.qsize():
            packets.append(self.line._queue.get())
        return [read_report(packet) for packet in packets if packet != b"hello"]


@pytest.fixture
def talk(monkeypatch):
    with socket.socket(socket.AF_UNIX) as sock:
        yield Talk(monkeypatch, Connection(sock, Peer(1, 0, 0), 1, "resnet50"))


def test_what_a_plan_hangs_on_is_reported_at_once_and_progress_every_20_ms(talk):
    talk.word()
    assert talk.sent() == [] and talk.follower.due == math.inf, "nobody listens"
    talk.hear(welcome_bytes(Welcome("sebf", 1.0)))
    (report,) = talk.sent()
    assert [f.coflow for f in report.flows] == ["grad"] and talk.follower.due == 101.0
    talk.now += 0.005
    talk.word(sent=4)
    assert talk.sent() == [] and talk.follower.due == pytest.approx(100.02)
    talk.now = 100.021
    talk.follower.turn()
    assert [r.sent for r in talk.sent()] == [((1, 4.0),)]
    talk.now = 101.03
    talk.follower.turn()
    assert talk.sent() == [Report()], "a sign of life after a beat without a word"
    talk.word(state="done")
    assert talk.sent() == [Report(done=(1,))]


def test_a_silent_coordinator_is_dialled_again_and_a_slow_one_is_not_buried(talk):
    talk.hear(welcome_bytes(Welcome("sebf", 1.0)))
    for n in range(200):
        talk.word(flow=f"f{n}")
    told = talk.sent()
    assert len(told) == MAX_QUEUED - 1, "with the greeting the line was full"
    assert talk.follower.due > talk.now, "and the loop does not spin meanwhile"
    talk.follower.turn()
    (rest,) = talk.sent()
    assert {flow.id for report in (*told, rest) for flow in report.flows} == set(range(1, 201))
    talk.now += 3.9
    talk.follower.turn()
    assert talk.wire.redialled == 0
    talk.now += 0.2
    talk.follower.turn()
    assert talk.wire.redialled == 1


def test_that_the_last_plan_lapsed_is_logged_once(talk, caplog):
    talk.hear(welcome_bytes(Welcome("sebf", 1.0)))
    talk.word()
    talk.hear(plan_bytes(PlanPart(1, {1: Share(3, None, None, True)}, {})))
    assert talk.word()["source"] == "plan"
    talk.hear(down="unavailable: gone")
    assert talk.word()["source"] == "kept" and talk.follower.due == 130.0 and not caplog.records
    talk.now = 130.0
    talk.follower.turn()
    talk.follower.turn()
    assert [record.getMessage() for record in caplog.records] == ["last plan lapsed, local rules hold"]
    assert talk.word()["source"] == "rule" and talk.follower.due == math.inf
    assert talk.follower.status()["why"] == "unavailable: gone"


def test_a_plan_for_flows_that_have_ended_leaves_nothing_behind(talk):
    talk.hear(welcome_bytes(Welcome("sebf", 1.0)))
    for n in range(1, 400):
        talk.word(flow=f"f{n}", coflow=f"c{n}")
        talk.hear(plan_bytes(PlanPart(n, {n: Share(3, None, None, True)}, {})))
        talk.word(flow=f"f{n}", coflow=f"c{n}", state="done")
        talk.hear(plan_bytes(PlanPart(n, {n: Share(2, None, None, True)}, {n: "late"})))
        talk.sent()
    guide = talk.follower.guide
    assert not guide._held and not guide._refused and len(guide._class_of) <= 65
