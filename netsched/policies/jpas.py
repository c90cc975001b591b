"""JPAS: jobs in the order of their progress, early ones first, and nothing but priorities in the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import Event, Floats, Plan, View
from netsched.policies.base import plan_of


@dataclass(frozen=True)
class Jpas:
    """All flows of a job by the job's progress (Zhou, He, Luo, Yu, Sun, "JPAS", JNCA 2020; abstract read).

    The paper: agents read progress (accuracy) from the jobs' logs, a coordinator periodically orders all
    jobs by a simple greedy rule that prefers jobs in their early stage, hosts set priorities by that order
    and the network does the rest. What counts is the time to 90 or 95 % of the converged accuracy.

    INFERRED. The rule (MAIF) is read as "max accuracy increment first": by what a job gains in its next
    iteration; jobs that have no log yet (no iteration done) go first, and jobs past `plateau` of their final
    accuracy last. Ties by the jobs' arrival. A view has no accuracy, so it is modelled: after a share p of a
    job's iterations it is (1 - exp(-c p)) / (1 - exp(-c)) of the final one, with `steepness` c = 3 (half of
    the final accuracy after 21 % of the iterations, 95 % after 78 %); the same curve for all.
    An order changes when a job ends an iteration, so it is made whenever flows are released; set the
    control's `period` for the paper's.

    Classes: the first jobs have one each, all later jobs share the last one.
    """

    steepness: float = 3.0
    plateau: float = 0.95

    name: ClassVar[str] = "jpas"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED
    starves: ClassVar[str] = (
        "jobs past their early stage, as long as new ones come: early jobs are what it is for"
    )

    def __post_init__(self) -> None:
        if not 0 < self.steepness < math.inf or not 0 < self.plateau <= 1:
            raise ValueError(
                f"steepness is {self.steepness}, plateau {self.plateau}: "
                "they must be above 0, and above 0 up to 1"
            )

    def accuracy(self, progress: Floats) -> Floats:
        """Share of the final accuracy after that share of all iterations."""
        return np.expm1(-self.steepness * progress) / math.expm1(-self.steepness)

    def __call__(self, view: View) -> Plan:
        jobs = view.jobs
        total = np.maximum(jobs.iterations, 1)
        now = self.accuracy(jobs.iterations_done / total)
        gain = self.accuracy((jobs.iterations_done + 1) / total) - now
        group = np.where(jobs.iterations_done == 0, 0, np.where(now < self.plateau, 1, 2))
        order = np.lexsort((jobs.arrival, np.where(group == 1, -gain, 0.0), group))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return plan_of(view, place[view.coflows.job[view.flows.coflow]])
