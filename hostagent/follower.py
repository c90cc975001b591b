"""What the agent does with flows: it takes them from jobs, reports them, and answers with the plan in force.

Jobs are answered from memory, whether a coordinator is there or not; the coordinator is talked to between
two rounds of the loop that serves them.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from hostagent import logs
from hostagent.desk import Desk
from hostagent.guide import Guide
from hostagent.protocol import BadRequest, Message, seconds
from hostagent.server import Connection
from hostagent.tagging import borrowed
from hostagent.uplink import Line, News, Uplink
from netsched import marking
from netsched.coordinator import wire

if TYPE_CHECKING:
    from hostagent.config import Config

_LOG: Final = logging.getLogger(__name__)
_PROGRESS_S: Final = 0.02
"""Bytes sent are reported so often at most; what a plan hangs on is reported at once."""
_SILENCE: Final = 4.0
"""Beats without a word after which the line is taken for dead."""


class Follower:
    """Flows of one agent. `tag` marks the sockets that come with a request, for the class in it."""

    def __init__(self, config: Config, tag: Callable[[Connection, Message, Sequence[int]], Message]) -> None:
        self.guide = Guide(config)
        self.desk = Desk(self.guide.forget)
        self._config = config
        self._tag = tag
        self._uplink: Uplink | None = None
        self._line: Line | None = None
        self._why = "" if config.coordinator is None else "not reached yet"
        self._beat = math.inf
        self._said = -math.inf
        self.due = math.inf
        """When `turn` has something to do of itself, in seconds of the monotonic clock."""
        self._policy = ""
        self._lapsed = True

    # -------------------------------------------------------------- of jobs

    def flow(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        """The verb `flow`: take what is said, mark the sockets that came along, answer with the guidance."""
        now = time.monotonic()
        peer = _peer_of(fds[0]) if fds and "peer" not in request else ""
        said = self.desk.flow(connection.number, connection.peer.uid, connection.job, request, peer, now)
        found = self.guide.guidance(said, now, seconds(request, "begun_s"))
        answer: Message = {
            "class": found.cls,
            "dscp": marking.dscp_of(found.cls, self._config.queues),
            "source": found.source,
            "hold_s": found.hold,
            "cap": None if math.isinf(found.cap) else found.cap,
            "refused": found.refused,
        }
        if fds:
            answer |= self._tag(connection, request | {"class": found.cls}, fds)
        return answer

    def coflow(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        """The verb `coflow`: a declaration of the whole."""
        self.desk.coflow(connection.number, connection.peer.uid, connection.job, request)
        return {}

    def gone(self, connection: Connection) -> None:
        self.desk.leave(connection.number)

    # -------------------------------------------------------------- of the coordinator

    def start(self, wake_fd: int) -> None:
        """Begin to follow the coordinator, if the configuration has one. CapabilityError without gRPC."""
        config = self._config.coordinator
        if config is not None:
            host = config.host or socket.gethostname()
            hello = wire.hello_bytes(wire.Hello(host, self._config.queues, self._config.classes))
            self._uplink = Uplink(config, hello, wake_fd)

    def close(self) -> None:
        if self._uplink is not None:
            self._uplink.close()

    def turn(self) -> None:
        """Take the coordinator's news, and tell it ours if it is time."""
        if self._uplink is None:
            return
        now = time.monotonic()
        for news in self._uplink.news():
            self._hear(news, now)
        if self._line is None:
            self.due = self._lapse(now)
            return
        if self.guide.age(now) > _SILENCE * self._beat:
            self._uplink.redial()
        if self._line.is_full:
            self.due = now + _PROGRESS_S
            return
        due = self._said + (_PROGRESS_S if self.desk.pending else self._beat)
        if self.desk.urgent or due <= now:
            self._report(self._line, now)
            due = now + self._beat
        self.due = due

    def _report(self, line: Line, now: float) -> None:
        self._said = now
        if not self.desk.pending:
            line.send(wire.report_bytes(wire.Report()))
        for report in self.desk.reports(now):
            line.send(wire.report_bytes(report))

    def _lapse(self, now: float) -> float:
        """When the last plan lapses, inf if there is none that still holds."""
        lapses_at = self.guide.lapses_at
        if lapses_at > now:
            self._lapsed = False
            return lapses_at
        if not self._lapsed:
            self._lapsed = True
            _LOG.warning("last plan lapsed, local rules hold", extra=logs.fields({"why": self._why}))
        return math.inf

    def _hear(self, news: News, now: float) -> None:
        if news.down:
            self._line, self._why = None, news.down
            self.desk.hang_up()
            self.guide.end()
            return
        try:
            answer = wire.read_answer(news.message)
        except wire.WireError as error:
            _LOG.warning("coordinator not understood", extra=logs.fields({"error": str(error)}))
            return
        if isinstance(answer, wire.Welcome):
            self._line, self._why, self._beat, self._policy = news.line, "", answer.beat, answer.policy
            self.desk.start_over()
            self.guide.begin(now)
            _LOG.info("coordinator followed", extra=logs.fields({"policy": answer.policy}))
        elif news.line is self._line:
            self.guide.take(answer, self.desk.coflow_of([*answer.flows, *answer.refused]), now)

    def status(self) -> dict[str, Any]:
        """How things stand with the coordinator, without a word about whose flows there are."""
        config, now = self._config.coordinator, time.monotonic()
        age = self.guide.age(now)
        return {
            "address": "" if config is None else config.address,
            "standing": self.guide.standing(now),
            "policy": self._policy,
            "local_policy": "" if self.guide.policy is None else self.guide.policy.name,
            "heard_s_ago": round(age, 3) if math.isfinite(age) else None,
            "revision": self.guide.revision,
            "flows": len(self.desk),
            "why": self._why,
        }


def _peer_of(fd: int) -> str:
    try:
        with borrowed(fd) as sock:
            name = sock.getpeername()
    except OSError as error:
        raise BadRequest("bad-fds", f"peer: not said, and the socket has none: {error.strerror}") from None
    return str(name[0]) if isinstance(name, tuple) else ""
