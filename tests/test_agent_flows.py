"""Flows in the agent: what jobs say of them, whose word counts for their class, and how they are marked."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import socket
import subprocess
import sys
import time

import pytest
from test_hostagent import BASE, ROOT, agent, connection

from hostagent import client
from hostagent.client import AgentError
from hostagent.config import ConfigError, parse
from hostagent.desk import MAX_FLOWS, MAX_USER_FLOWS, Desk
from hostagent.flow import Flow, Guidance
from hostagent.follower import Follower
from hostagent.guide import Guide
from hostagent.protocol import BadRequest
from hostagent.server import Connection, Peer
from hostagent.uplink import MAX_QUEUED, Line, News
from netsched.control import interim_class
from netsched.coordinator.wire import PlanPart, Report, Share, Welcome, plan_bytes, read_report, welcome_bytes
from netsched.marking import dscp_of

RULES = [
    {"job": "resnet*", "coflow": "grad*", "class": "gradients"},
    {"job": "resnet*", "class": 4},
]
FOLLOWING = {"version": 1, "coordinator": {"address": "127.0.0.1:9471", "keep": "30s"}}


def configured(**more):
    return parse(json.dumps({"version": 1, "classes": {"gradients": 1}, "rules": RULES} | more), "agent.yaml")


def desk() -> Desk:
    made = Desk(lambda _: None)
    made.start_over()
    return made


def said(where: Desk, name: str = "f", owner: int = 1, uid: int = 1000, now: float = 0.0, **fields):
    request = {"flow": name, "coflow": "c", "size": 1000, "peer": "h2"} | fields
    return where.flow(owner, uid, "job", request, "", now)


# ------------------------------------------------------------------ what jobs say


def test_what_a_job_says_is_reported_once_and_then_only_what_changed():
    where = desk()
    first = said(where, now=1.0, need=3, need_span=8)
    (report,) = where.reports(1.5)
    (flow,) = report.flows
    assert (flow.id, flow.age, flow.need, flow.need_span, flow.active) == (first.id, 0.5, 3, 8, True)
    assert not where.pending
    said(where, sent=400, now=2.0)
    assert where.pending and not where.urgent, "progress alone changes no plan at once"
    assert list(where.reports(2.0)) == [Report(sent=((first.id, 400.0),))]
    said(where, state="done")
    assert where.urgent
    assert list(where.reports(2.0)) == [Report(done=(first.id,))]
    assert said(where).id != first.id, "a name is free again when its flow has ended"


def test_a_flow_that_waits_is_announced_and_then_released():
    where = desk()
    said(where, state="waiting", now=1.0)
    (report,) = where.reports(2.0)
    assert not report.flows[0].active and report.flows[0].age == 0
    said(where, now=3.0)
    (report,) = where.reports(3.5)
    assert report.flows[0].active and report.flows[0].age == 0.5


def test_a_connection_s_flows_and_declarations_go_with_it_and_no_other_s():
    where = desk()
    one, two = said(where, owner=1), said(where, owner=2)
    for owner in (1, 2):
        where.coflow(owner, 1000, "job", {"coflow": "c", "size": 5000})
    list(where.reports(0.0))
    where.leave(1)
    assert list(where.reports(0.0)) == [Report(gone=(one.id,))], "the other connection declares it still"
    where.leave(2)
    assert list(where.reports(0.0)) == [Report(gone=(two.id,), closed=((1000, "job", "c"),))]
    assert len(where) == 0


def test_a_coordinator_that_comes_back_is_told_everything_and_nothing_of_the_past():
    where = desk()
    old, kept = said(where, "old"), said(where, "kept", sent=10)
    where.coflow(1, 1000, "job", {"coflow": "c", "weight": 2})
    list(where.reports(0.0))
    where.hang_up()
    said(where, "old", state="done")
    new = said(where, "new")
    assert not where.pending and list(where.reports(0.0)) == []
    where.start_over()
    (report,) = where.reports(0.0)
    assert [f.id for f in report.flows] == [kept.id, new.id] and report.flows[0].sent == 10
    assert [c.weight for c in report.coflows] == [2.0] and not report.done and old.id < new.id


def test_many_flows_are_reported_in_messages_that_are_not_too_long():
    from netsched.coordinator.wire import MAX_MESSAGE, read_report, report_bytes  # noqa: PLC0415

    where = desk()
    name = "\U0001f600" * 128  # 12 bytes each in JSON
    for n in range(1000):
        request = {"flow": f"f{n}", "coflow": name[: 120 + n % 8], "size": 1, "peer": name}
        where.flow(1, 1000, name, request, "", 0.0)
        where.coflow(1, 1000, name, {"coflow": name[: 64 + n % 64]})
    packets = [report_bytes(report) for report in where.reports(0.0)]
    assert sum(len(read_report(packet).flows) for packet in packets) == 1000
    assert max(map(len, packets)) <= MAX_MESSAGE


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"size": 0}, "flow.size"),
        ({"size": None}, "flow.size = None"),
        ({"size": float("nan")}, "flow.size = nan"),
        ({"sent": 1001}, "flow.sent = 1001"),
        ({"sent": -1}, "flow.sent = -1"),
        ({"need": 8, "need_span": 8}, "flow.need = 8"),
        ({"need": 2.5}, r"flow.need = 2\.5"),
        ({"peer": ""}, "peer: the name or address"),
        ({"peer": 7}, "flow.peer"),
        ({"coflow": "x" * 129}, "flow.coflow"),
        ({"flow": ""}, "flow: a printable text"),
        ({"flow": ["f"]}, "flow: a printable text"),
        ({"state": "ended"}, "state: one of waiting, active, done"),
        ({"state": []}, "state: one of"),
    ],
)
def test_a_flow_that_cannot_be_is_refused(fields, says):
    where = desk()
    with pytest.raises(BadRequest, match=says):
        said(where, **fields)
    assert len(where) == 0 and not where.pending


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sent": 100}, "sent = 100 B, it was 500 B"),
        ({"coflow": "d"}, "keeps its coflow and peer"),
        ({"peer": "h3"}, "keeps its coflow and peer"),
        ({"state": "waiting"}, "does not wait again"),
    ],
)
def test_a_flow_does_not_change_what_it_is(fields, says):
    where = desk()
    said(where, sent=500)
    with pytest.raises(BadRequest, match=says):
        said(where, **fields)


@pytest.mark.parametrize(
    ("peer", "plain"),
    [
        ("10.0.0.2", "10.0.0.2"),
        ("::ffff:10.0.0.2", "10.0.0.2"),
        ("FD00:0::2", "fd00::2"),
        ("node-2", "node-2"),
    ],
)
def test_an_address_is_known_in_one_form(peer, plain):
    assert said(desk(), peer=peer).peer == plain


def test_a_job_and_a_user_have_so_many_flows_and_no_more():
    where = desk()
    for owner in range(MAX_USER_FLOWS // MAX_FLOWS):
        for n in range(MAX_FLOWS):
            said(where, f"f{n}", owner)
    with pytest.raises(BadRequest, match=f"a connection has at most {MAX_FLOWS} flows"):
        said(where, "more", 0)
    with pytest.raises(BadRequest, match=f"user 1000 has {MAX_USER_FLOWS} flows"):
        said(where, "more", 99)
    said(where, "more", 98, uid=1001)
    said(where, "f0", 0, state="done")
    said(where, "more", 0)


# ------------------------------------------------------------------ whose word counts


def test_without_a_coordinator_the_first_rule_that_fits_decides():
    guide, where = Guide(configured()), desk()
    for job, coflow, cls, source in (
        ("resnet50", "grad 1", 1, "rule"),
        ("resnet50", "weights", 4, "rule"),
        ("bert", "grad 1", 7, "default"),
    ):
        flow = where.flow(
            hash(job), 0, job, {"flow": coflow, "coflow": coflow, "size": 1, "peer": "h2"}, "", 0.0
        )
        found = guide.guidance(flow, 0.0)
        assert (found.cls, found.source) == (cls, source)


def followed(**more):
    return configured(coordinator=FOLLOWING["coordinator"], **more)


def test_the_plan_counts_then_the_last_plan_and_after_the_stated_time_the_rules():
    guide, where = Guide(followed()), desk()
    flow = where.flow(1, 0, "resnet50", {"flow": "f", "coflow": "grad", "size": 1, "peer": "h2"}, "", 0.0)
    assert guide.standing(0.0) == "local" and guide.guidance(flow, 0.0).source == "rule"
    guide.begin(1.0)
    # As long as nothing is decided a coflow is in the first class, by the engines' own rule.
    assert (guide.guidance(flow, 1.0).cls, guide.guidance(flow, 1.0).source) == (0, "interim")
    share = Share(3, 0.5, 2e6, True)
    guide.take(PlanPart(4, {flow.id: share}, {}), {flow.id: flow.key}, 2.0)
    found = guide.guidance(flow, 2.1)
    assert (found.cls, found.source, found.cap) == (3, "plan", 2e6) and found.hold == pytest.approx(0.4)
    assert guide.guidance(flow, 3.0).hold == 0
    sister = where.flow(1, 0, "resnet50", {"flow": "g", "coflow": "grad", "size": 1, "peer": "h2"}, "", 3.0)
    assert guide.guidance(sister, 3.0) == guide.guidance(sister, 3.0)
    assert guide.guidance(sister, 3.0).cls == int(interim_class(__import__("numpy").array([3]))[0]) == 3
    guide.end()
    # Heard last at 2 s, kept for 30 s.
    assert (guide.guidance(flow, 31.9).cls, guide.guidance(flow, 31.9).source) == (3, "kept")
    assert guide.guidance(sister, 31.9).source == "kept"
    assert (guide.guidance(flow, 32.0).cls, guide.guidance(flow, 32.0).source) == (1, "rule")
    guide.begin(40.0)
    assert guide.guidance(flow, 40.0).source == "interim", (
        "a plan that has lapsed does not come back by itself"
    )


def test_a_flow_that_the_coordinator_cannot_plan_for_goes_by_the_rules():
    guide, where = Guide(followed()), desk()
    flow = where.flow(1, 0, "resnet50", {"flow": "f", "coflow": "grad", "size": 1, "peer": "h9"}, "", 0.0)
    guide.begin(0.0)
    guide.take(PlanPart(1, {}, {flow.id: "peer 'h9' is no host"}), {flow.id: flow.key}, 0.0)
    found = guide.guidance(flow, 0.0)
    assert (found.cls, found.source, found.refused) == (1, "rule", "peer 'h9' is no host")


@pytest.mark.parametrize(("planned", "got"), [(0, 2), (2, 2), (3, 5), (5, 5), (7, 5)])
def test_no_plan_gives_a_user_a_class_that_the_user_may_not_use(planned, got):
    uid = 54321
    guide = Guide(followed(api={"allow": [{"uid": uid, "classes": [2, 5]}]}))
    flow = desk().flow(1, uid, "j", {"flow": "f", "coflow": "c", "size": 1, "peer": "h2"}, "", 0.0)
    guide.begin(0.0)
    guide.take(PlanPart(1, {flow.id: Share(planned, None, None, True)}, {}), {flow.id: flow.key}, 0.0)
    assert guide.guidance(flow, 0.0).cls == got


def waiting(*words: Guidance) -> tuple[Flow, list[list]]:
    """A flow to which the agent says these words, the last one again and again; and the sockets it got."""
    passed: list[list] = []

    def tell(_, sockets) -> Guidance:
        passed.append(list(sockets))
        return words[min(len(passed), len(words)) - 1]

    flow = Flow(tell, {"sent": 0, "size": 10})
    flow.release()
    return flow, passed


def test_a_job_waits_until_its_gate_opens_and_is_marked_for_what_was_said_last():
    flow, passed = waiting(
        Guidance(1, "plan", hold=0.05), Guidance(1, "plan", hold=0.03), Guidance(2, "plan")
    )
    assert 0.08 <= flow.wait(sockets=["socket"]) < 1.0, "a later plan put the start off again"
    assert flow.guidance.cls == 2 and passed == [[], ["socket"], ["socket"]]


def test_no_gate_holds_a_job_longer_than_it_will_wait():
    flow, _ = waiting(Guidance(1, "plan", hold=1e6))
    assert 0.05 <= flow.wait(0.05) < 1.0


def test_a_job_waits_for_the_plan_as_long_as_it_likes():
    interim, plan = Guidance(0, "interim"), Guidance(3, "plan")
    flow, _ = waiting(interim, interim, interim, plan)
    assert flow.wait() == pytest.approx(0, abs=0.01) and flow.guidance.source == "interim"
    assert flow.wait(for_plan=5.0) < 1.0 and flow.guidance.source == "plan"
    flow, _ = waiting(interim)
    assert 0.05 <= flow.wait(for_plan=0.05) < 1.0


def test_progress_alone_is_told_every_20_ms_and_a_socket_at_once():
    flow, passed = waiting(Guidance(1, "plan"))
    for _ in range(100):
        flow.sent(1)
    assert len(passed) <= 10 and flow._fields["sent"] == 10, "no more than its size"
    flow.sent(0, sockets=["socket"])
    assert passed[-1] == ["socket"]


# ------------------------------------------------------------------ talking to the coordinator


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


# ------------------------------------------------------------------ configuration

TLS = {"ca": "/a/ca.pem", "cert": "/a/c.pem", "key": "/a/k.pem"}


@pytest.mark.parametrize("address", ["127.0.0.1:9471", "[::1]:1"])
def test_without_certificates_loopback_is_taken(address):
    found = parse(json.dumps({"version": 1, "coordinator": {"address": address}}), "x").coordinator
    assert found is not None and not found.secure and found.keep == 30.0


def test_with_certificates_any_host_is_taken():
    section = {"address": "coordinator.example:9471", "keep": "5s", "host": "node-1"} | TLS
    found = parse(json.dumps({"version": 1, "coordinator": section}), "x").coordinator
    assert found is not None and found.secure and (found.keep, found.host) == (5.0, "node-1")


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (
            {"address": "10.0.0.9:9471"},
            r"coordinator: address = '10\.0\.0\.9:9471' is not on loopback: without ca",
        ),
        ({"address": "localhost:9471"}, "is not on loopback"),
        ({"address": "127.0.0.1"}, "a host and a port are expected"),
        ({"address": "127.0.0.1:70000"}, "a host and a port are expected"),
        ({"address": "10.0.0.9:9471", "ca": "/a"}, "cert, key missing: mutual TLS needs ca, cert and key"),
        (
            {"address": "10.0.0.9:9471"} | TLS | {"key": "k.pem"},
            "key = 'k.pem': an absolute path is expected",
        ),
        ({"address": "127.0.0.1:1", "keep": "5"}, "coordinator.keep"),
        ({}, "coordinator.address: missing"),
        ({"address": "127.0.0.1:1", "cafile": "x"}, "coordinator.cafile: unknown key"),
    ],
)
def test_a_wrong_coordinator_is_refused_in_one_line(section, says):
    with pytest.raises(ConfigError, match=says) as error:
        parse(json.dumps({"version": 1, "coordinator": section}), "agent.yaml")
    assert "\n" not in str(error.value)


def test_a_rule_for_a_class_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"rules\[0\]\.class = 'fast'"):
        parse(json.dumps({"version": 1, "rules": [{"class": "fast"}]}), "agent.yaml")


# ------------------------------------------------------------------ over the agent


def test_a_job_tells_of_its_flow_and_its_socket_is_marked_by_the_rules(tmp_path):
    config = BASE | {"classes": {"gradients": 1}, "rules": RULES}
    with (
        agent(tmp_path, config) as (path, _),
        connection() as (near, _),
        client.connect(path, job="resnet50", strict=True) as us,
    ):
        assert us.coflow("grad 1", size=2e6, flows=2, weight=2.0, deadline=0.5)
        with us.flow("layer 3", coflow="grad 1", size=1e6, need=3, need_span=8, sockets=[near]) as flow:
            assert (flow.guidance.cls, flow.guidance.source) == (1, "rule")
            assert flow.guidance.results[0].dscp == dscp_of(1) == 36
            assert near.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 36 << 2
            assert flow.wait() < 0.1
            assert flow.sent(4e5).cls == 1
            assert us.status()["coordinator"] == {
                "address": "",
                "standing": "local",
                "policy": "",
                "local_policy": "",
                "heard_s_ago": None,
                "revision": 0,
                "flows": 1,
                "why": "",
            }
        assert us.status()["coordinator"]["flows"] == 0
        with pytest.raises(AgentError, match=r"flow\.size = -1"):
            us.flow("x", coflow="y", size=-1, peer="h2")
        us.flow("waits", coflow="y", size=10, peer="h2")
    with agent(tmp_path, config) as (path, _):
        with client.connect(path, job="a", strict=True) as us:
            us.flow("x", coflow="y", size=10, peer="h2")
        with client.connect(path, strict=True) as us:
            assert us.status()["coordinator"]["flows"] == 0, "flows end with their job's connection"


def test_without_an_agent_a_flow_costs_nothing(tmp_path):
    us = client.connect(str(tmp_path / "none.sock"), job="resnet50")
    with connection() as (near, _), us.flow("f", coflow="c", size=1e6, sockets=[near]) as flow:
        assert flow.guidance == Guidance() and flow.wait() < 0.05
        assert flow.sent(10, sockets=[near]) == Guidance()
        assert not us.coflow("c", size=1e6)
        assert near.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0
    assert us.failures >= 4


def test_malformed_words_about_flows_do_not_disturb_the_agent(tmp_path):
    rng = random.Random(7)
    odd = [
        None,
        True,
        -1,
        2**70,
        1e308,
        math.nan,
        "",
        "x" * 300,
        [],
        {},
        [[1]],
        "waiting",
        "done",
        0.5,
        "h2",
        5,
    ]
    fields = [
        "flow",
        "coflow",
        "size",
        "sent",
        "need",
        "need_span",
        "peer",
        "state",
        "weight",
        "deadline",
        "flows",
    ]
    with agent(tmp_path, BASE) as (path, process), connection() as (near, _):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(path)
            sock.settimeout(5)
            for n in range(3000):
                chosen = rng.sample(fields, rng.randint(0, 8))
                good = (
                    {"flow": f"f{n % 50}", "coflow": "c", "size": 10, "peer": "h2"}
                    if rng.random() < 0.7
                    else {}
                )
                request = {"v": 1, "verb": rng.choice(["flow", "coflow"])} | good
                request |= {key: rng.choice(odd) for key in chosen if rng.random() < 0.5}
                sock.send(json.dumps(request).encode())
                answer = json.loads(sock.recv(65536))
                assert answer["ok"] or answer["code"] in ("bad-field", "too-many"), answer
        assert process.poll() is None
        with client.connect(path, strict=True) as us:
            assert us.flow("f", coflow="c", size=10, sockets=[near]).guidance.cls == 7


def test_an_agent_without_a_coordinator_loads_no_grpc_and_one_with_it_says_what_is_missing(tmp_path):
    code = (
        "import sys, hostagent.agent, hostagent.client, hostagent.uplink\n"
        "print([m for m in ('grpc', 'numpy', 'numba', 'google') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps(FOLLOWING | {"api": {"socket": str(tmp_path / "agent.sock")}}))
    without = "import sys; sys.modules['grpc'] = None; from hostagent.__main__ import main; "
    argv = [sys.executable, "-c", without + f"sys.exit(main(['run', '--config', {str(file)!r}]))"]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False, env={**os.environ}
    )
    assert done.returncode == 4
    assert "no module grpc: pip install 'netsched[coordinator]'" in done.stderr


def test_numbers_of_flows_are_never_used_twice():
    where = desk()
    seen = {said(where, f"f{n % 3}", state="done").id for n in range(9)}
    assert len(seen) == 9 and all(a < b for a, b in itertools.pairwise(sorted(seen)))
