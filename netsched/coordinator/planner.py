"""From reports to plans: when to decide, what is in effect, and what each agent has not been told yet.

It knows the time only from its caller and nothing of sockets, so that every case can be played through in a
test as exactly as in the simulator, whose gate (`control.decide`) and cadence it uses.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hostagent import logs
from netsched.control import Cadence, check_sockets, decide, interim_class
from netsched.coordinator.picture import Camera, Picture
from netsched.coordinator.registry import Host, Registry
from netsched.coordinator.table import Flow
from netsched.coordinator.wire import (
    MAX_BYTES,
    MAX_ROWS,
    MAX_SECONDS,
    CoflowKey,
    Hello,
    PlanPart,
    Report,
    Share,
)
from netsched.fabric import Fabric
from netsched.model import Control, Event, Memory, Plan, Policy

_LOG: Final = logging.getLogger(__name__)


class Unwelcome(Exception):  # noqa: N818  (an answer to an agent, not a failure of ours)
    """An agent that cannot be taken on; the text says why and what would be right."""


@dataclass(frozen=True)
class Decision:
    """A policy's plan for the flows of a picture."""

    picture: Picture
    plan: Plan


@dataclass(frozen=True)
class Network:
    """What is planned for. `ordinal_of` maps every name and address of a host to its place in the fabric."""

    fabric: Fabric
    queues: int
    names: frozenset[str]
    ordinal_of: Mapping[str, int]


