"""What tests of the tagging ladder share: two hosts and a wire, a control group, a capture."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from namespaces import wire, within

from hostagent import cgroups
from netsched.errors import CapabilityError

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


def wait_until(true) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
