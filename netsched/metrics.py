"""What is measured of a run: one table each for flows, coflows, stages, iterations, jobs, links and tasks.

All figures of the program are derived here and only here, from the columns of a workload and of what an
engine did with it, so that two engines can differ in what they did but never in how it was counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from netsched.model import Floats, Ints, Outcome, Workload

if TYPE_CHECKING:
    from netsched.fabric import Fabric

Table = dict[str, npt.NDArray[Any]]
"""Columns of one length, by name. Seconds, bytes, bytes/s; hosts, nodes and kinds as ordinals."""

Summary = dict[str, float | int | None]

METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "stage_completion_time": ("stages", "completion_time"),
    "coflow_completion_time": ("coflows", "cct"),
    "iteration_time": ("iterations", "iteration_time"),
    "job_completion_time": ("jobs", "jct"),
}
"""Each metric of a summary, and the table and column whose values it sums up."""


def _first(times: Floats, group: Ints, n: int) -> Floats:
    """Earliest time of each group, over the members that have one; NaN where none has."""
    earliest = np.full(n, np.inf)
    np.fmin.at(earliest, group, times)
    return np.where(np.isinf(earliest), np.nan, earliest)


def _last(times: Floats, group: Ints, n: int) -> Floats:
    """Latest time of each group; NaN if any member has none, because then the group has not ended."""
    latest = np.full(n, -np.inf)
    np.maximum.at(latest, group, np.where(np.isnan(times), np.inf, times))
    return np.where(np.isinf(latest), np.nan, latest)


def _labels(labels: tuple[str, ...]) -> npt.NDArray[Any]:
    column = np.empty(len(labels), dtype=object)
    column[:] = labels
    return column


def flows(workload: Workload, outcome: Outcome) -> Table:
    """One row per flow. `fct` is finish - release; NaN in a time: it has not happened."""
    flow, coflow = workload.flows, workload.coflows
    return {
        "flow": np.arange(workload.n_flows),
        "coflow": flow.coflow,
        "stage": coflow.stage[flow.coflow],
        "job": coflow.job[flow.coflow],
        "iteration": coflow.iteration[flow.coflow],
        "src": flow.src,
        "dst": flow.dst,
        "size": flow.size,
        "need": flow.need,
        "need_span": flow.need_span,
        "class": outcome.flow_class,
        "release": outcome.flow_release,
        "finish": outcome.flow_finish,
        "fct": outcome.flow_finish - outcome.flow_release,
    }


def coflows(workload: Workload, outcome: Outcome) -> Table:
    """One row per coflow. It arrives with its first release and ends with its last finish."""
    coflow, member, n = workload.coflows, workload.flows.coflow, len(workload.coflows.job)
    width = np.bincount(member, minlength=n)
    arrival = _first(outcome.flow_release, member, n)
    finish = _last(outcome.flow_finish, member, n)
    return {
        "coflow": np.arange(n),
        "stage": coflow.stage,
        "job": coflow.job,
        "iteration": coflow.iteration,
        "label": _labels(coflow.label),
        "weight": coflow.weight,
        "deadline": coflow.deadline,
        "width": width,
        "bytes": np.bincount(member, workload.flows.size, n),
        "arrival": arrival,
        "finish": finish,
        "cct": finish - arrival,
    }


def deadlines_met(coflows: Table, ended: float) -> Summary | None:
    """How many coflows with a deadline were on time: `share`, `met` and `count`; None where none has one.

    Those count that have finished, and those that are late when the run ends, at `ended` seconds. Rounding,
    up to 1e-9 of the deadline, makes nobody late.
    """
    deadline, cct = coflows["deadline"], coflows["cct"]
    if not np.isfinite(deadline).any():
        return None
    met = cct <= deadline * (1 + 1e-9)
    known = np.isfinite(deadline) & (~np.isnan(cct) | (coflows["arrival"] + deadline <= ended))
    on_time, count = int((met & known).sum()), int(known.sum())
    return {"share": on_time / count if count else None, "met": on_time, "count": count}


def stages(workload: Workload, outcome: Outcome) -> Table:
    """One row per stage: from the first release of its flows to their last finish."""
    stage, n = workload.stages, len(workload.stages.job)
    member = workload.coflows.stage[workload.flows.coflow]
    count = np.bincount(member, minlength=n)
    start = _first(outcome.flow_release, member, n)
    finish = _last(outcome.flow_finish, member, n)
    return {
        "stage": np.arange(n),
        "job": stage.job,
        "iteration": stage.iteration,
        "label": _labels(stage.label),
        "flows": count,
        "bytes": np.bincount(member, workload.flows.size, n),
        "start": start,
        "finish": finish,
        "completion_time": finish - start,
    }


def node_jobs(workload: Workload) -> Ints:
    """The job of every node of the DAG, flows first."""
    return np.concatenate((workload.coflows.job[workload.flows.coflow], workload.tasks.job))


def iterations(workload: Workload, outcome: Outcome) -> Table:
    """One row per iteration of a job that has a node, in order.

    An iteration ends with its last flow or task and takes the time since the one before it ended (the
    first: since the job arrived), so the mean over the n iterations of a job is its completion time / n.
    """
    job = node_jobs(workload)
    iteration = np.concatenate((workload.coflows.iteration[workload.flows.coflow], workload.tasks.iteration))
    span = int(iteration.max(initial=0)) + 1
    key, member = np.unique(job * span + iteration, return_inverse=True)
    of_job = key // span
    finish = _last(np.concatenate((outcome.flow_finish, outcome.task_finish)), member, len(key))
    before = np.roll(finish, 1)
    opens = np.diff(of_job, prepend=-1) != 0
    before[opens] = workload.jobs.arrival[of_job[opens]]
    return {
        "job": of_job,
        "iteration": key % span,
        "start": before,
        "finish": finish,
        "iteration_time": finish - before,
    }


def jobs(workload: Workload, outcome: Outcome) -> Table:
    """One row per job: from its arrival to the end of its last flow or task."""
    job, n = workload.jobs, len(workload.jobs.arrival)
    member = node_jobs(workload)
    finish = _last(np.concatenate((outcome.flow_finish, outcome.task_finish)), member, n)
    of_flow = workload.coflows.job[workload.flows.coflow]
    return {
        "job": np.arange(n),
        "weight": job.weight,
        "iterations": job.iterations,
        "bytes": np.bincount(of_flow, workload.flows.size, n),
        "arrival": job.arrival,
        "finish": finish,
        "jct": finish - job.arrival,
    }


def links(fabric: Fabric, outcome: Outcome) -> Table:
    """One row per directed link. `utilisation` is bytes / (capacity x simulated time), 0 in a run of 0 s."""
    room = fabric.capacity * outcome.simulated_s
    return {
        "link": np.arange(len(fabric.capacity)),
        "src": fabric.link_src,
        "dst": fabric.link_dst,
        "capacity": fabric.capacity,
        "bytes": outcome.link_bytes,
        "utilisation": np.divide(outcome.link_bytes, room, out=np.zeros_like(room), where=room > 0),
    }


def tasks(workload: Workload, outcome: Outcome) -> Table:
    """One row per compute node of the DAG. `seconds` is its length as asked, start and finish as it was."""
    task = workload.tasks
    return {
        "task": np.arange(workload.n_tasks),
        "job": task.job,
        "iteration": task.iteration,
        "host": task.host,
        "kind": task.kind,
        "label": _labels(task.label),
        "seconds": task.seconds,
        "start": outcome.task_start,
        "finish": outcome.task_finish,
    }


def summary(values: Floats) -> Summary:
    """Count, mean, p50, p95, p99 and max of the finished rows (linear percentiles), and how many are not.

    NaN is an unfinished row: it counts in `unfinished` and nowhere else. Without a finished row the figures
    are None.
    """
    finished = values[~np.isnan(values)]
    figures: Summary = {
        "count": len(finished),
        "mean": None,
        "p50": None,
        "p95": None,
        "p99": None,
        "max": None,
    }
    if len(finished):
        p50, p95, p99 = np.percentile(finished, (50, 95, 99))
        mean, largest = finished.mean(), finished.max()
        figures |= {"mean": float(mean), "p50": float(p50), "p95": float(p95)}
        figures |= {"p99": float(p99), "max": float(largest)}
    figures["unfinished"] = len(values) - len(finished)
    return figures
