"""Marking more sockets than a packet carries, all or none."""

from __future__ import annotations

from collections.abc import Callable

from hostagent import tagging
from hostagent.protocol import MAX_FDS, Tagged


def tag(fds: list[int], whole: bool, ask: Callable[[list[int]], list[Tagged]]) -> list[Tagged]:
    """The results of `ask` for all sockets, packet by packet; [] if one was not answered.

    With `whole` none is marked if one is not: the agent has then marked nothing of the packet that it is in,
    and what it did of the packets before is undone here.
    """
    before = [tagging.marks(fd) for fd in fds] if whole and len(fds) > MAX_FDS else []
    results: list[Tagged] = []
    for first in range(0, len(fds), MAX_FDS):
        more = ask(fds[first : first + MAX_FDS])
        if more and (not whole or all(result.ok for result in more)):
            results += more
            continue
        for fd, old in zip(fds[:first], before, strict=False):
            tagging.put_back(fd, old)
        if not more:
            return []
        others = (tagging.read(fd) for fd in [*fds[:first], *fds[first + len(more) :]])
        undone = [next(others) for _ in range(first)] + more + list(others)
        why = "not marked, because another of the group could not be"
        return [r if not r.ok else Tagged(False, r.dscp, r.priority, r.family, why) for r in undone]
    return results
