"""Each level of the tagging ladder, at the receiver: the DSCP of every data segment, and ECN left alone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from namespaces import wire, within
from test_hostagent import agent, command

from hostagent import bpf, cgroups, client, hostmarks, ladder, nft, nftmarks
from hostagent.config import ConfigError, parse
from hostagent.hostmarks import HostMarks
from netsched import marking
from netsched.errors import CapabilityError, NetschedError

ROOT = Path(__file__).parent.parent
SIZE = 2_000_000
PORTS = {"ipv4": 5001, "ipv6": 5002, "mapped": 5003}
ADDRESSES = {"ipv4": "10.9.0.2", "ipv6": "fd09::2", "mapped": "::ffff:10.9.0.2"}
SO_RCVBUFFORCE = 33
ALL_PROTOCOLS = 3
PACKET_OUTGOING = 4

# Joins a cgroup (or none), connects over the three kinds, has its sockets marked, and sends.
TRAIN = """
import os, socket, sys, json
root, path, level, cls, group, size = sys.argv[1:7]
sys.path.insert(0, root)
from hostagent import client
if group: open(group + "/cgroup.procs", "w").write(str(os.getpid()))
socks = []
for address, port in json.loads(sys.argv[7]):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, 47, 25_000_000)  # SO_MAX_PACING_RATE: what is lost is sent without ECT
    sock.connect((address, port)); socks.append(sock)
with client.connect(path, strict=True, timeout=5, job="train") as agent:
    show = lambda a: (f"[{a[0]}]:{a[1]}" if ":" in a[0] else f"{a[0]}:{a[1]}").replace("::ffff:", "")
    if level in ("self", "descriptor"): agent.tag(socks, int(cls), group="all")
    if level == "pidfd": assert agent.tag_process(os.getpid(), int(cls))["status"] == "full"
    if level == "nft-tuple":
        flows = [(show(s.getsockname()), show(s.getpeername())) for s in socks]
        flows = [tuple(f"{h.strip('[]')}:{p}" if "." in h else f"{h}:{p}"
                 for h, _, p in (end.rpartition(":") for end in flow)) for flow in flows]
        assert agent.tag_flows(flows, int(cls), group="all")["status"] == "full"
    print("tagged", flush=True); sys.stdin.readline()
    for sock in socks: sock.sendall(b"x" * int(size))
    shown = agent.explain(local=show(socks[0].getsockname()))
    for sock in socks: sock.shutdown(socket.SHUT_WR); sock.recv(1)
    print(json.dumps(shown), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def ends():
    with wire() as (left, right):
        for end in (left, right):
            end.run("sysctl", "-qw", "net.ipv4.tcp_ecn=1")
        yield left, right


@pytest.fixture
def group():
    """A control group of this test's own, empty again and gone afterwards."""
    try:
        path = cgroups.mount() / f"netsched-test-{os.getpid()}"
        path.mkdir()
    except (CapabilityError, OSError) as error:
        pytest.skip(f"no control group of version 2 can be made here: {error}")
    yield path
    end = time.monotonic() + 5
    while True:
        try:
            path.rmdir()
            break
        except OSError as error:
            assert error.errno == errno.EBUSY and time.monotonic() < end
            time.sleep(0.02)


class Capture:
    """Every TCP packet to our ports that arrives at the right end, by (port, DSCP, ECN); SYNs apart.

    A segment that comes again is counted with an ECN of -1: it is sent without ECT (RFC 3168, 6.1.5).
    """

    def __init__(self, pid: int) -> None:
        def listen() -> socket.socket:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL_PROTOCOLS))
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
            sock.bind(("right", 0))
            return sock

        self.sock = within(pid, listen)
        self.data: Counter[tuple[int, int, int]] = Counter()
        self.syns: Counter[tuple[int, int]] = Counter()
        self.ends: dict[int, int] = {}

    def close(self) -> None:
        self.sock.close()

    def read(self) -> None:
        """What has come so far. It is in the socket's buffer: nothing is lost while nobody looks."""
        self.sock.setblocking(False)
        while True:
            try:
                packet, where = self.sock.recvfrom(4096)
            except BlockingIOError:
                return
            if where[2] != PACKET_OUTGOING and where[1] in (0x0800, 0x86DD):
                self._count(packet, where[1])

    def _count(self, packet: bytes, kind: int) -> None:
        if kind == 0x0800:
            tos, head, size, protocol = packet[1], (packet[0] & 15) * 4, short(packet, 2), packet[9]
        else:
            tos, head, size, protocol = short(packet, 0) >> 4 & 255, 40, short(packet, 4) + 40, packet[6]
        if protocol != socket.IPPROTO_TCP:
            return
        tcp = packet[head:]
        port = short(tcp, 2)
        if port not in PORTS.values():
            return
        if tcp[13] & 2:
            self.syns[port, tos >> 2] += 1
        payload = size - head - (tcp[12] >> 4) * 4
        if payload > 0:
            (begin,) = struct.unpack_from(">I", tcp, 4)
            end = self.ends.setdefault(port, begin)
            # In the circle of 32-bit numbers: what lies before the highest end so far fills a gap.
            again = (begin - end) % 2**32 >= 2**31
            self.ends[port] = end if again else (begin + payload) % 2**32
            self.data[port, tos >> 2, -1 if again else tos & 3] += 1


