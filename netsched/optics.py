"""The optical side of a fabric: its ends, the ports they have on which switch, and the links of a circuit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netsched.errors import ScenarioError
from netsched.fabric import Fabric
from netsched.model import Bools, Connections, Floats, Ints, Transport, Workload
from netsched.routing import spread

NO_LINK = -1

NO_HOST = -1
"""In place of a host where a way begins or ends at an end."""


@dataclass(frozen=True)
class Optics:
    """S optical switches and the E ends that are cabled to them. An end is a packet switch or a host.

    nodes        (S,) node of each switch;  ends  (E,) node of each end
    up, down     (S, E) link from an end to a switch and back, -1 for none
    rate         (S, E) bytes/s of the port, the lesser way's; 0 for none
    packet_rate  (E,) bytes/s from an end to packet switches
    delay        (S,) seconds dark;  all_stop  (S,) whether all circuits are dark while some are set up
    end_of_host  (H,) the end that a host is, or is behind; -1 for none
    access       (H, 2) link from a host to its end and back, -1 for a host that is one
    """

    nodes: Ints
    ends: Ints
    up: Ints
    down: Ints
    rate: Floats
    packet_rate: Floats
    delay: Floats
    all_stop: Bools
    end_of_host: Ints
    access: Ints

    def circuit(self, src: int, dst: int, chain: tuple[tuple[int, int, int], ...]) -> list[int]:
        """Links from host `src` to host `dst` over a chain of circuits (switch, from end, to end).

        NO_HOST stands for the end at which the chain begins or ends.
        """
        middle = [link for s, i, j in chain for link in (int(self.up[s, i]), int(self.down[s, j]))]
        first = NO_LINK if src == NO_HOST else int(self.access[src, 0])
        last = NO_LINK if dst == NO_HOST else int(self.access[dst, 1])
        return [link for link in (first, *middle, last) if link != NO_LINK]


def optics_of(fabric: Fabric) -> Optics | None:
    """The optical side of the fabric, None where it has none.

    A host with several ends is behind that of its lowest port. ScenarioError where an end has two cables to
    one optical switch, or two optical switches are cabled to each other.
    """
    kinds = np.array(fabric.kinds)
    nodes = np.flatnonzero(kinds == "ocs")
    if not len(nodes):
        return None
    src, dst = fabric.link_src, fabric.link_dst
    optical = kinds == "ocs"
    if (optical[src] & optical[dst]).any():
        raise ScenarioError(f"fabric {fabric.name}: two optical switches are cabled; put an end between them")
    upward = np.flatnonzero(optical[dst])
    ends = np.unique(src[upward])
    number = np.full(len(kinds), -1, np.int64)
    number[ends] = np.arange(len(ends))
    number[nodes] = np.arange(len(nodes))
    up = np.full((len(nodes), len(ends)), NO_LINK, np.int64)
    place = number[dst[upward]], number[src[upward]]
    up[place] = upward
    if np.count_nonzero(up >= 0) < len(upward):
        raise ScenarioError(f"fabric {fabric.name}: an end has two cables to one optical switch; give it one")
    down = np.where(up >= 0, up ^ 1, NO_LINK)
    rate = np.where(up >= 0, np.minimum(fabric.capacity[up], fabric.capacity[down]), 0.0)
    n_hosts = len(fabric.hosts)
    packets = fabric.packet_links
    onward = packets[(number[src[packets]] >= 0) & (dst[packets] >= n_hosts)]
    end_of_host, access = _behind(fabric, number, n_hosts)
    return Optics(
        nodes=nodes,
        ends=ends,
        up=up,
        down=down,
        rate=rate,
        packet_rate=np.bincount(number[src[onward]], fabric.capacity[onward], len(ends)).astype(np.float64),
        delay=np.array([each.delay for each in fabric.switching]),
        all_stop=np.array([each.all_stop for each in fabric.switching]),
        end_of_host=end_of_host,
        access=access,
    )


def no_optics(fabric: Fabric) -> Optics:
    """The optical side of a fabric without one, or with one that nobody uses."""
    n = len(fabric.hosts)
    none, grid = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
    return Optics(
        nodes=none,
        ends=none,
        up=grid,
        down=grid.copy(),
        rate=np.zeros((0, 0)),
        packet_rate=np.zeros(0),
        delay=np.zeros(0),
        all_stop=np.zeros(0, bool),
        end_of_host=np.full(n, -1, np.int64),
        access=np.full((n, 2), NO_LINK, np.int64),
    )


def _behind(fabric: Fabric, number: Ints, n_hosts: int) -> tuple[Ints, Ints]:
    """Each host's end and the links between them. Packet links only: the others lead to optical switches."""
    end_of_host = number[:n_hosts].copy()
    access = np.full((n_hosts, 2), NO_LINK, np.int64)
    packets = fabric.packet_links
    src, dst, port = fabric.link_src[packets], fabric.link_dst[packets], fabric.link_port[packets]
    rows = np.flatnonzero((src < n_hosts) & (number[dst] >= 0))
    rows = rows[np.lexsort((-port[rows], src[rows]))]  # the lowest port last, which then stays
    rows = rows[number[src[rows]] < 0]
    end_of_host[src[rows]] = number[dst[rows]]
    access[src[rows], 0] = packets[rows]
    access[src[rows], 1] = packets[rows] ^ 1
    return end_of_host, access


def host_ports(workload: Workload, fabric: Fabric) -> tuple[Floats, Ints, Ints]:
    """What bounds a flow whatever way it takes: all ports of its source, and all of its destination.

    Bytes/s that each host can send, then that each can receive, (2H,); and of each flow as CSR (indptr,
    links) those two, none for a flow from a host to itself that is no traffic.
    """
    n = len(fabric.hosts)
    capacity = np.concatenate(
        [
            np.bincount(ends[ends < n], fabric.capacity[ends < n], n)
            for ends in (fabric.link_src, fabric.link_dst)
        ]
    )
    flows = workload.flows
    crosses = (flows.src != flows.dst) | workload.hairpin
    indptr = np.concatenate([[0], np.cumsum(2 * crosses)])
    return capacity, indptr, np.column_stack((flows.src, n + flows.dst))[crosses].ravel()


def choices(workload: Workload, transport: Transport) -> npt.NDArray[np.uint64]:
    """(F,) number by which a flow picks one of several circuits of its pair: a hash of its ids."""
    flows = workload.flows
    per_flow = transport.connections is Connections.PER_FLOW
    salt = np.arange(workload.n_flows) if per_flow else np.zeros(workload.n_flows, np.int64)
    return spread(salt, workload.coflows.job[flows.coflow], flows.src, flows.dst)
