"""One iteration of a model cut three ways, over a grid of pipeline stages, replicas and tensor slices.

The three kinds of parallelism meet in one graph because they wait for each other: an activation leaves when
the all-reduce of its tensor slices is over, a gradient when the last micro-batch has passed back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from netsched.model import Floats, Ints, TaskKind
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.collectives import Exchange, Wire, all_to_all, rounds
from netsched.workloads.device import BACKWARD_COST
from netsched.workloads.exchange import Bucket, Step
from netsched.workloads.mixture import Experts, add_experts
from netsched.workloads.schedules import Op


@dataclass(frozen=True)
class Compute:
    """Forward computation of one host on one micro-batch, in seconds; backward takes twice that."""

    seconds: float


@dataclass(frozen=True)
class Collective:
    """An operation that the computation waits for, in the passes that it is in.

    `over`: "slices" is an all-reduce of `size` bytes among the tensor slices of a replica, "replicas" an
    all-to-all in which each host has `size` bytes, an even part of them for each replica (itself included).
    """

    over: str
    size: float
    forward: bool
    backward: bool
    label: str


Item = Compute | Collective | Experts


@dataclass(frozen=True)
class Part:
    """What a pipeline holds between two cuts: its work in forward order, and how many parameters a host has
    of it that all replicas have alike.
    """

    items: tuple[Item, ...]
    parameters: int


@dataclass(frozen=True)
class Grid:
    """Where and in which order. `hosts`: (stages, replicas, slices) ordinals; `orders[rank]` of stage `rank`.

    Part number v of the model is chunk v // stages of stage v % stages. `boundary`: bytes of activations that
    a host hands to its counterpart in the next part, per micro-batch; as many of gradients come back.
    """

    hosts: Ints
    orders: tuple[tuple[Op, ...], ...]
    parts: tuple[Part, ...]
    boundary: float
    exchange: Exchange | None


@dataclass(frozen=True)
class _Pass:
    """The nodes of one pass: those that it begins with, (replicas, slices), and ends with, (..., k)."""

    begin: Ints
    end: Ints


Key = tuple[bool, int, int]
"""Direction (forward: True), micro-batch and part of a pass."""


def add_iteration(
    builder: WorkloadBuilder, grid: Grid, step: Step, updated: dict[int, Ints], before: dict[int, Ints]
) -> tuple[dict[int, Ints], dict[int, Ints]]:
    """Add one iteration; `step.workers` are all hosts, and flows that a computation waits for have need 0.

    `updated`: per part, the nodes after which its hosts have the last iteration's parameters; `before`: per
    stage, those after which they are free. Both are empty in the first iteration; returned for the next.
    """
    stages = len(grid.hosts)
    passes: dict[Key, _Pass] = {}
    due = dict(updated)
    free: dict[int, Ints] = {}
    for rank, order in enumerate(grid.orders):
        tail = before.get(rank)
        for op in order:
            part = op.chunk * stages + rank
            done = _pass(builder, grid, step, op, part, rank)
            if tail is not None:
                builder.depend_each(done.begin[..., None], tail)
            if op.forward and part in due:
                builder.depend_each(done.begin[..., None], due.pop(part))
            passes[op.forward, op.microbatch, part] = done
            tail = done.end
        assert tail is not None  # noqa: S101 # an order has at least one micro-batch's two passes
        free[rank] = tail
    for (forward, number, part), done in passes.items():
        following = passes.get((forward, number, part + 1 if forward else part - 1))
        if following is not None:
            _hand_over(builder, grid, step, (forward, number, part), done, following)
    return _reduce(builder, grid, step, passes), free


def _pass(builder: WorkloadBuilder, grid: Grid, step: Step, op: Op, part: int, rank: int) -> _Pass:
    """The computations and collectives of one pass, in a row on each host."""
    hosts = grid.hosts[rank]
    kind = TaskKind.FORWARD if op.forward else TaskKind.BACKWARD
    name = f"{kind.name.lower()} part {part} micro-batch {op.microbatch}"
    items = grid.parts[part].items if op.forward else grid.parts[part].items[::-1]
    used = [i for i in items if not isinstance(i, Collective) or (i.forward if op.forward else i.backward)]
    begin: Ints | None = None
    end = np.empty((*hosts.shape, 0), np.int64)
    if not used or not isinstance(used[0], Compute):
        # Something has to wait for what comes in, before the flows of the first collective do.
        used.insert(0, Compute(0.0))
    for item in used:
        if isinstance(item, Collective):
            end = _collective(builder, step, item, hosts, end, name)
            continue
        if isinstance(item, Experts):
            end = add_experts(builder, step, item, hosts, end, kind, name)
            continue
        seconds = item.seconds * (1.0 if op.forward else BACKWARD_COST)
        nodes = builder.add_tasks(step.job, kind, hosts.ravel(), seconds, step.iteration, label=name)
        nodes = nodes.reshape(hosts.shape)
        builder.depend_each(nodes[..., None], end)
        begin = nodes if begin is None else begin
        end = nodes[..., None]
    assert begin is not None  # noqa: S101 # the first item is a computation
    return _Pass(begin, end)


def _collective(
    builder: WorkloadBuilder, step: Step, item: Collective, hosts: Ints, ready: Ints, name: str
) -> Ints:
    """One collective in each group of `hosts` (replicas, slices). Returns the nodes that end it, (..., k)."""
    if item.over == "slices":
        what = f"all-reduce {item.label} {name}"
        rows = [
            _all_reduce(builder, _wire(builder, step, what), group, item, ready[r])
            for r, group in enumerate(hosts)
        ]
        return np.stack(rows)
    what = f"all-to-all {item.label} {name}"
    columns = [
        all_to_all(builder, _wire(builder, step, what), group, item.size, ready[:, s])
        for s, group in enumerate(hosts.T)
    ]
    return np.stack(columns, axis=1)


def _wire(builder: WorkloadBuilder, step: Step, label: str) -> Wire:
    return Wire(builder.add_coflow(step.job, step.stage, label, step.iteration), 0, step.span)


def _all_reduce(builder: WorkloadBuilder, to: Wire, group: Ints, item: Collective, ready: Ints) -> Ints:
    """A ring. (slices, 2): last arrival and last send, for the next operation's sends come after these."""
    n = len(group)
    sizes: Floats = np.full((2 * (n - 1), n), item.size / n)
    return np.stack(rounds(builder, to, group, sizes, ready), axis=1)


