"""Active flows gathered into bundles that advance together, each with a virtual clock.

A bundle is what shares bandwidth as one: all flows of one path and class (each with a connection of its
own), or the queue of one long-lived connection. Inside it a virtual clock counts the bytes that each
connection has received, a flow ends when the clock reaches its tag, and so an event costs nothing per flow.
The virtual clock is that of fair queueing (Demers, Keshav, Shenker, SIGCOMM 1989).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from netsched.carried import Carried, credit, due_at, open_carried
from netsched.jit import inner, kernel
from netsched.model import Floats, Ints, ShortInts

NO_FLOW = -1
NO_BUNDLE = -1
NOWHERE, IN_FLIGHT = -1, -2
"""Values of `bundle_of` for a flow that is in no bundle: not sending, or all sent and not yet received."""

# Positions in Bundles.count: UNSORTED where `Uses` does not hold all bundles in their classes, STALE where it
# does and no rates have been computed since; NEXT the slot from which a free one is looked for, round and
# round the first ROOM ones.
N_ACTIVE, NEXT, DIRTY, N_ALLOCATIONS, N_EVENTS, N_STALE_BLOCKS, UNSORTED = range(7)
STALE, N_REPAIRS, N_WHOLE, TOP, N_FREED, N_ADMISSIONS, N_CROWDED, ROOM = range(7, 15)

BLOCK: Final = 6
"""A block is 2^BLOCK slots, a region as many blocks."""

_FEW = 64
"""Slots that are in use from the beginning."""

ALONE = -1
"""The group of a bundle that holds one flow with claims of its own and that no other flow may join."""


class Bundles(NamedTuple):
    """Columns per bundle slot, per flow, per class and path; `count` holds the scalars, `clock[0]` the time.

    of_group, beside   the group of a bundle; `first_of` a group is its newest bundle, the next is `beside` it
    cap_sum, uncapped   the finite caps of its flows added up, and how many have none; both are about what
                  they get beyond their reserves
    booked        the reserves of its flows added up, bytes/s
    v, v_at       bytes that each connection of the bundle has received, and as of when
    unit_rate     bytes/s of each connection, as last allocated
    total, level  bytes/s of the bundle and of each unit of weight, as last allocated, beyond the reserves
    due           when the bundle's first flow ends at that rate
    block_due, region_due   the least `due` of each block and region, as of the last look; `stale` lists the
                  N_STALE_BLOCKS blocks (is_stale) in which one has changed since
    root          the flow with the smallest tag: root of a pairing heap in child/sibling
    path_of_flow, rank, weight, reserve, cap, group, alone, not_before: what the plan and the transport say of
                  a flow (`cap` bounds what it gets beyond its reserve);
                  flows of equal (group, rank) share a bundle, except one that is alone
    parcels       how many parts of a flow are on their way over two circuits (relays.py), with which it ends
    latency       seconds from a flow's last byte sent to its last byte received
    left          bytes a flow still had when `settle_left` last looked, or at its release
    unbooked      bytes/s of each link that no reserve takes; `freed` lists the N_FREED links (is_freed) of
                  which that has grown since the last allocation
    """

    of_group: Ints
    beside: Ints
    first_of: Ints
    path: Ints
    cls: Ints
    members: ShortInts
    unit_weight: Floats
    cap_sum: Floats
    uncapped: ShortInts
    booked: Floats
    v: Floats
    v_at: Floats
    last_tag: Floats
    unit_rate: Floats
    total: Floats
    level: Floats
    due: Floats
    block_due: Floats
    region_due: Floats
    stale: Ints
    is_stale: np.ndarray
    root: ShortInts
    place: Ints
    active: Ints
    bundle_of: Ints
    tag: Floats
    child: Ints
    sibling: Ints
    left: Floats
    path_of_flow: Ints
    rank: Ints
    weight: Floats
    reserve: Floats
    cap: Floats
    group: Ints
    alone: np.ndarray
    not_before: Floats
    parcels: Ints
    latency: Floats
    unbooked: Floats
    freed: Ints
    is_freed: np.ndarray
    path_bytes: Floats
    path_ptr: Ints
    path_links: Ints
    capacity: Floats
    count: Ints  # type: ignore[assignment]
    clock: Floats
    queued: np.ndarray
    carried: Carried


def open_bundles(
    sizes: Floats,
    path_of_flow: Ints,
    group: Ints,
    latency: Floats,
    path_ptr: Ints,
    path_links: Ints,
    capacity: Floats,
    queued: bool,
) -> Bundles:
    """Empty bundles over the given flows and paths (CSR of link ids), at time 0."""
    n = len(sizes)
    blocks = (n >> BLOCK) + 1

    def ints(m: int, value: int = 0) -> Ints:
        return np.full(m, value, np.int64)

    def short(m: int, value: int = 0) -> ShortInts:
        return np.full(m, value, np.int32)

    bundles = Bundles(
        of_group=ints(n),
        beside=ints(n),
        first_of=ints(int(group.max()) + 1 if n else 0, NO_BUNDLE),
        path=ints(n),
        cls=ints(n),
        members=short(n),
        unit_weight=np.zeros(n),
        cap_sum=np.zeros(n),
        uncapped=short(n),
        booked=np.zeros(n),
        v=np.zeros(n),
        v_at=np.zeros(n),
        last_tag=np.zeros(n),
        unit_rate=np.zeros(n),
        total=np.zeros(n),
        level=np.zeros(n),
        due=np.full(n, np.inf),
        block_due=np.full(blocks, np.inf),
        region_due=np.full((blocks >> BLOCK) + 1, np.inf),
        stale=ints(blocks),
        is_stale=np.zeros(blocks, np.int8),
        root=short(n, NO_FLOW),
        place=ints(n),
        active=ints(n),
        bundle_of=ints(n, NOWHERE),
        tag=np.zeros(n),
        child=ints(n, NO_FLOW),
        sibling=ints(n, NO_FLOW),
        left=sizes.astype(np.float64).copy(),
        path_of_flow=path_of_flow,
        rank=ints(n),
        weight=np.ones(n),
        reserve=np.zeros(n),
        cap=np.full(n, np.inf),
        group=group,
        alone=np.zeros(n, np.int8),
        not_before=np.full(n, -np.inf),
        parcels=ints(n),
        latency=latency,
        unbooked=capacity.astype(np.float64),
        freed=ints(len(capacity)),
        is_freed=np.zeros(len(capacity), np.int8),
        path_bytes=np.zeros(len(path_ptr) - 1),
        path_ptr=path_ptr,
        path_links=path_links,
        capacity=capacity,
        count=ints(15),
        clock=np.zeros(1),
        queued=np.array([1 if queued else 0], np.int8),
        carried=open_carried(n, len(capacity)),
    )
    bundles.count[ROOM] = min(n, _FEW)
    return bundles


@inner
def take_slot(bun: Bundles) -> int:
    """A free slot, behind the one that was taken last: what comes together lies together.

    Of the slots gone round in at most half are taken, so that a free one is near; and they are not many more
    than there were bundles at a time, so that they stay in the processor's caches.
    """
    room, b = bun.count[ROOM], bun.count[NEXT]
    if 2 * bun.count[N_ACTIVE] >= room and room < len(bun.members):
        b = room
        room = min(2 * room, len(bun.members))
        bun.count[ROOM] = room
    if b >= room:
        b = 0
    while bun.members[b]:
        b = b + 1 if b + 1 < room else 0
    bun.count[NEXT] = b + 1
    return int(b)


@inner
def meld(bun: Bundles, a: int, b: int) -> int:
    """Join two pairing heaps; equal tags go by flow number, so that the order is determined."""
    if a < 0:
        return b
    if b < 0:
        return a
    if bun.tag[b] < bun.tag[a] or (bun.tag[b] == bun.tag[a] and b < a):
        a, b = b, a
    bun.sibling[b] = bun.child[a]
    bun.child[a] = b
    return a


@inner
def pop_root(bun: Bundles, root: int) -> int:
    """The heap without its root: pairs from left to right, then melds from right to left."""
    node = bun.child[root]
    bun.child[root] = NO_FLOW
    paired = NO_FLOW
    while node >= 0:
        second = bun.sibling[node]
        bun.sibling[node] = NO_FLOW
        if second < 0:
            joined = node
            following = NO_FLOW
        else:
            following = bun.sibling[second]
            bun.sibling[second] = NO_FLOW
            joined = meld(bun, node, second)
        bun.sibling[joined] = paired
        paired = joined
        node = following
    result = NO_FLOW
    while paired >= 0:
        following = bun.sibling[paired]
        bun.sibling[paired] = NO_FLOW
        result = meld(bun, result, paired)
        paired = following
    return int(result)


@inner
def claim(bun: Bundles, b: int, f: int, sign: int) -> None:
    """Add what flow f may and must have to its bundle's claims, or take it away."""
    if bun.cap[f] < np.inf:
        bun.cap_sum[b] += sign * bun.cap[f]
    else:
        bun.uncapped[b] += sign
    bun.booked[b] += sign * bun.reserve[f]


