"""How much one user may have of an agent, and that it is nobody else's loss."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from running_agent import agent, connection, dial
from users import NOBODY, SOMEBODY, allowing, as_user, connect, place, tos

from hostagent import client, protocol
from hostagent.client import AgentError
from hostagent.ledger import Ledger, Record
from hostagent.quota import BURST_S, Pace, cost_of

__all__ = ["place"]


@pytest.mark.root
def test_one_user_s_connections_leave_room_for_another_s(place):
    with (
        agent(place, allowing(NOBODY, SOMEBODY, connections=3)) as (path, _),
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):
            stack.enter_context(connect(path, NOBODY))
        with pytest.raises(AgentError, match="user 65534 has 3 connections already"):
            connect(path, NOBODY)
        stack.enter_context(connect(path, SOMEBODY))
        stack.enter_context(client.connect(path, strict=True))


@pytest.mark.root
def test_a_user_who_asks_too_fast_is_told_so_and_slowed_down_and_nobody_else_is(place):
    with agent(place, allowing(NOBODY, SOMEBODY, messages="20/s")) as (path, _):
        with as_user(NOBODY):
            hasty = dial(path)
        with hasty:
            began, answers = time.monotonic(), []
            for number in range(150):
                hasty.send(protocol.encode({"v": 1, "id": number, "verb": "hello"}))
                answers.append(json.loads(hasty.recv(1 << 16)))
                if number == 110:
                    with connect(path, SOMEBODY) as other:
                        assert other.hello()["mode"] == "mark"
            took = time.monotonic() - began
        good = [answer for answer in answers if answer["ok"]]
        fast = [answer for answer in answers if not answer["ok"]]
        # The first burst, and from then on every second one at most, as each refusal is a wait.
        assert BURST_S * 20 <= len(good) <= BURST_S * 20 + took * 20 + 2
        assert {answer["code"] for answer in fast} == {"too-fast"}
        assert "more than 20 times a second" in fast[0]["message"]
        assert took > 0.5 * len(fast) / 20, "a refusal must cost the one who is refused time"


def test_the_pace_refills_with_time_and_holds_a_burst(monkeypatch):
    now = 100.0
    monkeypatch.setattr("hostagent.quota.time.monotonic", lambda: now)
    pace = Pace(10.0)
    assert [pace.wait(1) for _ in range(int(BURST_S * 10))] == [0.0] * int(BURST_S * 10)
    assert pace.wait(1) == pytest.approx(0.1)
    assert pace.wait(2) == 0.0, "another user has a bucket of its own"
    now += 0.35
    assert [pace.wait(1) for _ in range(3)] == [0.0] * 3
    assert pace.wait(1) == pytest.approx(0.05)
    now += 0.15
    # 253 sockets, the most that a packet carries, are as much work as 16 small requests, and are owed.
    assert pace.wait(1, cost_of(100, 253)) == 0.0
    assert pace.wait(1) == pytest.approx((100 / 4096 + 253 / 16) / 10)
    # Half a millisecond of processor time is in the price of 1. What takes 10 ms longer costs as many
    # requests as come in 50 ms, of which the 10 ms are a fifth: half a one.
    assert [pace.wait(3) for _ in range(49)] == [0.0] * 49
    pace.charge(3, 1.0, 0.5e-3)
    pace.charge(3, 1.0, 10.5e-3)
    assert pace.wait(3) == pytest.approx(0.05)


def patient_dial(path: str) -> socket.socket:
    while True:
        with contextlib.suppress(BlockingIOError), as_user(NOBODY):  # more at once than the backlog holds
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.settimeout(10)
            try:
                sock.connect(path)
                return sock
            except BlockingIOError:
                sock.close()
                raise


@pytest.mark.root
def test_a_client_gets_through_while_somebody_fills_the_backlog(place):
    with agent(place, allowing(NOBODY, SOMEBODY)) as (path, process), contextlib.ExitStack() as stack:
        process.send_signal(signal.SIGSTOP)
        many = 0
        with contextlib.suppress(BlockingIOError), as_user(NOBODY):
            while True:
                sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                sock.setblocking(False)
                sock.connect(path)
                many += 1
        assert many > 100
        timer = threading.Timer(0.2, lambda: process.send_signal(signal.SIGCONT))
        timer.start()
        with connect(path, SOMEBODY) as us:
            assert us.hello()["mode"] == "mark"
        timer.join()


@pytest.mark.root
def test_a_crowd_of_one_user_s_full_packets_does_not_hold_up_another(place):
    with (
        agent(place, allowing(NOBODY, SOMEBODY, connections=300)) as (path, process),
        connection() as (near, _),
        connect(path, SOMEBODY) as good,
        contextlib.ExitStack() as stack,
    ):
        packet = protocol.encode({"v": 1, "verb": "tag", "class": 0, "count": protocol.MAX_FDS})
        crowd = [stack.enter_context(patient_dial(path)) for _ in range(300)]
        process.send_signal(signal.SIGSTOP)
        for sock in crowd:
            socket.send_fds(sock, [packet], [near.fileno()] * protocol.MAX_FDS)
        process.send_signal(signal.SIGCONT)
        began, worked = time.monotonic(), processor(process.pid)
        assert good.hello()["mode"] == "mark"
        # The first 60 packets are the user's burst of 1,000; all 300 of them would take seconds. What counts
        # is the agent's own time: other tests may have the processors.
        assert processor(process.pid) - worked < 1.5
        answers = [json.loads(sock.recv(1 << 16)) for sock in crowd]
        most = (BURST_S + time.monotonic() - began) * 200 / cost_of(len(packet), protocol.MAX_FDS)
        assert 50 <= sum(answer["ok"] for answer in answers) <= most + 2


def processor(pid: int) -> float:
    """Seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.root
