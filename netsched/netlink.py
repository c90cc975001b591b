"""A route-netlink socket, in this network namespace or another: send a request, collect a dump.

Our own, because pyroute2 0.9 cannot encode what a port needs: a kind that it does not know (bfifo) is
silently moved to the root, it cannot say which link layer an HTB class has, and its event loop fails
inside another one. It also takes 0.2 s to import and a child process for each namespace.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from netsched.errors import CapabilityError, NetschedError

NLM_F_REQUEST: Final = 0x1
NLM_F_ACK: Final = 0x4
NLM_F_DUMP: Final = 0x300
NLM_F_REPLACE: Final = 0x100
NLM_F_EXCL: Final = 0x200
NLM_F_CREATE: Final = 0x400
_NLM_F_DUMP_INTR: Final = 0x10
_NLM_F_CAPPED: Final = 0x100
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_RTM_GETLINK: Final = 18
_IFLA_IFNAME: Final = 3
_IFLA_MTU: Final = 4
_IFLA_LINKINFO: Final = 18
_IFLA_INFO_KIND: Final = 1
_SOL_NETLINK: Final = 270
_NETLINK_CAP_ACK: Final = 10
_NETLINK_EXT_ACK: Final = 11
_CLONE_NEWNET: Final = 0x40000000
_HEADER: Final = struct.Struct("=IHHII")
_DUMP_ATTEMPTS: Final = 5
_TIMEOUT_S: Final = 10.0


class NetlinkError(NetschedError):
    """The kernel refused a request. `errno` is its reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"kernel: {os.strerror(code)}{f' ({text})' if text else ''}")
        self.errno = code


def attribute(kind: int, payload: bytes) -> bytes:
    """One netlink attribute, padded to 4 bytes."""
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes in `data`, by type (nested and byte-order flags removed)."""
    found = {}
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


@dataclass(frozen=True)
class Request:
    """One change for `Netlink.transaction`: type, body and flags of its message."""

    message: int
    body: bytes
    flags: int = 0


@dataclass(frozen=True)
class Interface:
    """`mtu` in bytes; `kind` is the kernel's word ("veth", "bond", ...), "" for hardware."""

    index: int
    mtu: int
    kind: str


