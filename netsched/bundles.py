"""Active flows gathered into bundles that advance together, and the loop that moves time over them.

A bundle is what shares bandwidth as one: all flows of one path and class (each with a connection of its
own), or the queue of one long-lived connection. Inside it a virtual clock counts the bytes that each
connection has received, a flow ends when the clock reaches its tag, and so an event costs nothing per flow.
The virtual clock is that of fair queueing (Demers, Keshav, Shenker, SIGCOMM 1989).
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from netsched.allocate import Scratch, allocate, scratch
from netsched.ledger import EVENTS, FRESH, Ledger, finish_node, fire_timer, next_timer, push_timer
from netsched.model import Floats, Ints

NO_FLOW = -1
NOWHERE, IN_FLIGHT = -1, -2
"""Values of `bundle_of` for a flow that is in no bundle: not sending, or all sent and not yet received."""

# Positions in Bundles.count.
N_ACTIVE, N_FREE, DIRTY, AT_CAP, HEAPED, N_HEAP, N_ALLOCATIONS, N_EVENTS = range(8)

ALONE = -1
"""The key of a bundle that holds one flow with claims of its own and that no other flow may join."""


class Bundles(NamedTuple):
    """Columns per bundle slot, per flow and per path; `count` holds the scalars, `clock[0]` the time.

    queued        1 if a bundle's flows go one after the other over one connection, else 0
    v, v_at       bytes that each connection of the bundle has received, and as of when
    cap_sum, uncapped   the finite caps of its flows added up, and how many have none
    unit_rate     bytes/s of each connection, as last allocated
    due           when the bundle's first flow ends at that rate
    root          the flow with the smallest tag: root of a pairing heap in child/sibling
    path_of_flow, rank, weight, cap, group, alone, not_before: what the plan and the transport say of a flow;
                  flows of equal (group, rank) share a bundle, except one that is alone
    latency       seconds from a flow's last byte sent to its last byte received
    left          bytes a flow still had when `settle_left` last looked, or at its release
    """

    key: Ints
    path: Ints
    cls: Ints
    members: Ints
    unit_weight: Floats
    cap_sum: Floats
    uncapped: Ints
    v: Floats
    v_at: Floats
    last_tag: Floats
    unit_rate: Floats
    due: Floats
    root: Ints
    place: Ints
    active: Ints
    free: Ints
    heap: Ints
    heap_at: Floats
    bundle_of: Ints
    tag: Floats
    child: Ints
    sibling: Ints
    left: Floats
    path_of_flow: Ints
    rank: Ints
    weight: Floats
    cap: Floats
    group: Ints
    alone: np.ndarray
    not_before: Floats
    latency: Floats
    path_bytes: Floats
    path_ptr: Ints
    path_links: Ints
    capacity: Floats
    count: Ints
    clock: Floats
    queued: np.ndarray


def open_bundles(
    sizes: Floats,
    path_of_flow: Ints,
    group: Ints,
    latency: Floats,
    path_ptr: Ints,
    path_links: Ints,
    capacity: Floats,
    queued: bool,
) -> tuple[Bundles, Scratch]:
    """Empty bundles over the given flows and paths (CSR of link ids), at time 0."""
    n = len(sizes)
    n_paths = len(path_ptr) - 1

    def ints(m: int) -> Ints:
        return np.zeros(m, np.int64)

    bundles = Bundles(
        key=ints(n),
        path=ints(n),
        cls=ints(n),
        members=ints(n),
        unit_weight=np.zeros(n),
        cap_sum=np.zeros(n),
        uncapped=ints(n),
        v=np.zeros(n),
        v_at=np.zeros(n),
        last_tag=np.zeros(n),
        unit_rate=np.zeros(n),
        due=np.full(n, np.inf),
        root=np.full(n, NO_FLOW, np.int64),
        place=ints(n),
        active=ints(n),
        free=np.arange(n - 1, -1, -1, dtype=np.int64),
        heap=ints(2 * n + 16),
        heap_at=np.zeros(2 * n + 16),
        bundle_of=np.full(n, NOWHERE, np.int64),
        tag=np.zeros(n),
        child=np.full(n, NO_FLOW, np.int64),
        sibling=np.full(n, NO_FLOW, np.int64),
        left=sizes.astype(np.float64).copy(),
        path_of_flow=path_of_flow,
        rank=ints(n),
        weight=np.ones(n),
        cap=np.full(n, np.inf),
        group=group,
        alone=np.zeros(n, np.int8),
        not_before=np.full(n, -np.inf),
        latency=latency,
        path_bytes=np.zeros(n_paths),
        path_ptr=path_ptr,
        path_links=path_links,
        capacity=capacity,
        count=ints(8),
        clock=np.zeros(1),
        queued=np.array([1 if queued else 0], np.int8),
    )
    bundles.count[N_FREE] = n
    return bundles, scratch(len(capacity))


def open_index() -> nb.typed.Dict:
    """The map from (group, class) to the bundle that holds it."""
    return nb.typed.Dict.empty(nb.int64, nb.int64)


@nb.njit(cache=True)
def _meld(bun: Bundles, a: int, b: int) -> int:
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


@nb.njit(cache=True)
def _pop_root(bun: Bundles, root: int) -> int:
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
            joined = _meld(bun, node, second)
        bun.sibling[joined] = paired
        paired = joined
        node = following
    result = NO_FLOW
    while paired >= 0:
        following = bun.sibling[paired]
        bun.sibling[paired] = NO_FLOW
        result = _meld(bun, result, paired)
        paired = following
    return int(result)


@nb.njit(cache=True)
def _new_bundle(bun: Bundles, index: nb.typed.Dict, key: int, f: int) -> int:
    bun.count[N_FREE] -= 1
    b = bun.free[bun.count[N_FREE]]
    if key != ALONE:
        index[key] = b
    bun.key[b] = key
    bun.path[b] = bun.path_of_flow[f]
    bun.cls[b] = bun.rank[f]
    bun.members[b] = 0
    bun.unit_weight[b] = bun.weight[f]
    bun.cap_sum[b] = 0.0
    bun.uncapped[b] = 0
    bun.v[b] = 0.0
    bun.v_at[b] = bun.clock[0]
    bun.last_tag[b] = 0.0
    bun.unit_rate[b] = 0.0
    bun.due[b] = np.inf
    bun.root[b] = NO_FLOW
    bun.place[b] = bun.count[N_ACTIVE]
    bun.active[bun.count[N_ACTIVE]] = b
    bun.count[N_ACTIVE] += 1
    return int(b)


@nb.njit(cache=True)
def _close_bundle(bun: Bundles, index: nb.typed.Dict, b: int) -> None:
    if bun.key[b] != ALONE:
        index.pop(bun.key[b])
    bun.count[N_ACTIVE] -= 1
    last = bun.active[bun.count[N_ACTIVE]]
    bun.active[bun.place[b]] = last
    bun.place[last] = bun.place[b]
    bun.due[b] = np.inf
    bun.free[bun.count[N_FREE]] = b
    bun.count[N_FREE] += 1


@nb.njit(cache=True)
def _claim(bun: Bundles, b: int, cap: float, sign: int) -> None:
    if cap < np.inf:
        bun.cap_sum[b] += sign * cap
    else:
        bun.uncapped[b] += sign


@nb.njit(cache=True)
def _catch_up(bun: Bundles, b: int, t: float) -> None:
    """Bring the virtual clock of bundle b to time t."""
    passed = t - bun.v_at[b]
    if passed > 0:
        bun.v[b] += bun.unit_rate[b] * passed
        bun.v_at[b] = t


@nb.njit(cache=True)
def insert(bun: Bundles, index: nb.typed.Dict, f: int) -> None:
    """Put flow f into the bundle of its group and class at the present time."""
    key = ALONE if bun.alone[f] else bun.group[f] << 32 | bun.rank[f]
    if key != ALONE and key in index:
        b = index[key]
        _catch_up(bun, b, bun.clock[0])
    else:
        b = _new_bundle(bun, index, key, f)
    if bun.queued[0]:
        bun.last_tag[b] = max(bun.last_tag[b], bun.v[b]) + bun.left[f]
        bun.tag[f] = bun.last_tag[b]
    else:
        bun.tag[f] = bun.v[b] + bun.left[f]
    _claim(bun, b, bun.cap[f], 1)
    bun.members[b] += 1
    bun.bundle_of[f] = b
    bun.child[f] = NO_FLOW
    bun.sibling[f] = NO_FLOW
    bun.root[b] = _meld(bun, bun.root[b], f)
    bun.count[DIRTY] = 1


@nb.njit(cache=True)
def insert_all(bun: Bundles, index: nb.typed.Dict, flows: Ints) -> None:
    """Put new flows into their bundles at the present time, except those that must not send yet."""
    for f in flows:
        if bun.not_before[f] <= bun.clock[0]:
            insert(bun, index, f)


@nb.njit(cache=True)
def next_gate(bun: Bundles, flows: Ints) -> float:
    """When the first of the given flows that still must not send may do so, inf if there is none."""
    at = np.inf
    for f in flows:
        if bun.bundle_of[f] == NOWHERE:
            at = min(at, bun.not_before[f])
    return at


@nb.njit(cache=True)
def settle_left(bun: Bundles, flows: Ints) -> None:
    """Write into `left` what each active flow still has to send at the present time.

    In a queue only the first flow is under way: a later one's tag is further ahead than its own bytes.
    """
    t = bun.clock[0]
    for f in flows:
        b = bun.bundle_of[f]
        if b < 0:
            continue
        _catch_up(bun, b, t)
        now = max(0.0, min(bun.left[f], bun.tag[f] - bun.v[b]))
        bun.path_bytes[bun.path_of_flow[f]] += bun.left[f] - now
        bun.left[f] = now


@nb.njit(cache=True)
def regroup(bun: Bundles, index: nb.typed.Dict, flows: Ints) -> None:
    """Put all active flows (in order of release) into the bundles that the plan now says.

    `left` must be settled. A flow that was and stays alone keeps its bundle; the rest are laid anew.
    Two flows of one bundle have equal claims by construction: the caller marks others as alone.
    """
    now = bun.clock[0]
    for f in flows:
        b = bun.bundle_of[f]
        if b < 0:
            continue
        same = bun.alone[f] and bun.key[b] == ALONE and bun.path[b] == bun.path_of_flow[f]
        if not same or bun.not_before[f] > now:
            bun.members[b] -= 1
            if bun.members[b] == 0:
                _close_bundle(bun, index, b)
            bun.bundle_of[f] = NOWHERE
    for f in flows:
        b = bun.bundle_of[f]
        if b >= 0:
            bun.cls[b] = bun.rank[f]
            bun.unit_weight[b] = bun.weight[f]
            bun.cap_sum[b] = bun.cap[f] if bun.cap[f] < np.inf else 0.0
            bun.uncapped[b] = 0 if bun.cap[f] < np.inf else 1
        elif b == NOWHERE and bun.not_before[f] <= now:
            insert(bun, index, f)
    bun.count[DIRTY] = 1


@nb.njit(cache=True)
def _by_class(bun: Bundles) -> Ints:
    active = bun.active[: bun.count[N_ACTIVE]]
    for i in range(1, len(active)):
        if bun.cls[active[i]] != bun.cls[active[0]]:
            return active[np.argsort(bun.cls[active], kind="mergesort")]
    return active.copy()


@nb.njit(cache=True)
def _reallocate(bun: Bundles, s: Scratch) -> None:
    """Give every bundle its rate and say when its first flow is due."""
    order = _by_class(bun)
    n = len(order)
    ptr = np.zeros(n + 1, np.int64)
    for i in range(n):
        p = bun.path[order[i]]
        ptr[i + 1] = ptr[i] + bun.path_ptr[p + 1] - bun.path_ptr[p]
    links = np.empty(ptr[n], np.int64)
    weight, cap, rate = np.empty(n), np.empty(n), np.zeros(n)
    for i in range(n):
        b = order[i]
        first = bun.path_ptr[bun.path[b]]
        for k in range(ptr[i], ptr[i + 1]):
            links[k] = bun.path_links[first + k - ptr[i]]
        weight[i] = bun.unit_weight[b] * (1 if bun.queued[0] else bun.members[b])
        cap[i] = np.inf if bun.uncapped[b] else bun.cap_sum[b]
    at_cap = allocate(np.arange(n), bun.cls[order], weight, cap, ptr, links, bun.capacity, s, rate)
    for i in range(n):
        b = order[i]
        _catch_up(bun, b, bun.clock[0])
        bun.unit_rate[b] = rate[i] if bun.queued[0] else rate[i] / bun.members[b]
        bun.due[b] = _due(bun, b)
    bun.count[AT_CAP] = 1 if at_cap else 0
    bun.count[DIRTY] = 0
    bun.count[HEAPED] = 0
    bun.count[N_ALLOCATIONS] += 1


@nb.njit(cache=True)
def _due(bun: Bundles, b: int) -> float:
    ahead = bun.tag[bun.root[b]] - bun.v[b]
    if ahead <= 0:
        return float(bun.v_at[b])
    return float(bun.v_at[b] + ahead / bun.unit_rate[b]) if bun.unit_rate[b] > 0 else np.inf


@nb.njit(cache=True)
def _heap_push(bun: Bundles, b: int) -> None:
    i = bun.count[N_HEAP]
    bun.count[N_HEAP] += 1
    at = bun.due[b]
    while i > 0:
        parent = (i - 1) >> 1
        if bun.heap_at[parent] <= at:
            break
        bun.heap[i], bun.heap_at[i] = bun.heap[parent], bun.heap_at[parent]
        i = parent
    bun.heap[i], bun.heap_at[i] = b, at


@nb.njit(cache=True)
def _heap_pop(bun: Bundles) -> None:
    bun.count[N_HEAP] -= 1
    n = bun.count[N_HEAP]
    b, at = bun.heap[n], bun.heap_at[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and bun.heap_at[child + 1] < bun.heap_at[child]:
            child += 1
        if bun.heap_at[child] >= at:
            break
        bun.heap[i], bun.heap_at[i] = bun.heap[child], bun.heap_at[child]
        i = child
    bun.heap[i], bun.heap_at[i] = b, at


@nb.njit(cache=True)
def _next_due(bun: Bundles, fresh_rates: bool) -> float:
    """The earliest `due`. Right after an allocation a scan; while rates stand still, a heap of what changed."""
    if fresh_rates:
        at = np.inf
        for i in range(bun.count[N_ACTIVE]):
            at = min(at, bun.due[bun.active[i]])
        return at
    if not bun.count[HEAPED]:
        bun.count[N_HEAP] = 0
        for i in range(bun.count[N_ACTIVE]):
            if bun.due[bun.active[i]] < np.inf:
                _heap_push(bun, bun.active[i])
        bun.count[HEAPED] = 1
    while bun.count[N_HEAP] and bun.due[bun.heap[0]] != bun.heap_at[0]:
        _heap_pop(bun)
    return float(bun.heap_at[0]) if bun.count[N_HEAP] else np.inf


@nb.njit(cache=True)
def _end_due_flows(led: Ledger, bun: Bundles, index: nb.typed.Dict, b: int) -> None:
    """End the flows of bundle b that are due at its `due`.

    Rates need not be computed again if all bundles have their caps, or if a connection without a cap
    goes on with the next flow of its queue, of equal weight. What is simultaneous but for rounding ends
    at one time, the clock's.
    """
    _catch_up(bun, b, bun.due[b])
    t = bun.clock[0]
    v = max(bun.v[b], bun.tag[bun.root[b]])
    bun.v[b] = v
    while bun.members[b] and bun.tag[bun.root[b]] <= v + 1e-12 * v:
        f = bun.root[b]
        bun.root[b] = _pop_root(bun, f)
        bun.members[b] -= 1
        _claim(bun, b, bun.cap[f], -1)
        bun.path_bytes[bun.path_of_flow[f]] += bun.left[f]
        bun.left[f] = 0.0
        if bun.latency[f] > 0:
            bun.bundle_of[f] = IN_FLIGHT
            push_timer(led, t + bun.latency[f], f)
        else:
            bun.bundle_of[f] = NOWHERE
            finish_node(led, f, t)
    if bun.members[b] == 0:
        if not bun.count[AT_CAP]:
            bun.count[DIRTY] = 1
        _close_bundle(bun, index, b)
        return
    if bun.queued[0]:
        weight = bun.weight[bun.root[b]]
        if not bun.uncapped[b] or weight != bun.unit_weight[b]:
            bun.unit_weight[b] = weight
            bun.count[DIRTY] = 1
    elif not bun.count[AT_CAP]:
        bun.count[DIRTY] = 1
    bun.due[b] = _due(bun, b)
    if bun.count[HEAPED]:
        _heap_push(bun, b)


@nb.njit(cache=True)
def _end_scanned(led: Ledger, bun: Bundles, index: nb.typed.Dict, horizon: float) -> None:
    i = 0
    while i < bun.count[N_ACTIVE]:
        b = bun.active[i]
        if bun.due[b] <= horizon:
            _end_due_flows(led, bun, index, b)
        if i < bun.count[N_ACTIVE] and bun.active[i] == b and bun.due[b] > horizon:
            i += 1


@nb.njit(cache=True)
def _end_heaped(led: Ledger, bun: Bundles, index: nb.typed.Dict, horizon: float) -> None:
    while True:
        while bun.count[N_HEAP] and bun.due[bun.heap[0]] != bun.heap_at[0]:
            _heap_pop(bun)
        if not bun.count[N_HEAP] or bun.heap_at[0] > horizon:
            return
        b = bun.heap[0]
        _heap_pop(bun)
        _end_due_flows(led, bun, index, b)


@nb.njit(cache=True)
def advance(
    led: Ledger, bun: Bundles, index: nb.typed.Dict, s: Scratch, concern: int, until: float, most_events: int
) -> bool:
    """Run until something concerns the caller, or `until`, or so many events; False if nothing can happen any more.

    What concerns it: a released flow (which only the caller can put into a bundle), or an event whose
    bit is in `concern`. The caller reads led.count[EVENTS] and clears it. The time is in clock[0].
    """
    for _ in range(most_events):
        if led.count[FRESH] or led.count[EVENTS] & concern:
            return True
        reallocated = bun.count[DIRTY] == 1
        if reallocated:
            _reallocate(bun, s)
        at = min(_next_due(bun, reallocated), next_timer(led))
        if at > until:
            bun.clock[0] = max(bun.clock[0], until)
            return True
        if at == np.inf:
            return False
        t = max(bun.clock[0], at)
        bun.clock[0] = t
        bun.count[N_EVENTS] += 1
        horizon = t + 1e-12 * t
        while next_timer(led) <= horizon:
            fire_timer(led, t)
        if bun.count[HEAPED]:
            _end_heaped(led, bun, index, horizon)
        else:
            _end_scanned(led, bun, index, horizon)
    return True
