"""Bundles that advance by the clock of the link that holds them, and which of them ends first on each link.

All connections held by one link get the same per unit of weight. So the link keeps one virtual clock for
them (bytes per unit of weight), each bundle the reading at which its first flow ends, and a change of the
link's level costs the same however many it holds. That is the clock of fair queueing once more (Demers,
Keshav, Shenker, SIGCOMM 1989), for a link where bundles.py has it for a bundle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netsched.jit import inlined, inner
from netsched.model import Floats, Ints, ShortInts

NOBODY = -1
"""No link, bundle, class or place."""

LEAST = (256, 64, 2, 7)
"""When a class becomes a crowd, and when it is none any more: see `Carried.least`."""

_LONGEST = 2.0**33
"""Clocks that are further are set back, so that a float still tells a byte's millionth."""

# Positions in Carried.least.
CROWDED, FEWEST, PER_LINK, IN_VAIN = range(4)

# Positions in Carried.tally.
CROWD, N_LINKS, N_CARRIED, POOL_END, SINCE_FRESH = range(5)


class Carried(NamedTuple):
    """Columns per bundle, per link and, from `order` on, others; `tally` holds the scalars.

    tally[CROWD] is the class whose bundles are carried, NOBODY if none are.

    link_of       the link that carries a bundle, NOBODY if none does
    since         the reading of the link's clock up to which the bundle has been credited
    key           the reading at which the bundle's first flow ends
    share, heft   the weight of each of its connections, and of all of them
    slot          where the bundle is in `pool`
    ticks, at, pace   a link's clock: its reading, as of when, and how much it advances in a second
    level         what orders the links: the pace that the last look found, inf for a link that carries nobody
    taken         bytes/s that bundles on the link have that others carry
    held          the weight of those that it carries
    start, size, room   its part of `pool`: a binary heap of the bundles it carries, by key
    use           its use by the crowd's class
    position      where it is in `order`, NOBODY for links without the crowd
    waits, moved  it must be looked at; its pace or its heap has changed since `first` was seen to
    first         the bundle whose `due` stands for all that the link carries: the top of its heap
    order         the N_LINKS links with the crowd, by level
    least         bundles that a class must have (CROWDED), and per link (PER_LINK), to become a crowd, its
                  `Uses.wait` then (IN_VAIN), and bundles with which it stays one (FEWEST)
    """

    link_of: ShortInts
    since: Floats
    key: Floats
    share: Floats
    heft: Floats
    slot: ShortInts
    ticks: Floats
    at: Floats
    pace: Floats
    level: Floats
    taken: Floats
    held: Floats
    start: Ints
    size: Ints
    room: Ints
    use: Ints
    position: Ints
    waits: np.ndarray
    moved: np.ndarray
    first: Ints
    order: Ints
    pool: ShortInts
    least: Ints
    tally: Ints


def open_carried(n_bundles: int, n_links: int) -> Carried:
    """Nobody is carried yet."""

    def ints(n: int) -> Ints:
        return np.full(n, NOBODY, np.int64)

    def short(n: int) -> ShortInts:
        return np.full(n, NOBODY, np.int32)

    carried = Carried(
        link_of=short(n_bundles),
        since=np.zeros(n_bundles),
        key=np.zeros(n_bundles),
        share=np.zeros(n_bundles),
        heft=np.zeros(n_bundles),
        slot=short(n_bundles),
        ticks=np.zeros(n_links),
        at=np.zeros(n_links),
        pace=np.zeros(n_links),
        level=np.zeros(n_links),
        taken=np.zeros(n_links),
        held=np.zeros(n_links),
        start=ints(n_links),
        size=ints(n_links),
        room=ints(n_links),
        use=ints(n_links),
        position=ints(n_links),
        waits=np.zeros(n_links, np.int8),
        moved=np.zeros(n_links, np.int8),
        first=ints(n_links),
        order=ints(n_links),
        pool=short(4 * n_bundles + 64),
        least=np.array(LEAST),
        tally=np.zeros(5, np.int64),
    )
    carried.tally[CROWD] = NOBODY
    return carried


