"""Lower bounds that no scheduler can beat: how far a policy is from the best is a figure, not a feeling.

Every bound follows from two facts alone. A link carries at most `capacity` bytes in a second, and a node of
the DAG starts no sooner than the last node that it waits for ends. Hence each holds for both engines and for
every policy that leaves the flows on the paths given here (a link that all paths of a flow share, such as
a single-homed host's, bounds it whatever path it takes). A flow alone on its path needs at least
`own` = size / (smallest capacity on the path); a task needs its seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from netsched.jit import compiled
from netsched.metrics import node_jobs
from netsched.model import Bools, Floats, Ints, Workload
from netsched.port_lp import PORT_LP, port_lp
from netsched.shared_bounds import SHORTEST_FIRST, Shared, shared, shortest_first

Named = Mapping[str, Floats]


@dataclass(frozen=True)
class Bounds:
    """Seconds by name of the bound: one value per coflow, per stage, per job (0 for one without a flow).

    The `shared` ones hold what bounds of a sum over several rows need: see `sums`.
    """

    coflow: Named
    stage: Named
    job: Named
    shared_coflow: Shared
    shared_stage: Shared
    shared_job: Shared


class _Network(NamedTuple):
    """Flow f of `size` bytes crosses `links[indptr[f]:indptr[f+1]]`; `capacity` in bytes/s per link."""

    size: Floats
    indptr: Ints
    links: Ints
    capacity: Floats


class _Graph(NamedTuple):
    """The DAG in topological order: `order[position[n]]` is n. `own` and `head` in seconds, per node."""

    n_deps: Ints
    indptr: Ints
    successors: Ints
    order: Ints
    position: Ints
    own: Floats
    head: Floats


class _Search(NamedTuple):
    """Scratch space of the stage kernel, used again for each stage s without being cleared.

    reached  the stage from one of whose starting points the node was reached last
    opened   the stage that last took the node's successors as starting points
    chain    longest path from the node's start to the end of a flow of the stage
    found    positions of the reached nodes: a worklist
    n_found  its length, in the one element
    """

    reached: Ints
    opened: Ints
    chain: Floats
    found: Ints
    n_found: Ints


def best(named: Named) -> Floats:
    """The largest of several lower bounds is one too, row by row."""
    largest: Floats = np.maximum.reduce(list(named.values()))
    return largest


def mean_bound(
    named: Named, rows: Ints, divide: Ints | float = 1, whole: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Bounds of the mean over `rows`: {"mean": the best known, "names": {name: mean of that one}}.

    The best is that of the best one per row, or one of `whole`: bounds of the mean alone, with no value per
    row. With no row there is nothing to bound: None.
    """
    if not len(rows):
        return {"mean": None, "names": dict.fromkeys(named)}
    means = {name: float((seconds[rows] / divide).mean()) for name, seconds in named.items()}
    by_row = float((best(named)[rows] / divide).mean())
    return {"mean": max(by_row, *(whole or {}).values(), 0.0), "names": means | dict(whole or {})}


def sums(
    groups: Shared, named: Named, rows: Ints, start: Floats, weight: Floats | None = None
) -> dict[str, float]:
    """Lower bounds, by name, of the sum over `rows` of weight x (finish - start); those that can be had.

    `start`, in seconds of the run, per group, as it was: a bound is one for all schedules with these starts,
    which are the same for every policy (in an emulation but for the machine's own unpunctuality).
    """
    own = best(named)
    found = {
        SHORTEST_FIRST: shortest_first(groups, rows, start, own, weight),
        PORT_LP: port_lp(groups, rows, start, own, weight),
    }
    return {name: seconds for name, seconds in found.items() if not np.isnan(seconds)}


def lower_bounds(workload: Workload, capacity: Floats, indptr: Ints, links: Ints) -> Bounds:
    """All bounds of a workload. Capacities in bytes/s; flow f crosses `links[indptr[f]:indptr[f+1]]`."""
    own, order, head, tail = _walk(workload, capacity, indptr, links)
    size, nothing = workload.flows.size, np.zeros(workload.n_flows)
    coflow, stage = workload.flows.coflow, workload.coflows.stage[workload.flows.coflow]
    job, n_jobs = node_jobs(workload), len(workload.jobs.arrival)
    n_coflows, n_stages = len(workload.coflows.job), len(workload.stages.job)
    network = _Network(size, indptr, links, capacity)
    on_path = np.zeros(n_jobs)
    np.maximum.at(on_path, job, head + own)
    before, after, of_job = head[: workload.n_flows], tail[: workload.n_flows], job[: workload.n_flows]
    root = workload.dag.n_deps[: workload.n_flows] == 0
    soonest = workload.jobs.arrival[of_job] + before
    bounds = {
        "coflow": {"isolation": _isolation(coflow, n_coflows, network, nothing, nothing)},
        "stage": {
            "port": _isolation(stage, n_stages, network, nothing, nothing),
            "path": _stage_paths(workload, stage, own, order, head),
        },
        "job": {"port": _isolation(of_job, n_jobs, network, before, after), "path": on_path},
    }

    def turns(group: Ints, n: int, opens: Bools, ends: Floats) -> Shared:
        dated = (np.bincount(group, opens, n) > 0) & (np.bincount(group, before < 0, n) == 0)
        return shared(group, n, dated, bool(root.all()), *network, soonest, ends)

    of_coflows = turns(coflow, n_coflows, root, nothing)
    return Bounds(
        **bounds,
        shared_coflow=of_coflows,
        # Most often a stage is a coflow.
        shared_stage=of_coflows if np.array_equal(stage, coflow) else turns(stage, n_stages, root, nothing),
        shared_job=turns(of_job, n_jobs, np.ones(workload.n_flows, np.bool_), after),
    )


