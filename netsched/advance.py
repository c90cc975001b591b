"""The loop that moves time over the bundles, from one end of a flow to the next.

Between two ends all rates stand still, so the next one is found by arithmetic and nothing is stepped over.
"""

from __future__ import annotations

import numpy as np

from netsched.allocate import Scratch
from netsched.bundles import (
    AT_CAP,
    DIRTY,
    HEAPED,
    HIGH,
    IN_FLIGHT,
    N_ACTIVE,
    N_CHANGED,
    N_EVENTS,
    N_FREED,
    N_HEAP,
    NOWHERE,
    Bundles,
    catch_up,
    claim,
    close_bundle,
    due_of,
    free_reserve,
    pop_root,
)
from netsched.jit import kernel
from netsched.ledger import EVENTS, FRESH, NODES_LEFT, Ledger, finish_node, fire_timer, next_timer, push_timer
from netsched.model import Floats
from netsched.rates import lose, reallocate, redo

_SCAN_FASTER = 40
"""A push into the heap costs as much as looking at so many bundles one after the other."""


@kernel
def _heap_push(bun: Bundles, b: int) -> None:
    """Put (due, b) on the heap; where it is full of entries that no longer hold, have it made anew."""
    if not bun.due[b] < np.inf:
        return
    i = bun.count[N_HEAP]
    if i == len(bun.heap):
        bun.count[HEAPED] = 0
        return
    bun.count[N_HEAP] += 1
    at = bun.due[b]
    while i > 0:
        parent = (i - 1) >> 1
        if bun.heap_at[parent] <= at:
            break
        bun.heap[i], bun.heap_at[i] = bun.heap[parent], bun.heap_at[parent]
        i = parent
    bun.heap[i], bun.heap_at[i] = b, at


@kernel
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


@kernel
def _earliest(due: Floats) -> float:
    """The least value: in four lanes, because one would wait for itself."""
    a, b, c, d = np.inf, np.inf, np.inf, np.inf
    n = len(due) & ~3
    for i in range(0, n, 4):
        a = min(due[i], a)
        b = min(due[i + 1], b)
        c = min(due[i + 2], c)
        d = min(due[i + 3], d)
    for i in range(n, len(due)):
        a = min(due[i], a)
    return min(a, b, c, d)


@kernel
def _note_changed(bun: Bundles) -> None:
    """After an allocation: keep the heap if it changed few rates, else forget it."""
    if bun.count[HEAPED]:
        if bun.count[N_CHANGED] * _SCAN_FASTER > bun.count[HIGH]:
            bun.count[HEAPED] = 0
            return
        for i in range(bun.count[N_CHANGED]):
            _heap_push(bun, bun.changed[i])


@kernel
def _next_due(bun: Bundles, changed: int) -> float:
    """The earliest `due`: by a scan where many have just changed, else from a heap of what changed."""
    if not bun.count[HEAPED]:
        if changed * _SCAN_FASTER > bun.count[HIGH]:
            return _earliest(bun.due[: bun.count[HIGH]])
        bun.count[N_HEAP] = 0
        bun.count[HEAPED] = 1
        for i in range(bun.count[N_ACTIVE]):
            _heap_push(bun, bun.active[i])
    while bun.count[N_HEAP] and bun.due[bun.heap[0]] != bun.heap_at[0]:
        _heap_pop(bun)
    return float(bun.heap_at[0]) if bun.count[N_HEAP] else np.inf


@kernel
def _end_due_flows(led: Ledger, bun: Bundles, b: int) -> None:
    """End the flows of bundle b that are due at its `due`.

    Rates need not be computed again if all bundles have their caps, or if a connection without a cap
    goes on with the next flow of its queue, of equal weight. What is simultaneous but for rounding ends
    at one time, the clock's.
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
        if bun.latency[f] > 0:
            bun.bundle_of[f] = IN_FLIGHT
            push_timer(led, t + bun.latency[f], f)
        else:
            bun.bundle_of[f] = NOWHERE
            finish_node(led, f, t)
    if bun.members[b] == 0 or not bun.queued[0]:
        lose(bun, b)
        if not bun.count[AT_CAP]:
            bun.count[DIRTY] = 1
    else:
        weight = bun.weight[bun.root[b]]
        if bun.count[N_FREED] or not bun.uncapped[b] or weight != bun.unit_weight[b]:
            bun.unit_weight[b] = weight
            # A bundle that others block is not visited again, but has lost what the ended flow reserved.
            bun.unit_rate[b] = bun.booked[b] + bun.level[b] * weight
            redo(bun, b)
    if bun.members[b] == 0:
        close_bundle(bun, b)
        return
    bun.due[b] = due_of(bun, b)
    if bun.count[HEAPED]:
        _heap_push(bun, b)


@kernel
def _end_scanned(led: Ledger, bun: Bundles, horizon: float) -> None:
    for b in range(bun.count[HIGH]):
        while bun.due[b] <= horizon:
            _end_due_flows(led, bun, b)


@kernel
def _end_heaped(led: Ledger, bun: Bundles, horizon: float) -> None:
    while True:
        while bun.count[N_HEAP] and bun.due[bun.heap[0]] != bun.heap_at[0]:
            _heap_pop(bun)
        if not bun.count[N_HEAP] or bun.heap_at[0] > horizon:
            return
        b = bun.heap[0]
        _heap_pop(bun)
        _end_due_flows(led, bun, b)


@kernel
def advance(led: Ledger, bun: Bundles, s: Scratch, concern: int, until: float, most_events: int) -> bool:
    """Run until something concerns the caller, or `until`, or so many events; False if nothing can happen.

    What concerns it: a released flow (which only the caller can put into a bundle), or an event whose
    bit is in `concern`. The caller reads led.count[EVENTS] and clears it. The time is in clock[0].
    """
    for _ in range(most_events):
        if led.count[FRESH] or led.count[EVENTS] & concern:
            return True
        if not led.count[NODES_LEFT]:
            return False
        changed = 0
        if bun.count[DIRTY]:
            reallocate(bun, s)
            _note_changed(bun)
            changed = bun.count[N_CHANGED]
        at = min(_next_due(bun, changed), next_timer(led))
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
            _end_heaped(led, bun, horizon)
        else:
            _end_scanned(led, bun, horizon)
    return True
