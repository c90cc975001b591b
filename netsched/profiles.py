"""What a job computes and sends in an iteration: known before it runs, from its own description.

Systems that go by it measure it in a first run of the job alone (Crux, CASSINI) or ask the framework
(EchelonFlow). Here it follows from the workload's graph and the fabric, by longest paths in which flows take
no time; nothing is run for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netsched.bounds import walk
from netsched.control import profiled
from netsched.jit import compiled
from netsched.ledger import iteration_offsets
from netsched.metrics import node_jobs
from netsched.model import Bools, Floats, Ints, Policy, Workload
from netsched.policies.reach import distinct
from netsched.routes import Routes, gather


@dataclass(frozen=True)
class Profiles:
    """`compute`, `lead`, `work`, `traffic` per job as in `model.Profile`, in seconds.

    stage       of each coflow
    stage_lead  when the first flow of each stage is released in the schedule of a network that takes no time
    due_after   per coflow, seconds from that release until its bytes are needed
    """

    compute: Floats
    lead: Floats
    work: Floats
    traffic: Floats
    stage: Ints
    stage_lead: Floats
    due_after: Floats


def profiles_for(policy: Policy, workload: Workload, routes: Routes, capacity: Floats) -> Profiles | None:
    """The profiles of all jobs if the policy wants them. `capacity` in bytes/s per link."""
    return profiles_of(workload, routes, capacity) if profiled(policy) else None


def profiles_of(workload: Workload, routes: Routes, capacity: Floats) -> Profiles:
    """The profiles of all jobs, on the paths that nobody steers.

    Bytes of a coflow are needed when the first computation begins that waits for one of its flows, through
    flows and tasks of no length; where nothing computes any more, when the job has computed all.
    """
    start, finish = _free_schedule(workload)
    job, n, n_flows = node_jobs(workload), len(workload.jobs.arrival), workload.n_flows
    begin, end = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(begin, job, start)
    np.maximum.at(end, job, finish)
    iterations = np.maximum(workload.jobs.iterations, 1)
    work = np.bincount(workload.tasks.job, workload.tasks.seconds * (workload.tasks.host >= 0), n)
    coflow, stage = workload.flows.coflow, workload.coflows.stage
    needed = _needed(workload, start, end[job])
    first, due = np.full(len(workload.stages.job), np.inf), np.full(len(stage), np.inf)
    np.minimum.at(first, stage[coflow], start[:n_flows])
    np.minimum.at(due, coflow, needed[:n_flows])
    return Profiles(
        compute=(end - begin) / iterations,
        lead=_leads(workload, job, start),
        work=work / iterations,
        traffic=_traffic(workload, routes, capacity) / iterations,
        stage=stage,
        stage_lead=first,
        due_after=due - first[stage],
    )


def _free_schedule(workload: Workload) -> tuple[Floats, Floats]:
    """When each node starts and ends if flows take no time: seconds after the run's begin."""
    dag = workload.dag
    own = np.concatenate((np.zeros(workload.n_flows), workload.tasks.seconds))
    arrival = workload.jobs.arrival[node_jobs(workload)]
    _, head, _ = walk(dag.n_deps, dag.indptr, dag.successors, own, arrival)
    start: Floats = arrival + head
    return start, start + own


def _needed(workload: Workload, start: Floats, last: Floats) -> Floats:
    """Per node, when the first computation starts that waits for it, `last` if there is none."""
    dag, nothing = workload.dag, np.zeros(len(start))
    lasting = np.concatenate((np.zeros(workload.n_flows, np.bool_), workload.tasks.seconds > 0))
    order, _, _ = walk(dag.n_deps, dag.indptr, dag.successors, nothing, nothing)
    needed: Floats = _needed_kernel(order, dag.indptr, dag.successors, lasting, start, last)
    return needed


@compiled
def _needed_kernel(
    order: Ints, indptr: Ints, successors: Ints, lasting: Bools, start: Floats, last: Floats
) -> Floats:
    needed = last.copy()
    for i in range(len(order) - 1, -1, -1):
        node = order[i]
        if indptr[node + 1] > indptr[node]:
            needed[node] = np.inf
        for e in range(indptr[node], indptr[node + 1]):
            after = successors[e]
            needed[node] = min(needed[node], start[after] if lasting[after] else needed[after])
    return needed


def _leads(workload: Workload, job: Ints, start: Floats) -> Floats:
    """Per job, the mean over its iterations of the time from their begin to their first flow's release."""
    offset = iteration_offsets(workload)
    iteration = np.concatenate((workload.coflows.iteration[workload.flows.coflow], workload.tasks.iteration))
    row, n_flows = offset[job] + iteration, workload.n_flows
    begin, first = np.full((2, offset[-1]), np.inf)
    np.minimum.at(begin, row, start)
    np.minimum.at(first, row[:n_flows], start[:n_flows])
    sends = np.isfinite(first)
    owner = np.repeat(np.arange(len(offset) - 1), np.diff(offset))[sends]
    lead = np.bincount(owner, (first - begin)[sends], len(offset) - 1)
    return lead / np.maximum(np.bincount(owner, minlength=len(offset) - 1), 1)


def _traffic(workload: Workload, routes: Routes, capacity: Floats) -> Floats:
    """Per job, the most of its bytes on a link over the link's capacity, in seconds, all iterations."""
    job = workload.coflows.job[workload.flows.coflow]
    n, n_paths = len(workload.jobs.arrival), len(routes.indptr) - 1
    owner, path = distinct(job, routes.path, n, n_paths)
    row = np.searchsorted(owner * n_paths + path, job * n_paths + routes.path)
    amount = np.bincount(row, workload.flows.size, len(owner))
    indptr, links = gather(routes.indptr, routes.links, path)
    on = np.repeat(np.arange(len(owner)), np.diff(indptr))
    where, link = distinct(owner[on], links, n, len(capacity))
    cell = np.searchsorted(where * len(capacity) + link, owner[on] * len(capacity) + links)
    seconds = np.bincount(cell, amount[on], len(where)) / capacity[link]
    most = np.zeros(n)
    np.maximum.at(most, where, seconds)
    return most
