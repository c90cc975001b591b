"""Rates of all bundles, class by class, and their repair after a change that reaches only some of them.

Computing everything at each of a trace's tens of thousands of events is what makes simulators slow. Two facts
of strict priority and max-min spare most of it: a class sees only what the classes before it leave of each
link, and a connection that ends leaves all bundles with a lower level than its own as they were.
"""

from __future__ import annotations

import numpy as np

from netsched.allocate import Scratch, caps_fit, open_bundle, water_fill
from netsched.bundles import (
    AT_CAP,
    DIRTY,
    HEAPED,
    KEPT,
    LOST,
    N_ACTIVE,
    N_ALLOCATIONS,
    N_CHANGED,
    N_CLASSES,
    N_FREED,
    N_REPAIRS,
    REDO,
    STALE,
    STAMP,
    UNSORTED,
    Bundles,
)
from netsched.classes import SAME, admit, is_blocked, put_rate, sort_classes, tidy_slots, weight_in
from netsched.jit import kernel

_NOISE = 1e-10
"""Capacity left over below this share of the link is rounding, not bandwidth for a lower class."""

_REPAIRS = 32
"""So many repairs in a row may build on one another's sums before rounding is cleared by a fresh start."""


@kernel
def _fill_class(bun: Bundles, s: Scratch, k: int, floor: float) -> bool:
    """Share `s.residual` in class k among the bundles at `floor` or above; True if all are at their caps.

    The residual of the class's links is what is there for these bundles and, if `floor` is above 0, has
    yet to be increased by what they have now. Bundles that have ended leave `order`, and so do those that
    find a link used up before their class: `admit` brings them back.
    """
    kept, n, n_capped, n_used, at_cap = bun.class_first[k], 0, 0, 0, True
    for i in range(bun.class_first[k], bun.class_end[k]):
        b = bun.order[i]
        if floor > 0.0:
            if bun.level[b] < floor:
                bun.order[kept] = b
                kept += 1
                continue
            for h in range(bun.path_ptr[bun.path[b]], bun.path_ptr[bun.path[b] + 1]):
                s.residual[bun.path_links[h]] += bun.total[b]
            if bun.members[b] == 0:
                continue
        elif bun.members[b] == 0:
            continue
        elif is_blocked(bun, s, b):
            at_cap = False
            bun.sharing[b] = 0
            put_rate(bun, b, 0.0, 1.0)
            continue
        bun.order[kept] = b
        kept += 1
        weight = weight_in(bun, b)
        s.weight_of[b] = weight
        n_used = open_bundle(b, weight, bun.path, bun.path_ptr, bun.path_links, s, bun.level, n_used)
        s.group[n] = b
        n += 1
        if bun.uncapped[b] == 0:
            s.by_cap[n_capped] = b
            n_capped += 1
    bun.class_end[k] = kept
    group, capped = s.group[:n], s.by_cap[:n_capped]
    filled = water_fill(
        group, n_used, capped, s.weight_of, bun.cap_sum, bun.path, bun.path_ptr, bun.path_links, s, bun.level
    )
    for b in group:
        put_rate(bun, b, max(0.0, bun.level[b]), s.weight_of[b])
    for u in range(bun.use_first[k], bun.use_first[k + 1]):
        link = bun.use_link[u]
        if s.residual[link] < bun.capacity[link] * _NOISE:
            s.residual[link] = 0.0
    return at_cap and filled


@kernel
def _fill_all(bun: Bundles, s: Scratch) -> None:
    n_classes = bun.count[N_CLASSES]
    for u in range(bun.use_first[n_classes]):
        s.residual[bun.use_link[u]] = bun.unbooked[bun.use_link[u]]
    at_cap = True
    for k in range(n_classes):
        for u in range(bun.use_first[k], bun.use_first[k + 1]):
            bun.use_entry[u] = s.residual[bun.use_link[u]]
        if not _fill_class(bun, s, k, 0.0):
            at_cap = False
        for u in range(bun.use_first[k], bun.use_first[k + 1]):
            bun.use_exit[u] = s.residual[bun.use_link[u]]
        bun.class_state[k] = KEPT
        bun.class_floor[k] = np.inf
    bun.count[AT_CAP] = 1 if at_cap else 0
    bun.count[STALE] = 0


@kernel
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
        if bun.unbooked[link] < bun.capacity[link] * _NOISE:
            bun.unbooked[link] = 0.0
    _forget_freed(bun)


@kernel
def _forget_freed(bun: Bundles) -> None:
    for i in range(bun.count[N_FREED]):
        bun.is_freed[bun.freed[i]] = 0
    bun.count[N_FREED] = 0


@kernel
def _all_at_cap(bun: Bundles, s: Scratch) -> bool:
    """If all bundles have caps and all caps fit together, give them; then no order is needed at all."""
    n = 0
    for i in range(bun.count[N_ACTIVE]):
        b = bun.active[i]
        if bun.uncapped[b]:
            return False
        if bun.cap_sum[b] > 0:
            s.group[n] = b
            n += 1
    group = s.group[:n]
    for b in group:
        for h in range(bun.path_ptr[bun.path[b]], bun.path_ptr[bun.path[b] + 1]):
            s.residual[bun.path_links[h]] = bun.unbooked[bun.path_links[h]]
    if not caps_fit(group, bun.cap_sum, bun.path, bun.path_ptr, bun.path_links, s):
        return False
    for i in range(bun.count[N_ACTIVE]):
        b = bun.active[i]
        weight = weight_in(bun, b)
        put_rate(bun, b, max(0.0, bun.cap_sum[b]) / weight, weight)
    bun.count[AT_CAP] = 1
    bun.count[UNSORTED] = 1
    return True


