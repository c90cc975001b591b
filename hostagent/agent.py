"""The agent itself: its configuration, its ports, and an answer to each verb of the protocol.

Nothing of a job passes through it: it marks sockets and owns queues, and when it dies both stay as they are.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from hostagent import protocol, tagging
from hostagent.config import Config
from hostagent.protocol import BadRequest, Message, Tagged
from hostagent.queues import Ports
from hostagent.server import Connection, Server
from netsched import marking
from netsched.netlink import open_netns

_LOG: Final = logging.getLogger(__name__)


class Agent:
    """One agent of one host (or network namespace). `run` is its whole life."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._ports: Ports | None = None
        self._started = time.monotonic()
        self._leases = itertools.count(1)
        self._tags = {"ok": 0, "failed": 0}
        self._by_class = dict.fromkeys(range(config.queues), 0)
        self._stop = False
        self._server: Server | None = None

    def run(self, ready: Callable[[], None]) -> None:
        """Take the ports, serve until SIGTERM or SIGINT, give them back. `ready` is called once it serves.

        NetschedError if the ports or the socket cannot be had; everything is then as before.
        """
        with contextlib.ExitStack() as stack:
            # The socket before the ports: two agents of one configuration must not undo each other's queues.
            shared = bool(self.config.api.allow)
            self._server = Server(self.config.api.socket, shared, self._admits, self._answer)
            stack.callback(self._server.close)
            stack.enter_context(self._signals(self._server.wake_fd))
            if self.config.mode == "mark+queue":
                self._ports = Ports.of(self.config, stack.enter_context(open_netns()))
                _LOG.info("queues applied changes=%d", self._ports.apply())
                stack.callback(self._give_back)
            ready()
            _LOG.info("ready mode=%s socket=%s", self.config.mode, self.config.api.socket)
            self._loop(self._server)

    def _loop(self, server: Server) -> None:
        due = time.monotonic() + self.config.resync
        while not self._stop:
            server.serve(max(0.0, due - time.monotonic()))
            if time.monotonic() >= due:
                due = time.monotonic() + self.config.resync
                if self._ports is not None:
                    self._ports.watch()

    def _give_back(self) -> None:
        if self._ports is not None and self.config.on_stop == "restore":
            self._ports.restore()

    @contextlib.contextmanager
    def _signals(self, wake_fd: int) -> Iterator[None]:
        def stop(number: int, _frame: object) -> None:
            self._stop = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        old_fd = signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in before.items():
                signal.signal(number, handler)

    # -------------------------------------------------------------- verbs

    def _admits(self, uid: int) -> bool:
        return self.config.may_use(uid) is not None

    def _answer(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        verbs = {
            "hello": self._hello,
            "register": self._register,
            "tag": self._tag,
            "status": self._status,
            "release": self._release,
        }
        verb = protocol.text_field(request, "verb")
        if verb not in verbs:
            raise BadRequest("bad-verb", f"verb = {verb!r}: it is one of {', '.join(verbs)}")
        return verbs[verb](connection, request, fds)

    def _hello(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        queues, names = self.config.queues, self.config.classes
        classes = [
            {
                "class": cls,
                "names": [name for name, number in names.items() if number == cls],
                "dscp": marking.dscp_of(cls, queues),
                "dscp_name": marking.name_of(marking.dscp_of(cls, queues)),
            }
            for cls in range(queues)
        ]
        return {
            "pid": os.getpid(),
            "mode": self.config.mode,
            "classes": classes,
            "limits": {"packet_bytes": protocol.MAX_PACKET, "fds": protocol.MAX_FDS},
        }

    def _register(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        connection.job = protocol.text_field(request, "job", "")
        lease = next(self._leases)
        if len(connection.leases) >= 64:
            raise BadRequest("too-many", "a connection has at most 64 leases; release one")
        connection.leases.add(lease)
        return {"lease": lease}

    def _release(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        lease = request.get("lease")
        if isinstance(lease, bool) or not isinstance(lease, int) or lease not in connection.leases:
            raise BadRequest("bad-lease", "lease: not one of this connection")
        connection.leases.remove(lease)
        return {}

    def _tag(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        try:
            cls = self.config.number_of(request.get("class"))
        except ValueError as error:
            raise BadRequest("bad-class", str(error)) from None
        allowed = self.config.may_use(connection.peer.uid)
        if allowed is None or cls not in allowed:
            raise BadRequest("refused", f"user {connection.peer.uid} may not use class {cls}: see api.allow")
        if not fds or request.get("count", len(fds)) != len(fds):
            raise BadRequest("bad-fds", f"{len(fds)} descriptors arrived, count = {request.get('count')}")
        dscp = marking.dscp_of(cls, self.config.queues)
        if self.config.mode == "observe":
            results = [_observed(fd, dscp) for fd in fds]
        else:
            results = [tagging.tag(fd, dscp) for fd in fds]
        good = sum(result.ok for result in results)
        self._tags["ok"] += good
        self._tags["failed"] += len(results) - good
        self._by_class[cls] += good
        status = "full" if good == len(results) else "partial"
        return {"status": status, "dscp": dscp, "results": protocol.results_to_json(results)}

    def _status(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        uid = connection.peer.uid
        mine = [c for c in self._connections() if uid in (0, os.geteuid(), c.peer.uid)]
        shown: dict[str, Any] = {
            "mode": self.config.mode,
            "uptime_s": round(time.monotonic() - self._started, 3),
            "tags": dict(self._tags),
            "tags_by_class": {str(cls): count for cls, count in self._by_class.items()},
            "clients": [{"pid": c.peer.pid, "uid": c.peer.uid, "job": c.job} for c in mine[:64]],
            "interfaces": [] if self._ports is None else self._ports.status(),
        }
        return shown

    def _connections(self) -> list[Connection]:
        return [] if self._server is None else list(self._server.connections.values())


def _observed(fd: int, dscp: int) -> Tagged:
    """What the socket carries, where nothing may be written: ok only if it is what would be written."""
    now = tagging.read(fd)
    if not now.ok or now.dscp == dscp:
        return now
    error = f"mode observe: would set {marking.name_of(dscp)}"
    return Tagged(False, now.dscp, now.priority, now.family, error)


def notify_ready(ready_fd: int | None) -> None:
    """Say that the agent serves: a line "ready" on `ready_fd`, and READY=1 to systemd if it started us."""
    if ready_fd is not None:
        with contextlib.suppress(BrokenPipeError):
            os.write(ready_fd, b"ready\n")
        os.close(ready_fd)
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        # A leading @ stands for the abstract namespace's null byte.
        target = "\0" + address[1:] if address.startswith("@") else address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
            sock.sendto(b"READY=1", target)
