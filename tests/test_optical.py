"""The optical switch in the kernel: what circuits carry, how long they are dark, what is lost then."""

from __future__ import annotations

import errno
import hashlib
import select
import signal
import socket
import statistics
import struct
import threading
import time

import numpy as np
import pytest
from namespaces import within
from optical_cases import MAC, Bench, address, bench, matching

from netsched.emulation import optical, redirects
from netsched.emulation.redirects import Ports
from netsched.errors import CapabilityError, EmulationError
from netsched.netlink import NetlinkError

PORT = 5000
SO_TIMESTAMPNS = 35

# ------------------------------------------------------------------ without root


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ([1, 0, 3], r"must name 4 ports"),
        ([1, 0, 4, 2], r"each 0 to 3 or -1"),
        ([1, 0, 1, -1], r"the end of two circuits"),
        ([0, -1, -1, -1], r"or of its own"),
    ],
)
def test_what_is_no_matching_is_refused(out, message):
    with pytest.raises(EmulationError, match=message):
        optical.check_matching(4, out)


class Refusing:
    """A kernel that takes a number of requests and then lacks something."""

    def __init__(self, takes: int) -> None:
        self.takes = takes

    def request(self, *_message: object) -> None:
        self.takes -= 1
        if self.takes < 0:
            raise NetlinkError(errno.ENOENT, "")

    def transaction(self, requests: list[object]) -> None:
        for each in requests:
            self.request(each)


@pytest.mark.parametrize(
    ("takes", "option"),
    [(0, "CONFIG_NET_SCH_INGRESS"), (1, "CONFIG_NET_CLS_U32"), (2, "CONFIG_NET_ACT_MIRRED")],
)
def test_what_the_kernel_lacks_is_named_with_its_option(takes, option):
    with pytest.raises(CapabilityError, match=option):
        redirects.prepare(Refusing(takes), Ports((7,)))


# ------------------------------------------------------------------ in the kernel


