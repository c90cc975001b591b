"""Getting at the live sockets of a process that has not passed them, by pidfd_getfd: the ladder's last level.

Off unless the configuration names it: it takes the right to trace the process (CAP_SYS_PTRACE, or the same
user where Yama allows it), which is the right to read all of its memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from hostagent.protocol import BadRequest
from hostagent.tagging import NotTcpError, borrowed, check_tcp
from netsched.errors import CapabilityError

_PIDFD_GETFD: Final = 438
"""The same number on every architecture (Linux 5.6)."""
_MAX_SOCKETS: Final = 4096
_MAX_FILES: Final = 16384
_LIVE: Final = frozenset({1, 2})
"""TCP_ESTABLISHED and TCP_SYN_SENT, the first byte of TCP_INFO."""


@contextlib.contextmanager
def sockets_of(
    pid: int, uid: int | None, ask: Callable[[], None], close: Callable[[Sequence[int]], None]
) -> Iterator[list[int]]:
    """Our own descriptors of the connected TCP sockets of process `pid`; given to `close` afterwards.

    `ask` is called when the process is found to be theirs, before its files are looked through.
    `uid`: only if the process is this user's (None: anybody's). BadRequest if it is not, or is not there: the
    same words for both. CapabilityError without the right to trace it.
    """
    got: list[int] = []
    handle = _open(pid, uid)
    try:
        ask()
        for number in _socket_numbers(pid):
            fd = take(handle, pid, number)
            if fd is not None:
                got.append(fd)
        yield [fd for fd in got if _is_live_tcp(fd)]
    finally:
        os.close(handle)
        close(got)


def check() -> None:
    """CapabilityError unless the kernel gives out descriptors, tried with our own process."""
    handle = os.pidfd_open(os.getpid())
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
            fd = take(handle, os.getpid(), own.fileno())
        if fd is None:
            raise CapabilityError("pidfd: this kernel gave no descriptor by pidfd_getfd")
        os.close(fd)
    finally:
        os.close(handle)


def _open(pid: int, uid: int | None) -> int:
    nobody = BadRequest("bad-pid", f"pid = {pid}: no process of this user")
    try:
        handle = os.pidfd_open(pid)
    except (OSError, OverflowError):
        raise nobody from None
    try:
        if uid is not None:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            theirs = next(line.split()[1:] for line in lines if line.startswith("Uid:"))
            if set(theirs) != {str(uid)}:
                raise nobody
        # Still there: so the file above was of this process and not of a later one with its number.
        signal.pidfd_send_signal(handle, 0)
    except (OSError, StopIteration):
        os.close(handle)
        raise nobody from None
    except BadRequest:
        os.close(handle)
        raise
    return handle


def _socket_numbers(pid: int) -> list[int]:
    folder = Path(f"/proc/{pid}/fd")
    numbers = []
    try:
        names = list(itertools.islice(folder.iterdir(), _MAX_FILES))
    except PermissionError:
        raise _no_right(pid) from None
    except OSError:
        return []
    for name in names:
        with contextlib.suppress(OSError):
            if str(name.readlink()).startswith("socket:"):
                numbers.append(int(name.name))
    return numbers[:_MAX_SOCKETS]


def take(handle: int, pid: int, number: int) -> int | None:
    """Our descriptor of theirs, None if they have closed it meanwhile."""
    fd = int(ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, handle, number, 0))
    if fd >= 0:
        return fd
    code = ctypes.get_errno()
    if code in (errno.EPERM, errno.EACCES):
        raise _no_right(pid)
    if code == errno.ENOSYS:
        raise CapabilityError("pidfd: this kernel has no pidfd_getfd: Linux 5.6 or later")
    return None


def _no_right(pid: int) -> CapabilityError:
    return CapabilityError(
        f"pidfd: process {pid} may not be traced: give the agent CAP_SYS_PTRACE, or see "
        "kernel.yama.ptrace_scope (CONFIG_SECURITY_YAMA)"
    )


def _is_live_tcp(fd: int) -> bool:
    try:
        with borrowed(fd) as sock:
            check_tcp(sock)
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _LIVE
    except (NotTcpError, OSError):
        return False
