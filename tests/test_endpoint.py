"""The two halves of an endpoint over loopback TCP, without root: order, classes, caps, and what is counted.

What was sent is read back by `chunk_stream`, which knows the format and none of the code under test.
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest
from chunk_stream import HEADER, HELLO, bytes_per_flow, chunks_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from netsched.emulation import sender as sender_module
from netsched.emulation import wire
from netsched.emulation.receiver import Receiver
from netsched.emulation.sender import Flow, Key, Sender

CHUNK = 1000
HERE, THERE = 0x0A000001, 0x0A000002
WINDOW = 8 * 1448


class Loop:
    """A sender whose connections end in this process; `got` has the bytes of each of them.

    With `small` buffers the kernel takes only a few chunks until somebody reads.
    """

    def __init__(self, queued: bool, *, chunk: int = CHUNK, scale: float = 1.0, small: bool = False) -> None:
        self.small = small
        self.watched: set[int] = set()
        self.ends: list[tuple[tuple[int, int], socket.socket, bytearray]] = []
        self.socks: list[socket.socket] = []
        self.sender = Sender(queued, chunk, scale, self.dial, self.watch)

    def dial(self, dst: int, cls: int) -> socket.socket:
        with socket.socket() as listener, socket.socket() as ours:
            if self.small:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            # As the endpoint does: else a last small chunk waits for an acknowledgement, longer than `drain`.
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ours.connect(listener.getsockname())
            theirs, _ = listener.accept()
            ours.setblocking(False)
            theirs.setblocking(False)
            kept = socket.socket(fileno=ours.detach())
        self.socks.append(kept)
        self.ends.append(((dst, cls), theirs, bytearray()))
        return kept

    def watch(self, fd: int, on: bool) -> None:
        assert (fd in self.watched) != on, "the event loop refuses to be asked twice for the same"
        (self.watched.add if on else self.watched.discard)(fd)

    def pump_once(self) -> None:
        for fd in sorted(self.watched):
            self.sender.pump(fd)
        if self.sender.throttled:
            self.sender.earn()

    def read_all(self) -> None:
        """Take everything that has been sent, hellos included."""
        end = time.monotonic() + 10
        while sum(len(got) for _, _, got in self.ends) < self.sender.sent + 1448 * self.sender.opened:
            assert time.monotonic() < end, "what was sent does not arrive"
            self.read()

    def read(self) -> bool:
        """Take what has come over all connections; whether anything had."""
        before = sum(len(got) for _, _, got in self.ends)
        for _, theirs, got in self.ends:
            with contextlib.suppress(BlockingIOError):
                while data := theirs.recv(1 << 16):
                    got.extend(data)
        return sum(len(got) for _, _, got in self.ends) > before

    def drain(self) -> None:
        """Send and read until there is nothing left to send and nothing on its way."""
        quiet, end = 0, time.monotonic() + 20
        while quiet < 3:
            assert time.monotonic() < end, f"still {len(self.watched)} connections with something to send"
            before = self.sender.sent
            self.pump_once()
            moved = self.read() or self.sender.sent != before
            quiet = 0 if moved or self.watched or self.sender.throttled else quiet + 1
            if not moved:
                time.sleep(0.001)

    def got(self, dst: int, cls: int) -> list[bytes]:
        return [bytes(data) for key, _, data in self.ends if key == (dst, cls)]

    def flows(self, dst: int, cls: int) -> list[list[int]]:
        """The flows of each connection's chunks in order, each named once in a row."""
        found = []
        for data in self.got(dst, cls):
            order = [chunk.flow for chunk in chunks_of(data) if chunk.flow != HELLO]
            found.append([f for i, f in enumerate(order) if i == 0 or order[i - 1] != f])
        return found

    def close(self) -> None:
        for sock in (*self.socks, *(theirs for _, theirs, _ in self.ends)):
            sock.close()


@pytest.fixture(params=[True, False], ids=["per-pair", "per-flow"])
def any_loop(request) -> Iterator[Loop]:
    made = Loop(request.param)
    yield made
    made.close()


@pytest.fixture
def loop(request) -> Iterator[Loop]:
    made = Loop(**getattr(request, "param", {"queued": True}))
    yield made
    made.close()


def flow(
    number: int,
    size: int,
    *,
    order: int | None = None,
    lane: int = 0,
    dst: int = THERE,
    cls: int = 0,
    cap=math.inf,
) -> Flow:
    return Flow(number, number if order is None else order, lane, dst, cls, size, size, cap)


# ------------------------------------------------------------------ sizes


SIZES = [HEADER, HEADER + 1, CHUNK - 1, CHUNK, *(CHUNK + extra for extra in range(1, 18)), 3 * CHUNK + 5]


