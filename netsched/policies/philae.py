"""Philae: a few pilot flows tell how large their coflow is, then the shortest coflow goes first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from netsched.model import Event, Floats, Ints, Plan, View
from netsched.policies import reach
from netsched.policies.base import plan_of
from netsched.units import Size

_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
"""Odd, 2**64 over the golden ratio: multiplied by it (modulo 2**64), consecutive numbers lie far apart."""


@dataclass(frozen=True)
class Philae:
    """Sample, estimate, shortest first (Philae, USENIX ATC 2019; extended in arXiv 2022; released simulator).

    First go coflows of at most `thin` flows, which are not sampled; then the pilot flows of those whose size
    is unknown, a share `pilots` of all their flows, one at least; then the coflows of known size, ascending
    by estimated bytes left times contention; last the other flows of coflows that are being sampled, which
    take only what is left over. Ties, and the other three groups, by arrival. The order of the groups and the
    thin limit of 7 are the released simulator's.

    INFERRED. A coflow's size is its number of flows times the mean of those that have ended, whichever they
    are; as many as it should have pilots are enough. The bytes left are that mean times the flows that have
    not ended, whatever they have sent: less what is sent, a coflow taken for too small would go first for
    good (mean completion time on the public trace: 60 s instead of 24 s). Contention is the number of coflows
    with which it shares a link. `pilots` of 1 % is from memory (the simulator has a constant of 5 %). Pilots
    are a fixed scattered choice by flow number, not those of the least busy ports. Flows of a rank share
    max-min.

    Looked at when a coflow comes or ends and, as in the paper, when a pilot does (or another flow of a coflow
    that is being sampled: it tells as much).

    Where the hardware has only so many classes: the first is for thin coflows, the second for pilots, the
    last for what waits for them, and those between are for sampled coflows, without contention, up to `first`
    estimated bytes and each next one up to `factor` times as much (the simulator also has such queues; its
    limits are not known here). So a coflow changes class once when it is known, and rarely after.
    """

    thin: int = 7
    pilots: float = 0.01
    first: Size = 10e6
    factor: float = 10.0

    name: ClassVar[str] = "philae"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.COFLOW_RELEASED | Event.COFLOW_FINISHED | Event.WATCHED_FINISHED
    starves: ClassVar[str] = (
        "coflows of many flows, as long as those that are not sampled, or smaller ones, come"
    )

    def __post_init__(self) -> None:
        if self.thin < 0 or not 0 < self.pilots <= 1:
            raise ValueError(
                f"thin is {self.thin}, pilots {self.pilots}: they must be 0 or more, and above 0 up to 1"
            )
        if not self.first > 0 or not self.factor > 1:
            raise ValueError(
                f"first is {self.first} B, factor {self.factor}: they must be above 0 and above 1"
            )

    def __call__(self, view: View) -> Plan:
        flows, coflows = view.flows, view.coflows
        thin = coflows.n_flows <= self.thin
        missing = np.maximum(np.ceil(self.pilots * coflows.n_flows), 1) - coflows.n_finished
        sampling = ~thin & (missing > 0)
        group = np.where(thin, 0, np.where(sampling, 3, 2))[flows.coflow]
        group[_pilots(view, np.where(sampling, missing, 0).astype(np.int64))] = 1
        mean = _mean_of_ended(view)
        if view.queues is None:
            n = len(coflows)
            left = mean * (coflows.n_flows - coflows.n_finished)
            place = np.arange(n)
            known = np.flatnonzero(~thin & ~sampling)
            if len(known) > 1:
                ascending = np.argsort((left * reach.contention(view))[known], kind="stable")
                place[known[ascending]] = np.arange(len(known))
            rank = group * n + place[flows.coflow]
        else:
            rank = self._classes(mean * coflows.n_flows, view.queues)[group, flows.coflow]
        return replace(plan_of(view, rank), watch=sampling[flows.coflow])

    def _classes(self, estimate: Floats, queues: int) -> Ints:
        """The class of every group in every coflow, shape (4, coflows)."""
        steps = np.ceil(np.log(np.maximum(estimate, self.first) / self.first) / np.log(self.factor))
        known = 2 + steps.astype(np.int64)
        out = np.repeat(np.array([0, 1, 0, queues - 1]), len(estimate)).reshape(4, -1)
        out[2] = known
        return out.clip(max=queues - 1)


def _mean_of_ended(view: View) -> Floats:
    """Mean bytes of the flows of each coflow that have ended, 0 if none has.

    What a coflow has sent and its active flows have not. That includes flows whose last byte is under way:
    for the time of a path's latency the mean may be a little high.
    """
    flows, coflows = view.flows, view.coflows
    active = np.bincount(flows.coflow, flows.sent, len(coflows))
    return np.maximum(coflows.sent - active, 0.0) / np.maximum(coflows.n_finished, 1)


def _pilots(view: View, wanted: Ints) -> Ints:
    """The rows of the first `wanted` (one number per coflow) active flows, in a scattered but fixed order.

    So a pilot stays one until it or another flow of its coflow ends.
    """
    flows = view.flows
    rows = np.flatnonzero(wanted[flows.coflow] > 0)
    rows = rows[np.lexsort((flows.id[rows].astype(np.uint64) * _SPREAD, flows.coflow[rows]))]
    coflow = flows.coflow[rows]
    turn = np.arange(len(rows)) - np.searchsorted(coflow, coflow)
    return rows[turn < wanted[coflow]]
