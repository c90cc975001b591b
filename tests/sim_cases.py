"""Small workloads and odd policies for the tests of the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from oracle import Oracle

from netsched.fabric import Fabric
from netsched.model import (
    BEST_EFFORT,
    Circuits,
    Connections,
    Control,
    Event,
    Fault,
    Outcome,
    Plan,
    Policy,
    TaskKind,
    Transport,
    View,
    Workload,
)
from netsched.simulate import simulate
from netsched.workloads.builder import Node, WorkloadBuilder

ALL_EVENTS = (
    Event.FLOW_RELEASED | Event.FLOW_FINISHED | Event.COFLOW_RELEASED | Event.COFLOW_FINISHED | Event.REVIEW
)
NO_COST = Control()
PER_FLOW, PER_PAIR = Transport(Connections.PER_FLOW), Transport(Connections.PER_PAIR)


class Case:
    """A workload under construction: one coflow per call of `coflow`, a job of its own unless given."""

    def __init__(self, hosts: int) -> None:
        self.builder = WorkloadBuilder(hosts)
        self.jobs = 0

    def job(self, at: float = 0.0, iterations: int = 1) -> int:
        self.jobs += 1
        return self.builder.add_job(f"j{self.jobs}", arrival=at, iterations=iterations)

    def coflow(
        self,
        *flows: tuple[int, int, float],
        at: float = 0.0,
        job: int | None = None,
        iteration: int = 0,
        weight: float = 1.0,
        deadline: float = math.inf,
    ) -> list[Node]:
        """Flows (source, destination, bytes) of a new coflow."""
        owner = self.job(at) if job is None else job
        stage = self.builder.add_stage(owner, "stage", iteration)
        coflow = self.builder.add_coflow(owner, stage, "coflow", iteration, weight=weight, deadline=deadline)
        return [self.builder.add_flow(coflow, *flow) for flow in flows]

    def task(self, seconds: float, job: int, iteration: int = 0) -> Node:
        return self.builder.add_task(job, TaskKind.OTHER, 0, seconds, iteration)

    def build(self, hairpin: bool = False) -> Workload:
        return self.builder.build(hairpin)


def close(actual: np.ndarray, *right: float) -> None:
    np.testing.assert_allclose(actual, right, rtol=1e-12)


def one_link(*sizes: float, at: tuple[float, ...] = ()) -> Case:
    """Coflows of one flow each from host 0 to host 1, in jobs of their own."""
    case = Case(4)
    for i, size in enumerate(sizes):
        case.coflow((0, 1, size), at=at[i] if at else 0.0)
    return case


def chain(hops: int, rates: float | list[float], delay: float | list[float] = 0.0) -> Fabric:
    """hops + 1 hosts, each on a switch of its own, the switches in a row.

    Link 2i leads from switch i to switch i + 1 at `rates`; the hosts' own links are 1000 times faster.
    """
    n = hops + 1
    hosts, switches = np.arange(n), np.arange(n, 2 * n)
    first = np.concatenate([switches[:-1], hosts])
    second = np.concatenate([switches[1:], switches])
    trunk = np.broadcast_to(np.asarray(rates, np.float64), hops)
    wait = np.broadcast_to(np.asarray(delay, np.float64), hops)
    names = tuple(f"h{i + 1}" for i in range(n))
    return Fabric(
        name="chain",
        nodes=(*names, *(f"s{i + 1}" for i in range(n))),
        kinds=("host",) * n + ("eps",) * n,
        hosts=names,
        link_src=np.stack((first, second), 1).ravel(),
        link_dst=np.stack((second, first), 1).ravel(),
        capacity=np.repeat(np.concatenate([trunk, np.full(n, 1000 * trunk.max())]), 2),
        delay=np.repeat(np.concatenate([wait, np.zeros(n)]), 2),
    )


def run(
    workload: Workload,
    fabric: Fabric,
    policy: Policy,
    *,
    queues: int | None = None,
    transport: Transport = PER_FLOW,
    control: Control = NO_COST,
    horizon: float = math.inf,
    circuits: Circuits | None = None,
    faults: Sequence[Fault] = (),
    seed: int = 0,
) -> Outcome:
    """`simulate` with the usual defaults. `seed` draws the reports that are lost."""
    return simulate(
        workload,
        fabric,
        policy,
        queues=queues,
        transport=transport,
        control=control,
        horizon=horizon,
        circuits=circuits,
        faults=faults,
        rng=np.random.default_rng(seed),
    )


def by_hand(
    workload: Workload,
    fabric: Fabric,
    policy: Policy,
    *,
    queues: int | None = None,
    transport: Transport = PER_FLOW,
    control: Control = NO_COST,
    horizon: float = math.inf,
    seed: int = 0,
) -> Oracle:
    """The oracle of the same run."""
    rng = np.random.default_rng(seed)
    return Oracle(workload, fabric, policy, queues, transport, control, horizon, rng).run()


@dataclass(frozen=True)
class Table:
    """What the plan says of each flow is a table by flow id; what the table lacks is the plan's default."""

    rank: dict[int, int] = field(default_factory=dict)
    rate: dict[int, float] = field(default_factory=dict)
    weight: dict[int, float] = field(default_factory=dict)
    not_before: dict[int, float] = field(default_factory=dict)
    other: int = BEST_EFFORT
    reserve: dict[int, float] = field(default_factory=dict)

    name: ClassVar[str] = "table"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = True
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        ids = view.flows.id.tolist()
        return Plan(
            rank=np.array([self.rank.get(f, self.other) for f in ids], np.int64),
            reserve=np.array([self.reserve.get(f, 0.0) for f in ids], np.float64),
            rate=np.array([self.rate.get(f, math.inf) for f in ids], np.float64),
            weight=np.array([self.weight.get(f, 1.0) for f in ids], np.float64),
            not_before=np.array([self.not_before.get(f, -math.inf) for f in ids], np.float64),
            path=np.full(len(ids), -1, np.int64),
        )


