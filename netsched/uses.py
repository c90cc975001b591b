"""Who is on which link: per link its uses in the order of their classes, per use the bundles on it.

A *use* is a link together with a class that has bundles there. What a class may take of a link is what the
uses before its own leave, so that a change travels along a link from use to use, and only while it matters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netsched.bundles import N_FREED, Bundles
from netsched.jit import inner
from netsched.model import Floats, Ints, ShortInts

NOTHING = -1
"""No use, bundle, class or hop."""

BY_CAP = -2
"""`bottleneck` of a bundle that has all that its caps allow."""

NOISE = 1e-10
"""Capacity left over below this share of the link is rounding, not bandwidth for a lower class."""

SAME = 1e-13
"""Rates that differ by less than this share (of the link's capacity, of the rate) differ by rounding only."""

# Positions in Uses.tally.
SHIFT, N_CLASSES, N_USES, N_SPARE, N_AWAKE, N_SEEDS, STAMP, N_SLOTS, N_VACANT = range(9)

LOST, CHANGED = 1, 2
"""Why a bundle is a seed: it has fewer connections and is else as it was, or anything."""


class Uses(NamedTuple):
    """Columns per hop, per use, per link, per class and per bundle; `tally` holds the scalars.

    of_hop, after, before   hop h of bundle b is b << SHIFT | h: its use, its neighbours among that use's hops
    link, cls     of a use; `earlier` and `later` are the uses of the same link next in class order,
                  `fellow_before` and `fellow_after` the uses of the same class in the chain from `first_of`
    first_hop     of a use: the hops on it, chained by `after`/`before`; those of parked bundles (crossing.py)
                  are chained from `first_parked` of the use that blocks them, and nowhere else
    n_on          of a use: how many bundles' paths have it, parked or not
    weight_on     of a use: the `plain` weights of its bundles that are not parked, added up
    entry, load   bytes/s that the classes before leave of the link, and that this one takes of them
    is_dirty, next_dirty   uses of which rates must be looked at, chained from `dirty` of the class
    spare         uses given back, N_SPARE of them; those from N_USES on were never taken
    first_use, last_use   of a link
    value         what bundles call a class (`Bundles.cls`)
    ordered, place   the N_CLASSES classes by value, which is the order of their priority; where each is there
    vacant        classes given back, N_VACANT of them; those from N_SLOTS on were never opened
    newest        of a class: its bundles that are not parked, chained by `next_peer`/`last_peer`
    size, n_parked   of a class: the number of its bundles, and of those that are parked (is_parked)
    plain         weight of a bundle that has a whole one, no cap and a link, else 0: sums of it are exact
    n_special     of a class: how many of its bundles are not plain
    seeds         of a class: bundles whose own claims changed, chained by `next_seed`
    floor         of a class: bundles of a lower level than this are as max-min wants them
    pause, wait   of a class: how often to compute its rates as a whole, now and after the next vain try
    awake         heap, by place, of the classes with something to do (is_awake)
    end_hop       hops of a bundle end before this one
    class_of      class of a bundle that is on its links, else NOTHING
    bottleneck    the use that holds a bundle at its level, or BY_CAP; `n_held` of a use counts whom it holds,
                  those parked there apart
    seeded        the N_SEEDS bundles that are seeds (`seed` says why) and not chained yet
    share         [0]: how much of a class may be repaired before it is cheaper to compute the whole class
    """

    of_hop: ShortInts
    after: ShortInts
    before: ShortInts
    link: Ints
    cls: Ints
    first_hop: Ints
    first_parked: Ints
    n_on: Ints
    n_held: Ints
    fellow_before: Ints
    fellow_after: Ints
    earlier: Ints
    later: Ints
    weight_on: Floats
    entry: Floats
    load: Floats
    is_dirty: np.ndarray
    next_dirty: Ints
    spare: Ints
    first_use: Ints
    last_use: Ints
    value: Ints
    ordered: Ints
    place: Ints
    vacant: Ints
    newest: Ints
    size: Ints
    n_parked: Ints
    n_special: Ints
    first_of: Ints
    dirty: Ints
    seeds: Ints
    floor: Floats
    pause: Ints
    wait: Ints
    awake: Ints
    is_awake: np.ndarray
    end_hop: ShortInts
    class_of: ShortInts
    next_peer: ShortInts
    last_peer: ShortInts
    is_parked: np.ndarray
    plain: Floats
    bottleneck: ShortInts
    seed: np.ndarray
    seeded: Ints
    next_seed: Ints
    share: Floats
    tally: Ints


def open_uses(n_flows: int, path_of_flow: Ints, path_ptr: Ints, n_links: int, share: float) -> Uses:
    """Room for as many bundles as flows, on their paths (CSR of link ids). `share` as in `Uses`."""
    hops = np.diff(path_ptr)
    n_uses = int(hops[path_of_flow].sum())
    shift = max(int(hops.max(initial=1)) - 1, 0).bit_length()

    def ints(n: int) -> Ints:
        return np.zeros(n, np.int64)

    def short(n: int) -> ShortInts:
        return np.zeros(n, np.int32)

    uses = Uses(
        of_hop=short(n_flows << shift),
        after=short(n_flows << shift),
        before=short(n_flows << shift),
        link=ints(n_uses),
        cls=ints(n_uses),
        first_hop=ints(n_uses),
        first_parked=ints(n_uses),
        n_on=ints(n_uses),
        n_held=ints(n_uses),
        fellow_before=ints(n_uses),
        fellow_after=ints(n_uses),
        earlier=ints(n_uses),
        later=ints(n_uses),
        weight_on=np.zeros(n_uses),
        entry=np.zeros(n_uses),
        load=np.zeros(n_uses),
        is_dirty=np.zeros(n_uses, np.int8),
        next_dirty=ints(n_uses),
        spare=ints(n_uses),
        first_use=np.full(n_links, NOTHING, np.int64),
        last_use=np.full(n_links, NOTHING, np.int64),
        value=ints(n_flows),
        ordered=ints(n_flows),
        place=ints(n_flows),
        vacant=ints(n_flows),
        newest=ints(n_flows),
        size=ints(n_flows),
        n_parked=ints(n_flows),
        n_special=ints(n_flows),
        first_of=ints(n_flows),
        dirty=ints(n_flows),
        seeds=ints(n_flows),
        floor=np.zeros(n_flows),
        pause=ints(n_flows),
        wait=ints(n_flows),
        awake=ints(n_flows),
        is_awake=np.zeros(n_flows, np.int8),
        end_hop=short(n_flows),
        class_of=short(n_flows),
        next_peer=short(n_flows),
        last_peer=short(n_flows),
        is_parked=np.zeros(n_flows, np.int8),
        plain=np.zeros(n_flows),
        bottleneck=short(n_flows),
        seed=np.zeros(n_flows, np.int8),
        seeded=ints(n_flows),
        next_seed=ints(n_flows),
        share=np.array([share]),
        tally=ints(9),
    )
    uses.tally[SHIFT] = shift
    return uses


@inner
def wake(net: Uses, k: int) -> None:
    """Have class k looked at by the next repair."""
    if net.is_awake[k]:
        return
    net.is_awake[k] = 1
    i = net.tally[N_AWAKE]
    net.tally[N_AWAKE] += 1
    while i > 0 and net.place[net.awake[(i - 1) >> 1]] > net.place[k]:
        net.awake[i] = net.awake[(i - 1) >> 1]
        i = (i - 1) >> 1
    net.awake[i] = k


@inner
def next_awake(net: Uses) -> int:
    """Take the first class in order that has something to do, NOTHING if there is none."""
    n = net.tally[N_AWAKE] - 1
    if n < 0:
        return NOTHING
    net.tally[N_AWAKE] = n
    k, last, i = net.awake[0], net.awake[n], 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and net.place[net.awake[child + 1]] < net.place[net.awake[child]]:
            child += 1
        if net.place[net.awake[child]] >= net.place[last]:
            break
        net.awake[i] = net.awake[child]
        i = child
    net.awake[i] = last
    net.is_awake[k] = 0
    return int(k)


@inner
def mark(net: Uses, u: int) -> None:
    """Have the rates on use u looked at by the next repair."""
    if not net.is_dirty[u]:
        k = net.cls[u]
        net.is_dirty[u] = 1
        net.next_dirty[u] = net.dirty[k]
        net.dirty[k] = u
        wake(net, k)


@inner
def leaves(bun: Bundles, net: Uses, u: int) -> float:
    """Bytes/s of its link that use u leaves to later classes."""
    left = net.entry[u] - net.load[u]
    return float(left) if left >= bun.capacity[net.link[u]] * NOISE else 0.0


@inner
def offered(bun: Bundles, net: Uses, u: int) -> float:
    """Bytes/s of its link that reserves and earlier classes leave to use u."""
    if net.earlier[u] >= 0:
        return leaves(bun, net, net.earlier[u])
    return float(bun.unbooked[net.link[u]])


@inner
def _level_from(net: Uses, u: int, least: float) -> float:
    """A level that use u does not hold anybody below, as long as `least` or more is left to it."""
    if least <= 0.0 or net.n_special[net.cls[u]]:
        return 0.0
    return float(least / net.weight_on[u]) if net.weight_on[u] > 0.0 else np.inf


@inner
def pass_on(bun: Bundles, net: Uses, u: int, left: float) -> None:
    """Tell use u, and through it the later ones, how much there is now.

    A use that neither was nor becomes used up passes the change on: every bundle on it still has the
    bottleneck that it had, and that is all that max-min asks (Bertsekas and Gallager, 6.5.2).
    """
    while u >= 0:
        capacity = bun.capacity[net.link[u]]
        if abs(left - net.entry[u]) <= SAME * capacity:
            return
        was_full = leaves(bun, net, u) <= 0.0
        least = min(left, net.entry[u])
        net.entry[u] = left
        if was_full or left - net.load[u] < capacity * NOISE:
            k = net.cls[u]
            net.floor[k] = min(net.floor[k], _level_from(net, u, least))
            mark(net, u)
            return
        if net.is_dirty[u]:
            return
        left = leaves(bun, net, u)
        u = net.later[u]


@inner
def pass_on_freed(bun: Bundles, net: Uses) -> None:
    """Tell the first class on every link what ended reserves have freed there."""
    for i in range(bun.count[N_FREED]):
        link = bun.freed[i]
        bun.is_freed[link] = 0
        pass_on(bun, net, net.first_use[link], bun.unbooked[link])
    bun.count[N_FREED] = 0


@inner
def link_use(net: Uses, u: int) -> None:
    """Put use u among those of its link, in the place of its class."""
    link, place = net.link[u], net.place[net.cls[u]]
    before = net.last_use[link]
    while before >= 0 and net.place[net.cls[before]] > place:
        before = net.earlier[before]
    after = net.later[before] if before >= 0 else net.first_use[link]
    net.earlier[u] = before
    net.later[u] = after
    if before >= 0:
        net.later[before] = u
    else:
        net.first_use[link] = u
    if after >= 0:
        net.earlier[after] = u
    else:
        net.last_use[link] = u


@inner
def unlink_use(net: Uses, u: int) -> None:
    """Take use u out of those of its link."""
    before, after, link = net.earlier[u], net.later[u], net.link[u]
    if before >= 0:
        net.later[before] = after
    else:
        net.first_use[link] = after
    if after >= 0:
        net.earlier[after] = before
    else:
        net.last_use[link] = before


@inner
def give_back(net: Uses, u: int) -> None:
    """Let a use that is on no link and that nobody is on be used again."""
    before, after = net.fellow_before[u], net.fellow_after[u]
    if before >= 0:
        net.fellow_after[before] = after
    else:
        net.first_of[net.cls[u]] = after
    if after >= 0:
        net.fellow_before[after] = before
    net.is_dirty[u] = 0
    net.spare[net.tally[N_SPARE]] = u
    net.tally[N_SPARE] += 1


@inner
def use_of(bun: Bundles, net: Uses, link: int, k: int) -> int:
    """The use of the link by class k, made where there is none yet."""
    place = net.place[k]
    u = net.last_use[link]
    while u >= 0 and net.place[net.cls[u]] > place:
        u = net.earlier[u]
    if u >= 0 and net.cls[u] == k:
        return int(u)
    if net.tally[N_SPARE]:
        net.tally[N_SPARE] -= 1
        u = net.spare[net.tally[N_SPARE]]
    else:
        u = net.tally[N_USES]
        net.tally[N_USES] += 1
    net.link[u] = link
    net.cls[u] = k
    net.first_hop[u] = NOTHING
    net.first_parked[u] = NOTHING
    net.n_on[u] = 0
    net.n_held[u] = 0
    net.weight_on[u] = 0.0
    fellow = net.first_of[k]
    net.fellow_before[u] = NOTHING
    net.fellow_after[u] = fellow
    if fellow >= 0:
        net.fellow_before[fellow] = u
    net.first_of[k] = u
    net.is_dirty[u] = 0
    net.load[u] = 0.0
    link_use(net, u)
    net.entry[u] = offered(bun, net, u)
    return int(u)


@inner
def note(net: Uses, b: int, why: int) -> None:
    """Have bundle b, whose own claims have changed, looked at by the next repair."""
    if not net.seed[b]:
        net.seeded[net.tally[N_SEEDS]] = b
        net.tally[N_SEEDS] += 1
    net.seed[b] = max(net.seed[b], why)
