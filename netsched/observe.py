"""Views for policies, made from a ledger: the same columns whichever engine keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from netsched.ledger import Ledger
from netsched.model import CoflowView, Event, Floats, FlowView, Ints, JobView, Profile, View, Ways, Workload
from netsched.profiles import Profiles
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
    profiles: Profiles | None
    ways: Ways | None


def static(
    workload: Workload,
    routes: Routes,
    capacity: Floats,
    queues: int | None,
    iteration_ptr: Ints,
    profiles: Profiles | None = None,
    ways: Ways | None = None,
) -> Static:
    n = len(workload.coflows.job)
    return Static(
        workload=workload,
        routes=routes,
        capacity=frozen(capacity.copy()),
        queues=queues,
        coflow_size=np.bincount(workload.flows.coflow, workload.flows.size, n).astype(np.float64),
        coflow_flows=np.bincount(workload.flows.coflow, minlength=n),
        iteration_ptr=iteration_ptr,
        profiles=profiles,
        ways=ways,
    )


def frozen(array: Array) -> Array:
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
    coflows, row = _coflow_rows(ledger, coflow)
    indptr, links = fixed.routes.of_flows(flows)
    flow_view = FlowView(
        id=frozen(flows.copy()),
        coflow=frozen(row),
        src=frozen(columns.src[flows]),
        dst=frozen(columns.dst[flows]),
        size=frozen(size),
        sent=frozen(sent),
        remaining=frozen(remaining.copy()),
        need=frozen(columns.need[flows]),
        need_span=frozen(columns.need_span[flows]),
        release=frozen(ledger.start[flows]),
        indptr=frozen(indptr),
        links=frozen(links),
    )
    under_way = np.bincount(row, weights=sent, minlength=len(coflows)).astype(np.float64)
    if len(in_flight):
        came = columns.size[in_flight] if known is None else known[in_flight]
        _add_in_flight(fixed, coflows, in_flight, came, under_way)
    jobs = job_view(fixed, ledger, coflows)
    return View(
        now=now,
        flows=flow_view,
        coflows=_coflow_view(fixed, ledger, coflows, under_way, class_of_coflow),
        jobs=jobs,
        capacity=fixed.capacity,
        queues=fixed.queues,
        events=events,
        profile=None if fixed.profiles is None else _profile(fixed.profiles, ledger, jobs.id, coflows),
        ways=fixed.ways,
    )


def _coflow_rows(ledger: Ledger, coflow: Ints) -> tuple[Ints, Ints]:
    """The distinct coflows in order of arrival, then id, and each given one's row among them."""
    ids, row = _distinct(coflow, len(ledger.coflow_left))
    if len(ids) == 1:
        return ids, row
    order = np.argsort(ledger.coflow_arrival[ids], kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return ids[order], place[row]


def _distinct(numbers: Ints, n: int) -> tuple[Ints, Ints]:
    """The distinct values of `numbers` (0 to n - 1), ascending, and the place of each number among them."""
    if len(numbers) == 1:
        return numbers.copy(), np.zeros(1, np.int64)
    if len(numbers) < n >> 4:
        ids, place = np.unique(numbers, return_inverse=True)
        return ids, place.astype(np.int64)
    place = np.zeros(n, np.int64)
    place[numbers] = 1
    ids = np.flatnonzero(place)
    place[ids] = np.arange(len(ids))
    return ids, place[numbers]


def _add_in_flight(fixed: Static, coflows: Ints, in_flight: Ints, came: Floats, under_way: Floats) -> None:
    """Add what has come of the given flows to what is under way of their coflows, where these are shown."""
    row_of_coflow = np.full(len(fixed.coflow_size), -1, np.int64)
    row_of_coflow[coflows] = np.arange(len(coflows))
    row = row_of_coflow[fixed.workload.flows.coflow[in_flight]]
    np.add.at(under_way, row[row >= 0], came[row >= 0])


def _coflow_view(
    fixed: Static, ledger: Ledger, ids: Ints, under_way: Floats, class_of_coflow: Ints | None
) -> CoflowView:
    columns = fixed.workload.coflows
    _, job_row = _distinct(columns.job[ids], len(fixed.workload.jobs.arrival))
    return CoflowView(
        id=frozen(ids),
        job=frozen(job_row),
        stage=frozen(columns.stage[ids]),
        arrival=frozen(ledger.coflow_arrival[ids]),
        size=frozen(fixed.coflow_size[ids]),
        sent=frozen(ledger.coflow_finished_bytes[ids] + under_way),
        n_flows=frozen(fixed.coflow_flows[ids]),
        n_finished=frozen(fixed.coflow_flows[ids] - ledger.coflow_left[ids]),
        weight=frozen(columns.weight[ids]),
        deadline=frozen(columns.deadline[ids]),
        cls=frozen(np.full(len(ids), -1) if class_of_coflow is None else class_of_coflow[ids]),
    )


def job_view(fixed: Static, ledger: Ledger, coflows: Ints) -> JobView:
    jobs = fixed.workload.jobs
    ids, _ = _distinct(fixed.workload.coflows.job[coflows], len(jobs.arrival))
    ptr = fixed.iteration_ptr
    done = np.array(
        [np.count_nonzero(ledger.iteration_left[ptr[j] : ptr[j + 1]] == 0) for j in ids], np.int64
    )
    return JobView(
        id=frozen(ids),
        arrival=frozen(jobs.arrival[ids]),
        weight=frozen(jobs.weight[ids]),
        iterations=frozen(jobs.iterations[ids]),
        iterations_done=frozen(done),
    )


def _profile(profiles: Profiles, ledger: Ledger, jobs: Ints, coflows: Ints) -> Profile:
    begun = np.full(len(profiles.stage_lead), np.inf)
    np.fmin.at(begun, profiles.stage, ledger.coflow_arrival)
    return Profile(
        compute=frozen(profiles.compute[jobs]),
        lead=frozen(profiles.lead[jobs]),
        work=frozen(profiles.work[jobs]),
        traffic=frozen(profiles.traffic[jobs]),
        due=frozen(begun[profiles.stage[coflows]] + profiles.due_after[coflows]),
    )
