"""Faults of a scenario on the emulated network, at their times: cables down and up, rates, slow hosts.

A cable that is down loses what comes over it, in both directions, at the far end: whatever the queue before
it still sends. At the same time every node gets routes round it, by the rule of the simulator: an address of
a path that has lost a link is reached by the next path index that works from there. Connections know nothing
of it. A port's rate is changed in place, and what waits in its queues stays there.

An optical switch drops what comes over a cable that is down by itself: the process that sets it is told of
the cable, and takes the routes over its circuits away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netsched import ports, qdisc
from netsched.emulation import configure, redirects, wiring
from netsched.emulation.addresses import routed_as
from netsched.emulation.circuits import Controller
from netsched.emulation.detours import Table
from netsched.emulation.network import EmulatedNetwork
from netsched.emulation.redirects import Ports
from netsched.errors import EmulationError
from netsched.fabric import Fabric
from netsched.faults import DOWN, links_of
from netsched.ledger import Ledger
from netsched.model import Bools, Fault, Floats, Ints, Workload
from netsched.netlink import open_netns

_PORT, _NOWHERE = 0, 1
"""Places in the Ports of a far end: its own, and the loopback, which is given what it drops and counts."""


@dataclass
class Faults:
    """State of one run: `left` to come, `down` and bytes/s of each link (of the scenario) at present."""

    net: EmulatedNetwork
    left: list[Fault]
    hops: Ints
    down: Bools
    capacity: Floats
    tables: dict[int, Table] = field(default_factory=dict)
    lost_before: dict[str, int] = field(default_factory=dict)
    happened: int = 0

    def due(self) -> float:
        """When the next fault happens, in seconds of the run; inf for never."""
        return self.left[0].at if self.left else np.inf

    def happen(self, ledger: Ledger, workload: Workload, now: float) -> bool:
        """Let those that are due happen; whether the network has changed."""
        fabric, before, rates = self.net.fabric, self.down.copy(), self.capacity.copy()
        while self.due() <= now:
            fault = self.left.pop(0)
            self.happened += 1
            if fault.host is not None:
                rows = np.flatnonzero(workload.tasks.host == fabric.host_ordinal(fault.host))
                ledger.seconds[rows] = workload.tasks.seconds[rows] * fault.value
                continue
            links = links_of(fault, fabric)
            self.down[links] = fault.value == DOWN
            if fault.value != DOWN:
                self.capacity[links] = np.where(np.isinf(fault.value), fabric.capacity[links], fault.value)
        for link in np.flatnonzero(self.capacity != rates).tolist():
            _set_rate(self.net, link, float(self.capacity[link]))
        cut = np.flatnonzero(before != self.down)
        if len(cut):
            self._lead_round()
        for link in cut.tolist():
            if _ends_in_network(fabric, link):
                _cut(self.net, link, down=bool(self.down[link]))
        return bool(len(cut)) or not np.array_equal(rates, self.capacity)

    def _lead_round(self) -> None:
        """Routes round what is down, at every node that has a way round."""
        fabric = self.net.fabric
        instead = round_about(fabric, self.hops, self.down)
        n_optical = fabric.kinds.count("ocs")
        wanted: dict[int, dict[str, int]] = {node: {} for node in self.tables}
        for path, host, node in np.argwhere(instead >= 0).tolist():
            table = self._table(node)
            port = table.index[self.net.wires[int(instead[path, host, node])].interface]
            for choice in range(max(n_optical, 1)):
                address = self.net.address(host, routed_as(path, choice, n_optical))
                wanted.setdefault(node, {})[address] = port
        for node, routes in wanted.items():
            self._table(node).set(routes)

    def _table(self, node: int) -> Table:
        if node not in self.tables:
            name = self.net.fabric.nodes[node]
            is_host = node < len(self.net.fabric.hosts)
            self.tables[node] = Table(self.net.pid(name), configure.ROUND_FAULT, tcp=is_host)
        return self.tables[node]

    def readings(self, circuits: Controller | None = None) -> dict[str, Any]:
        """What became of them, for the result's `mechanisms`. `circuits`: of a run that has some."""
        lost = sum(_lost(self.net, node) - before for node, before in self.lost_before.items())
        lost += circuits.cut() if circuits is not None else 0
        return {"faults": self.happened, "fault_lost_frames": lost}


