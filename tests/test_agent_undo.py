"""After restore nothing is left of any level: queues, rules and the options of sockets are as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from agent_pages import AGENT
from ladder_ends import group
from namespaces import with_ports
from running_agent import BASE, QUEUE, ROOT, agent, command, connection
from test_agent_leaving import everything

from hostagent import client, ladder, tagging

__all__ = ["group"]

pytestmark = pytest.mark.root

# Makes connections over loopback of the three kinds at "make", has them marked at "tag", and after each word
# prints the options that its sockets have. At "quiet" it lets its client go.
JOB = """
import json, os, socket, sys
root, path, level, group = sys.argv[1:5]
sys.path.insert(0, root)
from hostagent import client, tagging
if group: open(group + "/cgroup.procs", "w").write(str(os.getpid()))
socks, us = [], None
def pair(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    l = socket.socket(family)
    if family == socket.AF_INET6: l.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    l.bind(("::" if family == socket.AF_INET6 else "127.0.0.1", 0)); l.listen()
    n = socket.socket(family); n.connect((address, l.getsockname()[1])); return [n, l.accept()[0]]
def show(a): return f"{a[0]}:{a[1]}".replace("::ffff:", "")
def ends(s): return show(s.getsockname()), show(s.getpeername())
for line in sys.stdin:
    word = line.strip()
    if word == "make": socks = pair("127.0.0.1") + pair("::1") + pair("::ffff:127.0.0.1")
    if word == "tag":
        us = client.connect(path, strict=True, timeout=10, job="job")
        if level in ("self", "descriptor"): us.tag(socks, 0, group="g")
        if level == "pidfd": assert us.tag_process(os.getpid(), 0)["status"] == "full"
        if level == "nft-tuple": assert us.tag_flows([ends(s) for s in socks], 0)["status"] == "full"
    if word == "beat" and us: us.heartbeat()
    if word == "quiet": us.close()
    print(json.dumps([vars(tagging.marks(s)) for s in socks]), flush=True)
"""


class Job:
    """The program above, asked by words."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def do(self, word: str) -> list[dict]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def job(host, path, level, group=""):
    return host.python(JOB, str(ROOT), str(path), level, str(group))


@pytest.mark.parametrize("level", ladder.LEVELS)
def test_after_restore_qdiscs_filters_rules_and_socket_options_are_byte_identical(level, tmp_path, request):
    by_group = level in (ladder.CGROUP_BPF, ladder.NFT_CGROUP)
    at = request.getfixturevalue("group") if by_group else None
    config = QUEUE | {"ladder": [level], "resync": "60s"}
    if at is not None:
        config |= {"cgroups": [{"path": at.name, "class": 0}]}
    with (
        with_ports("eth0") as host,
        job(host, tmp_path / "agent.sock", level, at or "") as running,
    ):
        one = Job(running)
        before = everything(host), one.do("make")
        with agent(tmp_path, config, host) as (path, _):
            # A group's mark comes with a connection, others to one that is there.
            marked = one.do("make" if by_group else "tag")
            of_packets = level in (ladder.NFT_CGROUP, ladder.NFT_TUPLE)
            # 40 (CS5), class 0's DSCP, is 160 as a TOS byte.
            assert {each["tos"] for each in marked} == ({0} if of_packets else {160})
            assert everything(host) != before[0]
            assert ("netsched_marks" in everything(host)) is of_packets
            argv = host.argv(*AGENT, "restore", "--socket", path)
            done = command(*argv)
            # At these levels it is the job's own client that gives back, at its next word.
            assert done.returncode == (6 if level in (ladder.SELF, ladder.DESCRIPTOR) else 0), done.stdout
            one.do("beat")
            assert command(*argv).returncode == 0
            assert (everything(host), one.do("look")) == before
        assert (everything(host), one.do("look")) == before
        running.communicate(timeout=10)


def test_what_had_marks_of_its_own_gets_those_back_and_who_has_the_socket_now_is_found(tmp_path):
    with (
        connection() as (near, far),
        agent(tmp_path, BASE | {"ladder": ["pidfd"]}) as (path, _),
        client.connect(path, strict=True, timeout=5) as us,
    ):
        assert tagging.tag(near, 8, priority=4).ok
        before = tagging.marks(near), tagging.marks(far)
        code = "import sys; sys.stdin.read()"
        argv, both = [sys.executable, "-c", code], (near.fileno(), far.fileno())
        with subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=both) as heir:
            for cls in (0, 3):
                # Marked twice, with what it carried before the first time to be given back.
                assert us.tag_process(heir.pid, cls)["status"] == "full"
            assert tagging.marks(near) != before[0] and tagging.marks(far) != before[1]
            heir.communicate(timeout=10)
        # The process that was named has ended; this one has the sockets.
        assert command(*AGENT, "restore", "--socket", path).returncode == 0
        assert (tagging.marks(near), tagging.marks(far)) == before


def test_a_socket_that_sends_keeps_its_mark_until_it_rests(tmp_path):
    with (
        connection() as (near, far),
        agent(tmp_path, BASE | {"ladder": ["pidfd"]}) as (path, _),
        client.connect(path, strict=True, timeout=5) as us,
    ):
        us.tag_process(os.getpid(), 0)
        near.setblocking(False)
        sent = 0
        while True:
            try:
                sent += near.send(bytes(1 << 16))
            except BlockingIOError:
                break
        done = command(*AGENT, "restore", "--socket", path)
        assert done.returncode == 6 and "1 sockets" in done.stdout, "the end that is not busy was given back"
        assert tagging.read(near).dscp == 40 and tagging.read(far).dscp == 0
        while sent:
            sent -= len(far.recv(1 << 20))
        assert command(*AGENT, "restore", "--socket", path, "--wait", "10s").returncode == 0
        assert tagging.read(near).dscp == 0


def test_the_sockets_of_a_job_whose_client_has_gone_are_given_back(tmp_path):
    with connection() as (near, far), agent(tmp_path, BASE) as (path, _):
        before = tagging.marks(near)
        with client.connect(path, job="gone", strict=True, timeout=5) as us:
            us.tag([near, far], 0)
        assert tagging.read(near).dscp == 40
        assert command(*AGENT, "restore", "--socket", path).returncode == 0
        assert tagging.marks(near) == tagging.marks(far) == before
