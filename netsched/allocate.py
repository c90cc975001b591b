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
    claimed: Floats
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


def scratch(n_links: int, n_bundles: int, n_uses: int) -> Scratch:
    return Scratch(
        residual=np.zeros(n_links),
        weight=np.zeros(n_links),
        claimed=np.zeros(n_links),
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
def caps_fit(group: Ints, cap: Floats, row: Ints, indptr: Ints, links: Ints, s: Scratch) -> bool:
    """Whether all bundles of the group can have their caps at once; if so they are taken off the residual."""
    for b in group:
        for k in range(indptr[row[b]], indptr[row[b] + 1]):
            s.claimed[links[k]] += cap[b]
    fits = True
    for b in group:
        for k in range(indptr[row[b]], indptr[row[b] + 1]):
            if s.claimed[links[k]] > s.residual[links[k]] * (1 + 1e-9):
                fits = False
    for b in group:
        for k in range(indptr[row[b]], indptr[row[b] + 1]):
            if fits:
                s.residual[links[k]] = max(0.0, s.residual[links[k]] - cap[b])
            s.claimed[links[k]] = 0.0
    return fits


@kernel
def open_bundle(
    b: int, weight: float, row: Ints, indptr: Ints, links: Ints, s: Scratch, level: Floats, n_used: int
) -> int:
    """Add the claim of bundle b to its links for the next `water_fill`; how many links are used then."""
    level[b] = -1.0
    for k in range(indptr[row[b]], indptr[row[b] + 1]):
        link = links[k]
        if s.n_open[link] == 0:
            s.used[n_used] = link
            n_used += 1
            s.weight[link] = 0.0
        s.n_open[link] += 1
        s.weight[link] += weight
    return n_used


@kernel
def _list_members(group: Ints, n_used: int, row: Ints, indptr: Ints, links: Ints, s: Scratch) -> None:
    """Write who is on each used link into `members`, from `first` on."""
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


@kernel
def _freeze(
    b: int, at: float, weight: Floats, row: Ints, indptr: Ints, links: Ints, s: Scratch, level: Floats
) -> None:
    level[b] = at
    value = at * weight[b]
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
def water_fill(
    group: Ints,
    n_used: int,
    capped: Ints,
    weight: Floats,
    cap: Floats,
    row: Ints,
    indptr: Ints,
    links: Ints,
    s: Scratch,
    level: Floats,
) -> bool:
    """Weighted max-min with caps for one class on `s.residual`, which is reduced by what is given out.

    `group` lists the bundles, all passed to `open_bundle` before; `n_used` is what that returned last;
    `capped` lists those of the group that have a cap, and is sorted here. `weight` and `cap` are totals per
    bundle; bundle b crosses links[indptr[row[b]]:indptr[row[b] + 1]]. `level` receives bytes/s per unit of
    weight, below 0 for a bundle without links. True if all bundles get their caps.
    """
    for b in capped:
        s.cap_level[b] = cap[b] / weight[b]
    fit = len(capped) == len(group) and caps_fit(group, cap, row, indptr, links, s)
    if fit:
        for b in group:
            level[b] = s.cap_level[b]
    else:
        sort_by(s.cap_level, capped, s.spare)
        smallest = np.inf
        for b in group:
            smallest = min(smallest, weight[b])
        _list_members(group, n_used, row, indptr, links, s)
        _raise_level(len(group), n_used, smallest * 1e-9, capped, weight, row, indptr, links, s, level)
    for u in range(n_used):
        s.n_open[s.used[u]] = 0
    return fit


@kernel
def _raise_level(
    left: int,
    n_used: int,
    tiny: float,
    capped: Ints,
    weight: Floats,
    row: Ints,
    indptr: Ints,
    links: Ints,
    s: Scratch,
    level: Floats,
) -> None:
    """Raise the level of all open bundles together; whoever reaches a cap or fills a link stays there.

    A link of less than `tiny` open weight has none but what rounding leaves.
    """
    heap, at_link, members = s.used, s.level, s.members
    for u in range(n_used):
        at_link[heap[u]] = _link_level(s, heap[u], tiny)
    for i in range(n_used // 2 - 1, -1, -1):
        _sift(heap, at_link, n_used, i)
    next_cap = 0
    while left:
        while next_cap < len(capped) and level[capped[next_cap]] >= 0:
            next_cap += 1
        while n_used:
            current = _link_level(s, heap[0], tiny)
            if current <= at_link[heap[0]] or (current == np.inf and at_link[heap[0]] == np.inf):
                break
            at_link[heap[0]] = current
            _sift(heap, at_link, n_used, 0)
        link_level = at_link[heap[0]] if n_used else np.inf
        if next_cap < len(capped) and s.cap_level[capped[next_cap]] <= link_level:
            b = capped[next_cap]
            _freeze(b, s.cap_level[b], weight, row, indptr, links, s, level)
            left -= 1
            continue
        if link_level == np.inf:
            break
        link = heap[0]
        for m in range(s.first[link], s.first[link] + s.n_open[link]):
            b = members[m]
            if level[b] < 0:
                _freeze(b, link_level, weight, row, indptr, links, s, level)
                left -= 1
        at_link[link] = np.inf
        s.weight[link] = 0.0
        _sift(heap, at_link, n_used, 0)
