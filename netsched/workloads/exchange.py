"""What travels when workers make their gradients one, and how parameter servers do it.

An exchange takes, per bucket, the nodes after which each worker's gradient is ready, and gives the nodes
after which each worker has the bucket's new parameters; the compute side of a training job does not know
which one runs. The exchanges without servers are in `collectives`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from netsched.model import Floats, Ints, TaskKind
from netsched.shape import Slicing
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.tensors import Tensor

NO_BURST: Final = (-1, math.inf)
"""What a coflow of no burst has: see `model.Coflows`."""


@dataclass(frozen=True)
class Bucket:
    """Neighbouring tensors that travel as one: positions first..last of the forward order, both included.

    Its gradient is ready with that of `first`, the last one that the backward pass yields, and `first` is
    what the next forward pass needs it for: `need` of its flows.
    """

    first: int
    last: int
    label: str
    parameters: int


@dataclass(frozen=True)
class Step:
    """One iteration of a job: where its coflows belong, who works. `span`: the model's number of tensors."""

    job: int
    stage: int
    iteration: int
    span: int
    workers: Ints


@dataclass(frozen=True)
class Shards:
    """The pieces of one bucket: piece k has `size[k]` bytes and lives on host `server[k]`."""

    server: Ints
    size: Floats


def fused(sizes: Floats, limit: float) -> Ints:
    """Where the buckets begin if each takes tensors, last to first, until it holds `limit` bytes or more.

    The rule of PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020). With limit 0
    every tensor is a bucket of its own. `sizes`: bytes per tensor, forward order.
    """
    begins, held = [], 0.0
    for position in range(len(sizes) - 1, -1, -1):
        held += float(sizes[position])
        if position == 0 or held >= limit:
            begins.append(position)
            held = 0.0
    return np.array(begins[::-1], np.int64)


def buckets_of(tensors: Sequence[Tensor], first: Ints) -> tuple[Bucket, ...]:
    """The buckets that begin at the positions `first`, in backward order."""
    buckets: list[Bucket] = []
    for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(tensors)], strict=True):
        names = tensors[begin].name, tensors[end - 1].name
        label = names[0] if begin == end - 1 else f"{names[0]}..{names[1]}"
        held = sum(tensor.parameters for tensor in tensors[begin:end])
        buckets.append(Bucket(begin, end - 1, label, held))
    return tuple(buckets[::-1])


def parts(bucket: Bucket, count: int) -> tuple[Bucket, ...]:
    """The bucket in `count` even parts, each to be exchanged by itself."""
    if count == 1:
        return (bucket,)
    shares = [share for share in even(bucket.parameters, count).tolist() if share]
    return tuple(
        replace(bucket, label=f"{bucket.label} part {number}", parameters=share)
        for number, share in enumerate(shares)
    )


def even(parameters: int, pieces: int) -> Ints:
    """`parameters` in `pieces` whole parts that differ by 1 at most, the larger ones first."""
    return parameters // pieces + (np.arange(pieces) < parameters % pieces)


def shard(
    buckets: Sequence[Bucket],
    servers: Ints,
    bytes_per_parameter: int,
    slicing: Slicing,
    step: float = math.inf,
) -> dict[Bucket, Shards]:
    """Which server holds what: the pieces of a cut tensor go round the servers, a whole one to one server.

    The whole ones go, in forward order, to the server with the fewest bytes so far (the first of equals).
    Where pieces go in steps of so many bytes, the steps of a piece follow each other.
    """
    load = np.zeros(len(servers))
    placed: dict[Bucket, Shards] = {}
    for bucket in sorted(buckets, key=lambda b: b.first):
        n = slicing.pieces(bucket.parameters * bytes_per_parameter, len(servers))
        sizes = even(bucket.parameters, n)[even(bucket.parameters, n) > 0].astype(np.float64)
        sizes *= bytes_per_parameter
        where = np.array([np.argmin(load)]) if n == 1 else np.arange(len(sizes)) % len(servers)
        np.add.at(load, where, sizes)
        placed[bucket] = _in_steps(Shards(servers[where], sizes), bytes_per_parameter, step)
    return placed


def _in_steps(shards: Shards, width: int, step: float) -> Shards:
    counts = np.maximum(np.ceil(shards.size / max(step, width)), 1).astype(np.int64)
    sizes = [
        even(int(size) // width, count)
        for size, count in zip(shards.size.tolist(), counts.tolist(), strict=True)
    ]
    return Shards(np.repeat(shards.server, counts), np.concatenate(sizes).astype(np.float64) * width)


def push_pull(
    builder: WorkloadBuilder,
    step: Step,
    bucket: Bucket,
    shards: Shards,
    ready: Ints,
    burst: int = NO_BURST[0],
    lull: float = NO_BURST[1],
) -> Ints:
    """A push coflow, an aggregation (BARRIER) per piece on its server, a pull coflow.

    Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014), synchronous.
    `ready`: (workers, pieces) nodes that each push waits for, or (workers, 1). `burst` and `lull` are the
    push's, as in `model.Coflows`. Returns (workers, pieces): the pull flows that each worker waits for.
    """
    shape = len(step.workers), len(shards.server)
    worker, server = np.repeat(step.workers, shape[1]), np.tile(shards.server, shape[0])
    size = np.tile(shards.size, shape[0])
    push = builder.add_coflow(
        step.job, step.stage, f"push {bucket.label}", step.iteration, burst=burst, lull=lull
    )
    pull = builder.add_coflow(step.job, step.stage, f"pull {bucket.label}", step.iteration)
    pushes = builder.add_flows(push, worker, server, size, need=bucket.first, need_span=step.span).reshape(
        shape
    )
    builder.depend_each(pushes, ready)
    joined = builder.add_tasks(
        step.job, TaskKind.BARRIER, shards.server, 0.0, step.iteration, label=f"aggregate {bucket.label}"
    )
    builder.depend_each(joined[None, :], pushes)
    pulls = builder.add_flows(pull, server, worker, size, need=bucket.first, need_span=step.span).reshape(
        shape
    )
    builder.depend_each(pulls, joined[None, :])
    return pulls
