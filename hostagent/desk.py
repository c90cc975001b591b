"""What jobs say of their flows and coflows, and what of it the coordinator has not heard yet.

A job says it over its own connection and loses it with that: nothing outlives the process that it is about.
The same reading of a flow's fields serves here and in the coordinator, so that no job can make the agent say
what the coordinator would not take.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from hostagent.protocol import BadRequest, Message
from netsched.coordinator.wire import (
    CoflowKey,
    CoflowState,
    FlowState,
    Report,
    WireError,
    coflow_of,
    flow_of,
)

MAX_FLOWS: Final = 4096
"""Flows of one connection that have not ended."""
MAX_USER_FLOWS: Final = 16384
"""Flows of one user, over all connections."""
MAX_COFLOWS: Final = 1024
"""Declared coflows of one connection."""
_Said = TypeVar("_Said", FlowState, CoflowState)
_ROWS: Final = 150
"""Of a report: with names as long as they may be, it still fits into one message."""
_STATES: Final = ("waiting", "active", "done")
_FLOW_FIELDS: Final = ("peer", "size", "sent", "need", "need_span")
_COFLOW_FIELDS: Final = ("weight", "deadline", "size", "flows")


@dataclass
class JobFlow:
    """One flow of a job; `released` in seconds of the monotonic clock, None before the job released it."""

    state: FlowState
    released: float | None

    def at(self, now: float) -> FlowState:
        return replace(self.state, age=0.0 if self.released is None else max(0.0, now - self.released))


@dataclass
class Papers:
    """What one connection has said."""

    uid: int
    job: str
    flows: dict[str, JobFlow] = field(default_factory=dict)
    coflows: dict[CoflowKey, CoflowState] = field(default_factory=dict)


class Desk:
    """The flows of all jobs of this host. `forget` is called with the number of each that has ended."""

    def __init__(self, forget: Callable[[int], None]) -> None:
        self._forget = forget
        self._papers: dict[int, Papers] = {}
        self._numbers = itertools.count(1)
        self._by_number: dict[int, JobFlow] = {}
        self._new: dict[int, None] = {}
        self._moved: dict[int, None] = {}
        self._done: list[int] = []
        self._gone: list[int] = []
        self._declared: dict[CoflowKey, CoflowState] = {}
        self._closed: dict[CoflowKey, None] = {}
        self._heard = False

    def __len__(self) -> int:
        return len(self._by_number)

    # -------------------------------------------------------------- of jobs

    def flow(self, owner: int, uid: int, job: str, request: Message, peer: str, now: float) -> FlowState:
        """Take what the job of connection `owner` says of a flow. BadRequest if it cannot be.

        Fields that are not said again stay as they are. `peer` is used if the job names none.
        """
        papers = self._papers.setdefault(owner, Papers(uid, job))
        name, state = request.get("flow"), request.get("state", "active")
        if not isinstance(name, str) or not 1 <= len(name) <= 128 or not name.isprintable():
            raise BadRequest("bad-field", "flow: a printable text of 1 to 128 characters is expected")
        if state not in _STATES:
            raise BadRequest("bad-field", f"state: one of {', '.join(_STATES)} is expected")
        known = papers.flows.get(name)
        if known is None:
            self._check_room(papers)
            row = {"id": next(self._numbers), "uid": uid, "job": papers.job, "peer": peer, "sent": 0}
            row |= {"need": 0, "need_span": 1, "age": 0, "coflow": request.get("coflow", name)}
        else:
            row = vars(known.state) | {"coflow": request.get("coflow", known.state.coflow)}
        row |= {key: request[key] for key in _FLOW_FIELDS if key in request}
        row["active"] = state != "waiting"
        if isinstance(row["peer"], str):
            row["peer"] = _plain(row["peer"])
        said = _checked(flow_of, row)
        if not said.peer:
            raise BadRequest("bad-field", "peer: the name or address of the other host is expected")
        self._note(papers, name, known, said, now)
        if state == "done":
            self._end(papers, name, self._done)
        return said

    def coflow(self, owner: int, uid: int, job: str, request: Message) -> None:
        """Take what a job declares of a whole coflow. BadRequest if it cannot be."""
        papers = self._papers.setdefault(owner, Papers(uid, job))
        row: dict[str, Any] = {"weight": 1.0, "size": 0, "flows": 0}
        row |= {key: request[key] for key in _COFLOW_FIELDS if key in request}
        row |= {"uid": uid, "job": papers.job, "coflow": request.get("coflow")}
        said = _checked(coflow_of, row)
        if request.get("state") == "done":
            if papers.coflows.pop(said.key, None) is not None:
                self._close(said.key)
            return
        if said.key not in papers.coflows and len(papers.coflows) >= MAX_COFLOWS:
            raise BadRequest("too-many", f"a connection declares at most {MAX_COFLOWS} coflows; end some")
        papers.coflows[said.key] = said
        if self._heard:
            self._declared[said.key] = said
        self._closed.pop(said.key, None)

    def leave(self, owner: int) -> None:
        """A connection has ended: so have its flows, whatever they had still to send."""
        papers = self._papers.pop(owner, None)
        if papers is None:
            return
        for name in list(papers.flows):
            self._end(papers, name, self._gone)
        for key in papers.coflows:
            self._close(key)

    def _note(self, papers: Papers, name: str, known: JobFlow | None, said: FlowState, now: float) -> None:
        if known is None:
            flow = papers.flows[name] = JobFlow(said, now if said.active else None)
            self._by_number[said.id] = flow
            if self._heard:
                self._new[said.id] = None
            return
        before = known.state
        if said.key != before.key or said.peer != before.peer:
            raise BadRequest("bad-field", f"flow {name!r}: a flow keeps its coflow and peer; end it first")
        if before.active and not said.active:
            raise BadRequest("bad-field", f"flow {name!r}: a released flow does not wait again")
        if said.sent < before.sent:
            raise BadRequest(
                "bad-field", f"flow {name!r}: sent = {said.sent:.0f} B, it was {before.sent:.0f} B"
            )
        known.state = said
        if said.active and known.released is None:
            known.released = now
        if not self._heard:
            return
        if replace(said, sent=before.sent) != before:
            self._new[said.id] = None
        elif said.sent != before.sent:
            self._moved[said.id] = None

    def _check_room(self, papers: Papers) -> None:
        if len(papers.flows) >= MAX_FLOWS:
            raise BadRequest("too-many", f"a connection has at most {MAX_FLOWS} flows; end some")
        if sum(len(one.flows) for one in self._papers.values() if one.uid == papers.uid) >= MAX_USER_FLOWS:
            raise BadRequest("too-many", f"user {papers.uid} has {MAX_USER_FLOWS} flows already")

    def _end(self, papers: Papers, name: str, how: list[int]) -> None:
        number = papers.flows.pop(name).state.id
        del self._by_number[number]
        self._new.pop(number, None)
        self._moved.pop(number, None)
        if self._heard:
            how.append(number)
        self._forget(number)

    def _close(self, key: CoflowKey) -> None:
        if any(key in papers.coflows for papers in self._papers.values()):
            return
        self._declared.pop(key, None)
        if self._heard:
            self._closed[key] = None

    # -------------------------------------------------------------- for the coordinator

    @property
    def urgent(self) -> bool:
        """Is there something to report that a plan may have to change for at once?"""
        return self._heard and bool(self._new or self._done or self._gone or self._declared or self._closed)

    @property
    def pending(self) -> bool:
        return self.urgent or (self._heard and bool(self._moved))

    def hang_up(self) -> None:
        """Nobody listens: what ends meanwhile need not be remembered for anybody."""
        self._heard = False
        self._new.clear()
        self._declared.clear()
        self._clear()

    def start_over(self) -> None:
        """Somebody listens who knows nothing: report everything that there is."""
        self._heard = True
        self._new = dict.fromkeys(self._by_number)
        self._clear()
        for papers in self._papers.values():
            self._declared |= papers.coflows

    def _clear(self) -> None:
        self._moved.clear()
        self._done.clear()
        self._gone.clear()
        self._closed.clear()

    def coflow_of(self, numbers: Iterable[int]) -> dict[int, CoflowKey]:
        """The coflows of those of these flows that have not ended."""
        return {n: self._by_number[n].state.key for n in numbers if n in self._by_number}

    def reports(self, now: float) -> Iterator[Report]:
        """Everything that has not been reported, in as many reports as it takes."""
        while self.pending:
            coflows = _take(self._declared)
            new, moved, closed = _take(self._new), _take(self._moved), _take(self._closed)
            done, self._done = self._done[:_ROWS], self._done[_ROWS:]
            gone, self._gone = self._gone[:_ROWS], self._gone[_ROWS:]
            yield Report(
                flows=tuple(self._by_number[number].at(now) for number in new),
                coflows=tuple(coflows.values()),
                sent=tuple((n, self._by_number[n].state.sent) for n in moved if n in self._by_number),
                done=tuple(done),
                gone=tuple(gone),
                closed=tuple(closed),
            )


def _take(rows: dict[Any, Any]) -> dict[Any, Any]:
    """Remove up to _ROWS entries, the oldest first, and return them."""
    return {key: rows.pop(key) for key in list(itertools.islice(rows, _ROWS))}


def _checked(read: Callable[[Any], _Said], row: dict[str, Any]) -> _Said:
    try:
        return read(row)
    except WireError as error:
        raise BadRequest("bad-field", str(error)) from None


def _plain(peer: str) -> str:
    """An address in its usual form, without the disguise that IPv4 has on an IPv6 socket; a name as it is."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(inner or address)
