"""The sending half of an endpoint: flows in queues over long-lived connections, one per lane and class.

The mark of a connection never changes; a flow changes class by sending its next chunk over the connection
of its new class. So the priority of every packet is that of the connection it left by, no packet overtakes
another of its own connection, and the agent marks each socket once, before its first byte.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from netsched.emulation.wire import CHUNK, HELLO, HELLO_BYTES

_TCP_NOTSENT_LOWAT: Final = 25
_BURST_S: Final = 5e-3
"""What a capped connection may make up for after a pause, in seconds of its cap: a few turns of the loop."""
_PIECE: Final = 1448
"""A capped connection sends as soon as it may send so many bytes: a full segment."""

Key = tuple[int, int, int]
"""(lane, destination address, class); the lane is -1 where every flow has a connection of its own."""


@dataclass(eq=False)
class Flow:
    """A flow that is being sent. `left` counts wire bytes, headers of its chunks included."""

    number: int
    order: int
    lane: int
    dst: int
    cls: int
    total: int
    left: int
    cap: float
    carrier: Connection | None = None


@dataclass(eq=False)
class Connection:
    """A TCP connection. `queue` holds (order, flow) in order of release; `unsent` is a chunk in mid-send."""

    key: Key
    sock: socket.socket
    queue: list[tuple[int, Flow]] = field(default_factory=list)
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    watched: bool = False
    rate: float = math.inf
    tokens: float = 0.0
    stamp: float = 0.0

    def cap(self) -> float:
        """It may send as fast as all the flows that it carries together. Bytes/s of the scenario."""
        return sum(flow.cap for _, flow in self.queue)

    def refill(self, now: float, largest: float) -> None:
        """Earn what the rate so far (bytes/s on the wire) gave since the last look, up to `largest` bytes."""
        if math.isinf(self.rate):
            self.tokens = largest
        else:
            self.tokens = min(largest, self.tokens + self.rate * (now - self.stamp))
        self.stamp = now


class Sender:
    """All connections that leave this host.

    A rate cap is kept here, by tokens, and not by SO_MAX_PACING_RATE: the kernel spaces the next segment by
    the rate at which the last one left, so one segment sent at 100 bytes/s would hold a connection for
    15 s, whatever its flows may do by then.

    `dial(dst, cls)` makes a connected, marked, non-blocking socket; `watch(fd, on)` asks the event loop to
    call `pump` when the socket takes more. `queued`: flows of one lane and class share a connection.
    """

    def __init__(
        self,
        queued: bool,
        chunk: int,
        scale: float,
        dial: Callable[[int, int], socket.socket],
        watch: Callable[[int, bool], None],
    ) -> None:
        self._queued = queued
        self._chunk = max(chunk, 2 * CHUNK.size)
        self._scale = scale
        self._dial = dial
        self._watch = watch
        self._zeros = memoryview(bytes(max(self._chunk, HELLO_BYTES) + CHUNK.size))
        self._flows: dict[int, Flow] = {}
        self._lanes: dict[Key, Connection] = {}
        self._idle: dict[Key, list[Connection]] = {}
        self._by_fd: dict[int, Connection] = {}
        self._thirsty: set[Connection] = set()
        self.sent = 0
        self.opened = 0

    def open(self, key: Key) -> Connection:
        """A new connection for this lane and class."""
        sock = self._dial(key[1], key[2])
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, self._chunk)
        connection = Connection(key, sock)
        sock.send(CHUNK.pack(HELLO, HELLO_BYTES - CHUNK.size, 0) + self._zeros[: HELLO_BYTES - CHUNK.size])
        self._by_fd[sock.fileno()] = connection
        self.opened += 1
        if self._queued:
            self._lanes[key] = connection
        else:
            self._idle.setdefault(key, []).append(connection)
        return connection

    def start(self, flow: Flow) -> None:
        """Queue a flow behind those of its lane and class that were released before it."""
        self._flows[flow.number] = flow
        self._join(flow)

    def change(self, number: int, cls: int, cap: float) -> None:
        """From the next chunk on the flow goes in this class, no faster than `cap`. Nothing if it is done."""
        flow = self._flows.get(number)
        if flow is None:
            return
        if flow.cls == cls:
            flow.cap = cap
            if flow.carrier is not None:
                self._ready(flow.carrier)
            return
        self._leave(flow)
        flow.cls, flow.cap = cls, cap
        self._join(flow)

    def _join(self, flow: Flow) -> None:
        connection = self._carrier(flow)
        flow.carrier = connection
        bisect.insort(connection.queue, (flow.order, flow), key=lambda entry: entry[0])
        self._ready(connection)

    def _carrier(self, flow: Flow) -> Connection:
        key = (flow.lane if self._queued else -1, flow.dst, flow.cls)
        if self._queued:
            return self._lanes.get(key) or self.open(key)
        if not self._idle.get(key):
            self.open(key)
        return self._idle[key].pop()

    def _leave(self, flow: Flow) -> None:
        connection = flow.carrier
        if connection is None:
            return
        connection.queue.remove((flow.order, flow))
        flow.carrier = None
        self._rest(connection)
        self._ready(connection)

    def _rest(self, connection: Connection) -> None:
        """A connection that carries no flow of its own waits for another."""
        if not self._queued and not connection.queue:
            self._idle.setdefault(connection.key, []).append(connection)

    @property
    def throttled(self) -> bool:
        """Does a connection wait for its cap to let it send?"""
        return bool(self._thirsty)

    def earn(self) -> None:
        """Send over the capped connections that may send again."""
        for connection in list(self._thirsty):
            self._thirsty.discard(connection)
            self.pump(connection.sock.fileno())

    def _ready(self, connection: Connection) -> None:
        """Note the rate of what the connection now carries, and watch it if there is something to send."""
        cap = connection.cap() if connection.queue else 0.0
        rate = cap * self._scale
        if rate != connection.rate:
            connection.refill(time.monotonic(), self._most(connection))
            connection.rate = rate
        thirsty = bool(connection.queue) and 0 < cap < math.inf and connection in self._thirsty
        wanted = bool(connection.unsent) or bool(connection.queue and cap > 0 and not thirsty)
        if not connection.queue or not 0 < cap < math.inf:
            self._thirsty.discard(connection)
        if wanted != connection.watched:
            connection.watched = wanted
            self._watch(connection.sock.fileno(), wanted)

    def _most(self, connection: Connection) -> float:
        return math.inf if math.isinf(connection.rate) else self._chunk + connection.rate * _BURST_S

    def pump(self, fd: int) -> None:
        """Send chunks over this connection until the kernel, or its cap, takes no more."""
        connection = self._by_fd[fd]
        connection.refill(time.monotonic(), self._most(connection))
        with contextlib.suppress(BlockingIOError):
            while True:
                if not connection.unsent:
                    connection.unsent = self._fill(connection)
                    if not connection.unsent:
                        break
                n = connection.sock.send(connection.unsent)
                self.sent += n
                connection.unsent = connection.unsent[n:]
        self._ready(connection)

    def _fill(self, connection: Connection) -> memoryview:
        """About one chunk's worth of bytes: the next chunk of the first flow, and small flows behind it."""
        parts: list[bytes | memoryview] = []
        room = self._chunk
        if connection.tokens < self._chunk and connection.queue:
            room = int(connection.tokens)
            if room < min(_PIECE, connection.queue[0][1].left):
                if 0 < connection.rate < math.inf:
                    self._thirsty.add(connection)
                return memoryview(b"")
        # The queue's cap counts, not the first flow's: it goes in order, and must not stall behind a 0.
        while room >= CHUNK.size and any(flow.cap > 0 for _, flow in connection.queue):
            flow = connection.queue[0][1]
            size = min(flow.left, room)
            if 0 < flow.left - size < CHUNK.size:
                size = flow.left if flow.left <= room + CHUNK.size else size - CHUNK.size
            if size < CHUNK.size:
                break
            parts += [
                CHUNK.pack(flow.number, size - CHUNK.size, flow.total),
                self._zeros[: size - CHUNK.size],
            ]
            room -= size
            flow.left -= size
            connection.tokens -= size
            if flow.left == 0:
                connection.queue.pop(0)
                flow.carrier = None
                del self._flows[flow.number]
                if not self._queued:
                    self._rest(connection)
                    break
        return memoryview(b"".join(parts))
