"""Circuits and faults on both engines: times within a tenth, but for connections over two shared links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agreement import MOST_APART, emulated, mean_stage_s, runs

from netsched.document import read

pytestmark = pytest.mark.timeout(600)
"""A busy machine may need all tries."""

SCENARIO = Path(__file__).parents[1] / "scenarios" / "hybrid-emulated.yaml"
SCHEDULERS: dict[str, tuple[Any, str]] = {
    "helios": ({"helios": {"slot": "100ms"}}, "20ms"),
    "sunflow": ("sunflow", "5ms"),
    "osdl": ("osdl", "20ms"),
}
"""Each with the dark time. Which of two like reservations goes first hangs on which byte is counted first:
under Sunflow that is 31 to 41 changes of circuits, which at 20 ms each move the mean by a tenth."""


@pytest.mark.root
@pytest.mark.parametrize("name", SCHEDULERS)
def test_circuit_schedulers_take_the_same_times_on_both_engines(name, tmp_path):
    data, (circuits, dark) = read(SCENARIO).data, SCHEDULERS[name]
    described = {**data, "fabric": {**data["fabric"], "reconfiguration": dark}, "circuits": [circuits]}
    simulated = runs(described, "sim", "fair", tmp_path / "sim")
    measured = emulated(described, "fair", tmp_path / "mininet")
    assert measured["bytes"] == simulated["bytes"]
    right, found = mean_stage_s(simulated), mean_stage_s(measured)
    assert found == pytest.approx(right, rel=MOST_APART), f"emulated {found:.3f} s, simulated {right:.3f} s"


SENT = [
    {"kind": "incast", "name": "one", "senders": ["h1"], "receiver": "h3", "size": "125MB"},
    {"kind": "incast", "name": "two", "senders": ["h2"], "receiver": "h4", "size": "125MB"},
]
"""A second each, if each has an uplink."""

FAULTS: dict[str, list[dict[str, Any]]] = {
    "a lost link": [{"link": ["leaf1", "spine1"], "at": "200ms", "until": "1s"}],
    "a rate that changes": [
        {
            "link": ["leaf1", spine],
            "rates": [["200ms", "200Mbit/s"], ["700ms", "500Mbit/s"]],
            "until": "1500ms",
        }
        for spine in ("spine1", "spine2")
    ],
}
OPTICAL = {
    "a lost circuit": [{"link": ["tor2", "ocs1"], "at": "200ms", "until": "1s"}],
}
"""One end's cable: the circuits to it and from it are lost."""
TURNS = [
    SENT[0],
    {"kind": "incast", "name": "two", "senders": ["h2"], "receiver": "h5", "size": "200MB"},
]
"""From rack 1 to rack 2 and to rack 3, over one circuit after the other."""
AROUND = [SENT[0], {"kind": "incast", "name": "two", "senders": ["h4"], "receiver": "h1", "size": "125MB"}]
"""On a ring of circuits: from rack 1 to 2 over one of them, and from 2 to 1 over two."""
LEAVES = {"kind": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 2} | {
    "host_rate": "1Gbit/s",
    "uplink_rate": "1Gbit/s",
}
RACKS = {"kind": "hybrid", "racks": 3, "hosts_per_rack": 2, "spines": 1} | {
    "host_rate": "1Gbit/s",
    "uplink_rate": "500Mbit/s",
    "circuit_rate": "2Gbit/s",
    "reconfiguration": "20ms",
}


