"""Flows join bundles and leave them, and bundles appear on their links and go; what that changes is noted.

Nothing is computed here: the next repair (rates.py) finds what has changed since the one before.
"""

from __future__ import annotations

import numpy as np

from netsched.bundles import (
    ALONE,
    DIRTY,
    N_ACTIVE,
    NO_BUNDLE,
    NO_FLOW,
    NOWHERE,
    STALE,
    TOP,
    UNSORTED,
    Bundles,
    catch_up,
    claim,
    meld,
    take_slot,
)
from netsched.carry import drop, see_to
from netsched.crossing import put_on_links, take_off_links
from netsched.dues import put_due
from netsched.jit import inner, kernel
from netsched.model import Ints
from netsched.order import class_named
from netsched.uses import CHANGED, LOST, NOTHING, Uses, note


@inner
def _find(bun: Bundles, group: int, cls: int) -> int:
    """The bundle of this group and class, NO_BUNDLE if there is none. A group is in few classes at a time."""
    b = bun.first_of[group]
    while b >= 0 and bun.cls[b] != cls:
        b = bun.beside[b]
    return int(b)


@inner
def _new_bundle(bun: Bundles, net: Uses, f: int) -> int:
    b = take_slot(bun)
    if bun.alone[f]:
        bun.of_group[b] = ALONE
    else:
        bun.of_group[b] = bun.group[f]
        bun.beside[b] = bun.first_of[bun.group[f]]
        bun.first_of[bun.group[f]] = b
    bun.path[b] = bun.path_of_flow[f]
    bun.cls[b] = bun.rank[f]
    bun.members[b] = 0
    bun.unit_weight[b] = bun.weight[f]
    bun.cap_sum[b] = 0.0
    bun.uncapped[b] = 0
    bun.booked[b] = 0.0
    bun.v[b] = 0.0
    bun.v_at[b] = bun.clock[0]
    bun.last_tag[b] = 0.0
    bun.unit_rate[b] = 0.0
    bun.total[b] = 0.0
    bun.level[b] = 0.0
    put_due(bun, b, np.inf)
    bun.root[b] = NO_FLOW
    bun.place[b] = bun.count[N_ACTIVE]
    bun.active[bun.count[N_ACTIVE]] = b
    bun.count[N_ACTIVE] += 1
    bun.count[TOP] = max(bun.count[TOP], b + 1)
    net.class_of[b] = NOTHING
    net.bottleneck[b] = NOTHING
    return int(b)


@inner
def close_bundle(bun: Bundles, net: Uses, b: int) -> None:
    """Take a bundle without flows off its links and give back its slot."""
    drop(bun, net, b)
    k = net.class_of[b]
    if k >= 0:
        net.floor[k] = min(net.floor[k], bun.level[b])
        take_off_links(net, b)
    group = bun.of_group[b]
    if group != ALONE:
        if bun.first_of[group] == b:
            bun.first_of[group] = bun.beside[b]
        else:
            at = bun.first_of[group]
            while bun.beside[at] != b:
                at = bun.beside[at]
            bun.beside[at] = bun.beside[b]
    bun.count[N_ACTIVE] -= 1
    last = bun.active[bun.count[N_ACTIVE]]
    bun.active[bun.place[b]] = last
    bun.place[last] = bun.place[b]
    put_due(bun, b, np.inf)
    bun.count[DIRTY] = 1


@inner
def lose(bun: Bundles, net: Uses, b: int) -> None:
    """Note that connections of bundle b have ended, and not all."""
    k = net.class_of[b]
    if k >= 0:
        net.floor[k] = min(net.floor[k], bun.level[b])
        note(net, b, LOST)
    bun.count[DIRTY] = 1


@inner
def redo(bun: Bundles, net: Uses, b: int) -> None:
    """Note that the claims of bundle b have changed."""
    k = net.class_of[b]
    if k >= 0:
        net.floor[k] = min(net.floor[k], bun.level[b])
        note(net, b, CHANGED)
    bun.count[DIRTY] = 1


@inner
def insert(bun: Bundles, net: Uses, f: int) -> None:
    """Put flow f into the bundle of its group and class at the present time.

    A connection that serves a queue asks for nothing more because one more flow waits in it, unless reserves
    or caps add up.
    """
    b = NO_BUNDLE if bun.alone[f] else _find(bun, bun.group[f], bun.rank[f])
    joins = b >= 0
    if joins:
        catch_up(bun, b, bun.clock[0])
    else:
        b = _new_bundle(bun, net, f)
    if bun.queued[0]:
        bun.last_tag[b] = max(bun.last_tag[b], bun.v[b]) + bun.left[f]
        bun.tag[f] = bun.last_tag[b]
    else:
        bun.tag[f] = bun.v[b] + bun.left[f]
    waits = joins and bun.queued[0] != 0 and bun.uncapped[b] > 0 and bun.cap[f] == np.inf
    waits = waits and bun.reserve[f] == 0.0
    claim(bun, b, f, 1)
    bun.members[b] += 1
    bun.bundle_of[f] = b
    bun.child[f] = NO_FLOW
    bun.sibling[f] = NO_FLOW
    bun.root[b] = meld(bun, bun.root[b], f)
    see_to(bun, b)
    if not waits:
        _enter(bun, net, b, f, joins)


@inner
def _enter(bun: Bundles, net: Uses, b: int, f: int, joins: bool) -> None:
    """Note that bundle b has new claims, those of flow f; put it on its links if it is new."""
    bun.count[DIRTY] = 1
    if bun.count[UNSORTED] or bun.count[STALE] or bun.reserve[f] > 0.0:
        bun.count[UNSORTED] = 1
        return
    if joins:
        redo(bun, net, b)
        return
    put_on_links(bun, net, b, class_named(net, bun.cls[b]))
    note(net, b, CHANGED)


@kernel
def insert_all(bun: Bundles, net: Uses, flows: Ints) -> None:
    """Put new flows into their bundles at the present time, except those that must not send yet."""
    for f in flows:
        if bun.not_before[f] <= bun.clock[0]:
            insert(bun, net, f)


@inner
def remove(bun: Bundles, net: Uses, f: int, b: int) -> None:
    """Take flow f out of bundle b, whose claims the caller sees to."""
    bun.members[b] -= 1
    if bun.members[b] == 0:
        close_bundle(bun, net, b)
    bun.bundle_of[f] = NOWHERE
    bun.count[UNSORTED] = 1
