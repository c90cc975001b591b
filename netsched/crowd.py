"""Rates in a crowd: a class of many bundles on few links, where every event changes nearly every rate.

What changes is little even so: a few hundred levels of links, and who holds whom for a handful of bundles.
So links carry the bundles that they hold (carried.py), in an order of their levels in which each bundle is
carried by the first link of its path. Given the order, a link's level follows from the levels before it (what
others do not take, by the weight of those it carries), and the order is right when the levels ascend: that
is max-min (Bertsekas and Gallager, Data Networks, 6.5.2). An event changes few levels much and all others
little, so that few links change places; one that does takes over those bundles of the links it passes that
cross it too. The bottleneck structure of Ros-Giralt et al. (SIGMETRICS 2019, 2022) is this order.
"""

from __future__ import annotations

import numpy as np

from netsched.allocate import Scratch, sort_by, weight_in
from netsched.bundles import N_CROWDED, Bundles, catch_up, due_of
from netsched.carried import (
    CROWD,
    CROWDED,
    FEWEST,
    IN_VAIN,
    N_CARRIED,
    N_LINKS,
    NOBODY,
    PER_LINK,
    SINCE_FRESH,
    set_pace,
)
from netsched.carry import carry, let_go, show
from netsched.crossing import hold
from netsched.dues import put_due
from netsched.jit import inlined, inner
from netsched.uses import NOTHING, SHIFT, STAMP, Uses

_LESS = 1 - 1e-12
"""A level below this part of another one is lower by more than rounding."""

_STILL = 1e-14
"""A level that changes by a smaller share than this stays as it is."""

_FRESH = 256
"""After so many repairs sums are added up anew, before rounding shows in them."""

_PATIENCE = 100
"""Places looked at per link and repair, after which it is easier to fill the class as a whole."""


@inner
def _is_plain(bun: Bundles, net: Uses, b: int) -> bool:
    """Whether only links can hold bundle b, and all it has is its share of one."""
    return bool(
        bun.uncapped[b] > 0
        and bun.booked[b] == 0.0
        and bun.unit_weight[b] > 0.0
        and net.end_hop[b] > b << net.tally[SHIFT]
    )


@inner
def _enter(bun: Bundles, link: int, u: int) -> None:
    """Put a link that nobody crossed, with its use, at the end of the order."""
    c = bun.carried
    c.position[link] = c.tally[N_LINKS]
    c.order[c.tally[N_LINKS]] = link
    c.tally[N_LINKS] += 1
    c.use[link] = u
    c.ticks[link] = 0.0
    c.at[link] = bun.clock[0]
    c.pace[link] = 0.0
    c.level[link] = np.inf
    c.taken[link] = 0.0
    c.held[link] = 0.0
    c.start[link] = 0
    c.size[link] = 0
    c.room[link] = 0
    c.first[link] = NOBODY
    c.waits[link] = 1


@inner
def _quit(bun: Bundles, net: Uses, link: int) -> None:
    """Take a link that nobody crosses any more out of the order."""
    c = bun.carried
    c.tally[N_LINKS] -= 1
    for i in range(c.position[link], c.tally[N_LINKS]):
        c.order[i] = c.order[i + 1]
        c.position[c.order[i]] = i
    c.position[link] = NOBODY
    net.load[c.use[link]] = 0.0


@inner
def _admit(bun: Bundles, net: Uses, b: int) -> bool:
    """Have bundle b, whose claims are new, carried as they say; False if that cannot be."""
    c = bun.carried
    if not _is_plain(bun, net, b):
        return False
    if c.link_of[b] >= 0:
        let_go(bun, net, b)
        c.tally[N_CARRIED] -= 1
    carrier = NOBODY
    for y in range(b << net.tally[SHIFT], net.end_hop[b]):
        u = net.of_hop[y]
        link = net.link[u]
        if c.position[link] < 0:
            _enter(bun, link, u)
        if carrier < 0 or c.position[link] < c.position[carrier]:
            carrier = link
    c.share[b] = bun.unit_weight[b]
    c.heft[b] = weight_in(bun, b)
    if not carry(bun, net, b, carrier):
        return False
    c.tally[N_CARRIED] += 1
    return True


