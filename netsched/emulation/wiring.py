"""Every directed link of the fabric as an interface of the emulated network, with the rate it must have.

The fabric speaks of links, the kernel of interfaces in namespaces; this is the one place that knows which
is which, so that queues, counters and checks can all be columns over the fabric's links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from netsched import qdisc
from netsched.emulation.nodes import OPTICAL_MAC
from netsched.errors import CapabilityError, EmulationError
from netsched.fabric import Fabric
from netsched.model import Ints
from netsched.units import show_rate, show_time

MTU: Final = 1500
ETHERNET: Final = 14
"""Bytes of an Ethernet header, which HTB counts; preamble, checksum and gap do not exist on a veth."""
_IP_AND_TCP: Final = 20 + 20 + 12
"""IPv4, TCP and its timestamp option, which every Linux segment carries."""


def framing(mtu: int = MTU) -> float:
    """Bytes that a port counts per byte of payload where data flows both ways: 1547 / 1448 at an MTU of 1500.

    A full segment is a frame of 1514 bytes with 1448 of payload, and in the other direction every second
    one is acknowledged by a frame of 66. A port that carries no acknowledgements is 2 % faster than asked.
    """
    acknowledgement = (ETHERNET + _IP_AND_TCP) / 2
    return (mtu + ETHERNET + acknowledgement) / (mtu - _IP_AND_TCP)


def payload_share(mtu: int = MTU) -> float:
    """Payload bytes per byte of the frame of a full TCP segment."""
    return (mtu - _IP_AND_TCP) / (mtu + ETHERNET)


@dataclass(frozen=True)
class Wire:
    """Fabric link `link`, which leaves `node` by `interface`. `rate` in bytes/s of frames, as HTB counts.

    `peer_mac` is whom a frame over it is for: the port at the other end, or of a cable to an optical switch
    whatever port is behind that.
    """

    link: int
    node: str
    pid: int
    interface: str
    mac: str
    peer_mac: str
    rate: float

    def tree(self, queues: int, mtu: int = MTU) -> qdisc.Tree:
        """The queues this port must have: what a switch applies and what a host's agent applies."""
        return qdisc.port(self.rate, queues, frame=mtu + ETHERNET)


def wires(net: Any, fabric: Fabric, scale: float, mtu: int = MTU) -> tuple[Wire, ...]:
    """One wire per link of the fabric, in its order, as found in the Mininet object built from its Topo.

    The port's rate is capacity * scale * framing: a port counts frames, and the scenario means payload.
    EmulationError if a rate is one that a port cannot have, or if the two do not describe one network.
    """
    found = []
    for link in range(fabric.n_links):
        node = fabric.nodes[int(fabric.link_src[link])]
        interface = net[node].intfs.get(int(fabric.link_port[link]))
        peer = fabric.nodes[int(fabric.link_dst[link])]
        if interface is None or _other(interface).node.name != peer:
            raise EmulationError(
                f"link {link} of fabric {fabric.name}: Mininet built no port {node} -> {peer}"
            )
        rate = float(fabric.capacity[link]) * scale * framing(mtu)
        if not qdisc.MIN_RATE <= rate <= qdisc.MAX_RATE:
            raise EmulationError(
                f"emulation.scale = {scale:g}: port {interface.name} would have {show_rate(rate)}; "
                f"a port has {show_rate(qdisc.MIN_RATE)} to {show_rate(qdisc.MAX_RATE)}"
            )
        to_light = fabric.kinds[int(fabric.link_dst[link])] == "ocs"
        next_mac = OPTICAL_MAC if to_light else _other(interface).mac
        found.append(Wire(link, node, net[node].pid, interface.name, interface.mac, next_mac, round(rate)))
    if len(net.links) * 2 != fabric.n_links:
        raise EmulationError(
            f"fabric {fabric.name} has {fabric.n_links // 2} cables, its Topo {len(net.links)}: "
            "they are not the same network"
        )
    return tuple(found)


def _other(interface: Any) -> Any:
    one, two = interface.link.intf1, interface.link.intf2
    return two if interface is one else one


def check(fabric: Fabric, delay: str, netem: bool) -> dict[str, str]:
    """Refuses what this emulation would not do; returns the entries of `mechanisms` about it.

    `delay` is the scenario's emulation.delay, `netem` whether the kernel has it. CapabilityError for link
    delays unless "best-effort".
    """
    slowest = float(fabric.delay.max(initial=0.0))
    if slowest == 0:
        return {"delay": "none asked"}
    if delay == "best-effort":
        return {"delay": "ignored (no netem)" if not netem else "ignored (not realised with netem yet)"}
    why = (
        "the emulation does not apply delays yet"
        if netem
        else "this kernel has no netem (CONFIG_NET_SCH_NETEM)"
    )
    raise CapabilityError(
        f"fabric {fabric.name} has link delays of up to {show_time(slowest)}, but {why}; "
        "set emulation.delay to best-effort to run without them"
    )


def by_node(all_wires: tuple[Wire, ...]) -> dict[str, list[Wire]]:
    """The wires that leave each node, in the order of the fabric's links."""
    found: dict[str, list[Wire]] = {}
    for wire in all_wires:
        found.setdefault(wire.node, []).append(wire)
    return found


def next_hops(fabric: Fabric) -> Ints:
    """Link by which a node sends to (host, way), -1 at that host: int64 of shape (ways, hosts, nodes).

    Of the addresses of a path that differ by circuits only (`addresses.routed_as`) all go the same way.
    """
    return np.repeat(path_hops(fabric), max(fabric.kinds.count("ocs"), 1), axis=0)


def path_hops(fabric: Fabric) -> Ints:
    """The same by path over packet switches: int64 of shape (paths, hosts, nodes)."""
    table = np.empty((fabric.n_paths, len(fabric.hosts), len(fabric.nodes)), np.int64)
    for path in range(fabric.n_paths):
        for host in range(len(fabric.hosts)):
            table[path, host] = fabric.next_hops(host, path)
    return table
