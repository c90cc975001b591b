"""The process that sends and receives in one emulated host: started by the conductor, in its namespace.

    python -m netsched.emulation.endpoint CONTROL_FD CONFIG_JSON

It knows nothing of policies: it sends what it is told in the class that it is told, and says what arrived.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hostagent import client, tagging
from netsched import marking
from netsched.emulation import wire
from netsched.emulation.receiver import Receiver
from netsched.emulation.sender import Flow, Sender

PORT: Final = 5001
_SO_RCVBUFFORCE: Final = 33
_RECEIVE_BUFFER: Final = 1 << 20
_PROGRESS_S: Final = 0.004
_EARN_S: Final = 0.001
_DIAL_S: Final = 5.0
_AGENT_S: Final = 60.0
"""How long an agent may take to answer: while hundreds of hosts start on a few cores, it waits its turn."""
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT


@dataclass(frozen=True)
class Config:
    """What an endpoint is told at its start.

    agent     Unix socket of the host's agent
    queued    flows of one lane and class share a connection
    chunk     bytes after which a flow may change class
    scale     wire bytes/s per byte/s of the scenario
    progress  report what has arrived of unfinished flows
    nap       seconds that it rests after each round of work, so that packets come to it in batches
    window    most bytes that a peer may have under way to it over one connection
    """

    agent: str
    queued: bool
    chunk: int
    scale: float
    progress: bool
    nap: float
    window: int


class Endpoint:
    """The event loop of one host."""

    def __init__(self, control: socket.socket, config: Config) -> None:
        self._control = control
        self._config = config
        self._agent = client.connect(config.agent, job="emulation", timeout=_AGENT_S, strict=True)
        self._poll = select.epoll()
        self._listener = self._listen()
        self._sender = Sender(config.queued, config.chunk, config.scale, self._dial, self._watch)
        self._receiver = Receiver(config.window)
        self._next_report = 0.0
        self._pause = 0.0
        for sock in (control, self._listener):
            self._poll.register(sock.fileno(), _READ)

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What goes back are acknowledgements only; accepted sockets inherit the listener's mark.
        marked = tagging.tag(listener, marking.CONTROL_DSCP)
        if not marked.ok:
            raise OSError(f"listening socket not marked: {marked.error}")
        # Inherited too. A fixed buffer, so that the kernel does not widen the window, and one that holds far
        # more than the window, so that it does not close while this process waits for its turn.
        listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, self._config.window)
        listener.bind(("0.0.0.0", PORT))  # noqa: S104 (all the paths' aliases of this host, in its own namespace)
        listener.listen(4096)
        listener.setblocking(False)
        return listener

    def _dial(self, dst: int, cls: int) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._agent.tag([sock], cls)
        sock.settimeout(_DIAL_S)
        sock.connect((socket.inet_ntoa(dst.to_bytes(4, "big")), PORT))
        sock.setblocking(False)
        return sock

    def _watch(self, fd: int, on: bool) -> None:
        if on:
            self._poll.register(fd, _WRITE)
        else:
            self._poll.unregister(fd)

    def run(self) -> None:
        """Say that peers can connect, then work until told to quit or the conductor is gone."""
        wire.send_json(self._control, wire.OPENED, 0)
        while True:
            events = self._poll.poll(self._patience())
            for fd, _ in events:
                if fd == self._control.fileno():
                    if not self._obey():
                        return
                elif fd == self._listener.fileno():
                    self._accept()
                elif self._receiver.has(fd):
                    self._receiver.read(fd)
                else:
                    self._sender.pump(fd)
            if self._sender.throttled:
                self._sender.earn()
            self._report()
            if self._config.nap > 0:
                lay_down = time.monotonic()
                time.sleep(self._config.nap)
                self._pause = max(self._pause, time.monotonic() - lay_down - self._config.nap)

    def _patience(self) -> float | None:
        """Seconds to wait for something to happen, None for as long as it takes."""
        if self._sender.throttled:
            return _EARN_S
        return _PROGRESS_S if self._receiver.touched and self._config.progress else None

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            self._receiver.add(sock)
            self._poll.register(sock.fileno(), _READ)

    def _obey(self) -> bool:
        packet = self._control.recv(wire.LARGEST)
        if not packet or packet[0] == wire.QUIT:
            return False
        kind, body = packet[0], packet[1:]
        if kind == wire.START:
            for r in np.frombuffer(body, wire.START_RECORD).tolist():
                flow, order, lane, dst, cls, size, cap = r
                self._sender.start(Flow(flow, order, lane, dst, cls, size, size, cap))
        elif kind == wire.CHANGE:
            for flow, cls, cap in np.frombuffer(body, wire.CHANGE_RECORD).tolist():
                self._sender.change(flow, cls, cap)
        elif kind == wire.OPEN:
            for lane, dst, cls in json.loads(body):
                self._sender.open((lane, dst, cls))
            wire.send_json(self._control, wire.OPENED, self._sender.opened)
        elif kind == wire.STATS:
            wire.send_json(self._control, wire.STATS, self._stats())
        return True

    def _stats(self) -> dict[str, Any]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        pause, self._pause = self._pause, 0.0
        return {
            "sent": self._sender.sent,
            "received": self._receiver.received,
            "connections": self._sender.opened,
            "pause_s": pause,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "rss_bytes": usage.ru_maxrss * 1024,
        }

    def _report(self) -> None:
        now = time.monotonic()
        receiver = self._receiver
        if receiver.done:
            records = np.zeros(len(receiver.done), wire.DONE_RECORD)
            records["flow"], records["at"] = receiver.done, now
            receiver.done.clear()
            wire.send_records(self._control, wire.DONE, records)
        if not self._config.progress:
            receiver.touched.clear()
        elif receiver.touched and now >= self._next_report:
            self._next_report = now + _PROGRESS_S
            records = np.zeros(len(receiver.touched), wire.PROGRESS_RECORD)
            records["flow"] = list(receiver.touched)
            records["bytes"] = [receiver.arrived[f] for f in receiver.touched]
            receiver.touched.clear()
            wire.send_records(self._control, wire.PROGRESS, records)


def main(control_fd: int, config: dict[str, Any]) -> int:
    control = socket.socket(fileno=control_fd)
    try:
        Endpoint(control, Config(**config)).run()
    except Exception as error:  # the conductor has to hear of it, whatever it is
        wire.send_json(control, wire.FAILED, f"{type(error).__name__}: {error}")
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), json.loads(sys.argv[2])))
