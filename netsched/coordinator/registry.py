"""What the agents have said, each of its own host only: flows, declarations, and when it was last heard.

Every record belongs to the agent that reported it and is reached through that agent alone, so that no message
can touch another host's; what a coflow is as a whole is put together from the parts when it is looked at.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from netsched.coordinator.table import Flow, Table
from netsched.coordinator.wire import CoflowKey, CoflowState, FlowState, Report
from netsched.model import Event

MAX_FLOWS: Final = 65536
"""Flows of one agent that have not ended."""
MAX_DECLARED: Final = 16384
"""Declarations of one agent."""
MAX_COFLOWS: Final = 4096
"""Coflows with flows of one user, over all hosts: a policy's time may grow as the square of their number, and
while it decides nobody else is planned for."""


class ReportError(Exception):
    """A report that does not fit what its agent has said before, or is more than an agent may say."""


@dataclass
class Ended:
    """What a host's ended flows of a coflow add up to."""

    flows: int = 0
    size: float = 0.0


@dataclass(eq=False)
class Host:
    """One agent's share of what is known. `heard` in seconds of the coordinator's clock."""

    name: str
    ordinal: int
    session: int
    heard: float
    connected: bool = True
    flows: dict[int, Flow] = field(default_factory=dict)
    declared: dict[CoflowKey, CoflowState] = field(default_factory=dict)
    ended: dict[CoflowKey, Ended] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


@dataclass
class _Known:
    """A coflow while a host has a flow or a declaration of it (`parts`); `active` counts released flows."""

    number: int
    arrival: float = math.inf
    parts: int = 0
    flows: int = 0
    active: int = 0
    ended: int = 0
    ended_bytes: float = 0.0


@dataclass
class Coflow:
    """A coflow over all hosts: what has ended of it, and what was declared of it. Sizes in bytes."""

    key: CoflowKey
    number: int
    arrival: float
    ended: int
    ended_bytes: float
    weight: float = 0.0
    deadline: float = math.inf
    size: float = 0.0
    n_flows: int = 0


