"""Data-parallel training: compute and communication of every iteration as one dependency graph.

The traffic this project is about. A layer's gradient leaves while earlier layers still compute, and its new
parameters are needed only when the next forward pass reaches the layer: what a policy can gain is in there.

Per iteration and worker: forward through the tensors in order, each after the new parameters of its bucket
have come (from the second iteration on); then backward in reverse order, twice the arithmetic of forward;
when the last gradient of a bucket is ready, the bucket is exchanged (see `exchange`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from netsched.model import Floats, Ints, TaskKind
from netsched.units import Duration, Size
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.collectives import PIECES, Exchange, exchange_of
from netsched.workloads.exchange import Bucket, Slicing, Step, fuse, push_pull, shard
from netsched.workloads.kind import (
    Count,
    FabricView,
    HostNames,
    JobName,
    Kind,
    Params,
    Weight,
    host_ordinals,
)
from netsched.workloads.models import MODELS, tensors_of
from netsched.workloads.sharded import Sharding, add_gathers
from netsched.workloads.tensors import Tensor

FUSE: Final = 25 * 2.0**20
"""Default bucket without servers, in bytes: PyTorch's `bucket_cap_mb` (Li et al., VLDB 2020)."""

BACKWARD_COST: Final = 2.0
"""Backward takes the gradient by the input and by the weight: two products for one of forward."""

_PREFIX: Final = {"M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_FLOP_RATE: Final = re.compile(
    r"(\d{1,15}(?:\.\d{0,15})?(?:[eE][+-]?\d{1,2})?)\s*([MGTP])?(?:FLOP/s|FLOPS)", re.ASCII
)


def flop_rate(text: object) -> float:
    """FLOP/s of a speed such as "15.7TFLOP/s". ValueError if it is not one."""
    match = _FLOP_RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a computing speed: write a number and a unit, such as 15.7TFLOP/s")
    value = float(match[1]) * _PREFIX.get(match[2] or "", 1.0)
    if not 0 < value <= 1e24:
        raise ValueError(f"{text!r} must be more than 0 and at most 1e24 FLOP/s")
    return value


def model_name(value: object) -> object:
    """`value`, which must name a model. ValueError if it does not."""
    if not isinstance(value, str) or value not in MODELS:
        raise ValueError(f"{value!r} is not a model: use one of {', '.join(MODELS)}")
    return value


Sync = Literal[
    "parameter-server",
    "ring-allreduce",
    "tree-allreduce",
    "hierarchical-allreduce",
    "reduce-scatter-all-gather",
    "fsdp",
]


class Device(Params):
    """A worker's processor: its peak speed and the share of it that training reaches."""

    flops: Annotated[float, BeforeValidator(flop_rate)]
    efficiency: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]


class TrainingParams(Params):
    """One job.

    `batch`: samples per worker and iteration. Tensors larger than `slice_above` (default: `slice`, else
    none) are cut evenly over all servers, into pieces of at most `slice` (default: one each). `fuse`:
    bucket size; default one tensor per bucket with servers, 25 MiB without. `group`: workers of a node, for
    hierarchical-allreduce: those that follow each other in the list. `pieces`: of tree-allreduce, in which
    each tree's half travels. `prefetch`: of fsdp, units (buckets) gathered before the computation comes to
    them. `sequence`: tokens per sample, of transformers only. `start`: when the first forward pass begins.
    """

    model: Annotated[str, BeforeValidator(model_name)]
    workers: HostNames
    servers: HostNames | None = None
    sync: Sync = "parameter-server"
    iterations: Count
    batch: Count
    device: Device
    sequence: Count | None = None
    bytes_per_parameter: Annotated[int, Field(strict=True, ge=1, le=16)] = 4
    slice_above: Size | None = None
    slice: Annotated[Size, Field(gt=0)] | None = None
    fuse: Size | None = None
    group: Count | None = None
    pieces: Count | None = None
    prefetch: Annotated[int, Field(strict=True, ge=0, le=1000)] = 1
    start: Duration = 0.0
    weight: Weight = 1.0
    name: JobName | None = None

    @model_validator(mode="after")
    def _sync_has_its_keys(self) -> TrainingParams:
        alone = self.sync != "parameter-server"
        if alone and self.servers is not None:
            raise ValueError(f"sync: {self.sync} has no servers: leave out servers, or use parameter-server")
        for key, value in (("slice_above", self.slice_above), ("slice", self.slice)):
            if alone and value is not None:
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
        if not alone and self.servers is None:
            raise ValueError("servers is missing: list their hosts, or write sync: ring-allreduce")
        if alone and len(self.workers) < 2:
            raise ValueError("workers: one worker has nobody to exchange with: list 2 or more hosts")
        return self

    def slicing(self) -> Slicing:
        """Which tensors are cut, and how small."""
        largest = math.inf if self.slice is None else self.slice
        return Slicing(largest if self.slice_above is None else self.slice_above, largest)