@pytest.mark.parametrize("size", SIZES)
def test_a_flow_of_any_size_is_sent_to_its_last_byte_and_not_beyond(any_loop, size):
    any_loop.sender.start(flow(7, size))
    any_loop.drain()
    (data,) = any_loop.got(THERE, 0)
    assert bytes_per_flow(data) == {7: size}
    sent = [chunk for chunk in chunks_of(data) if chunk.flow == 7]
    assert sent[-1].end == len(data)
    assert {chunk.total for chunk in sent} == {size}
    # A rest too small for a header of its own goes with the chunk before it.
    assert max(chunk.end - chunk.start for chunk in sent) <= CHUNK + HEADER
    assert any_loop.sender.sent == size


@settings(deadline=None)
@given(st.lists(st.integers(HEADER, 4 * CHUNK), min_size=1, max_size=12))
@example([16, 16, 16, 16, 16, 905, 2016, 4000, 4000, 3985, 16, 2000])
def test_flows_of_any_sizes_share_a_queue_without_losing_a_byte(sizes):
    loop = Loop(True)
    try:
        for number, size in enumerate(sizes):
            loop.sender.start(flow(number, size))
        loop.drain()
        (data,) = loop.got(THERE, 0)
        assert bytes_per_flow(data) == dict(enumerate(sizes))
        assert loop.flows(THERE, 0) == [list(range(len(sizes)))]
        assert chunks_of(data)[-1].end == len(data)
    finally:
        loop.close()


def test_a_scaled_flow_is_never_smaller_than_the_header_that_announces_it():
    assert wire.wire_size(0.0, 0.01) == HEADER
    assert wire.wire_size(1.0, 0.01) == HEADER
    assert wire.wire_size(1e6, 0.01) == 10_000
    assert wire.CHUNK.size == HEADER


# ------------------------------------------------------------------ connections and their queues


def test_every_connection_begins_with_a_full_segment_of_nobody(any_loop):
    any_loop.sender.start(flow(1, 100))
    any_loop.drain()
    (data,) = any_loop.got(THERE, 0)
    hello, first = chunks_of(data)
    # 1500 - 20 (IPv4) - 20 (TCP) - 12 (timestamps)
    assert (hello.flow, hello.end - hello.start) == (HELLO, 1448)
    assert first.flow == 1


def test_a_queue_goes_in_order_of_release_whatever_order_it_was_told_in(loop):
    for number, order in ((1, 30), (2, 10), (3, 20)):
        loop.sender.start(flow(number, 5 * CHUNK, order=order))
    loop.drain()
    assert loop.flows(THERE, 0) == [[2, 3, 1]]
    assert loop.sender.opened == 1


def test_small_flows_share_a_segment(loop):
    for number in range(20):
        loop.sender.start(flow(number, 40))
    loop.pump_once()
    # 20 x 40 = 800 bytes are less than a chunk: one call of the kernel takes them all.
    assert loop.sender.sent == 800
    assert not loop.watched


@pytest.mark.parametrize(
    ("one", "two"),
    [({"lane": 1}, {"lane": 2}), ({"dst": HERE}, {"dst": THERE}), ({"cls": 1}, {"cls": 2})],
)
def test_lanes_destinations_and_classes_have_a_connection_each(loop, one, two):
    loop.sender.start(flow(1, 300, **one))
    loop.sender.start(flow(2, 300, **two))
    loop.sender.start(flow(3, 300, **one))
    loop.drain()
    assert loop.sender.opened == 2
    first, second = (bytes(data) for _, _, data in loop.ends)
    assert (bytes_per_flow(first), bytes_per_flow(second)) == ({1: 300, 3: 300}, {2: 300})


@pytest.mark.parametrize("loop", [{"queued": False}], indirect=True)
def test_without_queues_flows_at_one_time_have_a_connection_each_and_later_ones_take_a_free_one(loop):
    for number in range(3):
        loop.sender.start(flow(number, 5 * CHUNK))
    assert loop.sender.opened == 3
    loop.drain()
    for number in range(3, 6):
        loop.sender.start(flow(number, 5 * CHUNK))
    loop.sender.start(flow(6, 5 * CHUNK, cls=1))
    loop.drain()
    assert loop.sender.opened == 4
    carried = sorted(sorted(bytes_per_flow(data)) for data in loop.got(THERE, 0))
    assert [len(numbers) for numbers in carried] == [2, 2, 2]
    assert sorted(number for numbers in carried for number in numbers) == list(range(6))
    assert bytes_per_flow(loop.got(THERE, 1)[0]) == {6: 5 * CHUNK}


