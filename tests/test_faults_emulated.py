"""Faults on the emulated network: the way round what is down, what is lost, rates that change in place."""

from __future__ import annotations

import select
import socket
import time
from types import SimpleNamespace

import numpy as np
import pytest
from emulated_hosts import PORT, Bulk, udp
from sim_cases import Case

from netsched import ledger as books
from netsched.crossconnect import CrossConnect
from netsched.emulation import light, wiring
from netsched.emulation.channel import Channel, Message
from netsched.emulation.enclosure import run_enclosed
from netsched.emulation.faults import Faults, faults_of, round_about
from netsched.emulation.network import EmulatedNetwork, emulated_network
from netsched.errors import EmulationError
from netsched.fabric import Fabric
from netsched.faults import AS_BUILT, DOWN
from netsched.model import Fault
from netsched.optics import optics_of
from topologies.hybrid import Hybrid
from topologies.leaf_spine import LeafSpine
from topologies.ocs_direct import OcsDirect

UPLINK = ("leaf1", "spine1")
SCALE = 0.5
CAPACITY = 100e6 / 8 * SCALE * 1547 / 1514
"""Payload bytes/s of a port of 100 Mbit/s that carries no acknowledgements."""


def two_leaves(spines: int) -> tuple[LeafSpine, Fabric]:
    topo = LeafSpine(leaves=2, spines=spines, hosts_per_leaf=1, host_rate=100, uplink_rate=100)
    return topo, Fabric.from_topo(topo)


def link(fabric: Fabric, one: str, other: str) -> int:
    ends = fabric.nodes.index(one), fabric.nodes.index(other)
    return next(i for i in range(fabric.n_links) if (fabric.link_src[i], fabric.link_dst[i]) == ends)


# ------------------------------------------------------------------ without root


def test_every_node_that_has_a_way_round_takes_the_next_path_that_works():
    _, fabric = two_leaves(3)
    hops = wiring.path_hops(fabric)
    down = np.zeros(fabric.n_links, bool)
    assert (round_about(fabric, hops, down) == -1).all()
    down[[link(fabric, *UPLINK), link(fabric, *UPLINK[::-1])]] = True
    instead = round_about(fabric, hops, down)
    node = fabric.nodes.index
    wanted = np.full(hops.shape, -1, np.int64)
    # Path 0 is spine1's: both leaves send over spine2 instead, the spine itself has no other way to leaf1.
    wanted[0, 1, node("leaf1")] = link(fabric, "leaf1", "spine2")
    wanted[0, 0, node("leaf2")] = link(fabric, "leaf2", "spine2")
    # A host has one port, and what it sends is led round behind that.
    wanted[0, 1, node("h1")] = hops[1, 1, node("h1")]
    wanted[0, 0, node("h2")] = hops[1, 0, node("h2")]
    np.testing.assert_array_equal(instead, wanted)
    down[link(fabric, "leaf1", "spine2")] = True
    assert round_about(fabric, hops, down)[0, 1, node("leaf1")] == link(fabric, "leaf1", "spine3")
    down[link(fabric, "leaf1", "spine3")] = True
    assert round_about(fabric, hops, down)[0, 1, node("leaf1")] == -1


@pytest.mark.parametrize(
    ("topo", "fault", "message"),
    [
        (LeafSpine(), Fault(1.0, ("h1", "leaf1"), None, 1e6), r"h1 - leaf1: the rate of a host's port"),
        (OcsDirect(), Fault(1.0, ("h1", "ocs1"), None, 1e6), r"h1 - ocs1: the rate of a host's port"),
    ],
)
def test_what_cannot_be_emulated_is_refused(topo, fault, message):
    with pytest.raises(EmulationError, match=message):
        faults_of(SimpleNamespace(fabric=Fabric.from_topo(topo)), [fault])


# ------------------------------------------------------------------ on the network


def let(faults: Faults, *changes: tuple[tuple[str, str] | None, str | None, float]) -> None:
    """Let these (link, host, value) happen now."""
    case = Case(2)
    case.task(2.0, case.job())
    workload = case.build()
    faults.left = [Fault(0.0, *change) for change in changes]
    ledger = books.open_ledger(workload, np.zeros(0, np.int64))
    faults.happen(ledger, workload, 0.0)


def prepared(network: EmulatedNetwork) -> Faults:
    return faults_of(network, [Fault(0.0, UPLINK, None, DOWN)])


def go_round(channel: Channel, request: Message) -> Message:
    """A connection by spine1, whose uplink goes and comes back; then its rate falls and rises."""
    topo, fabric = two_leaves(2)
    with emulated_network(topo, fabric, scale=SCALE, n_queues=8) as network:
        network.apply_host_queues()
        faults = prepared(network)
        flow = Bulk(network, 0, 1, PORT, cls=0)
        flow.start()
        by_spine1, rates = [], []
        rate = float(fabric.capacity[0]) * 0.4
        for value in (AS_BUILT, DOWN, AS_BUILT, rate, AS_BUILT):
            let(faults, (UPLINK, None, value))
            time.sleep(0.4)
            before = network.readings()
            rates.append(flow.rate_over(0.6))
            grown = (network.readings() - before).bytes.sum(axis=1)
            up = grown[link(fabric, "leaf1", "spine1")], grown[link(fabric, "leaf1", "spine2")]
            by_spine1.append(float(up[0] / sum(up)))
        flow.stop()
        network.verify()
        return Message("gone round", {"rates": rates, "by_spine1": by_spine1, **faults.readings()})


