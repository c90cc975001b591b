"""Rates of bundles inside one class: weighted max-min with caps on what earlier classes leave of every link.

A bundle is a set of connections on one path, in one class, with equal claims; the simulator never looks at
single flows here. Max-min by water-filling (Bertsekas and Gallager, Data Networks, 6.5.2): a link's fair
level never falls while others are frozen at a lower one, so a heap whose entries may be stale suffices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netsched.bundles import Bundles
from netsched.jit import inner
from netsched.model import Floats, Ints, ShortInts
from netsched.uses import BY_CAP, SHIFT, STAMP, Uses

LEVEL, WEIGHT = 0, 1
"""Columns of `Scratch.given`."""

N_CAPPED, UNEVEN = range(2)
"""Positions in `Scratch.found`."""


class Scratch(NamedTuple):
    """Working arrays, sized once: per use up to `touched`, then per bundle.

    residual, weight, n_open   what is there for the open bundles of a use, their weight, and their number
    level, used   heap of the uses that are filled
    stamp         tells the uses of this filling from those of earlier ones
    peak, frozen  the highest level that this filling gave out on a use, and the level at which it was full
    highest, lowest   of the bundles on a use that keep their rates: the highest level, the lowest of those
                  whose bottleneck it is
    done          the last filling in which a plain bundle got its level
    found         of this filling: how many bundles all of whose connections have caps (`by_cap`), and whether
                  some weight is no whole number
    group         the bundles that are filled, `inside` is 1 for them where others stay as they are
    given         the level that a bundle gets (LEVEL, below 0 while it is open) and its weight (WEIGHT),
                  side by side because they are looked at together
    frozen_by     the bottleneck that it gets, if it gets a level
    number        0, 1, 2, ...: flows sorted by this are in order of number
    """

    residual: Floats
    weight: Floats
    n_open: Ints
    level: Floats
    used: Ints
    stamp: Ints
    peak: Floats
    frozen: Floats
    highest: Floats
    lowest: Floats
    touched: Ints
    done: Ints
    found: Ints
    group: Ints
    by_cap: Ints
    spare: Ints
    cap_level: Floats
    given: Floats
    frozen_by: ShortInts
    number: Ints
    inside: np.ndarray


def scratch(n_bundles: int, n_uses: int) -> Scratch:
    return Scratch(
        residual=np.zeros(n_uses),
        weight=np.zeros(n_uses),
        n_open=np.zeros(n_uses, np.int64),
        level=np.zeros(n_uses),
        used=np.zeros(n_uses, np.int64),
        stamp=np.zeros(n_uses, np.int64),
        peak=np.zeros(n_uses),
        frozen=np.zeros(n_uses),
        highest=np.zeros(n_uses),
        lowest=np.zeros(n_uses),
        touched=np.zeros(n_uses, np.int64),
        done=np.zeros(n_bundles, np.int64),
        found=np.zeros(2, np.int64),
        group=np.zeros(n_bundles, np.int64),
        by_cap=np.zeros(n_bundles, np.int64),
        spare=np.zeros(n_bundles, np.int64),
        cap_level=np.zeros(n_bundles),
        given=np.zeros((n_bundles, 2)),
        frozen_by=np.zeros(n_bundles, np.int32),
        number=np.arange(n_bundles),
        inside=np.zeros(n_bundles, np.int8),
    )


@inner
def weight_in(bun: Bundles, b: int) -> float:
    """The weight of all connections of bundle b together."""
    return float(bun.unit_weight[b] * (1 if bun.queued[0] else bun.members[b]))


@inner
def begin(net: Uses, s: Scratch) -> None:
    """Start a filling, in which no use and no bundle takes part yet."""
    net.tally[STAMP] += 1
    s.found[N_CAPPED] = 0
    s.found[UNEVEN] = 0


@inner
def touch(net: Uses, s: Scratch, u: int, n_used: int) -> int:
    """Have use u take part in this filling; how many do then."""
    stamp = net.tally[STAMP]
    if s.stamp[u] == stamp:
        return n_used
    s.stamp[u] = stamp
    s.used[n_used] = u
    s.residual[u] = net.entry[u]
    s.weight[u] = 0.0
    s.n_open[u] = 0
    s.peak[u] = 0.0
    s.frozen[u] = np.inf
    return n_used + 1


@inner
def open_bundle(bun: Bundles, net: Uses, s: Scratch, b: int, n_used: int) -> int:
    """Have bundle b take part in this filling; how many uses do then."""
    weight = weight_in(bun, b)
    s.given[b, WEIGHT] = weight
    s.given[b, LEVEL] = -1.0
    if weight != np.floor(weight):
        s.found[UNEVEN] = 1
    if bun.uncapped[b] == 0:
        s.cap_level[b] = max(0.0, bun.cap_sum[b]) / weight
        s.by_cap[s.found[N_CAPPED]] = b
        s.found[N_CAPPED] += 1
    x = b << net.tally[SHIFT]
    for y in range(x, net.end_hop[b]):
        u = net.of_hop[y]
        n_used = touch(net, s, u, n_used)
        s.n_open[u] += 1
        s.weight[u] += weight
    return n_used


@inner
def sift(heap: Ints, level: Floats, n: int, i: int) -> None:
    """Move the use at position i of the min-heap of the first n uses down to where it belongs."""
    use = heap[i]
    at = level[use]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and level[heap[child + 1]] < level[heap[child]]:
            child += 1
        if level[heap[child]] >= at:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = use


@inner
def sort_by(key: Floats | Ints, items: Ints, spare: Ints) -> None:
    """Sort `items` by key[item], in place and stable, with as long an array to help (merge sort)."""
    n, width = len(items), 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            i, j = low, middle
            for at in range(low, high):
                if j >= high or (i < middle and key[items[i]] <= key[items[j]]):
                    spare[at] = items[i]
                    i += 1
                else:
                    spare[at] = items[j]
                    j += 1
        for at in range(n):
            items[at] = spare[at]
        width *= 2


@inner
def _freeze(bun: Bundles, net: Uses, s: Scratch, b: int, at: float, by: int) -> None:
    s.given[b, LEVEL] = at
    s.frozen_by[b] = by
    weight = s.given[b, WEIGHT]
    value = at * weight
    x = b << net.tally[SHIFT]
    for y in range(x, net.end_hop[b]):
        u = net.of_hop[y]
        s.residual[u] -= value
        s.weight[u] -= weight
        s.n_open[u] -= 1
        s.peak[u] = at


@inner
def _use_level(s: Scratch, u: int) -> float:
    """The level at which the open bundles fill use u."""
    if s.n_open[u] == 0:
        return np.inf
    return max(0.0, s.residual[u]) / s.weight[u] if s.weight[u] > 0.0 else 0.0


@inner
def _open_weight(net: Uses, s: Scratch, u: int) -> float:
    """The weight of the open bundles of use u, added up anew: a sum with much taken off is rounding."""
    weight = 0.0
    x = net.first_hop[u]
    while x >= 0:
        b = x >> net.tally[SHIFT]
        if s.given[b, LEVEL] < 0.0:
            weight += s.given[b, WEIGHT]
        x = net.after[x]
    return weight


@inner
def water_fill(bun: Bundles, net: Uses, s: Scratch, n: int, n_used: int) -> None:
    """Weighted max-min with caps for the first n bundles of `group` on the `residual` of the uses they touch.

    All were passed to `open_bundle`, which returned `n_used` last. `residual` is reduced by what they get; a
    bundle on no link, without a cap, keeps a level below 0.
    """
    sort_by(s.cap_level, s.by_cap[: s.found[N_CAPPED]], s.spare)
    for i in range(n_used):
        s.level[s.used[i]] = _use_level(s, s.used[i])
    for i in range(n_used // 2 - 1, -1, -1):
        sift(s.used, s.level, n_used, i)
    _raise_level(bun, net, s, n, n_used)


@inner
def _raise_level(bun: Bundles, net: Uses, s: Scratch, left: int, n_used: int) -> None:
    """Raise the level of all open bundles together; whoever reaches a cap or fills a link stays there."""
    heap, at_use, n_capped = s.used, s.level, s.found[N_CAPPED]
    next_cap = 0
    while left:
        while next_cap < n_capped and s.given[s.by_cap[next_cap], LEVEL] >= 0.0:
            next_cap += 1
        while n_used:
            current = _use_level(s, heap[0])
            if current <= at_use[heap[0]]:
                break
            at_use[heap[0]] = current
            sift(heap, at_use, n_used, 0)
        level = at_use[heap[0]] if n_used else np.inf
        if next_cap < n_capped and s.cap_level[s.by_cap[next_cap]] <= level:
            b = s.by_cap[next_cap]
            _freeze(bun, net, s, b, s.cap_level[b], BY_CAP)
            left -= 1
            continue
        if level == np.inf:
            break
        u = heap[0]
        if s.found[UNEVEN]:
            s.weight[u] = _open_weight(net, s, u)
            exact = _use_level(s, u)
            if exact > level:
                at_use[u] = exact
                sift(heap, at_use, n_used, 0)
                if heap[0] != u:
                    continue
            level = exact
        s.frozen[u] = level
        x = net.first_hop[u]
        while x >= 0:
            b = x >> net.tally[SHIFT]
            if s.given[b, LEVEL] < 0.0:
                _freeze(bun, net, s, b, level, u)
                left -= 1
            x = net.after[x]
        at_use[u] = np.inf
        sift(heap, at_use, n_used, 0)
