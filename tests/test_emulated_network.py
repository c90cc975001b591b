"""The emulated network against its fabric: addresses, routes, rates, priorities, and the check before a run.

What is measured is measured once, inside one enclosure, and judged here. The sockets are opened in the
hosts' namespaces by the inside itself, so that no program's start-up is part of a figure.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from emulated_hosts import PORT, Bulk, udp
from hypothesis import given
from hypothesis import strategies as st
from mininet.topo import Topo

from netsched.emulation import addresses, netns, wiring
from netsched.emulation.channel import Channel, Message
from netsched.emulation.enclosure import run_enclosed
from netsched.emulation.network import EmulatedNetwork, emulated_network
from netsched.errors import CapabilityError, EmulationError
from netsched.fabric import Fabric
from topologies import TOPOLOGIES
from topologies.leaf_spine import LeafSpine

SCALE = 0.5


def leaf_spine(**options) -> tuple[LeafSpine, Fabric]:
    topo = LeafSpine(**options)
    return topo, Fabric.from_topo(topo)


def enclosed(function, log, **body) -> Message:
    return run_enclosed(f"{__name__}:{function.__name__}", Message("request", body), log=log)


# ------------------------------------------------------------------ the plan, without root


@given(st.data())
def test_routes_send_every_address_where_the_fabric_does(data):
    paths, hosts = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 40))
    hops = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=paths * hosts, max_size=paths * hosts)))
    hops = hops.reshape(paths, hosts)
    routes = addresses.routes(hops)
    for path in range(paths):
        for host in range(hosts):
            octets = [int(part) for part in addresses.address(host, path).split(".")]
            number = int.from_bytes(bytes(octets), "big")
            found = {r.link for r in routes if number >> (32 - r.length) == prefix(r) >> (32 - r.length)}
            assert found <= {hops[path, host]} if hops[path, host] >= 0 else True
            assert hops[path, host] < 0 or found


def prefix(route: addresses.Route) -> int:
    return int.from_bytes(socket.inet_aton(route.prefix), "big")


def test_routes_of_one_next_hop_are_one_route():
    assert addresses.routes(np.full((64, 128), 3)) == [addresses.Route("10.0.0.0", 8, 3)]


def test_addresses_are_distinct_and_the_plan_has_an_end():
    assert addresses.address(0, 0) == "10.0.0.1"
    assert addresses.address(255, 3) == "10.3.1.0"
    assert len({addresses.address(h, p) for h in range(600) for p in range(64)}) == 600 * 64
    with pytest.raises(EmulationError, match="65534 hosts and 256 paths"):
        addresses.address(0, 256)


def test_a_port_has_room_for_frames_and_for_acknowledgements_of_the_other_direction():
    # Ethernet 14 + IPv4 20 + TCP 20 + timestamps 12 + payload 1448 = 1514; without payload 66, every second
    assert wiring.payload_share(1500) == 1448 / 1514
    assert wiring.framing(1500) == 1547 / 1448


def test_a_delay_that_the_kernel_cannot_make_is_refused_unless_asked_to_ignore_it():
    _, fabric = leaf_spine(delay="10us")
    with pytest.raises(CapabilityError, match=r"10 us.*CONFIG_NET_SCH_NETEM.*best-effort"):
        wiring.check(fabric, "strict", netem=False)
    assert wiring.check(fabric, "best-effort", netem=False) == {"delay": "ignored (no netem)"}
    _, fabric = leaf_spine()
    assert wiring.check(fabric, "strict", netem=False) == {"delay": "none asked"}


# ------------------------------------------------------------------ the network, as root


FABRICS = [
    ("leaf_spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 2}, 1),
    ("rail_optimized", {}, 1),
    ("fat_tree", {"k": 4}, 61),
]
"""Kind, options, and which of the (source, destination, path) triples are tried: every how many-th."""


def fabric_of(kind: str, options: dict) -> tuple[Topo, Fabric]:
    topo = TOPOLOGIES[kind](**options)
    return topo, Fabric.from_topo(topo)


def triples_of(fabric: Fabric, every: int) -> list[tuple[int, int, int]]:
    n = range(len(fabric.hosts))
    found = [(src, dst, p) for src in n for dst in n for p in range(fabric.n_paths) if src != dst]
    return found[::every]


def connect_everything(channel: Channel, request: Message) -> Message:
    """Sends one datagram per triple and reads all counters after each."""
    topo, fabric = fabric_of(request.body["kind"], request.body["options"])
    with emulated_network(topo, fabric, scale=SCALE, n_queues=8) as network:
        network.apply_host_queues()
        network.verify()
        sockets = [udp(network, host) for host in range(len(fabric.hosts))]
        grown = []
        before = network.readings()
        for src, dst, path in triples_of(fabric, request.body["every"]):
            sockets[src].sendto(b"x" * 100, (network.address(dst, path), PORT))
            sockets[dst].recv(200)
            after = network.readings()
            grown.append((after - before).packets.sum(axis=1))
            before = after
        return Message("sent", {}, {"grown": np.array(grown)})


@pytest.mark.root
@pytest.mark.parametrize(("kind", "options", "every"), FABRICS)
def test_every_pair_is_connected_by_exactly_the_fabrics_links(tmp_path, kind, options, every):
    _, fabric = fabric_of(kind, options)
    sent = enclosed(connect_everything, tmp_path / "log", kind=kind, options=options, every=every)
    for (src, dst, path), grown in zip(triples_of(fabric, every), sent.arrays["grown"], strict=True):
        wanted = np.zeros(fabric.n_links, np.int64)
        wanted[fabric.path(src, dst, path)] = 1
        np.testing.assert_array_equal(grown, wanted, f"{src} -> {dst} by path {path}")


def measure(channel: Channel, request: Message) -> Message:
    """Goodput of one connection, shares of two, largest frame, TCP's settings, and a tampered port."""
    topo, fabric = leaf_spine(leaves=1, spines=1, hosts_per_leaf=3, host_rate=100)
    with emulated_network(topo, fabric, scale=SCALE, n_queues=8) as network:
        network.apply_host_queues()
        network.verify()
        facts: dict[str, object] = {"mechanisms": network.mechanisms}
        inside = network.popen("h1", ["readlink", "/proc/self/ns/net"], stdout=subprocess.PIPE)
        facts["netns"] = inside.communicate()[0].decode().strip(), str(Path(network.netns("h1")).readlink())

        before = network.readings()
        alone = Bulk(network, 0, 2, PORT, cls=7)
        with frames(network, "h3") as sniffer:
            alone.start()
            time.sleep(0.5)
            facts["goodput"] = alone.rate_over(1.5)
            facts["frames"] = sizes(sniffer)
        facts["congestion"] = alone.congestion_control()
        facts["rto"] = alone.retransmission_timeout()

        urgent = Bulk(network, 1, 2, PORT + 1, cls=0)
        urgent.start()
        time.sleep(0.5)
        facts["shares"] = both(alone, urgent, 1.0)
        urgent.stop()
        time.sleep(0.5)
        facts["afterwards"] = alone.rate_over(0.5)
        alone.stop()
        grown = network.readings() - before
        facts["direct"] = int(grown.direct_packets.sum())

        facts["differences"] = [tamper(network, command) for command in TAMPERINGS]
        network.popen("h1", ["sleep", "1000"])
        began = time.monotonic()
    facts["stop"] = time.monotonic() - began
    return Message("measured", facts, {"bytes": grown.bytes})


