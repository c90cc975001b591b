"""Rates of bundles of connections: strict priority between classes, weighted max-min with caps inside one.

A bundle is a set of connections on one path, in one class, with equal claims; the simulator never looks at
single flows here. Max-min by water-filling (Bertsekas and Gallager, Data Networks, 6.5.2): a link's fair
level never falls while others are frozen at a lower one, so a heap whose entries may be stale suffices.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from netsched.model import Floats, Ints

_NOISE = 1e-10
"""Capacity left over below this share of the link is rounding, not bandwidth for a lower class."""


class Scratch(NamedTuple):
    """Working arrays of `allocate`, sized once: per link, and reset by the function itself."""

    residual: Floats
    weight: Floats
    n_open: Ints
    first: Ints
    level: Floats
    used: Ints


def scratch(n_links: int) -> Scratch:
    return Scratch(
        residual=np.zeros(n_links),
        weight=np.zeros(n_links),
        n_open=np.zeros(n_links, np.int64),
        first=np.zeros(n_links + 1, np.int64),
        level=np.zeros(n_links),
        used=np.zeros(n_links, np.int64),
    )


@nb.njit(cache=True)
def _sift(heap: Ints, level: Floats, n: int, i: int) -> None:
    """Move the link at position i of the min-heap of the first n links down to where it belongs."""
    link = heap[i]
    at = level[link]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and level[heap[child + 1]] < level[heap[child]]:
            child += 1
        if level[heap[child]] >= at:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = link


@nb.njit(cache=True)
def _caps_fit(group: Ints, cap: Floats, indptr: Ints, links: Ints, s: Scratch, rate: Floats) -> bool:
    """If every bundle of the group can have its cap at once, give it and return True; else change nothing."""
    for b in group:
        if not np.isfinite(cap[b]):
            return False
    for b in group:
        for k in range(indptr[b], indptr[b + 1]):
            s.weight[links[k]] += cap[b]
    fits = True
    for b in group:
        for k in range(indptr[b], indptr[b + 1]):
            if s.weight[links[k]] > s.residual[links[k]] * (1 + 1e-9):
                fits = False
    for b in group:
        for k in range(indptr[b], indptr[b + 1]):
            link = links[k]
            if fits:
                s.residual[link] = max(0.0, s.residual[link] - cap[b])
            s.weight[link] = 0.0
        if fits:
            rate[b] = cap[b]
    return fits


@nb.njit(cache=True)
def _open_links(group: Ints, weight: Floats, indptr: Ints, links: Ints, s: Scratch) -> tuple[int, Ints]:
    """Sum the claims per link; the number of links in use, and who is on each (`first` points into it)."""
    n_used, total = 0, 0
    for b in group:
        for k in range(indptr[b], indptr[b + 1]):
            link = links[k]
            if s.n_open[link] == 0:
                s.used[n_used] = link
                n_used += 1
                s.weight[link] = 0.0
            s.n_open[link] += 1
            s.weight[link] += weight[b]
            total += 1
    at = 0
    for u in range(n_used):
        link = s.used[u]
        s.first[link] = at
        at += s.n_open[link]
        s.n_open[link] = 0
    members = np.empty(total, np.int64)
    for b in group:
        for k in range(indptr[b], indptr[b + 1]):
            link = links[k]
            members[s.first[link] + s.n_open[link]] = b
            s.n_open[link] += 1
    return n_used, members


@nb.njit(cache=True)
def _freeze(
    b: int, value: float, weight: Floats, indptr: Ints, links: Ints, s: Scratch, rate: Floats
) -> None:
    rate[b] = value
    for k in range(indptr[b], indptr[b + 1]):
        link = links[k]
        s.residual[link] = max(0.0, s.residual[link] - value)
        s.weight[link] -= weight[b]


@nb.njit(cache=True)
def _link_level(s: Scratch, link: int, tiny: float) -> float:
    return s.residual[link] / s.weight[link] if s.weight[link] > tiny else np.inf


@nb.njit(cache=True)
def water_fill(
    group: Ints, weight: Floats, cap: Floats, indptr: Ints, links: Ints, s: Scratch, rate: Floats
) -> None:
    """Weighted max-min with caps for one class on `s.residual`, which is reduced by what is given out.

    `group` lists bundles; `weight` and `cap` are totals per bundle, `rate` receives totals. Open bundles
    are marked by rate < 0 while the level rises.
    """
    if len(group) == 0 or _caps_fit(group, cap, indptr, links, s, rate):
        return
    n_used, members = _open_links(group, weight, indptr, links, s)
    n_capped = 0
    smallest = np.inf
    for b in group:
        rate[b] = -1.0
        smallest = min(smallest, weight[b])
        if np.isfinite(cap[b]):
            n_capped += 1
    tiny = smallest * 1e-9
    by_cap = np.empty(n_capped, np.int64)
    key = np.empty(n_capped)
    n_capped = 0
    for b in group:
        if np.isfinite(cap[b]):
            by_cap[n_capped] = b
            key[n_capped] = cap[b] / weight[b]
            n_capped += 1
    by_cap = by_cap[np.argsort(key, kind="mergesort")]
    heap = s.used
    for u in range(n_used):
        s.level[heap[u]] = _link_level(s, heap[u], tiny)
    for i in range(n_used // 2 - 1, -1, -1):
        _sift(heap, s.level, n_used, i)
    left, next_cap, n_heap = len(group), 0, n_used
    while left:
        while next_cap < n_capped and rate[by_cap[next_cap]] >= 0:
            next_cap += 1
        while n_heap:
            current = _link_level(s, heap[0], tiny)
            if current <= s.level[heap[0]] or current == np.inf and s.level[heap[0]] == np.inf:
                break
            s.level[heap[0]] = current
            _sift(heap, s.level, n_heap, 0)
        link_level = s.level[heap[0]] if n_heap else np.inf
        if next_cap < n_capped:
            b = by_cap[next_cap]
            if cap[b] <= link_level * weight[b]:
                _freeze(b, cap[b], weight, indptr, links, s, rate)
                left -= 1
                continue
        if link_level == np.inf:
            break
        link = heap[0]
        for m in range(s.first[link], s.first[link] + s.n_open[link]):
            b = members[m]
            if rate[b] < 0:
                _freeze(b, link_level * weight[b], weight, indptr, links, s, rate)
                left -= 1
        s.level[link] = np.inf
        s.weight[link] = 0.0
        _sift(heap, s.level, n_heap, 0)
    for u in range(n_used):
        s.n_open[s.used[u]] = 0
        s.weight[s.used[u]] = 0.0
    for b in group:
        rate[b] = max(rate[b], 0.0)


@nb.njit(cache=True)
def allocate(
    order: Ints,
    rank: Ints,
    weight: Floats,
    cap: Floats,
    indptr: Ints,
    links: Ints,
    capacity: Floats,
    s: Scratch,
    rate: Floats,
) -> bool:
    """Total rate of every bundle in `order` (bundles sorted by class); True if each has its full cap.

    order     bundles, int64, sorted by `rank`
    rank      class per bundle; a lower one is served before a higher one sees any capacity
    weight    share inside the class, summed over the bundle's connections
    cap       bytes/s, summed over the bundle's connections, inf for none
    indptr    bundle b crosses links[indptr[b]:indptr[b+1]]
    capacity  bytes/s per link
    rate      receives bytes/s per bundle
    """
    for b in order:
        for k in range(indptr[b], indptr[b + 1]):
            s.residual[links[k]] = capacity[links[k]]
    at, n = 0, len(order)
    while at < n:
        end = at + 1
        while end < n and rank[order[end]] == rank[order[at]]:
            end += 1
        water_fill(order[at:end], weight, cap, indptr, links, s, rate)
        if end < n:
            for b in order[at:end]:
                for k in range(indptr[b], indptr[b + 1]):
                    if s.residual[links[k]] < capacity[links[k]] * _NOISE:
                        s.residual[links[k]] = 0.0
        at = end
    at_cap = True
    for b in order:
        if not rate[b] >= cap[b]:
            at_cap = False
    return at_cap
