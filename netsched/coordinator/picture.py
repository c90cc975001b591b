"""The agents' reports as the engines' own columns, from which `observe.view` makes what a policy sees.

A run's workload is known from the beginning and its ledger grows with it; here both are made anew for each
decision from what is known by then, so that the view itself is made by the very code that the engines use.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from netsched.coordinator.registry import Coflow, Registry
from netsched.coordinator.wire import CoflowKey
from netsched.fabric import Fabric
from netsched.ledger import open_ledger
from netsched.model import Coflows, Dag, Event, Flows, Ints, Jobs, Memory, Stages, Tasks, View, Workload
from netsched.observe import Static, view
from netsched.ondemand import frozen, instead
from netsched.routes import Routes

Rows = npt.NDArray[Any]
"""Rows of `table.ROW`."""


@dataclass(frozen=True)
class Picture:
    """A view, and what its rows are.

    slots     of the table, one per row of `view.flows`
    numbers   of the flows in them, by which a slot that is used again can be told
    coflows   one per row of `view.coflows`
    """

    view: View
    slots: Ints
    numbers: Ints
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
        self._job_number: dict[tuple[int, str], int] = {}
        self._jobs = itertools.count()

    def take(
        self,
        registry: Registry,
        shown: Sequence[int] | None,
        now: float,
        events: Event,
        cls: Mapping[CoflowKey, int],
        memory: Memory = (),
    ) -> Picture:
        """What a policy is to see at `now` (s): all active flows, or of those only the slots `shown`.

        `cls` has the class of each coflow by the last decision in effect, `memory` is the last plan's. Flows,
        coflows and jobs keep their numbers (`id`) from one picture to the next.
        """
        coflows = registry.coflows()
        slots, coflow = _known(registry, coflows)
        self._look_up_paths(registry.table.rows, slots)
        rows = registry.table.rows[slots]
        active = rows["active"] if shown is None else rows["active"] & np.isin(slots, shown)
        left = rows["size"] - rows["sent"]
        # As in the engines: what has sent everything needs no decision any more.
        index, in_flight = np.flatnonzero(active & (left > 0)), np.flatnonzero(active & (left <= 0))
        m = len(coflows)
        ended, ended_bytes = (np.array([getattr(c, n) for c in coflows]) for n in ("ended", "ended_bytes"))
        size = np.bincount(coflow, rows["size"], m) + ended_bytes
        n_flows = np.bincount(coflow, minlength=m) + ended
        n_flows = np.maximum(n_flows, [one.n_flows for one in coflows]).astype(np.int64)
        workload = _workload(rows, coflow, coflows)
        routes = self._routes(rows)
        fixed = Static(
            workload=workload,
            routes=routes,
            capacity=self._fabric.capacity,
            queues=self._queues,
            coflow_size=np.maximum(size, [one.size for one in coflows]),
            coflow_flows=n_flows,
            iteration_ptr=np.arange(len(workload.jobs.name) + 1),
            profiles=None,
            ways=None,
        )
        ledger = open_ledger(workload, routes.local)
        ledger.start[: len(rows)] = rows["release"]
        ledger.coflow_arrival[:] = [one.arrival for one in coflows]
        ledger.coflow_left[:] = n_flows - ended
        ledger.coflow_finished_bytes[:] = ended_bytes
        class_of = np.array([cls.get(one.key, -1) for one in coflows], np.int64)
        seen = view(fixed, ledger, index, left[index], now, events, in_flight, class_of, memory=memory)
        shown_coflows = [coflows[i] for i in seen.coflows.id]
        keys = tuple(one.key for one in shown_coflows)
        job_keys = list(dict.fromkeys(one.key[:2] for one in coflows))
        numbers = rows["number"][index]
        seen = instead(
            seen,
            flows=instead(seen.flows, id=frozen(numbers.copy())),
            coflows=instead(seen.coflows, id=_numbers(one.number for one in shown_coflows)),
            jobs=instead(seen.jobs, id=self._numbers_of_jobs(job_keys)[seen.jobs.id]),
        )
        return Picture(seen, slots[index], numbers, keys)

    def _numbers_of_jobs(self, keys: Sequence[tuple[int, str]]) -> Ints:
        """The number of each job, a new one for those that the last picture did not have."""
        before = self._job_number
        self._job_number = {key: before[key] if key in before else next(self._jobs) for key in keys}
        return _numbers(self._job_number.values())

    def _routes(self, rows: Rows) -> Routes:
        n = len(rows)
        return Routes(
            index=np.zeros(n, np.int64),
            path=rows["path"].copy(),
            lane=np.arange(n, dtype=np.int64),
            local=np.zeros(n, np.int8),
            latency=np.zeros(n),
            indptr=self._table[0],
            links=self._table[1],
        )

    def _look_up_paths(self, rows: Rows, slots: Ints) -> None:
        """Fill `path` where it is not known yet.

        Which of several equal paths the network takes is its secret; the engines' own hash stands for it.
        """
        new = slots[rows["path"][slots] < 0]
        if not len(new):
            return
        src, dst = rows["src"][new], rows["dst"][new]
        index = self._fabric.choose_path(0, src, dst, rows["number"][new])
        keys = zip(src.tolist(), dst.tolist(), index.tolist(), strict=True)
        rows["path"][new] = [self._row(*key) for key in keys]
        if len(self._table[0]) != len(self._indptr):
            self._table = np.array(self._indptr, np.int64), np.array(self._links, np.int64)

    def _row(self, src: int, dst: int, p: int) -> int:
        row = self._row_of_path.setdefault((src, dst, p), len(self._row_of_path))
        if row == len(self._indptr) - 1:
            self._links += self._fabric.path(src, dst, p).tolist()
            self._indptr.append(len(self._links))
        return row


def _numbers(values: Iterable[int]) -> Ints:
    numbers: Ints = frozen(np.fromiter(values, np.int64))
    return numbers


def _known(registry: Registry, coflows: Sequence[Coflow]) -> tuple[Ints, Ints]:
    """The slots of all flows of these coflows, in order of release, and which coflow (row) each is of."""
    rows = registry.table.rows
    live = registry.table.live()
    numbers = np.array([one.number for one in coflows], np.int64)
    coflow = np.searchsorted(numbers, rows["coflow"][live])
    of_these = np.isin(rows["coflow"][live], numbers)
    slots, coflow = live[of_these], coflow[of_these]
    order = np.lexsort((rows["number"][slots], rows["release"][slots]))
    return slots[order], coflow[order]


def _workload(rows: Rows, coflow: Ints, coflows: Sequence[Coflow]) -> Workload:
    """The known flows as a workload without a future: one stage per coflow, one iteration per job."""
    job_row: dict[tuple[int, str], int] = {}
    job = np.array([job_row.setdefault(one.key[:2], len(job_row)) for one in coflows], np.int64)
    m, n, jobs = len(coflows), len(rows), len(job_row)
    arrival = np.full(jobs, np.inf)
    np.minimum.at(arrival, job, np.array([one.arrival for one in coflows], np.float64))
    labels = tuple(one.key[2] for one in coflows)
    none, nothing = np.zeros(0, np.int64), np.zeros(0)
    return Workload(
        jobs=Jobs(tuple(name for _, name in job_row), arrival, np.ones(jobs), np.ones(jobs, np.int64)),
        stages=Stages(job, np.zeros(m, np.int64), labels),
        coflows=Coflows(
            job=job,
            stage=np.arange(m),
            iteration=np.zeros(m, np.int64),
            label=labels,
            weight=np.array([one.weight or 1.0 for one in coflows], np.float64),
            deadline=np.array([one.deadline for one in coflows], np.float64),
            burst=np.full(m, -1),
            lull=np.full(m, np.inf),
        ),
        flows=Flows(
            coflow=coflow,
            src=rows["src"].copy(),
            dst=rows["dst"].copy(),
            size=rows["size"].copy(),
            need=rows["need"].copy(),
            need_span=rows["need_span"].copy(),
        ),
        tasks=Tasks(none, none, none, nothing, none, ()),
        dag=Dag(np.zeros(n, np.int64), np.zeros(n + 1, np.int64), none),
    )
