"""An answer to each verb of the protocol, and what the agent remembers for it.

Kept apart from the agent's life, so that everything a job can make the agent do is in one place.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from hostagent import ladder, protocol, sockdiag, tagging
from hostagent.config import Config
from hostagent.ledger import Ledger, Record
from hostagent.metrics import Counts
from hostagent.protocol import BadRequest, Message, Tagged
from hostagent.queues import Ports
from hostagent.server import Connection
from netsched import marking
from netsched.errors import NetschedError

State = Literal["serving", "draining", "restored"]

_MAX_LEASES: Final = 64
_SHOWN: Final = 64
_LIST_S: Final = 1.0


class Verbs:
    """The verbs of one agent. `ports` and `connections` are the agent's, `state` is what `drain` changes."""

    def __init__(self, config: Config, connections: Callable[[], list[Connection]]) -> None:
        self.config = config
        self.ports: Ports | None = None
        self.state: State = "serving"
        self.ledger = Ledger()
        self.counts = Counts()
        self._connections = connections
        self._started = time.monotonic()
        self._leases = itertools.count(1)
        self._next_list = 0.0
        self._tags = {"ok": 0, "failed": 0}
        self._by_class = dict.fromkeys(range(config.queues), 0)

    def answer(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        """The answer to one request. BadRequest if it cannot be fulfilled."""
        verbs = {
            "hello": self._hello,
            "register": self._register,
            "tag": self._tag,
            "status": self._status,
            "release": self._release,
            "explain": self._explain,
            "drain": self._drain,
            "restore": self._restore,
        }
        counted = "other"
        try:
            verb = protocol.text_field(request, "verb")
            if verb not in verbs:
                raise BadRequest("bad-verb", f"verb = {verb!r}: it is one of {', '.join(verbs)}")
            counted = verb
            answer = verbs[verb](connection, request, fds)
        except BadRequest as error:
            self.counts.request(counted, error.code)
            raise
        except (NetschedError, OSError) as error:
            # The kernel's refusal of one request is that client's answer, not the agent's end.
            self.counts.request(counted, "failed")
            raise BadRequest("failed", f"{verb}: {error}") from None
        self.counts.request(counted, "ok")
        return answer

    # -------------------------------------------------------------- of jobs

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
            "state": self.state,
            "classes": classes,
            "limits": {"packet_bytes": protocol.MAX_PACKET, "fds": protocol.MAX_FDS},
        }

    def _register(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        connection.job = protocol.text_field(request, "job", "")
        if len(connection.leases) >= _MAX_LEASES:
            raise BadRequest("too-many", f"a connection has at most {_MAX_LEASES} leases; release one")
        lease = next(self._leases)
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
        if self.state != "serving":
            raise BadRequest("draining", f"the agent is {self.state}: it marks no new sockets")
        dscp = marking.dscp_of(cls, self.config.queues)
        begin = time.perf_counter()
        if self.config.mode == "observe":
            results = [_observed(fd, dscp) for fd in fds]
        else:
            results = [tagging.tag(fd, dscp) for fd in fds]
        self.counts.tag_time.add(time.perf_counter() - begin)
        if self.config.mode != "observe":
            self._remember(connection, cls, fds, results)
        good = sum(result.ok for result in results)
        self._tags["ok"] += good
        self._tags["failed"] += len(results) - good
        self._by_class[cls] += good
        status = "full" if good == len(results) else "partial"
        return {"status": status, "dscp": dscp, "results": protocol.results_to_json(results)}

    def _remember(
        self, connection: Connection, cls: int, fds: Sequence[int], results: Sequence[Tagged]
    ) -> None:
        for fd, result in zip(fds, results, strict=True):
            if result.ok:
                with contextlib.suppress(OSError):
                    cookie, here = self.ledger.identify(fd)
                    uid, job = connection.peer.uid, connection.job
                    self.ledger.note(Record(cookie, here, uid, job, cls, result.dscp, ladder.DESCRIPTOR))

    def _status(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        uid = connection.peer.uid
        mine = [c for c in self._connections() if self._rules(uid) or c.peer.uid == uid]
        clients = [{"pid": c.peer.pid, "uid": c.peer.uid, "job": c.job} for c in mine[:_SHOWN]]
        return self.status() | {"clients": clients}

    def _explain(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        job, local = protocol.text_field(request, "job", ""), protocol.text_field(request, "local", "")
        if bool(job) == bool(local):
            raise BadRequest("bad-field", "explain: either a job or a local address is expected")
        if not self._rules(connection.peer.uid):
            # Listing ten thousand sockets takes 0.2 s, in which no other job is answered.
            if time.monotonic() < self._next_list:
                raise BadRequest(
                    "busy", f"explain: once in {_LIST_S:g} s for all users but root and the agent's"
                )
            self._next_list = time.monotonic() + _LIST_S
        found = {one.cookie: one for one in sockdiag.sockets()}
        self.ledger.prune(found)
        pairs: list[tuple[Record | None, sockdiag.Found | None]]
        if job:
            pairs = [(record, found.get(record.cookie)) for record in self.ledger.of_job(job)]
        else:
            address = _address(local)
            pairs = [(self.ledger.get(c), one) for c, one in found.items() if one.local == address]
        uid = connection.peer.uid
        owned = [
            (record, one)
            for record, one in pairs
            if self._rules(uid) or uid == (one.uid if one is not None else record.uid if record else -1)
        ]
        shown = [ladder.describe(record, one) for record, one in owned[:_SHOWN]]
        levels = sorted({str(one["level"]) for one in shown} or {""})
        steps = {level: [vars(step) for step in ladder.explain(level)] for level in levels}
        return {"sockets": shown, "left_out": len(owned) - len(shown), "ladder": steps}

    # -------------------------------------------------------------- of whoever runs the agent

    def _drain(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        self._check_rules(connection, "drain")
        wanted = request.get("on", True)
        if not isinstance(wanted, bool):
            raise BadRequest("bad-field", "on: true or false is expected")
        if self.state == "restored":
            raise BadRequest("restored", "the agent has given everything back; restart it to begin again")
        self.state = "draining" if wanted else "serving"
        return {"state": self.state, "sockets": len(self.ledger)}

    def _restore(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        self._check_rules(connection, "restore")
        self.state = "restored"
        given = [] if self.ports is None else self.ports.restore()
        left = [] if self.ports is None else self.ports.owned
        return {"state": self.state, "interfaces": given, "failed": left, "sockets": len(self.ledger)}

    def _rules(self, uid: int) -> bool:
        return uid in (0, os.geteuid())

    def _check_rules(self, connection: Connection, verb: str) -> None:
        if not self._rules(connection.peer.uid):
            raise BadRequest(
                "refused", f"user {connection.peer.uid} may not {verb}: root and the agent's own may"
            )

    # -------------------------------------------------------------- for the pages as well

    def status(self) -> dict[str, Any]:
        """What the agent has done and how its ports are, without a word about who its clients are."""
        ports = [] if self.ports is None else self.ports.status()
        return {
            "mode": self.config.mode,
            "state": self.state,
            "uptime_s": round(time.monotonic() - self._started, 3),
            "tags": dict(self._tags),
            "tags_by_class": {str(cls): count for cls, count in self._by_class.items()},
            "connections": len(self._connections()),
            "sockets": len(self.ledger),
            "interfaces": ports,
            "not_ready": self._not_ready(ports),
        }

    def _not_ready(self, ports: list[dict[str, Any]]) -> list[str]:
        """Why a new job should not count on this agent, one line each."""
        wrong = [] if self.state == "serving" else [f"the agent is {self.state}"]
        for port in ports:
            reason = port.get("error") or port["conflict"] or "; ".join(port["differences"])
            if reason:
                wrong.append(f"{port['interface']}: {reason}")
        return wrong


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise BadRequest("bad-field", "local: an address and a port are expected, such as 10.0.0.1:29500")
    return host.strip("[]"), int(port)


def _observed(fd: int, dscp: int) -> Tagged:
    """What the socket carries, where nothing may be written: ok only if it is what would be written."""
    now = tagging.read(fd)
    if not now.ok or now.dscp == dscp:
        return now
    error = f"mode observe: would set {marking.name_of(dscp)}"
    return Tagged(False, now.dscp, now.priority, now.family, error)
