"""What a receiver counts of what arrives, however it is cut, and a sender and a receiver together."""

from __future__ import annotations

import math
import socket
import struct
import time

import numpy as np
import pytest
from chunk_stream import HEADER, HELLO
from endpoint_loop import CHUNK, THERE, WINDOW, Loop, flow, loop
from hypothesis import given, settings
from hypothesis import strategies as st

from netsched.emulation.receiver import Receiver

__all__ = ["loop"]


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
