"""Assembles the columns of `model.Workload`, one job, coflow, flow or dependency at a time or in bulk.

Every workload kind adds to the same builder, so this is the one place that numbers the rows, joins the
dependency graph and refuses what no engine could run (cycles, sizes that are not sizes, unknown hosts).
"""

from __future__ import annotations

import math
from typing import NewType

import numpy as np
import numpy.typing as npt

from netsched.errors import ScenarioError
from netsched.model import (
    Coflows,
    Dag,
    Flows,
    Ints,
    Jobs,
    Stages,
    TaskKind,
    Tasks,
    Workload,
)
from netsched.shape import Reshape
from netsched.workloads.checks import check_acyclic, check_rows
from netsched.workloads.columns import FloatColumn, IntColumn
from netsched.workloads.startup import START_UP, Startup, opening, predecessors

Node = NewType("Node", int)
"""Handle of a DAG node: flow f is f, task t is -1 - t. Hence it is known before the counts are."""

MAX_NODES = 20_000_000
"""Flows and tasks of one scenario; beyond it a typing slip would fill the memory instead of failing."""


class WorkloadBuilder:
    """Collects jobs, stages, coflows, flows, tasks and dependencies; `build` checks and freezes them.

    `hosts` is the number of hosts of the fabric: host ordinals are 0..hosts-1. `reshape` is how jobs that
    train turn tensors into messages (None: as the scenario says), for the kinds of workload that ask for it.
    """

    def __init__(self, hosts: int, reshape: Reshape | None = None) -> None:
        self._hosts = hosts
        self.reshape = reshape
        self._job_name: dict[str, int] = {}
        self._weight_of_job: dict[int, float] = {}
        self._startup_of_job: dict[int, Startup] = {}
        self._job_arrival, self._job_weight, self._job_iterations = FloatColumn(), FloatColumn(), IntColumn()
        self._stage_job, self._stage_iteration = IntColumn(), IntColumn()
        self._stage_label: list[str] = []
        self._coflow_job, self._coflow_stage, self._coflow_iteration = IntColumn(), IntColumn(), IntColumn()
        self._coflow_label: list[str] = []
        self._coflow_weight, self._coflow_deadline = FloatColumn(), FloatColumn()
        self._coflow_burst, self._coflow_lull = IntColumn(), FloatColumn()
        self._flow_coflow, self._flow_src, self._flow_dst = IntColumn(), IntColumn(), IntColumn()
        self._flow_size, self._flow_need, self._flow_span = FloatColumn(), IntColumn(), IntColumn()
        self._n_flows = 0
        self._task_job, self._task_iteration, self._task_host = IntColumn(), IntColumn(), IntColumn()
        self._task_seconds, self._task_kind = FloatColumn(), IntColumn()
        self._task_label: list[str] = []
        self._edge_node, self._edge_on = IntColumn(), IntColumn()

    # -------------------------------------------------------------- what there is

    def add_job(
        self,
        name: str,
        arrival: float = 0.0,
        weight: float = 1.0,
        iterations: int = 1,
        *,
        startup: Startup | None = None,
    ) -> int:
        """Row of a new job. `arrival` in seconds; names are unique, since results are read by name.

        `startup`: what each message of the job costs before its first byte (None: nothing).
        """
        if name in self._job_name:
            raise ScenarioError(f"job {name!r} exists twice: give one of the workloads another `name`")
        if not 0 <= arrival < math.inf:
            raise ScenarioError(f"job {name!r}: arrival {arrival} s must be finite and 0 or more")
        if not 0 < weight < math.inf:
            raise ScenarioError(f"job {name!r}: weight {weight} must be finite and more than 0")
        if iterations < 1:
            raise ScenarioError(f"job {name!r}: iterations {iterations} must be 1 or more")
        self._job_arrival.append(arrival)
        self._job_weight.append(weight)
        self._weight_of_job[len(self._job_name)] = weight
        if startup is not None and startup.theta > 0:
            self._startup_of_job[len(self._job_name)] = startup
        self._job_iterations.append(iterations)
        return self._job_name.setdefault(name, len(self._job_name))

    def add_stage(self, job: int, label: str, iteration: int = 0) -> int:
        """Row of a new stage: the coflows of a job that belong together."""
        self._stage_job.append(job)
        self._stage_iteration.append(iteration)
        self._stage_label.append(label)
        return len(self._stage_label) - 1

    def add_coflow(
        self,
        job: int,
        stage: int,
        label: str,
        iteration: int = 0,
        *,
        weight: float | None = None,
        deadline: float = math.inf,
        burst: int = -1,
        lull: float = math.inf,
    ) -> int:
        """Row of a new coflow: `deadline` in seconds from its first release, `weight` None: its job's.

        `burst` and `lull` as in `model.Coflows`.
        """
        if weight is None:
            # A job that was never added is refused by `build`, with all that is wrong with it.
            weight = self._weight_of_job.get(job, 1.0)
        if not 0 < weight < math.inf:
            raise ScenarioError(f"coflow {label!r}: weight {weight} must be finite and more than 0")
        if not deadline > 0:
            raise ScenarioError(f"coflow {label!r}: deadline {deadline} s must be more than 0")
        self._coflow_job.append(job)
        self._coflow_stage.append(stage)
        self._coflow_iteration.append(iteration)
        self._coflow_label.append(label)
        self._coflow_weight.append(weight)
        self._coflow_deadline.append(deadline)
        self._coflow_burst.append(burst)
        self._coflow_lull.append(lull)
        return len(self._coflow_label) - 1

    def add_flow(
        self, coflow: int, src: int, dst: int, size: float, *, need: int = 0, need_span: int = 1
    ) -> Node:
        """Handle of a new flow of `size` bytes between two host ordinals."""
        self._flow_coflow.append(coflow)
        self._flow_src.append(src)
        self._flow_dst.append(dst)
        self._flow_size.append(size)
        self._flow_need.append(need)
        self._flow_span.append(need_span)
        self._n_flows += 1
        return Node(self._n_flows - 1)

    def add_flows(
        self,
        coflow: npt.ArrayLike,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        size: npt.ArrayLike,
        *,
        need: npt.ArrayLike = 0,
        need_span: npt.ArrayLike = 1,
    ) -> Ints:
        """Handles of many new flows, in order. The arguments are broadcast against each other (1-d)."""
        columns = np.broadcast_arrays(*map(np.atleast_1d, (coflow, src, dst, size, need, need_span)))
        count = len(columns[3])
        self.admit(count)
        targets = (self._flow_coflow, self._flow_src, self._flow_dst, None, self._flow_need, self._flow_span)
        for target, values in zip(targets, columns, strict=True):
            if target is not None:
                target.extend(values.astype(np.int64))
        self._flow_size.extend(columns[3].astype(np.float64))
        self._n_flows += count
        return np.arange(self._n_flows - count, self._n_flows, dtype=np.int64)

    def add_task(
        self,
        job: int,
        kind: TaskKind,
        host: int = -1,
        seconds: float = 0.0,
        iteration: int = 0,
        *,
        label: str = "",
    ) -> Node:
        """Handle of a new compute node; `host` -1 for nowhere in particular."""
        self._task_job.append(job)
        self._task_iteration.append(iteration)
        self._task_host.append(host)
        self._task_seconds.append(seconds)
        self._task_kind.append(int(kind))
        self._task_label.append(label)
        return Node(-len(self._task_label))

    def add_tasks(
        self,
        job: int,
        kind: TaskKind,
        host: npt.ArrayLike,
        seconds: npt.ArrayLike,
        iteration: npt.ArrayLike = 0,
        *,
        label: str = "",
    ) -> Ints:
        """Handles of one compute node per host, all of one job, kind and label."""
        hosts, lengths, turns = np.broadcast_arrays(*map(np.atleast_1d, (host, seconds, iteration)))
        count, first = len(hosts), len(self._task_label)
        self.admit(count)
        for column, value in ((self._task_job, job), (self._task_kind, int(kind))):
            column.extend(np.full(count, value, dtype=np.int64))
        self._task_iteration.extend(turns.astype(np.int64))
        self._task_host.extend(hosts.astype(np.int64))
        self._task_seconds.extend(lengths.astype(np.float64))
        self._task_label.extend([label] * count)
        return -1 - np.arange(first, first + count, dtype=np.int64)

    def depend(self, node: Node, *on: Node) -> None:
        """`node` starts only when every node of `on` has ended."""
        for other in on:
            self._edge_node.append(node)
            self._edge_on.append(other)

    def depend_each(self, nodes: npt.ArrayLike, on: npt.ArrayLike) -> None:
        """`nodes[i]` waits for `on[i]`. Arrays of handles, broadcast: (n, 1) against (m,) is all on all."""
        left, right = np.broadcast_arrays(np.atleast_1d(nodes), np.atleast_1d(on))
        self._edge_node.extend(left.astype(np.int64).ravel())
        self._edge_on.extend(right.astype(np.int64).ravel())

    def admit(self, nodes: int) -> None:
        """Refuse, before it is made, what would take the scenario beyond MAX_NODES flows and tasks."""
        total = self._n_flows + len(self._task_label) + nodes
        if total > MAX_NODES:
            raise ScenarioError(
                f"the workload unrolls to {total:,} flows and tasks, at most {MAX_NODES:,} are allowed: "
                "use fewer hosts, iterations or flows, or larger slices"
            )

    # -------------------------------------------------------------- the frozen whole

    def build(self, hairpin: bool = False) -> Workload:
        """The checked workload. ScenarioError if it is empty, refers to nothing, or its DAG has a cycle."""
        self._start_up()
        workload = Workload(
            jobs=Jobs(
                tuple(self._job_name),
                self._job_arrival.floats(),
                self._job_weight.floats(),
                self._job_iterations.ints(),
            ),
            stages=Stages(self._stage_job.ints(), self._stage_iteration.ints(), tuple(self._stage_label)),
            coflows=Coflows(
                self._coflow_job.ints(),
                self._coflow_stage.ints(),
                self._coflow_iteration.ints(),
                tuple(self._coflow_label),
                self._coflow_weight.floats(),
                self._coflow_deadline.floats(),
                self._coflow_burst.ints(),
                self._coflow_lull.floats(),
            ),
            flows=Flows(
                self._flow_coflow.ints(),
                self._flow_src.ints(),
                self._flow_dst.ints(),
                self._flow_size.floats(),
                self._flow_need.ints(),
                self._flow_span.ints(),
            ),
            tasks=Tasks(
                self._task_job.ints(),
                self._task_iteration.ints(),
                self._task_host.ints(),
                self._task_seconds.floats(),
                self._task_kind.ints(),
                tuple(self._task_label),
            ),
            dag=_join(self._edge_node.ints(), self._edge_on.ints(), self._n_flows, len(self._task_label)),
            hairpin=hairpin,
        )
        check_rows(workload, self._hosts)
        check_acyclic(workload)
        return workload

    def _start_up(self) -> None:
        """Put a start-up before every message of the jobs that have one: it waits in the message's place."""
        if not self._startup_of_job:
            return
        coflow, src, dst = (each.ints() for each in (self._flow_coflow, self._flow_src, self._flow_dst))
        job, iteration = (each.ints()[coflow] for each in (self._coflow_job, self._coflow_iteration))
        in_place = np.arange(self._n_flows)
        added = []
        for number, startup in self._startup_of_job.items():
            flows = np.flatnonzero((job == number) & (src != dst) & (self._flow_size.floats() > 0))
            columns = coflow[flows], src[flows], dst[flows]
            first = opening(*columns) if startup.in_steps else np.arange(len(flows))
            opens = flows[first == np.arange(len(flows))]
            tasks = self.add_tasks(
                number, TaskKind.OTHER, src[opens], startup.theta, iteration[opens], label=START_UP
            )
            in_place[opens] = tasks
            # What is not the first of its message waits for the start-up of the one that is.
            added.append((flows, in_place[flows[first]]))
            if not startup.in_steps:
                later, earlier = predecessors(startup.series, columns[0], job[flows], *columns[1:])
                added.append((tasks[later], flows[earlier]))
        self._startup_of_job = {}
        nodes, on = self._edge_node.ints().copy(), self._edge_on.ints()
        self._edge_node, self._edge_on = IntColumn(), IntColumn()
        nodes[nodes >= 0] = in_place[nodes[nodes >= 0]]
        self.depend_each(nodes, on)
        for these, those in added:
            self.depend_each(these, those)


def _join(nodes: Ints, on: Ints, n_flows: int, n_tasks: int) -> Dag:
    """The successor lists, each sorted and without duplicates, whatever the order of the calls was."""
    total = n_flows + n_tasks
    for handles in (nodes, on):
        if len(handles) and not (-n_tasks <= handles.min() and handles.max() < n_flows):
            raise ScenarioError("a dependency names a flow or task that was never added")
    after, before = (np.where(h < 0, n_flows - 1 - h, h) for h in (nodes, on))
    pairs = before * max(total, 1) + after
    pairs.sort()  # and not np.unique, whose hash table takes ten times as long for millions
    pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])[: len(pairs)]]
    before, after = pairs // max(total, 1), pairs % max(total, 1)
    indptr = np.zeros(total + 1, dtype=np.int64)
    np.cumsum(np.bincount(before, minlength=total), out=indptr[1:])
    return Dag(np.bincount(after, minlength=total).astype(np.int64), indptr, after.astype(np.int64))
