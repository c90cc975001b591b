"""Marking over the agent's socket: with an agent, without one, and with one that is silent or attacked."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running_agent import BASE, FAMILIES, agent, command, connection, dial

from hostagent import client, protocol
from hostagent.client import AgentError


@pytest.mark.parametrize(("family", "address", "name"), FAMILIES)
def test_a_client_has_its_live_sockets_marked(tmp_path, family, address, name):
    with (
        agent(tmp_path, BASE | {"classes": {"bulk": 6}}) as (path, _),
        connection(family, address) as (near, far),
        client.connect(path, job="resnet", strict=True) as us,
    ):
        assert us.hello()["classes"][0]["dscp"] == 40
        assert us.tag([near, far], 0) == [protocol.Tagged(True, 40, 0, name)] * 2
        assert near.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 40 << 2
        assert us.tag([far.fileno()], "bulk")[0].dscp == 8
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        shown = us.status()
        assert shown["tags"] == {"ok": 3, "failed": 0}
        assert shown["tags_by_class"]["0"] == 2 and shown["tags_by_class"]["6"] == 1
        assert [c["job"] for c in shown["clients"]] == ["resnet"]


def test_more_sockets_than_a_packet_carries(tmp_path):
    with (
        agent(tmp_path, BASE) as (path, _),
        connection() as (near, _),
        client.connect(path, strict=True) as us,
    ):
        copies = [near.dup() for _ in range(300)]
        assert len(copies) > protocol.MAX_FDS
        results = us.tag(copies, 1)
        assert len(results) == 300 and all(result.dscp == 36 for result in results)
        for copy in copies:
            copy.close()


def test_one_bad_socket_is_named_and_the_others_are_marked(tmp_path):
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with agent(tmp_path, BASE) as (path, _), connection() as (near, far), udp:
        with client.connect(path) as us:
            good, bad, also_good = us.tag([near, udp, far], 2)
        assert good.dscp == also_good.dscp == 32
        assert not bad.ok and "TCP" in bad.error
        with client.connect(path, strict=True) as us, pytest.raises(AgentError, match="socket 1 of 3"):
            us.tag([near, udp, far], 2)


def test_observe_writes_nothing_and_says_what_it_would(tmp_path):
    with agent(tmp_path, {"version": 1}) as (path, _), connection() as (near, _):
        with client.connect(path) as us:
            (result,) = us.tag([near], 0)
        assert not result.ok and "would set CS5" in result.error
        assert near.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0


def test_a_job_goes_on_without_an_agent_and_finds_it_later(tmp_path, caplog):
    path = str(tmp_path / "agent.sock")
    us = client.connect(path)
    with connection() as (near, _):
        assert us.tag([near], 0) == [] and us.status() == {}
        assert us.tag([None], 0) == []
        assert us.failures >= 3
        assert len(caplog.records) == 1, "a missing agent is logged once"
        with agent(tmp_path, BASE):
            us._next_attempt = 0.0
            assert us.tag([near], 0)[0].ok
        assert us.tag([near], 0) == []
    with pytest.raises(AgentError, match="No such file"):
        client.connect(path, strict=True)


def test_a_silent_agent_costs_the_timeout_and_no_more(tmp_path):
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        us = client.connect(path, timeout=0.05)
        assert us.failures == 1
        with pytest.raises(AgentError, match=r"no answer within 0\.05 s"):
            client.connect(path, timeout=0.05, strict=True)


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (8, "class = 8"),
        (-1, "class = -1"),
        ("gold", "'gold'"),
        (True, "class = True"),
        (None, "class = None"),
    ],
)
def test_a_class_that_is_not_there_is_refused_with_the_choice(tmp_path, cls, says):
    with (
        agent(tmp_path, BASE) as (path, _),
        connection() as (near, _),
        client.connect(path, strict=True) as us,
        pytest.raises(AgentError, match=says),
    ):
        us.tag([near], cls)


def test_malformed_packets_get_an_error_and_the_agent_lives(tmp_path):
    rng = random.Random(4)
    good = {"v": 1, "id": 1, "verb": "hello"}
    odd = [None, True, -1, 2**70, 1e308, "x" * 200, "\0", [], {}, [[]] * 50, "tag", "status", "release"]
    with agent(tmp_path, BASE) as (path, process), connection() as (near, _):
        sock = dial(path)
        for turn in range(4000):
            kind = turn % 4
            if kind == 0:
                packet = rng.randbytes(rng.randint(1, 400))
            elif kind == 1:
                text = bytearray(json.dumps(good).encode())
                text[rng.randrange(len(text))] = rng.randrange(256)
                packet = bytes(text)
            elif kind == 2:
                fields = ["v", "id", "verb", "class", "count", "job", "lease"]
                chosen = {key: rng.choice(odd) for key in rng.sample(fields, rng.randint(1, 7))}
                packet = json.dumps(good | chosen).encode()
            else:
                packet = b"[" * rng.randint(1, 20_000)
            fds = [near.fileno(), 0][: rng.randint(0, 2)]
            try:
                socket.send_fds(sock, [packet], fds)
                answer = json.loads(sock.recv(protocol.MAX_PACKET))
                assert answer["v"] == 1 and isinstance(answer["ok"], bool)
            except (BrokenPipeError, ConnectionResetError):
                sock.close()
                sock = dial(path)
        sock.close()
        assert process.poll() is None
        fds_dir = Path(f"/proc/{process.pid}/fd")
        with client.connect(path, strict=True) as us:
            assert us.tag([near], 0)[0].ok
            # stdin/out/err, epoll, wake pair, listener, this client, and a few that Python holds.
            assert len(list(fds_dir.iterdir())) < 20


def test_a_client_that_never_reads_is_dropped_and_others_are_served(tmp_path):
    with agent(tmp_path, BASE) as (path, _), contextlib.closing(dial(path)) as deaf:
        deaf.setblocking(False)
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while True:
                deaf.send(protocol.encode({"v": 1, "verb": "hello"}))
        with client.connect(path, strict=True, timeout=5) as us:
            assert us.hello()["mode"] == "mark"


def test_a_second_agent_on_the_same_socket_is_refused_and_a_dead_one_s_place_is_taken(tmp_path):
    with agent(tmp_path, BASE) as (path, _):
        argv = [sys.executable, "-m", "hostagent", "run", "--config", str(tmp_path / "agent.yaml")]
        done = command(*argv)
        assert done.returncode == 1 and "another agent listens" in done.stderr
        with client.connect(path, strict=True) as us:
            assert us.hello()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(path)
    with agent(tmp_path, BASE):
        pass


def test_threads_share_a_client_and_a_forked_process_has_its_own(tmp_path):
    with agent(tmp_path, BASE) as (path, _), contextlib.ExitStack() as stack:
        ends = [end for _ in range(3) for end in stack.enter_context(connection())]
        us = stack.enter_context(client.connect(path, job="shared", timeout=5))

        def mark(end: socket.socket) -> int:
            return sum(result.dscp == 40 for n in range(60) for result in us.tag([end], n % 2) if result.ok)

        with ThreadPoolExecutor(5) as pool:
            asked = [pool.submit(mark, end) for end in ends[1:]]
            pid = os.fork()
            if pid == 0:
                # No thread but this one is here, and the lock is as the others left it.
                os._exit(mark(ends[0]) + us.failures)
            assert [one.result() for one in asked] == [30] * 5
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 30
        assert us.failures == 0 and us.tag([ends[0]], 0)[0].ok
