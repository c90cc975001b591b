"""Data-parallel iterations: compute and exchange of one job as a dependency graph, for all kinds that train.

The traffic this project is about. A layer's gradient leaves while earlier layers still compute, and its new
parameters are needed only when the next forward pass reaches the layer: what a policy can gain is in there.

Per iteration and worker: forward through the tensors in order, each after the new parameters of its bucket
have come (from the second iteration on); then backward in reverse order, twice the arithmetic of forward;
when the last gradient of a bucket is ready, the bucket is exchanged (see `exchange` and `collectives`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from pydantic import Field, model_validator

from netsched.model import Floats, Ints, TaskKind
from netsched.shape import SERVERS, Profile, Reshape, Shape, Slicing, Sync, check_shape
from netsched.units import Size
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.collectives import PIECES, Exchange, exchange_of
from netsched.workloads.deferred import add_deferred_gathers, add_reductions
from netsched.workloads.device import BACKWARD_COST, Device, forward_seconds
from netsched.workloads.exchange import NO_BURST, Bucket, Step, buckets_of, fused, parts, push_pull, shard
from netsched.workloads.kind import Count, FabricView, HostNames, host_ordinals, slowest_port
from netsched.workloads.models import tensors_of
from netsched.workloads.sharded import Sharding, add_gathers
from netsched.workloads.startup import Startup, StartupParams
from netsched.workloads.tensors import Tensor

FUSE: Final = 25 * 2.0**20
"""Default bucket without servers, in bytes: PyTorch's `bucket_cap_mb` (Li et al., VLDB 2020)."""


class ExchangeParams(StartupParams):
    """How the workers of a job exchange, and on what they compute.

    Tensors larger than `slice_above` (default: `slice`, else none) are cut evenly over all servers, into
    pieces of at most `slice` (default: one each). `fuse`: bucket size; default one tensor per bucket with
    servers, 25 MiB without. `group`: workers of a node, for hierarchical-allreduce: those that follow each
    other in the list. `pieces`: of tree-allreduce, in which each tree's half travels. `prefetch`: of fsdp,
    units (buckets) gathered before the computation comes to them. `sequence`: tokens per sample, of
    transformers only.
    """

    servers: HostNames | None = None
    sync: Sync = "parameter-server"
    device: Device
    sequence: Count | None = None
    bytes_per_parameter: Annotated[int, Field(strict=True, ge=1, le=16)] = 4
    slice_above: Size | None = None
    slice: Annotated[Size, Field(gt=0)] | None = None
    fuse: Size | None = None
    group: Count | None = None
    pieces: Count | None = None
    prefetch: Annotated[int, Field(strict=True, ge=0, le=1000)] = 1

    @model_validator(mode="after")
    def _sync_has_its_keys(self) -> ExchangeParams:
        if self.alone and self.servers is not None:
            raise ValueError(f"sync: {self.sync} has no servers: leave out servers, or use parameter-server")
        for key, value in (("slice_above", self.slice_above), ("slice", self.slice)):
            if self.alone and value is not None:
                raise ValueError(f"{key} is for parameter servers: leave it out with {self.sync}")
        for key, value, sync in (
            ("group", self.group, "hierarchical-allreduce"),
            ("pieces", self.pieces, "tree-allreduce"),
            ("prefetch", self.prefetch, "fsdp"),
        ):
            if key in self.model_fields_set and value is not None and self.sync != sync:
                raise ValueError(f"{key} is for {sync}: leave it out with {self.sync}")
        if self.sync == "hierarchical-allreduce" and self.group is None:
            raise ValueError("group is missing: say how many workers a node has, such as group: 4")
        if not self.alone and self.servers is None:
            raise ValueError("servers is missing: list their hosts, or write sync: ring-allreduce")
        return self

    @property
    def alone(self) -> bool:
        """Do the workers exchange without servers?"""
        return self.sync != "parameter-server"

    def slicing(self) -> Slicing:
        """Which tensors are cut, and how small."""
        largest = math.inf if self.slice is None else self.slice
        return Slicing(largest if self.slice_above is None else self.slice_above, largest)


@dataclass(frozen=True)
class Program:
    """What every iteration of a job has in common.

    `seconds`: of forward, per tensor. `exchange`: None for a sharded job. `buckets`: what is exchanged, in
    backward order; bucket k waits for the gradient of tensor `held[k]`. `nodes`: flows and tasks of one
    iteration.
    """

    workers: Ints
    tensors: tuple[Tensor, ...]
    seconds: Floats
    buckets: tuple[Bucket, ...]
    held: Ints
    exchange: Exchange | None
    sharding: Sharding
    shape: Shape
    nodes: int

    def startup(self, params: StartupParams) -> Startup:
        """What its messages cost, whichever pieces are messages."""
        return params.startup(in_steps=self.shape.step < math.inf)


def program_of(
    params: ExchangeParams,
    fabric: FabricView,
    model: str,
    batch: int,
    workers: Ints,
    reshape: Reshape | None = None,
) -> Program:
    """The program of `model` on host ordinals `workers`, with `batch` samples per worker and iteration.

    `reshape` has the last word on how its tensors become messages.
    """
    tensors = tensors_of(model, params.sequence)
    seconds = forward_seconds(tensors, batch, params.device)
    sizes = np.array([float(t.parameters) for t in tensors]) * params.bytes_per_parameter
    limit = params.fuse if params.fuse is not None else FUSE if params.alone else 0.0
    shape = Shape(fused(sizes, limit), params.slicing(), sync=params.sync)
    if reshape is not None:
        servers = host_ordinals(fabric, params.servers or [], "servers")
        rate = slowest_port(fabric, np.concatenate([workers, servers]))
        profile = Profile(
            model, sizes, seconds, BACKWARD_COST * seconds, len(workers), len(servers), rate, params.theta
        )
        before, shape = shape, reshape(profile, shape)
        check_shape(profile, before, shape)
    whole = buckets_of(tensors, shape.first)
    buckets = _parts(whole, shape, params.bytes_per_parameter)
    held = shape.burst[::-1] if len(shape.burst) else np.array([bucket.first for bucket in buckets])
    sharding = Sharding(whole[::-1], params.bytes_per_parameter, params.prefetch)
    exchange, exchanged = _exchange(params, fabric, buckets, sharding, shape, len(workers))
    nodes = exchanged + 2 * len(tensors) * len(workers)
    return Program(workers, tensors, seconds, buckets, held, exchange, sharding, shape, nodes)


