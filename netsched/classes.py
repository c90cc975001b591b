"""The bundles in the order of their classes, and who of a class shares in what earlier classes leave.

Strict priority asks in this order, event after event, so the order is kept and not sought again.
"""

from __future__ import annotations

from netsched.allocate import Scratch, sort_by
from netsched.bundles import (
    HIGH,
    N_ACTIVE,
    N_CHANGED,
    N_CLASSES,
    STALE,
    STAMP,
    TOP,
    UNSORTED,
    Bundles,
    catch_up,
    due_of,
)
from netsched.jit import kernel
from netsched.model import BEST_EFFORT, Ints

NO_CLASS = -1
"""`class_of` a bundle that may have nothing beyond its reserves and so is in no class's way."""

SAME = 1e-13
"""Rates that differ by less than this share (of the link's capacity, of the rate) differ by rounding only."""


@kernel
def weight_in(bun: Bundles, b: int) -> float:
    """The weight of all connections of bundle b together."""
    return float(bun.unit_weight[b] * (1 if bun.queued[0] else bun.members[b]))


@kernel
def put_rate(bun: Bundles, b: int, level: float, weight: float) -> None:
    """Give bundle b its reserves and bytes/s per unit of weight from now on; note it if that is a change."""
    rate = bun.booked[b] + level * bun.unit_weight[b]
    bun.level[b] = level
    bun.total[b] = level * weight
    if abs(rate - bun.unit_rate[b]) > SAME * rate:
        catch_up(bun, b, bun.clock[0])
        bun.v_at[b] = bun.clock[0]
        bun.unit_rate[b] = rate
        bun.due[b] = due_of(bun, b)
        bun.changed[bun.count[N_CHANGED]] = b
        bun.count[N_CHANGED] += 1


@kernel
def _sort(order: Ints, cls: Ints, s: Scratch) -> None:
    """Sort bundles by class, in place and stable: by counting where classes are few small numbers."""
    n, top = len(order), -1
    done = True
    for i in range(n):
        c = cls[order[i]]
        if i and c < cls[order[i - 1]]:
            done = False
        if c != BEST_EFFORT:
            top = max(top, c)
    if done:
        return
    if top + 3 > min(4 * n, len(s.by_cap)):
        sort_by(cls, order, s.spare)
        return
    at = s.by_cap
    for c in range(top + 3):
        at[c] = 0
    for b in order:
        at[min(cls[b], top + 1) + 1] += 1
    for c in range(top + 2):
        at[c + 1] += at[c]
    for i in range(n):
        s.spare[i] = order[i]
    for i in range(n):
        b = s.spare[i]
        c = min(cls[b], top + 1)
        order[at[c]] = b
        at[c] += 1


@kernel
def tidy_slots(bun: Bundles) -> None:
    """Put active and free slots in ascending order: what is looked at together lies together then."""
    n_active, n_free = 0, len(bun.free) - bun.count[TOP]
    bun.count[HIGH] = 0
    for b in range(bun.count[TOP]):
        if bun.members[b]:
            bun.active[n_active] = b
            bun.place[b] = n_active
            n_active += 1
            bun.count[HIGH] = b + 1
    for b in range(bun.count[TOP] - 1, -1, -1):
        if bun.members[b] == 0:
            bun.free[n_free] = b
            n_free += 1


@kernel
def sort_classes(bun: Bundles, s: Scratch) -> None:
    """Lay out `order`, the classes and the links that each uses; all rates are then STALE."""
    n = 0
    for i in range(bun.count[N_ACTIVE]):
        b = bun.active[i]
        if bun.uncapped[b] == 0 and bun.cap_sum[b] <= 0:
            bun.class_of[b] = NO_CLASS
            put_rate(bun, b, 0.0, 1.0)
        else:
            bun.order[n] = b
            n += 1
    order = bun.order[:n]
    _sort(order, bun.cls, s)
    k, used, hops, stamp = -1, 0, 0, bun.count[STAMP]
    for i in range(n):
        b = order[i]
        if i == 0 or bun.cls[b] != bun.cls[order[i - 1]]:
            if k >= 0:
                bun.class_end[k] = i
            k += 1
            stamp += 1
            bun.class_first[k] = i
            bun.use_first[k] = used
            bun.hop_first[k] = hops
            bun.class_indexed[k] = 0
        bun.class_of[b] = k
        bun.sharing[b] = 1
        for h in range(bun.path_ptr[bun.path[b]], bun.path_ptr[bun.path[b] + 1]):
            link = bun.path_links[h]
            if s.stamp[link] != stamp:
                s.stamp[link] = stamp
                bun.use_link[used] = link
                used += 1
        hops += bun.path_ptr[bun.path[b] + 1] - bun.path_ptr[bun.path[b]]
    if k >= 0:
        bun.class_end[k] = n
    bun.use_first[k + 1] = used
    bun.class_first[k + 1] = n
    for i in range(n):
        bun.whole[i] = order[i]
    bun.count[N_CLASSES] = k + 1
    bun.count[STAMP] = stamp
    bun.count[UNSORTED] = 0
    bun.count[STALE] = 1


@kernel
def is_blocked(bun: Bundles, s: Scratch, b: int) -> bool:
    """Whether a link of bundle b has nothing left."""
    for h in range(bun.path_ptr[bun.path[b]], bun.path_ptr[bun.path[b] + 1]):
        if s.residual[bun.path_links[h]] <= 0.0:
            return True
    return False


@kernel
def _index(bun: Bundles, s: Scratch, k: int) -> None:
    """List the bundles of class k per link in `on_use`."""
    first, end = bun.use_first[k], bun.use_first[k + 1]
    for u in range(first, end):
        s.first[bun.use_link[u]] = 0
    for i in range(bun.class_first[k], bun.class_first[k + 1]):
        p = bun.path[bun.whole[i]]
        for h in range(bun.path_ptr[p], bun.path_ptr[p + 1]):
            s.first[bun.path_links[h]] += 1
    at = bun.hop_first[k]
    for u in range(first, end):
        bun.use_hop[u] = at
        at += s.first[bun.use_link[u]]
        s.first[bun.use_link[u]] = bun.use_hop[u]
    for i in range(bun.class_first[k], bun.class_first[k + 1]):
        p = bun.path[bun.whole[i]]
        for h in range(bun.path_ptr[p], bun.path_ptr[p + 1]):
            link = bun.path_links[h]
            bun.on_use[s.first[link]] = bun.whole[i]
            s.first[link] += 1
    for u in range(first, end):
        bun.use_hop_end[u] = s.first[bun.use_link[u]]
    bun.class_indexed[k] = 1


@kernel
def admit(bun: Bundles, s: Scratch, k: int, u: int) -> None:
    """Bring those bundles of class k on the link of use u back that are no longer blocked by any link."""
    if not bun.class_indexed[k]:
        _index(bun, s, k)
    for i in range(bun.use_hop[u], bun.use_hop_end[u]):
        b = bun.on_use[i]
        if not bun.sharing[b] and bun.members[b] and not is_blocked(bun, s, b):
            bun.sharing[b] = 1
            bun.order[bun.class_end[k]] = b
            bun.class_end[k] += 1