class Planner:
    """All that the coordinator decides. Times (`now`) are seconds of one clock that never goes back.

    `stale`: an agent that has not been heard for so many seconds counts as gone, with all its flows.
    """

    def __init__(self, policy: Policy, network: Network, control: Control, stale: float) -> None:
        self.policy = policy
        self.registry = Registry(network.ordinal_of)
        self.decisions = 0
        self.revision = 0
        self._network = network
        self._stale = stale
        self._control = control
        self._cadence = Cadence(policy.events, control)
        self._camera = Camera(network.fabric, network.queues)
        self._waiting: deque[tuple[float, Decision]] = deque()
        self._class_of: dict[CoflowKey, int] = {}
        self._memory: Memory = ()
        self._untold: dict[str, set[int]] = {}

    # -------------------------------------------------------------- agents

    def join(self, hello: Hello, now: float, *, proven: bool) -> Host:
        """Begin a session with an agent. `proven`: a certificate says that it is who it says.

        Unwelcome if it cannot be: unknown, of another number of queues, or (not proven) already here.
        """
        if hello.host not in self._network.names:
            known = ", ".join(sorted(self._network.names)[:8])
            raise Unwelcome(f"host {hello.host!r} is not of this coordinator's fabric: its hosts are {known}")
        if hello.queues != self._network.queues:
            raise Unwelcome(
                f"host {hello.host}: queues = {hello.queues}, but plans are made for {self._network.queues}: "
                "the last class would mean something else"
            )
        if self.present(hello.host) is not None and not proven:
            raise Unwelcome(f"host {hello.host} has an agent here already")
        self._forget(hello.host)
        self._untold[hello.host] = set()
        return self.registry.join(hello.host, now)

    def present(self, name: str) -> Host | None:
        """The session of the agent of host `name`, if its stream has not ended."""
        host = self.registry.hosts.get(name)
        return host if host is not None and host.connected else None

    def is_current(self, host: Host) -> bool:
        """Does this session still count, or has a newer one of the same host, or silence, ended it?"""
        return self.registry.hosts.get(host.name) is host

    def hear(self, host: Host, report: Report, now: float) -> None:
        """Take a report of a current session. ReportError if it is not acceptable."""
        refused = set(host.refused)
        self.registry.report(host, report, now)
        self._untold[host.name] |= host.refused.keys() - refused

    def part(self, host: Host) -> None:
        """A session's stream has ended: its flows count on until they are stale, or the agent is back."""
        host.connected = False

    def has_news(self, host: Host) -> bool:
        """Is there something that the agent of this session has not been told?"""
        return self.is_current(host) and bool(self._untold[host.name])

    def tell(self, host: Host, now: float) -> PlanPart:
        """What the agent of a current session is to be told next; it may be nothing."""
        untold = self._untold[host.name]
        flows: dict[int, Share] = {}
        refused: dict[int, str] = {}
        for number in sorted(untold)[:MAX_ROWS]:
            untold.discard(number)
            if number in host.refused:
                refused[number] = host.refused[number]
            elif number in host.flows:
                row = self.registry.table.rows[host.flows[number].slot]
                if row["cls"] >= 0:
                    flows[number] = _share(row, now)
        return PlanPart(self.revision, flows, refused)

    # -------------------------------------------------------------- deciding

    def turn(self, now: float) -> float:
        """Do what is due; returns when the next thing is, inf for "when somebody says something"."""
        for host in list(self.registry.hosts.values()):
            if now - host.heard >= self._stale:
                about: dict[str, logs.Value] = {"host": host.name, "seconds": self._stale}
                _LOG.warning("agent silent, its flows no longer count", extra=logs.fields(about))
                self._forget(host.name)
        fresh = [flow for flow in self.registry.fresh if not flow.over]
        self.registry.fresh.clear()
        happened, self.registry.events = self.registry.events, Event.NONE
        if happened & Event.FLOW_FINISHED:
            self._class_of = {k: cls for k, cls in self._class_of.items() if k in self.registry.known}
        busy = any(flow.state.active for flow in self.registry.flows())
        if self.policy.local:
            if fresh:
                self._put(self._decide([flow.slot for flow in fresh], now, happened))
        else:
            self._cadence.note(happened)
            if busy and self._cadence.due() <= now:
                self._coordinate(now)
            while self._waiting and self._waiting[0][0] <= now:
                self._put(self._waiting.popleft()[1])
            self._ride_along(fresh)
        wakes = [host.heard + self._stale for host in self.registry.hosts.values()]
        wakes += [self._waiting[0][0]] if self._waiting else []
        wakes += [self._cadence.due()] if busy and not self.policy.local else []
        return min(wakes, default=math.inf)

    def _coordinate(self, now: float) -> None:
        decision = self._decide(None, now, self._cadence.since(now))
        self._cadence.decided(now, decision.plan)
        self._waiting.append((now + self._control.delay, decision))

    def _decide(self, shown: list[int] | None, now: float, happened: Event) -> Decision:
        picture = self._camera.take(self.registry, shown, now, happened, self._class_of, self._memory)
        plan = decide(self.policy, picture.view, self._network.queues)
        self._memory = plan.memory
        check_sockets(self.policy, plan)
        if plan.watch is not None:
            self.registry.table.rows["watched"][picture.slots] = plan.watch
        self.decisions += 1
        return Decision(picture, plan)

    def _ride_along(self, fresh: list[Flow]) -> None:
        """Give new flows that no decision covers yet the class of their coflow."""
        rows = self.registry.table.rows
        for flow in fresh:
            if rows["cls"][flow.slot] < 0:
                of_coflow = np.array([self._class_of.get(flow.key, -1)])
                rows["cls"][flow.slot] = interim_class(of_coflow)[0]
                self._untold[flow.host].add(flow.state.id)

    def _put(self, decision: Decision) -> None:
        """A decision takes effect; the agents concerned have not been told."""
        picture, plan, table = decision.picture, decision.plan, self.registry.table
        rows = table.rows
        alive = rows["number"][picture.slots] == picture.numbers
        slots, cls = picture.slots[alive], plan.rank[alive]
        before = rows[slots]
        values = {"cls": cls, "not_before": plan.not_before[alive], "cap": plan.rate[alive], "decided": True}
        changed = np.zeros(len(slots), bool)
        for name, value in values.items():
            changed |= before[name] != value
            rows[name][slots] = value
        for slot in slots[changed].tolist():
            flow = table.flows[slot]
            if flow is not None:
                self._untold[flow.host].add(flow.state.id)
        self.revision += bool(changed.any())
        of_coflow = np.full(len(picture.coflows), -1)
        of_coflow[picture.view.flows.coflow[alive]] = cls
        known = zip(picture.coflows, of_coflow.tolist(), strict=True)
        self._class_of |= {key: one for key, one in known if one >= 0}

    def _forget(self, name: str) -> None:
        self.registry.forget(name)
        self._untold.pop(name, None)


def _share(row: Any, now: float) -> Share:
    """What a row of the table says to its agent."""
    hold = min(float(row["not_before"]) - now, MAX_SECONDS)
    cap = float(row["cap"])
    return Share(
        int(row["cls"]), hold if hold > 0 else None, cap if cap <= MAX_BYTES else None, bool(row["decided"])
    )
