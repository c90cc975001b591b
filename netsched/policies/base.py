"""What policies share: a plan of columns, the bottleneck of a coflow, its place among few classes."""

from __future__ import annotations

from typing import Final

import numpy as np

from netsched.model import Floats, Ints, Plan, View

_ROUNDING: Final = 1e-9
"""Costs that differ by less than this share differ by the order of adding up only."""


def plan_of(
    view: View,
    rank: Ints,
    reserve: Floats | None = None,
    rate: Floats | None = None,
    weight: Floats | None = None,
    review_in: float = float("inf"),
) -> Plan:
    """A plan with the given columns (one value per flow of the view) and nothing else asked for.

    Columns that are not given are one value in memory, and read-only.
    """

    def all_alike(value: float | int) -> np.ndarray:
        return np.broadcast_to(np.asarray(value), len(view.flows))

    return Plan(
        rank=np.asarray(rank, np.int64),
        reserve=all_alike(0.0) if reserve is None else reserve,
        rate=all_alike(np.inf) if rate is None else rate,
        weight=all_alike(1.0) if weight is None else weight,
        not_before=all_alike(-np.inf),
        path=all_alike(-1),
        review_in=review_in,
    )


def bottlenecks(view: View, amount: Floats) -> Floats:
    """Effective bottleneck of each coflow in seconds: most `amount` (bytes per flow) on a link over its rate.

    Varys (SIGCOMM 2014), section 4.1: Gamma = max over ports of the coflow's bytes there over the port's
    bandwidth; here over every link of the flows' paths. Shape: one value per row of `view.coflows`.
    """
    from netsched.madd import most_loaded  # noqa: PLC0415 (numba, which a host agent never loads)

    flows = view.flows
    return most_loaded(flows.coflow, len(view.coflows), amount, flows.indptr, flows.links, view.capacity)


def classes_in_order(seconds: Floats, held: Ints, queues: int) -> Ints:
    """A class 0..queues-1 per coflow that follows ascending `seconds`; who holds one (`held` >= 0) keeps it.

    Each newcomer takes the class that costs least. Were it alone on one link with another coflow, which needs
    that many seconds there, sharing a class would delay the shorter one by its own time, and the wrong order
    would delay it by the longer one's and spare that the shorter one's: this is added up over all others. Of
    equally good classes it takes the middle one, which leaves room on both sides. Of several newcomers the
    median comes first, then the medians of both halves, and so on. Coflows of equal time go by row.
    """
    cls = held.copy()
    order = np.argsort(seconds, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    option = np.arange(queues)[:, None]
    for newcomer in _medians_first(order[held[order] < 0]):
        placed = np.flatnonzero(cls >= 0)
        of, other = cls[placed], seconds[placed]
        wrong = np.where(place[placed] < place[newcomer], of > option, of < option)
        cost = (wrong * abs(other - seconds[newcomer])).sum(axis=1)
        cost += ((of == option) * np.minimum(other, seconds[newcomer])).sum(axis=1)
        best = np.flatnonzero(cost <= cost.min() * (1 + _ROUNDING))
        cls[newcomer] = best[(len(best) - 1) // 2]
    return cls


def _medians_first(items: Ints) -> list[int]:
    """The items in the order of a breadth-first walk over the balanced search tree of them."""
    out: list[int] = []
    level = [(0, len(items))]
    while level:
        halves = []
        for low, high in level:
            if low < high:
                middle = (low + high) // 2
                out.append(int(items[middle]))
                halves += [(low, middle), (middle + 1, high)]
        level = halves
    return out
