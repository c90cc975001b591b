"""One owner of queues for each network namespace, by a name that the kernel frees when its owner dies.

An abstract Unix socket's name belongs to a network namespace, as queues do, so neither a lock file nor a
process number has to be believed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import Final

from hostagent import peers
from netsched.errors import NetschedError

_CAP_NET_ADMIN: Final = 12
NAME: Final = "\0netsched-agent/queues"


class ClaimedError(NetschedError):
    """Another agent owns the queues of this network namespace. `pid` and `uid` are its own."""

    exit_code = 3

    def __init__(self, pid: int, uid: int) -> None:
        super().__init__(
            f"another agent (process {pid}, user {uid}) owns this network namespace's queues: stop it first"
        )
        self.pid = pid
        self.uid = uid


def take() -> socket.socket:
    """A listening socket that holds the name for as long as it is open. ClaimedError if somebody has it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.bind(NAME)
        sock.listen(8)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno != errno.EADDRINUSE:
            raise NetschedError(f"abstract socket {NAME[1:]}: {error.strerror}") from None
        raise ClaimedError(*holder()) from None
    return sock


def holder() -> tuple[int, int]:
    """(pid, uid) of whoever holds the name, by the kernel's word; (0, -1) if it cannot be asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(NAME)
        except OSError:
            return 0, -1
        found = peers.of(sock)
        return found.pid, found.uid


def is_ours(pid: int, uid: int) -> bool:
    """Whether a holder can be an agent: anybody may bind the name, to be in the way.

    It can if it is root's or our own user's, or has the right to change queues: an agent of a service's user
    is one for root as well.
    """
    return uid in (0, os.geteuid()) or (pid > 0 and _may_change_queues(pid))


def _may_change_queues(pid: int) -> bool:
    """Whether a process has CAP_NET_ADMIN here; False where that cannot be seen.

    Anybody has every right in a user namespace of his own, where they count for nothing.
    """
    process = Path(f"/proc/{pid}")
    try:
        if (process / "ns/user").stat().st_ino != Path("/proc/self/ns/user").stat().st_ino:
            return False
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return False
    rights = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(rights >> _CAP_NET_ADMIN & 1)


def answer(sock: socket.socket) -> None:
    """Let one `holder` go that asked: its question is answered by the connection itself."""
    with contextlib.suppress(OSError):
        asker, _ = sock.accept()
        asker.close()
