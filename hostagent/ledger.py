"""Which sockets the agent has marked, by the kernel's cookie, until they end.

The mark itself is in the socket; this is only memory of who asked for what, so it is bounded and may forget.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

LIMIT: Final = 16384
"""Sockets remembered; beyond it the longest-known one is forgotten (its mark stays)."""
_SO_COOKIE: Final = 57
_SO_NETNS_COOKIE: Final = 71


@dataclass(frozen=True)
class Record:
    """One marked socket. `here`: it belongs to the agent's own network namespace."""

    cookie: int
    here: bool
    uid: int
    job: str
    cls: int
    dscp: int
    level: str


class Ledger:
    """Records by cookie, the latest last."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
            self._namespace = _cookie(own, _SO_NETNS_COOKIE)

    def __len__(self) -> int:
        return len(self._records)

    def identify(self, fd: int) -> tuple[int, bool]:
        """(cookie, whether it is of our network namespace) of the socket behind a descriptor.

        OSError if it is none.
        """
        with socket.socket(fileno=os.dup(fd)) as sock:
            return _cookie(sock, _SO_COOKIE), _cookie(sock, _SO_NETNS_COOKIE) == self._namespace

    def note(self, record: Record) -> None:
        self._records.pop(record.cookie, None)
        self._records[record.cookie] = record
        if len(self._records) > LIMIT:
            del self._records[next(iter(self._records))]

    def get(self, cookie: int) -> Record | None:
        return self._records.get(cookie)

    def of_job(self, job: str) -> list[Record]:
        return [record for record in self._records.values() if record.job == job]

    def prune(self, alive: Iterable[int]) -> None:
        """Forget the sockets of our namespace that are not among the cookies `alive`."""
        living = set(alive)
        for cookie in [c for c, r in self._records.items() if r.here and c not in living]:
            del self._records[cookie]


def _cookie(sock: socket.socket, option: int) -> int:
    try:
        return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, option, 8), sys.byteorder)
    except OSError:
        if option == _SO_NETNS_COOKIE:
            # Before Linux 5.14 namespaces cannot be told apart: every socket then counts as ours.
            return 0
        raise
