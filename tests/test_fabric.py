"""What the engines see of a network: links, and routes that destination routing can realise."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mininet.topo import Topo

from netsched.fabric import Fabric
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
