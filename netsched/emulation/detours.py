"""Routes over circuits: which addresses an end of the optical network reaches over which of its ports now.

An end is a packet switch or a host with ports on optical switches. While there is a circuit to another end,
all that goes to the hosts there takes it, by one route per address that counts before those over packet
switches; when it goes, the routes go, and connections carry on by the others. Nothing is told to the
connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from netsched.emulation import configure
from netsched.netlink import Netlink, Request, open_netns


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
"""The switches that have a circuit from one end to another, ascending, by (from, to)."""


class Detours:
    """The routes over circuits of all ends; none at first."""

    def __init__(self, ends: Sequence[End]) -> None:
        self._ends = tuple(ends)
        self._links = [open_netns(end.pid) for end in ends]
        self._index = [_indexes(link, end) for link, end in zip(self._links, ends, strict=True)]
        self._standing: list[dict[str, int]] = [{} for _ in ends]

    def close(self) -> None:
        for link in self._links:
            link.close()

    def set(self, ways: Ways) -> None:
        """Let these be the circuits that routes lead over, and no others."""
        wanted: list[dict[str, int]] = [{} for _ in self._ends]
        for (src, dst), switches in ways.items():
            for choice, addresses in enumerate(self._ends[dst].addresses):
                port = self._index[src][switches[choice % len(switches)]]
                wanted[src].update(dict.fromkeys(addresses, port))
        for number, end in enumerate(self._ends):
            before, after = self._standing[number], wanted[number]
            gone = [configure.no_detour(each, before[each]) for each in before if each not in after]
            new = [
                configure.detour(each, port, tcp=end.tcp)
                for each, port in after.items()
                if before.get(each) != port
            ]
            changes: list[Request] = gone + new
            self._links[number].transaction(changes)
            self._standing[number] = after


def _indexes(link: Netlink, end: End) -> list[int]:
    found = link.links()
    return [found[name] if name else 0 for name in end.interfaces]