def short(data: bytes, at: int) -> int:
    return struct.unpack_from(">H", data, at)[0]


@contextlib.contextmanager
def sinks(pid: int):
    """Listeners at the right end that read everything and close when their peer has."""
    with contextlib.ExitStack() as stack:
        for port, family in zip(
            PORTS.values(), (socket.AF_INET, socket.AF_INET6, socket.AF_INET), strict=True
        ):
            address = "fd09::2" if family == socket.AF_INET6 else "10.9.0.2"

            def make(family=family, address=address, port=port) -> socket.socket:
                return socket.create_server((address, port), family=family)

            listener = within(pid, make)
            thread = threading.Thread(target=sink, args=(listener,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(listener.close)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
        yield


def sink(listener: socket.socket) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        with sock:
            while sock.recv(1 << 18):
                pass


def config_of(level: str, group: Path | None) -> dict:
    config: dict = {"version": 1, "mode": "mark", "ladder": [level]}
    if group is not None:
        config["cgroups"] = [{"path": group.name, "class": 3}]
    return config


@pytest.mark.root
@pytest.mark.parametrize("level", [ladder.CGROUP_BPF, ladder.NFT_CGROUP])
def test_what_a_job_says_of_its_socket_counts_more_than_its_group(ends, tmp_path, level, group):
    left, right = ends
    config = config_of(level, group) | {"ladder": [level, "descriptor"]}
    where = json.dumps([(ADDRESSES["ipv4"], PORTS["ipv4"])])
    with (
        agent(tmp_path, config, left) as (path, _),
        sinks(right.pid),
        contextlib.closing(Capture(right.pid)) as capture,
    ):
        argv = [str(ROOT), path, "descriptor", "1", str(group), "100000", where]
        train = left.python(TRAIN, *argv)
        out, _ = train.communicate("send\nend\n", timeout=20)
        assert train.returncode == 0
        capture.read()
    (one,) = json.loads(out.splitlines()[1])["sockets"]
    assert (one["level"], one["dscp_now"]) == ("descriptor", 36)
    assert {dscp for _, dscp, _ in capture.data} == {36}
    assert capture.syns[PORTS["ipv4"], 20] == 1, "before the job said so, its group's mark held"


@pytest.mark.root
@pytest.mark.parametrize("level", ladder.LEVELS)
def test_the_receiver_sees_the_mark_on_every_data_segment_and_ecn_untouched(ends, tmp_path, level, request):
    left, right = ends
    by_group = level in (ladder.CGROUP_BPF, ladder.NFT_CGROUP)
    group = request.getfixturevalue("group") if by_group else None
    dscp = marking.dscp_of(3)
    before = left.run("nft", "list", "ruleset")
    where = json.dumps([(ADDRESSES[kind], PORTS[kind]) for kind in PORTS])
    with (
        agent(tmp_path, config_of(level, group), left) as (path, _),
        sinks(right.pid),
        contextlib.closing(Capture(right.pid)) as capture,
    ):
        train = left.python(TRAIN, str(ROOT), path, level, "3", str(group or ""), str(SIZE), where)
        assert train.stdin is not None and train.stdout is not None
        assert train.stdout.readline() == "tagged\n"
        train.stdin.write("send\n")
        train.stdin.flush()
        explained = json.loads(train.stdout.readline())
        train.communicate("end\n", timeout=20)
        assert train.returncode == 0
        capture.read()
    for kind, port in PORTS.items():
        seen = {key[1:]: count for key, count in capture.data.items() if key[0] == port}
        total = sum(seen.values())
        assert total >= SIZE / 2000
        # ECT(0) is binary 10 (RFC 3168), which the handshake negotiated; 11 would be a congested queue.
        right_ones = sum(count for (mark, ecn), count in seen.items() if mark == dscp and ecn in (2, 3, -1))
        assert right_ones >= 0.999 * total, (kind, seen)
        if by_group:
            assert capture.syns[port, dscp] >= 1, "the first packet is marked as well"
    (one,) = explained["sockets"]
    assert (one["level"], one["dscp_now"]) == (level, dscp)
    assert [step["level"] for step in explained["ladder"][level] if step["chosen"]] == [level]
    assert left.run("nft", "list", "ruleset") == before


# ------------------------------------------------------------------ what does not work says why


def refuse(code: int):
    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


def host_config(*levels: str, path: str = "train"):
    text = {"version": 1, "mode": "mark", "ladder": levels, "cgroups": [{"path": path, "class": 0}]}
    return parse(json.dumps(text), "x")


@pytest.fixture
def made_up(monkeypatch):
    """A control group that is there as far as this module can tell."""
    monkeypatch.setattr(
        cgroups, "find", lambda name: cgroups.Cgroup(name, Path("/sys/fs/cgroup") / name, 1, 7)
    )


def test_the_first_level_that_works_is_taken_and_the_others_say_why_not(monkeypatch, made_up):
    monkeypatch.setattr(bpf, "_call", refuse(errno.EINVAL))
    monkeypatch.setattr(nft, "run", lambda *_, script=None: "")
    host = HostMarks.of(host_config("cgroup-bpf", "nft-cgroup"))
    assert host.level == "nft-cgroup"
    assert "CONFIG_CGROUP_BPF" in host.why["cgroup-bpf"]
    host = HostMarks.of(host_config("nft-cgroup", "cgroup-bpf"))
    assert host.level == "nft-cgroup" and host.why == {"cgroup-bpf": "not tried: nft-cgroup works"}


def test_where_no_level_works_the_agent_is_refused_with_every_missing_option(monkeypatch, made_up):
    def no_nft(*_: object, script: str | None = None) -> str:
        raise nft.NftError("nft: No such file or directory")

    monkeypatch.setattr(bpf, "_call", refuse(errno.EPERM))
    monkeypatch.setattr(nft, "run", no_nft)
    with pytest.raises(CapabilityError) as caught:
        HostMarks.of(host_config("cgroup-bpf", "nft-cgroup"))
    text = str(caught.value)
    assert "CAP_BPF" in text and "CONFIG_NFT_SOCKET" in text and "CONFIG_SOCK_CGROUP_DATA" in text
    with pytest.raises(CapabilityError, match="CONFIG_NF_TABLES"):
        HostMarks.of(parse("{version: 1, mode: mark, ladder: [nft-tuple]}", "x"))
    monkeypatch.undo()
    monkeypatch.setattr(nft.shutil, "which", lambda *_, path: None)
    with pytest.raises(CapabilityError, match="apt-get install nftables"):
        HostMarks.of(parse("{version: 1, mode: mark, ladder: [nft-tuple]}", "x"))


def test_a_group_that_is_not_there_is_named(tmp_path):
    done = command(sys.executable, "-m", "hostagent", "run", "--config", write(tmp_path, "no/such.group"))
    assert done.returncode in (1, 4) and len(done.stderr.splitlines()) == 1
    assert "cgroup no/such.group: " in done.stderr or "cgroup v2 is not mounted" in done.stderr
    assert not (tmp_path / "s").exists()


def write(place: Path, path: str) -> str:
    file = place / "agent.yaml"
    content = config_of("nft-cgroup", Path(path)) | {"api": {"socket": str(place / "s")}}
    content["cgroups"][0]["path"] = path
    file.write_text(json.dumps(content))
    return str(file)


def test_where_version_2_is_not_mounted_that_is_said(tmp_path):
    table = tmp_path / "mountinfo"
    table.write_text("30 1 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n")
    with pytest.raises(CapabilityError, match="cgroup v2 is not mounted"):
        cgroups.mount(table)
    table.write_text("31 1 0:26 / /sys/fs/cgroup\\040x rw,nosuid - cgroup2 none rw\n")
    assert cgroups.mount(table) == Path("/sys/fs/cgroup x")
    for wrong in ("", "/", "a/../b", "."):
        with pytest.raises(NetschedError, match="below the mount"):
            cgroups.find(wrong)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ladder: []", "ladder"),
        ("ladder: [descriptor, descriptor]", "ladder: descriptor is named twice"),
        ("ladder: [magic]", "ladder"),
        ("cgroups: [{path: a, class: 0}]", "cgroups: the ladder needs cgroup-bpf or nft-cgroup"),
        ("ladder: [nft-cgroup]\ncgroups: [{path: a, class: 9}]", "cgroups[0]: class = 9"),
        ("ladder: [nft-cgroup]\ncgroups: [{path: a, class: 0}, {path: a, class: 1}]", "a is named twice"),
        ('ladder: [nft-cgroup]\ncgroups: [{path: "a\\" accept", class: 0}]', "cgroups[0].path"),
        ("ladder: [nft-cgroup]\ncgroups: [{path: a, class: 0, clas: 1}]", "unknown key"),
        ("api: {limits: {messages: 5}}", "write 200/s"),
        ("api: {limits: {sockets: 0}}", "api.limits.sockets"),
        ("api: {lease: 0.5s}", "api.lease"),
    ],
)
def test_a_mistake_in_what_is_marked_how_is_one_line(text, says):
    with pytest.raises(ConfigError) as caught:
        parse(f"version: 1\n{text}", "x.yaml")
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.root
def test_doctor_tries_every_level_and_changes_nothing(ends, group):
    left, _ = ends
    before = left.run("nft", "list", "ruleset")
    done = command(*left.argv(sys.executable, "-m", "hostagent", "doctor", "--json"))
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["capabilities"]}
    # What the captures above need: they would have failed without.
    for level in (ladder.CGROUP_BPF, ladder.NFT_CGROUP, ladder.NFT_TUPLE, ladder.PIDFD):
        assert found[f"ladder {level}"]["present"], found[f"ladder {level}"]
    assert left.run("nft", "list", "ruleset") == before
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    done = command(*left.argv(*bare, sys.executable, "-m", "hostagent", "doctor"))
    assert done.returncode == 0, done.stderr
    assert "get it: cgroup-bpf: CAP_BPF and CAP_NET_ADMIN are needed" in done.stdout
    assert "get it: nft: CAP_NET_ADMIN is needed" in done.stdout