@dataclass(frozen=True)
class GlobalTable(Table):
    """The same from a coordinator."""

    name: ClassVar[str] = "global-table"
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.COFLOW_FINISHED


def equal_parts(view: View) -> np.ndarray:
    """Bytes/s per flow: the least capacity on its path, divided by the flows that cross the link."""
    flows = view.flows
    part = view.capacity / np.maximum(np.bincount(flows.links, minlength=len(view.capacity)), 1)
    return np.minimum.reduceat(part[flows.links], flows.indptr[:-1]) if len(flows) else np.zeros(0)


@dataclass(frozen=True)
class Odd:
    """Everything that a plan can say, without a purpose: ranks that change, reserves, caps, gates, ..."""

    weights: bool = True
    review: float = 0.37

    name: ClassVar[str] = "odd"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = ALL_EVENTS
    idles: ClassVar[str] = "its caps and gates have no purpose"
    starves: ClassVar[str] = "whomever its numbers put last"

    def __call__(self, view: View) -> Plan:
        flows = view.flows
        size = np.where(np.isnan(flows.size), 2.0, flows.size)
        half = (flows.sent > 0.47 * size) & (flows.id % 4 == 1)
        rank = np.where(flows.id % 11 == 7, BEST_EFFORT, flows.id % 5 + 3 * half)
        cap = np.where(flows.id % 3 == 2, size / (1.13 + flows.id % 7), np.inf)
        gate = np.where(flows.id % 6 == 4, flows.release + 0.31, -np.inf)
        pause = (flows.sent > 0.29 * size) & (flows.id % 6 == 2)
        gate = np.where(pause, flows.release + 2.03, gate)
        weight = 1.0 + 0.5 * (flows.id % 4) if self.weights else np.ones(len(flows))
        reserve = np.zeros(len(flows)) if self.local else np.where(flows.id % 5 == 3, equal_parts(view), 0.0)
        return Plan(rank, reserve, cap, weight, gate, np.full(len(flows), -1, np.int64), self.review)


@dataclass(frozen=True)
class OddLocal(Odd):
    """The same once and for all, by each host for itself."""

    review: float = math.inf

    name: ClassVar[str] = "odd-local"
    local: ClassVar[bool] = True
    events: ClassVar[Event] = Event.FLOW_RELEASED


def random_workload(rng: np.random.Generator, hosts: int, hairpin: bool = False) -> Workload:
    """One to three jobs of flows and tasks in random order, with some empty and local flows and barriers."""
    case = Case(hosts)
    for _ in range(rng.integers(1, 4)):
        at = 0.0 if rng.random() < 0.5 else float(rng.exponential(1.0))
        iterations = int(rng.integers(1, 3))
        job = case.job(at, iterations)
        nodes: list[Node] = []
        for iteration in range(iterations):
            for _ in range(rng.integers(1, 4)):
                width = int(rng.integers(1, 6))
                ends = rng.integers(0, hosts, (width, 2)).tolist()
                sizes = np.where(rng.random(width) < 0.1, 0.0, rng.lognormal(0.0, 1.2, width)).tolist()
                flows = case.coflow(
                    *((a, b, size) for (a, b), size in zip(ends, sizes, strict=True)),
                    job=job,
                    iteration=iteration,
                )
                for flow in flows:
                    _after_some(case, rng, nodes, flow, 0.6)
                for _ in range(rng.integers(0, 3)):
                    seconds = 0.0 if rng.random() < 0.3 else float(rng.exponential(0.5))
                    task = case.task(seconds, job, iteration)
                    _after_some(case, rng, nodes + flows, task, 0.9)
                    nodes.append(task)
                nodes += flows
    return case.build(hairpin)


def _after_some(case: Case, rng: np.random.Generator, nodes: list[Node], node: Node, share: float) -> None:
    if nodes and rng.random() < share:
        chosen = rng.choice(len(nodes), size=min(len(nodes), int(rng.integers(1, 4))), replace=False)
        case.builder.depend(node, *(nodes[i] for i in chosen))


@dataclass(frozen=True)
class Diary:
    """Remembers when it was asked and why; wants to be asked again every `every` seconds."""

    every: float = math.inf
    rank: dict[int, int] = field(default_factory=dict)
    asked: list[tuple[float, Event]] = field(default_factory=list)

    name: ClassVar[str] = "diary"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        self.asked.append((view.now, view.events))
        n = len(view.flows)
        rank = np.array([self.rank.get(f, BEST_EFFORT) for f in view.flows.id.tolist()], np.int64)
        return Plan(
            rank, np.zeros(n), np.full(n, np.inf), np.ones(n), np.full(n, -np.inf), np.full(n, -1), self.every
        )
