"""The loop that moves time over the bundles, from one end of a flow to the next.

Between two ends all rates stand still, so the next one is found by arithmetic and nothing is stepped over.
"""

from __future__ import annotations

import numpy as np

from netsched.allocate import Scratch, sort_by
from netsched.bundles import (
    BLOCK,
    DIRTY,
    IN_FLIGHT,
    N_ADMISSIONS,
    N_EVENTS,
    N_FREED,
    NOWHERE,
    Bundles,
    catch_up,
    claim,
    free_reserve,
    pop_root,
)
from netsched.carried import CROWD
from netsched.carry import see_to
from netsched.dues import next_due
from netsched.jit import inner, kernel
from netsched.ledger import (
    ACTIVE_LIST,
    EVENTS,
    FRESH,
    NODES_LEFT,
    PARCEL_SENT,
    Ledger,
    finish_node,
    fire_timer,
    next_timer,
    push_timer,
)
from netsched.membership import close_bundle, insert, lose, redo
from netsched.rates import reallocate
from netsched.uses import Uses
from netsched.ways import Ways, all_known, enter

NOBODY, PACKETS, CIRCUITS = range(3)
"""Which released flows `advance` puts into bundles: none, all as they are, or all by their ways."""


@inner
def _end_due_flows(led: Ledger, bun: Bundles, net: Uses, b: int) -> None:
    """End the flows of bundle b that are due at its `due`.

    Rates need not be computed again if a connection without a cap goes on with the next flow of its queue, of
    equal weight. What is simultaneous but for rounding ends at one time, the clock's.
    """
    catch_up(bun, b, bun.due[b])
    t = bun.clock[0]
    v = max(bun.v[b], bun.tag[bun.root[b]])
    bun.v[b] = v
    while bun.members[b] and bun.tag[bun.root[b]] <= v + 1e-12 * v:
        f = bun.root[b]
        bun.root[b] = pop_root(bun, f)
        bun.members[b] -= 1
        claim(bun, b, f, -1)
        free_reserve(bun, f)
        bun.path_bytes[bun.path_of_flow[f]] += bun.left[f]
        bun.left[f] = 0.0
        if f >= len(led.size):
            bun.bundle_of[f] = NOWHERE
            led.count[EVENTS] |= PARCEL_SENT
        elif bun.parcels[f] > 0:
            bun.bundle_of[f] = IN_FLIGHT
        elif bun.latency[f] > 0:
            bun.bundle_of[f] = IN_FLIGHT
            push_timer(led, t + bun.latency[f], f)
        else:
            bun.bundle_of[f] = NOWHERE
            finish_node(led, f, t)
    if bun.members[b] == 0:
        close_bundle(bun, net, b)
        return
    if not bun.queued[0]:
        lose(bun, net, b)
    else:
        weight = bun.weight[bun.root[b]]
        if bun.count[N_FREED] or not bun.uncapped[b] or weight != bun.unit_weight[b]:
            bun.unit_weight[b] = weight
            redo(bun, net, b)
    see_to(bun, b)


@inner
def _end_due(led: Ledger, bun: Bundles, net: Uses, horizon: float) -> None:
    """End all flows that are due by `horizon`. The blocks must have been looked at since a `due` changed.

    Of bundles that a link carries only the first is due; another one may be when that has ended.
    """
    _end_listed(led, bun, net, horizon)
    while bun.carried.tally[CROWD] >= 0 and next_due(bun) <= horizon:
        _end_listed(led, bun, net, horizon)


@inner
def _end_listed(led: Ledger, bun: Bundles, net: Uses, horizon: float) -> None:
    """End all flows that are due by `horizon` in blocks that were listed as having some."""
    for region in range(len(bun.region_due)):
        if bun.region_due[region] > horizon:
            continue
        for block in range(region << BLOCK, min((region + 1) << BLOCK, len(bun.block_due))):
            if bun.block_due[block] > horizon:
                continue
            for b in range(block << BLOCK, min((block + 1) << BLOCK, len(bun.due))):
                while bun.due[b] <= horizon:
                    _end_due_flows(led, bun, net, b)


@inner
def _admit(led: Ledger, bun: Bundles, net: Uses, s: Scratch, ways: Ways, over: int, until: float) -> None:
    """`take_fresh`, `enter` and `insert_all` for released flows of which all is known that a plan says.

    Nothing is done where circuits may be about to change, or a path is not there yet.
    """
    fresh = led.fresh[: led.count[FRESH]]
    first = 0
    for i in range(1, len(fresh) + 1):
        if i == len(fresh) or led.start[fresh[i]] != led.start[fresh[first]]:
            sort_by(s.number, fresh[first:i], s.spare)
            first = i
    if over == CIRCUITS:
        # Without a flow under way nobody has been asked about circuits, however long ago that was due.
        soon = bun.clock[0] * (1.0 + 1e-12) >= until
        if soon or not led.count[ACTIVE_LIST] or not all_known(ways, fresh):
            return
        for f in fresh:
            enter(ways, bun, f)
    for f in fresh:
        led.active[led.count[ACTIVE_LIST]] = f
        led.count[ACTIVE_LIST] += 1
        # A flow that waits for a circuit is in no bundle.
        if bun.not_before[f] <= bun.clock[0]:
            insert(bun, net, f)
    led.count[FRESH] = 0
    bun.count[N_ADMISSIONS] += 1


@kernel
def advance(
    led: Ledger,
    bun: Bundles,
    net: Uses,
    s: Scratch,
    ways: Ways,
    admits: int,
    concern: int,
    until: float,
    most_events: int,
) -> bool:
    """Run until something concerns the caller, or `until`, or so many events; False if nothing can happen.

    What concerns it: an event whose bit is in `concern`, or a released flow, which only the caller can put
    into a bundle; where it `admits` some (PACKETS, or CIRCUITS, by `ways`), all is known that a plan says of
    it, and this does it. The caller reads led.count[EVENTS] and clears it. The time is in clock[0].
    """
    for _ in range(most_events):
        if led.count[FRESH] and admits and not led.count[EVENTS] & concern:
            _admit(led, bun, net, s, ways, admits, until)
        if led.count[FRESH] or led.count[EVENTS] & concern:
            return True
        if not led.count[NODES_LEFT]:
            return False
        if bun.count[DIRTY]:
            reallocate(bun, net, s)
        at = min(next_due(bun), next_timer(led))
        # What ends together with the stop ends before it: nobody decides about a flow with 1e-17 B left.
        if at > until + 1e-12 * until:
            bun.clock[0] = max(bun.clock[0], until)
            return True
        if at == np.inf:
            return False
        t = max(bun.clock[0], min(at, until))
        bun.clock[0] = t
        bun.count[N_EVENTS] += 1
        horizon = t + 1e-12 * t
        while next_timer(led) <= horizon:
            fire_timer(led, t)
        _end_due(led, bun, net, horizon)
    return True
