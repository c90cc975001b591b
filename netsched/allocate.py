"""Rates of bundles of connections: strict priority between classes, weighted max-min with caps inside one.

A bundle is a set of connections on one path, in one class, with equal claims; the simulator never looks at
single flows here. Max-min by water-filling (Bertsekas and Gallager, Data Networks, 6.5.2): a link's fair
level never falls while others are frozen at a lower one, so a heap whose entries may be stale suffices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netsched.jit import kernel
from netsched.model import Floats, Ints


class Scratch(NamedTuple):
    """Working arrays, sized once: per link up to `stamp` (reset by who uses them), then per bundle."""

    residual: Floats
    weight: Floats
    n_open: Ints
    first: Ints
    level: Floats
    used: Ints
    stamp: Ints
    group: Ints
    by_cap: Ints
    spare: Ints
    cap_level: Floats
    members: Ints
    weight_of: Floats
    cap_of: Floats
    rate_of: Floats


def scratch(n_links: int, n_bundles: int, n_uses: int) -> Scratch:
    return Scratch(
        residual=np.zeros(n_links),
        weight=np.zeros(n_links),
        n_open=np.zeros(n_links, np.int64),
        first=np.zeros(n_links + 1, np.int64),
        level=np.zeros(n_links),
        used=np.zeros(n_links, np.int64),
        stamp=np.zeros(n_links, np.int64),
        group=np.zeros(n_bundles, np.int64),
        by_cap=np.zeros(n_bundles, np.int64),
        spare=np.zeros(n_bundles, np.int64),
        cap_level=np.zeros(n_bundles),
        members=np.zeros(n_uses, np.int64),
        weight_of=np.zeros(n_bundles),
        cap_of=np.zeros(n_bundles),
        rate_of=np.zeros(n_bundles),
    )


@kernel
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


@kernel
def caps_fit(
    group: Ints, cap: Floats, row: Ints, indptr: Ints, links: Ints, s: Scratch, rate: Floats
) -> bool:
    """If every bundle of the group can have its cap at once, give it and return True; else change nothing."""
    for b in group:
        if not cap[b] < np.inf:
            return False
    for b in group:
        for k in range(indptr[row[b]], indptr[row[b] + 1]):
            s.weight[links[k]] += cap[b]
    fits = True
    for b in group:
        for k in range(indptr[row[b]], indptr[row[b] + 1]):
            if s.weight[links[k]] > s.residual[links[k]] * (1 + 1e-9):
                fits = False
    for b in group:
        for k in range(indptr[row[b]], indptr[row[b] + 1]):
            link = links[k]
            if fits:
                s.residual[link] = max(0.0, s.residual[link] - cap[b])
            s.weight[link] = 0.0
        if fits:
            rate[b] = cap[b]
    return fits


@kernel
def _open_links(group: Ints, weight: Floats, row: Ints, indptr: Ints, links: Ints, s: Scratch) -> int:
    """Sum the claims per link; the number of links in use; `members` from `first` on says who is on each."""
    n_used = 0
    for b in group:
        for k in range(indptr[row[b]], indptr[row[b] + 1]):
            link = links[k]
            if s.n_open[link] == 0:
                s.used[n_used] = link
                n_used += 1
                s.weight[link] = 0.0
            s.n_open[link] += 1
            s.weight[link] += weight[b]
    at = 0
    for u in range(n_used):
        link = s.used[u]
        s.first[link] = at
        at += s.n_open[link]
        s.n_open[link] = 0
    members = s.members
    for b in group:
        for k in range(indptr[row[b]], indptr[row[b] + 1]):
            link = links[k]
            members[s.first[link] + s.n_open[link]] = b
            s.n_open[link] += 1
    return n_used


@kernel
def _freeze(
    b: int, value: float, weight: Floats, row: Ints, indptr: Ints, links: Ints, s: Scratch, rate: Floats
) -> None:
    rate[b] = value
    for k in range(indptr[row[b]], indptr[row[b] + 1]):
        link = links[k]
        s.residual[link] = max(0.0, s.residual[link] - value)
        s.weight[link] -= weight[b]


@kernel
def _link_level(s: Scratch, link: int, tiny: float) -> float:
    return s.residual[link] / s.weight[link] if s.weight[link] > tiny else np.inf


@kernel
def sort_by(key: Floats | Ints, items: Ints, spare: Ints) -> None:
    """Sort `items` by key[item], in place and stable, with as long an array to help (merge sort)."""
    n, width = len(items), 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            i, j = low, middle
            for at in range(low, high):
                if j >= high or (i < middle and key[items[i]] <= key[items[j]]):
                    spare[at] = items[i]
                    i += 1
                else:
                    spare[at] = items[j]
                    j += 1
        for at in range(n):
            items[at] = spare[at]
        width *= 2


@kernel
def _sort_capped(group: Ints, weight: Floats, cap: Floats, s: Scratch) -> int:
    """Write the bundles that have a cap into `by_cap`, as a rising level reaches them; their number."""
    n = 0
    for b in group:
        if cap[b] < np.inf:
            s.by_cap[n] = b
            s.cap_level[b] = cap[b] / weight[b]
            n += 1
    sort_by(s.cap_level, s.by_cap[:n], s.spare)
    return n


@kernel
def water_fill(
    group: Ints, weight: Floats, cap: Floats, row: Ints, indptr: Ints, links: Ints, s: Scratch, rate: Floats
) -> None:
    """Weighted max-min with caps for one class on `s.residual`, which is reduced by what is given out.

    `group` lists bundles; `weight` and `cap` are totals per bundle, `rate` receives totals. Open bundles
    are marked by rate < 0 while the level rises.
    """
    if len(group) == 0 or caps_fit(group, cap, row, indptr, links, s, rate):
        return
    n_used = _open_links(group, weight, row, indptr, links, s)
    smallest = np.inf
    for b in group:
        rate[b] = -1.0
        smallest = min(smallest, weight[b])
    tiny = smallest * 1e-9
    n_capped = _sort_capped(group, weight, cap, s)
    by_cap = s.by_cap
    members = s.members
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
            if current <= s.level[heap[0]] or (current == np.inf and s.level[heap[0]] == np.inf):
                break
            s.level[heap[0]] = current
            _sift(heap, s.level, n_heap, 0)
        link_level = s.level[heap[0]] if n_heap else np.inf
        if next_cap < n_capped:
            b = by_cap[next_cap]
            if cap[b] <= link_level * weight[b]:
                _freeze(b, cap[b], weight, row, indptr, links, s, rate)
                left -= 1
                continue
        if link_level == np.inf:
            break
        link = heap[0]
        for m in range(s.first[link], s.first[link] + s.n_open[link]):
            b = members[m]
            if rate[b] < 0:
                _freeze(b, link_level * weight[b], weight, row, indptr, links, s, rate)
                left -= 1
        s.level[link] = np.inf
        s.weight[link] = 0.0
        _sift(heap, s.level, n_heap, 0)
    for u in range(n_used):
        s.n_open[s.used[u]] = 0
        s.weight[s.used[u]] = 0.0
    for b in group:
        rate[b] = max(rate[b], 0.0)
