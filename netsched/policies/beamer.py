"""Beamer: coflows of training jobs in an order that ends the stages of a hyper-parameter search soon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from netsched.model import Event, Floats, Ints, Plan, View
from netsched.policies.base import classes_in_order, plan_of
from netsched.policies.sebf import whole_bottlenecks


@dataclass(frozen=True)
class Beamer:
    """Stage-aware order of coflows (He, Cai, Zhou, Sun, et al., IEEE TNSM 2022; its abstract was read).

    The paper: several jobs make up a stage of a hyper-parameter search, which ends with the last of them;
    coflows (each synchronisation of a job) are ordered so that stages end soon on average (within 20/3 of the
    best), then sent in that order.

    INFERRED, the order: Bottleneck-Select-Scale-Iterate (Sincronia) with stages in the place of coflows, over
    what each has left to send in all its remaining iterations. Inside a stage the job that needs longest on
    its most loaded link goes first, for the stage ends with the last one. All flows of a job share. With one
    job per stage and one iteration left this is Sincronia's order of jobs, also where the hardware has only
    so many classes: a coflow gets one between those of its job's neighbours when it comes, and keeps it.
    A stage weighs the mean of its coflows' weights.

    INFERRED, from what a view shows: a stage is what the workload says that it is, which for a search is all
    trials of one step, and for plain training one iteration of one job. `stages: arrival` takes all jobs that
    arrive in the same instant for one, `stages: job` each job. A job's coming iterations are taken to send
    what the flows now shown send in all; flows of the running iteration that are over or still to come are
    not in it, which is right for jobs of one kind and makes jobs of many small tensors look smaller beside
    others. Time to compute counts for no job. Ordered anew when flows are released.
    """

    stages: Literal["stage", "arrival", "job"] = "stage"

    name: ClassVar[str] = "beamer"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED
    starves: ClassVar[str] = (
        "large or light stages, as long as small or heavy ones come over one of their links"
    )

    def __call__(self, view: View) -> Plan:
        from netsched.bssi import bssi  # noqa: PLC0415 (numba, which a host agent never loads)

        flows, coflows = view.flows, view.coflows
        job = coflows.job[flows.coflow]
        coming = np.maximum(view.jobs.iterations - view.jobs.iterations_done, 1) - 1
        amount = flows.remaining + coming[job] * flows.size
        stage = _by_appearance(self._key(view))
        members = np.bincount(stage)
        weight = np.bincount(stage, coflows.weight / members[stage]).astype(np.float64)
        of_flow = stage[flows.coflow]
        place = bssi(of_flow, weight, amount, flows.indptr, flows.links, view.capacity)
        place_of_job = _jobs_in_order(view, job, place[of_flow], amount)
        if view.queues is None:
            return plan_of(view, place_of_job[job])
        # As with Sincronia: the order does not say by how much one goes first, sorted times stand for that.
        seconds = np.bincount(coflows.job, whole_bottlenecks(view), len(view.jobs.id)).astype(np.float64)
        of_coflow = np.sort(seconds)[place_of_job][coflows.job]
        return plan_of(view, classes_in_order(of_coflow, coflows.cls, view.queues)[flows.coflow])

    def _key(self, view: View) -> Ints | Floats:
        """What coflows of one stage have in common."""
        if self.stages == "arrival":
            return view.jobs.arrival[view.coflows.job]
        return view.coflows.stage if self.stages == "stage" else view.coflows.job


def _by_appearance(key: Ints | Floats) -> Ints:
    """A number per value of `key`, in the order in which the values first appear: ties go by arrival."""
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse]


def _jobs_in_order(view: View, job: Ints, stage_place: Ints, amount: Floats) -> Ints:
    """The place of each job: by stage, then the longest first, then by arrival of its coflows.

    `job` is the row of each flow's job, `stage_place` the place of its stage; a job of several goes by the
    first of them.
    """
    from netsched.madd import most_loaded  # noqa: PLC0415 (numba, which a host agent never loads)

    flows, n = view.flows, len(view.jobs.id)
    longest = most_loaded(job, n, amount, flows.indptr, flows.links, view.capacity)
    place_of_job, first = np.full((2, n), len(view.coflows), np.int64)
    np.minimum.at(place_of_job, job, stage_place)
    np.minimum.at(first, view.coflows.job, np.arange(len(view.coflows)))
    order = np.lexsort((first, -longest, place_of_job))
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    return place
