"""Cases with many classes at a time: training-like jobs, and a policy that moves their flows between classes.

Hundreds of flows of ten classes meet at a few ports, many of them alike, so that rates are repaired upon
repairs; and who goes first changes while all are under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from result_cases import star
from sim_cases import PER_FLOW, PER_PAIR, Case, equal_parts

from netsched.fabric import Fabric
from netsched.fabrics import build
from netsched.model import Control, Event, Ints, Plan, Spec, Transport, View, Workload
from netsched.workloads.builder import Node

_COFLOWS = Event.COFLOW_RELEASED | Event.COFLOW_FINISHED
_FLOWS = Event.FLOW_RELEASED | Event.FLOW_FINISHED
_LEAF_SPINE = {"leaves": 3, "spines": 2, "hosts_per_leaf": 2, "host_rate": "8bit/s", "uplink_rate": "12bit/s"}
_UNEQUAL = np.array([1.0, 0.5, 2.0, 1.0, 0.75, 0.75, 0.5, 1.0, 2.0, 1.0])
FABRICS = (
    star(4, 1.0),
    star(6, 1.0),
    build(Spec("leaf_spine", _LEAF_SPINE))[1],
    build(Spec("leaf_spine", _LEAF_SPINE | {"uplink_rate": "16bit/s", "delay": "50ms"}))[1],
    replace(star(5, 1.0), capacity=_UNEQUAL),
)
CONTROLS = (
    Control(),
    Control(),
    Control(delay=0.2),
    Control(period=0.3),
    Control(delay=0.2, period=0.1),
    Control(report_period=0.17),
    Control(period=0.1, report_period=0.07, report_delay=0.23, report_loss=0.4),
)


@dataclass(frozen=True)
class Classes:
    """Ranks without a purpose: one for each flow, coflow or job, another whenever `change` flows have ended.

    Shares of the flows have caps, reserves and gates; what is drawn of a flow is a hash of its number.
    """

    classes: int = 8
    unit: Literal["flow", "coflow", "job"] = "coflow"
    change: int = 0
    caps: float = 0.0
    reserves: float = 0.0
    gates: float = 0.0
    weights: bool = False
    salt: int = 0
    events: Event = _COFLOWS

    name: ClassVar[str] = "classes"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False

    def __call__(self, view: View) -> Plan:
        flows, coflows = view.flows, view.coflows
        n, part = len(flows), equal_parts(view)
        turn = coflows.n_finished[flows.coflow] // self.change if self.change else np.zeros(n, np.int64)
        job = view.jobs.id[coflows.job[flows.coflow]]
        who = {"coflow": coflows.id[flows.coflow], "flow": flows.id, "job": job}[self.unit]
        drawn = [_hash(flows.id, self.salt + i) % 100 / 100 for i in range(3)]
        cap = np.where(flows.id % 2 == 0, 0.37, 0.5 * part + 0.1)
        return Plan(
            rank=_hash(who + self.salt, turn) % self.classes,
            reserve=np.where(drawn[0] < self.reserves, 0.8 * part, 0.0),
            rate=np.where(drawn[1] < self.caps, cap, np.inf),
            weight=1.0 + 0.5 * (flows.id % 4) * self.weights,
            not_before=np.where(drawn[2] < self.gates, flows.release + 0.25, -np.inf),
            path=np.full(n, -1, np.int64),
        )


def _hash(values: Ints, other: Ints | int) -> Ints:
    mixed = (values * 7919 + np.asarray(other, np.int64) * 104729 + 12345) * 2654435761
    return mixed % 2**31 // 97


@dataclass(frozen=True)
class Drawn:
    """A case and how it is run."""

    workload: Workload
    fabric: Fabric
    policy: Classes
    queues: int | None
    transport: Transport
    control: Control


def drawn(seed: int, big: bool = False) -> Drawn:
    """A random case, the same for a seed. A big one is too much for the oracle."""
    rng = np.random.default_rng(seed)
    fabric = FABRICS[seed % len(FABRICS)]
    unit = ("coflow", "flow", "job")[rng.choice(3, p=(0.5, 0.25, 0.25))]
    policy = Classes(
        classes=int(rng.integers(4, 13)),
        unit=unit,
        change=int(rng.choice([0, 0, 1, 3])),
        caps=float(rng.choice([0.0, 0.0, 0.3])),
        reserves=float(rng.choice([0.0, 0.0, 0.0, 0.3])),
        gates=float(rng.choice([0.0, 0.0, 0.0, 0.2])),
        weights=bool(rng.random() < 0.3),
        salt=int(rng.integers(100)),
        # A flow that ends as another of its coflow comes: whether the coflow has ended is a matter of order.
        events=_FLOWS if unit == "flow" else (_COFLOWS, _FLOWS, _FLOWS | _COFLOWS)[rng.integers(3)],
    )
    control = CONTROLS[rng.integers(len(CONTROLS))]
    workload = training_like(rng, len(fabric.hosts), big)
    transport = (PER_FLOW, PER_PAIR)[rng.integers(2)]
    return Drawn(workload, fabric, policy, (None, 8, 6)[rng.integers(3)], transport, control)


def training_like(rng: np.random.Generator, hosts: int, big: bool) -> Workload:
    """Jobs whose workers all push to one or two servers and pull from them, and wide coflows beside them.

    Half of the cases have sizes that are alike, so that many flows end at once, and as decisions fall due: to
    rounding, for tenths of a byte add up to none.
    """
    case = Case(hosts)
    unit = float(rng.choice([1.0, 0.3, 0.1]))
    alike = bool(rng.random() < 0.5)

    def size() -> float:
        return unit * float(rng.integers(1, 4)) if alike else float(rng.lognormal(-1.0, 1.0))

    for _ in range(rng.integers(3, 8 if big else 5)):
        at = 0.0 if rng.random() < 0.4 else float(rng.choice([0.5, 1.0, rng.exponential(1.5)]))
        _job(case, rng, hosts, at, size, big)
        if rng.random() < 0.4:
            ends = rng.integers(0, hosts, (int(rng.integers(3, 15)), 2)).tolist()
            case.coflow(*((a, b, size() if rng.random() < 0.8 else 0.0) for a, b in ends), at=at)
    return case.build(hairpin=bool(rng.random() < 0.3))


def _job(
    case: Case, rng: np.random.Generator, hosts: int, at: float, size: Callable[[], float], big: bool
) -> None:
    """One or two iterations of two or three layers (of a big one: one more), by one to three workers."""
    iterations = int(rng.integers(1, 4 if big else 3))
    job = case.job(at, iterations)
    servers = rng.choice(hosts, int(rng.integers(1, 3)), replace=False).tolist()
    workers = rng.choice(hosts, int(rng.integers(1, 4)), replace=False).tolist()
    before: list[Node] = []
    for iteration in range(iterations):
        pulled: list[Node] = []
        for _ in range(rng.integers(2, 5 if big else 4)):
            seconds = float(rng.choice([0.0, 0.1, 0.2, rng.exponential(0.3)]))
            computed = case.task(seconds, job, iteration)
            case.builder.depend(computed, *before[-3:])
            ends = [(w, s) for w in workers for s in servers] * int(rng.integers(1, 4))
            push = case.coflow(*((w, s, size()) for w, s in ends), job=job, iteration=iteration)
            pull = case.coflow(*((s, w, size()) for w, s in ends), job=job, iteration=iteration)
            for up, down in zip(push, pull, strict=True):
                case.builder.depend(up, computed)
                case.builder.depend(down, *((up,) if rng.random() < 0.5 else push))
            pulled += pull
        before = pulled