def test_a_user_has_so_many_marked_sockets_and_gets_room_when_some_end(place):
    with agent(place, allowing(NOBODY, sockets=4)) as (path, _), contextlib.ExitStack() as stack:
        us = stack.enter_context(connect(path, NOBODY))
        pairs = [stack.enter_context(connection()) for _ in range(3)]
        first = [end for pair in pairs[:2] for end in pair]
        assert all(result.ok for result in us.tag(first, 1))
        assert all(result.ok for result in us.tag(first, 2)), "the same sockets again take no more room"
        with pytest.raises(AgentError, match="user 65534 may have 4 marked sockets"):
            us.tag([pairs[2][0]], 1)
        assert tos(pairs[2][0]) == 0
        with client.connect(path, strict=True) as root:
            assert root.tag([pairs[2][0]], 1)[0].ok, "root has no quota"
        for end in pairs[0]:
            end.close()
        time.sleep(1.0)  # sockets are listed once a second
        assert us.tag([pairs[2][1]], 1)[0].ok


@pytest.mark.root
def test_a_user_has_so_many_groups_until_its_connection_ends(place):
    with agent(place, allowing(NOBODY, groups=2)) as (path, _), connection() as (near, _):
        with connect(path, NOBODY) as us:
            for name in ("a", "b", "a"):
                us.tag([near], 1, group=name)
            with pytest.raises(AgentError, match="user 65534 has 2 groups already"):
                us.tag([near], 2, group="c")
            assert tos(near) == 36 << 2
        with connect(path, NOBODY) as us:
            assert us.tag([near], 2, group="c")[0].ok


def test_a_user_s_sockets_push_out_only_its_own_records(monkeypatch):
    monkeypatch.setattr("hostagent.ledger.LIMIT", 3)
    book = Ledger()
    for cookie, uid in ((1, 0), (2, 7), (3, 7), (4, 7), (5, 7)):
        book.note(Record(cookie, True, uid, "", 0, 40, "descriptor"))
    assert [record.cookie for record in book.records()] == [1, 4, 5]
    assert not book.has_room(7, 1, 2) and book.has_room(7, 1, 3) and book.has_room(8, 2, 2)
    book.note(Record(4, False, 7, "", 0, 40, "descriptor", owner=9))
    assert book.has_room(7, 1, 2), "one that cannot be seen to end makes room"
    assert book.get(4) is None
    book.note(Record(6, False, 7, "", 0, 40, "descriptor", owner=9))
    book.leave(9)
    assert book.get(6) is None and book.get(5) is not None
