"""Computes the rates of one class as a whole, from a level on that no change reaches.

Mostly all bundles of a class are plain: without caps, and their weights are whole numbers, so that what is
added to a sum of them and taken off again leaves nothing. Then the weight on each link is at hand
(`Uses.weight_on`), and one pass over the bundles finds their rates and puts them into effect.
"""

from __future__ import annotations

import numpy as np

from netsched.allocate import Scratch, begin, open_bundle, sift, touch, water_fill, weight_in
from netsched.bundles import Bundles
from netsched.crossing import hold, parks
from netsched.dues import put_rate
from netsched.jit import inner
from netsched.repair import ABOVE
from netsched.uses import CHANGED, NOTHING, SHIFT, STAMP, Uses


@inner
def _weight_on(bun: Bundles, net: Uses, u: int) -> float:
    """The weight of all bundles on use u that are not parked."""
    if not net.n_special[net.cls[u]]:
        return float(net.weight_on[u])
    weight = 0.0
    x = net.first_hop[u]
    while x >= 0:
        weight += weight_in(bun, x >> net.tally[SHIFT])
        x = net.after[x]
    return weight


@inner
def untouched_level(bun: Bundles, net: Uses, k: int) -> float:
    """Bundles of class k below this level keep it, whatever the seeds get.

    A connection that ends leaves those alone that had less than itself, and one that comes those that have
    less than it gets. That is at least what would be its part if all on its links were held by these.
    """
    floor = net.floor[k]
    b = net.seeds[k]
    while b >= 0 and floor > 0.0:
        if net.seed[b] == CHANGED:
            if bun.uncapped[b] == 0:
                floor = min(floor, max(0.0, bun.cap_sum[b]) / weight_in(bun, b))
            x = b << net.tally[SHIFT]
            for y in range(x, net.end_hop[b]):
                u = net.of_hop[y]
                floor = min(floor, net.entry[u] / _weight_on(bun, net, u))
        b = net.next_seed[b]
    return float(floor) / ABOVE


@inner
def fill_whole(bun: Bundles, net: Uses, s: Scratch, k: int, floor: float) -> tuple[int, int]:
    """Fill all bundles of class k at `floor` or above that are not parked: how many they are, and uses."""
    begin(net, s)
    n, n_used = 0, 0
    b = net.newest[k]
    while b >= 0:
        if floor > 0.0 and bun.level[b] < floor and net.bottleneck[b] != NOTHING:
            x = b << net.tally[SHIFT]
            for y in range(x, net.end_hop[b]):
                u = net.of_hop[y]
                n_used = touch(net, s, u, n_used)
                s.residual[u] -= bun.total[b]
        else:
            n_used = open_bundle(bun, net, s, b, n_used)
            s.group[n] = b
            n += 1
        b = net.next_peer[b]
    water_fill(bun, net, s, n, n_used)
    return n, n_used


@inner
def _plain_level(s: Scratch, u: int) -> float:
    """The level at which the open bundles fill use u, where all are plain."""
    return max(0.0, s.residual[u]) / s.weight[u] if s.weight[u] > 0.0 else np.inf


@inner
def _take_uses(net: Uses, s: Scratch, k: int) -> int:
    """Have all uses of class k take part that somebody is on; their number."""
    n_used = 0
    u = net.first_of[k]
    while u >= 0:
        if net.weight_on[u] > 0.0:
            s.stamp[u] = net.tally[STAMP]
            s.residual[u] = net.entry[u]
            s.weight[u] = net.weight_on[u]
            s.used[n_used] = u
            n_used += 1
        u = net.fellow_after[u]
    return n_used


@inner
def _give(
    bun: Bundles, net: Uses, s: Scratch, u: int, level: float, floor: float, n_idle: int
) -> tuple[int, int]:
    """Give the open bundles on use u, which they fill, this level: how many they are, and are in `group`.

    Those that get nothing are added to the `n_idle` of `group`. Below `floor` they have that level already.
    """
    stamp, n = net.tally[STAMP], 0
    s.residual[u] -= level * s.weight[u]
    s.weight[u] = 0.0
    x = net.first_hop[u]
    while x >= 0:
        b = x >> net.tally[SHIFT]
        if s.done[b] != stamp:
            s.done[b] = stamp
            n += 1
            weight = net.plain[b]
            for y in range(b << net.tally[SHIFT], net.end_hop[b]):
                other = net.of_hop[y]
                if other != u:
                    s.residual[other] -= level * weight
                    s.weight[other] -= weight
            if level >= floor or net.bottleneck[b] == NOTHING:
                put_rate(bun, b, level, weight)
                hold(net, b, u)
                if level <= 0.0:
                    s.group[n_idle] = b
                    n_idle += 1
        x = net.after[x]
    return n, n_idle


@inner
def fill_plain(bun: Bundles, net: Uses, s: Scratch, k: int, floor: float) -> int:
    """As `fill_whole` for a class whose bundles are all plain, and put it into effect; how many uses."""
    begin(net, s)
    heap, at_use = s.used, s.level
    n_used = _take_uses(net, s, k)
    left = net.size[k] - net.n_parked[k]
    for i in range(n_used):
        at_use[heap[i]] = _plain_level(s, heap[i])
    for i in range(n_used // 2 - 1, -1, -1):
        sift(heap, at_use, n_used, i)
    n_idle = 0
    while left:
        u = heap[0]
        level = _plain_level(s, u)
        if level <= at_use[u]:
            given, n_idle = _give(bun, net, s, u, at_use[u], floor, n_idle)
            left -= given
            level = np.inf
        at_use[u] = level
        sift(heap, at_use, n_used, 0)
    for b in s.group[:n_idle]:
        parks(bun, net, b)
    return n_used
