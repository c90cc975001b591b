"""Moves the active flows to the bundles that a new plan says.

Most plans only rename and reorder classes (one coflow ends and all later ones move up, another one sinks):
then every bundle stays as it is, which spares a trace's hundreds of thousands of flows from being laid anew.
"""

from __future__ import annotations

import numpy as np

from netsched.allocate import Scratch, sort_by
from netsched.bundles import ALONE, DIRTY, NOWHERE, STALE, UNSORTED, Bundles
from netsched.classes import lay_out
from netsched.jit import inner, kernel
from netsched.membership import insert, remove
from netsched.model import Ints
from netsched.order import UNSEEN, rename
from netsched.uses import N_CLASSES, N_SLOTS, Uses

_MIXED, _ALONE, _SHARED = range(3)
"""Of the bundles of some flows: not all stay; all stay, one flow in each; all stay, and some are shared."""


@inner
def _stays(bun: Bundles, f: int, b: int) -> bool:
    """Whether flow f was alone in bundle b and goes on so."""
    return bool(bun.alone[f]) and bun.of_group[b] == ALONE and bun.path[b] == bun.path_of_flow[f]


@inner
def _who_stays(bun: Bundles, flows: Ints) -> int:
    """Whether flows that are alone stay so, and others with others, all of them sending: see _MIXED."""
    now, found = bun.clock[0], _ALONE
    for f in flows:
        b = bun.bundle_of[f]
        if b < 0 or (_stays(bun, f, b) and bun.not_before[f] <= now):
            continue
        if bun.not_before[f] > now or bun.alone[f] or bun.of_group[b] == ALONE:
            return _MIXED
        found = _SHARED
    return found


@inner
def _new_names(bun: Bundles, net: Uses, flows: Ints, name: Ints) -> bool:
    """Write into `name` what the plan calls each class (UNSEEN: nothing shared is in it).

    False if the flows of one class are to be in several.
    """
    for k in range(len(name)):
        name[k] = UNSEEN
    for f in flows:
        b = bun.bundle_of[f]
        if b >= 0 and bun.of_group[b] != ALONE:
            k = net.class_of[b]
            if name[k] == UNSEEN:
                name[k] = bun.rank[f]
            elif name[k] != bun.rank[f]:
                return False
    return True


@inner
def _are_distinct(net: Uses, s: Scratch, name: Ints) -> bool:
    """Whether no two classes get one name. Mostly names ascend already, and that is seen at once."""
    before, n = UNSEEN, 0
    ascend = True
    order = s.by_cap
    for k in net.ordered[: net.tally[N_CLASSES]]:
        if name[k] != UNSEEN:
            ascend = ascend and name[k] > before
            before = name[k]
            order[n] = k
            n += 1
    if ascend:
        return True
    sort_by(name, order[:n], s.spare)
    for i in range(1, n):  # noqa: SIM110 (numba has no generators)
        if name[order[i]] == name[order[i - 1]]:
            return False
    return True


@inner
def _renames(bun: Bundles, net: Uses, s: Scratch, flows: Ints) -> bool:
    """Give all classes the names of the plan; False if that is not all the plan does."""
    who = _MIXED if bun.queued[0] else _who_stays(bun, flows)
    if who == _MIXED:
        return False
    if who == _ALONE:
        return True
    if bun.count[UNSORTED]:
        lay_out(bun, net, s)
    name = s.group[: net.tally[N_SLOTS]]
    if not _new_names(bun, net, flows, name) or not _are_distinct(net, s, name):
        return False
    for k in net.ordered[: net.tally[N_CLASSES]]:
        if name[k] == UNSEEN and net.size[k]:
            bun.count[UNSORTED] = 1
    if bun.count[STALE]:
        bun.count[UNSORTED] = 1
    if not bun.count[UNSORTED]:
        rename(bun, net, s, name)
    return True


@inner
def _disband(bun: Bundles, net: Uses, flows: Ints) -> None:
    """Take every flow out of its bundle that cannot keep it."""
    now = bun.clock[0]
    for f in flows:
        b = bun.bundle_of[f]
        if b >= 0 and (not _stays(bun, f, b) or bun.not_before[f] > now):
            remove(bun, net, f, b)


@inner
def _reclaim(bun: Bundles, f: int, b: int) -> None:
    """Give the bundle of a flow that is alone the flow's present claims."""
    capped = bun.cap[f] < np.inf
    cap_sum, uncapped = (bun.cap[f], 0) if capped else (0.0, 1)
    if (
        bun.cls[b] != bun.rank[f]
        or bun.unit_weight[b] != bun.weight[f]
        or bun.cap_sum[b] != cap_sum
        or bun.uncapped[b] != uncapped
        or bun.booked[b] != bun.reserve[f]
    ):
        bun.cls[b] = bun.rank[f]
        bun.unit_weight[b] = bun.weight[f]
        bun.cap_sum[b] = cap_sum
        bun.uncapped[b] = uncapped
        bun.booked[b] = bun.reserve[f]
        bun.count[UNSORTED] = 1


@kernel
def regroup(bun: Bundles, net: Uses, s: Scratch, flows: Ints) -> None:
    """Put all active flows (in order of release) into the bundles that the plan now says.

    `left` must be settled, unless the plan renames classes only. A flow that was and stays alone keeps its
    bundle. Two flows of one bundle have equal claims by construction: the caller marks others as alone.
    """
    now = bun.clock[0]
    if not _renames(bun, net, s, flows):
        _disband(bun, net, flows)
    renamed, some_alone = False, False
    for f in flows:
        b = bun.bundle_of[f]
        if b < 0:
            continue
        if bun.of_group[b] == ALONE:
            some_alone = True
            _reclaim(bun, f, b)
        elif bun.cls[b] != bun.rank[f]:
            renamed = True
            bun.cls[b] = bun.rank[f]
    if renamed and some_alone:
        bun.count[UNSORTED] = 1
    for f in flows:
        if bun.bundle_of[f] == NOWHERE and bun.not_before[f] <= now:
            insert(bun, net, f)
    if bun.count[UNSORTED] or bun.count[STALE]:
        bun.count[DIRTY] = 1
