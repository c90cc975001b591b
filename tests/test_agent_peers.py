"""Who asks the agent: the process that connected and no later one with its number."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from agent_pages import AGENT
from running_agent import BASE, ROOT, agent, command, wait_for

from hostagent import client, levels, peers
from hostagent.commands import _still_marked as still_marked
from netsched.errors import CapabilityError

# A process that connects, leaves the connection to a child and ends. It is waited for by its parent, so that
# its number is free for another process; the child says so and waits for its own end.
HEIR = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
sock.send(b'{"v": 1, "id": 1, "verb": "register", "job": "heir"}')
sock.recv(65536)
if os.fork():
    os._exit(0)
print("here", flush=True)
sys.stdin.read()
"""


def test_the_peer_is_the_process_that_connected():
    one, two = socket.socketpair()
    with one, two:
        peer = peers.of(one)
        assert peer == peers.Peer(os.getpid(), os.getuid(), os.getgid())
        assert peers.pid_now(one, peer) == os.getpid()
        before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(100):
            peers.pid_now(one, peer)
        assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_who_has_ended_is_not_taken_for_another_process(tmp_path):
    try:
        peers.check()
    except CapabilityError:
        pytest.skip("this kernel lacks SO_PEERPIDFD, Linux 6.5")
    with agent(tmp_path, BASE) as (path, _):
        argv = [sys.executable, "-c", HEIR, path]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == b"here\n"
            assert process.wait(timeout=10) == 0
            assert not Path(f"/proc/{process.pid}").exists(), "the number is free"
            with client.connect(path, strict=True, timeout=5, job="asks") as us:

                def pids() -> dict:
                    return {one["job"]: one["pid"] for one in us.status()["clients"]}

                # SO_PEERCRED would still have the number of the process that ended.
                assert pids() == {"heir": 0, "asks": os.getpid()}
                process.stdin.close()
                wait_for(lambda: "heir" not in pids())


def test_a_kernel_before_6_5_has_the_number_of_the_connecting_and_doctor_says_so(monkeypatch):
    # An option that no kernel has is refused as this one is by a kernel that lacks it: ENOPROTOOPT.
    monkeypatch.setattr(peers, "SO_PEERPIDFD", 29999)
    one, two = socket.socketpair()
    with one, two:
        assert peers.pid_now(one, peers.Peer(4711, 1, 1)) == 4711
    with pytest.raises(CapabilityError, match=r"no SO_PEERPIDFD: Linux 6\.5 or later"):
        peers.check()
    found = {each.name: each for each in levels.probe()}["peer pidfd"]
    assert not found.present and "SO_PEERCRED" in found.cost_if_missing


def test_doctor_names_what_tells_who_asks():
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    lines = command(*AGENT, "doctor").stdout.splitlines()
    (line,) = [each for each in lines if each[4:].startswith("peer pidfd")]
    assert line.startswith("yes" if release >= (6, 5) else "NO")


@pytest.mark.root
def test_a_process_of_another_process_namespace_has_no_number_and_is_no_ended_one(tmp_path):
    code = (
        "import sys, socket\n"
        "sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); sock.connect(sys.argv[1])\n"
        "print('here', flush=True); sys.stdin.read()\n"
    )
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        argv = [sys.executable, "-c", code, path]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"here\n"
            accepted, _ = listener.accept()
            with accepted:
                assert peers.pid_now(accepted, peers.of(accepted)) == process.pid
                # From a namespace of its own nobody outside is seen.
                look = (
                    "import os, socket, subprocess, sys; from hostagent import peers\n"
                    "sock = socket.socket(fileno=int(sys.argv[1]))\n"
                    "print(peers.pid_now(sock, peers.of(sock)))\n"
                )
                inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", look]
                done = subprocess.run(
                    [*inside, str(accepted.fileno())],
                    pass_fds=[accepted.fileno()],
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert (done.stdout, done.stderr) == ("0\n", "")
            assert process.stdin is not None
            process.stdin.close()
    one = {"job": "j", "uid": 7, "sockets": 2, "pids": [0]}
    assert "2 sockets of j (user 7) STILL marked: process (one without a number here)" in still_marked(one)
