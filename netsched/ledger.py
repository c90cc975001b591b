"""The state of a run: which nodes of the DAG have started and ended, and when.

Both engines keep the same ledger and move it with the same functions; the simulator says "this flow
ended at t" from its arithmetic, the emulator from what the receivers saw. Columns and numba, because a
trace has 10^6 nodes and the simulator's inner loop lives here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from netsched.jit import compiled
from netsched.model import Event, Floats, Ints, Standing, Workload

WAITING, ACTIVE, DONE = 0, 1, 2

# Positions in Ledger.count.
TIMERS, FRESH, ACTIVE_LIST, FLOWS_LEFT, NODES_LEFT, EVENTS, STACK = range(7)

FLOW_RELEASED: Final = Event.FLOW_RELEASED.value
FLOW_FINISHED: Final = Event.FLOW_FINISHED.value
COFLOW_RELEASED: Final = Event.COFLOW_RELEASED.value
COFLOW_FINISHED: Final = Event.COFLOW_FINISHED.value
WATCHED_FINISHED: Final = Event.WATCHED_FINISHED.value

PARCEL_SENT: Final = 64
"""A bit that no policy knows: a part of a flow has crossed one of its two circuits (relays.py)."""


class Ledger(NamedTuple):
    """Columns per node (flows first, then tasks), per flow, per coflow, and per (job, iteration).

    `timer_at`/`timer_node` are a binary heap of task ends and job arrivals (node -1-j: job j arrives);
    `fresh` lists the flows released since the caller last took them; `active` the released ones in
    order of release (finished ones are swept out by `sweep`). The end of a `watched` flow is an event of its
    own. `count` holds the scalars.
    """

    status: np.ndarray
    start: Floats
    finish: Floats
    deps_left: Ints
    indptr: Ints
    successors: Ints
    seconds: Floats
    size: Floats
    node_iteration: Ints
    iteration_left: Ints
    flow_coflow: Ints
    local: np.ndarray
    watched: np.ndarray
    coflow_left: Ints
    coflow_active: Ints
    coflow_arrival: Floats
    coflow_finished_bytes: Floats
    timer_at: Floats
    timer_node: Ints
    fresh: Ints
    active: Ints
    stack: Ints
    roots: Ints
    root_ptr: Ints
    count: Ints  # type: ignore[assignment]


def open_ledger(workload: Workload, local: np.ndarray) -> Ledger:
    """A ledger at time 0 with every job's arrival on the timer heap.

    `local[f]` says that flow f does not touch the network (source and destination are one host):
    it ends when it is released.
    """
    flows, tasks, dag = workload.flows, workload.tasks, workload.dag
    n_flows, n_tasks = workload.n_flows, workload.n_tasks
    n = n_flows + n_tasks
    job = np.concatenate([workload.coflows.job[flows.coflow], tasks.job])
    iteration = np.concatenate([workload.coflows.iteration[flows.coflow], tasks.iteration])
    offset = iteration_offsets(workload)
    node_iteration = offset[job] + iteration
    is_root = np.flatnonzero(dag.n_deps == 0)
    by_job = is_root[np.argsort(job[is_root], kind="stable")]
    n_jobs, n_coflows = len(workload.jobs.arrival), len(workload.coflows.job)
    ledger = Ledger(
        status=np.zeros(n, np.int8),
        start=np.full(n, np.nan),
        finish=np.full(n, np.nan),
        deps_left=dag.n_deps.astype(np.int64).copy(),
        indptr=dag.indptr,
        successors=dag.successors,
        seconds=tasks.seconds,
        size=flows.size,
        node_iteration=node_iteration,
        iteration_left=np.bincount(node_iteration, minlength=offset[-1]).astype(np.int64),
        flow_coflow=flows.coflow,
        local=local,
        watched=np.zeros(n_flows, np.int8),
        coflow_left=np.bincount(flows.coflow, minlength=n_coflows).astype(np.int64),
        coflow_active=np.zeros(n_coflows, np.int64),
        coflow_arrival=np.full(n_coflows, np.nan),
        coflow_finished_bytes=np.zeros(n_coflows),
        timer_at=np.empty(n + n_jobs + 1),
        timer_node=np.empty(n + n_jobs + 1, np.int64),
        fresh=np.empty(n_flows, np.int64),
        active=np.empty(n_flows, np.int64),
        stack=np.empty(n + 1, np.int64),
        roots=by_job,
        root_ptr=np.searchsorted(job[by_job], np.arange(n_jobs + 1)).astype(np.int64),
        count=np.zeros(8, np.int64),
    )
    ledger.count[FLOWS_LEFT] = n_flows
    ledger.count[NODES_LEFT] = n
    for j, arrival in enumerate(workload.jobs.arrival):
        push_timer(ledger, float(arrival), -1 - j)
    return ledger


def standing(ledger: Ledger, now: float) -> Standing:
    """How far the run is at `now` (s)."""
    flows, of_coflow = len(ledger.size), ledger.coflow_active
    return Standing(
        now=now,
        active=int(of_coflow.sum()),
        coflows=int(np.count_nonzero(of_coflow)),
        finished=flows - int(ledger.count[FLOWS_LEFT]),
        flows=flows,
    )


def iteration_offsets(workload: Workload) -> Ints:
    """Where each job's iterations begin in a flat list of all; the last entry is their number. (jobs + 1,)"""
    n_jobs = len(workload.jobs.arrival)
    most = np.maximum(workload.jobs.iterations.astype(np.int64), 1)
    for job, iteration in (
        (workload.coflows.job, workload.coflows.iteration),
        (workload.tasks.job, workload.tasks.iteration),
    ):
        np.maximum.at(most, job, iteration + 1)
    return np.concatenate([[0], np.cumsum(most)]) if n_jobs else np.zeros(1, np.int64)