@inner
def free_reserve(bun: Bundles, f: int) -> None:
    """Give back what an ended flow had reserved, until the next sorting adds up all reserves anew."""
    if bun.reserve[f] > 0.0:
        p = bun.path_of_flow[f]
        for h in range(bun.path_ptr[p], bun.path_ptr[p + 1]):
            link = bun.path_links[h]
            bun.unbooked[link] += bun.reserve[f]
            if not bun.is_freed[link]:
                bun.is_freed[link] = 1
                bun.freed[bun.count[N_FREED]] = link
                bun.count[N_FREED] += 1


@inner
def catch_up(bun: Bundles, b: int, t: float) -> None:
    """Bring the virtual clock of bundle b to time t."""
    if bun.carried.link_of[b] >= 0:
        bun.v[b] += credit(bun.carried, b, t)
        return
    passed = t - bun.v_at[b]
    if passed > 0:
        bun.v[b] += bun.unit_rate[b] * passed
        bun.v_at[b] = t


@inner
def due_of(bun: Bundles, b: int) -> float:
    """When the first flow of bundle b ends at its present rate."""
    if bun.carried.link_of[b] >= 0:
        return due_at(bun.carried, b)
    ahead = bun.tag[bun.root[b]] - bun.v[b]
    if ahead <= 0:
        return float(bun.v_at[b])
    return float(bun.v_at[b] + ahead / bun.unit_rate[b]) if bun.unit_rate[b] > 0 else np.inf


@kernel
def next_gate(bun: Bundles, flows: Ints) -> float:
    """When the first of the given flows that still must not send may do so, inf if there is none."""
    at = np.inf
    for f in flows:
        if bun.bundle_of[f] == NOWHERE:
            at = min(at, bun.not_before[f])
    return at


@kernel
def settle_left(bun: Bundles, flows: Ints) -> None:
    """Write into `left` what each active flow still has to send at the present time.

    In a queue only the first flow is under way: a later one's tag is further ahead than its own bytes.
    """
    t = bun.clock[0]
    for f in flows:
        b = bun.bundle_of[f]
        if b < 0:
            continue
        catch_up(bun, b, t)
        now = max(0.0, min(bun.left[f], bun.tag[f] - bun.v[b]))
        if now != bun.left[f]:
            bun.path_bytes[bun.path_of_flow[f]] += bun.left[f] - now
            bun.left[f] = now
