"""Lays all bundles out anew: classes in their order, and in this order the uses of every link.

A plan that changes claims or who is in which class needs that; what else happens changes `Uses` in place.
"""

from __future__ import annotations

from netsched.allocate import Scratch, sort_by
from netsched.bundles import N_ACTIVE, STALE, TOP, UNSORTED, Bundles
from netsched.crossing import put_on_links
from netsched.crowd import disperse
from netsched.jit import inner
from netsched.model import BEST_EFFORT, Ints
from netsched.order import class_named
from netsched.uses import (
    N_AWAKE,
    N_CLASSES,
    N_SEEDS,
    N_SLOTS,
    N_SPARE,
    N_USES,
    N_VACANT,
    NOTHING,
    Uses,
)


@inner
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


@inner
def tidy_slots(bun: Bundles) -> None:
    """Put active slots in ascending order: what is looked at together lies together then."""
    n_active = 0
    for b in range(bun.count[TOP]):
        if bun.members[b]:
            bun.active[n_active] = b
            bun.place[b] = n_active
            n_active += 1


@inner
def _clear(net: Uses) -> None:
    for i in range(net.tally[N_AWAKE]):
        net.is_awake[net.awake[i]] = 0
    for i in range(net.tally[N_SEEDS]):
        net.seed[net.seeded[i]] = 0
    for link in range(len(net.first_use)):
        net.first_use[link] = NOTHING
        net.last_use[link] = NOTHING
    net.tally[N_AWAKE] = 0
    net.tally[N_SEEDS] = 0
    net.tally[N_CLASSES] = 0
    net.tally[N_SLOTS] = 0
    net.tally[N_VACANT] = 0
    net.tally[N_USES] = 0
    net.tally[N_SPARE] = 0


@inner
def lay_out(bun: Bundles, net: Uses, s: Scratch) -> None:
    """Enter all active bundles in their classes and on their links; all rates are then STALE."""
    disperse(bun, net)
    n = bun.count[N_ACTIVE]
    order = s.group[:n]
    for i in range(n):
        order[i] = bun.active[i]
    _sort(order, bun.cls, s)
    _clear(net)
    k = NOTHING
    for b in order:
        if k < 0 or net.value[k] != bun.cls[b]:
            k = class_named(net, bun.cls[b])
        put_on_links(bun, net, b, k)
    bun.count[UNSORTED] = 0
    bun.count[STALE] = 1