def faults_of(net: EmulatedNetwork, faults: Sequence[Fault]) -> Faults:
    """The faults of a run, none of which has happened. EmulationError for one that cannot be emulated."""
    fabric = net.fabric
    made = Faults(
        net=net,
        left=list(faults),
        hops=wiring.path_hops(fabric),
        down=np.zeros(fabric.n_links, bool),
        capacity=fabric.capacity.copy(),
    )
    fragile: set[int] = set()
    for fault in faults:
        if fault.link is None:
            continue
        links = links_of(fault, fabric)
        ends = fabric.link_src[links]
        where = " - ".join(fault.link)
        if fault.value not in (DOWN, np.inf) and (ends < len(fabric.hosts)).any():
            raise EmulationError(
                f"faults: {where}: the rate of a host's port is its agent's, and cannot be changed in the "
                "emulation: give the rate of a cable between switches"
            )
        if fault.value == DOWN:
            fragile.update(link for link in links.tolist() if _ends_in_network(fabric, link))
    for link in sorted(fragile):
        port = _far_end(net, link)
        with open_netns(port.pid) as kernel:
            redirects.prepare(kernel, Ports((kernel.links()[port.interface],)))
        made.lost_before[port.node] = _lost(net, port.node)
    return made


def round_about(fabric: Fabric, hops: Ints, down: Bools) -> Ints:
    """(paths, hosts, nodes) the link by which a node sends to (host, path) while its own way there is down.

    -1 where its own way works, or none does. `hops` is `wiring.path_hops`.
    """
    n_paths, n_hosts, n_nodes = hops.shape
    arrived = np.zeros((n_hosts, n_nodes), bool)
    arrived[np.arange(n_hosts), np.arange(n_hosts)] = True
    follow = np.where(hops >= 0, fabric.link_dst[hops], 0)
    passable = (hops >= 0) & ~down[hops]
    works = np.broadcast_to(arrived, hops.shape)
    for _ in range(n_nodes):
        further = arrived | (passable & np.take_along_axis(works, follow, axis=2))
        if np.array_equal(further, works):
            break
        works = further
    instead = np.full(hops.shape, -1, np.int64)
    for step in range(n_paths - 1, 0, -1):
        other = np.roll(hops, -step, axis=0)
        usable = ~works & (hops >= 0) & np.roll(works, -step, axis=0)
        instead[usable] = other[usable]
    return instead


def _set_rate(net: EmulatedNetwork, link: int, capacity: float) -> None:
    wire = net.wires[link]
    built = wire.tree(net.n_queues)
    rate = capacity / float(net.fabric.capacity[link]) * wire.rate
    if not qdisc.MIN_RATE <= rate <= qdisc.MAX_RATE:
        raise EmulationError(
            f"faults: port {wire.interface} would have {rate * 8e-6:.3g} Mbit/s after scaling: a port has "
            f"{qdisc.MIN_RATE * 8e-6:g} Mbit/s or more"
        )
    # The queues stay as long as they are: a shorter one would lose what is in it.
    tree = qdisc.port(
        round(rate), net.n_queues, frame=wiring.MTU + wiring.ETHERNET, limit=built.leaves[0].limit
    )
    with open_netns(wire.pid) as kernel:
        ports.apply(kernel, kernel.links()[wire.interface], tree)


def _ends_in_network(fabric: Fabric, link: int) -> bool:
    """Whether a link ends at a node that reads frames, and not at an optical switch."""
    return fabric.kinds[int(fabric.link_dst[link])] != "ocs"


def _far_end(net: EmulatedNetwork, link: int) -> wiring.Wire:
    """The port at which a link ends: that of the cable's other way."""
    return net.wires[link ^ 1]


def _cut(net: EmulatedNetwork, link: int, *, down: bool) -> None:
    port = _far_end(net, link)
    with open_netns(port.pid) as kernel:
        index = kernel.links()
        both = Ports((index[port.interface], index["lo"]))
        if down:
            redirects.change(kernel, both, [], [(_PORT, _NOWHERE)])
        else:
            redirects.change(kernel, both, [_PORT], [])


def _lost(net: EmulatedNetwork, node: str) -> int:
    with open_netns(net.pid(node)) as kernel:
        return redirects.lost(kernel, Ports((kernel.links()["lo"],)))[0]
