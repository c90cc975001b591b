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
from typing import Final, NamedTuple

import numpy as np

from hostagent import logs
from netsched.control import Cadence, decide, interim_class
from netsched.coordinator.picture import Camera
from netsched.coordinator.registry import Flow, Host, Registry
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
from netsched.errors import PolicyError
from netsched.fabric import Fabric
from netsched.model import Control, Event, Plan, Policy

_LOG: Final = logging.getLogger(__name__)


class Unwelcome(Exception):  # noqa: N818  (an answer to an agent, not a failure of ours)
    """An agent that cannot be taken on; the text says why and what would be right."""


class Order(NamedTuple):
    """What is in effect for a flow. `not_before` in seconds of the coordinator's clock, `cap` in bytes/s."""

    cls: int
    not_before: float
    cap: float
    decided: bool


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
        self._waiting: deque[tuple[float, list[tuple[Flow, Order]]]] = deque()
        self._orders: dict[Flow, Order] = {}
        self._class_of: dict[CoflowKey, int] = {}
        self._untold: dict[str, set[int]] = {}
        self._watched: set[Flow] = set()

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
        present = self.registry.hosts.get(hello.host)
        if present is not None and present.connected and not proven:
            raise Unwelcome(f"host {hello.host} has an agent here already")
        self._forget(hello.host)
        self._untold[hello.host] = set()
        return self.registry.join(hello.host, now)

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
            elif number in host.flows and host.flows[number] in self._orders:
                flows[number] = _share(self._orders[host.flows[number]], now)
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
            if any(flow.over for flow in self._watched):
                happened |= Event.WATCHED_FINISHED
            self._watched = {flow for flow in self._watched if not flow.over}
            self._orders = {flow: order for flow, order in self._orders.items() if not flow.over}
            self._class_of = {k: cls for k, cls in self._class_of.items() if k in self.registry.known}
        busy = any(flow.state.active for flow in self.registry.flows())
        if self.policy.local:
            if fresh:
                self._put(self._decide(fresh, now, happened))
        else:
            self._cadence.note(happened)
            if busy and self._cadence.due() <= now:
                self._coordinate(now)
            while self._waiting and self._waiting[0][0] <= now:
                self._put(self._waiting.popleft()[1])
            self._put([(flow, self._interim(flow)) for flow in fresh if flow not in self._orders])
        wakes = [host.heard + self._stale for host in self.registry.hosts.values()]
        wakes += [self._waiting[0][0]] if self._waiting else []
        wakes += [self._cadence.due()] if busy and not self.policy.local else []
        return min(wakes, default=math.inf)

    def _coordinate(self, now: float) -> None:
        decided = self._decide(None, now, self._cadence.since(now))
        self._waiting.append((now + self._control.delay, decided))

    def _decide(self, shown: list[Flow] | None, now: float, happened: Event) -> list[tuple[Flow, Order]]:
        picture = self._camera.take(self.registry, shown, now, happened, self._class_of)
        plan = decide(self.policy, picture.view, self._network.queues)
        self._check(plan)
        if shown is None:
            self._cadence.decided(now, plan)
        if plan.watch is not None:
            chosen = zip(picture.flows, plan.watch.tolist(), strict=True)
            self._watched = {flow for flow, watched in chosen if watched}
        self.decisions += 1
        columns = (plan.rank.tolist(), plan.not_before.tolist(), plan.rate.tolist())
        orders = (Order(*row, True) for row in zip(*columns, strict=True))
        return list(zip(picture.flows, orders, strict=True))

    def _check(self, plan: Plan) -> None:
        """PolicyError for what neither sockets nor jobs can do; a coordinator must not seem to do it."""
        name = self.policy.name
        if (plan.weight != 1.0).any() or (plan.path >= 0).any() or plan.reserve.any():
            raise PolicyError(
                f"policy {name}: plans with weights, reserves or paths cannot be carried out by agents: "
                "TCP connections of one class share equally, and a connection keeps its path"
            )
        if self.policy.local and plan.review_in != math.inf:
            raise PolicyError(f"policy {name}: a local policy is asked once per flow and has no review")

    def _interim(self, flow: Flow) -> Order:
        of_coflow = np.array([self._class_of.get(flow.key, -1)])
        return Order(int(interim_class(of_coflow)[0]), -math.inf, math.inf, False)

    def _put(self, orders: list[tuple[Flow, Order]]) -> None:
        """Orders take effect; the agents concerned have not been told."""
        changed = False
        for flow, order in orders:
            if flow.over:
                continue
            if order.decided:
                self._class_of[flow.key] = order.cls
            if self._orders.get(flow) != order:
                self._orders[flow] = order
                self._untold[flow.host].add(flow.state.id)
                changed = True
        self.revision += changed

    def _forget(self, name: str) -> None:
        self.registry.forget(name)
        self._untold.pop(name, None)


def _share(order: Order, now: float) -> Share:
    hold = min(order.not_before - now, MAX_SECONDS)
    cap = order.cap if order.cap <= MAX_BYTES else None
    return Share(order.cls, hold if hold > 0 else None, cap, order.decided)