@pytest.mark.root
@pytest.mark.parametrize("name", FAULTS | OPTICAL)
def test_faults_cost_the_same_time_on_both_engines(name, tmp_path):
    described = {
        "name": "faults",
        "fabric": LEAVES,
        "workload": SENT,
        "policies": ["fair"],
        "transport": {"connections": "per-pair"},
        "emulation": {"scale": 0.02},
    }
    if name in OPTICAL:
        described |= {"fabric": RACKS, "circuits": [{"static": {"hops": 2}}], "workload": AROUND}
    whole = mean_stage_s(runs(described, "sim", "fair", tmp_path / "whole"))
    faulty = described | {"faults": (FAULTS | OPTICAL)[name]}
    simulated = runs(faulty, "sim", "fair", tmp_path / "sim")
    measured = emulated(faulty, "fair", tmp_path / "mininet")
    assert measured["bytes"] == simulated["bytes"]
    right, found = mean_stage_s(simulated), mean_stage_s(measured)
    assert right > 1.2 * whole
    assert found == pytest.approx(right, rel=MOST_APART), f"emulated {found:.3f} s, simulated {right:.3f} s"
    if name in OPTICAL:
        failed = [each["mechanisms"]["circuit_failed_s"] for each in (simulated, measured)]
        assert failed == pytest.approx([2 * 0.8, 2 * 0.8], rel=0.05)


@pytest.mark.root
def test_a_port_that_fails_has_sunflow_asked_on_both_engines(tmp_path):
    """A second, and 1.6: the first coflow's port fails at 0.3 s, and the other goes until it is back at 1 s.

    At 125 MB/s 35 MB have gone when the port fails, so that 90 MB are left at 1 s and go before the other
    coflow's 115 of 200. Circuits take 20 ms: they end at 1.02 + 0.72 and at 1.76 + 0.92 s, and a little later
    since each decision takes effect 5 ms after its event.
    """
    described = {
        "name": "port",
        "fabric": RACKS | {"circuit_rate": "1Gbit/s"},
        "workload": TURNS,
        "policies": ["fair"],
        "circuits": [{"sunflow": {"ahead": "10s"}}],
        "transport": {"connections": "per-pair"},
        "emulation": {"scale": 0.02},
        "faults": [{"link": ["tor2", "ocs1"], "at": "300ms", "until": "1s"}],
    }
    simulated = runs(described, "sim", "fair", tmp_path / "sim")
    assert mean_stage_s(simulated) == pytest.approx((1.74 + 2.68) / 2, rel=0.01)
    measured = emulated(described, "fair", tmp_path / "mininet")
    assert mean_stage_s(measured) == pytest.approx((1.74 + 2.68) / 2, rel=MOST_APART)
    for each in (simulated, measured):
        assert each["mechanisms"]["circuit_decisions"] == 4
        assert each["mechanisms"]["circuit_failed_s"] < 0.1


@pytest.mark.root
def test_a_connection_that_shares_two_links_has_a_third_of_each_in_the_kernel_and_half_in_the_simulator(
    tmp_path,
):
    """Racks joined by 2 Gbit/s: h4 to h2 over the way up that h3 has, and over the way down that h6 has.

    Max-min gives each half: 100 MB take 0.8 s. With a window W each and queues of one length q at both links,
    the long way has W / 2q and the short ones W / q, a third and two thirds: 1.2 s, when 200 MB have gone
    the short ways, too (proportional fairness: Kelly, Maulloo and Tan, 1998).
    """
    described = {
        "name": "two-links",
        "fabric": {"kind": "leaf_spine", "leaves": 3, "spines": 1, "hosts_per_leaf": 2}
        | {"host_rate": "5Gbit/s", "uplink_rate": "2Gbit/s"},
        "workload": [
            {"kind": "incast", "name": "long", "senders": ["h4"], "receiver": "h2", "size": "100MB"},
            {"kind": "incast", "name": "up", "senders": ["h3"], "receiver": "h5", "size": "200MB"},
            {"kind": "incast", "name": "down", "senders": ["h6"], "receiver": "h1", "size": "200MB"},
        ],
        "policies": ["fair"],
        "transport": {"connections": "per-pair"},
        "emulation": {"scale": 0.01},
    }
    simulated = runs(described, "sim", "fair", tmp_path / "sim")
    assert mean_stage_s(simulated) == pytest.approx((0.8 + 1.2 + 1.2) / 3, rel=1e-6)
    measured = emulated(described, "fair", tmp_path / "mininet")
    assert mean_stage_s(measured) == pytest.approx(1.2, rel=0.05)
