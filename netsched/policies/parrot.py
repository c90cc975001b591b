"""Parrot: the job served least per coflow is taken for the shortest and given more bandwidth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from netsched.model import Event, Floats, Ints, Plan, View
from netsched.policies.base import plan_of
from netsched.units import Duration

_DIGITS: Final = 6
"""Of a weight, after the point: bytes sent have the rounding of sums, and rates must not show it."""

_SAME: Final = 1e-12
"""Links that are full at multiples as near as this are full at once."""


@dataclass(frozen=True)
class Parrot:
    """LPCAS and weighted scaling (Li, Chen, Li, Qi, Xu, Zhang, IEEE TCC 2020; its abstracts were read).

    The paper names three parts. The job of least per-coflow attained service (LPCAS) is inferred to be the
    one with the shortest remaining time. Its weight grows with how sure that is, and no job may starve. A
    linear program scales bandwidths by weight. Sizes are not known to it.

    INFERRED, all formulas. The service of a job is the bytes that its active coflows have sent over their
    number; a view shows neither coflows that have ended nor their bytes, and none are remembered, so this
    begins anew with each synchronisation. `sure` = 1 - least / second least service (0 where equal, and for
    one job); the inferred job weighs 1 + (`most` - 1) x sure, others 1. A job has waited as long as its
    oldest active coflow is there, less what its present flows' bytes sent would have taken alone; w seconds
    make it weigh 1 + w / `age` times as much. The program: every flow of job j gets the same rate x_j, the
    least of x_j / weight_j is made as great as the links allow, and so on for the jobs that are free to get
    more. (The greatest sum of weight x rate would be a single program, but gives all that is not guaranteed
    to one job even where all weigh the same.) These rates are reserved, and what is left over is shared
    max-min in proportion to the weights. Looked at when a coflow comes or ends, and every `period` if set (0:
    not).

    Hardware classes know no reserves: there the inferred job has the first class if `sure` is more than
    `confident`, and all others share the second, whatever their weights. INFERRED too.
    """

    most: float = 10.0
    age: Duration = 10.0
    period: Duration = 0.0
    confident: float = 0.5

    name: ClassVar[str] = "parrot"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.COFLOW_FINISHED
    starves: ClassVar[str] = (
        "with hardware classes, who has been served more, as long as new jobs come: weights would age them"
    )

    def __post_init__(self) -> None:
        if not 1 <= self.most < math.inf or not self.age > 0:
            raise ValueError(f"most is {self.most}, age {self.age} s: they must be 1 or more, and above 0")
        if not 0 <= self.confident < 1:
            raise ValueError(f"confident is {self.confident}: must be 0 or more, and below 1")

    def __call__(self, view: View) -> Plan:
        flows = view.flows
        job = view.coflows.job[flows.coflow]
        inferred, sure = _shortest(view)
        review_in = self.period or math.inf
        if view.queues is not None:
            first = (job == inferred) & (sure > self.confident)
            return plan_of(view, np.where(first, 0, 1), review_in=review_in)
        weight = self._weights(view, job, inferred, sure)
        rate = scaled_rates(view, job, weight)
        rank = np.zeros(len(flows), np.int64)
        return plan_of(view, rank, reserve=rate[job], weight=weight[job], review_in=review_in)

    def _weights(self, view: View, job: Ints, inferred: int, sure: float) -> Floats:
        from netsched.madd import most_loaded  # noqa: PLC0415 (numba, which a host agent never loads)

        flows, n = view.flows, len(view.jobs.id)
        oldest = np.full(n, view.now)
        np.minimum.at(oldest, view.coflows.job, view.coflows.arrival)
        served = most_loaded(job, n, flows.sent, flows.indptr, flows.links, view.capacity)
        weight: Floats = 1.0 + np.maximum(view.now - oldest - served, 0.0) / self.age
        if n:
            weight[inferred] *= 1.0 + (self.most - 1.0) * sure
        return np.round(weight, _DIGITS)


def _shortest(view: View) -> tuple[int, float]:
    """The row of the job with the least service per coflow (the earliest of equals), and how sure that is."""
    n, job = len(view.jobs.id), view.coflows.job
    if n < 2:
        return 0, 0.0
    served = np.bincount(job, view.coflows.sent, n) / np.maximum(np.bincount(job, minlength=n), 1)
    order = np.lexsort((view.jobs.arrival, served))
    least, second = served[order[:2]]
    return int(order[0]), float(1.0 - least / second) if second > 0 else 0.0


def scaled_rates(view: View, job: Ints, weight: Floats) -> Floats:
    """Bytes/s for each flow of each job: the max-min fair multiples of the jobs' weights.

    `job` is the job (row) of each flow, `weight` of each job. Flows of jobs that cross no link get none.
    Where the links that are full first are known the program needs no solver: on them the jobs' multiple is
    what is left over the weights there.
    """
    flows, n = view.flows, len(weight)
    on_link, n_links = np.repeat(job, np.diff(flows.indptr)), len(view.capacity)
    key, count = np.unique(on_link * n_links + flows.links, return_counts=True)
    owner, link = key // n_links, key % n_links
    rate, free = np.zeros(n), view.capacity.astype(np.float64)
    waiting = np.bincount(owner, minlength=n) > 0
    while waiting.any():
        wanted = np.bincount(link, count * np.where(waiting, weight, 0.0)[owner], n_links)
        multiple = np.full(n_links, np.inf)
        np.divide(free, wanted, out=multiple, where=wanted > 0)
        full = multiple <= multiple.min() * (1 + _SAME)
        ends = np.zeros(n, bool)
        ends[owner[full[link]]] = True
        ends &= waiting
        rate[ends] = weight[ends] * multiple.min()
        free = np.maximum(free - np.bincount(link, count * np.where(ends, rate, 0.0)[owner], n_links), 0.0)
        waiting &= ~ends
    return rate