def _isolation(group: Ints, n: int, network: _Network, head: Floats, tail: Floats) -> Floats:
    """Per group of flows, the largest over the links of `min head + bytes on it / capacity + min tail`.

    With head = tail = 0 this is a coflow's bottleneck in isolation, Gamma of Varys (Chowdhury et al.,
    SIGCOMM 2014, section 4.1), and for a stage its port bound. Proof: between the group's first release and
    its last finish the link carries all those bytes, at no more than its capacity. (One flow alone, on the
    narrowest link of its path, is such a link: no flow's own time can exceed Gamma.)

    For a job, heads and tails sharpen it. `head` is the least time from the job's arrival to a flow's
    release and `tail` the least from its finish to the job's end. Proof: none of the bytes moves before the
    smallest head of the flows on that link has passed, and when the last of them has arrived, at least the
    smallest tail is still to come.
    """
    members = np.argsort(group, kind="stable")
    groups = np.searchsorted(group[members], np.arange(n + 1))
    worst: Floats = _port_kernel(groups, members, network, head, tail)
    return worst


def _walk(
    workload: Workload, capacity: Floats, indptr: Ints, links: Ints
) -> tuple[Floats, Ints, Floats, Floats]:
    """Per node of the DAG: own time; a topological order; least time to its start, and after its end.

    Both are longest paths through a DAG whose nodes take their own times: no node can start before all nodes
    on any path to it have ended, one after the other. `head` counts from the arrival of the node's job.
    """
    dag = workload.dag
    own = np.concatenate((_own_kernel(workload.flows.size, indptr, links, capacity), workload.tasks.seconds))
    arrival = workload.jobs.arrival[node_jobs(workload)]
    order, head, tail = walk(dag.n_deps, dag.indptr, dag.successors, own, arrival)
    return own, order, head, tail


def _stage_paths(workload: Workload, stage: Ints, own: Floats, order: Ints, head: Floats) -> Floats:
    """Per stage, the longest chain of nodes that must run between its start and its finish.

    The stage starts no later than any flow f of it is released, and ends no sooner than any flow g of it
    does. So the longest path from a point in time that is at or after its start, to the end of a g, is a
    lower bound of its completion time.
    Three such points are known without knowing the schedule:

    * release(f) itself, for any f: paths that begin with f.
    * the end of u, for any f that waits for u alone, because then release(f) = end(u): paths that
      begin with any node waiting for u. (An f that waits for two nodes is released by the later one; the end
      of either may lie before the stage's start, and a path from there would claim too much.)
    * the job's arrival, for any f that waits for nothing: all paths through the job's DAG.

    For a training step with parameter servers, u is the backward task of the last layer: the chain is the
    rest of the backward pass, then the first layer's push, its aggregation and its pull.
    """
    dag, n_flows, n = workload.dag, workload.n_flows, len(workload.stages.job)
    members = np.argsort(stage, kind="stable")
    groups = np.searchsorted(stage[members], np.arange(n + 1))
    parent = np.full(n_flows + workload.n_tasks, -1)
    parent[dag.successors] = np.repeat(np.arange(len(parent)), np.diff(dag.indptr))
    parent[dag.n_deps != 1] = -1
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    stage_of = np.concatenate((stage, np.full(workload.n_tasks, -1)))
    graph = _Graph(dag.n_deps, dag.indptr, dag.successors, order, position, own, head)
    longest: Floats = _stage_kernel(groups, members, stage_of, parent, graph)
    return longest


# ------------------------------------------------------------------ kernels: loops over columns, nothing else


@compiled
def _own_kernel(size: Floats, indptr: Ints, links: Ints, capacity: Floats) -> Floats:
    own = np.zeros(len(size))
    for f in range(len(size)):
        narrowest = np.inf
        for e in range(indptr[f], indptr[f + 1]):
            narrowest = min(narrowest, capacity[links[e]])
        own[f] = size[f] / narrowest  # an empty path is no network at all: size / inf = 0
    return own


