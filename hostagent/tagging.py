"""Marking one live TCP socket: its DSCP for the network, its priority for this host.

A mark on the socket changes the very next packet and dies with the connection, so that nothing is left
behind by a job that was killed. It works on any descriptor of the socket, whoever made it.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hostagent.protocol import Tagged
from netsched.marking import check_dscp, dscp_in, name_of, tos_of

BUSY: Final = "busy"
"""How the error of a socket begins that was left alone because it is sending."""
_IPPROTO_MPTCP: Final = 262
_SO_PROTOCOL: Final = 38
_SO_DOMAIN: Final = 39
_SO_COOKIE: Final = 57
MAX_PRIORITY: Final = 6
"""Largest SO_PRIORITY that needs no CAP_NET_ADMIN; larger values can name a class of an HTB directly."""


def tag(sock: socket.socket | int, dscp: int, priority: int = 0, *, even_busy: bool = False) -> Tagged:
    """Mark a TCP socket (or a descriptor of one, which stays open) and say what the kernel has afterwards.

    IP_TOS comes first and SO_PRIORITY last, because setting the TOS rewrites the priority by a table that
    knows nothing of DSCP (AF11 would sink to the lowest band): the default 0 restores the neutral one. On
    an IPv6 socket both IP_TOS and IPV6_TCLASS are set, since an IPv4-mapped peer sees the former. The ECN
    bits stay. A socket with bytes under way is left as it is unless `even_busy`: what follows would overtake
    them in another queue, which TCP takes for loss. Never raises for a bad socket: the reason is in the
    result. ValueError for a bad DSCP.
    """
    check_dscp(dscp)
    if not 0 <= priority <= MAX_PRIORITY:
        raise ValueError(f"priority = {priority}: a socket has 0 to {MAX_PRIORITY}")
    return _with_socket(sock, lambda s: _tag(s, dscp, priority, even_busy))


def tag_group(socks: Sequence[socket.socket | int], dscp: int, *, even_busy: bool = False) -> list[Tagged]:
    """Mark all of these sockets or none: a collective is as fast as the slowest of them.

    Every one is looked at before the first is touched. If the kernel refuses one nevertheless, the others get
    the marks back that they had, and their results say so.
    """
    check_dscp(dscp)
    checked = [_with_socket(sock, lambda s: _check(s, dscp, even_busy)) for sock in socks]
    if not all(one.ok for one in checked):
        return _none_of(checked, next(at for at, one in enumerate(checked) if not one.ok))
    before = [marks(sock) for sock in socks]
    done: list[Tagged] = []
    for sock in socks:
        done.append(tag(sock, dscp, even_busy=True))
        if not done[-1].ok:
            for touched, old in zip(socks[: len(done)], before, strict=False):
                put_back(touched, old)
            failed = len(done) - 1
            now = [read(other) for other in socks]
            return _none_of([*now[:failed], done[failed], *now[failed + 1 :]], failed)
    return done


def _none_of(found: Sequence[Tagged], failed: int) -> list[Tagged]:
    why = f"not marked, because socket {failed} of the group could not be"
    return [
        one if not one.ok else Tagged(False, one.dscp, one.priority, one.family, why)
        for at, one in enumerate(found)
    ]


def tag_here(fds: Sequence[int], dscp: int, whole: bool, even_busy: bool) -> list[Tagged]:
    """Mark one's own sockets, all or none if `whole`."""
    if whole:
        return tag_group(fds, dscp, even_busy=even_busy)
    return [tag(fd, dscp, even_busy=even_busy) for fd in fds]


def cookie(fd: int) -> int:
    """The kernel's number of the socket behind a descriptor, 0 if it is none."""
    try:
        with borrowed(fd) as sock:
            return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8), sys.byteorder)
    except OSError:
        return 0


@dataclass(frozen=True)
class Marks:
    """What of a socket a mark changes. `tclass` is None for IPv4."""

    tos: int
    tclass: int | None
    priority: int


def marks(sock: socket.socket | int) -> Marks | None:
    """The marks that a socket has now, to be put back later; None if they cannot be read."""
    try:
        with borrowed(sock) as own:
            family = check_tcp(own)
            tos = own.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)
            six = family == socket.AF_INET6
            tclass = own.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if six else None
            return Marks(tos, tclass, own.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY))
    except OSError:
        return None


def put_back(sock: socket.socket | int, old: Marks | None) -> bool:
    """Give a socket its earlier marks; whether the kernel took them."""
    if old is None:
        return False
    try:
        with borrowed(sock) as own:
            own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, old.tos)
            if old.tclass is not None:
                own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, old.tclass)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, old.priority)
    except OSError:
        return False
    return marks(sock) == old


def under_way(sock: socket.socket) -> int:
    """Bytes that a TCP socket has taken and its peer has not acknowledged."""
    try:
        return int(struct.unpack("=i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0  # a listening socket sends nothing


def is_busy(sock: socket.socket | int) -> bool:
    """Whether a TCP socket has bytes under way, so that its mark should stay for now."""
    with borrowed(sock) as own:
        return bool(under_way(own))


def read(sock: socket.socket | int) -> Tagged:
    """The marks that a TCP socket carries now; nothing is changed. `ok`: they could be read."""
    return _with_socket(sock, lambda s: _read(s, check_tcp(s)))


def _with_socket(sock: socket.socket | int, use: Callable[[socket.socket], Tagged]) -> Tagged:
    try:
        with borrowed(sock) as own:
            return use(own)
    except OSError as error:
        return Tagged(False, -1, -1, "", error.strerror or str(error))


@contextlib.contextmanager
def borrowed(sock: socket.socket | int) -> Iterator[socket.socket]:
    """A socket object for a descriptor, which stays open. OSError if it is none.

    Without a copy, since closing a copy may wait as long as closing the last one (see `closing`).
    """
    if not isinstance(sock, int):
        yield sock
        return
    own = socket.socket(fileno=sock)
    try:
        yield own
    finally:
        own.detach()


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


def _tag(sock: socket.socket, dscp: int, priority: int, even_busy: bool) -> Tagged:
    family = check_tcp(sock)
    old = sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)
    old6 = sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if family == socket.AF_INET6 else old
    if not even_busy and {dscp_in(old), dscp_in(old6)} != {dscp} and (waiting := under_way(sock)):
        return _busy(_read(sock, family), waiting)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos_of(dscp, old))
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos_of(dscp, old6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
    now = _read(sock, family)
    if now.dscp != dscp:
        return Tagged(False, now.dscp, now.priority, now.family, f"the kernel kept {name_of(now.dscp)}")
    if now.priority != priority:
        return Tagged(False, now.dscp, now.priority, now.family, f"the kernel kept priority {now.priority}")
    return now


def _check(sock: socket.socket, dscp: int, even_busy: bool) -> Tagged:
    """What `_tag` would say before it writes anything."""
    now = _read(sock, check_tcp(sock))
    if not even_busy and now.dscp != dscp and (waiting := under_way(sock)):
        return _busy(now, waiting)
    return Tagged(True, now.dscp, now.priority, now.family)


def _busy(now: Tagged, waiting: int) -> Tagged:
    text = f"{BUSY}: {waiting} bytes are under way; ask again between two iterations"
    return Tagged(False, now.dscp, now.priority, now.family, text)


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