# ------------------------------------------------------------------ the program and the table


def test_the_program_is_what_the_kernel_s_header_says():
    code = bpf.program(40)
    assert len(code) % 8 == 0
    first = struct.unpack_from("=BBhi", code, 0)
    assert first == (0xBF, 0x16, 0, 0), "r6 = r1: the context is kept over the calls"
    stores = [one for one in struct.iter_unpack("=BBhi", code) if one[0] == 0x62]
    assert [one[3] for one in stores] == [160, 0], "the TOS byte of DSCP 40, then priority 0"
    calls = [one[3] for one in struct.iter_unpack("=BBhi", code) if one[0] == 0x85]
    assert calls == [49] * 3
    levels = [one[3] for one in struct.iter_unpack("=BBhi", code) if one[:2] == (0xB7, 0x02)]
    assert levels == [socket.IPPROTO_IP, socket.IPPROTO_IPV6, socket.SOL_SOCKET], "the priority is last"


@pytest.mark.root
def test_where_a_group_takes_no_program_the_level_below_is_taken(group, monkeypatch):
    monkeypatch.setattr(bpf, "attach", lambda *_: bpf._call(28, b""))

    def refuse_links(command: int, attributes: bytes) -> int:
        raise CapabilityError("cgroup-bpf: CAP_BPF and CAP_NET_ADMIN are needed")

    loaded: list[str] = []
    monkeypatch.setattr(nft, "run", lambda *argv, script=None: loaded.append(script or "") or "")
    host = HostMarks.of(host_config("cgroup-bpf", "nft-cgroup", path=group.name))
    assert host.level == "cgroup-bpf" and host.table is None
    assert host.plan() == [f"cgroup {group.name}: class 0 (CS5) by cgroup-bpf"]
    monkeypatch.setattr(bpf, "_call", refuse_links)
    assert host.apply() == 1
    assert host.level == "nft-cgroup" and "CAP_BPF" in host.why["cgroup-bpf"]
    assert f'{group.name}" ip dscp cs0 ip dscp set cs5' in loaded[-2]
    assert host.restore() == []


