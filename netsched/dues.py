"""When the next flow ends: the earliest `due` of all bundles, from a heap of what changed or by a scan.

Few rates change at most events, nearly all at some; either way alone would be slow at the other's.
"""

from __future__ import annotations

import numpy as np

from netsched.bundles import HEAPED, HIGH, N_ACTIVE, N_CHANGED, N_HEAP, N_SCANS, Bundles
from netsched.jit import inner
from netsched.model import Floats

_SCAN_FASTER = 40
"""A push into the heap costs as much as looking at so many bundles one after the other."""

_SCANS_FIRST = 32
"""To make the heap costs as much as so many scans, which are taken first: the next event may spoil it."""


@inner
def push_due(bun: Bundles, b: int) -> None:
    """Where there is a heap, put (due, b) on it; if it is full of entries that no longer hold, forget it."""
    if not bun.count[HEAPED] or not bun.due[b] < np.inf:
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


@inner
def pop_due(bun: Bundles) -> None:
    """Take the first entry off the heap, which must not be empty."""
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


@inner
def drop_outdated(bun: Bundles) -> None:
    """Take entries off the heap until its first one holds."""
    while bun.count[N_HEAP] and bun.due[bun.heap[0]] != bun.heap_at[0]:
        pop_due(bun)


@inner
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


@inner
def note_changed(bun: Bundles) -> None:
    """After an allocation: keep the heap if it changed few rates, else forget it."""
    if bun.count[HEAPED]:
        if bun.count[N_CHANGED] * _SCAN_FASTER > bun.count[HIGH]:
            bun.count[HEAPED] = 0
            return
        for i in range(bun.count[N_CHANGED]):
            push_due(bun, bun.changed[i])


@inner
def next_due(bun: Bundles, changed: int) -> float:
    """The earliest `due`, after the rates of so many bundles have changed."""
    if not bun.count[HEAPED]:
        many = changed * _SCAN_FASTER > bun.count[HIGH]
        bun.count[N_SCANS] = 0 if many else bun.count[N_SCANS] + 1
        if many or bun.count[N_SCANS] <= _SCANS_FIRST:
            return _earliest(bun.due[: bun.count[HIGH]])
        bun.count[N_HEAP] = 0
        bun.count[HEAPED] = 1
        bun.count[N_SCANS] = 0
        for i in range(bun.count[N_ACTIVE]):
            push_due(bun, bun.active[i])
    drop_outdated(bun)
    return float(bun.heap_at[0]) if bun.count[N_HEAP] else np.inf
