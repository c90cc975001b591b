"""From a Mininet `Topo` to a fabric: what it may say, and what is refused in one line."""

from __future__ import annotations

import numpy as np
import pytest
from mininet.topo import Topo

from netsched.errors import PolicyError, ScenarioError
from netsched.fabric import Fabric
from topologies.leaf_spine import LeafSpine


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