def forward_seconds(tensors: tuple[Tensor, ...], batch: int, device: Device) -> Floats:
    """Seconds of each tensor's part of one worker's forward pass."""
    flops = np.array([tensor.flops for tensor in tensors])
    return batch * flops / (device.flops * device.efficiency)


@dataclass(frozen=True)
class _Job:
    """What every iteration of a job has in common. `seconds`: of forward, per tensor."""

    tensors: tuple[Tensor, ...]
    seconds: Floats


def build(
    params: TrainingParams, fabric: FabricView, builder: WorkloadBuilder, rng: np.random.Generator
) -> None:
    """Add one job with one stage per iteration."""
    tensors = tensors_of(params.model, params.sequence)
    workers = host_ordinals(fabric, params.workers, "workers")
    limit = params.fuse if params.fuse is not None else FUSE if params.servers is None else 0.0
    buckets = fuse(tensors, params.bytes_per_parameter, limit)
    sharding = Sharding(buckets[::-1], params.bytes_per_parameter, params.prefetch)
    exchange, exchanged = _exchange(params, fabric, buckets, sharding)
    builder.admit(params.iterations * (exchanged + 2 * len(tensors) * len(workers)))
    job = builder.add_job(
        params.name or params.model, params.start, weight=params.weight, iterations=params.iterations
    )
    common = _Job(tensors, forward_seconds(tensors, params.batch, params.device))
    previous: Ints | None = None
    arrivals: dict[Bucket, Ints] = {}
    for iteration in range(params.iterations):
        stage = builder.add_stage(job, f"iteration {iteration}", iteration)
        step = Step(job, stage, iteration, len(tensors), workers)
        chain = _compute(builder, common, step)
        if previous is not None:
            builder.depend_each(chain[0], previous)
        previous = chain[-1]
        if exchange is None:
            arrivals = add_gathers(builder, sharding, step, chain, arrivals)
            continue
        # A worker computes one thing at a time, so only the first tensor of a bucket has to wait for it.
        for bucket, waited in arrivals.items():
            builder.depend_each(chain[bucket.first][:, None], waited)
        arrivals = {b: exchange(builder, step, b, chain[-1 - b.first]) for b in buckets}


def _exchange(
    params: TrainingParams, fabric: FabricView, buckets: tuple[Bucket, ...], sharding: Sharding
) -> tuple[Exchange | None, int]:
    """The exchange of this job (None: sharded), and the number of nodes that it adds to one iteration."""
    n, width = len(params.workers), params.bytes_per_parameter
    if params.sync == "fsdp":
        return None, sharding.flows(n)
    if params.sync == "parameter-server":
        servers = host_ordinals(fabric, params.servers or [], "servers")
        placed = shard(buckets, servers, width, params.slicing())
        return (
            lambda builder, step, bucket, ready: push_pull(builder, step, bucket, placed[bucket], ready),
            sum(len(shards.server) for shards in placed.values()) * (2 * n + 1),
        )
    exchange, flows = exchange_of(params.sync, n, width, params.group or 0, params.pieces or PIECES)
    return exchange, len(buckets) * flows


def _compute(builder: WorkloadBuilder, common: _Job, step: Step) -> Ints:
    """Add forward and backward of one iteration: (2 * tensors, workers) nodes in the order of computing."""
    rows: list[Ints] = []
    last = len(common.tensors) - 1
    for place in range(2 * len(common.tensors)):
        kind = TaskKind.FORWARD if place <= last else TaskKind.BACKWARD
        position = place if place <= last else 2 * last + 1 - place
        seconds = float(common.seconds[position]) * (1.0 if place <= last else BACKWARD_COST)
        label = f"{kind.name.lower()} {common.tensors[position].name}"
        rows.append(builder.add_tasks(step.job, kind, step.workers, seconds, step.iteration, label=label))
    chain = np.stack(rows)
    builder.depend_each(chain[1:], chain[:-1])
    return chain


TRAINING = Kind(TrainingParams, build, "data-parallel training: parameter servers, all-reduce, or sharded")
