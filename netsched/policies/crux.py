"""Crux: jobs whose communication keeps most computation waiting go first."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from netsched.cut import best_of_orders
from netsched.model import Event, Floats, Ints, Plan, Profile, View
from netsched.policies.base import plan_of
from netsched.policies.paths import least_loaded
from netsched.two_jobs import Cycle, gain_per_loss

_DIGITS: Final = 9
"""Significant ones of an intensity: jobs that are alike must have the same, whatever the order of adding."""


@dataclass(frozen=True)
class Crux:
    """Priority by GPU intensity, fitted into few classes (Cao et al., "Crux", SIGCOMM 2024).

    The intensity of a job is the computation of an iteration over the time that the iteration's bytes take on
    the link that has most to carry (section 4.1). Its priority (4.2) is k times that, where k comes from two
    jobs on one link, this one and the one with most traffic (k = 1): the link time that the job gains by
    going first over what the other one loses. Few classes (4.3): an edge leads from each job to each of less
    priority that it shares a link with, weighing its intensity; the classes are the heaviest cut over
    `orders` random topological orders. All flows of a job share.

    The job's computation, its bytes and when it begins to send are its profile (`model.Profile`), computed
    from the workload, where the paper measures 30 s of the job alone.

    INFERRED: all processors are of one speed, so seconds stand for floating point operations. Both jobs of
    the pair begin at once, send for as long as their bytes take alone on their most loaded link, and k lies
    within a factor `most` (where the other loses nothing it has no bound). Jobs share a link where their
    active flows do. Decided anew among the jobs in view when flows are released; the paper does so when a
    job comes or goes, and what it decides then for the jobs in view is the same but for the reference job.
    `seed` draws the orders.

    Paths (4.1): jobs in descending intensity, each pair of hosts of a job takes the path on which the most
    loaded link is least so. INFERRED: a pair puts its job's `traffic` on the links of its path; what is under
    way keeps its path, and counts before anybody chooses. On engines that cannot choose paths, priorities
    alone are Crux.
    """

    orders: int = 10
    most: float = 100.0
    seed: int = 0

    name: ClassVar[str] = "crux"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED
    profiled: ClassVar[bool] = True
    steers: ClassVar[bool] = True
    starves: ClassVar[str] = (
        "jobs of low intensity, as long as jobs of higher intensity fill one of their links without a pause"
    )

    def __post_init__(self) -> None:
        if not 1 <= self.most < math.inf or self.orders < 1 or self.seed < 0:
            raise ValueError(
                f"most is {self.most}, orders {self.orders}, seed {self.seed}: "
                "they must be 1 or more, 1 or more, and 0 or more"
            )

    def __call__(self, view: View) -> Plan:
        profile = view.profile
        assert profile is not None  # noqa: S101 # the gate refuses a profiled policy without one
        job = view.coflows.job[view.flows.coflow]
        intensity = intensities(profile)
        priority = intensity * _corrections(profile, self.most)
        # Ranks in descending order; jobs of one priority share.
        values, place = np.unique(-_rounded(priority), return_inverse=True)
        if view.queues is not None and len(values) > view.queues:
            edges = np.where(_meet(view, job) & (place[:, None] < place), intensity[:, None], 0.0)
            place = best_of_orders(edges, view.queues, self.orders, np.random.default_rng(self.seed))
        plan = plan_of(view, place.astype(np.int64)[job])
        if view.ways is None:
            return plan
        first = np.argsort(-_rounded(intensity), kind="stable")
        return replace(plan, path=least_loaded(view, view.ways, job, first, _rounded(profile.traffic)))


def intensities(profile: Profile) -> Floats:
    """Seconds of computation per second of the most loaded link, per job; 0 for a job that sends nothing."""
    out: Floats = np.zeros(len(profile.work))
    np.divide(profile.work, profile.traffic, out=out, where=profile.traffic > 0)
    return out


def _corrections(profile: Profile, most: float) -> Floats:
    """k of each job against the one with most traffic."""
    cycles = [
        Cycle(*times)
        for times in zip(
            profile.compute.tolist(), profile.lead.tolist(), profile.traffic.tolist(), strict=True
        )
    ]
    if not cycles:
        return np.zeros(0)
    reference = max(cycles, key=lambda cycle: cycle.link)
    return np.array([1.0 if each == reference else gain_per_loss(each, reference, most) for each in cycles])


def _rounded(values: Floats) -> Floats:
    return np.array([float(f"{value:.{_DIGITS}g}") for value in values])


def _meet(view: View, job: Ints) -> np.ndarray:
    """Which jobs (rows and columns) have active flows on a link of both."""
    flows = view.flows
    on = np.zeros((len(view.jobs.id), len(view.capacity)), np.float64)
    on[np.repeat(job, np.diff(flows.indptr)), flows.links] = 1.0
    return on @ on.T > 0
