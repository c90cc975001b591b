"""What a circuit scheduler sees of a run: bytes between ends, whoever they are from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netsched.crossconnect import CrossConnect
from netsched.ledger import DONE, Ledger
from netsched.model import CircuitView, Floats, Ints, Pairs, Workload
from netsched.observe import Static, job_view
from netsched.ondemand import CircuitsOnDemand, frozen
from netsched.optics import Optics
from netsched.routes import gather


@dataclass(frozen=True)
class PairsOf:
    """Which pair of ends each flow is between, and what each job has between them in an iteration.

    key  (F,) end of the source times E plus end of the destination; -1 for a flow inside one end
    work  rows of one job and pair, by job; the owner in `work` is the job's id
    of_coflow, indptr  the flows of each coflow as CSR
    rows  (F,) the row of each flow in a table of all coflows' pairs, sorted as `Pairs`; -1 inside one end
    row_key, row_ptr   the pair of each such row, and where each coflow's rows begin
    """

    key: Ints
    work: Pairs
    of_coflow: Ints
    indptr: Ints
    rows: Ints
    row_key: Ints
    row_ptr: Ints


def pairs_of(workload: Workload, optics: Optics) -> PairsOf:
    flows, n_ends = workload.flows, max(len(optics.ends), 1)
    src, dst = optics.end_of_host[flows.src], optics.end_of_host[flows.dst]
    key = np.where((src >= 0) & (dst >= 0) & (src != dst), src * n_ends + dst, -1)
    job = workload.coflows.job[flows.coflow]
    each = flows.size / np.maximum(workload.jobs.iterations[job], 1)
    n_coflows = len(workload.coflows.job)
    crosses = np.flatnonzero(key >= 0)
    known, place = np.unique(flows.coflow[crosses] * n_ends**2 + key[crosses], return_inverse=True)
    rows = np.full(len(key), -1, np.int64)
    rows[crosses] = place
    owner, row_key = np.divmod(known, n_ends**2)
    return PairsOf(
        key=key,
        work=_pairs(job, key, each, n_ends),
        of_coflow=np.argsort(flows.coflow, kind="stable"),
        indptr=np.concatenate([[0], np.cumsum(np.bincount(flows.coflow, minlength=n_coflows))]),
        rows=rows,
        row_key=row_key,
        row_ptr=np.searchsorted(owner, np.arange(n_coflows + 1)),
    )


def _pairs(owner: Ints, key: Ints, amount: Floats, n_ends: int) -> Pairs:
    """The bytes of each (owner, pair), where there are any."""
    rows = np.flatnonzero((key >= 0) & (amount > 0))
    both, place = np.unique(owner[rows] * n_ends**2 + key[rows], return_inverse=True)
    total = np.bincount(place, amount[rows], len(both)).astype(np.float64)
    owner, key = np.divmod(both, n_ends**2)
    return _table(owner, key, total, n_ends)


def _table(owner: Ints, key: Ints, total: Floats, n_ends: int) -> Pairs:
    src, dst = np.divmod(key, n_ends)
    return Pairs(owner=frozen(owner), src=frozen(src), dst=frozen(dst), bytes=frozen(total))


def _pairs_of_coflows(
    pairs: PairsOf, coflows: Ints, of_coflow: Ints, flows: Ints, amount: Floats, n_ends: int
) -> Pairs:
    """The bytes of each (coflow, pair), where there are any, of flows of these coflows (ascending).

    Added up in the rows that these have, without sorting: a trace has hundreds of thousands.
    """
    ptr, rows = gather(pairs.row_ptr, np.arange(len(pairs.row_key)), coflows)
    shift = np.zeros(len(pairs.row_ptr), np.int64)
    shift[coflows] = ptr[:-1] - pairs.row_ptr[coflows]
    crosses = pairs.rows[flows] >= 0
    flows, amount = flows[crosses], amount[crosses]
    total = np.bincount(pairs.rows[flows] + shift[of_coflow[flows]], amount, len(rows)).astype(np.float64)
    kept = np.flatnonzero(total > 0)
    owner = np.repeat(coflows, np.diff(ptr))[kept]
    return _table(owner, pairs.row_key[rows[kept]], total[kept], n_ends)


def _of_jobs(work: Pairs, row: Ints) -> Pairs:
    """The work of the jobs that have a row, owned by that."""
    kept = row[work.owner] >= 0
    return Pairs(
        owner=frozen(row[work.owner[kept]]),
        src=frozen(work.src[kept]),
        dst=frozen(work.dst[kept]),
        bytes=frozen(work.bytes[kept]),
    )


def circuit_view(
    fixed: Static,
    ledger: Ledger,
    optics: Optics,
    pairs: PairsOf,
    cross: CrossConnect,
    active: Ints,
    left: Floats,
    now: float,
) -> CircuitView:
    """The view at `now`. `active`: flows released and not ended; `left`: the unsent bytes of all flows.

    It is to be read before time goes on: what is made on demand is made of the run's own arrays.
    """
    workload, n_ends = fixed.workload, len(optics.ends)
    of_coflow = workload.flows.coflow
    under_way = np.flatnonzero(ledger.coflow_active > 0)

    def summed(coflows: Ints, flows: Ints) -> Pairs:
        return _pairs_of_coflows(pairs, coflows, of_coflow, flows, left[flows], n_ends)

    def announced() -> Pairs:
        _, known = gather(pairs.indptr, pairs.of_coflow, under_way)
        return summed(under_way, known[ledger.status[known] != DONE])

    here = workload.jobs.arrival <= now
    unfinished = np.flatnonzero((ledger.coflow_left > 0) & here[workload.coflows.job])
    jobs = job_view(fixed, ledger, unfinished)
    row = np.full(len(here), -1, np.int64)
    row[jobs.id] = np.arange(len(jobs.id))
    work = pairs.work
    seen = CircuitsOnDemand.__new__(CircuitsOnDemand)
    seen.__dict__.update(
        _makers={
            "waiting": lambda: summed(np.unique(of_coflow[active]), active),
            "announced": announced,
            "work": lambda: _of_jobs(work, row),
        },
        now=now,
        jobs=jobs,
        out=frozen(cross.intact()),
        dark=frozen(np.where(cross.out >= 0, np.maximum(cross.ready - now, 0.0), 0.0)),
        rate=frozen(np.where(cross.broken, 0.0, optics.rate)),
        packet_rate=frozen(optics.packet_rate.copy()),
        delay=frozen(optics.delay.copy()),
    )
    return seen
