"""An answer to each verb of the protocol, and what the agent remembers for it.

Kept apart from the agent's life, so that everything a job can make the agent do is in one place.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from hostagent import ladder, leaving, protocol, sockdiag
from hostagent.bands import Bands
from hostagent.follower import Follower
from hostagent.hostmarks import HostMarks
from hostagent.ledger import Record
from hostagent.metrics import Counts
from hostagent.protocol import BadRequest, Message
from hostagent.queues import Ports
from hostagent.server import Connection
from hostagent.tagger import Tagger
from netsched import marking
from netsched.errors import NetschedError

if TYPE_CHECKING:
    from hostagent.config import Config

State = Literal["serving", "draining", "restored"]

_MAX_LEASES: Final = 64
_SHOWN: Final = 64


class Verbs:
    """The verbs of one agent. `ports` and `connections` are the agent's, `state` is what `drain` changes."""

    def __init__(self, config: Config, connections: Callable[[], list[Connection]]) -> None:
        self.config = config
        self.ports: Ports | None = None
        self.bands: Bands | None = None
        self.host: HostMarks | None = None
        self.state: State = "serving"
        self._was_restored = False
        self.counts = Counts()
        self.tagger = Tagger(config, self.counts, connections, self._rules)
        self.ledger = self.tagger.ledger
        self.follower = Follower(config, self._tag)
        self._connections = connections
        self._started = time.monotonic()
        # Once: made anew of the clock and the uptime, each page would look like another start.
        self._started_unix = time.time()
        self._leases = itertools.count(1)

    def answer(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        """The answer to one request. BadRequest if it cannot be fulfilled."""
        verbs = {
            "hello": self._hello,
            "register": self._register,
            "tag": self._tag,
            "flow": self.follower.flow,
            "coflow": self.follower.coflow,
            "status": self._status,
            "heartbeat": self._heartbeat,
            "release": self._release,
            "explain": self._explain,
            "drain": self._drain,
            "restore": self._restore,
            "unmarked": self._unmarked,
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
        if self.state == "restored":
            # Only the job's own client can reach its sockets, and it hears us when it asks something.
            answer["give_back"] = True
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
            "ladder": list(self.config.ladder),
            "limits": {"packet_bytes": protocol.MAX_PACKET, "fds": protocol.MAX_FDS},
        }

    def _register(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        connection.job = protocol.text_field(request, "job", "")
        if len(connection.leases) >= _MAX_LEASES:
            raise BadRequest("too-many", f"a connection has at most {_MAX_LEASES} leases; release one")
        lease = next(self._leases)
        connection.leases.add(lease)
        return {"lease": lease, "ttl_s": self.config.api.lease}

    def _heartbeat(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        # That it was heard has been noted with the packet, as of every other request.
        self._check_lease(connection, request)
        return {"ttl_s": self.config.api.lease}

    def _release(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        connection.leases.remove(self._check_lease(connection, request))
        return {}

    def _check_lease(self, connection: Connection, request: Message) -> int:
        lease = request.get("lease")
        if isinstance(lease, bool) or not isinstance(lease, int) or lease not in connection.leases:
            raise BadRequest("bad-lease", "lease: not one of this connection, or it has run out")
        return lease

    def gone(self, connection: Connection) -> None:
        """Forget what only this connection could tell: it has ended, or has been silent for too long."""
        connection.leases.clear()
        connection.groups.clear()
        self.ledger.leave(connection.number)
        self.follower.gone(connection)

    def expire(self) -> None:
        """End the leases of those who have said nothing for so long that they count as dead."""
        oldest = time.monotonic() - self.config.api.lease
        for connection in self._connections():
            if connection.heard < oldest and (connection.leases or connection.groups):
                self.counts.leases_expired += len(connection.leases)
                self.gone(connection)

    def _tag(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        if self.state != "serving":
            code = "restored" if self.state == "restored" else "draining"
            raise BadRequest(code, f"the agent is {self.state}: it marks no new sockets")
        return self.tagger.tag(connection, request, fds)

    def _status(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        uid = connection.peer.uid
        mine = [c for c in self._connections() if self._rules(uid) or c.peer.uid == uid]
        clients = [{"pid": c.pid, "uid": c.peer.uid, "job": c.job} for c in mine[:_SHOWN]]
        return self.status() | {"clients": clients}

    def _explain(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        job, local = protocol.text_field(request, "job", ""), protocol.text_field(request, "local", "")
        if bool(job) == bool(local):
            raise BadRequest("bad-field", "explain: either a job or a local address is expected")
        self.tagger.check_may_list(connection.peer.uid)
        found = {one.cookie: one for one in sockdiag.sockets()}
        self.ledger.prune(found)
        pairs: list[tuple[Record | None, sockdiag.Found | None]]
        if job:
            pairs = [(record, found.get(record.cookie)) for record in self.ledger.of_job(job)]
        else:
            address = protocol.address(local, "local")
            pairs = [(self.ledger.get(c), one) for c, one in found.items() if one.local == address]
        uid = connection.peer.uid
        owned = [pair for pair in pairs if self._rules(uid) or _owns(uid, *pair)]
        shown = [ladder.describe(record, one, self._by_host(one)) for record, one in owned[:_SHOWN]]
        levels = sorted({str(one["level"]) for one in shown} or {""})
        steps = {level: [vars(step) for step in self._steps(level)] for level in levels}
        return {"sockets": shown, "left_out": len(owned) - len(shown), "ladder": steps}

    def _by_host(self, found: sockdiag.Found | None) -> ladder.ByHost | None:
        return None if self.host is None or found is None else self.host.of_socket(found)

    def _steps(self, level: str) -> list[ladder.Step]:
        return ladder.explain(level, self.config.ladder, None if self.host is None else self.host.why)

    # -------------------------------------------------------------- of whoever runs the agent

    def _drain(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        self._check_rules(connection, "drain")
        wanted = protocol.flag(request, "on", True)
        if self.state == "restored":
            raise BadRequest("restored", "the agent has given everything back; restart it to begin again")
        self.state = "draining" if wanted else "serving"
        return {"state": self.state, "sockets": len(self.ledger)}

    def _restore(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        self._check_rules(connection, "restore")
        self.state = "restored"
        given = [] if self.ports is None else self.ports.restore()
        left = [] if self.ports is None else self.ports.owned
        if self.bands is not None:
            failed = self.bands.restore()
            given += [] if failed else [one for one in self.bands.names if not self._was_restored]
            left += failed
        self._was_restored = True
        clients = self._connections()
        leaving.put_back(self.ledger, self.tagger.before, clients, self.tagger.close)
        marked = leaving.still_marked(self.ledger, clients)
        if self.host is not None:
            left += self.host.restore()
            self.host.put_back(self._is_known, self.tagger.close)
            marked += self.host.still_marked(self._is_known)
        return {"state": self.state, "interfaces": given, "failed": left, "marked": marked}

    def _is_known(self, cookie: int) -> bool:
        return self.ledger.get(cookie) is not None

    def _unmarked(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        """A client has given sockets their earlier marks back. It can only be believed of its own user's."""
        for cookie in protocol.numbers(request.get("cookies"), "cookies"):
            record = self.ledger.get(cookie)
            if record is not None and (self._rules(connection.peer.uid) or record.uid == connection.peer.uid):
                self.ledger.forget(cookie)
        return {}

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
        ports += [] if self.bands is None or self.state == "restored" else self.bands.status()
        return {
            "mode": self.config.mode,
            "state": self.state,
            "started_unix_s": round(self._started_unix, 3),
            "uptime_s": round(time.monotonic() - self._started, 3),
            "tags": dict(self.tagger.tags),
            "tags_by_class": {str(cls): count for cls, count in self.tagger.by_class.items()},
            "connections": len(self._connections()),
            "sockets": len(self.ledger),
            "interfaces": ports,
            "coordinator": self.follower.status(),
            "marks": None if self.host is None else self.host.status(),
            "not_ready": self._not_ready(ports),
        }

    def _not_ready(self, ports: list[dict[str, Any]]) -> list[str]:
        """Why a new job should not count on this agent, one line each."""
        wrong = [] if self.state == "serving" else [f"the agent is {self.state}"]
        for port in ports:
            reason = port.get("error") or port["conflict"] or "; ".join(port["differences"])
            if reason:
                wrong.append(f"{port['interface']}: {reason}")
        if self.host is not None and (self.host.conflict or self.host.failing):
            wrong.append(f"marks: {self.host.conflict or self.host.failing}")
        return wrong


def _owns(uid: int, record: Record | None, found: sockdiag.Found | None) -> bool:
    """Whether a user may hear of a socket: one that it made, or had in its hands when it was marked."""
    if found is not None and found.uid == uid:
        return True
    return record is not None and record.uid == uid and record.level in ladder.PROVEN
