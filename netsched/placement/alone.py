"""What each job of a workload does when it is alone: measured in the simulator, as systems do beforehand."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from netsched.fabric import Fabric
from netsched.metrics import node_jobs
from netsched.model import (
    Bursts,
    Coflows,
    Connections,
    Control,
    Dag,
    Flows,
    Ints,
    JobAlone,
    Jobs,
    Outcome,
    Stages,
    Tasks,
    Transport,
    Workload,
)
from netsched.policies.fair import Fair

_ITERATIONS: Final = 3
"""What is run of a job: the first differs from the others, for nothing is under way when it begins."""


def jobs_alone(workload: Workload, fabric: Fabric, transport: Transport) -> tuple[JobAlone, ...]:
    """Each job of the workload, its first iterations run alone from time 0 with its flows sharing equally.

    Dependencies on other jobs are left out.
    """
    from netsched.simulate import simulate  # noqa: PLC0415 (numba, which loading a scenario does without)

    job, iteration = node_jobs(workload), _iterations(workload)
    found = []
    for number in range(len(workload.jobs.name)):
        of_job = job == number
        last = min(int(iteration[of_job].max()), _ITERATIONS - 1)
        rows = np.flatnonzero(of_job & (iteration <= last))
        part = _part(workload, rows, number)
        outcome = simulate(part, fabric, Fair(), queues=None, transport=transport, control=Control())
        salted = transport.connections is Connections.PER_FLOW
        salt = rows[rows < workload.n_flows] if salted else np.zeros(part.n_flows, np.int64)
        total = max(int(workload.jobs.iterations[number]), int(iteration[of_job].max()) + 1)
        arrival = float(workload.jobs.arrival[number])
        found.append(_job(part, outcome, salt, workload.jobs.name[number], arrival, total))
    return tuple(found)


def _iterations(workload: Workload) -> Ints:
    return np.concatenate((workload.coflows.iteration[workload.flows.coflow], workload.tasks.iteration))


def _job(part: Workload, outcome: Outcome, salt: Ints, name: str, arrival: float, total: int) -> JobAlone:
    flows, tasks = part.flows, part.tasks
    iteration, finish = _iterations(part), np.concatenate((outcome.flow_finish, outcome.task_finish))
    ends = np.zeros(int(iteration.max()) + 1)
    np.maximum.at(ends, iteration, finish)
    ends = np.maximum.accumulate(ends)
    last = len(ends) - 1
    period = float((ends[last] - ends[0]) / last) if last else float(ends[0])
    lasting = (tasks.seconds > 0) & (tasks.host >= 0)
    hosts = np.unique(np.concatenate((flows.src, flows.dst, tasks.host[tasks.host >= 0])))
    src, dst = np.searchsorted(hosts, flows.src), np.searchsorted(hosts, flows.dst)
    steady = iteration[: part.n_flows] == last
    n = len(hosts)
    between = np.bincount((src * n + dst)[steady], flows.size[steady], n * n).reshape(n, n)
    computes = np.isin(hosts, tasks.host[lasting])
    seconds = outcome.flow_finish - outcome.flow_release
    sends = np.flatnonzero(steady & (flows.src != flows.dst) & (seconds > 0))
    return JobAlone(
        name=name,
        arrival=arrival,
        iterations=total,
        hosts=hosts,
        # A bare coflow computes nowhere; all its hosts are taken.
        computes=computes if computes.any() else np.ones(n, np.bool_),
        traffic=between.astype(np.float64),
        period=period,
        loading=float(outcome.task_start[lasting].min(initial=np.inf)) if lasting.any() else 0.0,
        duration=float(ends[last]) + (total - len(ends)) * period,
        bursts=Bursts(
            outcome.flow_release[sends],
            outcome.flow_finish[sends],
            src[sends],
            dst[sends],
            flows.size[sends] / seconds[sends],
            salt[sends],
        ),
    )


def _part(workload: Workload, rows: Ints, job: int) -> Workload:
    """The given nodes (DAG rows, ascending) of one job as a workload of their own that begins at 0."""
    n_flows = workload.n_flows
    flows, tasks = rows[rows < n_flows], rows[rows >= n_flows] - n_flows
    of = workload.flows
    coflows, coflow = np.unique(of.coflow[flows], return_inverse=True)
    stages, stage = np.unique(workload.coflows.stage[coflows], return_inverse=True)
    iteration = workload.coflows.iteration[coflows]
    none = np.zeros(len(coflows), np.int64)
    return Workload(
        jobs=Jobs(
            (workload.jobs.name[job],), np.zeros(1), np.ones(1), np.array([int(_most(workload, rows)) + 1])
        ),
        stages=Stages(
            np.zeros(len(stages), np.int64),
            workload.stages.iteration[stages],
            tuple(workload.stages.label[i] for i in stages),
        ),
        coflows=Coflows(
            none,
            stage.astype(np.int64),
            iteration,
            tuple(workload.coflows.label[i] for i in coflows),
            np.ones(len(coflows)),
            np.full(len(coflows), np.inf),
            workload.coflows.burst[coflows],
            workload.coflows.lull[coflows],
        ),
        flows=Flows(
            coflow.astype(np.int64),
            of.src[flows],
            of.dst[flows],
            of.size[flows],
            of.need[flows],
            of.need_span[flows],
        ),
        tasks=Tasks(
            np.zeros(len(tasks), np.int64),
            workload.tasks.iteration[tasks],
            workload.tasks.host[tasks],
            workload.tasks.seconds[tasks],
            workload.tasks.kind[tasks],
            tuple(workload.tasks.label[i] for i in tasks),
        ),
        dag=_dag(workload.dag, rows),
        hairpin=workload.hairpin,
    )


def _most(workload: Workload, rows: Ints) -> np.int64:
    most: np.int64 = _iterations(workload)[rows].max()
    return most


def _dag(dag: Dag, rows: Ints) -> Dag:
    """The dependencies among the given nodes."""
    number: npt.NDArray[np.int64] = np.full(len(dag.n_deps), -1, np.int64)
    number[rows] = np.arange(len(rows))
    before = np.repeat(number, np.diff(dag.indptr))
    after = number[dag.successors]
    kept = (before >= 0) & (after >= 0)
    before, after = before[kept], after[kept]
    # Rows ascend, so the successor lists stay in order.
    indptr = np.concatenate(([0], np.cumsum(np.bincount(before, minlength=len(rows)))))
    return Dag(np.bincount(after, minlength=len(rows)).astype(np.int64), indptr.astype(np.int64), after)
