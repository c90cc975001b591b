"""What a job's client remembers: marks are asked for again of a new agent, and given back when one leaves."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest
from agent_pages import AGENT
from namespaces import Bounded, with_ports
from running_agent import BASE, ROOT, agent, command, connection, wait_for
from test_agent_leaving import WITH_PAGES, everything
from users import allowing, connect, drain, fill, place, tos

from hostagent import client, tagging
from hostagent.memory import Asked, Memory

__all__ = ["place"]
SIX = (socket.AF_INET6, "::ffff:127.0.0.1")


# ------------------------------------------------------------------ a new agent


def test_a_new_agent_is_asked_again_for_what_the_old_one_was(tmp_path):
    named = BASE | {"classes": {"grad": 0}}
    with connection() as (near, far), connection(*SIX) as (six, _):
        with agent(tmp_path, named) as (path, _), client.connect(path, strict=True, timeout=5):
            us = client.connect(path, job="j", strict=True, timeout=5)
            us.tag([near, six], "grad")
            us.tag([far], 6)
        # The name means another class now, and the job says nothing about its sockets but that it lives.
        with agent(tmp_path, BASE | {"classes": {"grad": 1}}), us:
            assert us.heartbeat() and us.heartbeat()
            assert [tos(one) >> 2 for one in (near, six, far)] == [36, 36, 8]
            assert us.status()["sockets"] == 3 and us.failures == 0


def test_an_agent_that_comes_late_is_asked_for_what_there_was_nobody_to_ask(tmp_path):
    path = str(tmp_path / "agent.sock")
    with connection() as (near, far), client.connect(path, timeout=5) as us:
        assert us.tag([near, far], 2, group="g") == []
        with agent(tmp_path, BASE):
            us._next_attempt = 0.0  # the second between two attempts
            us.heartbeat()
            assert [tos(one) >> 2 for one in (near, far)] == [32, 32]


def test_a_socket_that_sends_is_asked_for_again_when_it_rests_and_its_group_with_it(tmp_path):
    named = BASE | {"classes": {"grad": 0}}
    with connection() as (near, far), connection() as (other, _):
        with agent(tmp_path, named) as (path, _):
            us = client.connect(path, strict=True, timeout=5)
            us.tag([near, other], "grad", group="g")
        fill(near)
        with agent(tmp_path, BASE | {"classes": {"grad": 1}}), us:
            us.heartbeat()
            us.heartbeat()
            assert [tos(one) >> 2 for one in (near, other)] == [40, 40], "all of a group or none"
            drain(near, far)
            us.heartbeat()
            assert [tos(one) >> 2 for one in (near, other)] == [36, 36]


def test_what_a_job_gave_back_or_closed_is_not_asked_for_again(tmp_path):
    with connection() as (near, far):
        with agent(tmp_path, BASE) as (path, _):
            us = client.connect(path, strict=True, timeout=5)
            us.tag([near], 0)
            us.untag([near])
            us.tag([far], 0)
            copy = far.dup()
            number = far.detach()
            os.close(number)
        with agent(tmp_path, BASE), connection() as (fresh, _), us:
            us.heartbeat()
            assert tos(near) == 0 and tos(fresh) == 0, (
                "also not by the number of a descriptor that is another's"
            )
            assert us.status()["sockets"] == 1, "the copy of the other is the same socket"
        copy.close()


def test_a_class_that_a_new_agent_has_no_longer_is_a_failure_and_no_more(tmp_path):
    with connection() as (near, _):
        with agent(tmp_path, BASE | {"classes": {"grad": 0}}) as (path, _):
            us = client.connect(path, timeout=5)
            us.tag([near], "grad")
        with agent(tmp_path, BASE), us:
            us._next_attempt = 0.0
            assert us.heartbeat() and us.heartbeat()
            assert us.failures == 1 and tos(near) >> 2 == 40


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("hostagent.memory._REMEMBERED", 3)
    memory = Memory()
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(5)]
        for sock in socks:
            memory.note([sock.fileno()], Asked(0, ""))
            tagging.tag(sock, 40)
        assert len(memory.wishes) == 3
        assert len(memory.give_back()) == 3
        assert [tos(sock) >> 2 for sock in socks] == [40, 40, 0, 0, 0]


# ------------------------------------------------------------------ an agent that leaves


def restore(path: str, *argv: str) -> tuple[int, str]:
    done = command(*AGENT, "restore", "--socket", path, *argv)
    assert not done.stderr
    return done.returncode, done.stdout


def test_after_restore_every_socket_has_the_options_that_it_had_before(tmp_path):
    with connection() as (near, far), connection(*SIX) as (six, sixth), agent(tmp_path, BASE) as (path, _):
        socks = [near, far, six, sixth]
        assert tagging.tag(far, 8, priority=4).ok
        before = [tagging.marks(sock) for sock in socks]
        with client.connect(path, job="resnet50", strict=True, timeout=5) as us:
            us.tag([near, far], 0, group="g")
            us.tag([near, six], 3)
            us.flow("f", coflow="c", size=10, sockets=[sixth])
            code, text = restore(path)
            assert code == 6
            assert (
                f"3 sockets of resnet50 (user 0) STILL marked: process {os.getpid()} gives them back" in text
            )
            fill(near)
            assert us.heartbeat()
            assert tagging.marks(near) != before[0] and tagging.marks(six) == before[2]
            code, text = restore(path)
            assert code == 6 and "1 sockets of resnet50" in text, "a busy socket keeps its mark"
            drain(near, far)
            assert us.heartbeat()
            assert [tagging.marks(sock) for sock in socks] == before
            assert restore(path, "--json")[0] == 0
            assert restore(path) == (0, "restored; no job's socket carries a mark of it\n")
            assert not us.heartbeat() or us.failures == 0
    assert [tagging.marks(sock) for sock in (near, far)] == [None, None]


@pytest.mark.root
def test_marks_that_nobody_may_take_back_are_named_and_waited_for_no_longer_than_asked(tmp_path):
    # Without the right to trace processes the agent cannot reach the sockets of a job whose client has gone.
    with connection() as (near, _), agent(tmp_path, BASE, Bounded("sys_ptrace")) as (path, _):
        with client.connect(path, job="gone", strict=True, timeout=5) as us:
            us.tag([near], 0)
        code, text = restore(path, "--wait", "300ms")
        assert code == 6 and "1 sockets of gone (user 0) STILL marked: no client of it is connected" in text
        assert json.loads(restore(path, "--json")[1])["marked"] == [
            {"job": "gone", "uid": 0, "sockets": 1, "pids": []}
        ]
        assert tos(near) >> 2 == 40
        near.close()
        assert restore(path)[0] == 0
        assert "--wait: 'soon'" in command(*AGENT, "restore", "--socket", path, "--wait", "soon").stderr


def test_restore_waits_for_a_job_that_speaks_meanwhile(tmp_path):
    with (
        connection() as (near, _),
        agent(tmp_path, BASE) as (path, _),
        client.connect(path, job="j", strict=True, timeout=5) as us,
    ):
        us.tag([near], 0)
        argv = [*AGENT, "restore", "--socket", path, "--wait", "20s"]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as waiting:
            wait_for(lambda: us.status()["state"] == "restored")
            assert tos(near) == 0, "the answer that said so brought it with it"
            text, _ = waiting.communicate(timeout=20)
        assert waiting.returncode == 0, text


def test_the_next_agent_marks_again_what_was_given_back(tmp_path):
    with connection() as (near, _):
        with agent(tmp_path, BASE) as (path, _):
            us = client.connect(path, strict=True, timeout=5)
            us.tag([near], 0)
            us.restore()
            assert tos(near) == 0
        with agent(tmp_path, BASE), us:
            us.heartbeat()
            assert tos(near) >> 2 == 40


def test_another_user_can_say_of_its_own_sockets_only_that_they_are_unmarked(place):
    with (
        agent(place, allowing(65534)) as (path, _),
        connection() as (near, _),
        connect(path, 0) as ours,
        connect(path, 65534) as theirs,
    ):
        ours.tag([near], 0)
        cookie = tagging.cookie(near.fileno())
        theirs._ask({"verb": "unmarked", "cookies": [cookie]}, ())
        assert ours.status()["sockets"] == 1
        ours._ask({"verb": "unmarked", "cookies": [cookie]}, ())
        assert ours.status()["sockets"] == 0


@pytest.mark.root
def test_after_restore_queues_rules_and_socket_options_are_byte_identical(tmp_path):
    """A job in the agent's own namespace: queues, nft marks by address, sockets over both families."""
    job = (
        "import socket, sys\n"
        "from hostagent import client, tagging\n"
        "def pair(family, address):\n"
        "    l = socket.socket(family); l.bind((address, 0)); l.listen()\n"
        "    n = socket.socket(family); n.connect(l.getsockname()[:2]); return [n, l.accept()[0]]\n"
        "socks = pair(socket.AF_INET, '127.0.0.1') + pair(socket.AF_INET6, '::1')\n"
        "tagging.tag(socks[1], 8, priority=3)\n"
        "show = lambda: print([tagging.marks(s) for s in socks], flush=True)\n"
        "show()\n"
        "us = client.connect(sys.argv[1], job='j', strict=True, timeout=10)\n"
        "us.tag(socks, 0, group='g')\n"
        "ends = lambda s: tuple('{}:{}'.format(*a[:2]) for a in (s.getsockname(), s.getpeername()))\n"
        "us.tag_flows([ends(socks[0])], 2)\n"
        "show()\n"
        "for line in sys.stdin:\n"
        "    us.heartbeat()\n"
        "    show()\n"
    )
    config = WITH_PAGES | {"resync": "60s", "ladder": ["descriptor", "nft-tuple"]}
    with with_ports("eth0") as host:
        before = everything(host)
        with agent(tmp_path, config, host) as (path, _), host.python(job, path) as running:
            assert running.stdin is not None and running.stdout is not None
            options, marked = running.stdout.readline(), running.stdout.readline()
            assert options != marked and everything(host) != before
            argv = host.argv(sys.executable, "-m", "hostagent", "restore", "--socket", path)
            assert command(*argv).returncode == 6, "the job has not spoken yet"
            running.stdin.write("\n")
            running.stdin.flush()
            assert running.stdout.readline() == options
            assert command(*argv).returncode == 0
            assert everything(host) == before
            running.stdin.close()
            running.wait(timeout=10)
