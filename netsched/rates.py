"""Rates of all bundles, class by class, and their repair after a change that reaches only some of them.

Computing everything at each of a trace's tens of thousands of events is what makes simulators slow. Two facts
of strict priority and max-min spare most of it: a class sees only what the classes before it leave of each
link, and a bundle keeps its rate as long as its own bottleneck stays one.
"""

from __future__ import annotations

import numpy as np

from netsched.allocate import LEVEL, WEIGHT, Scratch
from netsched.bundles import (
    DIRTY,
    N_ACTIVE,
    N_ALLOCATIONS,
    N_FREED,
    N_REPAIRS,
    N_WHOLE,
    STALE,
    UNSORTED,
    Bundles,
)
from netsched.carried import CROWD
from netsched.classes import lay_out, tidy_slots
from netsched.crossing import blocked_by, hold, parks, weigh
from netsched.crowd import disperse, gather, repair_crowd
from netsched.dues import put_rate
from netsched.jit import inner
from netsched.order import close_class
from netsched.repair import fill_around, first_concerned
from netsched.uses import (
    N_CLASSES,
    N_SEEDS,
    NOISE,
    NOTHING,
    STAMP,
    Uses,
    give_back,
    leaves,
    next_awake,
    offered,
    pass_on,
    pass_on_freed,
    unlink_use,
    wake,
)
from netsched.whole import fill_plain, fill_whole, untouched_level

_LONGEST_PAUSE = 31
"""So many times in a row a class is computed as a whole at most before its repair is tried again."""


@inner
def _settle(bun: Bundles, net: Uses, s: Scratch, n: int, n_used: int) -> None:
    """Put into effect what the filling found for the first n bundles of `group`."""
    for b in s.group[:n]:
        level = s.given[b, LEVEL]
        put_rate(bun, b, max(0.0, level), s.given[b, WEIGHT])
        hold(net, b, s.frozen_by[b] if level >= 0.0 else NOTHING)
        parks(bun, net, b)
    for u in s.used[:n_used]:
        net.load[u] = net.entry[u] - max(0.0, s.residual[u])


@inner
def _refill(bun: Bundles, net: Uses, s: Scratch, k: int, floor: float) -> int:
    """Compute the rates of class k from `floor` on; how many uses that reached."""
    n, n_used = 0, 0
    if net.n_special[k]:
        n, n_used = fill_whole(bun, net, s, k, floor)
    else:
        n_used = fill_plain(bun, net, s, k, floor)
    _settle(bun, net, s, n, n_used)
    return n_used


@inner
def _fill_all(bun: Bundles, net: Uses, s: Scratch) -> None:
    """Compute all rates. The bundles have just been laid out, so that no use is without any."""
    for i in range(net.tally[N_SEEDS]):
        net.seed[net.seeded[i]] = 0
    net.tally[N_SEEDS] = 0
    for k in net.ordered[: net.tally[N_CLASSES]]:
        u = net.first_of[k]
        while u >= 0:
            net.entry[u] = offered(bun, net, u)
            net.load[u] = 0.0
            u = net.fellow_after[u]
        b = net.newest[k]
        while b >= 0:
            following = net.next_peer[b]
            if blocked_by(net, b) != NOTHING:
                put_rate(bun, b, 0.0, 0.0)
                parks(bun, net, b)
            b = following
        _refill(bun, net, s, k, 0.0)
        net.floor[k] = np.inf
    bun.count[STALE] = 0


@inner
def _book(bun: Bundles) -> None:
    """Add up what the reserves leave of every link."""
    for link in range(len(bun.capacity)):
        bun.unbooked[link] = bun.capacity[link]
    for i in range(bun.count[N_ACTIVE]):
        b = bun.active[i]
        if bun.booked[b] > 0.0:
            for h in range(bun.path_ptr[bun.path[b]], bun.path_ptr[bun.path[b] + 1]):
                bun.unbooked[bun.path_links[h]] -= bun.booked[b]
    for link in range(len(bun.capacity)):
        if bun.unbooked[link] < bun.capacity[link] * NOISE:
            bun.unbooked[link] = 0.0
    for i in range(bun.count[N_FREED]):
        bun.is_freed[bun.freed[i]] = 0
    bun.count[N_FREED] = 0