def _parts(whole: tuple[Bucket, ...], shape: Shape, width: int) -> tuple[Bucket, ...]:
    """What is exchanged by itself, in backward order."""
    if shape.sync == SERVERS:
        return whole
    return tuple(
        part
        for bucket in whole
        for part in parts(bucket, shape.slicing.pieces(float(bucket.parameters * width), 0))
    )


def add_iterations(
    builder: WorkloadBuilder, program: Program, job: int, stages: Sequence[int], after: Ints | None = None
) -> Ints:
    """Add an iteration of `job` for each of `stages`, whose coflows go there.

    The first forward pass waits for all nodes of `after` (None: for the job's arrival). Returns the nodes
    with which the last iteration ends: its computations and, per worker, the arrival of its new parameters.
    """
    previous: Ints | None = None if after is None else after[:, None]
    arrivals: dict[Bucket, Ints] = {}
    before: Step | None = None
    deferred = program.shape.gather == "forward"
    for iteration, stage in enumerate(stages):
        step = Step(job, stage, iteration, len(program.tensors), program.workers)
        chain = _compute(builder, program, step)
        if previous is not None:
            builder.depend_each(chain[0], previous)
        if program.exchange is None:
            opened = after if iteration == 0 else None
            arrivals = add_gathers(builder, program.sharding, step, chain, arrivals, opened)
        elif deferred:
            if before is not None:
                add_deferred_gathers(builder, program.sharding.width, before, arrivals, chain)
            arrivals = add_reductions(builder, program.sharding.width, step, program.buckets, chain)
        else:
            # A worker computes one thing at a time, so only the first tensor of a bucket has to wait for it.
            for bucket, waited in arrivals.items():
                builder.depend_each(chain[bucket.first][:, None], waited)
            arrivals = _exchanges(builder, program, program.exchange, step, chain)
        previous, before = chain[-1], step
    assert previous is not None and before is not None  # noqa: S101 # a job has at least one iteration
    if deferred:
        arrivals = add_deferred_gathers(builder, program.sharding.width, before, arrivals, None)
    return np.concatenate([previous.ravel(), *(nodes.ravel() for nodes in arrivals.values())])


def _exchanges(
    builder: WorkloadBuilder, program: Program, exchange: Exchange, step: Step, chain: Ints
) -> dict[Bucket, Ints]:
    """Each bucket's exchange in this iteration, one after the other where the shape is serial."""
    arrivals: dict[Bucket, Ints] = {}
    last = np.empty((len(step.workers), 0), np.int64)
    for bucket, held in zip(program.buckets, program.held.tolist(), strict=True):
        ready = np.concatenate([chain[-1 - held][:, None], last], axis=1)
        arrivals[bucket] = exchange(builder, step, bucket, ready)
        if program.shape.serial:
            last = arrivals[bucket]
    return arrivals


def _exchange(
    params: ExchangeParams,
    fabric: FabricView,
    buckets: tuple[Bucket, ...],
    sharding: Sharding,
    shape: Shape,
    n: int,
) -> tuple[Exchange | None, int]:
    """The exchange of this job (None: sharded), and the number of nodes that it adds to one iteration."""
    width = params.bytes_per_parameter
    if shape.sync == "fsdp":
        return None, sharding.flows(n)
    if shape.sync == SERVERS:
        servers = host_ordinals(fabric, params.servers or [], "servers")
        placed = shard(buckets, servers, width, shape.slicing, shape.step)
        coming = zip(shape.burst[::-1].tolist(), shape.lull[::-1].tolist(), strict=True)
        burst = dict(zip(buckets, coming, strict=True)) if len(shape.burst) else {}
        return (
            lambda builder, step, bucket, ready: push_pull(
                builder, step, bucket, placed[bucket], ready, *burst.get(bucket, NO_BURST)
            ),
            sum(len(shards.server) for shards in placed.values()) * (2 * n + 1),
        )
    exchange, flows = exchange_of(shape.sync, n, width, params.group or 0, params.pieces or PIECES)
    return exchange, len(buckets) * flows


def _compute(builder: WorkloadBuilder, program: Program, step: Step) -> Ints:
    """Add forward and backward of one iteration: (2 * tensors, workers) nodes in the order of computing."""
    rows: list[Ints] = []
    last = len(program.tensors) - 1
    for place in range(2 * len(program.tensors)):
        kind = TaskKind.FORWARD if place <= last else TaskKind.BACKWARD
        position = place if place <= last else 2 * last + 1 - place
        seconds = float(program.seconds[position]) * (1.0 if place <= last else BACKWARD_COST)
        label = f"{kind.name.lower()} {program.tensors[position].name}"
        rows.append(builder.add_tasks(step.job, kind, step.workers, seconds, step.iteration, label=label))
    chain = np.stack(rows)
    builder.depend_each(chain[1:], chain[:-1])
    return chain
