"""Faults in the simulator, by closed forms: links that go and come, rates that change, slow hosts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from circuit_cases import Script
from sim_cases import PER_FLOW, PER_PAIR, Case, chain, run

from netsched.circuits.sunflow import Sunflow
from netsched.errors import PolicyError, ScenarioError
from netsched.fabrics import build
from netsched.faults import FaultEntry, check, in_order
from netsched.model import CircuitPlan, Event, Fault, Spec
from netsched.policies.fair import Fair
from netsched.policies.sebf import Sebf
from netsched.runner import run as run_scenario
from netsched.scenario import load

MB = 1e6
INF = float("inf")


def two_ways():
    """Two leaves over two spines of 1 MB/s each; hosts have 2 MB/s."""
    params = {"leaves": 2, "spines": 2, "hosts_per_leaf": 2}
    return build(Spec("leaf_spine", params | {"host_rate": "16Mbit/s", "uplink_rate": "8Mbit/s"}))[1]


def flow(size=2 * MB, src=0, dst=2, hosts=4):
    case = Case(hosts)
    case.coflow((src, dst, size))
    return case.build()


def cable(at, a, b, value):
    return Fault(at, (a, b), None, value)


def over_spine(fabric, out, spine):
    return out.link_bytes[fabric.link_dst == fabric.nodes.index(f"spine{spine}")].sum()


def spine_of(fabric, workload):
    """The spine on the flow's path."""
    out = run(workload, fabric, Fair())
    return 1 + int(over_spine(fabric, out, 2) > 0)


@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR])
def test_a_flow_goes_round_a_link_that_is_down_and_loses_nothing(transport):
    fabric, work = two_ways(), flow()
    used = spine_of(fabric, work)
    faults = [cable(0.5, "leaf1", f"spine{used}", 0.0)]
    out = run(work, fabric, Fair(), transport=transport, faults=faults)
    assert out.flow_finish[0] == pytest.approx(2.0)
    assert over_spine(fabric, out, used) == pytest.approx(0.5 * MB)
    assert over_spine(fabric, out, 3 - used) == pytest.approx(1.5 * MB)
    assert out.mechanisms["fault_moves"] == 1
    assert out.mechanisms["fault_waits"] == 0


def test_it_goes_back_when_its_own_way_does():
    fabric, work = two_ways(), flow()
    used = spine_of(fabric, work)
    faults = [cable(0.5, "leaf1", f"spine{used}", 0.0), cable(0.75, "leaf1", f"spine{used}", INF)]
    out = run(work, fabric, Fair(), faults=faults)
    assert out.flow_finish[0] == pytest.approx(2.0)
    assert over_spine(fabric, out, 3 - used) == pytest.approx(0.25 * MB)


@pytest.mark.parametrize("policy", [Fair(), Sebf()], ids=lambda p: p.name)
def test_a_flow_whose_only_way_is_down_waits(policy):
    """2 B at 1 B/s, nothing from 0.5 to 3.5 s. Another flow, on another link, does not notice."""
    case = Case(3)
    case.coflow((0, 1, 2.0))
    case.coflow((1, 2, 2.0))
    faults = [cable(0.5, "s1", "s2", 0.0), cable(3.5, "s1", "s2", INF)]
    out = run(case.build(), chain(2, [1.0, 1.0]), policy, faults=faults)
    assert out.flow_finish == pytest.approx([5.0, 2.0])
    assert out.mechanisms["fault_waits"] == 1


def test_a_flow_released_while_its_way_is_down_waits_too():
    case = Case(2)
    case.coflow((0, 1, 1.0), at=1.0)
    case.coflow((0, 1, 0.25))
    faults = [cable(0.5, "s1", "s2", 0.0), cable(2.0, "s1", "s2", INF)]
    out = run(case.build(), chain(1, 1.0), Fair(), faults=faults)
    assert out.flow_finish == pytest.approx([3.0, 0.25])


def test_a_way_that_never_comes_back_is_an_error():
    with pytest.raises(PolicyError, match=r"faults: at .* 1 unfinished flows have no way left"):
        run(flow(2.0, 0, 1, 2), chain(1, 1.0), Fair(), faults=[cable(0.5, "s1", "s2", 0.0)])


