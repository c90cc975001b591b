"""Marking one live TCP socket: its DSCP for the network, its priority for this host.

A mark on the socket changes the very next packet and dies with the connection, so that nothing is left
behind by a job that was killed. It works on any descriptor of the socket, whoever made it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final

from hostagent.protocol import Tagged
from netsched.marking import check_dscp, dscp_in, name_of, tos_of

_IPPROTO_MPTCP: Final = 262
_SO_PROTOCOL: Final = 38
_SO_DOMAIN: Final = 39
MAX_PRIORITY: Final = 6
"""Largest SO_PRIORITY that needs no CAP_NET_ADMIN; larger values can name a class of an HTB directly."""


def tag(sock: socket.socket | int, dscp: int, priority: int = 0) -> Tagged:
    """Mark a TCP socket (or a descriptor of one, which stays open) and say what the kernel has afterwards.

    IP_TOS comes first and SO_PRIORITY last, because setting the TOS rewrites the priority by a table that
    knows nothing of DSCP (AF11 would sink to the lowest band): the default 0 restores the neutral one. On
    an IPv6 socket both IP_TOS and IPV6_TCLASS are set, since an IPv4-mapped peer sees the former. The ECN
    bits stay. Never raises for a bad socket: the reason is in the result. ValueError for a bad DSCP.
    """
    check_dscp(dscp)
    if not 0 <= priority <= MAX_PRIORITY:
        raise ValueError(f"priority = {priority}: a socket has 0 to {MAX_PRIORITY}")
    return _with_socket(sock, lambda s: _tag(s, dscp, priority))


def read(sock: socket.socket | int) -> Tagged:
    """The marks that a TCP socket carries now; nothing is changed. `ok`: they could be read."""
    return _with_socket(sock, lambda s: _read(s, check_tcp(s)))


def _with_socket(sock: socket.socket | int, use: Callable[[socket.socket], Tagged]) -> Tagged:
    try:
        if not isinstance(sock, int):
            return use(sock)
        # socket(fileno=) would close the caller's descriptor in the end.
        with socket.socket(fileno=os.dup(sock)) as own:
            return use(own)
    except OSError as error:
        return Tagged(False, -1, -1, "", error.strerror or str(error))


class NotTcpError(OSError):
    """The descriptor is not a TCP socket over IPv4 or IPv6."""


def check_tcp(sock: socket.socket) -> int:
    """The address family of a TCP socket. NotTcpError for any other kind."""
    domain = sock.getsockopt(socket.SOL_SOCKET, _SO_DOMAIN)
    kind = sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    protocol = sock.getsockopt(socket.SOL_SOCKET, _SO_PROTOCOL)
    tcp = kind == socket.SOCK_STREAM and protocol in (socket.IPPROTO_TCP, _IPPROTO_MPTCP)
    if domain not in (socket.AF_INET, socket.AF_INET6) or not tcp:
        raise NotTcpError(0, "not a TCP socket over IPv4 or IPv6")
    return domain


def _tag(sock: socket.socket, dscp: int, priority: int) -> Tagged:
    family = check_tcp(sock)
    old = sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos_of(dscp, old))
    if family == socket.AF_INET6:
        old = sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos_of(dscp, old))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
    now = _read(sock, family)
    if now.dscp != dscp:
        return Tagged(False, now.dscp, now.priority, now.family, f"the kernel kept {name_of(now.dscp)}")
    if now.priority != priority:
        return Tagged(False, now.dscp, now.priority, now.family, f"the kernel kept priority {now.priority}")
    return now


def _read(sock: socket.socket, family: int) -> Tagged:
    priority = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)
    dscp = dscp_in(sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS))
    if family == socket.AF_INET:
        return Tagged(True, dscp, priority, "ipv4")
    dscp6 = dscp_in(sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS))
    mapped = _is_mapped(sock)
    if dscp != dscp6:
        both = f"IP_TOS has {name_of(dscp)} and IPV6_TCLASS {name_of(dscp6)}"
        return Tagged(False, dscp if mapped else dscp6, priority, "ipv4-mapped" if mapped else "ipv6", both)
    return Tagged(True, dscp, priority, "ipv4-mapped" if mapped else "ipv6")


def _is_mapped(sock: socket.socket) -> bool:
    try:
        return str(sock.getpeername()[0]).startswith("::ffff:")
    except OSError:
        return False
