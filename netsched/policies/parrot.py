"""Parrot: the job served least per coflow is taken for the shortest and given more bandwidth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from netsched.errors import PolicyError
from netsched.model import Event, Floats, Ints, Plan, View
from netsched.policies.base import plan_of
from netsched.units import Duration

_SAFE: Final = 1 - 1e-9
"""Reserves are cut by this share: the solver keeps to a link's rate with a tolerance of its own."""


@dataclass(frozen=True)
class Parrot:
    """LPCAS and LP weighted scaling (Li, Chen, Li, Qi, Xu, Zhang, IEEE TCC 2020; its abstracts were read).

    The paper names three parts. The job of least per-coflow attained service (LPCAS) is inferred to be the
    one with the shortest remaining time. Its weight grows with how sure that is, and no job may starve. A
    linear program scales bandwidths by weight. Sizes are not known to it.

    INFERRED, all formulas. The service of a job is the bytes that its active coflows have sent over their
    number; a view shows neither coflows that have ended nor their bytes, so this begins anew with each
    synchronisation. `sure` = 1 - least / second least service (0 where equal, and for one job); the inferred
    job weighs 1 + (`most` - 1) x sure, others 1; a job whose oldest active coflow has waited w seconds weighs
    1 + w / `age` times as much. The program: every flow of job j gets the same rate x_j; the greatest sum
    of weight x rate that no link's capacity forbids, each job having at least `least` of its fair rate
    (its links' least capacity over the number of flows there). These rates are reserved, and what is left
    over is shared max-min in proportion to the weights. Looked at when a coflow comes or ends, and every
    `period` if that is set (0: not).

    Hardware classes know no reserves: there the inferred job has the first class if `sure` is more than a
    half, and all others share the second, whatever their weights. INFERRED too.
    """

    most: float = 10.0
    least: float = 0.1
    age: Duration = 10.0
    period: Duration = 0.0

    name: ClassVar[str] = "parrot"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.COFLOW_FINISHED

    def __post_init__(self) -> None:
        if not 1 <= self.most < math.inf or not 0 <= self.least <= 1 or not self.age > 0:
            raise ValueError(
                f"most is {self.most}, least {self.least}, age {self.age} s: "
                "they must be 1 or more, 0 to 1, and above 0"
            )

    def __call__(self, view: View) -> Plan:
        flows = view.flows
        job = view.coflows.job[flows.coflow]
        inferred, sure = _shortest(view)
        review_in = self.period or math.inf
        if view.queues is not None:
            first = (job == inferred) & (sure > 0.5)
            return plan_of(view, np.where(first, 0, 1), review_in=review_in)
        weight = self._weights(view, inferred, sure)
        rate = scaled_rates(view, job, weight, self.least)
        rank = np.zeros(len(flows), np.int64)
        return plan_of(view, rank, reserve=rate[job], weight=weight[job], review_in=review_in)

    def _weights(self, view: View, inferred: int, sure: float) -> Floats:
        oldest = np.full(len(view.jobs.id), np.inf)
        np.minimum.at(oldest, view.coflows.job, view.coflows.arrival)
        weight: Floats = 1.0 + np.maximum(view.now - oldest, 0.0) / self.age
        if len(weight):
            weight[inferred] *= 1.0 + (self.most - 1.0) * sure
        return weight


def _shortest(view: View) -> tuple[int, float]:
    """The row of the job with the least service per coflow (the earliest of equals), and how sure that is."""
    n, job = len(view.jobs.id), view.coflows.job
    if n < 2:
        return 0, 0.0
    served = np.bincount(job, view.coflows.sent, n) / np.maximum(np.bincount(job, minlength=n), 1)
    order = np.lexsort((view.jobs.arrival, served))
    least, second = served[order[:2]]
    return int(order[0]), float(1.0 - least / second) if second > 0 else 0.0


def scaled_rates(view: View, job: Ints, weight: Floats, least: float) -> Floats:
    """Bytes/s for each flow of each job: most sum of weight x rate, `least` of the fair rate at any rate.

    `job` is the job (row) of each flow, `weight` of each job. Flows that cross no link get none.
    """
    from scipy.optimize import linprog  # noqa: PLC0415 (scipy, which a host agent never loads)
    from scipy.sparse import csr_matrix  # noqa: PLC0415

    flows, n = view.flows, len(weight)
    on_link = np.repeat(job, np.diff(flows.indptr))
    pairs, count = np.unique(np.stack((on_link, flows.links)), axis=1, return_counts=True)
    if not len(count):
        return np.zeros(n)
    used, row = np.unique(pairs[1], return_inverse=True)
    capacity = view.capacity[used]
    fair = np.full(n, np.inf)
    np.minimum.at(fair, pairs[0], (capacity / np.bincount(row, count))[row])
    rated = np.isfinite(fair)
    # In units of the fair rate and of links, so that the solver's absolute tolerances suit any of them.
    share = csr_matrix((count * fair[pairs[0]] / capacity[row], (row, pairs[0])), shape=(len(used), n))
    gain = np.where(rated, weight * np.where(rated, fair, 0.0), 0.0)
    found = linprog(
        -gain / gain.max(),
        A_ub=share,
        b_ub=np.ones(len(used)),
        bounds=[(least, None if r else least) for r in rated],
    )
    if not found.success:
        raise PolicyError(f"policy parrot: no rates at {view.now:.6g} s: {found.message}")
    rate = np.maximum(found.x, 0.0) * np.where(rated, fair, 0.0)
    booked = np.bincount(flows.links, rate[on_link], len(view.capacity)) / view.capacity
    kept: Floats = rate * _SAFE / max(1.0, float(booked.max()))
    return kept