@inlined
def _level_of(bun: Bundles, net: Uses, link: int) -> float:
    """The level at which those whom the link carries fill it; inf if it carries nobody and has room."""
    c = bun.carried
    left = net.entry[c.use[link]] - c.taken[link]
    if c.size[link]:
        return float(left / c.held[link])
    c.held[link] = 0.0
    return np.inf if left >= -1e-12 * bun.capacity[link] else left


@inlined
def _pass(bun: Bundles, net: Uses, s: Scratch, link: int, other: int) -> bool:
    """Move the link before the `other` one, which is next before it, and have it carry whom both would.

    False if there is no room for that.
    """
    c = bun.carried
    i = c.position[other]
    c.order[i], c.order[i + 1] = link, other
    c.position[link], c.position[other] = i, i + 1
    n = 0
    for at in range(c.start[other], c.start[other] + c.size[other]):
        b = c.pool[at]
        for y in range(b << net.tally[SHIFT], net.end_hop[b]):
            if net.link[net.of_hop[y]] == link:
                s.spare[n] = b
                n += 1
    for b in s.spare[:n]:
        let_go(bun, net, b)
        if not carry(bun, net, b, link):
            return False
    return True


@inlined
def _tell(bun: Bundles, net: Uses, link: int) -> None:
    """Give those whom the link carries its level, and take that off the other links of their paths."""
    c = bun.carried
    pace = max(0.0, c.level[link]) if c.size[link] else 0.0
    more = pace - c.pace[link]
    if abs(more) <= _STILL * pace:
        return
    set_pace(c, link, pace, bun.clock[0])
    shift = net.tally[SHIFT]
    for b in c.pool[c.start[link] : c.start[link] + c.size[link]]:
        rate = more * c.heft[b]
        for y in range(b << shift, net.end_hop[b]):
            other = net.link[net.of_hop[y]]
            if other != link:
                c.taken[other] += rate
                c.waits[other] = 1


@inner
def _go_up(bun: Bundles, net: Uses, s: Scratch) -> bool:
    """Bring all levels up to date in their order, and the order too; False if that takes too long.

    Whoever finds itself below the one before it moves down at once, so that all before it is in order. That
    comes to an end, because each such move makes the list of levels less in the lexical sense.
    """
    c = bun.carried
    i, left = 0, _PATIENCE * c.tally[N_LINKS]
    while i < c.tally[N_LINKS]:
        link = c.order[i]
        before = c.level[c.order[i - 1]] if i else -np.inf
        if c.waits[link] or c.level[link] < before * _LESS:
            level = _level_of(bun, net, link)
            while i > 0 and level < c.level[c.order[i - 1]] * _LESS:
                i -= 1
                left -= 1
                if not _pass(bun, net, s, link, c.order[i]):
                    return False
                level = _level_of(bun, net, link)
            if net.entry[c.use[link]] <= 0.0:
                return False
            c.level[link] = level
            c.waits[link] = 0
            _tell(bun, net, link)
        i += 1
        left -= 1
        if left < 0:
            return False
    return True


@inner
def _add_up(bun: Bundles, net: Uses) -> None:
    """Add up anew what each link holds and what others take of it."""
    c = bun.carried
    c.tally[SINCE_FRESH] = 0
    links = c.order[: c.tally[N_LINKS]]
    for link in links:
        c.taken[link] = 0.0
        c.held[link] = 0.0
    for link in links:
        taken = c.taken[link]
        for i in range(c.start[link], c.start[link] + c.size[link]):
            b = c.pool[i]
            c.held[link] += c.heft[b]
            for y in range(b << net.tally[SHIFT], net.end_hop[b]):
                c.taken[net.link[net.of_hop[y]]] += c.pace[link] * c.heft[b]
        c.taken[link] = taken


