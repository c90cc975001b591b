"""Which IPv4 address means "host h by path p", and the routing table of a node that follows from it.

A path of the fabric is chosen by the destination address alone, so that ordinary longest-prefix routing in
every switch realises exactly the path that the simulator uses, and a socket picks its path by connecting
to the right alias.

    host h, path p  ->  10.p.(h+1 >> 8).(h+1 & 255)     a /32 alias on the host's first interface
    next hop        ->  169.254.0.1, on-link on every port, with a permanent neighbour entry of the peer

A fabric with S optical switches has S addresses per path, which differ only where there are several circuits
to the host: `routed_as`.

No address is ever resolved: there is no ARP and no multicast on an emulated link, only what was sent.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from netsched.errors import EmulationError
from netsched.model import Ints

NEXT_HOP: Final = "169.254.0.1"
Number = TypeVar("Number", int, Ints)

MAX_PATHS: Final = 256
MAX_HOSTS: Final = (1 << 16) - 2
_BASE: Final = 10 << 24


@dataclass(frozen=True)
class Route:
    """All destinations in `prefix`/`length` leave by fabric link `link`."""

    prefix: str
    length: int
    link: int


def routed_as(path: Number, choice: Number, n_optical: int) -> Number:
    """The number that an address carries for a path over packet switches and one of several circuits."""
    return path * max(n_optical, 1) + choice


def address(host: int, path: int) -> str:
    """The address of host ordinal `host` that is reached by path index `path` (see `routed_as`)."""
    return str(ipaddress.IPv4Address(_number(host, path)))


def _number(host: int, path: int) -> int:
    if not 0 <= host < MAX_HOSTS or not 0 <= path < MAX_PATHS:
        raise EmulationError(
            f"host {host}, path {path}: the emulation's address plan ends at "
            f"{MAX_HOSTS} hosts and {MAX_PATHS} paths"
        )
    return _BASE | path << 16 | (host + 1)


def routes(hops: Ints) -> list[Route]:
    """The routing table of a node whose next hop to (path, host) is link `hops[path, host]` (-1: itself).

    Neighbouring addresses with the same next hop share one prefix, so that a switch of a 128-host fabric
    with 64 paths needs hundreds of routes and not 8192. A prefix may cover addresses that no host has;
    nobody sends to them.
    """
    paths, hosts = np.nonzero(hops >= 0)
    if len(hosts):
        _number(int(hosts.max()), int(paths.max()))
    numbers = _BASE | paths.astype(np.int64) << 16 | (hosts + 1)
    return [
        Route(str(ipaddress.IPv4Address(base)), length, link)
        for base, length, link in _cover(numbers, hops[paths, hosts], _BASE, 8)
    ]


def _cover(numbers: Ints, links: Ints, base: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Disjoint prefixes below `base`/`length` that send each of `numbers` (ascending) to its link."""
    if len(numbers) == 0:
        return
    if (links == links[0]).all():
        yield base, length, int(links[0])
        return
    middle = base | 1 << (31 - length)
    cut = int(np.searchsorted(numbers, middle))
    yield from _cover(numbers[:cut], links[:cut], base, length + 1)
    yield from _cover(numbers[cut:], links[cut:], middle, length + 1)
