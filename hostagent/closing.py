"""Closing what others have passed, which may take as long as they like.

close(2) waits for the data of a socket with a linger time, and for the server behind a file of a FUSE file
system: whoever passes such a descriptor and lets go of it himself would have the agent wait in his stead.
Everything but a socket that closes at once is therefore closed beside the loop, a few at a time for a user.
"""

from __future__ import annotations

import _thread
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from hostagent.tagging import borrowed

_AT_ONCE: Final = 8
"""Packets of one user whose descriptors may be closing; no more of his is read meanwhile."""
_LINGER: Final = struct.Struct("=ii")


class Closer:
    """Closes descriptors. Its threads end with the process, which waits for none of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: Counter[int] = Counter()

    def is_busy(self, uid: int) -> bool:
        """Whether so much of this user's is closing that nothing more should be taken from him."""
        with self._lock:
            return self._under_way[uid] >= _AT_ONCE

    def close(self, fds: Sequence[int], uid: int) -> None:
        """Close a user's descriptors, now where that is certain to be quick."""
        slow = []
        for fd in fds:
            if _is_quick(fd):
                os.close(fd)
            else:
                slow.append(fd)
        if slow:
            self.beside(lambda: _close_all(slow), uid)

    def beside(self, work: Callable[[], None], uid: int) -> None:
        """Do something that may take long, on a user's account."""
        with self._lock:
            self._under_way[uid] += 1
        try:
            # Not threading's, whose start waits until the new thread has run: that is the loop's time.
            _thread.start_new_thread(self._work, (work, uid))
        except RuntimeError:
            # No thread to be had (RLIMIT_NPROC, pids.max): late is better than never.
            self._work(work, uid)

    def _work(self, work: Callable[[], None], uid: int) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._under_way[uid] -= 1
                if not self._under_way[uid]:
                    del self._under_way[uid]


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _is_quick(fd: int) -> bool:
    """Whether the descriptor is a socket without a linger time. Asks nothing that could wait itself."""
    try:
        with borrowed(fd) as sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                return False  # a Unix socket may hold others, unread
            on, seconds = _LINGER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.size))
            return not (on and seconds)
    except OSError:
        return False
