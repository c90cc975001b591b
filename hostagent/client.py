"""The few lines that a training job needs to have its sockets marked by the agent of its host.

    from hostagent import client
    agent = client.connect()
    agent.tag(sockets, 0)

Whatever is wrong with the agent must not be the job's problem: by default a failure is logged once, counted
in `failures`, and the job goes on unmarked. `strict=True` (the emulator, tests) raises instead.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from hostagent import batches, protocol, tagging
from hostagent.exchange import connect as dial
from hostagent.exchange import exchange
from hostagent.flow import Flow, Guidance, guidance_from
from hostagent.memory import Asked, Memory
from hostagent.protocol import DEFAULT_SOCKET, JOB_VARIABLE, MAX_FDS, Message, Tagged
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
    """A connection that comes back by itself when the agent does.

    Threads of a process may share it: they take turns. A process that was forked gets a connection of its own
    at its first word, and leaves its parent's alone.
    """

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
        self._lease: int | None = None
        self._ladder: list[str] | None = None
        self._denied = ""
        self._memory = Memory()
        self._first_flow = math.inf
        self._unrenewed: set[int] = set()
        self._tidying = False
        self._lock = threading.RLock()
        self._pid = os.getpid()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread of one process at a time: an answer must come to whoever has asked."""
        if self._pid != os.getpid():
            # Another thread of the parent's may have held the lock, and is not here to let it go.
            self._lock, self._pid = threading.RLock(), os.getpid()
            self._memory.forget_wishes()
            self._tidying, self._next_attempt = False, 0.0
            self._hang_up()
        with self._lock:
            yield

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with self._alone():
            self._hang_up()

    def _hang_up(self) -> None:
        self._lease = self._ladder = None
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def hello(self) -> Message:
        """What the agent is and can do: mode, classes, ladder, limits. {} if it is not there."""
        with self._alone():
            answer = self._ask({"verb": "hello"}, ())
            if answer:
                self._ladder = list(answer.get("ladder", ["descriptor"]))
            return answer

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

    def heartbeat(self) -> bool:
        """Tell the agent that this job lives; whether it heard. Any other request tells it as well."""
        with self._alone():
            if self._sock is None or self._lease is None:
                return bool(self.hello())
            try:
                return bool(self._ask({"verb": "heartbeat", "lease": self._lease}, ()))
            finally:
                if self._denied == "bad-lease":
                    self._hang_up()  # it has given us up: the next request registers anew

    def tag(
        self,
        sockets: Iterable[socket.socket | int],
        cls: int | str,
        *,
        group: str = "",
        even_busy: bool = False,
    ) -> list[Tagged]:
        """Have these TCP sockets marked for class `cls` (0 the most urgent, or a name of the agent's).

        group      their name, as of a process group: then all of them are marked or none
        even_busy  also those with bytes under way, which what follows may overtake

        One result per socket, in order, read back from the kernel; [] if the agent is not there. With
        `strict`, AgentError unless every socket carries the mark.
        """
        try:
            fds = [s if isinstance(s, int) else s.fileno() for s in sockets]
        except (AttributeError, TypeError) as error:
            self._failed(f"not asked: {error}")
            return []
        with self._alone():
            self._memory.note(fds, Asked(cls, group))
            results = batches.tag(fds, bool(group), lambda part: self._tag_part(part, cls, group, even_busy))
        if self._strict and not all(result.ok for result in results):
            at, bad = next((at, result) for at, result in enumerate(results) if not result.ok)
            raise AgentError(f"agent at {self.path}: socket {at} of {len(fds)} not marked: {bad.error}")
        return results

    def untag(self, sockets: Iterable[socket.socket | int]) -> bool:
        """Give sockets that this client had marked the options back that they had before; needs no agent.

        Whether all of them carry those again; sockets that it never had marked are left alone.
        """
        with self._alone():
            return self._memory.put_back(s if isinstance(s, int) else s.fileno() for s in sockets)

    def tag_flows(self, flows: Iterable[tuple[str, str]], cls: int | str, *, group: str = "") -> Message:
        """Have connections marked by their ends, ("10.0.0.1:41200", "10.0.0.2:29500"); {} if that failed.

        For an agent whose ladder has nft-tuple, in its own network namespace, of the caller's own user.
        """
        request = {"verb": "tag", "class": cls, "flows": [list(flow) for flow in flows], "group": group}
        return self._ask(request, ())

    def tag_process(self, pid: int, cls: int | str, *, group: str = "") -> Message:
        """Have all sockets of a process of the caller's own user marked; {} if that failed.

        For an agent whose ladder has pidfd.
        """
        return self._ask({"verb": "tag", "class": cls, "pid": pid, "group": group}, ())

    def _tag_part(self, fds: list[int], cls: int | str, group: str, even_busy: bool) -> list[Tagged]:
        request: dict[str, Any] = {"verb": "tag", "class": cls, "count": len(fds), "group": group}
        request["even_busy"] = even_busy
        if self._marks_itself():
            cookies = [tagging.cookie(fd) for fd in fds]
            answer = self._ask(request | {"cookies": [one for one in cookies if one]}, ())
            return (
                tagging.tag_here(fds, answer["dscp"], bool(group), even_busy) if answer.get("marked") else []
            )
        answer = self._ask(request, fds)
        if not answer:
            return []
        try:
            return protocol.results_from_json(answer.get("results"))
        except (TypeError, ValueError) as error:
            self._failed(f"it answered nonsense: {error}")
            return []

    def _marks_itself(self) -> bool:
        """Whether the agent's ladder has it that jobs mark their own sockets rather than pass them."""
        if self._ladder is None:
            self.hello()
        return next((one for one in self._ladder or () if one in ("self", "descriptor")), "") == "self"

    def flow(
        self,
        name: str,
        *,
        coflow: str,
        size: float,
        peer: str = "",
        need: int = 0,
        need_span: int = 1,
        released: bool = True,
        sockets: Iterable[socket.socket | int] = (),
    ) -> Flow:
        """Tell the agent of a flow of `size` bytes, and have the sockets marked over which it will be sent.

        `peer` is the other host's name or address (default: that of the first socket), `need` the place of
        its tensor in the order of consumption, out of `need_span`. A flow that is announced and not
        `released` counts for its coflow and is not planned yet.
        """
        fields: dict[str, Any] = {"flow": name, "coflow": coflow, "size": size, "sent": 0}
        fields |= {"need": need, "need_span": need_span, "state": "active" if released else "waiting"}
        known = list(sockets)
        if not peer and known:
            # Said once and for all: an agent that was restarted may hear a word that no socket comes with.
            with contextlib.suppress(OSError, AttributeError), tagging.borrowed(known[0]) as sock:
                peer = str(sock.getpeername()[0])
        if peer:
            fields["peer"] = peer
        made = Flow(self._tell, fields)
        made.guidance = self._tell(dict(fields), known)
        return made

    def coflow(
        self,
        name: str,
        *,
        weight: float = 1.0,
        deadline: float | None = None,
        size: float = 0.0,
        flows: int = 0,
        done: bool = False,
    ) -> bool:
        """Declare a coflow as a whole: `size` bytes and `flows` on all hosts together, `deadline` in seconds.

        It holds until it is `done` or the connection ends. Whether the agent took it.
        """
        request = {"verb": "coflow", "coflow": name, "weight": weight, "size": size, "flows": flows}
        if deadline is not None:
            request["deadline"] = deadline
        return bool(self._ask(request | {"state": "done" if done else "active"}, ()))

    def _tell(self, fields: dict[str, Any], sockets: Iterable[socket.socket | int]) -> Guidance:
        try:
            fds = [s if isinstance(s, int) else s.fileno() for s in sockets]
            parts = [fds[first : first + MAX_FDS] for first in range(0, len(fds), MAX_FDS)] or [[]]
            with self._alone():
                self._memory.note(fds, None)
                fields = fields | self._begun(fields["state"] == "active")
                told = [
                    guidance_from(self._ask({"verb": "flow", "count": len(part), **fields}, part))
                    for part in parts
                ]
            results = itertools.chain.from_iterable(one.results for one in told)
            return replace(told[-1], results=tuple(results))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._failed(f"flow: {error!r}")
            return Guidance()

    def _begun(self, released: bool) -> dict[str, float]:
        """For how long this job has sent, which a shift counts from: a restarted agent cannot know."""
        now = time.monotonic()
        if released:
            self._first_flow = min(self._first_flow, now)
        return {"begun_s": now - self._first_flow} if self._first_flow <= now else {}

    def _ask(self, request: dict[str, Any], fds: Sequence[int]) -> Message:
        """The answer, or {} after a failure that was logged and counted."""
        with self._alone():
            return self._ask_alone(request, fds)

    def _ask_alone(self, request: dict[str, Any], fds: Sequence[int]) -> Message:
        self._denied = ""
        try:
            for _ in range(2):
                had = self._sock is not None
                sock = self._connected()
                if sock is None:
                    self.failures += 1
                    return {}
                if "lease" in request:
                    # An agent that was restarted has given another one with the connection.
                    request = request | {"lease": self._lease}
                try:
                    answer = exchange(sock, next(self._ids), request, fds)
                    self._tidy(answer)
                    return answer
                except ConnectionError:
                    # An agent that was restarted since the last request is there again.
                    self._hang_up()
                    if not had:
                        raise
        except TimeoutError:
            self._hang_up()
            return self._failed(f"no answer within {self._timeout:g} s")
        except protocol.BadRequest as error:
            self._denied = error.code
            self._tidy({"give_back": error.code == "restored"})
            return self._failed(str(error))
        except (OSError, ValueError, TypeError, OverflowError) as error:
            self._hang_up()
            return self._failed(getattr(error, "strerror", None) or str(error))
        return self._failed("it closed the connection")

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
            dial(sock, self.path, now + self._timeout)
            lease = exchange(sock, next(self._ids), {"verb": "register", "job": self.job}, ()).get("lease")
            self._lease = lease if isinstance(lease, int) else None
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        self._logged = False
        self._unrenewed = self._memory.wishes
        return sock

    def _tidy(self, answer: Message) -> None:
        """Do what an answer brings with it besides: take marks back, or ask again for what a new agent lost.

        An agent that comes after another, or came too late for a request, may mean something else by a class
        or know nothing of the sockets. Those that send just now are left for the next word.
        """
        if self._tidying or (not self._unrenewed and not answer.get("give_back")):
            return
        self._tidying = True
        try:
            if answer.get("give_back"):
                self._unrenewed.clear()
                done = self._memory.give_back()
                for first in range(0, len(done), MAX_FDS):
                    self._ask({"verb": "unmarked", "cookies": done[first : first + MAX_FDS]}, ())
            else:
                unrenewed, self._unrenewed = self._unrenewed, set()
                self._unrenewed = self._memory.ask_again(unrenewed, self._tag_part)
        except AgentError as error:
            _LOG.warning("%s", error)
        finally:
            self._tidying = False

    def _failed(self, reason: str) -> Message:
        self.failures += 1
        text = f"agent at {self.path}: {reason}"
        if self._strict:
            raise AgentError(text)
        if not self._logged:
            self._logged = True
            _LOG.warning("%s; sockets stay unmarked", text)
        return {}
