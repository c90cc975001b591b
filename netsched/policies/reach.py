"""Which links coflows cross, and how soon the bytes that they have sent can reach a limit.

A policy that goes by bytes sent must look again when a coflow passes a limit. How soon that can be follows
from the ports alone, and the surer it is that nothing can happen, the less often it needs to be asked.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from netsched.model import Floats, Ints, View

_ROUNDING: Final = 1e-9
"""A coflow that lacks this share of a limit has reached it: sums of rates times seconds are inexact."""

_MOST_CELLS: Final = 4_000_000
"""Up to so many pairs are marked in a table; above, only those that occur are sorted."""


def levels(sent: Floats, limits: Floats) -> Ints:
    """How many of the ascending `limits` (bytes) each coflow has reached."""
    return np.searchsorted(limits * (1 - _ROUNDING), sent, side="right")


def review_in(view: View, limits: Floats, sync: float) -> float:
    """Seconds within which to look again, so that a coflow that reaches a limit is seen at most `sync` late.

    At least `sync`, more where no coflow can reach its next limit in that time, inf if none is left to reach.
    """
    at = levels(view.coflows.sent, limits)
    below = at < len(limits)
    if not below.any():
        return np.inf
    to_go = limits[at[below]] - view.coflows.sent[below]
    # Whatever a coflow's flows are, what the slowest link carries is within its reach.
    if to_go.min() <= sync * view.capacity.min():
        return sync
    return max(sync, float((to_go / fastest(view)[below]).min()))


def fastest(view: View) -> Floats:
    """Bytes/s that no coflow can exceed before a coflow is released: one value per row of `view.coflows`.

    The lesser of what the first links of its flows carry together and what their last links do. inf where
    flows of it are still to be released, because nobody knows their links, or cross no link.
    """
    from netsched.sums import ends_carry  # noqa: PLC0415 (numba, which a host agent never loads)

    flows, coflows = view.flows, view.coflows
    crossing, most = ends_carry(flows.coflow, len(coflows), flows.indptr, flows.links, view.capacity)
    unbounded = coflows.n_finished + crossing < coflows.n_flows
    return np.where(unbounded | (crossing == 0), np.inf, most)


def contention(view: View) -> Ints:
    """With how many coflows, itself included, each coflow shares a link of its active flows' paths."""
    flows, n = view.flows, len(view.coflows)
    owner = np.repeat(flows.coflow, np.diff(flows.indptr))
    coflow, link = distinct(owner, flows.links, n, len(view.capacity))
    used, row = np.unique(link, return_inverse=True)
    # One bit per coflow and link: a coflow meets all those with a bit on one of its links.
    users = np.zeros((len(used), n // 8 + 1), np.uint8)
    np.bitwise_or.at(users, (row, coflow >> 3), np.left_shift(1, coflow & 7).astype(np.uint8))
    bounds = np.searchsorted(coflow, np.arange(n + 1))
    met = np.ones(n, np.int64)
    for c in range(n):
        if bounds[c + 1] > bounds[c]:
            reached = np.bitwise_or.reduce(users[row[bounds[c] : bounds[c + 1]]], axis=0)
            met[c] = np.count_nonzero(np.unpackbits(reached))
    return met


def distinct(coflow: Ints, link: Ints, n_coflows: int, n_links: int) -> tuple[Ints, Ints]:
    """The distinct pairs of coflow and link, in ascending order."""
    key = coflow * n_links + link
    if n_coflows * n_links <= _MOST_CELLS:
        table = np.zeros(n_coflows * n_links, bool)
        table[key] = True
        key = np.flatnonzero(table)
    else:
        key = np.unique(key)
    return key // max(n_links, 1), key % max(n_links, 1)
