"""Giving sockets back what they carried before the agent marked them, whoever has them now.

For marks that no client takes back: those that level `pidfd` or a BPF program put on, and those of a job
whose client is gone. It takes the right to trace the processes that have the sockets; without it they keep
their marks and are named. A socket is known by the kernel's cookie, which is never used twice, and found by
its inode in /proc.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hostagent import retro, tagging
from hostagent.ledger import LIMIT
from hostagent.protocol import BadRequest
from hostagent.tagging import Marks
from netsched.errors import CapabilityError
from netsched.marking import dscp_in, tos_of

_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Before:
    """Of one socket: its inode, which /proc shows, and what it carried."""

    inode: int
    marks: Marks


class Before:
    """What the sockets that the agent had in its hands carried before it marked them, by cookie."""

    def __init__(self) -> None:
        self._of: dict[int, _Before] = {}

    def note(self, cookie: int, fd: int, marked: bool) -> None:
        """A socket is about to be marked. Of one that is `marked` already what was noted first stays."""
        if (marked and cookie in self._of) or (old := tagging.marks(fd)) is None:
            return
        self._of.pop(cookie, None)
        self._of[cookie] = _Before(os.fstat(fd).st_ino, old)
        if len(self._of) > LIMIT:
            del self._of[next(iter(self._of))]

    def put_back(self, cookies: Iterable[int], close: Callable[[Sequence[int]], None]) -> set[int]:
        """Give these sockets back what they carried, where they rest; which of them carry it now."""
        wanted = {self._of[cookie].inode: cookie for cookie in cookies if cookie in self._of}
        done: set[int] = set()
        if not wanted:
            return done
        for inode, fd in _holders(wanted):
            cookie = wanted[inode]
            if cookie not in done and tagging.cookie(fd) == cookie:
                old = self._of[cookie].marks
                with contextlib.suppress(OSError):
                    if tagging.marks(fd) == old or (not tagging.is_busy(fd) and tagging.put_back(fd, old)):
                        done.add(cookie)
            close([fd])
        return done


def unmark(
    pids: Iterable[int], dscp: int, ours: Callable[[int], bool], close: Callable[[Sequence[int]], None]
) -> None:
    """Take a control group's mark off its processes' sockets, where they rest: DSCP 0, as sockets are made.

    ours  whether the agent knows this cookie by a job's own word, so that the mark is not the group's

    What may not be traced is left as it is.
    """
    for pid in pids:
        with (
            contextlib.suppress(CapabilityError, BadRequest, OSError),
            retro.sockets_of(pid, None, lambda: None, close) as fds,
        ):
            for fd in fds:
                now = tagging.marks(fd)
                if now is None or ours(tagging.cookie(fd)) or tagging.is_busy(fd):
                    continue
                tagging.put_back(fd, _without(now, dscp))


def _without(now: Marks, dscp: int) -> Marks:
    tos = tos_of(0, now.tos) if dscp_in(now.tos) == dscp else now.tos
    if now.tclass is None:
        return replace(now, tos=tos)
    return replace(now, tos=tos, tclass=tos_of(0, now.tclass) if dscp_in(now.tclass) == dscp else now.tclass)


def _holders(inodes: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """(inode, our own descriptor) of each of these sockets that a process has which may be traced."""
    names = {f"socket:[{inode}]": inode for inode in inodes}
    for process in _PROC.iterdir():
        if not process.name.isdigit() or process.name == str(os.getpid()):
            continue
        found = _numbers(process, names)
        if not found:
            continue
        with contextlib.suppress(OSError, CapabilityError):
            handle = os.pidfd_open(int(process.name))
            try:
                for number, inode in found.items():
                    fd = retro.take(handle, int(process.name), number)
                    if fd is not None:
                        yield inode, fd
            finally:
                os.close(handle)


def _numbers(process: Path, names: Mapping[str, int]) -> dict[int, int]:
    """The numbers of a process's descriptors of these sockets."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                inode = names.get(str(entry.readlink()))
                if inode is not None:
                    found[int(entry.name)] = inode
    return found
