"""Rates repaired event by event against rates computed anew in plain Python, where there is much to repair.

The random DAGs of the other tests have few flows at a time, so that hardly a repair builds on another. Here
coflows of many flows are active together and end one flow at a time, on links of unequal capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from oracle import Oracle
from sim_cases import Case, by_hand, equal_parts, run

from netsched.fabric import Fabric
from netsched.fabrics import build
from netsched.model import Event, Outcome, Plan, Policy, Spec, View, Workload
from netsched.policies import make
from netsched.policies.base import plan_of

HOSTS = 6
FABRICS = (
    build(Spec("single_switch", {"hosts": HOSTS, "rate": "80bit/s"}))[1],
    build(
        Spec(
            "leaf_spine",
            {
                "leaves": 3,
                "spines": 2,
                "hosts_per_leaf": 2,
                "host_rate": "80bit/s",
                "uplink_rate": "56bit/s",
            },
        )
    )[1],
)


@dataclass(frozen=True)
class Capped:
    """Strict priority by coflow; every third flow has a cap, every fifth another weight."""

    name: ClassVar[str] = "capped"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.COFLOW_RELEASED | Event.COFLOW_FINISHED

    def __call__(self, view: View) -> Plan:
        ids = view.flows.id
        cap = np.where(ids % 3 == 0, 0.4 + 0.01 * ids, np.inf)
        weight = np.where(ids % 5 == 0, 2.5, 1.0)
        return plan_of(view, view.flows.coflow // 2, rate=cap, weight=weight)


@dataclass(frozen=True)
class Booked:
    """Strict priority by coflow, and four of five flows have something reserved, some with a cap above it."""

    name: ClassVar[str] = "booked"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.COFLOW_RELEASED | Event.COFLOW_FINISHED

    def __call__(self, view: View) -> Plan:
        ids = view.flows.id
        reserve = np.where(ids % 5 > 0, equal_parts(view), 0.0)
        cap = np.where(ids % 3 == 0, 1.2 * equal_parts(view), np.inf)
        return plan_of(view, view.flows.coflow // 2, reserve=reserve, rate=cap)


def crowd(seed: int) -> Workload:
    """Five coflows of 20 to 45 flows, all of different sizes, released within the first two seconds."""
    rng = np.random.default_rng(seed)
    case = Case(HOSTS)
    for at in np.sort(rng.uniform(0.0, 2.0, 5)).tolist():
        width = int(rng.integers(20, 46))
        ends = rng.integers(0, HOSTS, (width, 2)).tolist()
        case.coflow(*((a, b, float(rng.lognormal(1.0, 1.0))) for a, b in ends), at=at)
    return case.build(hairpin=True)


def agree(outcome: Outcome, oracle: Oracle) -> None:
    np.testing.assert_allclose(outcome.flow_finish, oracle.column(oracle.finish), rtol=1e-9)
    np.testing.assert_allclose(outcome.link_bytes, oracle.link_bytes(), rtol=1e-9)


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: fabric.name)
@pytest.mark.parametrize(
    "policy",
    [make(Spec("fair")), make(Spec("fifo")), make(Spec("sebf")), Capped(), Booked()],
    ids=lambda policy: policy.name,
)
def test_repaired_rates_are_those_computed_anew(policy: Policy, fabric: Fabric) -> None:
    for seed in range(2):
        workload = crowd(seed)
        outcome = run(workload, fabric, policy)
        agree(outcome, by_hand(workload, fabric, policy))


def test_most_allocations_are_repairs() -> None:
    """Else the test above says nothing: 5 arrivals compute anew, whatever else ends a flow repairs."""
    for policy in (make(Spec("fair")), make(Spec("fifo"))):
        workload = crowd(0)
        outcome = run(workload, FABRICS[0], policy)
        assert outcome.mechanisms["allocations"] > 100
        assert outcome.mechanisms["repairs"] >= outcome.mechanisms["allocations"] - 2 * 5