@inlined
def reading(c: Carried, link: int, t: float) -> float:
    """What the link's clock shows at time t."""
    return float(c.ticks[link] + c.pace[link] * max(0.0, t - c.at[link]))


@inlined
def credit(c: Carried, b: int, t: float) -> float:
    """Bytes that each connection of carried bundle b has received since the last credit, until time t."""
    now = reading(c, c.link_of[b], t)
    passed = now - c.since[b]
    if passed <= 0.0:
        return 0.0
    c.since[b] = now
    return float(passed * c.share[b])


@inlined
def set_pace(c: Carried, link: int, pace: float, t: float) -> None:
    """Have the link's clock advance by `pace` from time t on."""
    c.ticks[link] = reading(c, link, t)
    c.at[link] = max(c.at[link], t)
    c.pace[link] = pace
    c.moved[link] = 1
    if c.ticks[link] > _LONGEST or c.size[link] == 0:
        for i in range(c.start[link], c.start[link] + c.size[link]):
            c.since[c.pool[i]] -= c.ticks[link]
            c.key[c.pool[i]] -= c.ticks[link]
        c.ticks[link] = 0.0


@inlined
def due_at(c: Carried, b: int) -> float:
    """When the first flow of carried bundle b ends at the link's present pace."""
    link = c.link_of[b]
    ahead = c.key[b] - c.ticks[link]
    if ahead <= 0.0:
        return float(c.at[link])
    return float(c.at[link] + ahead / c.pace[link]) if c.pace[link] > 0.0 else np.inf


@inner
def _rise(c: Carried, link: int, i: int) -> None:
    """Move the bundle at place i of the link's heap up to where it belongs."""
    start = c.start[link]
    b = c.pool[start + i]
    while i > 0:
        above = c.pool[start + ((i - 1) >> 1)]
        if c.key[above] <= c.key[b]:
            break
        c.pool[start + i] = above
        c.slot[above] = start + i
        i = (i - 1) >> 1
    c.pool[start + i] = b
    c.slot[b] = start + i


@inner
def _sink(c: Carried, link: int, i: int) -> None:
    """Move the bundle at place i of the link's heap down to where it belongs."""
    start, n = c.start[link], c.size[link]
    b = c.pool[start + i]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and c.key[c.pool[start + child + 1]] < c.key[c.pool[start + child]]:
            child += 1
        below = c.pool[start + child]
        if c.key[below] >= c.key[b]:
            break
        c.pool[start + i] = below
        c.slot[below] = start + i
        i = child
    c.pool[start + i] = b
    c.slot[b] = start + i


@inner
def reorder(c: Carried, b: int) -> None:
    """Move carried bundle b, whose key has changed, to its place in the heap."""
    link = c.link_of[b]
    _rise(c, link, c.slot[b] - c.start[link])
    _sink(c, link, c.slot[b] - c.start[link])
    c.moved[link] = 1


@inner
def load_on(c: Carried, b: int, link: int) -> bool:
    """Have the link carry bundle b, whose key is set; False if there is no room for that."""
    if c.size[link] == c.room[link]:
        room = 2 * c.size[link] + 4
        if c.tally[POOL_END] + room > len(c.pool):
            return False
        for i in range(c.size[link]):
            moved = c.pool[c.start[link] + i]
            c.pool[c.tally[POOL_END] + i] = moved
            c.slot[moved] = c.tally[POOL_END] + i
        c.start[link] = c.tally[POOL_END]
        c.room[link] = room
        c.tally[POOL_END] += room
    c.pool[c.start[link] + c.size[link]] = b
    c.size[link] += 1
    c.link_of[b] = link
    _rise(c, link, c.size[link] - 1)
    c.moved[link] = 1
    return True


@inner
def unload(c: Carried, b: int) -> None:
    """Have bundle b carried by nobody."""
    link = c.link_of[b]
    i = c.slot[b]
    c.size[link] -= 1
    last = c.pool[c.start[link] + c.size[link]]
    if last != b:
        c.pool[i] = last
        c.slot[last] = i
        reorder(c, last)
    c.link_of[b] = NOBODY
    c.moved[link] = 1