@pytest.mark.parametrize("queued", [True, False])
def test_what_was_opened_before_the_run_is_used_and_nothing_else_is_opened(queued):
    loop = Loop(queued)
    key: Key = (4 if queued else -1, THERE, 2)
    loop.sender.open(key)
    loop.sender.start(flow(1, 100, lane=4, cls=2))
    loop.drain()
    assert loop.sender.opened == 1
    assert bytes_per_flow(loop.got(THERE, 2)[0]) == {1: 100}
    loop.close()


# ------------------------------------------------------------------ changing class


@pytest.mark.parametrize(
    "loop", [{"queued": True, "small": True}, {"queued": False, "small": True}], indirect=True
)
def test_a_flow_changes_class_at_a_chunk_and_loses_nothing(loop):
    size = 200 * CHUNK + 3
    loop.sender.start(flow(1, size, cls=5))
    loop.pump_once()
    before = loop.sender.sent
    assert 0 < before < size / 2, "the buffers of this kernel are too large for this test"
    loop.sender.change(1, 2, math.inf)
    loop.drain()
    (old,), (new,) = loop.got(THERE, 5), loop.got(THERE, 2)
    # The old connection ends with the chunk that was under way.
    assert before <= bytes_per_flow(old)[1] <= before + CHUNK + HEADER
    assert chunks_of(old)[-1].end == len(old)
    assert bytes_per_flow(old)[1] + bytes_per_flow(new)[1] == size
    # Only what was already in the kernel's hands still went by the old class.
    assert bytes_per_flow(new)[1] > size / 2


def test_a_flow_that_changes_class_takes_its_place_by_order_of_release(loop):
    loop.sender.start(flow(1, 5 * CHUNK, order=1, cls=0))
    loop.sender.start(flow(3, 5 * CHUNK, order=3, cls=0))
    loop.sender.start(flow(2, 5 * CHUNK, order=2, cls=1))
    loop.sender.change(2, 0, math.inf)
    loop.drain()
    assert loop.flows(THERE, 0) == [[1, 2, 3]]


def test_a_change_of_a_flow_that_has_ended_or_never_was_does_nothing(any_loop):
    any_loop.sender.start(flow(1, 300))
    any_loop.drain()
    any_loop.sender.change(1, 3, 5.0)
    any_loop.sender.change(99, 3, 5.0)
    any_loop.drain()
    assert any_loop.sender.opened == 1
    assert any_loop.sender.sent == 300


# ------------------------------------------------------------------ caps


class Clock:
    """The sender's `time`, which only goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sender_module, "time", made)
    return made


def speed(loop: Loop, clock: Clock, seconds: float = 0.1) -> float:
    """Bytes/s that leave in the next `seconds`, looked at every millisecond as an endpoint does."""
    before = loop.sender.sent
    for _ in range(round(seconds / 1e-3)):
        clock.now += 1e-3
        loop.pump_once()
        loop.read_all()
    return (loop.sender.sent - before) / seconds


def settle(loop: Loop, clock: Clock) -> None:
    """Let it spend what it saved up."""
    speed(loop, clock, 0.02)


def nearly(rate: float) -> object:
    """A segment and a chunk more or less in 0.1 s."""
    return pytest.approx(rate, abs=(1448 + CHUNK) / 0.1)


@pytest.mark.parametrize("loop", [{"queued": True, "scale": 0.5}], indirect=True)
def test_a_queue_goes_as_fast_as_its_flows_together_times_the_scale(loop, clock):
    for caps, wanted in (((1e6,), 0.5e6), ((1e6, 3e6), 2e6), ((2e6, 3e6), 2.5e6)):
        for number, cap in enumerate(caps):
            if number in loop.sender._flows:
                loop.sender.change(number, 0, cap)
            else:
                loop.sender.start(flow(number, 10_000_000, cap=cap))
        settle(loop, clock)
        assert speed(loop, clock) == nearly(wanted)
    assert loop.sender.throttled


def test_a_flow_that_leaves_a_queue_takes_its_cap_along(loop, clock):
    loop.sender.start(flow(1, 10_000_000, cap=1e6))
    loop.sender.start(flow(2, 10_000_000, cap=3e6))
    loop.sender.change(2, 1, 3e6)
    settle(loop, clock)
    before = [len(data) for _, _, data in loop.ends]
    speed(loop, clock)
    first, second = ((len(data) - b) / 0.1 for (_, _, data), b in zip(loop.ends, before, strict=True))
    assert (first, second) == (nearly(1e6), nearly(3e6))


def test_a_capped_connection_makes_up_for_no_more_than_a_moment(loop, clock):
    """It could not be called for a second: of the 1 MB that it was due it gets a chunk and 5 ms' worth."""
    loop.sender.start(flow(1, 10_000_000, cap=1e6))
    settle(loop, clock)
    before = loop.sender.sent
    clock.now += 1.0
    loop.pump_once()
    assert loop.sender.sent - before <= CHUNK + 5000 + HEADER


