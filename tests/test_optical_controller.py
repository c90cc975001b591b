"""The controller of circuits in real time: what it commands, and which flows it stops. No kernel is asked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from sim_cases import Case

from netsched import ledger as books
from netsched.circuits.sunflow import Sunflow
from netsched.emulation import light
from netsched.emulation.circuits import Controller, controller
from netsched.emulation.optical import OpticalSwitch, Switching
from netsched.fabric import Fabric
from netsched.model import CircuitPlan, Circuits, CircuitView, Connections, Control, Event, Transport
from netsched.observe import static
from netsched.optics import optics_of
from netsched.routes import route
from topologies.hybrid import Hybrid

PAIR = Transport(Connections.PER_PAIR)
DELAY = 0.01


@dataclass
class Remote:
    """Takes commands instead of the process of the switches."""

    steps: list = field(default_factory=list)
    log: list = field(default_factory=list)
    broken: list = field(default_factory=list)

    def command(self, steps) -> None:
        self.steps.append(list(steps))

    def fail(self, broken) -> None:
        self.broken = broken


@dataclass(frozen=True)
class Written:
    """Joins ends 0 and 1 for 50 ms, then 0 and 2; asks again after a second."""

    without_circuit: str = "wait"
    name = "written"
    events = Event.NONE
    hops = 1

    def __call__(self, view: CircuitView) -> CircuitPlan:
        out = np.array([[[1, 0, -1]], [[2, -1, 0]]])
        return CircuitPlan(out, np.array([0.05, np.inf]), 1.0)


def stand(circuits: Circuits) -> tuple[Controller, object, books.Ledger]:
    """Three racks of a host each: flow 0 from h1 to h2, flow 1 from h1 to h3; both have begun."""
    fabric = Fabric.from_topo(Hybrid(racks=3, hosts_per_rack=1, reconfiguration="10ms"))
    optics = optics_of(fabric)
    assert optics is not None
    case = Case(3)
    for dst in (1, 2):
        case.coflow((0, dst, 1e6))
    workload = case.builder.build()
    routes = route(workload, fabric, PAIR)
    fixed = static(workload, routes, fabric.capacity, 8, books.iteration_offsets(workload))
    ledger = books.open_ledger(workload, routes.local)
    books.fire_due(ledger, 0.0)
    books.take_fresh(ledger)
    # Port p of the switch is that of end 2 - p.
    switch = OpticalSwitch("ocs1", 0, ("a", "b", "c"), (2, 1, 0), DELAY, False)
    made = controller(circuits, workload, optics, Control(), Remote(), [switch])
    made.zero = 100.0
    return made, fixed, ledger


def test_a_matching_of_ends_becomes_one_of_ports():
    switch = OpticalSwitch("ocs1", 0, ("a", "b"), (3, 1), 0.0, False)
    assert light.on_ports(switch, np.array([-1, 3, -1, -1])) == [-1, 0]
    assert light.on_ports(switch, np.array([-1, 3, -1, 1])) == [1, 0]


def test_steps_are_commanded_in_the_clock_of_the_switches_and_flows_wait_for_light():
    made, fixed, ledger = stand(Written())
    flows, left = np.array([0, 1]), np.array([1e6, 1e6])
    assert made.step(fixed, ledger, flows, left, 0.0, Event.NONE).tolist() == [0, 1]
    assert made.held.tolist() == [True, True]
    ((first, second),) = made.remote.steps
    assert (first, second) == ((100.0, [[-1, 2, 1]]), (100.05, [[2, -1, 0]]))
    # Dark until 10 ms, then the light goes from rack 1 to rack 2 only; from 60 ms on to rack 3.
    assert made.due(ledger) == pytest.approx(DELAY)
    assert made.step(fixed, ledger, flows, left, 0.0101, Event.NONE).tolist() == [0]
    assert made.held.tolist() == [False, True]
    assert made.step(fixed, ledger, flows, left, 0.0501, Event.NONE).tolist() == [0]
    assert made.step(fixed, ledger, flows, left, 0.0601, Event.NONE).tolist() == [1]
    assert made.held.tolist() == [True, False]
    assert made.decisions == 1


def test_without_waiting_no_flow_is_stopped():
    made, fixed, ledger = stand(Written(without_circuit="eps"))
    flows, left = np.array([0, 1]), np.array([1e6, 1e6])
    for now in (0.0, 0.0101, 0.0501, 0.0601):
        assert made.step(fixed, ledger, flows, left, now, Event.NONE).tolist() == []


def test_dark_times_are_compared_with_the_switchs_own():
    made, _, _ = stand(Written())
    made.remote.log += [
        Switching(0, 0.0, 1.0, 1.0 + DELAY + 2e-4, 1.02, 2, 0),
        Switching(0, 0.0, 2.0, np.inf, np.inf, 0, 3),
    ]
    assert made.dark_late() == pytest.approx([2e-4])


@dataclass(frozen=True)
class Ring(Written):
    """From each end to the next."""

    hops: int = 2

    def __call__(self, view: CircuitView) -> CircuitPlan:
        return CircuitPlan(np.array([[[1, 2, 0]]]), np.array([np.inf]))


@pytest.mark.parametrize(("hops", "held"), [(1, [False, True]), (2, [False, False])])
def test_a_flow_that_may_take_two_circuits_in_a_row_does_not_wait_for_one(hops, held):
    made, fixed, ledger = stand(Ring(hops=hops))
    flows, left = np.array([0, 1]), np.array([1e6, 1e6])
    made.step(fixed, ledger, flows, left, 0.0, Event.NONE)
    assert made.held.tolist() == [True, True]
    made.step(fixed, ledger, flows, left, 0.0101, Event.NONE)
    assert made.held.tolist() == held


@dataclass(frozen=True)
class Turns(Written):
    """Coflow 1 goes first to both ends."""

    name = "turns"

    def __call__(self, view: CircuitView) -> CircuitPlan:
        first = np.array([[-1, 1, 1], [-1, -1, -1], [-1, -1, -1]])
        return replace(super().__call__(view), first=first)


def test_flows_are_told_their_turns_with_their_light():
    made, fixed, ledger = stand(Turns())
    made.rehearse(fixed)
    assert made.takes_turns
    flows, left, policy = np.array([0, 1]), np.array([1e6, 1e6]), np.array([0, 3])
    made.step(fixed, ledger, flows, left, 0.0, Event.NONE)
    assert made.classes(flows, policy).tolist() == [0, 3]
    assert made.step(fixed, ledger, flows, left, 0.02, Event.NONE).tolist() == [0]
    assert made.classes(flows, policy).tolist() == [1, 3]
    # The circuit of flow 0 goes at 50 ms and it waits in the class that it has; that of flow 1 is up at 60.
    assert made.step(fixed, ledger, flows, left, 0.07, Event.NONE).tolist() == [0, 1]
    assert made.classes(flows, policy).tolist() == [1, 0]


def test_the_scheduler_is_asked_when_a_port_fails_and_when_it_is_back():
    """The shorter coflow's circuit, the other one's while the port of end 1 (port 1) is down, and again."""
    made, fixed, ledger = stand(Sunflow(ahead=100.0))
    flows, built = np.array([0, 1]), fixed.capacity
    up = made.optics.up[0, 1]
    down = np.zeros(len(built), bool)
    made.step(fixed, ledger, flows, np.array([1e6, 2e6]), 0.0, Event.NONE)
    down[[up, up ^ 1]] = True
    made.fail(down, built, 0.02)
    made.step(fixed, ledger, flows, np.array([0.5e6, 2e6]), 0.02, Event.NONE)
    assert made.remote.broken == [[1]]
    made.fail(~down & down, built, 0.04)
    made.step(fixed, ledger, flows, np.array([0.5e6, 1e6]), 0.04, Event.NONE)
    made.fail(~down & down, built, 0.05)
    made.step(fixed, ledger, flows, np.array([0.5e6, 1e6]), 0.05, Event.NONE)
    assert made.decisions == 3
    assert [steps[0] for steps in made.remote.steps] == [
        (100.0, [[-1, -1, 1]]),
        (100.02, [[-1, -1, 0]]),
        (100.04, [[-1, -1, 1]]),
    ]
