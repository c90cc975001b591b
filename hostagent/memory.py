"""What a job's client remembers of its sockets: what they carried before, and what it asked for.

By the kernel's number of a socket, which is never used twice, so that a descriptor which has become another
socket's meanwhile is left alone. Nothing is held open for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from hostagent import batches, tagging
from hostagent.protocol import Tagged

_REMEMBERED: Final = 16384
"""Sockets that are remembered; the ones noted longest ago are forgotten first."""
_DESCRIPTORS: Final = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True)
class Asked:
    """What sockets were to be marked as."""

    cls: int | str
    group: str


class Memory:
    """The sockets of one client."""

    def __init__(self) -> None:
        self._before: dict[int, tagging.Marks] = {}
        self._asked: dict[int, Asked] = {}

    def note(self, fds: Iterable[int], asked: Asked | None) -> None:
        """Sockets are about to be marked; `asked` is None where a plan says with what, and may change it."""
        for fd in fds:
            cookie = tagging.cookie(fd)
            if not cookie:
                continue
            if cookie not in self._before and (old := tagging.marks(fd)) is not None:
                self._before[cookie] = old
            self._asked.pop(cookie, None)
            if asked is not None:
                self._asked[cookie] = asked
        for known in (self._before, self._asked):
            while len(known) > _REMEMBERED:
                del known[next(iter(known))]

    @property
    def wishes(self) -> set[int]:
        """The sockets for which a class was asked."""
        return set(self._asked)

    def forget_wishes(self) -> None:
        """Another process's client asks for them from now on; what the sockets carried before stays known."""
        self._asked.clear()

    def put_back(self, fds: Iterable[int]) -> bool:
        """Whether all of these carry again what they did; those never noted are left alone."""
        good = True
        for fd in fds:
            cookie = tagging.cookie(fd)
            self._asked.pop(cookie, None)
            old = self._before.pop(cookie, None)
            good &= old is None or tagging.put_back(fd, old)
        return good

    def give_back(self) -> list[int]:
        """Put back whatever rests of this process's noted sockets; their numbers.

        One with bytes under way keeps its mark for now. What was asked stays known, for the next agent.
        """
        done = []
        with _own(self._before) as found:
            for cookie, fd in found.items():
                old = self._before[cookie]
                if not tagging.is_busy(fd) or tagging.marks(fd) == old:
                    del self._before[cookie]
                    tagging.put_back(fd, old)
                    done.append(cookie)
        return done

    def ask_again(
        self, cookies: Container[int], ask: Callable[[list[int], int | str, str, bool], list[Tagged]]
    ) -> set[int]:
        """Ask for those of the sockets that this process still has; the ones that send just now.

        `ask` marks a packet's descriptors: (descriptors, class, group, even if busy).
        """
        wanted = {cookie: asked for cookie, asked in self._asked.items() if cookie in cookies}
        late: set[int] = set()
        with _own(wanted) as found:
            by_wish: dict[Asked, list[int]] = {}
            for cookie in found:
                by_wish.setdefault(wanted[cookie], []).append(cookie)
            for asked, of_it in by_wish.items():
                mark = partial(_one_packet, ask, asked)
                results = batches.tag([found[cookie] for cookie in of_it], bool(asked.group), mark)
                if any(result.error.startswith(tagging.BUSY) for result in results):
                    late |= {c for c, one in zip(of_it, results, strict=True) if asked.group or not one.ok}
        return late


def _one_packet(
    ask: Callable[[list[int], int | str, str, bool], list[Tagged]], asked: Asked, fds: list[int]
) -> list[Tagged]:
    return ask(fds, asked.cls, asked.group, False)


@contextlib.contextmanager
def _own(wanted: Container[int]) -> Iterator[dict[int, int]]:
    """A descriptor of each wanted socket that this process has.

    Copies, since another thread may close its own meanwhile and the kernel give the number to another file.
    """
    found: dict[int, int] = {}
    try:
        for entry in list(_DESCRIPTORS.iterdir()):
            with contextlib.suppress(OSError):
                if not str(entry.readlink()).startswith("socket:"):
                    continue
                copy = fcntl.fcntl(int(entry.name), fcntl.F_DUPFD_CLOEXEC, 0)
                cookie = tagging.cookie(copy)
                if cookie in wanted and cookie not in found:
                    found[cookie] = copy
                else:
                    os.close(copy)
        yield found
    finally:
        for fd in found.values():
            os.close(fd)