def both(one: Bulk, two: Bulk, seconds: float) -> list[float]:
    first = one.received, two.received
    time.sleep(seconds)
    return [(one.received - first[0]) / seconds, (two.received - first[1]) / seconds]


def frames(network: EmulatedNetwork, host: str) -> socket.socket:
    with netns.entered(network.pid(host)):
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sniffer.settimeout(0)
    return sniffer


def sizes(sniffer: socket.socket) -> list[int]:
    found = []
    with contextlib.suppress(BlockingIOError):
        while len(found) < 5000:
            found.append(len(sniffer.recv(1 << 17)))
    return found


TAMPERINGS = (
    "tc class change dev leaf1-eth1 classid 7a1:1 htb rate 10mbit",
    "tc qdisc del dev leaf1-eth2 root",
    "ip link set leaf1-eth3 gso_max_segs 64",
    "ip link set leaf1-eth4 down",
)


def tamper(network: EmulatedNetwork, command: str) -> str:
    """What `verify` says after the command, and the network is whole again afterwards."""
    assert network.popen("leaf1", command.split()).wait() == 0
    try:
        network.verify()
    except EmulationError as error:
        message = str(error)
    else:
        message = "nothing"
    for undo in ("ip link set leaf1-eth3 gso_max_segs 1", "ip link set leaf1-eth4 up"):
        network.popen("leaf1", undo.split()).wait()
    network.apply_switch_queues()
    return message


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Message:
    return enclosed(measure, tmp_path_factory.mktemp("measure") / "log")


