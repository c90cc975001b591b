"""Views for policies, made from a ledger: the same columns whichever engine keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from netsched.jit import compiled
from netsched.ledger import Ledger, iterations_done
from netsched.model import CoflowView, Event, Floats, Ints, JobView, Memory, Profile, View, Ways, Workload
from netsched.ondemand import (
    CoflowsOnDemand,
    FlowsOnDemand,
    JobsOnDemand,
    ViewAhead,
    frozen,
    on_demand,
    unknown_yet,
)
from netsched.profiles import Profiles
from netsched.routes import Routes, gather

NO_FLOWS: Final[Ints] = np.zeros(0, np.int64)


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
    memory: Memory = (),
) -> View:
    """What a policy sees of the given active flows, which have `remaining` bytes (aligned with `flows`).

    `in_flight` are flows that have sent everything and not ended: no rows of the view, but their bytes count
    as sent by their coflows. `class_of_coflow` has the class of every coflow of the workload, -1 for none yet
    (None: no coflow has one). `known` has the bytes that each flow of the workload is known to have sent, for
    a coordinator that goes by reports; what flows in fact have sent is then not shown at all. `memory` is
    that of the policy's last plan.
    """
    columns, ids = fixed.workload.flows, flows.copy()
    coflows, row = _coflow_rows(ledger, columns.coflow[ids])
    left = remaining.copy() if known is None else columns.size[ids] - known[ids]
    routes = fixed.routes
    path = routes.path[ids]
    paths = cache(lambda: gather(routes.indptr, routes.links, path))
    flow_view = on_demand(
        FlowsOnDemand,
        {"id": ids, "coflow": row, "remaining": left},
        {
            "src": lambda: columns.src[ids],
            "dst": lambda: columns.dst[ids],
            "size": lambda: columns.size[ids],
            "sent": lambda: columns.size[ids] - left,
            "need": lambda: columns.need[ids],
            "need_span": lambda: columns.need_span[ids],
            "release": lambda: ledger.start[ids],
            "indptr": lambda: paths()[0],
            "links": lambda: paths()[1],
        },
    )
    came = columns.size[in_flight] if known is None else known[in_flight]

    def under_way() -> Floats:
        sent = _sent(row, len(coflows), columns.size, ids, left)
        if len(in_flight):
            _add_in_flight(fixed, coflows, in_flight, came, sent)
        return sent

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
        memory=memory,
    )


def ahead_of_time(fixed: Static, moving: bool) -> View:
    """What is known from the beginning of all flows that there will be: see `control.decide_ahead`.

    `moving`: flows change their paths, which are not known then.
    """
    flows, coflows, jobs = fixed.workload.flows, fixed.workload.coflows, fixed.workload.jobs
    paths = cache(lambda: fixed.routes.of_flows(np.arange(len(flows.size))))
    seen = ViewAhead.__new__(ViewAhead)
    seen.__dict__.update(
        flows=on_demand(
            FlowsOnDemand,
            {"id": np.arange(len(flows.size))},
            {
                "indptr": unknown_yet if moving else lambda: paths()[0],
                "links": unknown_yet if moving else lambda: paths()[1],
                **{name: getattr(flows, name).copy for name in ("coflow", "src", "dst", "size")},
                **{name: getattr(flows, name).copy for name in ("need", "need_span")},
                **dict.fromkeys(("sent", "remaining", "release"), unknown_yet),
            },
        ),
        coflows=on_demand(
            CoflowsOnDemand,
            {"id": np.arange(len(coflows.job))},
            {
                "size": fixed.coflow_size.copy,
                "n_flows": fixed.coflow_flows.copy,
                **{name: getattr(coflows, name).copy for name in ("job", "stage", "weight", "deadline")},
                **{name: getattr(coflows, name).copy for name in ("burst", "lull")},
                **dict.fromkeys(("arrival", "sent", "n_finished", "cls"), unknown_yet),
            },
        ),
        jobs=on_demand(
            JobsOnDemand,
            {"id": np.arange(len(jobs.arrival))},
            {
                **{name: getattr(jobs, name).copy for name in ("arrival", "weight", "iterations")},
                "iterations_done": unknown_yet,
            },
        ),
        queues=fixed.queues,
        profile=None,
        ways=None,
        memory=(),
    )
    return seen


def _coflow_rows(ledger: Ledger, coflow: Ints) -> tuple[Ints, Ints]:
    """The distinct coflows in order of arrival, then id, and each given one's row among them."""
    ids, row = _distinct(coflow, len(ledger.coflow_left))
    if len(ids) == 1:
        return ids, row
    order = np.argsort(ledger.coflow_arrival[ids], kind="stable")
    if (np.diff(order) > 0).all():
        return ids, row
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return ids[order], place[row]


@compiled
def _sent(row: Ints, n: int, size: Floats, ids: Ints, left: Floats) -> Floats:
    """Bytes that the given flows have sent, per row."""
    sent = np.zeros(n)
    for i in range(len(ids)):
        sent[row[i]] += size[ids[i]] - left[i]
    return sent


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
    fixed: Static,
    ledger: Ledger,
    ids: Ints,
    under_way: Callable[[], Floats],
    class_of_coflow: Ints | None,
) -> CoflowView:
    columns = fixed.workload.coflows
    finished_bytes, n_left = ledger.coflow_finished_bytes[ids], ledger.coflow_left[ids]
    return on_demand(
        CoflowsOnDemand,
        {"id": ids, "cls": np.full(len(ids), -1) if class_of_coflow is None else class_of_coflow[ids]},
        {
            "job": lambda: _distinct(columns.job[ids], len(fixed.workload.jobs.arrival))[1],
            "stage": lambda: columns.stage[ids],
            "arrival": lambda: ledger.coflow_arrival[ids],
            "size": lambda: fixed.coflow_size[ids],
            "sent": lambda: finished_bytes + under_way(),
            "n_flows": lambda: fixed.coflow_flows[ids],
            "n_finished": lambda: fixed.coflow_flows[ids] - n_left,
            "weight": lambda: columns.weight[ids],
            "deadline": lambda: columns.deadline[ids],
            "burst": lambda: columns.burst[ids],
            "lull": lambda: columns.lull[ids],
        },
    )


def job_view(fixed: Static, ledger: Ledger, coflows: Ints) -> JobView:
    jobs = fixed.workload.jobs
    ids, _ = _distinct(fixed.workload.coflows.job[coflows], len(jobs.arrival))
    return JobView(
        id=frozen(ids),
        arrival=frozen(jobs.arrival[ids]),
        weight=frozen(jobs.weight[ids]),
        iterations=frozen(jobs.iterations[ids]),
        iterations_done=frozen(iterations_done(ledger, fixed.iteration_ptr, ids)),
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
