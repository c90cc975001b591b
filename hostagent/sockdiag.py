"""Every TCP socket of a network namespace with the marks that it carries, asked of the kernel.

What a job asked for and what its sockets carry may differ: it can change them itself at any time.
Source: linux/inet_diag.h (INET_DIAG_TOS and INET_DIAG_TCLASS) and linux/sock_diag.h.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from netsched.marking import dscp_in
from netsched.netlink import Netlink, attributes

_NETLINK_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_TOS, _TCLASS, _CGROUP = 5, 6, 21
_WANTED: Final = 1 << (_TOS - 1) | 1 << (_TCLASS - 1)
_TIME_WAIT, _CLOSE, _LISTEN = 6, 7, 10
_ALIVE: Final = 0xFFF & ~(1 << _TIME_WAIT | 1 << _CLOSE | 1 << _LISTEN)
"""Bit mask of TCP states: a socket in TIME_WAIT has the cookie of the one that ended, but no marks."""
_REQUEST: Final = struct.Struct("=BBBxI48x")
_COOKIE: Final = struct.Struct("=II")
_ANSWER: Final = struct.Struct("=BBBB 2s2s16s16sI8s IIIII")


@dataclass(frozen=True)
class Found:
    """One connected socket. `cookie` is the kernel's number of it, never used twice; `dscp` governs the wire.

    local, peer  (address, port); a mapped IPv4 address is shown as IPv4
    cgroup       number of its control group, 0 if the kernel does not say
    waiting      bytes that it has taken and the peer has not acknowledged
    """

    cookie: int
    family: str
    local: tuple[str, int]
    peer: tuple[str, int]
    uid: int
    dscp: int
    waiting: int = 0
    cgroup: int = 0


def sockets() -> list[Found]:
    """The connected TCP sockets of the calling thread's network namespace. Needs no privilege."""
    return [_found(payload) for payload in _dump(_WANTED)]


def cookies() -> set[int]:
    """Their cookies alone: what a list of thousands is wanted for most often, at a tenth of the time."""
    return {low | high << 32 for low, high in (_COOKIE.unpack_from(payload, 44) for payload in _dump(0))}


def _dump(extensions: int) -> Iterator[bytes]:
    with Netlink(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)) as link:
        for family in (socket.AF_INET, socket.AF_INET6):
            yield from link.dump(_BY_FAMILY, _REQUEST.pack(family, socket.IPPROTO_TCP, extensions, _ALIVE))


def _found(payload: bytes) -> Found:
    family, _, _, _, sport, dport, source, target, _, cookie, *rest = _ANSWER.unpack_from(payload)
    _, _, waiting, uid, _ = rest
    about = attributes(payload[_ANSWER.size :])
    tos, tclass = (about.get(kind, b"\0")[0] for kind in (_TOS, _TCLASS))
    name = "ipv4"
    if family == socket.AF_INET:
        local, peer = socket.inet_ntop(family, source[:4]), socket.inet_ntop(family, target[:4])
    else:
        mapped = ipaddress.IPv6Address(target).ipv4_mapped
        name = "ipv6" if mapped is None else "ipv4-mapped"
        local, peer = (_show(address) for address in (source, target))
    ports = (int.from_bytes(port, "big") for port in (sport, dport))
    low, high = _COOKIE.unpack(cookie)
    return Found(
        cookie=high << 32 | low,
        family=name,
        local=(local, next(ports)),
        peer=(peer, next(ports)),
        uid=uid,
        dscp=dscp_in(tclass if name == "ipv6" else tos),
        waiting=waiting,
        cgroup=int.from_bytes(about.get(_CGROUP, b""), sys.byteorder),
    )


def _show(address: bytes) -> str:
    parsed = ipaddress.IPv6Address(address)
    return str(parsed.ipv4_mapped or parsed)
