"""The order of coflows by Bottleneck-Select-Scale-Iterate (BSSI; Sincronia, SIGCOMM 2018).

It is filled from the back: on the link that has most to carry, the coflow that gains the least weight per
second of that link goes last. Loads are kept sparse, because a coflow meets few of a large fabric's links.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from netsched.jit import compiled
from netsched.model import Floats, Ints


class Loads(NamedTuple):
    """Seconds that coflows need of links: entries `start[c]:start[c+1]` of `link` and `seconds` are c's."""

    start: Ints
    link: Ints
    seconds: Floats


def bssi(coflow: Ints, weight: Floats, amount: Floats, indptr: Ints, links: Ints, capacity: Floats) -> Ints:
    """The place of each coflow in the order, 0 first. Shape: that of `weight`.

    coflow  row of the flow's coflow; flow f has `amount[f]` bytes to send over links[indptr[f]:indptr[f+1]]
    weight  of the coflow in the sum of completion times, > 0

    Where two would do as the last, the one of the higher row is. Coflows without a byte to send go first.
    """
    member = np.argsort(coflow, kind="stable")
    first = np.searchsorted(coflow[member], np.arange(len(weight) + 1))
    return _order(loads_of(first, member, amount, indptr, links, capacity), weight, len(capacity))


@compiled
def loads_of(first: Ints, member: Ints, amount: Floats, indptr: Ints, links: Ints, capacity: Floats) -> Loads:
    """What each group of flows (`member[first[g]:first[g+1]]`) needs of each link that it has bytes for."""
    n = len(first) - 1
    start = np.zeros(n + 1, np.int64)
    link = np.empty(len(links), np.int64)
    seconds = np.empty(len(links))
    place = np.full(len(capacity), -1, np.int64)
    n_entries = 0
    for g in range(n):
        begin = n_entries
        for m in range(first[g], first[g + 1]):
            f = member[m]
            if amount[f] <= 0.0:
                continue
            for e in range(indptr[f], indptr[f + 1]):
                at = place[links[e]]
                if at < begin:  # from an earlier group
                    at = n_entries
                    place[links[e]] = at
                    link[at] = links[e]
                    seconds[at] = 0.0
                    n_entries += 1
                seconds[at] += amount[f] / capacity[links[e]]
        start[g + 1] = n_entries
    return Loads(start, link[:n_entries].copy(), seconds[:n_entries].copy())


@compiled
def by_link(loads: Loads, n_links: int) -> tuple[Ints, Ints, Ints]:
    """The entries link by link: where each link's begin, the entries' numbers, the group of each entry."""
    first = np.zeros(n_links + 1, np.int64)
    group = np.empty(len(loads.link), np.int64)
    for g in range(len(loads.start) - 1):
        group[loads.start[g] : loads.start[g + 1]] = g
    for link in loads.link:
        first[link + 1] += 1
    for link in range(n_links):
        first[link + 1] += first[link]
    fill = first[:-1].copy()
    entry = np.empty(len(loads.link), np.int64)
    for e in range(len(loads.link)):
        entry[fill[loads.link[e]]] = e
        fill[loads.link[e]] += 1
    return first, entry, group


@compiled
def _order(loads: Loads, weight: Floats, n_links: int) -> Ints:
    first, entry, group = by_link(loads, n_links)
    n = len(weight)
    left = weight.astype(np.float64).copy()
    place = np.full(n, -1, np.int64)
    total = np.zeros(n_links)
    for e in range(len(loads.link)):
        total[loads.link[e]] += loads.seconds[e]
    # Totals only fall, so that the heap's may be too high, never too low: the top is looked at again.
    heap = [(-total[link], link) for link in range(n_links) if first[link + 1] > first[link]]
    heapq.heapify(heap)
    end = n
    while len(heap) > 0:
        stored, link = heap[0]
        if -stored > total[link]:
            heapq.heapreplace(heap, (-total[link], link))
            continue
        last = -1
        least, of_last = np.inf, 1.0
        for i in range(first[link], first[link + 1]):
            c = group[entry[i]]
            ratio = left[c] / loads.seconds[entry[i]]
            if place[c] < 0 and ratio <= least:
                last, least, of_last = c, ratio, loads.seconds[entry[i]]
        if last < 0:
            heapq.heappop(heap)
            continue
        for i in range(first[link], first[link + 1]):
            c = group[entry[i]]
            # Never below 0: `last` has the least ratio, and rounding must not make a weight negative.
            left[c] = (
                max(0.0, left[c] - left[last] * loads.seconds[entry[i]] / of_last) if c != last else left[c]
            )
        end -= 1
        place[last] = end
        for e in range(loads.start[last], loads.start[last + 1]):
            total[loads.link[e]] -= loads.seconds[e]
    front = 0
    for c in range(n):
        if place[c] < 0:
            place[c] = front
            front += 1
    return place