CAPACITY = 100e6 / 8 * SCALE
"""Payload bytes/s of a host port in `measure`: 100 Mbit/s at scale 0.5."""


@pytest.mark.root
def test_a_port_carries_the_scaled_capacity_as_payload(measured):
    assert measured.body["goodput"] == pytest.approx(CAPACITY * 1547 / 1514, rel=0.03)
    assert measured.body["mechanisms"]["framing"] == 1547 / 1448


@pytest.mark.root
def test_no_frame_is_larger_than_the_mtu(measured):
    sizes = measured.body["frames"]
    assert len(sizes) > 100
    assert max(sizes) == 1514
    # Half of the frames or more carry data, and data comes in full segments.
    assert sizes.count(1514) > 0.45 * len(sizes)


@pytest.mark.root
def test_hosts_run_cubic_with_a_short_retransmission_timeout(measured):
    assert measured.body["congestion"] == ["cubic", "cubic"]
    # The receiver's end has measured an idle path of well under a millisecond: what remains is rto_min.
    assert 0.010 <= measured.body["rto"] < 0.1


@pytest.mark.root
def test_the_urgent_class_takes_the_port_and_gives_it_back(measured):
    unmarked, urgent = measured.body["shares"]
    assert urgent == pytest.approx(CAPACITY, rel=0.05)
    assert unmarked < 0.05 * CAPACITY
    assert measured.body["afterwards"] == pytest.approx(CAPACITY, rel=0.05)


@pytest.mark.root
def test_counters_are_by_link_and_class(measured):
    _, fabric = leaf_spine(leaves=1, spines=1, hosts_per_leaf=3, host_rate=100)
    grown = measured.arrays["bytes"]
    assert grown.shape == (fabric.n_links, 8)
    (first_up, down), (second_up, _) = fabric.path(0, 2, 0), fabric.path(1, 2, 0)
    assert grown[first_up, 7] > 1e6 > grown[first_up, :7].sum()
    assert grown[second_up, 0] > 1e6 > grown[second_up, 1:].sum()
    assert grown[down, 0] > 1e6 < grown[down, 7]
    assert measured.body["direct"] == 0


@pytest.mark.root
def test_a_tampered_port_is_named_with_what_is_wrong(measured):
    rate, queues, segments, down = measured.body["differences"]
    assert rate.startswith("port leaf1-eth1: ")
    assert "rate 10 Mbit/s" in rate
    assert "wanted rate 53.42 Mbit/s" in rate  # 50 Mbit/s * 1547 / 1448
    assert queues == "port leaf1-eth2: root: no htb with handle 7a1: (wanted: 8 classes)"
    assert segments == "port leaf1-eth3: gso_max_segs is 64, wanted 1"
    assert down.startswith("port leaf1-eth4: operstate is ")


@pytest.mark.root
def test_programs_run_in_their_host_and_end_with_the_network(measured):
    inside, host = measured.body["netns"]
    assert inside == host
    assert measured.body["stop"] < 1.0


def build_large(channel: Channel, request: Message) -> Message:
    began = time.monotonic()
    topo, fabric = leaf_spine(leaves=8, spines=4, hosts_per_leaf=8, host_rate=100)
    with emulated_network(topo, fabric, scale=1.0, n_queues=8) as network:
        network.apply_host_queues()
        network.verify()
        up = time.monotonic()
    return Message("times", {"up": up - began, "down": time.monotonic() - up})


@pytest.mark.root
def test_64_hosts_are_up_and_checked_in_15_s_and_gone_in_5(tmp_path, record_property):
    times = enclosed(build_large, tmp_path / "log").body
    record_property("times", times)
    assert times["up"] < 15
    assert times["down"] < 5


def refuse_rate(channel: Channel, request: Message) -> Message:
    topo, fabric = leaf_spine(leaves=1, spines=1, hosts_per_leaf=2, host_rate=100)
    with emulated_network(topo, fabric, scale=1e-3, n_queues=8):
        return Message("built")


@pytest.mark.root
def test_a_scale_that_no_port_can_have_is_refused(tmp_path):
    with pytest.raises(
        EmulationError,
        match=r"emulation.scale = 0.001: port .* 106.8 kbit/s; a port has 1 Mbit",  # 100 kbit/s * 1547 / 1448
    ):
        enclosed(refuse_rate, tmp_path / "log")
