"""Views for policies, made from a ledger: the same columns whichever engine keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from netsched.ledger import Ledger
from netsched.model import CoflowView, Event, Floats, FlowView, Ints, JobView, View, Workload
from netsched.routes import Routes

NO_FLOWS: Final[Ints] = np.zeros(0, np.int64)

Array = TypeVar("Array", bound="np.ndarray[Any, Any]")


@dataclass(frozen=True)
class Static:
    """What of a workload does not change while it runs, gathered once for all views."""

    workload: Workload
    routes: Routes
    capacity: Floats
    queues: int | None
    coflow_size: Floats
    coflow_flows: Ints
    iteration_ptr: Ints


def static(
    workload: Workload, routes: Routes, capacity: Floats, queues: int | None, iteration_ptr: Ints
) -> Static:
    n = len(workload.coflows.job)
    return Static(
        workload=workload,
        routes=routes,
        capacity=_frozen(capacity.copy()),
        queues=queues,
        coflow_size=np.bincount(workload.flows.coflow, workload.flows.size, n).astype(np.float64),
        coflow_flows=np.bincount(workload.flows.coflow, minlength=n),
        iteration_ptr=iteration_ptr,
    )


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array


def view(
    fixed: Static,
    ledger: Ledger,
    flows: Ints,
    remaining: Floats,
    now: float,
    events: Event,
    in_flight: Ints = NO_FLOWS,
    class_of_coflow: Ints | None = None,
    known: Floats | None = None,
) -> View:
    """What a policy sees of the given active flows, which have `remaining` bytes (aligned with `flows`).

    `in_flight` are flows that have sent everything and not ended: no rows of the view, but their bytes count
    as sent by their coflows. `class_of_coflow` has the class of every coflow of the workload, -1 for none yet
    (None: no coflow has one). `known` has the bytes that each flow of the workload is known to have sent, for
    a coordinator that goes by reports; what flows in fact have sent is then not shown at all.
    """
    columns = fixed.workload.flows
    size = columns.size[flows]
    if known is not None:
        remaining = size - known[flows]
    sent = size - remaining
    coflow = columns.coflow[flows]
    coflows, row_of_coflow = _coflow_rows(ledger, coflow)
    row = row_of_coflow[coflow]
    indptr, links = fixed.routes.of_flows(flows)
    flow_view = FlowView(
        id=_frozen(flows.copy()),
        coflow=_frozen(row),
        src=_frozen(columns.src[flows]),
        dst=_frozen(columns.dst[flows]),
        size=_frozen(size),
        sent=_frozen(sent),
        remaining=_frozen(remaining.copy()),
        need=_frozen(columns.need[flows]),
        need_span=_frozen(columns.need_span[flows]),
        release=_frozen(ledger.start[flows]),
        indptr=_frozen(indptr),
        links=_frozen(links),
    )
    under_way = np.bincount(row, weights=sent, minlength=len(coflows)).astype(np.float64)
    seen = in_flight[row_of_coflow[columns.coflow[in_flight]] >= 0]
    came = columns.size[seen] if known is None else known[seen]
    np.add.at(under_way, row_of_coflow[columns.coflow[seen]], came)
    return View(
        now=now,
        flows=flow_view,
        coflows=_coflow_view(fixed, ledger, coflows, under_way, class_of_coflow),
        jobs=_job_view(fixed, ledger, coflows),
        capacity=fixed.capacity,
        queues=fixed.queues,
        events=events,
    )


def _coflow_rows(ledger: Ledger, coflow: Ints) -> tuple[Ints, Ints]:
    """The distinct coflows in order of arrival, then id, and a map from coflow to its row (-1: none)."""
    present = np.zeros(len(ledger.coflow_left), bool)
    present[coflow] = True
    ids = np.flatnonzero(present)
    ids = ids[np.argsort(ledger.coflow_arrival[ids], kind="stable")]
    row = np.full(len(present), -1, np.int64)
    row[ids] = np.arange(len(ids))
    return ids, row


def _coflow_view(
    fixed: Static, ledger: Ledger, ids: Ints, under_way: Floats, class_of_coflow: Ints | None
) -> CoflowView:
    columns = fixed.workload.coflows
    _, job_row = np.unique(columns.job[ids], return_inverse=True)
    return CoflowView(
        id=_frozen(ids),
        job=_frozen(job_row.astype(np.int64)),
        stage=_frozen(columns.stage[ids]),
        arrival=_frozen(ledger.coflow_arrival[ids]),
        size=_frozen(fixed.coflow_size[ids]),
        sent=_frozen(ledger.coflow_finished_bytes[ids] + under_way),
        n_flows=_frozen(fixed.coflow_flows[ids]),
        n_finished=_frozen(fixed.coflow_flows[ids] - ledger.coflow_left[ids]),
        weight=_frozen(columns.weight[ids]),
        deadline=_frozen(columns.deadline[ids]),
        cls=_frozen(np.full(len(ids), -1) if class_of_coflow is None else class_of_coflow[ids]),
    )


def _job_view(fixed: Static, ledger: Ledger, coflows: Ints) -> JobView:
    jobs = fixed.workload.jobs
    ids = np.unique(fixed.workload.coflows.job[coflows])
    ptr = fixed.iteration_ptr
    done = np.array(
        [np.count_nonzero(ledger.iteration_left[ptr[j] : ptr[j + 1]] == 0) for j in ids], np.int64
    )
    return JobView(
        id=_frozen(ids),
        arrival=_frozen(jobs.arrival[ids]),
        weight=_frozen(jobs.weight[ids]),
        iterations=_frozen(jobs.iterations[ids]),
        iterations_done=_frozen(done),
    )
