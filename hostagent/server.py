"""The socket that jobs talk to: who they are, one packet at a time, and nobody can hold it up.

The kernel says who is at the other end (SO_PEERCRED), a packet is answered at once or its sender is
dropped, and every descriptor that arrives is closed again whatever happens.
"""

from __future__ import annotations

import array
import contextlib
import errno
import itertools
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hostagent import logs, peers, protocol
from hostagent.closing import Closer
from hostagent.listening import listen
from hostagent.peers import Peer
from hostagent.protocol import MAX_FDS, MAX_PACKET, BadRequest, Message
from hostagent.quota import Pace, Quota, cost_of

_LOG: Final = logging.getLogger(__name__)
_ACCEPTS: Final = 32
"""Connections taken in one round of the loop."""
_REST_S: Final = 1.0
"""How long no connection is taken after the kernel could give none; and between two lines about refusals."""
_CLOSING_S: Final = 0.02
"""How long a user's packets wait at a time while what he passed before is still closing."""


@dataclass
class Connection:
    """One client. `job` is what it registered as, `heard` when it last asked something (monotonic, s)."""

    sock: socket.socket
    peer: Peer
    number: int = 0
    job: str = ""
    leases: set[int] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    heard: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        """The process that connected; 0 if it has ended, or has no number in our process namespace."""
        return peers.pid_now(self.sock, self.peer)


Answer = Callable[[Connection, Message, Sequence[int]], Message]


