"""Refuses a workload that no engine could run: bad values, dangling references, cyclic dependencies.

Apart from the builder, because these are statements about a finished `Workload`, true for whoever made it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from netsched.errors import ScenarioError
from netsched.model import Bools, Dag, Ints, Workload


def node_label(workload: Workload, node: int) -> str:
    """What node `node` (a DAG index) is, for messages: its job and its coflow's or its own label."""
    n = workload.n_flows
    if node < n:
        coflow = int(workload.flows.coflow[node])
        job, what = int(workload.coflows.job[coflow]), f"coflow {workload.coflows.label[coflow]!r}"
    else:
        job, what = int(workload.tasks.job[node - n]), f"task {workload.tasks.label[node - n]!r}"
    return f"{what} of job {workload.jobs.name[job]!r}"


def _first(bad: Bools) -> int | None:
    return int(np.argmax(bad)) if bad.any() else None


def _outside(column: Ints, upper: int, lower: int = 0) -> int | None:
    """First row whose value is not in lower..upper-1, None if all are."""
    return _first((column < lower) | (column >= upper))


def check_rows(w: Workload, hosts: int) -> None:
    """Every value is sane, every reference hits, and nothing is without content (it would never end)."""
    flows, tasks, coflows = w.flows, w.tasks, w.coflows
    if w.n_flows + w.n_tasks == 0:
        raise ScenarioError("the workload is empty: it needs at least one flow or task")
    for name, column, upper in (
        ("stage: job", w.stages.job, len(w.jobs.name)),
        ("coflow: job", coflows.job, len(w.jobs.name)),
        ("coflow: stage", coflows.stage, len(w.stages.label)),
        ("task: job", tasks.job, len(w.jobs.name)),
        ("flow: coflow", flows.coflow, len(coflows.label)),
    ):
        if (row := _outside(column, upper)) is not None:
            raise ScenarioError(f"{name} {column[row]} was never added (there are {upper})")
    for end, column in (("source", flows.src), ("destination", flows.dst)):
        if (row := _outside(column, hosts)) is not None:
            where = node_label(w, row)
            raise ScenarioError(f"{where}: {end} host {column[row]} is not one of 0..{hosts - 1}")
    if (row := _outside(tasks.host, hosts, lower=-1)) is not None:
        where = node_label(w, w.n_flows + row)
        raise ScenarioError(f"{where}: host {tasks.host[row]} is not one of 0..{hosts - 1}")
    if (row := _first(~((flows.size >= 0) & (flows.size < math.inf)))) is not None:
        raise ScenarioError(
            f"{node_label(w, row)}: size {flows.size[row]} bytes must be a finite number, 0 or more"
        )
    if (row := _first(~((tasks.seconds >= 0) & (tasks.seconds < math.inf)))) is not None:
        where = node_label(w, w.n_flows + row)
        raise ScenarioError(f"{where}: {tasks.seconds[row]} s must be a finite time, 0 or more")
    if (row := _first((flows.need < 0) | (flows.need >= flows.need_span))) is not None:
        where = node_label(w, row)
        raise ScenarioError(f"{where}: need {flows.need[row]} is not one of 0..{flows.need_span[row] - 1}")
    _check_filled("coflow", coflows.label, flows.coflow, "flow")
    _check_filled("stage", w.stages.label, coflows.stage, "coflow")
    _check_filled("job", w.jobs.name, np.concatenate((tasks.job, coflows.job)), "flow or task")


def _check_filled(what: str, labels: Sequence[str], members: Ints, member: str) -> None:
    if (row := _first(np.bincount(members, minlength=len(labels)) == 0)) is not None:
        raise ScenarioError(f"{what} {labels[row]!r} has no {member}: leave it out or fill it")


def check_acyclic(w: Workload) -> None:
    """A node is on a cycle if and only if it depends on itself or shares a strong component with another."""
    dag, total = w.dag, w.n_flows + w.n_tasks
    before = np.repeat(np.arange(total), np.diff(dag.indptr))
    loop = dag.successors == before
    if loop.any():
        raise ScenarioError(
            f"cyclic dependencies: {node_label(w, int(before[np.argmax(loop)]))} waits for itself"
        )
    if not len(dag.successors):
        return
    graph = csr_array(
        (np.ones(len(dag.successors), np.int8), dag.successors, dag.indptr), shape=(total, total)
    )
    count, component = connected_components(graph, directed=True, connection="strong")
    if count == total:
        return
    start = int(np.argmax(np.bincount(component)[component] > 1))
    cycle = _walk(dag, component.astype(np.int64), start)
    shown = [node_label(w, node) for node in (*cycle[:4], *([] if len(cycle) <= 4 else [cycle[-1]]))]
    if len(cycle) > 4:
        shown.insert(4, f"({len(cycle) - 5} more)")
    raise ScenarioError(f"cyclic dependencies: {' -> '.join((*shown, shown[0]))}: remove one of them")


def _walk(dag: Dag, label: Ints, start: int) -> list[int]:
    """The nodes of one cycle inside the strong component of `start`, each before one that waits for it."""
    position: dict[int, int] = {}
    path: list[int] = []
    node = start
    while node not in position:
        position[node] = len(path)
        path.append(node)
        following = dag.successors[dag.indptr[node] : dag.indptr[node + 1]]
        # A member of a non-trivial strong component has a successor inside it, so the walk never ends early.
        node = int(following[label[following] == label[start]][0])
    return path[position[node] :]
