"""Sums over the flows of a view: per coflow, or per link of their paths."""

from __future__ import annotations

import numpy as np

from netsched.jit import compiled
from netsched.model import Floats, Ints


@compiled
def by_rank(rank: Ints, n_ranks: int) -> tuple[Ints, Ints]:
    """Where each rank begins among the flows in order of rank, and these. (n_ranks + 1,), (flows,)"""
    first = np.zeros(n_ranks + 1, np.int64)
    for r in rank:
        first[r + 1] += 1
    for r in range(n_ranks):
        first[r + 1] += first[r]
    fill = first[:-1].copy()
    member = np.empty(len(rank), np.int64)
    for f in range(len(rank)):
        member[fill[rank[f]]] = f
        fill[rank[f]] += 1
    return first, member


@compiled
def ends_carry(coflow: Ints, n: int, indptr: Ints, links: Ints, capacity: Floats) -> tuple[Ints, Floats]:
    """Per coflow the number of its flows that cross a link, and the lesser of what two sets of links carry.

    Those are the first links of its flows, each counted once, and the last ones.
    """
    first, member = by_rank(coflow, n)
    crossing = np.zeros(n, np.int64)
    carry = np.zeros((2, n))
    seen = np.full((2, len(capacity)), -1, np.int64)
    for c in range(n):
        for f in member[first[c] : first[c + 1]]:
            if indptr[f + 1] == indptr[f]:
                continue
            crossing[c] += 1
            for end in range(2):
                link = links[indptr[f + 1] - 1] if end else links[indptr[f]]
                if seen[end, link] != c:
                    seen[end, link] = c
                    carry[end, c] += capacity[link]
    return crossing, np.minimum(carry[0], carry[1])


@compiled
def load_of_links(amount: Floats, indptr: Ints, links: Ints, n_links: int) -> Floats:
    """The amounts of all flows that cross each link, added up."""
    load = np.zeros(n_links)
    for f in range(len(amount)):
        for link in links[indptr[f] : indptr[f + 1]]:
            load[link] += amount[f]
    return load
