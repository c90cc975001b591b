"""What becomes of each class's DSCP between two hosts: probes there and back, and what arrived.

A switch or tunnel that clears the DSCP fails nothing and reports nothing; the marks just stop to count. One
end answers (`verify --listen`), the other asks (`verify --peer`). UDP, because only there does the kernel say
what each packet carried; an answer is as long as its question, so that nobody can be flooded through it.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from netsched import marking
from netsched.errors import NetschedError, ScenarioError

PROBES: Final = 5
"""Packets for each class at a time."""
_WAIT_S: Final = 1.5
"""Longer than the second after which Linux asks again for a neighbour's address."""
_TICK_S: Final = 0.2
_MAGIC: Final = b"nsprobe1"
_PACKET: Final = struct.Struct("!8s8sBB")
"""Magic, a number that only this run knows, the TOS sent, the TOS that arrived (0 in a question)."""
_IP_RECVTOS: Final = 13


class VerifyError(NetschedError):
    """The other end could not be asked."""


@dataclass(frozen=True)
class Arrival:
    """What became of one class's probes.

    sent, answered  packets
    there, back     the DSCPs that arrived at the peer and here; sorted, without repetition
    """

    cls: int
    dscp: int
    sent: int
    answered: int
    there: tuple[int, ...]
    back: tuple[int, ...]

    @property
    def intact(self) -> bool:
        return self.answered > 0 and self.there == self.back == (self.dscp,)

    def __str__(self) -> str:
        name = marking.name_of(self.dscp)
        if not self.answered:
            return f"class {self.cls}: {name} gets no answer: this DSCP is dropped on the way"
        if self.intact:
            return f"class {self.cls}: {name} arrives, both ways ({self.answered} of {self.sent} answered)"
        ways = (("there", self.there), ("back", self.back))
        wrong = [f"{way} as {_names(seen)}" for way, seen in ways if seen != (self.dscp,)]
        return f"class {self.cls}: {name} arrives {' and '.join(wrong)}"


def _names(dscps: tuple[int, ...]) -> str:
    return " or ".join(map(marking.name_of, dscps))


def address(text: str, flag: str) -> tuple[str, int]:
    """(host, port) of "10.0.0.2:9470", "[fd00::2]:9470" or "name:9470". ScenarioError if it is none."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    good = port.isascii() and port.isdigit() and 1 <= int(port) <= 65535
    if not bare or not good or (":" in bare) != host.startswith("["):
        raise ScenarioError(f"{flag} {text!r}: write an address and a port, such as 10.0.0.2:9470")
    return bare, int(port)


def listen(where: tuple[str, int], stop: Callable[[], bool], ready: Callable[[], None]) -> int:
    """Answer probes at `where` until `stop`, asked a few times a second; the number of probes answered."""
    answered = 0
    with _open(where, bind=True) as sock:
        sock.settimeout(_TICK_S)
        ready()
        while not stop():
            try:
                data, tos, peer = _receive(sock)
            except TimeoutError:
                continue
            if len(data) == _PACKET.size and data.startswith(_MAGIC) and data[-1] == 0:
                # The answer carries the mark that was asked with, so that the way back is tried as well.
                _mark(sock, data[-2])
                # One asker whom this host cannot reach must not end the service for the others.
                with contextlib.suppress(OSError):
                    sock.sendto(data[:-1] + bytes([tos]), peer)
                    answered += 1
    return answered


def ask(peer: tuple[str, int], queues: int) -> list[Arrival]:
    """Send probes of every class to `peer`. VerifyError if nobody answers at all."""
    with _open(peer, bind=False) as sock:
        sock.settimeout(_TICK_S)
        found = [_ask_class(sock, cls, marking.dscp_of(cls, queues)) for cls in range(queues)]
    if not any(one.answered for one in found):
        raise VerifyError(
            f"--peer {peer[0]}:{peer[1]}: no answer: run netsched-agent verify --listen there, let UDP pass"
        )
    return found


def _ask_class(sock: socket.socket, cls: int, dscp: int) -> Arrival:
    run = secrets.token_bytes(8)
    tos = marking.tos_of(dscp)
    _mark(sock, tos)
    there, back, sent, answered = set(), set(), 0, 0
    try:
        # The first packets to a neighbour may be lost while its address is asked for: silence is asked again.
        while not answered and sent < 2 * PROBES:
            for _ in range(PROBES):
                sock.send(_PACKET.pack(_MAGIC, run, tos, 0))
            sent += PROBES
            end = time.monotonic() + _WAIT_S
            while answered < sent and time.monotonic() < end:
                try:
                    data, arrived, _ = _receive(sock)
                except TimeoutError:
                    continue
                if len(data) == _PACKET.size and data.startswith(_MAGIC + run):
                    there.add(marking.dscp_in(data[-1]))
                    back.add(marking.dscp_in(arrived))
                    answered += 1
                    # Probes that waited for an address together come together: the others are close behind.
                    end = max(end, time.monotonic() + _TICK_S)
    except OSError:
        # An ICMP error of an earlier probe, or a filter of this host: what was answered is what counts.
        pass
    return Arrival(cls, dscp, sent, answered, tuple(sorted(there)), tuple(sorted(back)))


def _open(where: tuple[str, int], *, bind: bool) -> socket.socket:
    flag = "--listen" if bind else "--peer"
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise VerifyError(f"{flag} {where[0]}:{where[1]}: {error.strerror or error}") from None
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVTOS, 1)
        (sock.bind if bind else sock.connect)(place)
    except OSError as error:
        sock.close()
        raise VerifyError(f"{flag} {where[0]}:{where[1]}: {error.strerror}") from None
    return sock


def _mark(sock: socket.socket, tos: int) -> None:
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)


def _receive(sock: socket.socket) -> tuple[bytes, int, tuple[str, int]]:
    """(packet, the TOS or traffic class byte with which it arrived, its sender)."""
    data, ancillary, _, peer = sock.recvmsg(_PACKET.size + 1, 64)
    tos = 0
    for level, kind, value in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS):
            tos = value[0]
        elif (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_TCLASS):
            tos = int(struct.unpack("=i", value[:4])[0])
    return data, tos, peer
