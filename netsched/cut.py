"""Jobs in an order of importance fitted into few classes: the cut that keeps most of the order.

Two jobs of one class share; so an order u before v of jobs that meet is lost where both have one class. With
weights on these edges the best classes are a maximum K-cut of a directed acyclic graph, under the condition
that no edge leads upward.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from netsched.model import Bools, Floats, Ints

_ROUNDING: Final = 1e-12


def best_of_orders(edges: Floats, levels: int, orders: int, rng: np.random.Generator) -> Ints:
    """The level (0 first) of each node: the heaviest of the best cuts of `orders` random topological orders.

    `edges[u, v]` > 0 is the weight of keeping u before v, acyclic. Crux (SIGCOMM 2024), section 4.3.
    """
    best, heaviest = np.zeros(len(edges), np.int64), -1.0
    for _ in range(orders):
        order = _random_order(edges > 0, rng)
        weight, level = cut_of_order(edges[np.ix_(order, order)], levels)
        if weight > heaviest * (1 + _ROUNDING):
            heaviest, best = weight, np.empty(len(order), np.int64)
            best[order] = level
    return best


def _random_order(before: Bools, rng: np.random.Generator) -> Ints:
    """A topological order: breadth first from the nodes that nothing precedes, equals in random order."""
    waits = before.sum(axis=0)
    order: list[int] = []
    ready = rng.permutation(np.flatnonzero(waits == 0)).tolist()
    while ready:
        node = ready.pop(0)
        order.append(node)
        waits[before[node]] -= 1
        ready += rng.permutation(np.flatnonzero(before[node] & (waits == 0))).tolist()
    return np.array(order, np.int64)


def cut_of_order(edges: Floats, levels: int) -> tuple[float, Ints]:
    """The heaviest cut of nodes 0..n-1 into at most so many intervals: its weight, and each node's interval.

    With f(i, k) the heaviest cut of the first i nodes into k intervals and C(j, i) the weight from the first
    j to nodes j..i-1: f(i, k) = max over j of f(j, k-1) + C(j, i). No more intervals than the weight needs.
    """
    n = len(edges)
    if n == 0:
        return 0.0, np.zeros(0, np.int64)
    # C(j, i) as a table of prefix sums: rows up to j, columns j to i.
    total = np.zeros((n + 1, n + 1))
    total[1:, 1:] = edges.cumsum(axis=0).cumsum(axis=1)
    crossing = np.triu(total - np.diag(total)[:, None])
    reach = np.where(np.arange(n + 1)[:, None] <= np.arange(n + 1), crossing, -np.inf)
    weight = np.zeros(n + 1)
    parents: list[Ints] = []
    for _ in range(min(levels, n) - 1):
        candidates = weight[:, None] + reach
        parent = candidates.argmax(axis=0)
        better = candidates[parent, np.arange(n + 1)]
        if better[n] <= weight[n] * (1 + _ROUNDING):
            break
        parents.append(parent.astype(np.int64))
        weight = better
    level = np.full(n, len(parents), np.int64)
    end = n
    for k in range(len(parents), 0, -1):
        end = int(parents[k - 1][end])
        level[:end] = k - 1
    return float(weight[n]), level
