"""Moves the active flows to the bundles that a new plan says.

Most plans only renumber classes (one coflow ends and all later ones move up): then every bundle stays as it
is and gets a new number, which spares a trace's hundreds of thousands of flows from being laid anew.
"""

from __future__ import annotations

import numpy as np

from netsched.allocate import Scratch
from netsched.bundles import (
    ALONE,
    DIRTY,
    N_CLASSES,
    NOWHERE,
    STALE,
    UNSORTED,
    Bundles,
    close_bundle,
    insert,
)
from netsched.classes import sort_classes
from netsched.jit import kernel
from netsched.model import Ints

_UNSEEN = -1


@kernel
def _stays(bun: Bundles, f: int, b: int) -> bool:
    """Whether flow f was alone in bundle b and goes on so."""
    return bool(bun.alone[f]) and bun.of_group[b] == ALONE and bun.path[b] == bun.path_of_flow[f]


@kernel
def _renumbers(bun: Bundles, s: Scratch, flows: Ints) -> bool:
    """Whether the plan only numbers the classes anew, in their order: shared bundles stay what they are."""
    if bun.queued[0]:
        return False
    now = bun.clock[0]
    shared = False
    for f in flows:
        b = bun.bundle_of[f]
        if b < 0:
            continue
        if bun.not_before[f] > now:
            return False
        if _stays(bun, f, b):
            continue
        if bun.alone[f] or bun.of_group[b] == ALONE:
            return False
        shared = True
    if not shared:
        return True
    if bun.count[UNSORTED]:
        sort_classes(bun, s)
    to = s.group[: bun.count[N_CLASSES]]
    for k in range(len(to)):
        to[k] = _UNSEEN
    for f in flows:
        b = bun.bundle_of[f]
        if b < 0 or bun.of_group[b] == ALONE:
            continue
        k = bun.class_of[b]
        if k < 0:
            return False
        if to[k] == _UNSEEN:
            to[k] = bun.rank[f]
        elif to[k] != bun.rank[f]:
            return False
    before = _UNSEEN
    for k in range(len(to)):
        if to[k] != _UNSEEN:
            if to[k] <= before:
                return False
            before = to[k]
    return True


@kernel
def _disband(bun: Bundles, flows: Ints) -> None:
    """Take every flow out of its bundle that cannot keep it."""
    now = bun.clock[0]
    for f in flows:
        b = bun.bundle_of[f]
        if b >= 0 and (not _stays(bun, f, b) or bun.not_before[f] > now):
            bun.members[b] -= 1
            if bun.members[b] == 0:
                close_bundle(bun, b)
            bun.bundle_of[f] = NOWHERE
            bun.count[UNSORTED] = 1


@kernel
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
def regroup(bun: Bundles, s: Scratch, flows: Ints) -> None:
    """Put all active flows (in order of release) into the bundles that the plan now says.

    `left` must be settled, unless the plan renumbers only. A flow that was and stays alone keeps its bundle.
    Two flows of one bundle have equal claims by construction: the caller marks others as alone.
    """
    now = bun.clock[0]
    if not _renumbers(bun, s, flows):
        _disband(bun, flows)
    renumbered, some_alone = False, False
    for f in flows:
        b = bun.bundle_of[f]
        if b < 0:
            continue
        if bun.of_group[b] == ALONE:
            some_alone = True
            _reclaim(bun, f, b)
        elif bun.cls[b] != bun.rank[f]:
            renumbered = True
            bun.cls[b] = bun.rank[f]
    if renumbered and some_alone:
        bun.count[UNSORTED] = 1
    for f in flows:
        if bun.bundle_of[f] == NOWHERE and bun.not_before[f] <= now:
            insert(bun, f)
    if bun.count[UNSORTED] or bun.count[STALE]:
        bun.count[DIRTY] = 1
