"""The agent as a process: readiness, marking over the socket, refusals, and a clean end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from namespaces import Bounded, Space, with_ports

from hostagent import client, protocol, tagging
from hostagent.client import AgentError
from netsched import marking

ROOT = Path(__file__).parent.parent
BASE = {"version": 1, "mode": "mark"}


@contextlib.contextmanager
def agent(tmp_path: Path, config: dict, where: Space | Bounded | None = None):
    """A running agent; yields (path of its socket, its process)."""
    path = str(tmp_path / "agent.sock")
    file = tmp_path / "agent.yaml"
    api = {"socket": path} | config.get("api", {})
    file.write_text(json.dumps(config | {"api": api}))
    ready, ready_child = os.pipe()
    argv = [sys.executable, "-m", "hostagent", "run", "--config", str(file), "--ready-fd", str(ready_child)]
    process = subprocess.Popen(
        argv if where is None else where.argv(*argv), pass_fds=[ready_child], cwd=ROOT, stderr=subprocess.PIPE
    )
    os.close(ready_child)
    try:
        with os.fdopen(ready) as pipe:
            said = pipe.read()
        if said != "ready\n":
            _, errors = process.communicate(timeout=10)
            pytest.fail(f"agent ended with {process.returncode}: {errors.decode()}")
        yield path, process
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 0, errors.decode()
    assert not Path(path).exists()
    assert b"Traceback" not in errors, errors.decode()


def command(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)


@contextlib.contextmanager
def connection(family: int = socket.AF_INET, address: str = "127.0.0.1"):
    """A live TCP connection over loopback: (client's end, server's end)."""
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::" if family == socket.AF_INET6 else "127.0.0.1", 0))
        listener.listen()
        with socket.socket(family, socket.SOCK_STREAM) as near:
            near.connect((address, listener.getsockname()[1]))
            far, _ = listener.accept()
            with far:
                yield near, far


FAMILIES = [
    (socket.AF_INET, "127.0.0.1", "ipv4"),
    (socket.AF_INET6, "::1", "ipv6"),
    (socket.AF_INET6, "::ffff:127.0.0.1", "ipv4-mapped"),
]

# ------------------------------------------------------------------ one socket


@pytest.mark.parametrize(("family", "address", "name"), FAMILIES)
@pytest.mark.parametrize("dscp", [40, 36, 20, 8, 0, 63])
def test_a_socket_carries_the_dscp_and_a_neutral_priority_afterwards(family, address, name, dscp):
    with connection(family, address) as (near, _):
        result = tagging.tag(near.fileno(), dscp)
        assert result == protocol.Tagged(True, dscp, 0, name)
        assert near.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2 == dscp
        if family == socket.AF_INET6:
            assert near.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) >> 2 == dscp
        # AF42 (36) alone would have left priority 6, AF21 (18) priority 2: the kernel's TOS table.
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 0
        assert near.fileno() >= 0, "the caller's descriptor was closed"


def test_priority_is_set_last_because_the_tos_rewrites_it():
    with connection() as (near, _):
        assert tagging.tag(near, 36, priority=3).priority == 3


def test_what_is_not_a_tcp_socket_is_refused_and_not_touched():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        result = tagging.tag(udp, 40)
        assert not result.ok and "TCP" in result.error
        assert udp.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0
    with open(os.devnull) as file:  # noqa: PTH123
        assert not tagging.tag(file.fileno(), 40).ok
    one, two = socket.socketpair()
    with one, two:
        assert not tagging.tag(one, 40).ok
    assert not tagging.tag(999_999, 40).ok


@pytest.mark.parametrize(("dscp", "priority"), [(64, 0), (-1, 0), (160, 0), (40, 7), (40, -1)])
def test_a_mark_that_does_not_exist_is_an_error_of_the_caller(dscp, priority):
    with connection() as (near, _), pytest.raises(ValueError, match=r"dscp = |priority = "):
        tagging.tag(near, dscp, priority)


# ------------------------------------------------------------------ over the agent


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


def dial(path):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(5)
    sock.connect(path)
    return sock


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


# ------------------------------------------------------------------ who may


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


# ------------------------------------------------------------------ queues


@pytest.fixture(scope="module")
def host():
    with with_ports("eth0") as made:
        yield made


OURS = "htb 7a1: dev eth0 root"
QUEUE = {"version": 1, "mode": "mark+queue", "interfaces": [{"name": "eth0", "rate": "100Mbit/s"}]}


@pytest.mark.root
def test_the_agent_owns_the_queues_while_it_runs_and_gives_them_back(tmp_path, host):
    before = host.run("tc", "qdisc", "show")
    with agent(tmp_path, QUEUE, host) as (path, _), client.connect(path, strict=True, timeout=5) as us:
        assert OURS in host.run("tc", "qdisc", "show")
        (port,) = us.status()["interfaces"]
        assert (port["rate"], port["queues"], port["mechanism"]) == ("100 Mbit/s", 8, "htb-prio")
        assert port["differences"] == [] and port["direct_packets"] == 0 and len(port["classes"]) == 8
    assert host.run("tc", "qdisc", "show") == before


@pytest.mark.root
def test_after_a_kill_the_queues_stay_and_the_next_agent_takes_them_over(tmp_path, host):
    with pytest.raises(AssertionError), agent(tmp_path, QUEUE, host) as (_, process):
        process.kill()
        process.wait()
    assert OURS in host.run("tc", "qdisc", "show")
    with agent(tmp_path, QUEUE | {"on_stop": "keep"}, host):
        pass
    assert OURS in host.run("tc", "qdisc", "show")
    with agent(tmp_path, QUEUE, host):
        pass
    assert "htb" not in host.run("tc", "qdisc", "show")


@pytest.mark.root
def test_drift_is_seen_and_repaired_and_a_replaced_root_is_left_to_whoever_replaced_it(tmp_path, host):
    config = QUEUE | {"resync": "1s"}
    with agent(tmp_path, config, host) as (path, _), client.connect(path, strict=True, timeout=5) as us:
        host.run(
            "tc",
            "qdisc",
            "change",
            "dev",
            "eth0",
            "parent",
            "7a1:10",
            "handle",
            "7a20:",
            "bfifo",
            "limit",
            "5000",
        )
        assert "bfifo 5 kB" in us.status()["interfaces"][0]["differences"][0]
        wait_for(lambda: us.status()["interfaces"][0]["repairs"] == 1)
        assert us.status()["interfaces"][0]["differences"] == []
        host.run("tc", "qdisc", "del", "dev", "eth0", "root")
        host.run("tc", "qdisc", "add", "dev", "eth0", "root", "handle", "9:", "pfifo")
        wait_for(lambda: "somebody else" in us.status()["interfaces"][0]["conflict"])
    assert "pfifo 9:" in host.run("tc", "qdisc", "show", "dev", "eth0")
    host.run("tc", "qdisc", "del", "dev", "eth0", "root")


def wait_for(true):
    import time  # noqa: PLC0415

    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.root
def test_foreign_queues_and_missing_interfaces_are_refused_all_at_once_and_nothing_is_touched(tmp_path, host):
    host.run("tc", "qdisc", "add", "dev", "eth0p", "root", "handle", "5:", "pfifo")
    before = host.run("tc", "qdisc", "show")
    two = [*QUEUE["interfaces"], {"name": "eth0p", "rate": "1Gbit/s"}, {"name": "eth7", "rate": "1Gbit/s"}]
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps(QUEUE | {"interfaces": two, "api": {"socket": str(tmp_path / "s")}}))
    done = command(*host.argv(sys.executable, "-m", "hostagent", "run", "--config", str(file)))
    after = host.run("tc", "qdisc", "show")
    host.run("tc", "qdisc", "del", "dev", "eth0p", "root")
    assert done.returncode == 3
    assert "interface eth0p" in done.stderr and "interface eth7" in done.stderr
    assert "Traceback" not in done.stderr
    assert after == before
    assert not (tmp_path / "s").exists()


@pytest.mark.root
def test_plan_changes_nothing_and_its_status_says_whether_something_would(tmp_path, host):
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps(QUEUE))
    before = host.run("tc", "qdisc", "show")
    argv = host.argv(sys.executable, "-m", "hostagent", "plan", "--config", str(file), "--json")
    done = command(*argv)
    assert done.returncode == 1, done.stderr
    shown = json.loads(done.stdout)
    assert "no htb" in shown["interfaces"]["eth0"][0]
    assert shown["dscp_of_class"] == {str(cls): marking.dscp_of(cls) for cls in range(8)}
    assert host.run("tc", "qdisc", "show") == before


@pytest.mark.root
def test_status_tells_a_healthy_agent_from_a_drifted_one_and_from_none(tmp_path, host):
    ask = [sys.executable, "-m", "hostagent", "status", "--socket"]
    with agent(tmp_path, QUEUE, host) as (path, _):
        done = command(*ask, path, "--json")
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        assert shown["mode"] == "mark+queue" and shown["interfaces"][0]["rate"] == "100 Mbit/s"
        assert "eth0: 100 Mbit/s, 8 queues (htb-prio): as it should be" in command(*ask, path).stdout
        host.run(
            "tc", *["filter", "del", "dev", "eth0", "parent", "7a1:", "protocol", "ip", "pref", "0x7a10"]
        )
        done = command(*ask, path)
        assert done.returncode == 1 and "filter ip 1: missing" in done.stdout
    done = command(*ask, path)
    assert done.returncode == 1 and "No such file" in done.stderr and "Traceback" not in done.stderr


# ------------------------------------------------------------------ weight


def test_importing_the_client_brings_nothing_heavy():
    heavy = ["numba", "numpy", "scipy", "pandas", "matplotlib", "networkx", "pyarrow", "torch", "mininet"]
    heavy += ["pyroute2", "pydantic", "yaml"]
    code = f"import sys, hostagent.client; print([m for m in {heavy} if m in sys.modules])"
    done = command(sys.executable, "-c", code)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
    # The agent's own code neither: only reading a configuration takes them, which status and the like do not.
    for module, brings in (("hostagent.agent, hostagent.commands", []), ("hostagent.config", heavy[-2:])):
        done = command(sys.executable, "-c", code.replace("hostagent.client", module))
        assert done.stdout.strip() == str(brings), done.stdout + done.stderr