def test_a_very_slow_flow_does_not_hold_up_what_it_may_do_next(loop, clock):
    """With the kernel's pacing, a segment sent at 100 bytes/s would block the connection for 14 s."""
    loop.sender.start(flow(1, 1_000_000, cap=100.0))
    speed(loop, clock, 0.1)
    loop.sender.change(1, 0, 1e6)
    settle(loop, clock)
    assert speed(loop, clock) == nearly(1e6)
    loop.sender.change(1, 0, math.inf)
    loop.drain()
    assert not loop.sender.throttled
    assert bytes_per_flow(loop.got(THERE, 0)[0]) == {1: 1_000_000}


@pytest.mark.parametrize("loop", [{"queued": False}], indirect=True)
def test_a_connection_that_is_used_again_has_the_cap_of_its_new_flow(loop, clock):
    loop.sender.start(flow(1, 300, cap=1e3))
    loop.drain()
    loop.sender.start(flow(2, 10_000_000, cap=2e6))
    settle(loop, clock)
    assert (loop.sender.opened, speed(loop, clock)) == (1, nearly(2e6))


def test_small_flows_under_a_cap_are_sent_one_by_one_and_completely(loop, clock):
    for number in range(20):
        loop.sender.start(flow(number, 200, cap=100.0))
    # 2 kB/s at first, and less with every flow that ends: 2 s * (1 + 1/2 + ... + 1/20) = 7.2 s for all.
    speed(loop, clock, 0.5)
    assert 0 < loop.sender.sent <= CHUNK + 0.5 * 2000
    speed(loop, clock, 7.5)
    assert bytes_per_flow(loop.got(THERE, 0)[0]) == dict.fromkeys(range(20), 200)


@pytest.mark.parametrize("queued", [True, False])
def test_a_flow_with_a_cap_of_zero_waits_until_it_gets_one(queued):
    loop = Loop(queued)
    loop.sender.start(flow(1, 5 * CHUNK, cap=0.0))
    assert not loop.watched
    loop.drain()
    assert loop.sender.sent == 0
    loop.sender.change(1, 0, 1e9)
    loop.drain()
    assert loop.sender.sent == 5 * CHUNK
    loop.close()


@pytest.mark.parametrize("loop", [{"queued": True, "small": True}], indirect=True)
def test_a_flow_paused_in_mid_send_ends_its_chunk_and_stops(loop):
    loop.sender.start(flow(1, 200 * CHUNK))
    loop.pump_once()
    loop.sender.change(1, 0, 0.0)
    loop.drain()
    (data,) = loop.got(THERE, 0)
    sent = bytes_per_flow(data)[1]
    assert sent < 200 * CHUNK
    assert chunks_of(data)[-1].end == len(data)
    loop.sender.change(1, 0, math.inf)
    loop.drain()
    assert bytes_per_flow(loop.got(THERE, 0)[0]) == {1: 200 * CHUNK}


def test_the_first_of_a_queue_goes_at_what_those_behind_it_may_send(loop):
    """As in the simulator, where a queue has one rate: the sum of its flows' caps, spent in order."""
    loop.sender.start(flow(1, 5 * CHUNK, cap=0.0))
    loop.sender.start(flow(2, 5 * CHUNK, cap=1e9))
    loop.drain()
    # Once flow 1 has gone, only flow 2's own cap is left, which is the same one.
    assert loop.flows(THERE, 0) == [[1, 2]]
    assert loop.sender.sent == 10 * CHUNK


# ------------------------------------------------------------------ the receiver


class Scripted:
    """A socket that gives out what it is told to, piece by piece."""

    def __init__(self, fd: int, pieces: list[bytes]) -> None:
        self.fd, self.pieces, self.clamps = fd, list(pieces), []

    def fileno(self) -> int:
        return self.fd

    def recv_into(self, buffer: bytearray) -> int:
        if not self.pieces:
            raise BlockingIOError
        piece = self.pieces.pop(0)
        buffer[: len(piece)] = piece
        return len(piece)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP)
        self.clamps.append(value)

    def close(self) -> None:
        self.fd = -1


def chunk(number: int, payload: int, total: int) -> bytes:
    return struct.pack("<IIQ", number, payload, total) + bytes(payload)