@kernel
def _is_reached(bun: Bundles, s: Scratch, k: int, stamp: int) -> bool:
    """Whether class k must share anew because of what the classes before it now leave of the stamped links.

    It need not where such a link neither was nor becomes used up: every bundle of the class still has a
    bottleneck, the same as before, and that is all that max-min asks (Bertsekas and Gallager, 6.5.2).
    """
    for u in range(bun.use_first[k], bun.use_first[k + 1]):
        link = bun.use_link[u]
        if s.stamp[link] == stamp:
            left = bun.use_exit[u] + (s.residual[link] - bun.use_entry[u])
            if bun.use_exit[u] <= 0.0 or left < bun.capacity[link] * _NOISE:
                return True
    return False


@kernel
def _shift(bun: Bundles, s: Scratch, k: int, stamp: int) -> None:
    """Let class k take what it takes already of the stamped links."""
    for u in range(bun.use_first[k], bun.use_first[k + 1]):
        link = bun.use_link[u]
        if s.stamp[link] == stamp:
            more = s.residual[link] - bun.use_entry[u]
            bun.use_entry[u] += more
            bun.use_exit[u] += more
            s.residual[link] = bun.use_exit[u]


@kernel
def _refill(bun: Bundles, s: Scratch, k: int, floor: float, stamp: int) -> int:
    """Share anew in class k; stamp the links of which it now leaves more or less, count how many more."""
    first, end = bun.use_first[k], bun.use_first[k + 1]
    n_opened = 0
    for u in range(first, end):
        link = bun.use_link[u]
        if s.stamp[link] == stamp:
            if bun.use_entry[u] <= 0.0 and s.residual[link] > 0.0:
                s.used[n_opened] = u
                n_opened += 1
            bun.use_entry[u] = s.residual[link]
        s.residual[link] = bun.use_exit[u] if floor > 0.0 else bun.use_entry[u]
    for i in range(n_opened):
        admit(bun, s, k, s.used[i])
    _fill_class(bun, s, k, floor)
    growth = 0
    for u in range(first, end):
        link = bun.use_link[u]
        before = s.stamp[link] == stamp
        after = abs(s.residual[link] - bun.use_exit[u]) > SAME * bun.capacity[link]
        if after and not before:
            growth += 1
            s.stamp[link] = stamp
        elif before and not after:
            growth -= 1
            s.stamp[link] = stamp - 1
        bun.use_exit[u] = s.residual[link]
    return growth


@kernel
def _repair(bun: Bundles, s: Scratch) -> None:
    """Bring all rates up to date after connections have ended or claims inside a class have changed."""
    n_classes, n_moved = bun.count[N_CLASSES], 0
    bun.count[AT_CAP] = 0
    bun.count[STAMP] += 2
    stamp = bun.count[STAMP]
    bun.count[N_REPAIRS] += 1
    fresh = bun.count[N_REPAIRS] % _REPAIRS == 0
    for i in range(bun.count[N_FREED]):
        link = bun.freed[i]
        s.stamp[link] = stamp
        s.residual[link] = bun.unbooked[link]
        n_moved += 1
    _forget_freed(bun)
    last = n_classes - 1
    while last >= 0 and bun.class_state[last] == KEPT:
        last -= 1
    for k in range(n_classes):
        if n_moved == 0 and k > last:
            break
        state = bun.class_state[k]
        reached = n_moved > 0 and _is_reached(bun, s, k, stamp)
        if state == KEPT and not reached:
            if n_moved:
                _shift(bun, s, k, stamp)
            continue
        floor = bun.class_floor[k] * (1 - 1e-9)
        if state != LOST or n_moved > 0 or fresh:
            floor = 0.0
        n_moved += _refill(bun, s, k, floor, stamp)
        bun.class_state[k] = KEPT
        bun.class_floor[k] = np.inf


@kernel
def lose(bun: Bundles, b: int) -> None:
    """Note that a connection of bundle b has ended."""
    k = bun.class_of[b]
    if k >= 0:
        bun.class_state[k] = max(bun.class_state[k], LOST)
        bun.class_floor[k] = min(bun.class_floor[k], bun.level[b])


@kernel
def redo(bun: Bundles, b: int) -> None:
    """Note that the claims of bundle b have changed, and ask for rates."""
    k = bun.class_of[b]
    if k >= 0:
        bun.class_state[k] = REDO
    else:
        bun.count[UNSORTED] = 1
    bun.count[DIRTY] = 1


@kernel
def reallocate(bun: Bundles, s: Scratch) -> None:
    """Give every bundle its rate and say when its first flow is due; `changed` lists whose changed."""
    bun.count[N_CHANGED] = 0
    if bun.count[UNSORTED] or bun.count[STALE]:
        bun.count[HEAPED] = 0
        tidy_slots(bun)
        _book(bun)
        if not _all_at_cap(bun, s):
            if bun.count[UNSORTED]:
                sort_classes(bun, s)
            _fill_all(bun, s)
    else:
        _repair(bun, s)
    bun.count[DIRTY] = 0
    bun.count[N_ALLOCATIONS] += 1