@pytest.mark.root
def test_a_connection_goes_round_a_cable_that_is_down_and_follows_its_rate(tmp_path):
    body = run_enclosed(f"{__name__}:go_round", Message("request"), log=tmp_path / "log").body
    assert body["by_spine1"] == pytest.approx([1.0, 0.0, 1.0, 1.0, 1.0], abs=0.02)
    assert body["rates"] == pytest.approx([CAPACITY * share for share in (1, 1, 1, 0.4, 1)], rel=0.05)
    assert body["faults"] == 5


def lose(channel: Channel, request: Message) -> Message:
    """Datagrams over the only way there is: before, while it is down, and after; then into a slow queue."""
    topo, fabric = two_leaves(1)
    with emulated_network(topo, fabric, scale=SCALE, n_queues=8) as network:
        network.apply_host_queues()
        faults = prepared(network)
        sender, receiver = udp(network, 0), udp(network, 1)
        came = []
        for value in (AS_BUILT, DOWN, AS_BUILT):
            let(faults, (UPLINK, None, value))
            send(network, sender, 50)
            came.append(received(receiver, 0.3))
        lost = faults.readings()["fault_lost_frames"]
        # 100 frames of 1042 bytes take 0.8 s at 1 Mbit/s; most wait when the rate rises again.
        let(faults, (UPLINK, None, 1e6 / 8 / SCALE))
        send(network, sender, 100)
        began = time.monotonic()
        slow = received(receiver, 0.1, most=10)
        let(faults, (UPLINK, None, AS_BUILT))
        slow += received(receiver, 0.3)
        return Message("lost", {"came": came, "lost": lost, "slow": slow, "took": time.monotonic() - began})


def send(network: EmulatedNetwork, sender: socket.socket, n: int) -> None:
    for _ in range(n):
        sender.sendto(b"x" * 1000, (network.address(1, 0), PORT))


def received(receiver: socket.socket, silence: float, most: int = 1000) -> int:
    n = 0
    while n < most and select.select([receiver], [], [], silence)[0]:
        receiver.recv(2000)
        n += 1
    return n


@pytest.mark.root
def test_what_a_cable_that_is_down_loses_is_counted_and_a_change_of_rate_loses_nothing(tmp_path):
    body = run_enclosed(f"{__name__}:lose", Message("request"), log=tmp_path / "log").body
    assert body["came"] == [50, 0, 50]
    assert body["lost"] == 50
    assert body["slow"] == 100
    assert body["took"] < 0.8


def lose_light(channel: Channel, request: Message) -> Message:
    """Datagrams into a cut cable; a connection over a circuit whose cable goes, comes, has another rate."""
    rates = {"host_rate": 100, "uplink_rate": 100, "circuit_rate": 100, "reconfiguration": "5ms"}
    topo = Hybrid(racks=2, hosts_per_rack=1, **rates)
    fabric = Fabric.from_topo(topo)
    optics = optics_of(fabric)
    assert optics is not None
    cable = ("tor2", "ocs1")
    with emulated_network(topo, fabric, scale=SCALE, n_queues=8) as network:
        network.apply_host_queues()
        faults = faults_of(network, [Fault(0.0, cable, None, DOWN)])
        remote, (switch,) = light.start(network, optics)
        cross = CrossConnect(optics)
        remote.command([(time.monotonic(), [[1, 0]])])
        remote.hear()
        # The process of the switch is not told yet: its routes stay, and the light goes into the cut cable.
        let(faults, (cable, None, DOWN))
        sender, receiver = udp(network, 0), udp(network, 1)
        send(network, sender, 50)
        came, lost = received(receiver, 0.3), faults.readings()["fault_lost_frames"]
        let(faults, (cable, None, AS_BUILT))
        flow = Bulk(network, 0, 1, PORT, cls=0)
        flow.start()
        over, rates_had = [], []
        for value in (AS_BUILT, DOWN, AS_BUILT, float(fabric.capacity[0]) * 0.4):
            let(faults, (cable, None, value))
            cross.fail(faults.down, faults.capacity, 0.0)
            remote.fail([light.ports_of(switch, cross.broken[0])])
            time.sleep(0.4)
            before = network.readings()
            rates_had.append(flow.rate_over(0.6))
            grown = (network.readings() - before).bytes.sum(axis=1)
            by_light, by_packets = grown[link(fabric, "tor1", "ocs1")], grown[link(fabric, "tor1", "spine1")]
            over.append(float(by_light / (by_light + by_packets)))
        flow.stop()
        return Message("lost light", {"over": over, "rates": rates_had, "came": came, "lost": lost})


@pytest.mark.root
def test_a_circuit_whose_cable_fails_carries_nothing_and_its_flows_go_by_packets(tmp_path):
    body = run_enclosed(f"{__name__}:lose_light", Message("request"), log=tmp_path / "log").body
    assert body["over"] == pytest.approx([1.0, 0.0, 1.0, 1.0], abs=0.02)
    assert body["rates"] == pytest.approx([CAPACITY * share for share in (1, 1, 1, 0.4)], rel=0.05)
    assert (body["came"], body["lost"]) == (0, 50)