def counted(pieces: list[bytes]) -> tuple[dict[int, int], list[int], set[int], list[int]]:
    """What a receiver has after these pieces: arrived, done, touched, clamps set."""
    receiver = Receiver(WINDOW)
    sock = Scripted(5, pieces)
    receiver.add(sock)  # type: ignore[arg-type]
    while sock.pieces:
        assert receiver.read(5)
    assert receiver.received == sum(len(piece) for piece in pieces)
    return receiver.arrived, receiver.done, receiver.touched, sock.clamps


STREAM = (
    chunk(HELLO, 1448 - HEADER, 0)
    + chunk(1, 84, 200)
    + chunk(2, 0, 16)
    + chunk(3, 1, 5000)
    + chunk(1, 84, 200)
    + chunk(4, 30, 47)
)
EXPECTED = ({3: 17, 4: 46}, [2, 1], {3, 4}, [WINDOW])
"""Flow 1 has its 200 bytes in two chunks, flow 2 is one bare header, 3 and 4 want more."""


def test_what_arrives_is_counted_per_flow_and_the_hello_belongs_to_nobody():
    assert counted([STREAM]) == EXPECTED


@pytest.mark.parametrize("cut", range(1, HEADER + 1))
def test_a_header_cut_at_any_byte_is_read_the_same(cut):
    after = len(chunk(HELLO, 1448 - HEADER, 0))
    for start in (0, after, after + 100, after + 116, after + 133):
        assert counted([STREAM[: start + cut], STREAM[start + cut :]]) == EXPECTED


def test_byte_by_byte_is_the_same():
    assert counted([STREAM[i : i + 1] for i in range(len(STREAM))]) == EXPECTED


@settings(deadline=None)
@given(st.data())
def test_any_split_of_any_stream_counts_the_same(data):
    sizes = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=12))
    totals = {f: sum(HEADER + p for g, p in sizes if g == f) for f, _ in sizes}
    stream = b"".join(chunk(f, payload, totals[f]) for f, payload in sizes)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=20)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    arrived, done, touched, _ = counted(pieces)
    last = {f: i for i, (f, _) in enumerate(sizes)}
    assert done == sorted(totals, key=lambda f: last[f])
    assert (arrived, touched) == ({}, set())


def test_a_flow_over_two_connections_is_done_when_both_parts_have_come():
    receiver = Receiver(WINDOW)
    one = Scripted(5, [chunk(1, 84, 300), chunk(1, 83, 300)])
    two = Scripted(6, [chunk(1, 85, 300)])
    receiver.add(one)  # type: ignore[arg-type]
    receiver.add(two)  # type: ignore[arg-type]
    receiver.read(5)
    receiver.read(6)
    assert (receiver.arrived, receiver.done) == ({1: 201}, [])
    receiver.read(5)
    # 100 + 101 + 99
    assert (receiver.arrived, receiver.done) == ({}, [1])


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_ends_or_is_reset_is_given_up_and_the_others_go_on(reset):
    loop, receiver = Loop(True), Receiver(WINDOW)
    loop.dial(THERE, 0)
    theirs = loop.ends[0][1]
    receiver.add(theirs)
    fd = theirs.fileno()
    if reset:
        loop.socks[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    loop.socks[0].close()
    end = time.monotonic() + 5
    while receiver.has(fd) and time.monotonic() < end:
        receiver.read(fd)
    assert not receiver.has(fd)
    assert theirs.fileno() == -1
    loop.close()


def test_sender_to_receiver_over_tcp_every_flow_ends_once():
    rng = np.random.default_rng(4)
    loop, receiver = Loop(True, small=True), Receiver(WINDOW)
    sizes = {n: int(s) for n, s in enumerate(rng.integers(HEADER, 8 * CHUNK, 60))}
    for number, size in sizes.items():
        loop.sender.start(flow(number, size, lane=number % 3, cls=number % 2))
    known: set[int] = set()
    end = time.monotonic() + 20
    while len(receiver.done) < len(sizes) and time.monotonic() < end:
        for _, theirs, _ in loop.ends:
            if theirs.fileno() not in known:
                known.add(theirs.fileno())
                receiver.add(theirs)
        loop.pump_once()
        for number in rng.integers(0, 60, 2).tolist():
            loop.sender.change(number, int(rng.integers(0, 4)), math.inf)
        for fd in known:
            receiver.read(fd)
    assert sorted(receiver.done) == sorted(sizes)
    assert (receiver.arrived, receiver.touched) == ({}, set())
    # Hellos aside, of which every connection has one.
    assert receiver.received == sum(sizes.values()) + 1448 * len(loop.ends)
    loop.close()