class Netlink:
    """An open route-netlink socket; a context manager. One thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sequence = itertools.count(1)
        self.operations = 0
        """How many requests that change something have been sent."""
        sock.settimeout(_TIMEOUT_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sock.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        sock.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        sock.bind((0, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    def request(self, message: int, body: bytes, flags: int = 0) -> None:
        """Ask for one change and wait for the kernel's verdict. NetlinkError if it refuses."""
        self.operations += 1
        sequence = self._send(message, NLM_F_REQUEST | NLM_F_ACK | flags, body)
        for kind, head_flags, payload in self._receive(sequence):
            if kind == _NLMSG_ERROR:
                _raise_if_error(head_flags, payload)
                return

    def transaction(self, requests: Sequence[Request]) -> None:
        """Ask for many changes with one message: the kernel makes them in order, without us in between.

        Each is tried, whatever becomes of the others. NetlinkError for the first that is refused.
        """
        if not requests:
            return
        self.operations += len(requests)
        numbers = [next(self._sequence) for _ in requests]
        flags = NLM_F_REQUEST | NLM_F_ACK
        self._sock.send(
            b"".join(
                _message(each.message, flags | each.flags, number, each.body)
                for number, each in zip(numbers, requests, strict=True)
            )
        )
        verdicts = [next(self._receive(number)) for number in numbers]
        for _, head_flags, payload in verdicts:
            _raise_if_error(head_flags, payload)

    def get(self, message: int, body: bytes) -> bytes:
        """The one answer to a question. NetlinkError if the kernel does not give it."""
        sequence = self._send(message, NLM_F_REQUEST, body)
        kind, head_flags, payload = next(self._receive(sequence))
        if kind == _NLMSG_ERROR:
            _raise_if_error(head_flags, payload)
        return payload

    def dump(self, message: int, body: bytes) -> list[bytes]:
        """All answers to a dump request, repeated if the kernel says that the table changed meanwhile."""
        for _ in range(_DUMP_ATTEMPTS):
            sequence = self._send(message, NLM_F_REQUEST | NLM_F_DUMP, body)
            answers, consistent = [], True
            for kind, head_flags, payload in self._receive(sequence):
                consistent &= not head_flags & _NLM_F_DUMP_INTR
                if kind == _NLMSG_ERROR:
                    _raise_if_error(head_flags, payload)
                    break
                if kind == _NLMSG_DONE:
                    break
                answers.append(payload)
            if consistent:
                return answers
        raise NetlinkError(errno.EAGAIN, f"the table changed during each of {_DUMP_ATTEMPTS} dumps")

    def interfaces(self) -> dict[str, Interface]:
        """Every interface of the namespace, by name."""
        found = {}
        for payload in self.dump(_RTM_GETLINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0)):
            index: int = struct.unpack_from("=i", payload, 4)[0]
            about = attributes(payload[16:])
            kind = attributes(about.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND, b"")
            mtu: int = struct.unpack("=I", about[_IFLA_MTU])[0]
            found[_text(about[_IFLA_IFNAME])] = Interface(index, mtu, _text(kind))
        return found

    def links(self) -> dict[str, int]:
        """Index of every interface of the namespace, by name."""
        return {name: interface.index for name, interface in self.interfaces().items()}

    def _send(self, message: int, flags: int, body: bytes) -> int:
        sequence = next(self._sequence)
        self._sock.send(_message(message, flags, sequence, body))
        return sequence

    def _receive(self, sequence: int) -> Iterator[tuple[int, int, bytes]]:
        """Messages that answer request `sequence`, for as long as the caller wants more of them."""
        while True:
            try:
                data = self._sock.recv(1 << 18)
            except TimeoutError:
                raise NetlinkError(errno.ETIMEDOUT, f"no answer within {_TIMEOUT_S:.0f} s") from None
            except OSError as error:
                # ENOBUFS: answers were lost. Whoever asked may ask again; it is no end of the program.
                raise NetlinkError(error.errno or errno.EIO, "the answer was lost") from None
            at = 0
            while at + _HEADER.size <= len(data):
                length, kind, flags, answered, _ = _HEADER.unpack_from(data, at)
                if answered == sequence:
                    yield kind, flags, data[at + _HEADER.size : at + length]
                at += (length + 3) & ~3


def _message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    padded = body + bytes(-len(body) % 4)
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + padded


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _raise_if_error(flags: int, payload: bytes) -> None:
    code = -struct.unpack_from("=i", payload)[0]
    if code == 0:
        return
    # CAP_ACK leaves only the request's header (16 bytes) between the code and the attributes.
    text = _text(attributes(payload[20:]).get(1, b""))
    if code in (errno.EPERM, errno.EACCES):
        raise CapabilityError(f"kernel: {os.strerror(code)}: CAP_NET_ADMIN is needed: run as root")
    raise NetlinkError(code, text)


def open_netns(where: int | str | Path | None = None) -> Netlink:
    """A netlink socket in the namespace of process `where`, at path `where`, or (None) in our own.

    Only a thread that ends at once enters the namespace: the caller stays where it is, no child process
    and no descriptor but the socket remains. CapabilityError without the right to enter, OSError's
    reason in a NetschedError if there is no such namespace.
    """
    path = f"/proc/{where}/ns/net" if isinstance(where, int) else where
    made: list[socket.socket | OSError] = []

    def enter() -> None:
        try:
            if path is not None:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                finally:
                    os.close(descriptor)
            made.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=enter, name="open_netns")
    thread.start()
    thread.join()
    outcome = made[0]
    if isinstance(outcome, PermissionError):
        raise CapabilityError(f"network namespace {path}: {outcome.strerror}: run as root")
    if isinstance(outcome, OSError):
        raise NetschedError(f"network namespace {path}: {outcome.strerror}")
    return Netlink(outcome)
