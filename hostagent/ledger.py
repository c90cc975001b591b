"""Which sockets the agent has marked, by the kernel's cookie, until they end.

The mark itself is in the socket; this is only memory of who asked for what, so it is bounded and may forget.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from hostagent.tagging import borrowed

LIMIT: Final = 16384
"""Sockets remembered; beyond it the longest-known one is forgotten (its mark stays)."""
_SO_COOKIE: Final = 57
_SO_NETNS_COOKIE: Final = 71


@dataclass(frozen=True, slots=True)
class Record:
    """One marked socket.

    here   it belongs to the agent's own network namespace
    owner  number of the connection that asked for it
    """

    cookie: int
    here: bool
    uid: int
    job: str
    cls: int
    dscp: int
    level: str
    group: str = ""
    owner: int = 0


class Ledger:
    """Records by cookie and user, the latest last."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._of_user: dict[int, dict[int, Record]] = {}
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
            self._namespace = _cookie(own, _SO_NETNS_COOKIE)

    def __len__(self) -> int:
        return len(self._records)

    def identify(self, fd: int) -> tuple[int, bool]:
        """(cookie, whether it is of our network namespace) of the socket behind a descriptor.

        OSError if it is none.
        """
        with borrowed(fd) as sock:
            return _cookie(sock, _SO_COOKIE), _cookie(sock, _SO_NETNS_COOKIE) == self._namespace

    def note(self, record: Record) -> None:
        """Remember a socket. Where there are too many, the same user's longest-known one is forgotten."""
        self.forget(record.cookie)
        self._records[record.cookie] = record
        mine = self._of_user.setdefault(record.uid, {})
        mine[record.cookie] = record
        if len(self._records) > LIMIT:
            self.forget(next(iter(mine)))

    def forget(self, cookie: int) -> None:
        record = self._records.pop(cookie, None)
        if record is not None:
            mine = self._of_user[record.uid]
            del mine[cookie]
            if not mine:
                del self._of_user[record.uid]

    def get(self, cookie: int) -> Record | None:
        return self._records.get(cookie)

    def of_job(self, job: str) -> list[Record]:
        return [record for record in self._records.values() if record.job == job]

    def records(self) -> list[Record]:
        return list(self._records.values())

    def has_room(self, uid: int, more: int, limit: int) -> bool:
        """Whether `more` sockets of a user are within `limit`.

        Sockets in other network namespaces cannot be seen to end: the longest-known of them make room.
        """
        mine = self._of_user.get(uid, {})
        over = len(mine) + more - limit
        if over <= 0:
            return True
        elsewhere = [cookie for cookie, record in mine.items() if not record.here][:over]
        for cookie in elsewhere:
            self.forget(cookie)
        return len(elsewhere) == over

    def prune(self, alive: Iterable[int]) -> None:
        """Forget the sockets of our namespace that are not among the cookies `alive`."""
        living = set(alive)
        for cookie in [c for c, r in self._records.items() if r.here and c not in living]:
            self.forget(cookie)

    def leave(self, owner: int) -> None:
        """A connection has ended or says nothing: forget what only it could tell us about."""
        for cookie in [c for c, r in self._records.items() if r.owner == owner and not r.here]:
            self.forget(cookie)


def _cookie(sock: socket.socket, option: int) -> int:
    try:
        return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, option, 8), sys.byteorder)
    except OSError:
        if option == _SO_NETNS_COOKIE:
            # Before Linux 5.14 namespaces cannot be told apart: every socket then counts as ours.
            return 0
        raise