@pytest.mark.root
def test_plan_and_status_tell_what_is_marked_for_jobs_that_do_not_ask(ends, tmp_path, group):
    left, _ = ends
    file = tmp_path / "agent.yaml"
    for level in ("cgroup-bpf", "nft-cgroup"):
        config = config_of(level, group) | {"ladder": [level, "nft-tuple"]}
        file.write_text(json.dumps(config))
        before = left.run("nft", "list", "ruleset")
        done = command(*left.argv(sys.executable, "-m", "hostagent", "plan", "--config", str(file), "--json"))
        assert done.returncode == 1, done.stderr
        assert json.loads(done.stdout)["marks"] == [
            f"cgroup {group.name}: class 3 (AF22) by {level}",
            f"nft table inet {nftmarks.TABLE}: to be loaded",
        ]
        assert left.run("nft", "list", "ruleset") == before
        with agent(tmp_path, config, left) as (path, _):
            done = command(sys.executable, "-m", "hostagent", "status", "--socket", path)
            assert done.returncode == 0
            words = f"marked cgroups by {level}: {group.name} (class 3); connections marked by address: 0"
            assert words in done.stdout


@pytest.mark.root
def test_a_program_ends_with_its_agent_and_marks_stay_on_their_sockets(ends, tmp_path, group):
    left, _ = ends
    code = (
        "import os,socket,sys\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "l=socket.create_server(('127.0.0.1',0))\n"
        "for line in sys.stdin:\n"
        "    s=socket.create_connection(l.getsockname()); a,_=l.accept()\n"
        "    print(s.getsockopt(0, socket.IP_TOS), a.getsockopt(0, socket.IP_TOS), flush=True)\n"
    )
    job = left.python(code, str(group))
    assert job.stdin is not None and job.stdout is not None

    def marks() -> str:
        job.stdin.write("\n")
        job.stdin.flush()
        return job.stdout.readline()

    assert marks() == "0 0\n"
    config = config_of("cgroup-bpf", group)
    with agent(tmp_path, config, left), contextlib.suppress(AssertionError):
        assert marks() == "80 80\n", "DSCP 20, at both ends of a connection within the group"
    assert marks() == "0 0\n"
    with pytest.raises(AssertionError), agent(tmp_path, config, left) as (_, process):
        assert marks() == "80 80\n"
        process.kill()
        process.wait()
    assert marks() == "0 0\n", "the kernel has taken the program away"
    job.communicate(timeout=10)


