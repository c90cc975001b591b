"""The order of the classes, and how it changes while bundles are on their links.

A coflow that comes, ends, or sinks below others changes the place of one class among hundreds. So classes are
slots that keep their number, and a class that moves takes its uses along, link by link; the others stay.
"""

from __future__ import annotations

from netsched.allocate import Scratch, sort_by
from netsched.bundles import DIRTY, Bundles
from netsched.jit import inner
from netsched.model import Ints
from netsched.uses import (
    N_AWAKE,
    N_CLASSES,
    N_SLOTS,
    N_VACANT,
    NOTHING,
    Uses,
    give_back,
    link_use,
    offered,
    pass_on,
    unlink_use,
    wake,
)

UNSEEN = -1
"""The name of a class that a plan says nothing of."""


@inner
def _first_from(net: Uses, cls: int) -> int:
    """The place of the first class with a name of `cls` or higher."""
    low, high = 0, net.tally[N_CLASSES]
    while low < high:
        middle = (low + high) >> 1
        if net.value[net.ordered[middle]] < cls:
            low = middle + 1
        else:
            high = middle
    return int(low)


@inner
def class_named(net: Uses, cls: int) -> int:
    """The class that bundles call `cls`, opened in its place where there is none yet."""
    i = _first_from(net, cls)
    if i < net.tally[N_CLASSES] and net.value[net.ordered[i]] == cls:
        return int(net.ordered[i])
    if net.tally[N_VACANT]:
        net.tally[N_VACANT] -= 1
        k = net.vacant[net.tally[N_VACANT]]
    else:
        k = net.tally[N_SLOTS]
        net.tally[N_SLOTS] += 1
    for j in range(net.tally[N_CLASSES], i, -1):
        net.ordered[j] = net.ordered[j - 1]
        net.place[net.ordered[j]] = j
    net.ordered[i] = k
    net.place[k] = i
    net.tally[N_CLASSES] += 1
    net.value[k] = cls
    net.newest[k] = NOTHING
    net.size[k] = 0
    net.n_parked[k] = 0
    net.n_special[k] = 0
    net.first_of[k] = NOTHING
    net.dirty[k] = NOTHING
    net.seeds[k] = NOTHING
    net.floor[k] = 0.0
    net.pause[k] = 0
    net.wait[k] = 0
    net.is_awake[k] = 0
    return int(k)


@inner
def close_class(net: Uses, k: int) -> None:
    """Give back a class without bundles and uses."""
    net.tally[N_CLASSES] -= 1
    for j in range(net.place[k], net.tally[N_CLASSES]):
        net.ordered[j] = net.ordered[j + 1]
        net.place[net.ordered[j]] = j
    net.vacant[net.tally[N_VACANT]] = k
    net.tally[N_VACANT] += 1


@inner
def _note_movers(net: Uses, s: Scratch, name: Ints) -> int:
    """Write classes into `by_cap` that must move so that names ascend, as few as can be; their number.

    Those that stay are a longest increasing subsequence of names (Schensted 1961), found by patience sorting.
    """
    seen, last, before = s.by_cap, s.spare, s.frozen_by
    n, longest = 0, 0
    for i in range(net.tally[N_CLASSES]):
        if name[net.ordered[i]] != UNSEEN:
            seen[n] = net.ordered[i]
            n += 1
    for i in range(n):
        low, high = 0, longest
        while low < high:
            middle = (low + high) >> 1
            if name[seen[last[middle]]] < name[seen[i]]:
                low = middle + 1
            else:
                high = middle
        before[i] = last[low - 1] if low else NOTHING
        last[low] = i
        longest = max(longest, low + 1)
    i = last[longest - 1] if longest else NOTHING
    while i >= 0:
        seen[i] = NOTHING
        i = before[i]
    movers = 0
    for i in range(n):
        if seen[i] != NOTHING:
            seen[movers] = seen[i]
            movers += 1
    return movers


@inner
def _lift(net: Uses, s: Scratch, k: int, n: int) -> int:
    """Take the uses of class k out of their links; add each to `touched` and its follower to `used`."""
    u = net.first_of[k]
    while u >= 0:
        s.touched[n] = u
        s.used[n] = net.later[u]
        unlink_use(net, u)
        n += 1
        u = net.fellow_after[u]
    return n


@inner
def _drop_empty(bun: Bundles, net: Uses, k: int) -> None:
    """Take the uses of a class without bundles, all of which are marked, off their links."""
    u = net.dirty[k]
    while u >= 0:
        after = net.later[u]
        unlink_use(net, u)
        give_back(net, u)
        if after >= 0:
            pass_on(bun, net, after, offered(bun, net, after))
        u = net.next_dirty[u]
    net.dirty[k] = NOTHING


@inner
def _wake_in_order(net: Uses) -> None:
    """Make the heap of awake classes anew, whose places have changed."""
    n = net.tally[N_AWAKE]
    net.tally[N_AWAKE] = 0
    for i in range(n):
        net.is_awake[net.awake[i]] = 0
        wake(net, net.awake[i])


@inner
def rename(bun: Bundles, net: Uses, s: Scratch, name: Ints) -> None:
    """Give class k the name name[k], and with it its place. All names are distinct, or UNSEEN.

    An unseen class is empty and about to be closed: it goes along with the one before it.
    """
    for i in range(net.tally[N_CLASSES]):
        k = net.ordered[i]
        if net.size[k] == 0:
            _drop_empty(bun, net, k)
    movers = _note_movers(net, s, name)
    n = 0
    for i in range(movers):
        n = _lift(net, s, s.by_cap[i], n)
    before = UNSEEN
    for i in range(net.tally[N_CLASSES]):
        k = net.ordered[i]
        if name[k] == UNSEEN:
            name[k] = before
        before = name[k]
        net.value[k] = before
    if not movers:
        return
    sort_by(name, net.ordered[: net.tally[N_CLASSES]], s.spare)
    for i in range(net.tally[N_CLASSES]):
        net.place[net.ordered[i]] = i
    _wake_in_order(net)
    for i in range(n):
        link_use(net, s.touched[i])
    for i in range(n):
        for u in (s.touched[i], net.later[s.touched[i]], s.used[i]):
            if u >= 0:
                pass_on(bun, net, u, offered(bun, net, u))
    bun.count[DIRTY] = 1
