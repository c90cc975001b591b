"""The queues of all ports of an emulated network: made, compared with what they should be, and read.

A port whose rate or whose classes are not what the scenario says makes every figure of the run wrong and
none of them suspicious, so nothing runs before each port has been read back from the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from pyroute2 import IPRoute

from netsched import ports, qdisc
from netsched.emulation import netns
from netsched.emulation.wiring import MTU, Wire, by_node
from netsched.errors import EmulationError
from netsched.model import Ints
from netsched.netlink import NetlinkError, open_netns


@dataclass(frozen=True)
class Readings:
    """What every port has carried. int64; bytes are of frames.

    `bytes`, `packets` and `drops` have shape (links, classes).
    `direct_packets` (links) bypassed the queues: anything but 0 is a broken port.
    """

    bytes: Ints
    packets: Ints
    drops: Ints
    direct_packets: Ints

    def __sub__(self, earlier: Self) -> Readings:
        return Readings(
            self.bytes - earlier.bytes,
            self.packets - earlier.packets,
            self.drops - earlier.drops,
            self.direct_packets - earlier.direct_packets,
        )


def apply(wires: Iterable[Wire], queues: int, mtu: int = MTU) -> None:
    """Gives each port its rate and its queues. EmulationError naming the port that would not take them."""
    for node_wires in by_node(tuple(wires)).values():
        with open_netns(node_wires[0].pid) as link:
            index = link.links()
            for wire in node_wires:
                try:
                    ports.apply(link, index[wire.interface], wire.tree(queues, mtu))
                except (qdisc.QueueError, NetlinkError) as error:
                    raise EmulationError(f"port {wire.interface}: {error}") from error


def differences(wires: Iterable[Wire], queues: int, mtu: int = MTU) -> list[str]:
    """What in the kernel is not as the scenario wants it, "port: difference" each; empty if all is right.

    Compares rate, classes, queue lengths and filters of every port, its MTU, and that no packet larger than
    the MTU can reach it.
    """
    found = []
    for node_wires in by_node(tuple(wires)).values():
        pid = node_wires[0].pid
        with open_netns(pid) as link:
            index = link.links()
            for wire in node_wires:
                if wire.interface not in index:
                    found.append(f"{wire.interface}: there is no such interface in {wire.node}")
                    continue
                actual = ports.read_back(link, index[wire.interface])
                found += [
                    f"{wire.interface}: {text}" for text in qdisc.differences(wire.tree(queues, mtu), actual)
                ]
        found += _link_differences(pid, node_wires, mtu)
    return found


def _link_differences(pid: int, node_wires: list[Wire], mtu: int) -> list[str]:
    found = []
    with netns.entered(pid), IPRoute() as ipr:
        links = {message.get("ifname"): message for message in ipr.get_links()}
    for wire in node_wires:
        message = links.get(wire.interface)
        if message is None:
            continue
        for name, wanted in (("gso_max_segs", 1), ("mtu", mtu), ("operstate", "UP"), ("address", wire.mac)):
            if (value := message.get(name)) != wanted:
                found.append(f"{wire.interface}: {name} is {value}, wanted {wanted}")
    return found


def read(wires: tuple[Wire, ...], queues: int) -> Readings:
    """The counters of every port. EmulationError for a port without our queues."""
    counted = np.zeros((3, len(wires), queues), np.int64)
    direct = np.zeros(len(wires), np.int64)
    for node_wires in by_node(wires).values():
        with open_netns(node_wires[0].pid) as link:
            index = link.links()
            for wire in node_wires:
                try:
                    counters = ports.counters(link, index[wire.interface])
                except qdisc.QueueError as error:
                    raise EmulationError(f"port {wire.interface}: {error}") from error
                if len(counters.classes) != queues:
                    raise EmulationError(
                        f"port {wire.interface}: {len(counters.classes)} classes, wanted {queues}"
                    )
                counted[:, wire.link] = [
                    [c.bytes for c in counters.classes],
                    [c.packets for c in counters.classes],
                    [c.drops for c in counters.classes],
                ]
                direct[wire.link] = counters.direct_packets
    return Readings(counted[0], counted[1], counted[2], direct)
