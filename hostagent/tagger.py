"""Marking what a job asks for: who may, how many, all or none, by which level; and remembering it.

Every way into the kernel goes through one check of class, state and quota, so that no level can be used to
get around another's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from hostagent import ladder, protocol, retro, sockdiag, tagging
from hostagent.closing import Closer
from hostagent.ledger import Ledger, Record
from hostagent.metrics import Counts
from hostagent.protocol import BadRequest, Message, Tagged
from hostagent.server import Connection
from hostagent.undo import Before
from netsched import marking

if TYPE_CHECKING:
    from hostagent.config import Config

LIST_S: Final = 1.0


class TupleMarks(Protocol):
    """What can mark connections by their addresses (`nftmarks.NftMarks`)."""

    def add(self, cls: int, found: Sequence[sockdiag.Found]) -> None: ...
    def drop(self, cookies: Iterable[int]) -> None: ...


class Tagger:
    """The verb `tag` of one agent. `connections` are those that live, `rules` says who has no quota."""

    def __init__(
        self,
        config: Config,
        counts: Counts,
        connections: Callable[[], list[Connection]],
        rules: Callable[[int], bool],
    ) -> None:
        self.config = config
        self.ledger = Ledger()
        self.tuples: TupleMarks | None = None
        self.tags = {"ok": 0, "failed": 0}
        self.by_class = dict.fromkeys(range(config.queues), 0)
        self._counts = counts
        self._connections = connections
        self._rules = rules
        self._quota = config.api.limits.quota()
        self._closer = Closer()
        self.before = Before()
        self._next_list: dict[int, float] = {}

    def tag(self, connection: Connection, request: Message, fds: Sequence[int]) -> Message:
        """Mark sockets for a class: descriptors that came along, or `cookies`, `flows` or a `pid`'s.

        BadRequest if the peer may not use the class, has too many sockets or groups, or names nothing.
        """
        cls = self._class_of(connection, request)
        group = protocol.text_field(request, "group", "")
        self._enter(connection, group)
        ways = {"cookies": self._by_itself, "flows": self._by_flow, "pid": self._by_process}
        named = [way for way in ways if way in request]
        if fds:
            if named or protocol.shown(request.get("count", len(fds))) != str(len(fds)):
                count = protocol.shown(request.get("count"))
                raise BadRequest("bad-fds", f"{len(fds)} descriptors arrived, count = {count}")
            results = self._by_descriptor(connection, cls, group, request, fds)
        elif len(named) == 1:
            results = ways[named[0]](connection, cls, group, request)
        else:
            raise BadRequest(
                "bad-fds", "0 descriptors arrived, and neither cookies, flows nor a pid is named"
            )
        return self._count(cls, group, results)

    def adopt(self, found: Sequence[tuple[sockdiag.Found, int]]) -> None:
        """Remember connections that an agent before this one has marked by address, for jobs unknown."""
        for one, cls in found:
            dscp = marking.dscp_of(cls, self.config.queues)
            self.ledger.note(Record(one.cookie, True, one.uid, "", cls, dscp, ladder.NFT_TUPLE))

    def close(self, fds: Sequence[int]) -> None:
        """Close descriptors that were fetched for the agent itself."""
        self._closer.close(fds, os.geteuid())

    def _class_of(self, connection: Connection, request: Message) -> int:
        try:
            cls = self.config.number_of(request.get("class"))
        except ValueError as error:
            raise BadRequest("bad-class", str(error)) from None
        allowed = self.config.may_use(connection.peer.uid)
        if allowed is None or cls not in allowed:
            raise BadRequest("refused", f"user {connection.peer.uid} may not use class {cls}: see api.allow")
        return cls

    def _enter(self, connection: Connection, group: str) -> None:
        """Count a group among its user's."""
        if not group or group in connection.groups:
            return
        uid = connection.peer.uid
        have = sum(len(c.groups) for c in self._connections() if c.peer.uid == uid)
        if not self._rules(uid) and have >= self._quota.groups:
            raise BadRequest("too-many", f"user {uid} has {self._quota.groups} groups already")
        connection.groups.add(group)

    def _count(self, cls: int, group: str, results: list[Tagged]) -> Message:
        good = sum(result.ok for result in results)
        self.tags["ok"] += good
        self.tags["failed"] += len(results) - good
        self.by_class[cls] += good
        whole = "none" if group and self.config.mode != "observe" else "partial"
        status = "full" if good == len(results) else whole
        dscp = marking.dscp_of(cls, self.config.queues)
        shown = protocol.results_to_json(results[: protocol.MAX_FDS])
        return {"status": status, "dscp": dscp, "sockets": len(results), "marked": good, "results": shown}

    # -------------------------------------------------------------- the levels

    def _by_descriptor(
        self, connection: Connection, cls: int, group: str, request: Message, fds: Sequence[int]
    ) -> list[Tagged]:
        self._need(ladder.DESCRIPTOR)
        even_busy = protocol.flag(request, "even_busy", False)
        known = [_identify(self.ledger, fd) for fd in fds]
        self._check_room(connection, [one[0] for one in known if one is not None])
        dscp = marking.dscp_of(cls, self.config.queues)
        self._note_before(fds, known)
        begin = time.perf_counter()
        results = self._mark(fds, dscp, group, even_busy)
        self._counts.tag_time.add(time.perf_counter() - begin)
        self._remember_all(connection, known, cls, group, results, ladder.DESCRIPTOR)
        return results

    def _by_itself(self, connection: Connection, cls: int, group: str, request: Message) -> list[Tagged]:
        """The client marks: it is told with what, and says which sockets it will be.

        What it says is believed for sockets of its own user only.
        """
        self._need(ladder.SELF)
        cookies = protocol.numbers(request.get("cookies"), "cookies")
        self._check_room(connection, cookies)
        dscp = marking.dscp_of(cls, self.config.queues)
        if self.config.mode == "observe":
            return [Tagged(False, -1, -1, "", f"mode observe: would set {marking.name_of(dscp)}")] * len(
                cookies
            )
        result = Tagged(True, dscp, 0, "")
        records = ((cookie, self.ledger.get(cookie)) for cookie in cookies)
        mine = [(cookie, False) for cookie, old in records if old is None or old.uid == connection.peer.uid]
        self._remember_all(connection, mine, cls, group, [result] * len(mine), ladder.SELF)
        return [result] * len(cookies)

    def _by_flow(self, connection: Connection, cls: int, group: str, request: Message) -> list[Tagged]:
        """Connections of this namespace by their addresses, if they are the peer's own user's."""
        self._need(ladder.NFT_TUPLE)
        wanted = _flows(request.get("flows"))
        even_busy = protocol.flag(request, "even_busy", False)
        self.check_may_list(connection.peer.uid)
        found = {(one.local, one.peer): one for one in sockdiag.sockets()}
        dscp = marking.dscp_of(cls, self.config.queues)
        uid = connection.peer.uid
        chosen: list[sockdiag.Found] = []
        results = []
        for flow in wanted:
            one = found.get(flow)
            if one is None or not (self._rules(uid) or one.uid == uid):
                # The same words for both: whether somebody else has this connection is not theirs to know.
                results.append(Tagged(False, -1, -1, "", f"user {uid} has no such connection here"))
            elif self.config.mode == "observe":
                would = f"mode observe: would set {marking.name_of(dscp)}"
                results.append(Tagged(False, one.dscp, -1, one.family, would))
            elif one.waiting and not even_busy and self._carries(one) != dscp:
                text = f"{tagging.BUSY}: {one.waiting} bytes are under way; ask again between two iterations"
                results.append(Tagged(False, self._carries(one), -1, one.family, text))
            else:
                chosen.append(one)
                results.append(Tagged(True, dscp, 0, one.family))
        if group and not all(result.ok for result in results):
            chosen = []
            why = "not marked, because another of the group could not be"
            results = [r if not r.ok else Tagged(False, -1, -1, r.family, why) for r in results]
        self._check_room(connection, [one.cookie for one in chosen])
        if chosen and self.tuples is not None:
            self.tuples.add(cls, chosen)
        for one in chosen:
            mark = Tagged(True, dscp, 0, one.family)
            self._remember(connection, (one.cookie, True), cls, group, mark, ladder.NFT_TUPLE)
        return results

    def _carries(self, found: sockdiag.Found) -> int:
        """The DSCP that a connection's packets have now: the table, which comes last, or the socket's own."""
        record = self.ledger.get(found.cookie)
        return record.dscp if record is not None and record.level == ladder.NFT_TUPLE else found.dscp

    def _by_process(self, connection: Connection, cls: int, group: str, request: Message) -> list[Tagged]:
        """Every connected TCP socket of a process of the peer's own user."""
        self._need(ladder.PIDFD)
        pid = protocol.numbers([request.get("pid")], "pid")[0]
        even_busy = protocol.flag(request, "even_busy", False)
        dscp = marking.dscp_of(cls, self.config.queues)
        uid = connection.peer.uid
        results = []
        if self._closer.is_busy(uid):
            raise BadRequest("busy", "the sockets of earlier requests are still closing; ask again later")
        of_user = None if self._rules(uid) else uid

        def close(fds: Sequence[int]) -> None:
            self._closer.close(fds, uid)

        with retro.sockets_of(pid, of_user, lambda: self.check_may_list(uid), close) as fds:
            known = [_identify(self.ledger, fd) for fd in fds]
            self._check_room(connection, [one[0] for one in known if one is not None])
            self._note_before(fds, known)
            results = self._mark(fds, dscp, group, even_busy)
        self._remember_all(connection, known, cls, group, results, ladder.PIDFD)
        return results

    # -------------------------------------------------------------- what they share

    def _note_before(self, fds: Sequence[int], known: Sequence[tuple[int, bool] | None]) -> None:
        if self.config.mode != "observe":
            for fd, one in zip(fds, known, strict=True):
                if one is not None:
                    self.before.note(one[0], fd, self.ledger.get(one[0]) is not None)

    def _mark(self, fds: Sequence[int], dscp: int, group: str, even_busy: bool) -> list[Tagged]:
        if self.config.mode == "observe":
            return [observed(fd, dscp) for fd in fds]
        return tagging.tag_here(fds, dscp, bool(group), even_busy)

    def _need(self, level: str) -> None:
        if level not in self.config.ladder:
            have = ", ".join(self.config.ladder)
            raise BadRequest("no-level", f"this agent does not mark by level {level}: its ladder is {have}")

    def _check_room(self, connection: Connection, cookies: Sequence[int]) -> None:
        """BadRequest if the user would have more sockets than `limits.sockets`."""
        uid = connection.peer.uid
        if self._rules(uid):
            return
        more = sum(self.ledger.get(cookie) is None for cookie in set(cookies))
        if self.ledger.has_room(uid, more, self._quota.sockets):
            return
        if self.may_list(uid):
            # Some may have ended since the last look.
            self.ledger.prune(sockdiag.cookies())
            if self.ledger.has_room(uid, more, self._quota.sockets):
                return
        raise BadRequest("too-many", f"user {uid} may have {self._quota.sockets} marked sockets at a time")

    def may_list(self, uid: int) -> bool:
        """Whether a user may have all sockets looked at: once a second, since 10,000 of them take 0.1 s."""
        now = time.monotonic()
        if self._rules(uid):
            return True
        if now < self._next_list.get(uid, 0.0):
            return False
        self._next_list[uid] = now + LIST_S
        return True

    def check_may_list(self, uid: int) -> None:
        if not self.may_list(uid):
            raise BadRequest("busy", f"sockets are looked up once in {LIST_S:g} s for a user; ask again then")

    def _remember_all(
        self,
        connection: Connection,
        known: Sequence[tuple[int, bool] | None],
        cls: int,
        group: str,
        results: Sequence[Tagged],
        level: str,
    ) -> None:
        pairs = [(one, result) for one, result in zip(known, results, strict=True) if one is not None]
        if self.tuples is not None:
            # The table would override what the sockets carry from now on.
            self.tuples.drop(one[0] for one, result in pairs if result.ok)
        for one, result in pairs:
            self._remember(connection, one, cls, group, result, level)

    def _remember(
        self,
        connection: Connection,
        known: tuple[int, bool],
        cls: int,
        group: str,
        result: Tagged,
        level: str,
    ) -> None:
        if result.ok and self.config.mode != "observe":
            cookie, here = known
            uid, job, owner = connection.peer.uid, connection.job, connection.number
            self.ledger.note(Record(cookie, here, uid, job, cls, result.dscp, level, group, owner))


def observed(fd: int, dscp: int) -> Tagged:
    """What the socket carries, where nothing may be written: ok only if it is what would be written."""
    now = tagging.read(fd)
    if not now.ok or now.dscp == dscp:
        return now
    error = f"mode observe: would set {marking.name_of(dscp)}"
    return Tagged(False, now.dscp, now.priority, now.family, error)


def _identify(ledger: Ledger, fd: int) -> tuple[int, bool] | None:
    try:
        return ledger.identify(fd)
    except OSError:
        return None


def _flows(value: Any) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """((local address, port), (peer's address, port)) of each [local, peer] such as "10.0.0.1:29500"."""
    good = isinstance(value, list) and 0 < len(value) <= protocol.MAX_FDS
    if not good or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(end, str) for end in pair)
        for pair in value
    ):
        raise BadRequest(
            "bad-field", f'flows: 1 to {protocol.MAX_FDS} pairs ["ADDR:PORT", "ADDR:PORT"] are expected'
        )
    return [(protocol.address(pair[0], "flows"), protocol.address(pair[1], "flows")) for pair in value]
