"""The Topo classes: how many of what (closed forms), what a name and a rate may be, and the P4 table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from netsched import marking
from topologies import TOPOLOGIES
from topologies.fat_tree import FatTree
from topologies.leaf_spine import LeafSpine
from topologies.rail_optimized import RailOptimized
from topologies.single_switch import SingleSwitch

ROOT = Path(__file__).parents[1]


def rate(topo, a, b):
    return topo.linkInfo(a, b)["bw"]


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_fat_tree_has_the_counts_of_the_paper(k):
    """Al-Fares et al. 2008, section 2.2: k^3/4 hosts, k^2/2 edge + aggregation twice, (k/2)^2 core."""
    topo = FatTree(k=k)
    assert len(topo.hosts()) == k**3 // 4
    assert len(topo.switches()) == 5 * k**2 // 4
    assert len(topo.links()) == 3 * k**3 // 4
    assert {len(topo.ports[s]) for s in topo.switches()} == {k}  # every switch has k ports, all in use


def test_fat_tree_core_meets_every_pod_once():
    topo = FatTree(k=4)
    for core in (s for s in topo.switches() if s.startswith("core")):
        pods = sorted((int(agg.removeprefix("agg")) - 1) // 2 for agg in topo.g[core])
        assert pods == [0, 1, 2, 3]


def test_fat_tree_oversubscription_divides_the_trunks():
    topo = FatTree(k=4, rate=100, oversubscription=4)
    assert rate(topo, "h1", "edge1") == 100
    assert rate(topo, "edge1", "agg1") == rate(topo, "agg1", "core1") == 25


def test_leaf_spine_counts_and_rates():
    """4 leaves of 3 hosts at 100 Mbit/s, 2:1: 300 Mbit/s down, so 150 Mbit/s up over 2 spines, 75 each."""
    topo = LeafSpine(leaves=4, spines=2, hosts_per_leaf=3, host_rate=100, oversubscription=2)
    assert (len(topo.hosts()), len(topo.switches()), len(topo.links())) == (12, 6, 12 + 8)
    assert rate(topo, "h12", "leaf4") == 100
    assert rate(topo, "leaf4", "spine2") == 75
    assert rate(LeafSpine(uplink_rate=40), "leaf1", "spine1") == 40


def test_single_switch():
    topo = SingleSwitch(hosts=150, rate=1000, delay="3us")
    assert (len(topo.hosts()), topo.switches(), len(topo.links())) == (150, ["s1"], 150)
    assert topo.linkInfo("h150", "s1")["delay"] == "3us"
    assert "delay" not in SingleSwitch().linkInfo("h1", "s1")


def test_rail_optimized_puts_nic_r_on_rail_r_of_its_pod():
    """2 pods x 3 servers x 4 GPUs: 24 hosts, 8 rails, 6 server switches, 2 spines; 24*2 + 8*2 cables."""
    topo = RailOptimized(
        pods=2, servers=3, gpus_per_server=4, spines=2, nic_rate=100, server_rate=900, oversubscription=3
    )
    assert (len(topo.hosts()), len(topo.switches()), len(topo.links())) == (24, 16, 64)
    for h in range(24):
        server, gpu = divmod(h, 4)
        rail = 4 * (server // 3) + gpu + 1
        assert topo.ports[f"h{h + 1}"][0][0] == f"rail{rail}"
        assert topo.ports[f"h{h + 1}"][1][0] == f"nv{server + 1}"
    assert rate(topo, "h1", "rail1") == 100
    assert rate(topo, "h1", "nv1") == 900
    assert rate(topo, "rail1", "spine2") == 3 * 100 / 2 / 3


def test_hybrid_gives_each_rack_an_uplink_to_every_switch():
    """3 racks of 4 hosts at 100 Mbit/s, 2:1 over 2 spines: 100 each; circuits of 400, the rack's whole."""
    topo = TOPOLOGIES["hybrid"](racks=3, hosts_per_rack=4, spines=2, optical_switches=2, oversubscription=2)
    assert (len(topo.hosts()), len(topo.switches()), len(topo.links())) == (12, 3 + 2 + 2, 12 + 3 * 4)
    assert rate(topo, "tor3", "spine2") == 100
    assert rate(topo, "tor3", "ocs2") == 400


