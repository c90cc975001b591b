"""The simulator against the slow oracle: random DAGs, three fabrics, every policy, both transports, with and
without a coordinator's delay and period, with few classes and with as many as there are ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import numpy as np
import pytest
from oracle import Oracle
from result_cases import star
from sim_cases import (
    ALL_EVENTS,
    PER_FLOW,
    PER_PAIR,
    Odd,
    OddLocal,
    by_hand,
    random_workload,
    run,
)

from netsched.fabric import Fabric
from netsched.fabrics import build
from netsched.model import Control, Event, Outcome, Plan, Policy, Spec, Transport, View, Workload
from netsched.policies import POLICIES

LEAF_SPINE = {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "8bit/s", "uplink_rate": "12bit/s"}
FABRICS = (
    star(4, 1.0),
    build(Spec("leaf_spine", LEAF_SPINE))[1],
    build(Spec("leaf_spine", {**LEAF_SPINE, "delay": "50ms"}))[1],
)
CONTROLS = (
    Control(),
    Control(delay=0.2),
    Control(period=0.5),
    Control(delay=0.3, period=0.21),
    Control(report_period=0.17),
    Control(period=0.1, report_period=0.07, report_delay=0.23, report_loss=0.4),
)


@dataclass(frozen=True)
class Wander(Odd):
    """Now and then another path for each pair of hosts of a job, or each flow where that has a connection."""

    name: ClassVar[str] = "wander"
    steers: ClassVar[bool] = True

    def __call__(self, view: View) -> Plan:
        flows = view.flows
        assert view.ways is not None
        turn = view.jobs.id[view.coflows.job[flows.coflow]] + flows.src + int(view.now / 0.9)
        path = np.where(turn % 5 == 4, -1, turn % view.ways.n_paths)
        return replace(super().__call__(view), path=path)


ALL: tuple[Policy, ...] = (
    *(kind() for kind in POLICIES.values()),
    Odd(),
    OddLocal(),
    Wander(),
)


def agree(workload: Workload, outcome: Outcome, oracle: Oracle) -> None:
    """Every time, byte, class and the number of decisions, to 1e-9 relative."""
    pairs = (
        (outcome.flow_release, oracle.column(oracle.start)),
        (outcome.flow_finish, oracle.column(oracle.finish)),
        (outcome.task_start, oracle.column(oracle.start, tasks=True)),
        (outcome.task_finish, oracle.column(oracle.finish, tasks=True)),
        (outcome.link_bytes, oracle.link_bytes()),
    )
    for mine, right in pairs:
        np.testing.assert_allclose(mine, right, rtol=1e-9, atol=1e-12)
    carried = sorted(oracle.order)
    assert outcome.flow_class[carried].tolist() == [oracle.cls[f] for f in carried]
    assert outcome.decisions == len(oracle.decisions)


def drawn(seed: int) -> tuple[Workload, Fabric, Control, int | None]:
    """A random case: workload, fabric, control and number of classes."""
    rng = np.random.default_rng(seed)
    fabric = FABRICS[seed % len(FABRICS)]
    workload = random_workload(rng, len(fabric.hosts), hairpin=bool(rng.random() < 0.3))
    return workload, fabric, CONTROLS[rng.integers(len(CONTROLS))], (None, 3, 8)[rng.integers(3)]


@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])
@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_agrees_with_the_oracle_on_random_dags(policy: Policy, transport: Transport) -> None:
    for seed in range(24):
        workload, fabric, control, queues = drawn(seed)
        asked = {"queues": queues, "transport": transport, "control": control}
        agree(workload, run(workload, fabric, policy, **asked), by_hand(workload, fabric, policy, **asked))


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_agrees_with_the_oracle_wherever_the_horizon_cuts(policy: Policy) -> None:
    rng = np.random.default_rng(5)
    for seed in range(100, 106):
        workload, fabric, control, queues = drawn(seed)
        for horizon in rng.exponential(4.0, 3).tolist():
            asked = {"queues": queues, "transport": PER_PAIR, "control": control, "horizon": horizon}
            outcome = run(workload, fabric, policy, **asked)
            agree(workload, outcome, by_hand(workload, fabric, policy, **asked))
            assert outcome.simulated_s <= horizon


@dataclass(frozen=True)
class Witness(Odd):
    """Keeps every view that it is shown."""

    seen: list[View] = field(default_factory=list)

    name: ClassVar[str] = "witness"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = ALL_EVENTS

    def __call__(self, view: View) -> Plan:
        self.seen.append(view)
        return super().__call__(view)


@dataclass(frozen=True)
class Blind(Witness):
    """The same without a right to see sizes."""

    name: ClassVar[str] = "blind"
    clairvoyant: ClassVar[bool] = False


@pytest.mark.parametrize("kind", [Witness, Blind])
def test_policies_are_shown_what_the_oracle_shows(kind: type[Witness]) -> None:
    count = 0
    for seed in range(200, 212):
        workload, fabric, control, queues = drawn(seed)
        mine, right = kind(), kind()
        asked = {"queues": queues, "transport": PER_PAIR, "control": control}
        run(workload, fabric, mine, **asked)
        by_hand(workload, fabric, right, **asked)
        for shown, expected in zip(mine.seen, right.seen, strict=True):
            count += 1
            assert shown.events == expected.events
            assert shown.queues == expected.queues
            np.testing.assert_allclose(shown.now, expected.now, rtol=1e-9)
            np.testing.assert_array_equal(shown.capacity, expected.capacity)
            for part in ("flows", "coflows", "jobs"):
                table, wanted = getattr(shown, part), getattr(expected, part)
                for column in (each.name for each in fields(table)):
                    found = getattr(table, column)
                    assert found.dtype == getattr(wanted, column).dtype, (part, column)
                    np.testing.assert_allclose(
                        found, getattr(wanted, column), rtol=1e-9, atol=1e-9, err_msg=f"{part}.{column}"
                    )
                    assert not found.flags.writeable, (part, column)
    assert count > 100
