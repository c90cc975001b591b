"""An emulated fabric with optical switches: what goes over which circuit, and back over packet switches."""

from __future__ import annotations

import time

import numpy as np
import pytest
from emulated_hosts import PORT, Bulk, udp

from netsched.emulation import light
from netsched.emulation.addresses import routed_as
from netsched.emulation.channel import Channel, Message
from netsched.emulation.enclosure import run_enclosed
from netsched.emulation.network import emulated_network
from netsched.emulation.remote import Remote
from netsched.fabric import Fabric
from netsched.optics import Optics, optics_of
from topologies import TOPOLOGIES

FABRICS = {
    "hybrid": {"racks": 3, "hosts_per_rack": 2, "spines": 2, "optical_switches": 2},
    "ocs_direct": {"hosts": 3, "degree": 2},
}
MATCHINGS = {
    "nothing": [[-1, -1, -1], [-1, -1, -1]],
    "a pair": [[1, 0, -1], [-1, -1, -1]],
    "a ring": [[1, 2, 0], [-1, -1, -1]],
    "two ways of one pair": [[1, 0, -1], [1, -1, -1]],
}
"""What each end's light goes to, over each switch."""


def topo_of(kind: str) -> tuple[object, Fabric, Optics]:
    topo = TOPOLOGIES[kind](**FABRICS[kind])
    fabric = Fabric.from_topo(topo)
    optics = optics_of(fabric)
    assert optics is not None
    return topo, fabric, optics


def set_all(remote: Remote, switches: list, out: list[list[int]]) -> None:
    rows = [light.on_ports(switch, np.array(row)) for switch, row in zip(switches, out, strict=True)]
    remote.command([(time.monotonic(), rows)])
    time.sleep(0.05)
    assert [list(row) for row in remote.read().matchings] == rows


def ways_of(kind: str, hops: int, out: list[list[int]], src: int, dst: int, path: int, choice: int):
    """The links from host to host: over the circuit that the choice picks of those that there are, or two."""
    _, fabric, optics = topo_of(kind)
    a, b = int(optics.end_of_host[src]), int(optics.end_of_host[dst])
    direct = [s for s, row in enumerate(out) if row[a] == b and a != b]
    if direct:
        return sorted(optics.circuit(src, dst, ((direct[choice % len(direct)], a, b),)))
    between = 3 - a - b
    first, second = (
        [s for s, row in enumerate(out) if a != b and row[i] == j] for i, j in ((a, between), (between, b))
    )
    if hops == 2 and first and second:
        legs = (first[choice % len(first)], a, between), (second[choice % len(second)], between, b)
        return sorted(optics.circuit(src, dst, legs))
    return sorted(fabric.path(src, dst, path).tolist())


def triples(fabric: Fabric) -> list[tuple[int, int, int, int]]:
    hosts = range(len(fabric.hosts))
    return [
        (src, dst, path, choice)
        for src in hosts
        for dst in hosts
        for path in range(fabric.n_paths)
        for choice in range(2)
        if src != dst
    ][::11]


def follow(channel: Channel, request: Message) -> Message:
    """One datagram per (source, destination, path, choice) and matching; the links that it took."""
    topo, fabric, optics = topo_of(request.body["kind"])
    with emulated_network(topo, fabric, scale=0.5, n_queues=8) as network:
        network.apply_host_queues()
        network.verify()
        remote, switches = light.start(network, optics, request.body["hops"])
        sockets = [udp(network, host) for host in range(len(fabric.hosts))]
        taken: dict[str, list[list[int]]] = {}
        for name, out in MATCHINGS.items():
            set_all(remote, switches, out)
            taken[name] = []
            for src, dst, path, choice in triples(fabric):
                before = network.readings()
                address = network.address(dst, routed_as(path, choice, 2))
                sockets[src].sendto(b"x" * 100, (address, PORT))
                sockets[dst].recv(200)
                grown = (network.readings() - before).packets.sum(axis=1)
                taken[name].append(np.repeat(np.arange(len(grown)), grown).tolist())
        # All is as it was: what the switches forward by is no part of the queues.
        network.verify()
    return Message("followed", taken)


@pytest.mark.root
@pytest.mark.parametrize(("kind", "hops"), [("hybrid", 1), ("ocs_direct", 1), ("ocs_direct", 2)])
def test_what_goes_between_two_ends_takes_the_circuits_between_them_while_they_are_up(tmp_path, kind, hops):
    _, fabric, _ = topo_of(kind)
    request = Message("request", {"kind": kind, "hops": hops})
    taken = run_enclosed(f"{__name__}:follow", request, log=tmp_path / "log").body
    for name, out in MATCHINGS.items():
        for triple, links in zip(triples(fabric), taken[name], strict=True):
            assert links == ways_of(kind, hops, out, *triple), (name, triple)


def carry(channel: Channel, request: Message) -> Message:
    """A connection that goes on over packet switches, a circuit, and packet switches again."""
    topo, fabric, optics = topo_of("hybrid")
    with emulated_network(topo, fabric, scale=0.5, n_queues=8) as network:
        network.apply_host_queues()
        remote, switches = light.start(network, optics)
        flow = Bulk(network, 0, 2, PORT, cls=0)
        flow.start()
        rates, shares = [], []
        for name in ("nothing", "a pair", "nothing"):
            set_all(remote, switches, MATCHINGS[name])
            time.sleep(0.3)
            before = network.readings()
            rates.append(flow.rate_over(0.7))
            grown = (network.readings() - before).bytes.sum(axis=1)
            shares.append(float(grown[optics.up[0, 0]] / grown[int(optics.access[0, 0])]))
        flow.stop()
        return Message("carried", {"rates": rates, "shares": shares, "log": len(remote.log)})


@pytest.mark.root
def test_a_connection_lives_through_coming_and_going_circuits_at_its_full_rate(tmp_path):
    body = run_enclosed(f"{__name__}:carry", Message("request"), log=tmp_path / "log").body
    capacity = 100e6 / 8 * 0.5 * 1547 / 1514
    assert body["rates"] == pytest.approx([capacity] * 3, rel=0.04)
    # One port is read after the other, while bytes flow.
    assert body["shares"] == pytest.approx([0.0, 1.0, 0.0], abs=0.05)
    assert body["log"] == 2