@inner
def _take_touched(net: Uses, s: Scratch, k: int) -> int:
    """Write the uses of class k that must be looked at into `touched`, no longer marked; their number."""
    n = 0
    u = net.dirty[k]
    while u >= 0:
        s.touched[n] = u
        n += 1
        net.is_dirty[u] = 0
        u = net.next_dirty[u]
    net.dirty[k] = NOTHING
    return n


@inner
def _fill_class(bun: Bundles, net: Uses, s: Scratch, k: int, n_touched: int) -> int:
    """Bring the rates of class k up to date around its seeds and `touched`; how many uses that reached.

    Where the repair of a class grew over its limit, the next changes are not tried to repair, the longer the
    more often that happens: in a crowd every change reaches everybody.
    """
    if bun.carried.tally[CROWD] == k:
        n_used = repair_crowd(bun, net, s, k, n_touched)
        if n_used != NOTHING:
            return n_used
        disperse(bun, net)
        net.pause[k], net.wait[k] = 0, 0
        bun.count[N_WHOLE] += 1
        return _refill(bun, net, s, k, 0.0)
    n = first_concerned(bun, net, s, k, n_touched)
    if n == 0:
        net.tally[STAMP] += 1
        return 0
    n_used = NOTHING
    whole = net.size[k] - net.n_parked[k]
    limit = net.share[0] * whole
    if net.pause[k] == 0 or limit >= whole:
        n, n_used = fill_around(bun, net, s, n, limit)
        if n_used == NOTHING:
            net.wait[k] = min(2 * net.wait[k] + 1, _LONGEST_PAUSE)
            net.pause[k] = net.wait[k]
        else:
            net.wait[k] >>= 1
    else:
        net.pause[k] -= 1
    for b in s.group[:n]:
        s.inside[b] = 0
    if n_used == NOTHING:
        bun.count[N_WHOLE] += 1
        return _refill(bun, net, s, k, untouched_level(bun, net, k))
    _settle(bun, net, s, n, n_used)
    return n_used


@inner
def _repair_class(bun: Bundles, net: Uses, s: Scratch, k: int) -> None:
    """Bring class k up to date and tell later classes what it leaves them."""
    n_touched = _take_touched(net, s, k)
    n_used = _fill_class(bun, net, s, k, n_touched)
    for u in s.used[:n_used]:
        if net.later[u] >= 0:
            pass_on(bun, net, net.later[u], leaves(bun, net, u))
    for u in s.touched[:n_touched]:
        if s.stamp[u] != net.tally[STAMP] and net.later[u] >= 0:
            pass_on(bun, net, net.later[u], leaves(bun, net, u))
        if net.n_on[u] == 0:
            unlink_use(net, u)
            give_back(net, u)
    b = net.seeds[k]
    while b >= 0:
        net.seed[b] = 0
        b = net.next_seed[b]
    net.seeds[k] = NOTHING
    net.floor[k] = np.inf
    if net.size[k] == 0:
        close_class(net, k)
    else:
        gather(bun, net, s, k)


@inner
def _repair(bun: Bundles, net: Uses, s: Scratch) -> None:
    """Bring all rates up to date after what has been noted since they were."""
    bun.count[N_REPAIRS] += 1
    pass_on_freed(bun, net)
    for i in range(net.tally[N_SEEDS]):
        b = net.seeded[i]
        k = net.class_of[b]
        if bun.members[b] and k >= 0:
            weigh(bun, net, b)
            net.next_seed[b] = net.seeds[k]
            net.seeds[k] = b
            wake(net, k)
        else:
            net.seed[b] = 0
    net.tally[N_SEEDS] = 0
    k = next_awake(net)
    while k >= 0:
        _repair_class(bun, net, s, k)
        k = next_awake(net)


@inner
def reallocate(bun: Bundles, net: Uses, s: Scratch) -> None:
    """Give every bundle its rate and say when its first flow is due."""
    if bun.count[UNSORTED] or bun.count[STALE]:
        disperse(bun, net)
        tidy_slots(bun)
        _book(bun)
        if bun.count[UNSORTED]:
            lay_out(bun, net, s)
        _fill_all(bun, net, s)
    else:
        _repair(bun, net, s)
    bun.count[DIRTY] = 0
    bun.count[N_ALLOCATIONS] += 1