def udp(made: Bench, end: int) -> socket.socket:
    sock = made.keep(within(made.ends[end].pid, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)  # SO_RCVBUFFORCE: nothing is lost in this socket
    sock.bind(("0.0.0.0", PORT))  # noqa: S104
    return sock


class Stream:
    """Numbered datagrams from an end to an address, one every `gap` seconds, from a process of its own.

    Not a thread: it would share the interpreter with the test that waits for what it sends.
    """

    CODE = """
import socket, struct, sys, time, select
to, gap, n = sys.argv[1], float(sys.argv[2]), 0
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while not select.select([sys.stdin], [], [], gap)[0]:
    sock.sendto(struct.pack("=I", n), (to, 5000))
    n += 1
print(n)
"""

    def __init__(self, made: Bench, end: int, to: str, gap: float) -> None:
        self.sent = 0
        self._process = made.ends[end].python(self.CODE, to, str(gap), before=("chrt", "--rr", "1"))
        time.sleep(0.2)

    def stop(self) -> None:
        out, _ = self._process.communicate("stop", 10)
        self.sent = int(out)


def arrivals(sock: socket.socket) -> list[tuple[int, float]]:
    """What has come: (number, the kernel's time in seconds)."""
    found = []
    while select.select([sock], [], [], 0.1)[0]:
        data, ancillary, _, _ = sock.recvmsg(16, 64)
        seconds, nanoseconds = struct.unpack("=qq", ancillary[0][2][:16])
        found.append((struct.unpack("=I", data)[0], seconds + nanoseconds / 1e9))
    return found


def settle(made: Bench, *pairs: tuple[int, int]) -> optical.Switching:
    made.set(*pairs)
    return made.next()


@pytest.mark.root
def test_the_kernel_has_the_matching_that_was_set():
    with bench(0.005) as made:
        assert made.remote.read().matchings == ((-1, -1, -1, -1),)
        for pairs in ([(0, 1), (2, 3)], [(0, 3)], [(0, 1), (2, 3)]):
            settle(made, *pairs)
            assert made.remote.read().matchings == (tuple(matching(*pairs)),)
        # Circuits have a direction: a ring of four.
        made.remote.command([(0.0, [[1, 2, 3, 0]])])
        made.next()
        assert made.remote.read().matchings == ((1, 2, 3, 0),)


@pytest.mark.root
@pytest.mark.parametrize(("delay", "times"), [(0.005, 11), (0.02, 11), (0.1, 5)])
def test_frames_see_the_commanded_dark_time_within_a_millisecond(delay, times):
    gap = 2e-4
    with bench(delay) as made:
        settle(made, (0, 1))
        # Ends 1 and 2 both answer to one address, so that the stream goes on at the other one.
        for end in (1, 2):
            made.ends[end].ip("addr", "add", "10.8.1.1/32", "dev", "nic")
        made.ends[0].ip("route", "add", "10.8.1.1/32", "dev", "nic")
        made.ends[0].ip(*f"neigh add 10.8.1.1 lladdr {MAC} dev nic nud permanent".split())
        receivers = [udp(made, 1), udp(made, 2)]
        stream = Stream(made, 0, "10.8.1.1", gap)
        own = []
        for k in range(times):
            own.append(settle(made, (0, 2 - k % 2)).dark_s)
            time.sleep(0.01)
        stream.stop()
        came = np.sort([at for sock in receivers for _, at in arrivals(sock)])
        seen = np.sort(np.diff(came))[-times:]
    assert statistics.median(seen) == pytest.approx(delay, abs=1e-3)
    assert statistics.median(own) == pytest.approx(delay, abs=5e-4)


@pytest.mark.root
def test_an_unchanged_circuit_loses_nothing_and_all_that_is_lost_is_counted():
    """Not-all-stop leaves a circuit alone while others change; all-stop counts what it costs."""
    for all_stop in (False, True):
        with bench(0.003, all_stop=all_stop) as made:
            settle(made, (0, 1), (2, 3))
            receiver = udp(made, 1)
            stream = Stream(made, 0, address(1), 2e-4)
            lost = 0
            for k in range(20):
                done = settle(made, (0, 1), *([(2, 3)] if k % 2 else []))
                lost += done.lost
                time.sleep(0.004)
            stream.stop()
            time.sleep(0.05)
            lost += settle(made).lost
            numbers = [number for number, _ in arrivals(receiver)]
        assert numbers == sorted(numbers)
        assert stream.sent - len(numbers) == lost
        if all_stop:
            # 20 dark times of 3 ms, a datagram every 0.2 ms or later.
            assert 20 < lost <= 20 * 3e-3 / 2e-4 + 20
        else:
            assert lost == 0


@pytest.mark.root
def test_a_circuit_carries_its_rate():
    rate = 40e6 / 8
    with bench(0.005, rate=rate) as made:
        settle(made, (0, 1))
        flow = Tcp(made, 0, 1)
        flow.start()
        time.sleep(0.4)
        first, began = flow.received, time.monotonic()
        time.sleep(1.5)
        goodput = (flow.received - first) / (time.monotonic() - began)
        flow.finish()
    # Ethernet 14, IPv4 20, TCP 20 and timestamps 12 around 1448 bytes of payload.
    assert goodput == pytest.approx(rate * 1448 / 1514, rel=0.03)


class Tcp:
    """One connection that sends pseudo-random bytes until told to end, and hashes them at both ends."""

    def __init__(self, made: Bench, src: int, dst: int) -> None:
        listener = within(made.ends[dst].pid, lambda: socket.create_server((address(dst), PORT)))
        self._out = made.keep(
            within(made.ends[src].pid, lambda: socket.create_connection((address(dst), PORT)))
        )
        self._in = made.keep(listener.accept()[0])
        listener.close()
        # As in emulated hosts, see configure.RTO_MIN_MS.
        made.ends[src].ip(*f"route change 10.8.0.0/24 dev nic rto_min 40ms src {address(src)}".split())
        self._end = threading.Event()
        self.sent, self.received = 0, 0
        self.digests = [hashlib.sha256(), hashlib.sha256()]
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._receive)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        rng = np.random.default_rng(1)
        while not self._end.is_set():
            block = rng.bytes(16384)
            self._out.sendall(block)
            self.digests[0].update(block)
            self.sent += len(block)
        self._out.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        while block := self._in.recv(1 << 16):
            self.digests[1].update(block)
            self.received += len(block)

    def finish(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(20)
        assert self.sent == self.received


@pytest.mark.root
def test_a_tcp_flow_survives_100_reconfigurations_with_every_byte_right():
    delay, times = 0.005, 100
    with bench(delay, all_stop=True, rate=40e6 / 8) as made:
        settle(made, (0, 1))
        flow = Tcp(made, 0, 1)
        flow.start()
        done = []
        for k in range(times):
            done.append(settle(made, (0, 1), *([] if k % 2 else [(2, 3)])))
            time.sleep(0.02)
        flow.finish()
    assert len(done) == times
    assert sum(each.lost for each in done) > times / 2, "the flow hardly met the dark"
    assert flow.digests[0].digest() == flow.digests[1].digest()
    # 2.5 s at 4.78 MB/s would be 12 MB without the dark; a flow that is stuck for a second is not alive.
    assert flow.received > 3e6


@pytest.mark.root
def test_a_matching_set_meanwhile_replaces_what_has_not_begun():
    with bench(0.05) as made:
        began = time.monotonic()
        soon = time.monotonic() + 0.02
        made.remote.command([(soon, [matching((0, 1))]), (soon + 0.2, [matching((0, 2))])])
        done = made.next()
        assert done.commanded == soon
        assert done.dark - soon < 0.01
        assert done.dark_s == pytest.approx(0.05, abs=1e-3)
        made.remote.command([(time.monotonic(), [matching((0, 3))])])
        assert made.next().ports == 2
        time.sleep(0.25)
        assert made.remote.read().matchings == (tuple(matching((0, 3))),)
        # Two circuits, each dark for 50 ms twice and lit for the rest.
        state, ended = made.remote.read(), time.monotonic()
        assert state.dark_s == pytest.approx(4 * 0.05, abs=5e-3)
        assert 0.5 < state.lit_s + state.dark_s <= 2 * (ended - began)


@pytest.mark.root
def test_without_a_delay_light_is_turned_and_not_lost():
    with bench(0.0) as made:
        settle(made, (0, 1))
        receiver = udp(made, 1)
        made.ends[2].ip("addr", "add", f"{address(1)}/32", "dev", "nic")
        other = udp(made, 2)
        stream = Stream(made, 0, address(1), 1e-4)
        for k in range(50):
            assert settle(made, (0, 2 - k % 2)).lost == 0
        stream.stop()
        assert len(arrivals(receiver)) + len(arrivals(other)) == stream.sent


@pytest.mark.root
def test_a_failed_port_gives_no_light_counts_what_it_loses_and_keeps_its_place_in_the_matching():
    with bench(0.02) as made:
        settle(made, (0, 1))
        receivers = [udp(made, end) for end in (1, 2)]
        made.ends[2].ip("addr", "add", f"{address(1)}/32", "dev", "nic")
        sender = udp(made, 0)

        def came(n: int = 40) -> list[int]:
            for k in range(n):
                sender.sendto(struct.pack("=I", k), (address(1), PORT))
            return [len(arrivals(sock)) for sock in receivers]

        assert came() == [40, 0]
        made.remote.fail([[0]])
        failed = time.monotonic()
        assert made.remote.read().matchings == ((-1, 0, -1, -1),)
        assert came() == [0, 0]
        # What is commanded meanwhile is there when the cable is mended, without another dark time.
        assert settle(made, (0, 2)).lost == 0
        assert came() == [0, 0]
        made.remote.fail([[]])
        state, mended = made.remote.read(), time.monotonic()
        assert state.matchings == (tuple(matching((0, 2))),)
        assert state.cut == 80
        assert came() == [0, 40]
        # Both directions of the circuit were severed, but for the dark time of the new one.
        assert state.failed_s == pytest.approx(2 * (mended - failed - 0.02), abs=0.02)
        made.remote.fail([[2]])
        assert made.remote.read().matchings == ((2, -1, -1, -1),)


@pytest.mark.root
def test_the_process_ends_with_its_program_and_its_death_is_noticed():
    with bench(0.005) as made:
        made.remote.control.shutdown(socket.SHUT_RDWR)
        assert made.process.wait(5) == 0
    with bench(0.005) as made:
        made.process.send_signal(signal.SIGKILL)
        with pytest.raises(EmulationError, match="has ended"):
            made.remote.hear()
