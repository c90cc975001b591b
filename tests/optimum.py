"""The least weighted sum of completion times of a few coflows, exactly: for small instances on a big switch.

All coflows arrive at 0. Every schedule ends them in some order. Given the order, cut time where one ends:
between two cuts only the average rate of each flow matters, because a link's limit on a sum of rates holds
for their averages too. So the best schedule of that order is a linear program in the lengths of the pieces
and the bytes of each flow in each piece; the least over all orders is the optimum, of all schedules that may
interrupt and mix flows. Nothing is relaxed: it errs by the LP solver's tolerance (1e-7) only.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
from scipy.optimize import linprog

Flow = tuple[int, int, float]
"""Source, destination, bytes."""


def optimum(coflows: list[list[Flow]], weight: list[float] | None = None) -> float:
    """Least sum of weight x completion time over ports of 1 B/s each way, by brute force over the orders."""
    weights = np.ones(len(coflows)) if weight is None else np.array(weight)
    return min(best_of_order(coflows, weights, order) for order in permutations(range(len(coflows))))


def best_of_order(coflows: list[list[Flow]], weight: np.ndarray, order: tuple[int, ...]) -> float:
    """The same if `order[0]` ends first (or together with the next), and so on."""
    n = len(order)
    place = {coflow: k for k, coflow in enumerate(order)}
    flows = [(*flow, place[c]) for c, each in enumerate(coflows) for flow in each]
    pieces = [(f, k) for f, flow in enumerate(flows) for k in range(flow[3] + 1)]
    ports = sorted({("up", f[0]) for f in flows} | {("down", f[1]) for f in flows})
    # Columns: the n lengths, then the bytes of flow f in piece k.
    after = [weight[list(order[k:])].sum() for k in range(n)]
    sent = np.zeros((len(flows), n + len(pieces)))
    room = np.zeros((len(ports) * n, n + len(pieces)))
    for column, (f, k) in enumerate(pieces, start=n):
        sent[f, column] = 1.0
        room[ports.index(("up", flows[f][0])) * n + k, column] = 1.0
        room[ports.index(("down", flows[f][1])) * n + k, column] = 1.0
    for row in range(len(room)):
        room[row, row % n] = -1.0
    result = linprog(
        np.concatenate((after, np.zeros(len(pieces)))),
        A_ub=room,
        b_ub=np.zeros(len(room)),
        A_eq=sent,
        b_eq=[flow[2] for flow in flows],
        method="highs",
    )
    assert result.status == 0, result.message
    return float(result.fun)
