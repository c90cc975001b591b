"""Rates in a crowd (crowd.py) against rates computed anew in plain Python, with crowds of any size.

A class of a few hundred bundles becomes a crowd by itself, more than the oracle can take. So here every class
that can be one is one from its first repair on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from sim_cases import PER_FLOW, PER_PAIR, Case, by_hand, random_workload, run

from netsched import carried
from netsched.fabric import Fabric
from netsched.fabrics import build
from netsched.model import Event, Outcome, Plan, Policy, Spec, Transport, View, Workload
from netsched.policies import make
from netsched.policies.base import plan_of

HOSTS = 6
STAR = build(Spec("single_switch", {"hosts": HOSTS, "rate": "80bit/s"}))[1]
TREE = build(
    Spec(
        "leaf_spine",
        {"leaves": 3, "spines": 2, "hosts_per_leaf": 2, "host_rate": "80bit/s", "uplink_rate": "56bit/s"},
    )
)[1]
FAST = build(Spec("single_switch", {"hosts": HOSTS, "rate": "80Gbit/s"}))[1]


@pytest.fixture(autouse=True)
def _all_are_crowds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "LEAST", (1, 1, 0, 0))


@dataclass(frozen=True)
class Weighted:
    """One class, weights that are no whole numbers."""

    name: ClassVar[str] = "weighted"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = True
    events: ClassVar[Event] = Event(0)

    def __call__(self, view: View) -> Plan:
        return plan_of(view, np.zeros(len(view.flows.id), np.int64), weight=0.3 + view.flows.id % 7)


@dataclass(frozen=True)
class Turns:
    """All equal; at every third decision some flows have caps, at every seventh some a class of their own."""

    name: ClassVar[str] = "turns"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        ids, turn = view.flows.id, int(view.flows.id.max(initial=0))
        cap = np.where((turn % 3 == 0) & (ids % 4 == 0), 0.3, np.inf)
        return plan_of(view, ((turn % 7 == 0) & (ids % 5 == 0)).astype(np.int64), rate=cap)


def crowd(seed: int, flows: int = 120, scale: float = 1.0) -> Workload:
    """Flows of one job each, far more than the links carry, so that most are active together."""
    rng = np.random.default_rng(seed)
    case = Case(HOSTS)
    for at in np.sort(rng.uniform(0.0, 4.0, flows)).tolist():
        a, b = rng.choice(HOSTS, 2, replace=False).tolist()
        case.coflow((a, b, scale * float(rng.lognormal(1.0, 1.0))), at=at)
    return case.build()


def agree(workload: Workload, fabric: Fabric, policy: Policy, transport: Transport) -> Outcome:
    outcome = run(workload, fabric, policy, transport=transport)
    oracle = by_hand(workload, fabric, policy, transport=transport)
    np.testing.assert_allclose(outcome.flow_finish, oracle.column(oracle.finish), rtol=1e-9)
    np.testing.assert_allclose(outcome.link_bytes, oracle.link_bytes(), rtol=1e-9)
    return outcome


@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])
@pytest.mark.parametrize("fabric", [STAR, TREE], ids=["star", "tree"])
@pytest.mark.parametrize("policy", [make(Spec("fair")), Weighted(), Turns()], ids=lambda policy: policy.name)
def test_rates_of_a_crowd_are_those_computed_anew(
    policy: Policy, fabric: Fabric, transport: Transport
) -> None:
    for seed in range(2):
        outcome = agree(crowd(seed), fabric, policy, transport)
        assert outcome.mechanisms["crowded"] > 50


def test_a_crowd_behind_other_classes() -> None:
    """One class is a crowd at a time, and takes what those before it leave."""
    crowded = 0
    for seed in range(6):
        workload = random_workload(np.random.default_rng(seed), HOSTS)
        crowded += agree(workload, TREE, make(Spec("fifo")), PER_FLOW).mechanisms["crowded"]
    assert crowded > 10


def test_clocks_that_are_set_back() -> None:
    """Each link's clock counts bytes, here up to 10^11, and is set back at 2^33; times have no scale."""
    outcome = agree(crowd(0, scale=1e10), FAST, make(Spec("fair")), PER_FLOW)
    small = run(crowd(0, scale=10.0), STAR, make(Spec("fair")))
    np.testing.assert_allclose(outcome.flow_finish, small.flow_finish, rtol=1e-9)


def test_what_ends_at_once_ends_at_one_time() -> None:
    """From each of 5 hosts 4 flows of 20 bytes and 2 of 40 to host 5, whose port carries 10 bytes/s.

    30 flows have 1/3 byte/s each until 60 s, then 10 have 1 byte/s each for the 20 bytes that they have left.
    """
    case = Case(HOSTS)
    for host in range(5):
        for size in (20.0, 20.0, 20.0, 20.0, 40.0, 40.0):
            case.coflow((host, 5, size))
    outcome = run(case.build(), STAR, make(Spec("fair")))
    np.testing.assert_allclose(np.unique(outcome.flow_finish), [60.0, 80.0], rtol=1e-12)
    assert outcome.mechanisms["events"] == 3
