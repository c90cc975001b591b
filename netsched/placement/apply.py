"""A workload as a placement wants it: hosts renamed, and a wait before each job that begins later.

It is the workload itself that changes, so both engines carry the same and need to know nothing of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from netsched.metrics import node_jobs
from netsched.model import Cluster, Dag, Ints, Placing, TaskKind, Tasks, Workload
from netsched.workloads.checks import check_acyclic

WAIT: Final = "wait to begin"
"""The label of these tasks. A job's completion time counts from its arrival, so they are in it."""


def placed(workload: Workload, cluster: Cluster, placing: Placing) -> Workload:
    """The workload with its jobs where and when `placing` says. ScenarioError if they wait in a circle."""
    moved = _moved(workload, cluster, placing)
    late = [j for j in range(len(placing.hosts)) if placing.shift[j] > 0 or placing.after[j]]
    if not late:
        return moved
    waiting = _with_waits(moved, placing, late)
    check_acyclic(waiting)
    return waiting


def _moved(workload: Workload, cluster: Cluster, placing: Placing) -> Workload:
    if all(np.array_equal(a.hosts, b) for a, b in zip(cluster.jobs, placing.hosts, strict=True)):
        return workload
    host_of = np.tile(np.arange(len(cluster.network.hosts)), (len(cluster.jobs), 1))
    for row, (job, hosts) in enumerate(zip(cluster.jobs, placing.hosts, strict=True)):
        host_of[row, job.hosts] = hosts
    flows, tasks = workload.flows, workload.tasks
    of_flow = workload.coflows.job[flows.coflow]
    somewhere = tasks.host >= 0
    host = np.where(somewhere, host_of[tasks.job, np.where(somewhere, tasks.host, 0)], -1)
    return replace(
        workload,
        flows=replace(flows, src=host_of[of_flow, flows.src], dst=host_of[of_flow, flows.dst]),
        tasks=replace(tasks, host=host),
    )


def _with_waits(workload: Workload, placing: Placing, late: list[int]) -> Workload:
    """Two tasks for each late job: its arrival, and the wait, which also follows the ends of other jobs."""
    total, dag, job = workload.n_flows + workload.n_tasks, workload.dag, node_jobs(workload)
    before = np.repeat(np.arange(total), np.diff(dag.indptr))
    own = job[before] == job[dag.successors]
    is_end = np.ones(total, np.bool_)
    is_end[before[own]] = False
    edges = [(before, dag.successors)]
    for i, j in enumerate(late):
        arrival, wait = total + 2 * i, total + 2 * i + 1
        roots = np.flatnonzero((job == j) & (dag.n_deps == 0))
        ends = np.flatnonzero(is_end & np.isin(job, placing.after[j]))
        edges.append((np.append(ends, arrival), np.full(len(ends) + 1, wait)))
        edges.append((np.full(len(roots), wait), roots))
    n = 2 * len(late)
    tasks, zeros = workload.tasks, np.zeros(n, np.int64)
    seconds = np.zeros(n)
    seconds[1::2] = placing.shift[late]
    return replace(
        workload,
        tasks=Tasks(
            np.concatenate((tasks.job, np.repeat(np.array(late, np.int64), 2))),
            np.concatenate((tasks.iteration, zeros)),
            np.concatenate((tasks.host, zeros - 1)),
            np.concatenate((tasks.seconds, seconds)),
            np.concatenate((tasks.kind, np.tile([int(TaskKind.BARRIER), int(TaskKind.OTHER)], len(late)))),
            (*tasks.label, *(("", WAIT) * len(late))),
        ),
        dag=_dag(np.concatenate([a for a, _ in edges]), np.concatenate([b for _, b in edges]), total + n),
    )


def _dag(before: Ints, after: Ints, n: int) -> Dag:
    order = np.lexsort((after, before))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(before, minlength=n))))
    return Dag(np.bincount(after, minlength=n).astype(np.int64), indptr.astype(np.int64), after[order])
