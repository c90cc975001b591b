"""The agents' reports as the engines' own columns, from which `observe.view` makes what a policy sees.

A run's workload is known from the beginning and its ledger grows with it; here both are made anew for each
decision from what is known by then, so that the view itself is made by the very code that the engines use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netsched.coordinator.registry import Coflow, Flow, Registry
from netsched.coordinator.wire import CoflowKey
from netsched.fabric import Fabric
from netsched.ledger import open_ledger
from netsched.model import Coflows, Dag, Event, Flows, Ints, Jobs, Stages, Tasks, View, Workload
from netsched.observe import Static, view
from netsched.routes import Routes


@dataclass(frozen=True)
class Picture:
    """A view, and which flow (of `flows`) and coflow (of `coflows`) each of its rows is."""

    view: View
    flows: tuple[Flow, ...]
    coflows: tuple[CoflowKey, ...]


class Camera:
    """Takes pictures of a registry. `fabric` and `queues` are what `View.capacity` and paths come from."""

    def __init__(self, fabric: Fabric, queues: int) -> None:
        self._fabric = fabric
        self._queues = queues
        # Paths of (source, destination, path index), each computed once and kept.
        self._row_of_path: dict[tuple[int, int, int], int] = {}
        self._indptr = [0]
        self._links: list[int] = []
        self._table = (np.zeros(1, np.int64), np.zeros(0, np.int64))

    def take(
        self,
        registry: Registry,
        shown: Sequence[Flow] | None,
        now: float,
        events: Event,
        cls: dict[CoflowKey, int],
    ) -> Picture:
        """What a policy is to see at `now` (s): all active flows, or only those `shown` (for a local policy).

        `cls` has the class of each coflow by the last decision in effect.
        """
        whole = registry.coflows()
        coflows = sorted(whole.values(), key=lambda one: one.number)
        row_of = {one.key: row for row, one in enumerate(coflows)}
        flows = [flow for flow in registry.flows() if flow.key in row_of]
        flows.sort(key=lambda flow: (flow.release, flow.number))
        wanted = None if shown is None else {flow.number for flow in shown}
        active = [
            row
            for row, flow in enumerate(flows)
            if flow.state.active and (wanted is None or flow.number in wanted)
        ]
        # As in the engines: what has sent everything needs no decision any more.
        rows = [row for row in active if flows[row].sent < flows[row].state.size]
        in_flight = np.array([row for row in active if flows[row].sent >= flows[row].state.size], np.int64)
        workload = _workload(flows, coflows, row_of)
        routes = self._routes(flows)
        fixed = Static(
            workload=workload,
            routes=routes,
            capacity=self._fabric.capacity,
            queues=self._queues,
            coflow_size=np.array([one.size for one in coflows], np.float64),
            coflow_flows=np.array([one.n_flows for one in coflows], np.int64),
            iteration_ptr=np.arange(len(workload.jobs.name) + 1),
        )
        ledger = open_ledger(workload, routes.local)
        ledger.start[: len(flows)] = [flow.release for flow in flows]
        ledger.coflow_arrival[:] = [one.arrival for one in coflows]
        ledger.coflow_left[:] = [one.n_flows - one.n_finished for one in coflows]
        ledger.coflow_finished_bytes[:] = [one.finished_bytes for one in coflows]
        index = np.array(rows, np.int64)
        remaining = np.array([flows[row].state.size - flows[row].sent for row in rows], np.float64)
        class_of = np.array([cls.get(one.key, -1) for one in coflows], np.int64)
        seen = view(fixed, ledger, index, remaining, now, events, in_flight, class_of)
        return Picture(
            seen, tuple(flows[row] for row in rows), tuple(coflows[i].key for i in seen.coflows.id)
        )

    def _routes(self, flows: Sequence[Flow]) -> Routes:
        path = self._paths(flows)
        n = len(flows)
        return Routes(
            index=np.zeros(n, np.int64),
            path=path,
            lane=np.arange(n, dtype=np.int64),
            local=np.zeros(n, np.int8),
            latency=np.zeros(n),
            indptr=self._table[0],
            links=self._table[1],
        )

    def _paths(self, flows: Sequence[Flow]) -> Ints:
        """A row of the path table per flow.

        Which of several equal paths the network takes is its secret; the engines' own hash stands for it.
        """
        new = [flow for flow in flows if flow.path < 0]
        if new:
            src, dst, salt = (
                np.array(column, np.int64)
                for column in zip(*((f.src, f.dst, f.number) for f in new), strict=True)
            )
            index = self._fabric.choose_path(0, src, dst, salt).tolist()
            for flow, p in zip(new, index, strict=True):
                flow.path = self._row(flow.src, flow.dst, p)
            self._table = np.array(self._indptr, np.int64), np.array(self._links, np.int64)
        return np.array([flow.path for flow in flows], np.int64)

    def _row(self, src: int, dst: int, p: int) -> int:
        row = self._row_of_path.setdefault((src, dst, p), len(self._row_of_path))
        if row == len(self._indptr) - 1:
            self._links += self._fabric.path(src, dst, p).tolist()
            self._indptr.append(len(self._links))
        return row


def _workload(flows: Sequence[Flow], coflows: Sequence[Coflow], row_of: dict[CoflowKey, int]) -> Workload:
    """The known flows as a workload without a future: one stage per coflow, one iteration per job."""
    job_row: dict[tuple[int, str], int] = {}
    job_of = [job_row.setdefault(one.key[:2], len(job_row)) for one in coflows]
    job = np.array(job_of, np.int64)
    m, n, jobs = len(coflows), len(flows), len(job_row)
    arrival = np.full(jobs, np.inf)
    np.minimum.at(arrival, job, np.array([one.arrival for one in coflows], np.float64))
    none, nothing = np.zeros(0, np.int64), np.zeros(0)
    return Workload(
        jobs=Jobs(tuple(name for _, name in job_row), arrival, np.ones(jobs), np.ones(jobs, np.int64)),
        stages=Stages(job, np.zeros(m, np.int64), tuple(one.key[2] for one in coflows)),
        coflows=Coflows(
            job=job,
            stage=np.arange(m),
            iteration=np.zeros(m, np.int64),
            label=tuple(one.key[2] for one in coflows),
            weight=np.array([one.weight or 1.0 for one in coflows], np.float64),
            deadline=np.array([one.deadline for one in coflows], np.float64),
        ),
        flows=Flows(
            coflow=np.array([row_of[flow.key] for flow in flows], np.int64),
            src=np.array([flow.src for flow in flows], np.int64),
            dst=np.array([flow.dst for flow in flows], np.int64),
            size=np.array([flow.state.size for flow in flows], np.float64),
            need=np.array([flow.state.need for flow in flows], np.int64),
            need_span=np.array([flow.state.need_span for flow in flows], np.int64),
        ),
        tasks=Tasks(none, none, none, nothing, none, ()),
        dag=Dag(np.zeros(n, np.int64), np.zeros(n + 1, np.int64), none),
    )