@pytest.mark.parametrize("policy", [Fair(), Sebf()], ids=lambda p: p.name)
def test_a_rate_follows_its_series(policy):
    """4 B: 1 B/s for 1 s, 0.5 for 2 s, 3 B/s from 3 s on, with 2 B left. What was reserved is void."""
    faults = [cable(1.0, "s1", "s2", 0.5), cable(3.0, "s1", "s2", 3.0)]
    out = run(flow(4.0, 0, 1, 2), chain(1, 1.0), policy, faults=faults)
    assert out.flow_finish[0] == pytest.approx(3.0 + 2.0 / 3.0)
    back = [cable(1.0, "s1", "s2", 0.5), cable(3.0, "s1", "s2", INF)]
    assert run(flow(4.0, 0, 1, 2), chain(1, 1.0), policy, faults=back).flow_finish[0] == pytest.approx(5.0)


def test_a_slow_host_computes_longer_from_then_on():
    """Tasks of 1 s in a row; slow three times from 0.5 to 3.5 s: 1 s, then 3 s (begun at 1), then 1 s."""
    case = Case(2)
    job = case.job()
    tasks = [case.task(1.0, job) for _ in range(3)]
    for before, after in itertools.pairwise(tasks):
        case.builder.depend(after, before)
    case.coflow((0, 1, 1.0), job=job)
    slow = [Fault(0.5, None, "h1", 3.0), Fault(3.5, None, "h1", 1.0)]
    out = run(case.build(), chain(1, 1.0), Fair(), faults=slow)
    assert out.task_finish == pytest.approx([1.0, 4.0, 5.0])
    other = run(case.build(), chain(1, 1.0), Fair(), faults=[Fault(0.5, None, "h2", 3.0)])
    assert other.task_finish == pytest.approx([1.0, 2.0, 3.0])


def test_a_circuit_whose_port_fails_is_lost_until_it_comes_back():
    """Up from 0.1 s, its port down in [0.5, 1.0): 2 MB take 0.1 + 2.0 + 0.5 s where flows wait."""
    params = {"racks": 3, "hosts_per_rack": 2, "host_rate": "8Mbit/s", "reconfiguration": "100ms"}
    fabric = build(Spec("hybrid", params | {"uplink_rate": "4Mbit/s", "circuit_rate": "8Mbit/s"}))[1]
    faults = [cable(0.5, "tor2", "ocs1", 0.0), cable(1.0, "tor2", "ocs1", INF)]
    script = Script(((0.0, (1, -1, -1)),), "wait")
    out = run(flow(hosts=6), fabric, Fair(), circuits=script, faults=faults)
    assert out.flow_finish[0] == pytest.approx(2.6)
    assert out.mechanisms["circuit_failed_s"] == pytest.approx(0.5)
    assert out.mechanisms["circuit_duty_cycle"] == pytest.approx(2.0 / 2.6)
    packets = run(flow(hosts=6), fabric, Fair(), circuits=Script(script.steps), faults=faults)
    # In MB: 0.05 by packets, 0.4 by circuit, 0.25 by packets, the rest by circuit again.
    assert packets.flow_finish[0] == pytest.approx(1.0 + (2 - 0.05 - 0.4 - 0.25))


def test_sunflow_is_asked_when_a_port_fails_and_when_it_is_back():
    """From rack 1: 4 MB to rack 2, whose port is down in [2.1, 5.2), and 6 MB to rack 3, at 1 MB/s.

    Set-ups take 0.1 s. The first coflow has sent 2 MB when its port goes, and the second's circuit is set up
    at once; when the port is back 2 MB are less than the 3 MB that the second has left, and go first.
    """
    params = {"racks": 3, "hosts_per_rack": 1, "host_rate": "8Mbit/s", "reconfiguration": "100ms"}
    fabric = build(Spec("hybrid", params | {"uplink_rate": "4Mbit/s", "circuit_rate": "8Mbit/s"}))[1]
    case = Case(3)
    case.coflow((0, 1, 4 * MB))
    case.coflow((0, 2, 6 * MB))
    faults = [cable(2.1, "tor2", "ocs1", 0.0), cable(5.2, "tor2", "ocs1", INF)]
    out = run(case.build(), fabric, Fair(), circuits=Sunflow(ahead=100.0), faults=faults)
    assert out.flow_finish == pytest.approx([5.2 + 0.1 + 2.0, 5.2 + 2.1 + 0.1 + 3.0])
    # At the begin, at both changes of the port, and when the first coflow has ended.
    assert out.mechanisms["circuit_decisions"] == 4
    assert out.mechanisms["circuit_failed_s"] == 0.0


