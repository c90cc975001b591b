"""RotorLB in the simulator: bytes that take two circuits, kept by the rack in between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from circuit_cases import view
from sim_cases import ALL_EVENTS, PER_FLOW, PER_PAIR, Case, GlobalTable, Table, random_workload, run

from netsched import scenario
from netsched.circuits import decide, make
from netsched.emulation.stage import refuse_impossible
from netsched.errors import EmulationError
from netsched.fabrics import build
from netsched.model import Control, Fault, Spec
from netsched.policies.fair import Fair

MB = 1e6
UP, DARK = 0.9, 0.1
"""Seconds of each slot of 1 s with light and without."""


def fabric_of(racks, switches=1, **options):
    """Two hosts a rack with 10 MB/s ports, circuits of 1 MB/s."""
    params = {
        "racks": racks,
        "hosts_per_rack": 2,
        "optical_switches": switches,
        "host_rate": "80Mbit/s",
        "uplink_rate": "4Mbit/s",
        "circuit_rate": "8Mbit/s",
        "reconfiguration": "100ms",
    }
    return build(Spec("hybrid", params | options))[1]


def rotor(without_circuit="relay"):
    return make(Spec("rotor", {"slot": "1s", "without_circuit": without_circuit}))


def over(fabric, outcome, kind, *, into):
    """Bytes per node of one kind, over the links into it or out of it."""
    ends = fabric.link_dst if into else fabric.link_src
    nodes = [i for i, each in enumerate(fabric.kinds) if each == kind]
    return np.array([outcome.link_bytes[ends == node].sum() for node in nodes])


@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])
@pytest.mark.parametrize("racks", [3, 4, 6])
def test_one_hot_pair_has_every_slot_and_not_one_in_a_round(racks, transport):
    """Rack 1 to rack 2, `rounds` * (racks - 1) slots of 0.9 MB less 0.1 MB.

    Direct, slot k * (racks - 1), of the shift by one, carries 0.9 MB, the last one 0.8 MB. Two hops: every
    slot carries away 0.9 MB, the last one 0.8 MB. In the last round rack 1 + s has its part in the slot of
    the shift by s, and sends it on in the next one of the shift by 1 - s, modulo the racks.
    """
    rounds = 5
    slots = rounds * (racks - 1)
    size = (UP * slots - 0.1) * MB
    case = Case(2 * racks)
    case.coflow((0, 2, size))
    fabric = fabric_of(racks)
    direct = run(case.build(), fabric, Fair(), transport=transport, circuits=rotor("wait"))
    assert direct.flow_finish[0] == pytest.approx((slots - 1) * (racks - 1) + DARK + UP - 0.1)
    both = run(case.build(), fabric, Fair(), transport=transport, circuits=rotor())
    ends = []
    for shift in range(2, racks):
        came = (rounds - 1) * (racks - 1) + shift - 1
        goes = next(n for n in range(came + 1, came + racks) if n % (racks - 1) + 1 == (1 - shift) % racks)
        ends.append(goes + DARK + (UP if shift < racks - 1 else UP - 0.1))
    assert both.flow_finish[0] == pytest.approx(max(ends))
    relayed = size - rounds * UP * MB
    assert both.mechanisms["relayed_bytes"] == pytest.approx(relayed)
    assert both.mechanisms["circuit_bytes"] == pytest.approx(size + relayed)


def test_a_full_matrix_leaves_nothing_for_others():
    """Every pair has what its own slots carry: no rack has a circuit to spare, as in RotorNet."""
    racks = 4
    case = Case(2 * racks)
    for a in range(racks):
        case.coflow(*((2 * a, 2 * b, 3 * UP * MB) for b in range(racks) if b != a))
    fabric = fabric_of(racks)
    direct = run(case.build(), fabric, Fair(), circuits=rotor("wait"))
    both = run(case.build(), fabric, Fair(), circuits=rotor())
    assert both.mechanisms["relayed_bytes"] == 0
    assert both.flow_finish == pytest.approx(direct.flow_finish)


POLICIES = (
    Fair(),
    Table(rank={f: f % 3 for f in range(60)}, weight={f: 1.0 + f % 2 for f in range(60)}),
    GlobalTable(rank={f: f % 4 for f in range(60)}, rate=dict.fromkeys(range(0, 60, 5), 0.7 * MB)),
)
CABLE = ("tor2", "ocs1")
CUT = (Fault(1.3, CABLE, None, 0.0), Fault(4.6, CABLE, None, np.inf))


@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])
@pytest.mark.parametrize("faults", [(), CUT], ids=["whole", "cut"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_each_flow_leaves_once_and_arrives_once(policy, faults, transport):
    """One flow out of each host and one into it, so that the hosts' own links tell the flows apart."""
    relayed = 0.0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        racks, switches = int(rng.integers(3, 6)), int(rng.integers(1, 3))
        fabric = fabric_of(racks, switches)
        to = np.roll(np.arange(2 * racks), 2 + 2 * int(rng.integers(0, racks - 1)))
        sizes = rng.lognormal(0.0, 1.5, 2 * racks) * MB
        at = np.where(rng.random(2 * racks) < 0.5, 0.0, rng.exponential(2.0, 2 * racks))
        case = Case(2 * racks)
        for h in range(2 * racks):
            case.coflow((h, int(to[h]), float(sizes[h])), at=float(at[h]))
        workload = case.build()
        control = Control(delay=0.25) if seed % 2 and policy.events & ALL_EVENTS else Control()
        out = run(
            workload, fabric, policy, transport=transport, control=control, circuits=rotor(), faults=faults
        )
        assert np.isfinite(out.flow_finish).all()
        assert over(fabric, out, "host", into=False) == pytest.approx(sizes)
        assert over(fabric, out, "host", into=True)[to] == pytest.approx(sizes)
        twice = out.mechanisms["relayed_bytes"]
        for into in (False, True):
            assert over(fabric, out, "ocs", into=into).sum() == pytest.approx(sizes.sum() + twice)
        assert out.mechanisms["relayed_bytes_left"] == 0
        assert (out.link_bytes <= fabric.capacity * out.simulated_s * (1 + 1e-9)).all()
        relayed += twice
    assert relayed > 3 * MB


