"""What the engines see of a network: links, routes that destination routing can realise, errors."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mininet.topo import Topo
from pydantic import ValidationError

from netsched.errors import PolicyError, ScenarioError
from netsched.fabric import Fabric
from netsched.fabrics import FABRICS, build
from netsched.model import Spec
from netsched.routing import spread
from topologies import TOPOLOGIES
from topologies.fat_tree import FatTree
from topologies.leaf_spine import LeafSpine
from topologies.rail_optimized import RailOptimized
from topologies.single_switch import SingleSwitch

SMALL = {
    "single_switch": {"hosts": 4},
    "leaf_spine": {"leaves": 3, "spines": 4, "hosts_per_leaf": 2},
    "fat_tree": {"k": 4},
    "rail_optimized": {"pods": 2, "servers": 2, "gpus_per_server": 2, "spines": 3},
    "hybrid": {"racks": 3, "hosts_per_rack": 2, "spines": 2, "optical_switches": 2},
    "ocs_direct": {"hosts": 4, "degree": 2},
    "rotor": {"racks": 3, "hosts_per_rack": 2, "rotors": 3},
    "rail_ocs": {"pods": 2, "servers": 2, "gpus_per_server": 2, "spines": 2},
}


def nodes_on(fabric, links):
    """Names along a path, its continuity checked on the way."""
    assert np.array_equal(fabric.link_dst[links[:-1]], fabric.link_src[links[1:]])
    return [fabric.nodes[n] for n in (*fabric.link_src[links], fabric.link_dst[links[-1]])]


def check_routes(fabric):
    """Every pair, every path index: loop-free over switches only, and what following next_hops gives."""
    for dst, p in itertools.product(range(len(fabric.hosts)), range(fabric.n_paths)):
        hops = fabric.next_hops(dst, p)
        assert hops[dst] == -1
        for src in range(len(fabric.hosts)):
            if src == dst:
                continue
            links = fabric.path(src, dst, p)
            names = nodes_on(fabric, links)
            assert (names[0], names[-1]) == (fabric.hosts[src], fabric.hosts[dst])
            assert len(set(names)) == len(names)
            assert not set(names[1:-1]) & set(fabric.hosts)
            assert [hops[n] for n in fabric.link_src[links]] == links.tolist()


@pytest.mark.parametrize("kind", SMALL)
def test_routes_are_destination_trees(kind):
    check_routes(Fabric.from_topo(TOPOLOGIES[kind](**SMALL[kind])))


@st.composite
def random_topos(draw):
    """A connected multigraph of switches, with hosts of one or two ports (or cabled to each other)."""
    topo = Topo()
    n = draw(st.integers(1, 6))
    for s in range(n):
        topo.addSwitch(f"s{s}")
        if s:
            topo.addLink(f"s{s}", f"s{draw(st.integers(0, s - 1))}", bw=1)
    if n > 1:
        for a, b in draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=8)):
            if a != b:
                topo.addLink(f"s{a}", f"s{b}", bw=1)
    hosts = draw(st.integers(2, 5))
    for h in range(hosts):
        topo.addHost(f"h{h}")
        for s in draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=2)):
            topo.addLink(f"h{h}", f"s{s}", bw=1)
    if draw(st.booleans()):
        topo.addLink("h0", "h1", bw=1)
    return topo


@settings(max_examples=60, deadline=None)
@given(random_topos())
def test_routes_of_random_networks_are_shortest_destination_trees(topo):
    fabric = Fabric.from_topo(topo)
    check_routes(fabric)
    n = len(fabric.hosts)
    for src in range(n):  # a plain breadth-first search as the oracle of the length
        dist, frontier = {src: 0}, [src]
        while frontier:
            v = frontier.pop(0)
            if v != src and v < n:
                continue
            for u in fabric.link_dst[fabric.link_src == v].tolist():
                if u not in dist:
                    dist[u] = dist[v] + 1
                    frontier.append(u)
        for dst in range(n):
            assert len(fabric.path(src, dst, 0)) == dist[dst]


def test_leaf_spine_path_p_is_spine_p():
    fabric = Fabric.from_topo(LeafSpine(leaves=3, spines=4, hosts_per_leaf=2))
    assert fabric.n_paths == 4
    for p in range(4):
        names = nodes_on(fabric, fabric.path(0, 5, p))
        assert names == ["h1", "leaf1", f"spine{p + 1}", "leaf3", "h6"]
        assert nodes_on(fabric, fabric.path(0, 1, p)) == ["h1", "leaf1", "h2"]


@pytest.mark.parametrize("k", [4, 6, 8])
def test_fat_tree_paths_enumerate_every_choice_evenly(k):
    """(k/2)^2 paths between pods, k/2 inside one (each for k/2 of the indexes), 1 below one edge switch."""
    fabric = Fabric.from_topo(FatTree(k=k))
    half = k // 2
    assert fabric.n_paths == half**2
    last = len(fabric.hosts) - 1
    for dst, ways in ((last, half**2), (half, half), (1, 1)):
        count = Counter(tuple(fabric.path(0, dst, p)) for p in range(fabric.n_paths))
        assert len(count) == ways
        assert set(count.values()) == {half**2 // ways}


@pytest.mark.parametrize(("k", "n_paths"), [(16, 64), (18, 63), (20, 60)])
def test_a_fat_tree_with_too_many_paths_still_uses_every_core(k, n_paths):
    """k=18 has 81: the largest multiple of 9 within 64 is 63. Windows shift with the destination."""
    fabric = Fabric.from_topo(FatTree(k=k))
    assert fabric.n_paths == n_paths
    half = k // 2
    edges = np.arange(half, len(fabric.hosts), half)  # the first host of every other edge switch
    far = edges[edges >= half**2]
    dst, p = (column.ravel() for column in np.meshgrid(far, np.arange(n_paths)))
    _, links = fabric.paths(np.zeros_like(dst), dst, p)
    up = [fabric.nodes[n] for n in fabric.link_dst[links]]
    cores = Counter(name for name in up if name.startswith("core"))
    aggs = Counter(name for name in up if name.startswith("agg") and int(name[3:]) <= half)
    assert len(cores) == half**2
    assert max(cores.values()) <= 1.1 * min(cores.values())
    assert len(set(aggs.values())) == 1
    assert len(aggs) == half


def test_rail_optimized_routes():
    """GPU 1 of servers 1 and 2 share a rail; GPUs of a server its switch; everything else takes a spine."""
    fabric = Fabric.from_topo(RailOptimized(servers=2, gpus_per_server=2, spines=2, pods=2))
    assert fabric.n_paths == 2
    assert nodes_on(fabric, fabric.path(0, 2, 1)) == ["h1", "rail1", "h3"]
    assert nodes_on(fabric, fabric.path(0, 1, 1)) == ["h1", "nv1", "h2"]
    assert nodes_on(fabric, fabric.path(0, 3, 1)) == ["h1", "rail1", "spine2", "rail2", "h4"]
    assert nodes_on(fabric, fabric.path(0, 4, 0)) == ["h1", "rail1", "spine1", "rail3", "h5"]
    loop = fabric.path(0, 0, 0, hairpin=True)
    assert nodes_on(fabric, loop) == ["h1", "rail1", "h1"]


def test_host_to_itself():
    fabric = Fabric.from_topo(SingleSwitch(hosts=3))
    assert fabric.path(1, 1, 0).tolist() == []
    assert nodes_on(fabric, fabric.path(1, 1, 0, hairpin=True)) == ["h2", "s1", "h2"]


@pytest.mark.parametrize("hairpin", [False, True])
def test_paths_of_many_rows_are_the_paths_of_each(hairpin):
    fabric = Fabric.from_topo(RailOptimized(pods=2, servers=3, gpus_per_server=2, spines=3))
    rng = np.random.default_rng(7)
    src, dst = rng.integers(0, len(fabric.hosts), (2, 500))
    p = rng.integers(0, fabric.n_paths, 500)
    indptr, links = fabric.paths(src, dst, p, hairpin)
    assert indptr.dtype == links.dtype == np.int64
    assert len(indptr) == 501
    for i in range(500):
        alone = fabric.path(int(src[i]), int(dst[i]), int(p[i]), hairpin)
        assert links[indptr[i] : indptr[i + 1]].tolist() == alone.tolist()
    empty = np.zeros(0, np.int64)
    assert [column.tolist() for column in fabric.paths(empty, empty, empty)] == [[0], []]


def test_columns():
    """Hosts come first in natural order; links 2i and 2i+1 are one cable; ports name the interfaces."""
    fabric = Fabric.from_topo(LeafSpine(leaves=6, host_rate=80, oversubscription=2, delay="1.5ms"), name="x")
    assert fabric.hosts == tuple(f"h{i}" for i in range(1, 13)) == fabric.nodes[:12]
    assert fabric.kinds == ("host",) * 12 + ("eps",) * 8
    assert np.array_equal(fabric.link_src[::2], fabric.link_dst[1::2])
    assert np.array_equal(fabric.link_dst[::2], fabric.link_src[1::2])
    assert fabric.n_links == 2 * (12 + 12)
    # 80 Mbit/s is 10 MB/s; two hosts per leaf over two spines at 2:1 leave 40 Mbit/s, 5 MB/s, per uplink.
    assert set(fabric.capacity[fabric.link_src < 12]) == {10e6}
    assert set(fabric.capacity[(fabric.link_src >= 12) & (fabric.link_dst >= 12)]) == {5e6}
    assert set(fabric.delay) == {1.5e-3}
    topo = LeafSpine(leaves=6)
    for link in range(fabric.n_links):
        here, there = (fabric.nodes[ends[link]] for ends in (fabric.link_src, fabric.link_dst))
        assert topo.ports[here][fabric.link_port[link]] == (there, fabric.link_port[link ^ 1])
    with pytest.raises(ValueError, match="read-only"):
        fabric.capacity[0] = 1.0
    assert fabric.describe() == (
        "x: 12 hosts, 8 switches, 24 cables, 80 Mbit/s per host port, 40 Mbit/s between switches, "
        "2 paths, up to 1.5 ms per link"
    )


def test_order_of_links_does_not_depend_on_how_the_topo_stores_them():
    forward, backward = Topo(), Topo()
    cables = [("h1", "s1", 0, 1), ("h2", "s1", 0, 2), ("h10", "s2", 0, 1), ("s1", "s2", 3, 2)]
    for topo, order in ((forward, cables), (backward, cables[::-1])):
        for a, b, port_a, port_b in order:
            for node in (a, b):
                if node not in topo.g.node:
                    (topo.addHost if node[0] == "h" else topo.addSwitch)(node)
            if topo is forward:
                topo.addLink(a, b, port_a, port_b, bw=1)
            else:
                topo.addLink(b, a, port_b, port_a, bw=1)
    one, two = Fabric.from_topo(forward), Fabric.from_topo(backward)
    assert one.nodes == two.nodes == ("h1", "h2", "h10", "s1", "s2")
    for column in ("link_src", "link_dst", "link_port", "capacity", "delay"):
        assert np.array_equal(getattr(one, column), getattr(two, column))


def splitmix64(state):
    """Steele, Lea, Flood 2014, figure 17, in plain integers: the value after `state`."""
    word = 2**64 - 1
    z = (state + 0x9E3779B97F4A7C15) & word
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & word
    z = (z ^ z >> 27) * 0x94D049BB133111EB & word
    return z ^ z >> 31


def test_choice_of_path_is_fixed_for_ever_and_even():
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # the first output for seed 0, as widely published
    assert spread(0).tolist() == [splitmix64(0)]
    fabric = Fabric.from_topo(LeafSpine(leaves=2, spines=4))
    for ids in ((0, 0, 2, 0), (5, 1, 3, 0), (2, 3, 0, 10**12)):
        job, src, dst, salt = ids
        state = 0
        for each in (salt, job, src, dst):
            state = splitmix64(state ^ each)
        assert fabric.choose_path(*ids).tolist() == [state % 4]
    n = 40_000
    p = fabric.choose_path(np.arange(n) % 7, np.arange(n) % 64, np.arange(n) // 64, 3)
    counts = np.bincount(p, minlength=4)
    # Chi-square with 3 degrees of freedom: above 16.27 with probability 0.001.
    assert ((counts - n / 4) ** 2 / (n / 4)).sum() < 16.27
    assert fabric.choose_path(1, 2, 3, 4).tolist() == fabric.choose_path([1], [2], [3], [4]).tolist()


def test_params_per_interface_give_the_two_ways_of_a_cable():
    topo = Topo()
    topo.addLink(topo.addHost("h1"), topo.addSwitch("s1"), params1={"bw": 8}, params2={"bw": 16})
    topo.addLink(topo.addHost("h2"), "s1", bw=8)
    fabric = Fabric.from_topo(topo)
    assert fabric.capacity.tolist() == [1e6, 2e6, 1e6, 1e6]  # up, down, up, down


def one_link(**options):
    topo = Topo()
    topo.addLink(topo.addHost("h1"), topo.addSwitch("s1"), **options)
    return topo


def islands():
    topo = one_link(bw=1)
    topo.addLink(topo.addHost("h2"), topo.addSwitch("s2"), bw=1)
    return topo


def through_a_host():
    """h2 has a foot in both islands, but hosts do not forward."""
    topo = islands()
    topo.addLink("h2", "s1", bw=1)
    topo.addLink(topo.addHost("h3"), "s2", bw=1)
    return topo


def without_port():
    topo = one_link(bw=1)
    topo.addHost("h2")
    return topo


def strange_kind():
    topo = one_link(bw=1)
    topo.addSwitch("s2", kind="router")
    return topo


@pytest.mark.parametrize(
    ("topo", "message"),
    [
        (Topo(), "no hosts"),
        (one_link(), r"link h1 - s1: bw=None; give Mbit/s"),
        (one_link(bw=0), r"bw=0; give Mbit/s, more than 0"),
        (one_link(bw=-3), r"bw=-3"),
        (one_link(bw=float("nan")), r"bw=nan"),
        (one_link(bw="10"), r"bw='10'"),
        (one_link(bw=1, delay="5"), r"link h1 - s1: delay: '5' is not a time"),
        (one_link(bw=1, loss=1), r"loss=1 is not modelled"),
        (one_link(bw=1, params2={"jitter": "1ms"}), r"jitter='1ms' is not modelled"),
        (islands(), "no way from host h1 to host h2"),
        (through_a_host(), "no way from host h1 to host h3"),
        (without_port(), "no way from host h1 to host h2"),
        (strange_kind(), "node s2 has kind 'router'; it can be eps or ocs"),
    ],
)
def test_bad_topos_are_refused_in_one_line(topo, message):
    with pytest.raises(ScenarioError, match=message) as caught:
        Fabric.from_topo(topo, name="f")
    assert str(caught.value).startswith("fabric f: ")
    assert "\n" not in str(caught.value)


def test_hosts_and_path_indexes_that_do_not_exist():
    fabric = Fabric.from_topo(LeafSpine(spines=3))
    assert fabric.host_ordinal("h3") == 2
    with pytest.raises(ScenarioError, match="no host 'H3'; did you mean h3"):
        fabric.host_ordinal("H3")
    with pytest.raises(ScenarioError, match=r"no host 'gpu'; its hosts are h1\.\.h4"):
        fabric.host_ordinal("gpu")
    with pytest.raises(ScenarioError, match="no host number 4; it has 4 hosts"):
        fabric.path(0, 4, 0)
    for p in (-1, 3):
        with pytest.raises(PolicyError, match=rf"no path index {p}; a pair of hosts has 0\.\.2"):
            fabric.path(0, 1, p)


def test_a_fabric_whose_links_are_not_pairs_is_refused():
    column = np.array([0, 1])
    with pytest.raises(ValueError, match="two ways of one cable"):
        Fabric("x", ("h1", "s1"), ("host", "eps"), ("h1",), column, column, column * 1.0, column * 0.0)
    with pytest.raises(ValueError, match="first nodes"):
        Fabric("x", ("s1", "h1"), ("eps", "host"), ("h1",), column, column[::-1], column * 1.0, column * 0.0)


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