def _hand_over(
    builder: WorkloadBuilder, grid: Grid, step: Step, key: Key, done: _Pass, following: _Pass
) -> None:
    """Activations (or gradients) of a micro-batch from one part to the next (or the one before).

    A coflow per replica, for its slices go on together. Each slice sends all of the activations to its
    counterpart, without the scatter and gather of Megatron-LM (SC 2021, section 4.1).
    """
    forward, number, part = key
    other = part + 1 if forward else part - 1
    sources, sinks = (grid.hosts[each % len(grid.hosts)] for each in (part, other))
    what = "activations" if forward else "gradients"
    for replica, (src, dst) in enumerate(zip(sources, sinks, strict=True)):
        to = _wire(builder, step, f"{what} part {part} to {other} micro-batch {number}")
        flows = builder.add_flows(to.coflow, src, dst, grid.boundary, need=to.need, need_span=to.span)
        builder.depend_each(flows[:, None], done.end[replica])
        builder.depend_each(following.begin[replica], flows)


def _reduce(builder: WorkloadBuilder, grid: Grid, step: Step, passes: dict[Key, _Pass]) -> dict[int, Ints]:
    """The exchange of each part's gradients among the replicas, once its last micro-batch has passed."""
    if grid.exchange is None:
        return {}
    stages = len(grid.hosts)
    last: dict[int, _Pass] = {}
    for rank, order in enumerate(grid.orders):
        for op in order:
            if not op.forward:
                part = op.chunk * stages + rank
                last[part] = passes[False, op.microbatch, part]
    updated = {}
    for part, done in last.items():
        hosts = grid.hosts[part % stages]
        bucket = Bucket(1 + part, 1 + part, f"part {part}", grid.parts[part].parameters)
        ends = [
            grid.exchange(builder, replace(step, workers=hosts[:, s]), bucket, done.end[:, s])
            for s in range(hosts.shape[1])
        ]
        updated[part] = np.stack(ends, axis=1)
    return updated