@dataclass(frozen=True)
class Witness:
    """Joins ends 0 and 1 over the first switch on which both have a port; remembers when it was asked."""

    asked: list
    without_circuit = "wait"
    name = "witness"
    events = Event.PORTS_CHANGED
    hops = 1

    def __call__(self, view):
        self.asked.append((view.now, view.rate[:, 1].tolist()))
        out = np.full((1, *view.out.shape), -1)
        out[0, np.argmax(view.rate[:, :2].all(axis=1)), :2] = (1, 0)
        return CircuitPlan(out, np.array([INF]))


def test_a_scheduler_sees_the_port_fail_come_back_and_change_its_rate():
    """8 MB at 1 MB/s: over switch 1 in [0.1, 2), over 2 in [2.1, 4), over 1 from 4.1 on at half the rate from
    5 s on. The cable of a spine is no port of an optical switch's."""
    params = {"racks": 3, "hosts_per_rack": 1, "optical_switches": 2, "reconfiguration": "100ms"}
    rates = {"host_rate": "8Mbit/s", "uplink_rate": "4Mbit/s", "circuit_rate": "8Mbit/s"}
    fabric = build(Spec("hybrid", params | rates))[1]
    faults = [
        cable(1.0, "tor2", "spine1", 0.0),
        cable(2.0, "tor2", "ocs1", 0.0),
        cable(4.0, "tor2", "ocs1", INF),
        cable(5.0, "tor2", "ocs1", MB / 2),
    ]
    witness = Witness([])
    out = run(flow(8 * MB, 0, 1, 3), fabric, Fair(), circuits=witness, faults=faults)
    both, second, half = [MB, MB], [0.0, MB], [MB / 2, MB]
    assert witness.asked == [(0.0, both), (2.0, second), (4.0, both), (5.0, half)]
    assert out.flow_finish[0] == pytest.approx(5.0 + (8 - 1.9 - 1.9 - 0.9) / 0.5)


def test_entries_become_changes_in_order_of_time():
    entries = [
        FaultEntry(link=("s1", "s2"), at="2s", until="3s"),
        FaultEntry(host="h1", at="1s", slowdown=2),
        FaultEntry(link=("s1", "s2"), rates=(("0s", "8bit/s"), ("5s", "16bit/s"))),
    ]
    assert in_order(entries) == (
        cable(0.0, "s1", "s2", 1.0),
        Fault(1.0, None, "h1", 2.0),
        cable(2.0, "s1", "s2", 0.0),
        cable(3.0, "s1", "s2", INF),
        cable(5.0, "s1", "s2", 2.0),
    )


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (cable(0.0, "s1", "s9", 0.0), r"no node 's9': \(good: h1"),
        (cable(0.0, "h1", "s2", 0.0), "no cable joins h1 and s2: those of h1 lead to s1"),
        (Fault(0.0, None, "h9", 2.0), "no host 'h9'"),
    ],
)
def test_a_fault_of_what_is_not_there_is_named(fault, says):
    with pytest.raises(ScenarioError, match=says):
        check([fault], chain(1, 1.0))


SCENARIO = """
fabric: {kind: leaf_spine, leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 16Mbit/s, uplink_rate: 8Mbit/s}
workload: {kind: shuffle, size: 1MB}
policies: [fair]
faults:
"""


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{at: 1s}", "name a link, such as .* or a host"),
        ("{host: h1, at: 1s}", "a host needs slowdown"),
        ("{link: [leaf1, spine1]}", "at is missing"),
        ("{link: [leaf1, spine1], at: 2s, until: 1s}", "until must be later"),
        ("{link: [leaf1, spine1], at: 2}", "2 is not a time"),
        ("{link: [leaf1, spine1], at: 2s, slowdown: 2}", "a link has no slowdown"),
        ("{link: [leaf1, spine1], for: 2s}", "unknown key"),
    ],
)
def test_a_bad_entry_is_one_line(tmp_path, entry, says):
    path = tmp_path / "bad.yaml"
    path.write_text(f"{SCENARIO}  - {entry}\n")
    with pytest.raises(ScenarioError, match=rf"bad.yaml:6: faults\.0.*{says}"):
        load(path)


def test_a_scenario_has_faults(tmp_path):
    path = tmp_path / "faulty.yaml"
    path.write_text(f"{SCENARIO}  - {{link: [leaf1, spine1], at: 100ms, until: 300ms}}\n")

    class Quiet:
        def begin(self, *_): ...
        def progress(self, _): ...
        def end(self, _): ...
        def fail(self, error):
            raise error

    ended = run_scenario(load(path), ["sim"], tmp_path / "out", Quiet(), figures=False)
    assert ended.result.summary["runs"][0]["mechanisms"]["fault_moves"] > 0