@inner
def repair_crowd(bun: Bundles, net: Uses, s: Scratch, k: int, n_touched: int) -> int:
    """Bring the rates of class k, whose bundles are carried, up to date around its seeds and `touched`.

    How many uses are in `used`, of which other classes must hear; NOTHING if it is no crowd any more.
    """
    c = bun.carried
    for u in s.touched[:n_touched]:
        if c.position[net.link[u]] >= 0:
            c.waits[net.link[u]] = 1
    b = net.seeds[k]
    while b >= 0:
        if not _admit(bun, net, b):
            return NOTHING
        b = net.next_seed[b]
    for u in s.touched[:n_touched]:
        if net.n_on[u] == 0 and c.position[net.link[u]] >= 0:
            _quit(bun, net, net.link[u])
    c.tally[SINCE_FRESH] += 1
    if c.tally[SINCE_FRESH] > _FRESH:
        _add_up(bun, net)
    if c.tally[N_CARRIED] < c.least[FEWEST] or not _go_up(bun, net, s):
        return NOTHING
    bun.count[N_CROWDED] += 1
    net.tally[STAMP] += 1
    for i in range(c.tally[N_LINKS]):
        link = c.order[i]
        if c.moved[link]:
            show(bun, link)
        u = c.use[link]
        net.load[u] = min(net.entry[u], c.taken[link] + c.pace[link] * c.held[link])
        s.used[i] = u
    return int(c.tally[N_LINKS])


@inner
def disperse(bun: Bundles, net: Uses) -> None:
    """End the crowd, if there is one: every bundle goes on by its own clock at the rate that it has."""
    c = bun.carried
    for link in c.order[: c.tally[N_LINKS]]:
        for i in range(c.start[link], c.start[link] + c.size[link]):
            b = c.pool[i]
            catch_up(bun, b, bun.clock[0])
            c.link_of[b] = NOBODY
            bun.v_at[b] = bun.clock[0]
            bun.unit_rate[b] = c.pace[link] * c.share[b]
            bun.level[b] = c.pace[link]
            bun.total[b] = c.pace[link] * c.heft[b]
            hold(net, b, c.use[link])
            put_due(bun, b, due_of(bun, b))
        c.position[link] = NOBODY
    c.tally[:] = 0
    c.tally[CROWD] = NOBODY


@inner
def _is_crowd(bun: Bundles, net: Uses, k: int) -> bool:
    """Whether class k is many plain bundles on few links, all of which it may use."""
    least = bun.carried.least
    if net.size[k] < least[CROWDED] or net.wait[k] < least[IN_VAIN] or net.n_parked[k]:
        return False
    n = 0
    u = net.first_of[k]
    while u >= 0:
        if net.entry[u] <= 0.0:
            return False
        n += 1
        u = net.fellow_after[u]
    if net.size[k] < least[PER_LINK] * n:
        return False
    b = net.newest[k]
    while b >= 0:
        if net.bottleneck[b] < 0 or not _is_plain(bun, net, b):
            return False
        b = net.next_peer[b]
    return True


@inner
def gather(bun: Bundles, net: Uses, s: Scratch, k: int) -> None:
    """Make class k, whose rates are right, the crowd if it is one and there is none."""
    c = bun.carried
    if c.tally[CROWD] >= 0 or not _is_crowd(bun, net, k):
        return
    u = net.first_of[k]
    while u >= 0:
        _enter(bun, net.link[u], u)
        u = net.fellow_after[u]
    b = net.newest[k]
    while b >= 0:
        c.level[net.link[net.bottleneck[b]]] = bun.level[b]
        b = net.next_peer[b]
    links = c.order[: c.tally[N_LINKS]]
    sort_by(c.level, links, s.used)
    for i in range(len(links)):
        c.position[links[i]] = i
        c.pace[links[i]] = c.level[links[i]] if c.level[links[i]] < np.inf else 0.0
    c.tally[CROWD] = k
    b = net.newest[k]
    while b >= 0:
        catch_up(bun, b, bun.clock[0])
        hold(net, b, NOTHING)
        put_due(bun, b, np.inf)
        if not _admit(bun, net, b):
            disperse(bun, net)
            return
        b = net.next_peer[b]
    _add_up(bun, net)
    for link in links:
        show(bun, link)
