"""What tests of the coordinator without a network share."""

from __future__ import annotations

from dataclasses import replace

from netsched.coordinator.planner import Network, Planner
from netsched.coordinator.wire import (
    FlowState,
    Hello,
    Share,
)
from netsched.fabrics import build
from netsched.model import Control, Spec
from netsched.policies.sebf import Sebf

QUEUES = 8
FABRIC = build(Spec("single_switch", {"hosts": 4, "rate": "8Mbit/s"}))[1]  # 1 MB/s a port
HOSTS = ("h1", "h2", "h3", "h4")
NETWORK = Network(
    FABRIC, QUEUES, frozenset(HOSTS), {name: n for n, name in enumerate(HOSTS)} | {"10.0.0.2": 1}
)


def planner(policy=None, control: Control = Control(), stale: float = 10.0) -> Planner:  # noqa: B008
    return Planner(Sebf() if policy is None else policy, NETWORK, control, stale)


def flow(number: int, coflow: str, size: float, peer: str = "h2", **changes) -> FlowState:
    made = FlowState(number, 1000, f"job {coflow}", coflow, peer, size, 0.0, 0, 1, 0.0, True)
    return replace(made, **changes)


def join(what: Planner, name: str, now: float = 0.0, *, proven: bool = True):
    return what.join(Hello(name, QUEUES, {}), now, proven=proven)


def told(what: Planner, host, now: float) -> dict[int, Share]:
    """All that an agent is told at `now`."""
    found: dict[int, Share] = {}
    while what.has_news(host):
        found |= what.tell(host, now).flows
    return found
