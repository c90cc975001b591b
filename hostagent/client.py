"""The few lines that a training job needs to have its sockets marked by the agent of its host.

    from hostagent import client
    agent = client.connect()
    agent.tag(sockets, 0)

Whatever is wrong with the agent must not be the job's problem: by default a failure is logged once, counted
in `failures`, and the job goes on unmarked. `strict=True` (the emulator, tests) raises instead.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import logging
import os
import socket
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from hostagent import protocol
from hostagent.protocol import DEFAULT_SOCKET, JOB_VARIABLE, MAX_FDS, MAX_PACKET, Message, Tagged
from netsched.errors import NetschedError

_LOG: Final = logging.getLogger(__name__)
_RETRY_S: Final = 1.0
"""Least time between two attempts to reach an agent that is away: a training step must not wait for it."""


class AgentError(NetschedError):
    """The agent could not be reached, refused, or did not mark every socket."""


def connect(
    path: str = DEFAULT_SOCKET, *, job: str = "", timeout: float = 0.2, strict: bool = False
) -> Client:
    """A connection to the agent at `path`, made now if it is there; `timeout` in seconds for each answer.

    `job` is by default what NETSCHED_JOB says (see `netsched-agent env`). AgentError only with `strict`.
    """
    client = Client(path, job=job or os.environ.get(JOB_VARIABLE, ""), timeout=timeout, strict=strict)
    client.hello()
    return client


class Client:
    """A connection that comes back by itself when the agent does. Not for several threads at once."""

    def __init__(self, path: str, *, job: str, timeout: float, strict: bool) -> None:
        self.path = path
        self.job = job
        self.failures = 0
        """Requests that came to nothing."""
        self._timeout = timeout
        self._strict = strict
        self._sock: socket.socket | None = None
        self._ids = itertools.count(1)
        self._next_attempt = 0.0
        self._logged = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def hello(self) -> Message:
        """What the agent is and can do: mode, classes, limits. {} if it is not there."""
        return self._ask({"verb": "hello"}, ())

    def status(self) -> Message:
        """What the agent has done: see docs/agent.md. {} if it is not there."""
        return self._ask({"verb": "status"}, ())

    def explain(self, *, job: str = "", local: str = "") -> Message:
        """Why the sockets of a job, or the one with this local address, carry the mark that they do."""
        return self._ask({"verb": "explain", "job": job, "local": local}, ())

    def drain(self, *, on: bool = True) -> Message:
        """Have the agent mark no new sockets, or do it again. For its own user and root."""
        return self._ask({"verb": "drain", "on": on}, ())

    def restore(self) -> Message:
        """Have the agent give its queues back and mark no new sockets. For its own user and root."""
        return self._ask({"verb": "restore"}, ())

    def tag(self, sockets: Iterable[socket.socket | int], cls: int | str) -> list[Tagged]:
        """Have these TCP sockets marked for class `cls` (0 the most urgent, or a name of the agent's).

        One result per socket, in order, read back from the kernel; [] if the agent is not there. With
        `strict`, AgentError unless every socket carries the mark.
        """
        try:
            fds = [s if isinstance(s, int) else s.fileno() for s in sockets]
        except (AttributeError, TypeError) as error:
            self._failed(f"not asked: {error}")
            return []
        results: list[Tagged] = []
        for first in range(0, len(fds), MAX_FDS):
            part = fds[first : first + MAX_FDS]
            answer = self._ask({"verb": "tag", "class": cls, "count": len(part)}, part)
            if not answer:
                return []
            try:
                results += protocol.results_from_json(answer.get("results"))
            except (TypeError, ValueError) as error:
                self._failed(f"it answered nonsense: {error}")
                return []
        if self._strict and not all(result.ok for result in results):
            at, bad = next((at, result) for at, result in enumerate(results) if not result.ok)
            raise AgentError(f"agent at {self.path}: socket {at} of {len(fds)} not marked: {bad.error}")
        return results

    def _ask(self, request: dict[str, Any], fds: Sequence[int]) -> Message:
        """The answer, or {} after a failure that was logged and counted."""
        try:
            sock = self._connected()
            if sock is None:
                self.failures += 1
                return {}
            return self._exchange(sock, request, fds)
        except TimeoutError:
            self.close()
            return self._failed(f"no answer within {self._timeout:g} s")
        except protocol.BadRequest as error:
            return self._failed(str(error))
        except (OSError, ValueError, TypeError, OverflowError) as error:
            self.close()
            return self._failed(getattr(error, "strerror", None) or str(error))

    def _connected(self) -> socket.socket | None:
        if self._sock is not None:
            return self._sock
        now = time.monotonic()
        if not self._strict and now < self._next_attempt:
            return None
        self._next_attempt = now + _RETRY_S
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.settimeout(self._timeout)
            sock.connect(self.path)
            self._exchange(sock, {"verb": "register", "job": self.job}, ())
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        self._logged = False
        return sock

    def _exchange(self, sock: socket.socket, request: dict[str, Any], fds: Sequence[int]) -> Message:
        number = next(self._ids)
        packet = protocol.encode({"v": protocol.VERSION, "id": number, **request})
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        # An agent that refuses us has said why and closed: its answer is still there to be read.
        with contextlib.suppress(BrokenPipeError):
            sock.sendmsg([packet], rights)
        while True:
            try:
                data = sock.recv(MAX_PACKET)
            except ConnectionResetError:
                data = sock.recv(MAX_PACKET)
            if not data:
                raise ConnectionError("it closed the connection")
            answer = protocol.decode(data)
            if answer.get("id") not in (number, None):
                continue  # the late answer to a request that timed out
            if answer.get("ok") is not True:
                raise protocol.BadRequest(str(answer.get("code")), str(answer.get("message")))
            return answer

    def _failed(self, reason: str) -> Message:
        self.failures += 1
        text = f"agent at {self.path}: {reason}"
        if self._strict:
            raise AgentError(text)
        if not self._logged:
            self._logged = True
            _LOG.warning("%s; sockets stay unmarked", text)
        return {}
