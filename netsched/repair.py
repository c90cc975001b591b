"""Repairs the rates of one class around what has changed in it, and nowhere else.

Max-min is a condition on every bundle by itself: it has its cap, or a full link on which no other of its
class has more per weight (Bertsekas and Gallager, 6.5.2). So bundles far from a change keep their rates: who
is next to it is filled anew on what the others leave, and whoever sees its condition broken by that joins.
"""

from __future__ import annotations

import numpy as np

from netsched.allocate import Scratch, begin, open_bundle, water_fill
from netsched.bundles import Bundles
from netsched.crossing import comes_back, parks, unpark
from netsched.jit import inner
from netsched.uses import NOTHING, SHIFT, Uses

_FULL = 1e-12
"""A link of which less than this share is left over is full."""

ABOVE = 1 + 1e-11
"""A level that is higher than another one by this factor is higher by more than rounding."""

_LOOK = 0.1
"""To look at a bundle takes so much of the time that it takes to fill it."""


@inner
def _join(net: Uses, s: Scratch, b: int, n: int) -> int:
    """Add bundle b to the group of n that is filled anew; how many they are then."""
    if s.inside[b]:
        return n
    s.inside[b] = 1
    s.group[n] = b
    return n + 1


@inner
def _join_from(bun: Bundles, net: Uses, s: Scratch, u: int, n: int) -> int:
    """Add those bundles of use u to the group that its change concerns, and add up what all on it take."""
    x = net.first_parked[u] if net.entry[u] > 0.0 else NOTHING
    while x >= 0:
        following = net.after[x]
        if comes_back(net, x >> net.tally[SHIFT]):
            n = _join(net, s, x >> net.tally[SHIFT], n)
        x = following
    taken = 0.0
    x = net.first_hop[u]
    while x >= 0 and net.load[u] > 0.0:
        taken += bun.total[x >> net.tally[SHIFT]]
        x = net.after[x]
    net.load[u] = taken
    slack = _FULL * bun.capacity[net.link[u]]
    over = taken > net.entry[u] + slack
    if not over and (taken >= net.entry[u] - slack or net.n_held[u] == 0):
        return n
    x = net.first_hop[u]
    while x >= 0:
        b, following = x >> net.tally[SHIFT], net.after[x]
        # Who is in the group already stays among those to be filled, and is parked with what that finds.
        if not s.inside[b] and (over or net.bottleneck[b] == u) and not parks(bun, net, b):
            n = _join(net, s, b, n)
        x = following
    return n


@inner
def first_concerned(bun: Bundles, net: Uses, s: Scratch, k: int, n_touched: int) -> int:
    """Start the group with whose claims changed and with whom the `n_touched` uses in `touched` concern."""
    n = 0
    b = net.seeds[k]
    while b >= 0:
        if net.is_parked[b]:
            unpark(net, b)
        n = _join(net, s, b, n)
        b = net.next_seed[b]
    for u in s.touched[:n_touched]:
        n = _join_from(bun, net, s, u, n)
    return n


@inner
def _look_outside(bun: Bundles, net: Uses, s: Scratch, u: int) -> int:
    """Take what bundles outside the group have of use u off its residual; note their extreme levels.

    How many bundles are on it.
    """
    n = 0
    s.highest[u] = 0.0
    s.lowest[u] = np.inf
    x = net.first_hop[u]
    while x >= 0:
        n += 1
        b = x >> net.tally[SHIFT]
        if not s.inside[b]:
            s.residual[u] -= bun.total[b]
            s.highest[u] = max(s.highest[u], bun.level[b])
            if net.bottleneck[b] == u:
                s.lowest[u] = min(s.lowest[u], bun.level[b])
        x = net.after[x]
    return n


@inner
def _join_broken(bun: Bundles, net: Uses, s: Scratch, u: int, n: int) -> int:
    """Add those outside the group whose condition the filling has broken on use u."""
    is_full = s.residual[u] <= _FULL * bun.capacity[net.link[u]]
    most = max(s.peak[u], s.highest[u])
    if not (
        (s.lowest[u] < np.inf and (not is_full or s.lowest[u] * ABOVE < most))
        or s.highest[u] > s.frozen[u] * ABOVE
    ):
        return n
    x = net.first_hop[u]
    while x >= 0:
        b, following = x >> net.tally[SHIFT], net.after[x]
        if not s.inside[b]:
            level = bun.level[b]
            held = net.bottleneck[b] == u
            broken = (held and (not is_full or level * ABOVE < most)) or level > s.frozen[u] * ABOVE
            if broken and not parks(bun, net, b):
                n = _join(net, s, b, n)
        x = following
    return n


@inner
def fill_around(bun: Bundles, net: Uses, s: Scratch, n: int, limit: float) -> tuple[int, int]:
    """Fill the group of n anew, with all whom that concerns in turn: how many are filled, and uses touched.

    (number, NOTHING) once all rounds together are more work than to fill `limit` bundles.
    """
    work = 0.0
    while True:
        work += n
        if work > limit:
            return n, NOTHING
        begin(net, s)
        n_used, looked = 0, 0
        for b in s.group[:n]:
            n_used = open_bundle(bun, net, s, b, n_used)
        for u in s.used[:n_used]:
            looked += _look_outside(bun, net, s, u)
        water_fill(bun, net, s, n, n_used)
        grown = n
        for u in s.used[:n_used]:
            grown = _join_broken(bun, net, s, u, grown)
        work += looked * _LOOK
        if grown == n:
            return n, n_used
        n = grown
