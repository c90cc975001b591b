"""What tests of an endpoint share: one that sends to a receiver of the test's over loopback."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Iterator

import pytest
from chunk_stream import HELLO, chunks_of

from netsched.emulation.sender import Flow, Sender

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