@compiled
def push_timer(ledger: Ledger, at: float, node: int) -> None:
    """Put (at, node) on the heap; equal times come out by node number, so that order is determined."""
    times, nodes = ledger.timer_at, ledger.timer_node
    i = ledger.count[TIMERS]
    ledger.count[TIMERS] += 1
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] < at or (times[parent] == at and nodes[parent] < node):
            break
        times[i], nodes[i] = times[parent], nodes[parent]
        i = parent
    times[i], nodes[i] = at, node


@compiled
def pop_timer(ledger: Ledger) -> int:
    """Take the earliest node off the heap, which must not be empty."""
    times, nodes = ledger.timer_at, ledger.timer_node
    top = nodes[0]
    ledger.count[TIMERS] -= 1
    n = ledger.count[TIMERS]
    at, node = times[n], nodes[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        right = child + 1
        if right < n and (
            times[right] < times[child] or (times[right] == times[child] and nodes[right] < nodes[child])
        ):
            child = right
        if at < times[child] or (at == times[child] and node < nodes[child]):
            break
        times[i], nodes[i] = times[child], nodes[child]
        i = child
    times[i], nodes[i] = at, node
    return int(top)


@compiled
def next_timer(ledger: Ledger) -> float:
    """When the earliest timer is due, inf if there is none."""
    return ledger.timer_at[0] if ledger.count[TIMERS] else np.inf


@compiled
def _begin(ledger: Ledger, node: int, t: float) -> bool:
    """Start a node whose dependencies have ended; True if it ends at once."""
    n_flows = len(ledger.size)
    ledger.status[node] = ACTIVE
    ledger.start[node] = t
    if node >= n_flows:
        seconds = ledger.seconds[node - n_flows]
        if seconds > 0:
            push_timer(ledger, t + seconds, node)
        return bool(seconds <= 0)
    c = ledger.flow_coflow[node]
    if np.isnan(ledger.coflow_arrival[c]):
        ledger.coflow_arrival[c] = t
    if ledger.coflow_active[c] == 0:
        ledger.count[EVENTS] |= COFLOW_RELEASED
    ledger.coflow_active[c] += 1
    if ledger.local[node] or ledger.size[node] <= 0:
        return True
    ledger.fresh[ledger.count[FRESH]] = node
    ledger.count[FRESH] += 1
    ledger.count[EVENTS] |= FLOW_RELEASED
    return False


@compiled
def _end(ledger: Ledger, node: int, t: float) -> None:
    n_flows = len(ledger.size)
    ledger.status[node] = DONE
    ledger.finish[node] = t
    ledger.count[NODES_LEFT] -= 1
    ledger.iteration_left[ledger.node_iteration[node]] -= 1
    if node < n_flows:
        c = ledger.flow_coflow[node]
        ledger.count[FLOWS_LEFT] -= 1
        ledger.count[EVENTS] |= FLOW_FINISHED
        if ledger.watched[node]:
            ledger.count[EVENTS] |= WATCHED_FINISHED
        ledger.coflow_finished_bytes[c] += ledger.size[node]
        ledger.coflow_left[c] -= 1
        ledger.coflow_active[c] -= 1
        if ledger.coflow_active[c] == 0:
            ledger.count[EVENTS] |= COFLOW_FINISHED


@compiled
def finish_node(ledger: Ledger, node: int, t: float) -> None:
    """Record that `node` ended at t, start what waited only for it, and so on through what takes no time."""
    stack = ledger.stack
    stack[0] = node
    n = 1
    while n:
        n -= 1
        ended = stack[n]
        _end(ledger, ended, t)
        for k in range(ledger.indptr[ended], ledger.indptr[ended + 1]):
            follower = ledger.successors[k]
            ledger.deps_left[follower] -= 1
            if ledger.deps_left[follower] == 0 and _begin(ledger, follower, t):
                stack[n] = follower
                n += 1


@compiled
def fire_timer(ledger: Ledger, latest: float) -> float:
    """Carry out the earliest timer (a task ends, or a job arrives) at its own time, which is returned.

    An engine for which all that happens is `latest` at the latest gets that time instead, so that what
    is simultaneous but for rounding has equal times.
    """
    t = min(ledger.timer_at[0], latest)
    node = pop_timer(ledger)
    if node >= 0:
        finish_node(ledger, node, t)
        return float(t)
    job = -1 - node
    for k in range(ledger.root_ptr[job], ledger.root_ptr[job + 1]):
        root = ledger.roots[k]
        if _begin(ledger, root, t):
            finish_node(ledger, root, t)
    return float(t)


@compiled
def finish_nodes(ledger: Ledger, nodes: Ints, at: Floats) -> None:
    """Record that each node ended at its time; one that has ended already stays as it is."""
    for i in range(len(nodes)):
        if ledger.status[nodes[i]] != DONE:
            finish_node(ledger, nodes[i], at[i])


@compiled
def fire_due(ledger: Ledger, now: float) -> Floats:
    """Carry out every timer that is due at `now`; how late each was, in seconds."""
    late = np.empty(ledger.count[TIMERS] + 64)
    n = 0
    while next_timer(ledger) <= now:
        if n == len(late):
            late = np.concatenate((late, np.empty(n)))
        late[n] = now - fire_timer(ledger, np.inf)
        n += 1
    return late[:n]


@compiled
def take_fresh(ledger: Ledger) -> Ints:
    """The flows released since the last call, in order of release; they join the active list.

    Those of one instant go by number: the order in which their predecessors were found to end is no
    property of the model.
    """
    n = ledger.count[FRESH]
    fresh = ledger.fresh[:n].copy()
    first = 0
    for i in range(1, n + 1):
        if i == n or ledger.start[fresh[i]] != ledger.start[fresh[first]]:
            fresh[first:i] = np.sort(fresh[first:i])
            first = i
    a = ledger.count[ACTIVE_LIST]
    ledger.active[a : a + n] = fresh
    ledger.count[ACTIVE_LIST] = a + n
    ledger.count[FRESH] = 0
    return fresh


@compiled
def sweep(ledger: Ledger) -> Ints:
    """The active flows in order of release, after dropping the finished ones from the list."""
    kept = 0
    for i in range(ledger.count[ACTIVE_LIST]):
        f = ledger.active[i]
        if ledger.status[f] == ACTIVE:
            ledger.active[kept] = f
            kept += 1
    ledger.count[ACTIVE_LIST] = kept
    return ledger.active[:kept]


@compiled
def iterations_done(ledger: Ledger, ptr: Ints, jobs: Ints) -> Ints:
    """How many of the iterations of each job have ended; those of job j are ptr[j]:ptr[j+1] of all."""
    done = np.zeros(len(jobs), np.int64)
    for i in range(len(jobs)):
        for iteration in range(ptr[jobs[i]], ptr[jobs[i] + 1]):
            done[i] += ledger.iteration_left[iteration] == 0
    return done
