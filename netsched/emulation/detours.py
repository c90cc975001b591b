"""Routes over circuits: which addresses an end of the optical network reaches over which of its ports now.

An end is a packet switch or a host with ports on optical switches. While there is a circuit to another end,
all that goes to the hosts there takes it, by one route per address that counts before those over packet
switches, and so does what goes on from there over further circuits, if several in a row are allowed. When it
goes, the routes go, and connections carry on by the others. Nothing is told to the connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from netsched.emulation import configure
from netsched.netlink import open_netns


@dataclass(frozen=True)
class End:
    """One end. `addresses[c]` are those of the hosts there that take the c-th of several circuits.

    pid         the process that holds its network namespace
    interfaces  its port on each optical switch, "" for none
    tcp         whether it is a host, whose routes carry the settings of its TCP
    """

    pid: int
    interfaces: tuple[str, ...]
    addresses: tuple[tuple[str, ...], ...]
    tcp: bool


Ways = Mapping[tuple[int, int], Sequence[int]]
"""By (from, to): switches, ascending, with a circuit from one end towards the other, if not to it."""


class Detours:
    """The routes over circuits of all ends; none at first."""

    def __init__(self, ends: Sequence[End]) -> None:
        self._ends = tuple(ends)
        self._tables = [Table(end.pid, configure.OVER_CIRCUIT, tcp=end.tcp) for end in ends]
        self._index = [
            [table.index[name] if name else 0 for name in end.interfaces]
            for table, end in zip(self._tables, ends, strict=True)
        ]

    def close(self) -> None:
        for table in self._tables:
            table.close()

    def set(self, ways: Ways) -> None:
        """Let these be the circuits that routes lead over, and no others."""
        wanted: list[dict[str, int]] = [{} for _ in self._ends]
        for (src, dst), switches in ways.items():
            for choice, addresses in enumerate(self._ends[dst].addresses):
                port = self._index[src][switches[choice % len(switches)]]
                wanted[src].update(dict.fromkeys(addresses, port))
        for table, routes in zip(self._tables, wanted, strict=True):
            table.set(routes)


class Table:
    """The routes of one metric that a node has besides those that always stand: by address, the interface."""

    def __init__(self, pid: int, metric: int, *, tcp: bool) -> None:
        self._link = open_netns(pid)
        self._metric, self._tcp = metric, tcp
        self._standing: Mapping[str, int] = {}
        self.index = self._link.links()

    def close(self) -> None:
        self._link.close()

    def set(self, wanted: Mapping[str, int]) -> None:
        """Let these be the routes, and no others."""
        before = self._standing
        gone = [
            configure.no_detour(each, port, self._metric)
            for each, port in before.items()
            if each not in wanted
        ]
        new = [
            configure.detour(each, port, self._metric, tcp=self._tcp)
            for each, port in wanted.items()
            if before.get(each) != port
        ]
        self._link.transaction(gone + new)
        self._standing = wanted