@pytest.mark.root
def test_after_a_kill_marked_connections_are_taken_over_without_a_change(ends, tmp_path):
    left, _ = ends
    config = {"version": 1, "mode": "mark", "ladder": ["nft-tuple"], "resync": "1s", "on_stop": "keep"}
    sockets = []
    try:
        for family, host in ((socket.AF_INET, "10.9.0.1"), (socket.AF_INET6, "fd09::1")):

            def make(family=family, host=host) -> tuple[socket.socket, ...]:
                with socket.create_server((host, 0), family=family) as listener:
                    near = socket.create_connection(listener.getsockname()[:2])
                    return near, listener.accept()[0]

            sockets += within(left.pid, make)
        show = [f"{s.getsockname()[0]}:{s.getsockname()[1]}" for s in (sockets[0], sockets[1])]
        show6 = [f"[{s.getsockname()[0]}]:{s.getsockname()[1]}" for s in (sockets[2], sockets[3])]
        with (
            pytest.raises(AssertionError),
            agent(tmp_path, config, left) as (path, process),
            client.connect(path, strict=True, timeout=5) as us,
        ):
            us.tag_flows([tuple(show)], 0)
            us.tag_flows([tuple(show6)], 2)
            process.kill()
            process.wait()
        handles = left.run("nft", "-a", "-t", "list", "ruleset")
        with agent(tmp_path, config, left) as (path, _), client.connect(path, strict=True, timeout=5) as us:
            assert left.run("nft", "-a", "-t", "list", "ruleset") == handles, "nothing was made anew"
            assert us.status()["marks"]["flows"] == 2
            (one,) = us.explain(local=show6[0])["sockets"]
            assert (one["level"], one["dscp_now"], one["class"]) == ("nft-tuple", 32, 2)
            sockets[0].close()
            sockets[1].close()
            wait_until(lambda: us.status()["marks"]["flows"] == 1)
    finally:
        for sock in sockets:
            sock.close()
    assert nftmarks.TABLE in left.run("nft", "list", "tables"), "on_stop: keep"
    left.run("nft", "delete", "table", "inet", nftmarks.TABLE)