@compiled
def _port_kernel(groups: Ints, members: Ints, network: _Network, head: Floats, tail: Floats) -> Floats:
    size, indptr, links, capacity = network
    worst = np.zeros(len(groups) - 1)
    load = np.zeros(len(capacity))
    first = np.zeros(len(capacity))
    last = np.zeros(len(capacity))
    used = np.empty(len(capacity), np.int64)
    for g in range(len(worst)):
        n = 0
        for m in range(groups[g], groups[g + 1]):
            f = members[m]
            if size[f] <= 0.0:  # nothing to carry: it must not shorten the heads and tails of the others
                continue
            for e in range(indptr[f], indptr[f + 1]):
                link = links[e]
                if load[link] == 0.0:
                    used[n] = link
                    n += 1
                    first[link] = head[f]
                    last[link] = tail[f]
                load[link] += size[f]
                first[link] = min(first[link], head[f])
                last[link] = min(last[link], tail[f])
        for i in range(n):
            link = used[i]
            worst[g] = max(worst[g], first[link] + load[link] / capacity[link] + last[link])
            load[link] = 0.0
    return worst


@compiled
def walk(
    n_deps: Ints, indptr: Ints, successors: Ints, own: Floats, arrival: Floats
) -> tuple[Ints, Floats, Floats]:
    """A topological order, and per node the longest paths to its start (head) and from its end (tail).

    `own` and `arrival` have a value per node: its own seconds, and the arrival of its job, from which heads
    count.
    """
    n = len(n_deps)
    order = np.empty(n, np.int64)
    waits = n_deps.copy()
    head = np.where(n_deps == 0, 0.0, -np.inf)
    tail = np.zeros(n)
    filled = 0
    for node in range(n):
        if waits[node] == 0:
            order[filled] = node
            filled += 1
    for i in range(n):
        node = order[i]
        for e in range(indptr[node], indptr[node + 1]):
            after = successors[e]
            # Heads count from each job's own arrival: between two jobs the arrivals' difference comes in.
            head[after] = max(head[after], head[node] + own[node] + (arrival[node] - arrival[after]))
            waits[after] -= 1
            if waits[after] == 0:
                order[filled] = after
                filled += 1
    for i in range(n - 1, -1, -1):
        node = order[i]
        for e in range(indptr[node], indptr[node + 1]):
            tail[node] = max(tail[node], own[successors[e]] + tail[successors[e]])
    return order, head, tail


@compiled
def _stage_kernel(groups: Ints, members: Ints, stage_of: Ints, parent: Ints, graph: _Graph) -> Floats:
    n = len(graph.order)
    longest = np.zeros(len(groups) - 1)
    search = _Search(
        np.full(n, -1), np.full(n, -1), np.empty(n), np.empty(n, np.int64), np.zeros(1, np.int64)
    )
    for s in range(len(longest)):
        own_flows = members[groups[s] : groups[s + 1]]
        _reach_from(own_flows, s, parent, graph, search)
        for at in np.sort(search.found[: search.n_found[0]])[::-1]:
            node = graph.order[at]
            beyond = 0.0 if stage_of[node] == s else -np.inf
            for e in range(graph.indptr[node], graph.indptr[node + 1]):
                if search.reached[graph.successors[e]] == s:
                    beyond = max(beyond, search.chain[graph.successors[e]])
            search.chain[node] = graph.own[node] + beyond
            longest[s] = max(longest[s], search.chain[node])
        free = False
        latest = 0.0
        for f in own_flows:
            free = free or graph.n_deps[f] == 0
            latest = max(latest, graph.head[f] + graph.own[f])
        if free:
            longest[s] = max(longest[s], latest)
    return longest


@compiled
def _reach_from(flows: Ints, s: int, parent: Ints, graph: _Graph, search: _Search) -> None:
    last = -1
    search.n_found[0] = 0
    for f in flows:
        last = max(last, graph.position[f])
        _note(f, s, graph, search)
    for f in flows:
        u = parent[f]
        if u >= 0 and search.opened[u] != s:
            search.opened[u] = s
            _note_successors(u, s, last, graph, search)
    done = 0
    while done < search.n_found[0]:
        _note_successors(graph.order[search.found[done]], s, last, graph, search)
        done += 1


@compiled
def _note_successors(node: int, s: int, last: int, graph: _Graph, search: _Search) -> None:
    for e in range(graph.indptr[node], graph.indptr[node + 1]):
        after = graph.successors[e]
        # Beyond the stage's last flow in topological order no path leads back to one of its flows.
        if graph.position[after] <= last:
            _note(after, s, graph, search)


@compiled
def _note(node: int, s: int, graph: _Graph, search: _Search) -> None:
    if search.reached[node] != s:
        search.reached[node] = s
        search.found[search.n_found[0]] = graph.position[node]
        search.n_found[0] += 1
