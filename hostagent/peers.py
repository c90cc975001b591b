"""Who is at the other end of a Unix socket, by the kernel's word.

SO_PEERCRED has the user and the process number of whoever connected, as they were then. The number may since
have become another process's: whoever ended may have left the connection to a child. From Linux 6.5 on
SO_PEERPIDFD gives a handle on the very process, by which that is told.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from netsched.errors import CapabilityError

SO_PEERPIDFD: Final = 77
"""asm-generic/socket.h; the same on x86, Arm, RISC-V, POWER and s390."""
_CRED: Final = struct.Struct("=iII")
_INT: Final = struct.Struct("=i")


@dataclass(frozen=True)
class Peer:
    """Whoever connected, at that time."""

    pid: int
    uid: int
    gid: int


def of(sock: socket.socket) -> Peer:
    """The peer of a connected Unix socket, or who listens at the address of one that connected. OSError."""
    return Peer(*_CRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CRED.size)))


def pid_now(sock: socket.socket, peer: Peer) -> int:
    """The number of the process that connected; 0 if it has ended, or has none in our process namespace.

    A kernel before 6.5 cannot say whether it has: the number is then that of the connecting.
    """
    try:
        handle = _handle(sock)
    except CapabilityError:
        return peer.pid
    except OSError:
        return 0
    try:
        return max(0, _number(handle))
    finally:
        os.close(handle)


def check() -> None:
    """CapabilityError unless this kernel has SO_PEERPIDFD."""
    one, two = socket.socketpair()
    with one, two:
        os.close(_handle(one))


def _handle(sock: socket.socket) -> int:
    try:
        return int(_INT.unpack(sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, _INT.size))[0])
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            raise CapabilityError("peer pidfd: this kernel has no SO_PEERPIDFD: Linux 6.5 or later") from None
        raise


def _number(handle: int) -> int:
    """The number of a pidfd's process; -1 if it has ended, 0 if it cannot be seen from here."""
    lines = Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Pid:")))
