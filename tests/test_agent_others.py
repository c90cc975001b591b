"""What another user's process cannot do: to sockets and jobs not its own, or by slow descriptors."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from running_agent import BASE, agent, command, connection, dial
from users import NOBODY, SOMEBODY, allowing, as_user, connect, fill, place, tos

from hostagent import client, protocol, tagging
from hostagent.client import AgentError

__all__ = ["place"]


@pytest.mark.root
def test_a_descriptor_is_proof_of_possession_and_names_are_not(place):
    config = allowing(NOBODY) | {"ladder": ["descriptor", "self", "pidfd"]}
    with (
        agent(place, config) as (path, _),
        connection() as (theirs, _),
        client.connect(path, job="secret", strict=True) as root,
        connect(path, NOBODY) as us,
    ):
        assert root.tag([theirs], 2)[0].ok
        # The process is root's: the same words as for one that is not there.
        texts = []
        for pid in (os.getpid(), 2**22 + 1):
            with pytest.raises(AgentError) as caught:
                us.tag_process(pid, 0)
            texts.append(str(caught.value).replace(str(pid), "N"))
        assert texts[0] == texts[1] and "no process of this user" in texts[0]
        # Claiming somebody else's cookie neither marks the socket nor takes the record over.
        cookie = tagging.cookie(theirs.fileno())
        us._ask({"verb": "tag", "class": 0, "cookies": [cookie]}, ())
        assert tos(theirs) == 32 << 2
        (shown,) = root.explain(job="secret")["sockets"]
        assert (shown["class"], shown["level"]) == (2, "descriptor")


@pytest.mark.root
def test_a_process_of_one_s_own_can_be_marked_where_the_ladder_has_it(place):
    code = (
        "import os,socket,sys\n"
        "l=socket.create_server(('127.0.0.1',0)); s=socket.create_connection(l.getsockname())\n"
        "a,_=l.accept()\n"
        "u=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print('ready', flush=True); sys.stdin.read(1)\n"
        "print([x.getsockopt(0, socket.IP_TOS) for x in (l, s, a, u)])\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with job, agent(place, allowing(NOBODY, SOMEBODY) | {"ladder": ["descriptor", "pidfd"]}) as (path, _):
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        with connect(path, SOMEBODY) as other, pytest.raises(AgentError, match="no process of this user"):
            other.tag_process(job.pid, 0)
        with connect(path, NOBODY, job="mine") as us:
            answer = us.tag_process(job.pid, 0)
            assert (answer["status"], answer["marked"]) == ("full", 2)
            time.sleep(1.0)
            levels = {one["level"] for one in us.explain(job="mine")["sockets"]}
            assert levels == {"pidfd"}
        out, _ = job.communicate("x", timeout=10)
    assert out.strip() == "[0, 160, 160, 0]", "its two connected TCP sockets and nothing else"


def test_a_level_that_the_ladder_lacks_is_refused_by_name(tmp_path):
    with agent(tmp_path, BASE) as (path, _), client.connect(path, strict=True) as us:
        with pytest.raises(AgentError, match="does not mark by level pidfd: its ladder is descriptor, self"):
            us.tag_process(os.getpid(), 0)
        with pytest.raises(AgentError, match="level nft-tuple"):
            us.tag_flows([("127.0.0.1:1", "127.0.0.1:2")], 0)


@pytest.mark.root
def test_two_users_jobs_of_one_name_see_only_their_own(place):
    with (
        agent(place, allowing(NOBODY, SOMEBODY)) as (path, _),
        connection() as (one, two),
        connect(path, NOBODY, job="resnet") as us,
        connect(path, SOMEBODY, job="resnet") as them,
    ):
        us.tag([one], 1)
        them.tag([two], 2)
        assert [c["uid"] for c in us.status()["clients"]] == [NOBODY]
        assert [one["class"] for one in us.explain(job="resnet")["sockets"]] == [1]
        time.sleep(1.0)
        assert [one["class"] for one in them.explain(job="resnet")["sockets"]] == [2]
        with client.connect(path, strict=True) as root:
            assert len(root.explain(job="resnet")["sockets"]) == 2


def test_a_job_marks_its_own_sockets_where_the_ladder_says_so(tmp_path):
    with (
        agent(tmp_path, BASE | {"ladder": ["self", "descriptor"]}) as (path, _),
        connection() as (near, far),
        client.connect(path, job="alone", strict=True) as us,
    ):
        assert [result.dscp for result in us.tag([near, far], 1)] == [36, 36]
        assert tos(near) >> 2 == tos(far) >> 2 == 36
        answer = us.explain(job="alone")
        assert {one["level"] for one in answer["sockets"]} == {"self"}
        assert [one["dscp_now"] for one in answer["sockets"]] == [36, 36]
        assert [step["level"] for step in answer["ladder"]["self"]][:2] == ["self", "descriptor"]


def lingering() -> tuple[socket.socket, socket.socket]:
    """A connection whose near end waits for a minute when its last descriptor is closed: nobody reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 60))
    fill(near)
    return near, far


@pytest.mark.root
def test_who_passes_a_socket_that_closes_slowly_holds_up_nobody_but_himself(place):
    with agent(place, allowing(NOBODY, SOMEBODY)) as (path, process), contextlib.ExitStack() as stack:
        good = stack.enter_context(connect(path, SOMEBODY))
        with as_user(NOBODY):
            socks = [stack.enter_context(dial(path)) for _ in range(3)]
        # While the agent stands still, all of them are sent and let go of: it then has the last descriptors.
        process.send_signal(signal.SIGSTOP)
        for number in range(20):
            near, far = lingering()
            stack.enter_context(far)
            packet = protocol.encode({"v": 1, "verb": "tag", "class": 0, "count": 1})
            socket.send_fds(socks[number % 3], [packet], [near.fileno()])
            near.close()
        process.send_signal(signal.SIGCONT)
        threads = 0
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            began = time.monotonic()
            assert good.hello()["mode"] == "mark"
            assert time.monotonic() - began < 0.5
            threads = max(threads, len(list(Path(f"/proc/{process.pid}/task").iterdir())))
            time.sleep(0.02)
        assert threads == 1 + 8, "8 wait beside the loop, the others unread, at the cost of their sender"
        with connection() as (mine, _):
            assert good.tag([mine], 0)[0].ok


@pytest.mark.root
def test_another_user_is_refused_unless_allowed_and_then_only_its_classes():
    code = (
        "import os,sys,socket,json\n"
        "from hostagent import client\n"
        "from netsched.errors import NetschedError\n"
        "l=socket.create_server(('127.0.0.1',0)); s=socket.create_connection(l.getsockname())\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "for cls in (0, 6):\n"
        "    try:\n"
        "        with client.connect(sys.argv[1], strict=True, timeout=5) as us:\n"
        "            print(us.tag([s], cls)[0].dscp)\n"
        "    except NetschedError as error: print('refused', error)\n"
    )

    def as_nobody(path):
        argv = [sys.executable, "-c", code, path]
        done = command(*argv)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    with tempfile.TemporaryDirectory() as name:
        open_to_all = Path(name)
        open_to_all.chmod(0o755)
        with agent(open_to_all, BASE) as (path, _):
            assert all("Permission denied" in line for line in as_nobody(path))
            Path(path).chmod(0o666)
            assert all("user 65534 may not use this agent" in line for line in as_nobody(path))
        with agent(open_to_all, BASE | {"api": {"allow": [{"uid": 65534, "classes": [6]}]}}) as (path, _):
            first, second = as_nobody(path)
            assert "may not use class 0" in first and second == "8"
