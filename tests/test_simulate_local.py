"""Rates repaired around a change, and what is left alone: against the oracle, and against filling all anew.

Flows arrive and end one by one on a network that stays crowded, so that each of hundreds of events builds on
what the ones before left behind. How much of a class may be repaired is set from nothing to everything.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracle import Oracle
from sim_cases import PER_FLOW, PER_PAIR, Case, Table, by_hand, run

from netsched import running
from netsched.fabric import Fabric
from netsched.fabrics import build
from netsched.model import BEST_EFFORT, Outcome, Policy, Spec, Transport, Workload
from netsched.policies import make

HOSTS = 8
SWITCH = build(Spec("single_switch", {"hosts": HOSTS, "rate": "80bit/s"}))[1]
SPINE = build(
    Spec(
        "leaf_spine",
        {"leaves": 4, "spines": 2, "hosts_per_leaf": 2, "host_rate": "80bit/s", "uplink_rate": "56bit/s"},
    )
)[1]
FLOWS = 120


def stream(seed: int) -> Workload:
    """Flows that arrive one by one, of which a few dozen are active at a time."""
    rng = np.random.default_rng(seed)
    case = Case(HOSTS)
    for at in np.sort(rng.uniform(0.0, 12.0, FLOWS)).tolist():
        a, b = rng.choice(HOSTS, 2, replace=False).tolist()
        case.coflow((a, b, float(rng.lognormal(1.0, 1.0))), at=at)
    return case.build()


def mixed(seed: int, span: float) -> Table:
    """Some flows in each of three classes, some unmarked; some capped; weights from 1/span to span."""
    rng = np.random.default_rng(seed)
    ids = range(FLOWS)
    return Table(
        rank={f: int(rng.integers(0, 3)) for f in ids if f % 4},
        rate={f: float(rng.uniform(0.2, 3.0)) for f in ids if f % 6 == 1},
        weight={f: float(span ** rng.uniform(-1, 1)) for f in ids if f % 3 == 0},
    )


def classed() -> Table:
    """Three classes that flows of one path share bundles in, one of them of unmarked flows."""
    return Table(rank={f: f % 3 for f in range(FLOWS) if f % 3}, other=BEST_EFFORT)


def agree(outcome: Outcome, oracle: Oracle) -> None:
    np.testing.assert_allclose(outcome.flow_finish, oracle.column(oracle.finish), rtol=1e-9)
    np.testing.assert_allclose(outcome.link_bytes, oracle.link_bytes(), rtol=1e-9)


@pytest.fixture(params=[0.0, 0.5, math.inf], ids=["whole", "half", "local"])
def share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """How much of a class may be repaired."""
    monkeypatch.setattr(running, "_REPAIRED", request.param)
    return float(request.param)


@pytest.mark.usefixtures("share")
@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])
@pytest.mark.parametrize("fabric", [SWITCH, SPINE], ids=lambda fabric: fabric.name)
@pytest.mark.parametrize(
    "policy", [make(Spec("fair")), classed(), mixed(1, 2.0)], ids=["fair", "classes", "mixed"]
)
def test_rates_repaired_around_changes_are_those_of_the_oracle(
    policy: Policy, fabric: Fabric, transport: Transport
) -> None:
    for seed in range(2):
        workload = stream(seed)
        outcome = run(workload, fabric, policy, transport=transport)
        agree(outcome, by_hand(workload, fabric, policy, transport=transport))


@pytest.mark.usefixtures("share")
def test_weights_may_span_a_million() -> None:
    workload, policy = stream(3), mixed(3, 1e3)
    agree(run(workload, SPINE, policy), by_hand(workload, SPINE, policy))


def test_the_share_decides_what_is_filled_as_a_whole(share: float) -> None:
    """Else the tests above look at one way thrice."""
    outcome = run(stream(0), SPINE, make(Spec("fair")))
    refills, repairs = outcome.mechanisms["refills"], outcome.mechanisms["repairs"]
    assert repairs > FLOWS
    assert refills == 0 if share == math.inf else refills > repairs / 4


def test_a_change_reaches_nobody_on_other_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of hosts that share no link: a change concerns one pair of eight, and nothing else is filled."""
    rng = np.random.default_rng(0)
    case = Case(2 * HOSTS)
    pairs = [2 * int(i) for i in np.repeat(np.arange(HOSTS), 5)]
    for pair in pairs:
        case.coflow((pair, pair + 1, float(rng.lognormal(1.0, 1.0))), at=0.0)
    fabric = build(Spec("single_switch", {"hosts": 2 * HOSTS, "rate": "80bit/s"}))[1]
    workload = case.build()
    weight = {f: 1.0 + f % 5 for f in range(len(pairs))}
    monkeypatch.setattr(running, "_REPAIRED", 0.5)
    outcome = run(workload, fabric, Table(weight=weight))
    assert outcome.mechanisms["repairs"] >= len(pairs) - 2
    # In the end one pair alone is left: then it is more than half of its class.
    assert outcome.mechanisms["refills"] <= 12
    agree(outcome, by_hand(workload, fabric, Table(weight=weight)))