def test_rotor_ocs_direct_and_rail_ocs_counts():
    topo = TOPOLOGIES["rotor"](racks=5, hosts_per_rack=4, rotors=4)
    assert (len(topo.hosts()), len(topo.switches()), len(topo.links())) == (20, 5 + 4 + 1, 20 + 5 * 5)
    assert (rate(topo, "tor5", "ocs4"), rate(topo, "tor5", "core1")) == (100, 40)
    topo = TOPOLOGIES["ocs_direct"](hosts=6, degree=3)
    assert (len(topo.hosts()), len(topo.switches()), len(topo.links())) == (6, 1 + 3, 6 * 4)
    topo = TOPOLOGIES["rail_ocs"](pods=3, servers=2, gpus_per_server=4)
    assert (len(topo.hosts()), len(topo.links())) == (24, 24 * 2 + 12 * 2)
    # Rail 2 of pod 3 is rail10, on optical switch 2.
    assert "ocs2" in topo.g["rail10"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("single_switch", {"hosts": 0}),
        ("single_switch", {"rate": float("nan")}),
        ("leaf_spine", {"spines": 0}),
        ("leaf_spine", {"uplink_rate": 10.0, "oversubscription": 2.0}),
        ("fat_tree", {"k": 3}),
        ("fat_tree", {"oversubscription": 0}),
        ("rail_optimized", {"nic_rate": -1}),
        ("rail_optimized", {"uplink_rate": 10.0, "oversubscription": 2.0}),
        ("hybrid", {"racks": 0}),
        ("hybrid", {"uplink_rate": 10.0, "oversubscription": 2.0}),
        ("ocs_direct", {"packet_rate": 0}),
        ("rotor", {"packet_share": 0}),
        ("rail_ocs", {"pods": 0}),
        ("rail_ocs", {"uplink_rate": 10.0, "oversubscription": 2.0}),
    ],
)
def test_impossible_parameters_are_refused(kind, options):
    with pytest.raises(ValueError, match=f"^{kind}: "):
        TOPOLOGIES[kind](**options)


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_mininet_can_build_them(kind):
    """Interface names fit IFNAMSIZ (15 characters), datapath ids differ, kinds are set."""
    large = {
        "leaf_spine": {"leaves": 128, "spines": 16},
        "fat_tree": {"k": 16},
        "hybrid": {"racks": 64, "hosts_per_rack": 64, "optical_switches": 8},
        "rail_ocs": {"pods": 16, "servers": 32, "gpus_per_server": 8},
    }
    topo = TOPOLOGIES[kind](**large.get(kind, {}))
    assert max(len(f"{node}-eth{port}") for node, ports in topo.ports.items() for port in ports) <= 15
    ids = [int(topo.nodeInfo(s).get("dpid", s.removeprefix("s")), 16) for s in topo.switches()]
    assert len(set(ids)) == len(ids)
    assert {topo.nodeInfo(h)["kind"] for h in topo.hosts()} == {"host"}
    optical = {s for s in topo.switches() if s.startswith("ocs")}
    assert {topo.nodeInfo(s)["kind"] for s in topo.switches() if s not in optical} == {"eps"}
    assert {topo.nodeInfo(s)["kind"] for s in optical} <= {"ocs"}
    assert all(topo.nodeInfo(s)["ports"] == len(topo.ports[s]) for s in optical)


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_each_file_stands_alone(kind):
    """`mn --custom` executes the file by itself: the name it registers is the name in the registry."""
    source = (ROOT / "topologies" / f"{kind}.py").read_text()
    scope: dict = {}
    exec(compile(source, kind, "exec"), scope)  # noqa: S102  # what /usr/bin/mn does
    assert list(scope["topos"]) == [kind]
    assert set(re.findall(r"^(?:from|import) (\w+)", source, re.M)) <= {"__future__", "mininet"}


def test_p4_table_is_the_marking_table():
    """BMv2 serves priority 7 first, so class c is priority 7 - c; what the table lacks is unmarked."""
    source = (ROOT / "p4" / "priority.p4").read_text()
    table = re.search(r"table dscp_priority \{(.*?)\n    \}", source, re.S).group(1)
    entries = {int(d): int(p) for d, p in re.findall(r"(\d+): set_priority\((\d)\);", table)}
    default = int(re.search(r"const default_action = set_priority\((\d)\);", table).group(1))
    assert entries.keys() == {*marking.DSCP_OF_CLASS, marking.CONTROL_DSCP}
    for dscp in range(64):
        assert entries.get(dscp, default) == 7 - marking.class_of(dscp)