class Registry:
    """All hosts. `ordinal_of` maps names and addresses of hosts to ordinals of the fabric."""

    def __init__(self, ordinal_of: Mapping[str, int]) -> None:
        self.hosts: dict[str, Host] = {}
        self.table = Table()
        self.fresh: list[Flow] = []
        """Flows released since this was last emptied."""
        self.events = Event.NONE
        """What happened since this was last reset."""
        self._ordinal_of = ordinal_of
        self._numbers = itertools.count()
        self._known: dict[CoflowKey, _Known] = {}
        self._coflows_of: Counter[int] = Counter()

    # -------------------------------------------------------------- agents come and go

    def join(self, name: str, now: float) -> Host:
        """A new session of the agent of host `name`: whatever it said before is forgotten."""
        self.forget(name)
        host = Host(name, self._ordinal_of[name], next(self._numbers), now)
        self.hosts[name] = host
        return host

    def forget(self, name: str) -> None:
        """As if the agent of host `name` had never been there."""
        host = self.hosts.pop(name, None)
        if host is not None:
            for flow in list(host.flows.values()):
                self._drop(host, flow)
            for key, ended in host.ended.items():
                if key in self._known:
                    self._known[key].ended -= ended.flows
                    self._known[key].ended_bytes -= ended.size
            for key in host.declared:
                self._part_gone(key)

    @property
    def known(self) -> Collection[CoflowKey]:
        """Every coflow of which a host has a flow or a declaration."""
        return self._known.keys()

    def flows(self) -> Iterator[Flow]:
        return itertools.chain.from_iterable(host.flows.values() for host in self.hosts.values())

    # -------------------------------------------------------------- what one agent says

    def report(self, host: Host, report: Report, now: float) -> None:
        """Take one report of an agent over its current session. ReportError if it is not acceptable."""
        host.heard = now
        for declared in report.coflows:
            if declared.key not in host.declared:
                if len(host.declared) >= MAX_DECLARED:
                    raise ReportError(f"more than {MAX_DECLARED} coflows are declared")
                self._part_new(declared.key)
            host.declared[declared.key] = declared
        for state in report.flows:
            self._flow(host, state, now)
        for number, sent in report.sent:
            flow = host.flows.get(number)
            if flow is not None:
                row = self.table.rows[flow.slot]
                row["sent"] = min(max(float(row["sent"]), sent), flow.state.size)
        for number in (*report.done, *report.gone):
            host.refused.pop(number, None)
        for number in report.done:
            flow = host.flows.get(number)
            if flow is not None:
                ended = host.ended.setdefault(flow.key, Ended())
                ended.flows += 1
                ended.size += flow.state.size
                self._known[flow.key].ended += 1
                self._known[flow.key].ended_bytes += flow.state.size
                self._drop(host, flow)
        for number in report.gone:
            flow = host.flows.get(number)
            if flow is not None:
                self._drop(host, flow)
        for key in report.closed:
            if host.declared.pop(key, None) is not None:
                self._part_gone(key)

    def _flow(self, host: Host, state: FlowState, now: float) -> None:
        known = host.flows.get(state.id)
        if known is None and len(host.flows) + len(host.refused) >= MAX_FLOWS:
            raise ReportError(f"more than {MAX_FLOWS} flows at a time")
        dst = self._ordinal_of.get(state.peer)
        if known is not None:
            self._changed(known, state, dst, now)
        elif dst is None:
            host.refused[state.id] = f"peer {state.peer[:40]!r} is no host of the coordinator's fabric"
        elif dst == host.ordinal:
            host.refused[state.id] = f"peer {state.peer[:40]!r} is this host itself"
        elif not self._has_room(state.key):
            host.refused[state.id] = f"user {state.uid} has {MAX_COFLOWS} coflows already"
        else:
            host.refused.pop(state.id, None)
            known_coflow = self._part_new(state.key)
            self._coflows_of[state.uid] += known_coflow.flows == 0
            known_coflow.flows += 1
            number, ends = next(self._numbers), (host.ordinal, dst)
            flow = self.table.add(host.name, state, number, known_coflow.number, ends, now)
            host.flows[state.id] = flow
            if state.active:
                self._released(flow)

    def _changed(self, flow: Flow, state: FlowState, dst: int | None, now: float) -> None:
        if state.key != flow.key or dst != int(self.table.rows["dst"][flow.slot]):
            raise ReportError(f"flow {state.id}: a flow keeps its job, coflow and peer")
        was_active = flow.state.active
        if was_active and not state.active:
            raise ReportError(f"flow {state.id}: a released flow cannot be taken back")
        self.table.update(flow, state, now)
        if not was_active and state.active:
            self._released(flow)

    def _released(self, flow: Flow) -> None:
        known = self._known[flow.key]
        known.arrival = min(known.arrival, float(self.table.rows["release"][flow.slot]))
        self.events |= Event.FLOW_RELEASED | (Event.NONE if known.active else Event.COFLOW_RELEASED)
        known.active += 1
        self.fresh.append(flow)

    def _drop(self, host: Host, flow: Flow) -> None:
        del host.flows[flow.state.id]
        watched = bool(self.table.rows["watched"][flow.slot])
        self.table.remove(flow)
        if watched:
            self.events |= Event.WATCHED_FINISHED
        if flow.state.active:
            known = self._known[flow.key]
            known.active -= 1
            self.events |= Event.FLOW_FINISHED | (Event.NONE if known.active else Event.COFLOW_FINISHED)
        self._known[flow.key].flows -= 1
        if not self._known[flow.key].flows:
            self._coflows_of[flow.state.uid] -= 1
            if not self._coflows_of[flow.state.uid]:
                del self._coflows_of[flow.state.uid]
        self._part_gone(flow.key)

    def _has_room(self, key: CoflowKey) -> bool:
        known = self._known.get(key)
        return (known is not None and known.flows > 0) or self._coflows_of[key[0]] < MAX_COFLOWS

    def _part_new(self, key: CoflowKey) -> _Known:
        if key not in self._known:
            self._known[key] = _Known(next(self._numbers))
        self._known[key].parts += 1
        return self._known[key]

    def _part_gone(self, key: CoflowKey) -> None:
        """Forget a coflow of which no host has a part any more, so that months of jobs do not add up."""
        known = self._known[key]
        known.parts -= 1
        if known.parts == 0:
            del self._known[key]
            for host in self.hosts.values():
                host.ended.pop(key, None)

    # -------------------------------------------------------------- as a whole

    def coflows(self) -> list[Coflow]:
        """Every coflow that has an active flow, in order of number, put together from what all hosts say."""
        found = {
            key: Coflow(key, known.number, known.arrival, known.ended, known.ended_bytes)
            for key, known in self._known.items()
            if known.active
        }
        for host in self.hosts.values():
            for key, declared in host.declared.items():
                one = found.get(key)
                if one is not None:
                    # Every host's word counts and none undoes another's: of each the more demanding.
                    one.weight = max(one.weight, declared.weight)
                    one.deadline = min(one.deadline, declared.deadline)
                    one.size = max(one.size, declared.size)
                    one.n_flows = max(one.n_flows, declared.flows)
        return sorted(found.values(), key=lambda one: one.number)