class Server:
    """A SOCK_SEQPACKET listener and its clients.

    admit   may this user come?
    answer  what to say
    gone    what to forget when a client's connection has ended
    """

    def __init__(
        self,
        path: str,
        shared: bool,
        admit: Callable[[int], bool],
        answer: Answer,
        *,
        quota: Quota,
        gone: Callable[[Connection], None],
    ) -> None:
        self.path = path
        self.connections: dict[socket.socket, Connection] = {}
        self._admit = admit
        self._answer = answer
        self._gone = gone
        self._quota = quota
        self._pace = Pace(quota.messages)
        self._closer = Closer()
        self._resting: dict[socket.socket, float] = {}
        self._next_line = 0.0
        self._numbers = itertools.count(1)
        self._poll = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._poll.register(self._wake_read, selectors.EVENT_READ)
        self._listener = listen(path, shared)
        self._inode = Path(path).stat().st_ino
        self._poll.register(self._listener, selectors.EVENT_READ)

    @property
    def wake_fd(self) -> int:
        """A descriptor for signal.set_wakeup_fd: a byte written to it ends `serve`'s wait."""
        return self._wake_write.fileno()

    def serve(self, timeout: float) -> None:
        """Answer what comes within `timeout` seconds of nothing coming; returns after each round."""
        for key, _ in self._poll.select(self._wake_the_rested(timeout)):
            try:
                self._one_event(key)
            except Exception:
                # Whatever one visitor brings about, the others are served.
                _LOG.exception("an event failed unexpectedly")
                if isinstance(key.fileobj, socket.socket) and key.fileobj in self.connections:
                    self._drop(self.connections[key.fileobj], unread=True)

    def _one_event(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._wake_read:
            self._wake_read.recv(4096)
        elif key.fileobj is self._listener:
            self._accept()
        elif isinstance(key.fileobj, socket.socket) and key.fileobj in self.connections:
            self._one_packet(self.connections[key.fileobj])
        elif key.data is not None and key.fd in self._poll.get_map():
            key.data()

    def _rest(self, sock: socket.socket, seconds: float) -> None:
        """Do not look at a socket for a while: what comes meanwhile waits in its own buffer."""
        self._poll.unregister(sock)
        self._resting[sock] = time.monotonic() + seconds

    def _wake_the_rested(self, timeout: float) -> float:
        """Look again at those whose time is over; the most seconds to wait for the next."""
        now = time.monotonic()
        for sock in [sock for sock, until in self._resting.items() if until <= now]:
            del self._resting[sock]
            self._poll.register(sock, selectors.EVENT_READ)
        return max(0.0, min([timeout, *(until - now for until in self._resting.values())]))

    def watch(self, sock: socket.socket, events: int, ready: Callable[[], None]) -> None:
        """Call `ready` from `serve` whenever one of `events` (of selectors) holds for `sock`."""
        self._poll.register(sock, events, ready)

    def unwatch(self, sock: socket.socket) -> None:
        self._poll.unregister(sock)

    def close(self) -> None:
        for connection in list(self.connections.values()):
            self._drop(connection, unread=True)
        self._poll.close()
        self._listener.close()
        self._wake_read.close()
        self._wake_write.close()
        # Not somebody else's socket that has taken the name meanwhile.
        with contextlib.suppress(OSError):
            if Path(self.path).stat().st_ino == self._inode:
                Path(self.path).unlink()

    def _accept(self) -> None:
        """Take what has come, but not for ever: those who are there already want answers."""
        for _ in range(_ACCEPTS):
            if not self._accept_one():
                return

    def _accept_one(self) -> bool:
        """Whether there was a connection to take, or to refuse."""
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            _LOG.warning("accept failed", extra=logs.fields({"error": error.strerror or str(error)}))
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                self._rest(self._listener, _REST_S)
            return False
        sock.setblocking(False)
        peer = peers.of(sock)
        refusal = None
        if not self._admit(peer.uid):
            refusal = BadRequest("refused", f"user {peer.uid} may not use this agent: see api.allow")
        elif sum(c.peer.uid == peer.uid for c in self.connections.values()) >= self._quota.connections:
            many = f"user {peer.uid} has {self._quota.connections} connections already"
            refusal = BadRequest("too-many", many)
        connection = Connection(sock, peer, next(self._numbers))
        if refusal is not None:
            self._log_refusal(peer, refusal)
            self._send(connection, _error({}, refusal))
            sock.close()
            return True
        self.connections[sock] = connection
        self._poll.register(sock, selectors.EVENT_READ)
        return True

    def _log_refusal(self, peer: Peer, refusal: BadRequest) -> None:
        """A line, but not one for each attempt: a user who may not come must not fill the log."""
        if time.monotonic() < self._next_line:
            return
        self._next_line = time.monotonic() + _REST_S
        about: dict[str, logs.Value] = {"uid": peer.uid, "pid": peer.pid, "code": refusal.code}
        _LOG.warning("connection refused", extra=logs.fields(about))

    def _one_packet(self, connection: Connection) -> None:
        if self._closer.is_busy(connection.peer.uid):
            self._rest(connection.sock, _CLOSING_S)
            return
        size = MAX_PACKET + 1
        rights = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
        try:
            data, ancillary, flags, _ = connection.sock.recvmsg(size, rights, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._drop(connection)
            return
        fds = _descriptors(ancillary)
        try:
            if not data and not fds:
                self._drop(connection)
                return
            wait, uid = 0.0, connection.peer.uid
            cost, begin = cost_of(len(data), len(fds)), time.thread_time()
            limited = uid not in (0, os.geteuid())
            if limited:
                wait = self._pace.wait(uid, cost)
            self._send(connection, self._reply(connection, data, flags, fds, wait))
            if limited:
                self._pace.charge(uid, cost, time.thread_time() - begin)
            if wait and connection.sock in self.connections:
                self._rest(connection.sock, wait)
        finally:
            self._closer.close(fds, connection.peer.uid)

    def _reply(
        self, connection: Connection, data: bytes, flags: int, fds: Sequence[int], wait: float
    ) -> Message:
        request: Message = {}
        try:
            if wait:
                text = f"user {connection.peer.uid} asks more than {self._quota.messages:g} times a second"
                raise BadRequest("too-fast", text)
            if flags & socket.MSG_TRUNC or len(data) > MAX_PACKET:
                raise BadRequest("too-long", f"a packet has at most {MAX_PACKET} bytes")
            if flags & socket.MSG_CTRUNC:
                raise BadRequest("too-many-fds", f"a packet has at most {MAX_FDS} descriptors")
            request = protocol.decode(data)
            connection.heard = time.monotonic()
            return _head(request) | {"ok": True} | self._answer(connection, request, fds)
        except BadRequest as error:
            return _error(request, error)
        except Exception:
            # One client's odd request must not end everybody's agent; the log has what is to be mended.
            _LOG.exception("request failed unexpectedly")
            return _error(request, BadRequest("internal", "the agent failed at this; its log says why"))

    def _send(self, connection: Connection, message: Message) -> None:
        try:
            connection.sock.send(protocol.encode(message))
        except OSError:
            # Gone, or not reading its answers: nobody else has to wait for that.
            self._drop(connection, unread=True)

    def _drop(self, connection: Connection, *, unread: bool = False) -> None:
        """Let a client go. `unread`: packets of its may be waiting, with descriptors that close with it."""
        if self.connections.pop(connection.sock, None) is not None:
            if self._resting.pop(connection.sock, None) is None:
                self._poll.unregister(connection.sock)
            self._gone(connection)
        if unread:
            self._closer.beside(connection.sock.close, connection.peer.uid)
        else:
            connection.sock.close()


def _head(request: Message) -> Message:
    number = request.get("id")
    ok = isinstance(number, int) and not isinstance(number, bool) and abs(number) < 2**53
    return {"v": protocol.VERSION, "id": number if ok else None}


def _error(request: Message, error: BadRequest) -> Message:
    return _head(request) | {"ok": False, "code": error.code, "message": str(error)}


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)