@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])
def test_whole_dags_end_and_the_network_keeps_nothing(transport):
    """Flows that wait for each other, empty ones, ones inside a rack: all bytes once over hosts' links."""
    fabric = fabric_of(4)
    for seed in range(8):
        workload = random_workload(np.random.default_rng(seed), 8)
        out = run(workload, fabric, POLICIES[seed % 3], transport=transport, circuits=rotor())
        assert np.isfinite(out.flow_finish).all()
        assert np.isfinite(out.task_finish).all()
        flows = workload.flows
        leaves = np.where(flows.src != flows.dst, flows.size, 0.0)
        expected = np.bincount(flows.src, leaves, 8), np.bincount(flows.dst, leaves, 8)
        assert over(fabric, out, "host", into=False) == pytest.approx(expected[0])
        assert over(fabric, out, "host", into=True) == pytest.approx(expected[1])
        assert out.mechanisms["relayed_bytes_left"] == 0


def test_a_run_that_is_cut_short_says_what_is_still_kept():
    """At 2.0 s: 0.9 MB went direct in the first slot, 0.9 MB of the second wait in rack 3 for its circuit."""
    case = Case(8)
    case.coflow((0, 2, 10 * MB))
    out = run(case.build(), fabric_of(4), Fair(), circuits=rotor(), horizon=2.0)
    assert out.mechanisms["relayed_bytes"] == 0
    assert out.mechanisms["relayed_bytes_left"] == pytest.approx(UP * MB)


def test_two_hops_help_no_more_than_the_port_of_the_target_carries():
    """Three racks for one of five: its port takes 0.9 MB a slot, and what waits elsewhere helps nobody."""
    case = Case(10)
    sizes = [3 * UP * MB, 4 * UP * MB, 5 * UP * MB]
    case.coflow(*((2 * (rack + 1), 0, size) for rack, size in enumerate(sizes)))
    fabric = fabric_of(5)
    out = run(case.build(), fabric, Fair(), circuits=rotor())
    assert out.flow_finish.max() >= sum(sizes) / (UP * MB)
    assert out.flow_finish.max() < run(case.build(), fabric, Fair(), circuits=rotor("wait")).flow_finish.max()


def test_relays_are_for_the_simulator(tmp_path: Path):
    text = """
name: relays
fabric: {kind: rotor, racks: 3, hosts_per_rack: 1, rotors: 1, host_rate: 1Gbit/s}
workload: [{kind: shuffle, hosts: all, size: 1MB}]
policies: [fair]
circuits: [{rotor: {without_circuit: relay}}]
emulation: {scale: 0.01}
"""
    path = tmp_path / "relays.yaml"
    path.write_text(text)
    loaded = scenario.load(path)
    ready = scenario.build(loaded).ready[0]
    with pytest.raises(EmulationError, match=r"rotor\.without_circuit: relay cannot be emulated"):
        refuse_impossible(loaded, ready.workload, ready.circuits)
    assert decide(rotor("wait"), view(4, delay=DARK)).slot_bytes == 0
    assert decide(rotor(), view(4, delay=DARK)).slot_bytes == pytest.approx(UP)
