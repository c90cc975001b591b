"""Interfaces up, neighbours, addresses and routes of one node, as requests to the kernel.

Encoded here and not by pyroute2, which drops metrics that it cannot place without a word and needs five
times as long: a 128-host fat-tree has 30,000 routes.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Final

from netsched.emulation.addresses import NEXT_HOP, Route
from netsched.errors import CapabilityError, EmulationError
from netsched.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Netlink,
    NetlinkError,
    Request,
    attribute,
)

CONGESTION_CONTROL: Final = "cubic"
RTO_MIN_MS: Final = 40
"""Least retransmission timeout of a host: Linux's 200 ms is as long as a whole stage, and a few milliseconds
would fire for every segment that waits behind more urgent ones."""

_NEWLINK, _NEWADDR, _NEWROUTE, _DELROUTE, _NEWNEIGH = 16, 20, 24, 25, 28
_IFF_UP: Final = 1
_IFLA_MTU: Final = 4
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_NDA_DST, _NDA_LLADDR = 1, 2
_NUD_PERMANENT: Final = 0x80
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_METRICS = 1, 4, 5, 6, 8
_RTAX_LOCK, _RTAX_RTO_MIN, _RTAX_CC_ALGO = 1, 13, 16
_TABLE_MAIN, _PROTOCOL_STATIC, _UNICAST, _ONLINK = 254, 4, 1, 4
_NEW: Final = NLM_F_CREATE | NLM_F_EXCL

_ORDINARY = 100
OVER_CIRCUIT: Final = 50
ROUND_FAULT: Final = 75
"""Metrics: routes that always stand, over circuits, round what is down. Of equal prefixes the less counts."""

_TCP_METRICS: Final = b"".join(
    (
        # A least timeout counts only where its metric is locked.
        attribute(_RTAX_LOCK, struct.pack("=I", 1 << _RTAX_RTO_MIN)),
        attribute(_RTAX_RTO_MIN, struct.pack("=I", RTO_MIN_MS)),
        # BBR, some machines' default, paces itself and would decide what our queues should decide. By
        # route, as a namespace's sysctl takes only what the machine's tcp_allowed_congestion_control lists.
        attribute(_RTAX_CC_ALGO, CONGESTION_CONTROL.encode() + b"\0"),
    )
)


def set_up(link: Netlink, index: int, mtu: int | None = None) -> None:
    """Switches an interface on."""
    head = struct.pack("=BxHiII", 0, 0, index, _IFF_UP, _IFF_UP)
    link.request(_NEWLINK, head + (attribute(_IFLA_MTU, struct.pack("=I", mtu)) if mtu else b""))


def add_neighbour(link: Netlink, index: int, mac: str) -> None:
    """Who answers to NEXT_HOP on this port, for ever: nobody is asked."""
    head = struct.pack("=BBHiHBB", socket.AF_INET, 0, 0, index, _NUD_PERMANENT, 0, 0)
    peer = attribute(_NDA_DST, socket.inet_aton(NEXT_HOP)) + attribute(
        _NDA_LLADDR, bytes.fromhex(mac.replace(":", ""))
    )
    link.request(_NEWNEIGH, head + peer, _NEW)


def add_addresses(link: Netlink, index: int, addresses: Iterable[str]) -> None:
    head = struct.pack("=BBBBi", socket.AF_INET, 32, 0, 0, index)
    for address in addresses:
        raw = socket.inet_aton(address)
        link.request(_NEWADDR, head + attribute(_IFA_LOCAL, raw) + attribute(_IFA_ADDRESS, raw), _NEW)


def add_routes(link: Netlink, routes: Iterable[Route], index_of: Mapping[int, int], *, tcp: bool) -> None:
    """Routes over the ports whose interface index `index_of` gives by fabric link.

    `tcp`: with the settings of a host's TCP. CapabilityError if the kernel lacks the congestion control.
    """
    for route in routes:
        try:
            link.request(_NEWROUTE, _route(route, index_of[route.link], _ORDINARY, tcp=tcp), _NEW)
        except NetlinkError as error:
            if tcp and error.errno == errno.EINVAL and "congestion" in str(error):
                raise CapabilityError(
                    f"TCP {CONGESTION_CONTROL!r} is not available ({error}): modprobe tcp_cubic, "
                    "or a kernel with CONFIG_TCP_CONG_CUBIC"
                ) from error
            raise EmulationError(f"route {route.prefix}/{route.length}: {error}") from error


def detour(address: str, index: int, metric: int, *, tcp: bool) -> Request:
    """From now on this address is reached over the interface, whatever routes of more metric say."""
    return Request(
        _NEWROUTE, _route(Route(address, 32, -1), index, metric, tcp=tcp), NLM_F_CREATE | NLM_F_REPLACE
    )


def no_detour(address: str, index: int, metric: int) -> Request:
    """The address is reached again as the other routes say."""
    return Request(_DELROUTE, _route(Route(address, 32, -1), index, metric, tcp=False))


def _route(route: Route, index: int, metric: int, *, tcp: bool) -> bytes:
    head = struct.pack(
        "=8BI", socket.AF_INET, route.length, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, 0, _UNICAST, _ONLINK
    )
    return b"".join(
        (
            head,
            attribute(_RTA_DST, socket.inet_aton(route.prefix)),
            attribute(_RTA_GATEWAY, socket.inet_aton(NEXT_HOP)),
            attribute(_RTA_OIF, struct.pack("=I", index)),
            attribute(_RTA_PRIORITY, struct.pack("=I", metric)),
            attribute(_RTA_METRICS, _TCP_METRICS) if tcp else b"",
        )
    )