@pytest.mark.root
def test_an_operator_can_have_a_connection_or_a_process_marked(ends, tmp_path):
    left, _ = ends
    code = (
        "import socket,sys\n"
        "l=socket.create_server(('10.9.0.1',0)); s=socket.create_connection(l.getsockname())\n"
        "a,_=l.accept()\n"
        "print('{}:{} {}:{}'.format(*s.getsockname(), *s.getpeername()), flush=True); sys.stdin.read(1)\n"
        "print(*(x.getsockopt(0, socket.IP_TOS) >> 2 for x in (l, s, a)))\n"
    )
    with agent(tmp_path, {"version": 1, "mode": "mark", "ladder": ["nft-tuple", "pidfd"]}, left) as (path, _):
        job = left.python(code)
        assert job.stdin is not None and job.stdout is not None
        ends_of_it = job.stdout.readline().split()
        tag = [sys.executable, "-m", "hostagent", "tag", "--socket", path, "--job", "by hand"]
        done = command(*tag, "--class", "2", "--flow", *ends_of_it)
        assert (done.returncode, done.stdout) == (0, "1 of 1 marked CS4\n"), done.stderr
        (flow,) = (line for line in left.run("nft", "list", "ruleset").splitlines() if "expires" in line)
        assert all(end.replace(":", " . ") in flow for end in ends_of_it)
        done = command(*tag, "--class", "2", "--flow", ends_of_it[0], "10.9.0.2:1")
        assert done.returncode == 6
        assert done.stdout == "socket: user 0 has no such connection here\n0 of 1 marked CS4\n"
        done = command(*tag, "--class", "0", "--pid", str(job.pid), "--json")
        assert done.returncode == 0, done.stderr
        assert (json.loads(done.stdout)["marked"], json.loads(done.stdout)["dscp"]) == (2, 40)
        assert "expires" not in left.run("nft", "list", "ruleset"), "the socket's own mark is not overridden"
        done = command(*tag, "--class", "9", "--pid", str(job.pid))
        assert done.returncode == 1 and "class = 9" in done.stderr and "Traceback" not in done.stderr
        shown = command(sys.executable, "-m", "hostagent", "explain", "--socket", path, "--job", "by hand")
        assert shown.returncode == 0 and shown.stdout.count("; level pidfd") == 2
        out, _ = job.communicate("x", timeout=10)
        assert out == "0 40 40\n", "the listening socket is none of the connections"


@pytest.mark.root
def test_a_group_made_anew_is_followed_and_the_table_is_repaired(ends, tmp_path, group):
    left, _ = ends
    config = config_of("nft-cgroup", group) | {"resync": "1s"}
    list_it = ("nft", "-s", "-t", "list", "table", "inet", nftmarks.TABLE)
    with agent(tmp_path, config, left) as (path, _), client.connect(path, strict=True, timeout=5) as us:
        whole = left.run(*list_it)
        left.run("nft", "flush", "chain", "inet", nftmarks.TABLE, nftmarks.CHAIN)
        wait_until(lambda: left.run(*list_it) == whole)
        shown = us.status()["marks"]
        assert shown["level"] == "nft-cgroup" and shown["conflict"] == ""
        number = group.stat().st_ino
        group.rmdir()
        group.mkdir()
        assert group.stat().st_ino != number
        wait_until(lambda: left.run(*list_it) == whole)
        left.run("nft", "delete", "table", "inet", nftmarks.TABLE)
        wait_until(lambda: nftmarks.TABLE in left.run("nft", "list", "tables"))
        left.run("nft", "delete", "table", "inet", nftmarks.TABLE)
        wait_until(lambda: "3 times in 10 minutes" in us.status()["marks"]["conflict"])
        assert us.status()["not_ready"] == [f"marks: {us.status()['marks']['conflict']}"]


def wait_until(true) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_only_repairs_in_quick_succession_count(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(hostmarks.time, "monotonic", lambda: now)
    host = HostMarks(parse("{version: 1}", "x"))

    class Table:
        def load(self) -> int:
            return 1

    host.table = Table()  # type: ignore[assignment]
    for _ in range(5):
        host.watch()
        now += 301
    assert host.conflict == ""
    for _ in range(2):
        host.watch()
    assert "3 times in 10 minutes" in host.conflict
