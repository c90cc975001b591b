"""Fabrics from a scenario's parameters, and what the optical ones say of their switches."""

from __future__ import annotations

import numpy as np
import pytest
from mininet.topo import Topo
from pydantic import ValidationError

from netsched.errors import ScenarioError
from netsched.fabric import Fabric
from netsched.fabrics import FABRICS, build
from netsched.model import Spec
from topologies import TOPOLOGIES

GOOD = {
    "single_switch": {"hosts": 8, "rate": "1Gbit/s"},
    "leaf_spine": {
        "leaves": "4",
        "spines": 2,
        "hosts_per_leaf": 2,
        "host_rate": "10Gbps",
        "oversubscription": 2,
    },
    "fat_tree": {"k": 4, "rate": "1.25GB/s", "delay": "10us"},
    "rail_optimized": {
        "servers": 2,
        "gpus_per_server": 4,
        "nic_rate": "400Gbit/s",
        "server_rate": "7.2Tbit/s",
    },
    "hybrid": {"racks": 4, "hosts_per_rack": 2, "host_rate": "10Gbit/s", "reconfiguration": "3ms"},
    "ocs_direct": {"hosts": 4, "degree": 2, "circuit_rate": "10Gbit/s", "packet_rate": "1Gbit/s"},
    "rotor": {"racks": 4, "hosts_per_rack": 2, "rotors": 2, "host_rate": "10Gbit/s"},
    "rail_ocs": {
        "pods": 2,
        "servers": 2,
        "gpus_per_server": 4,
        "nic_rate": "400Gbit/s",
        "server_rate": "7.2Tbit/s",
        "model": "all-stop",
    },
}


@pytest.mark.parametrize("kind", FABRICS)
def test_scenario_parameters_reach_the_fabric(kind):
    topo, fabric = build(Spec(kind, GOOD[kind]))
    assert isinstance(topo, TOPOLOGIES[kind])
    assert fabric.name == kind
    host_port = {"single_switch": 125e6, "ocs_direct": 125e6, "rail_optimized": 50e9, "rail_ocs": 50e9}
    first = int(np.flatnonzero((fabric.link_src == 0) & (fabric.link_port == 0))[0])
    assert fabric.capacity[first] == host_port.get(kind, 1.25e9)
    assert fabric.delay[first] == pytest.approx(10e-6 if kind == "fat_tree" else 0.0, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("single_switch", {"host": 3}, "Extra inputs are not permitted"),
        ("single_switch", {"hosts": 0}, "greater than or equal to 1"),
        ("single_switch", {"hosts": True}, "give a number"),
        ("single_switch", {"rate": 10}, "is not a rate"),
        ("single_switch", {"rate": "-1Gbit/s"}, "more than 0"),
        ("single_switch", {"hosts": 10**12}, "less than or equal"),
        ("leaf_spine", {"uplink_rate": "1Gbit/s"}, "not both"),
        ("leaf_spine", {"oversubscription": float("nan")}, "greater than 0|finite"),
        ("leaf_spine", {"leaves": 2000, "spines": 1000}, "2004000 cables are too many"),
        ("fat_tree", {"k": 5}, "k=5 must be even"),
        ("fat_tree", {"k": 200}, "6000000 cables are too many"),
        ("fat_tree", {"delay": "10"}, "is not a time"),
        ("rail_optimized", {"servers": None}, "valid integer"),
    ],
)
def test_bad_parameters_are_named(kind, change, message):
    with pytest.raises(ValidationError, match=message):
        build(Spec(kind, GOOD[kind] | change))


def test_unknown_kind_and_a_rate_that_rounds_to_nothing():
    with pytest.raises(ScenarioError, match=r"fabric\.kind: no fabric 'fattree'; did you mean 'fat_tree'"):
        build(Spec("fattree"))
    with pytest.raises(ScenarioError, match=r"^fabric: "):
        build(Spec("single_switch", {"hosts": 2, "rate": "1e-320bit/s"}))


def test_packets_never_take_an_optical_switch():
    """Racks of a hybrid are two hops apart over the switch of one, and two over an optical one as well."""
    topo, fabric = build(Spec("hybrid", GOOD["hybrid"] | {"spines": 2, "optical_switches": 3}))
    optical = {n for n, kind in enumerate(fabric.kinds) if kind == "ocs"}
    assert len(optical) == 3
    assert {topo.nodeInfo(fabric.nodes[n])["ports"] for n in optical} == {4}
    assert fabric.n_paths == 2
    for p in range(fabric.n_paths):
        assert not optical & set(fabric.link_dst[fabric.path(0, 7, p)].tolist())
        assert (fabric.next_hops(7, p)[list(optical)] == -1).all()


def test_optical_switches_say_how_they_change():
    assert [(s.delay, s.all_stop) for s in build(Spec("hybrid", GOOD["hybrid"]))[1].switching] == [
        (3e-3, False)
    ]
    rails = build(Spec("rail_ocs", GOOD["rail_ocs"]))[1].switching
    assert [(s.delay, s.all_stop) for s in rails] == [(10e-3, True)] * 4
    at_once = build(Spec("hybrid", GOOD["hybrid"] | {"reconfiguration": 0}))[1].switching
    assert [s.delay for s in at_once] == [0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "some-stop"}, "ocs1 has model 'some-stop'; it can be all-stop or not-all-stop"),
        ({"reconfiguration": "10"}, "ocs1: reconfiguration: '10' is not a time"),
        ({"ports": 1}, "ocs1 has 1 ports and 2 cables"),
    ],
)
def test_a_bad_optical_switch_is_named(options, message):
    topo = Topo()
    for name, more in (("s1", {}), ("ocs1", {"kind": "ocs"} | options)):
        topo.addSwitch(name, **more)
        for h in ("h1", "h2"):
            topo.addLink(topo.addHost(h), name, bw=10)
    with pytest.raises(ScenarioError, match=message):
        Fabric.from_topo(topo)


def test_an_optical_switch_alone_is_no_way_between_hosts():
    topo = Topo()
    topo.addSwitch("ocs1", kind="ocs")
    for h in ("h1", "h2"):
        topo.addLink(topo.addHost(h), "ocs1", bw=10)
    with pytest.raises(ScenarioError, match="no way from host h1 to host h2; connect all hosts over packet"):
        Fabric.from_topo(topo)
