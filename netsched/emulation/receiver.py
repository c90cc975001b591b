"""The receiving half of an endpoint: counts each flow's bytes, whatever connections they come over."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from netsched.emulation.wire import CHUNK, HELLO

_BUFFER: Final = 1 << 18


@dataclass
class Stream:
    """One accepted connection in mid-chunk: `payload` bytes of `flow` are to come, `head` is a cut header."""

    sock: socket.socket
    flow: int = -1
    total: int = 0
    payload: int = 0
    head: bytes = b""


class Receiver:
    """All connections that end at this host; each lets its peer have `window` bytes under way.

    The kernel forgets the window's clamp when it sees a first full segment (it then learns how much memory
    a byte takes), so every connection begins with one, and the clamp is set again behind it.

    `arrived` has what came of each unfinished flow in bytes on the wire; `done` the flows whose last byte
    came since the caller last cleared it; `touched` those that grew.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self.arrived: dict[int, int] = {}
        self.done: list[int] = []
        self.touched: set[int] = set()
        self.received = 0
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._streams: dict[int, Stream] = {}

    def add(self, sock: socket.socket) -> None:
        self._streams[sock.fileno()] = Stream(sock)

    def has(self, fd: int) -> bool:
        return fd in self._streams

    def read(self, fd: int) -> bool:
        """Take what has come over this connection; False if it has ended."""
        stream = self._streams[fd]
        try:
            n = stream.sock.recv_into(self._buffer)
        except BlockingIOError:
            return True
        except ConnectionError:
            n = 0
        if n == 0:
            del self._streams[fd]
            stream.sock.close()
            return False
        self.received += n
        self._parse(stream, n)
        return True

    def _parse(self, stream: Stream, n: int) -> None:
        at = 0
        while True:
            if stream.payload:
                taken = min(stream.payload, n - at)
                stream.payload -= taken
                at += taken
                if taken:
                    self._count(stream, taken)
            if at == n:
                return
            head = stream.head + self._view[at : min(n, at + CHUNK.size - len(stream.head))]
            at += len(head) - len(stream.head)
            if len(head) < CHUNK.size:
                stream.head = head
                return
            stream.head = b""
            stream.flow, stream.payload, stream.total = CHUNK.unpack(head)
            if stream.flow == HELLO:
                stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, self._window)
            self._count(stream, CHUNK.size)

    def _count(self, stream: Stream, n: int) -> None:
        flow = stream.flow
        if flow == HELLO:
            return
        so_far = self.arrived.get(flow, 0) + n
        if so_far >= stream.total:
            self.arrived.pop(flow, None)
            self.touched.discard(flow)
            self.done.append(flow)
        else:
            self.arrived[flow] = so_far
            self.touched.add(flow)
