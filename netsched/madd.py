"""Minimum-allocation rates for coflows in order (MADD: Varys, SIGCOMM 2014, section 4.2)."""

from __future__ import annotations

import numpy as np

from netsched.jit import compiled
from netsched.model import Floats, Ints
from netsched.sums import by_rank

_USED_UP = 1e-9
"""A link with less than this share of its capacity left counts as used up."""


@compiled
def most_loaded(
    coflow: Ints, n_coflows: int, amount: Floats, indptr: Ints, links: Ints, capacity: Floats
) -> Floats:
    """Per coflow the most of `amount` (bytes per flow) on a link over its capacity, in seconds.

    coflow   row of the flow's coflow, 0..n_coflows-1; flow f crosses links[indptr[f]:indptr[f+1]]
    """
    first, member = by_rank(coflow, n_coflows)
    load = np.zeros(len(capacity))
    most = np.zeros(n_coflows)
    for c in range(n_coflows):
        most[c] = _gamma(member[first[c] : first[c + 1]], amount, indptr, links, capacity, capacity, load)
    return most


@compiled
def rates_in_order(
    rank: Ints, n_ranks: int, remaining: Floats, indptr: Ints, links: Ints, capacity: Floats
) -> Floats:
    """Rates in bytes/s, one per flow: MADD for the coflows in order of `rank`, on what is left of every link.

    rank       position of the flow's coflow in the order, 0..n_ranks-1
    remaining  bytes of the flow
    indptr     flow f crosses links[indptr[f]:indptr[f+1]]
    capacity   bytes/s per link
    """
    first, member = by_rank(rank, n_ranks)
    free = capacity.astype(np.float64).copy()
    load = np.zeros(len(capacity))
    rate = np.zeros(len(rank))
    for r in range(n_ranks):
        flows = member[first[r] : first[r + 1]]
        gamma = _gamma(flows, remaining, indptr, links, capacity, free, load)
        if gamma == np.inf:
            # Some link is used up: the flows that do not need it go on, in proportion as if they were all.
            flows = _unblocked(flows, indptr, links, capacity, free)
            gamma = _gamma(flows, remaining, indptr, links, capacity, free, load)
        if gamma <= 0.0:
            continue
        for f in flows:
            rate[f] = remaining[f] / gamma
            for k in range(indptr[f], indptr[f + 1]):
                free[links[k]] = max(0.0, free[links[k]] - rate[f])
    return rate


@compiled
def reserve_until(
    coflow: Ints,
    n_coflows: int,
    time_left: Floats,
    slack: Floats,
    remaining: Floats,
    indptr: Ints,
    links: Ints,
    capacity: Floats,
) -> tuple[Floats, Floats]:
    """Coflow by coflow, the least rates that end each within its time: bytes/s per flow, and left per link.

    coflow     row of the flow's coflow; they have their turn by row
    time_left  seconds per coflow: its flows get remaining / time_left, or remaining / Gamma if what is left
               of the links does not give that much; not positive for one that gets nothing
    slack      a coflow gets nothing unless Gamma x (1 + slack) is within its time, -1 to give in any case
    remaining  bytes of the flow
    indptr     flow f crosses links[indptr[f]:indptr[f+1]]
    capacity   bytes/s per link

    Gamma is the seconds that the coflow needs on what those before it leave.
    """
    first, member = by_rank(coflow, n_coflows)
    free = capacity.astype(np.float64).copy()
    load = np.zeros(len(capacity))
    rate = np.zeros(len(coflow))
    for c in range(n_coflows):
        if time_left[c] <= 0.0:
            continue
        flows = member[first[c] : first[c + 1]]
        gamma = _gamma(flows, remaining, indptr, links, capacity, free, load)
        if gamma == np.inf or gamma * (1.0 + slack[c]) > time_left[c]:
            continue
        for f in flows:
            rate[f] = remaining[f] / max(gamma, time_left[c])
            for k in range(indptr[f], indptr[f + 1]):
                free[links[k]] = max(0.0, free[links[k]] - rate[f])
    for link in range(len(free)):
        if free[link] <= _USED_UP * capacity[link]:
            free[link] = 0.0
    return rate, free


@compiled
def _gamma(
    flows: Ints, remaining: Floats, indptr: Ints, links: Ints, capacity: Floats, free: Floats, load: Floats
) -> float:
    """Seconds that the coflow needs on what is free, inf if it needs a link that is used up."""
    for f in flows:
        for k in range(indptr[f], indptr[f + 1]):
            load[links[k]] += remaining[f]
    gamma = 0.0
    for f in flows:
        for k in range(indptr[f], indptr[f + 1]):
            link = links[k]
            if load[link] > 0.0:
                if free[link] <= _USED_UP * capacity[link]:
                    gamma = np.inf
                else:
                    gamma = max(gamma, load[link] / free[link])
                load[link] = 0.0
    return gamma


@compiled
def _unblocked(flows: Ints, indptr: Ints, links: Ints, capacity: Floats, free: Floats) -> Ints:
    """Those of the flows that find something free on every link of their path."""
    kept = np.empty(len(flows), np.int64)
    n = 0
    for f in flows:
        open_ = True
        for k in range(indptr[f], indptr[f + 1]):
            if free[links[k]] <= _USED_UP * capacity[links[k]]:
                open_ = False
        if open_:
            kept[n] = f
            n += 1
    return kept[:n]
