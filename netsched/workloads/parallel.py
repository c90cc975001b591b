"""Transformers cut over hosts: pipeline stages, tensor slices, replicas, experts, in any combination.

The traffic of large models: small transfers that computation waits for at every step (activations,
all-reduces of slices, all-to-alls of experts) beside large gradients that can wait, on the same links.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from netsched.errors import ScenarioError
from netsched.model import Ints
from netsched.shape import Mixture, Profile, Reshape, Shape, check_mixture
from netsched.units import Duration
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.collectives import PIECES, Algorithm, Exchange, exchange_of
from netsched.workloads.device import BACKWARD_COST, Device, ModelName
from netsched.workloads.exchange import Step, even
from netsched.workloads.grid import Collective, Compute, Grid, Item, Part, add_iteration
from netsched.workloads.kind import (
    Count,
    FabricView,
    HostNames,
    JobName,
    Kind,
    Weight,
    host_ordinals,
    slowest_port,
)
from netsched.workloads.mixture import Experts
from netsched.workloads.models import blocks_of
from netsched.workloads.schedules import ORDERS, Schedule
from netsched.workloads.startup import StartupParams
from netsched.workloads.tensors import Tensor
from netsched.workloads.transformers import Blocks, Layer

Width = Annotated[int, Field(strict=True, ge=1, le=16)]


class ParallelParams(StartupParams):
    """One job on `pipeline` x `data` x `tensor` hosts: the slices of a tensor next to each other in the list,
    then the replicas, then the stages (Megatron-LM's order of ranks).

    `batch`: samples per micro-batch and replica; `microbatches` of them make an iteration. `chunks`: parts
    of the model per stage, for interleaved. `sync`: how the replicas' gradients become one; with `group`
    and `pieces` as in training. The experts of a mixture are spread over the replicas. Parameters and
    activations have 2 bytes.
    """

    model: ModelName
    hosts: HostNames
    pipeline: Count = 1
    tensor: Count = 1
    data: Count = 1
    schedule: Schedule = "1f1b"
    chunks: Count | None = None
    microbatches: Count = 1
    batch: Count
    iterations: Count
    device: Device
    sequence: Count | None = None
    bytes_per_parameter: Width = 2
    bytes_per_activation: Width = 2
    sync: Algorithm = "ring-allreduce"
    group: Count | None = None
    pieces: Count | None = None
    start: Duration = 0.0
    weight: Weight = 1.0
    name: JobName | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> ParallelParams:
        p, t, d = self.pipeline, self.tensor, self.data
        if len(self.hosts) != p * t * d:
            raise ValueError(
                f"hosts: {len(self.hosts)} hosts are not pipeline {p} x data {d} x tensor {t} = {p * t * d}"
            )
        if len(self.hosts) < 2:
            raise ValueError("hosts: one host has nobody to send to: use pipeline, data or tensor")
        if (self.schedule == "interleaved") != ((self.chunks or 1) > 1):
            raise ValueError("chunks: interleaved needs 2 or more, other schedules have none: leave it out")
        if self.schedule == "interleaved" and (p < 2 or self.microbatches % p):
            raise ValueError(
                f"microbatches: interleaved needs a multiple of pipeline {p}, and 2 or more stages, "
                f"not {self.microbatches}"
            )
        if self.theta_series == "connection":
            raise ValueError(
                "theta_series: connection needs an order of all messages, which a pipeline does not have: "
                "use tensor or message"
            )
        for key, value, sync in (
            ("group", self.group, "hierarchical-allreduce"),
            ("pieces", self.pieces, "tree-allreduce"),
        ):
            if value is not None and self.sync != sync:
                raise ValueError(f"{key} is for {sync}: leave it out with {self.sync}")
        return self

    @property
    def n_parts(self) -> int:
        """Parts of the model: stages times chunks."""
        return self.pipeline * (self.chunks or 1)


def build(
    params: ParallelParams, fabric: FabricView, builder: WorkloadBuilder, rng: np.random.Generator
) -> None:
    """Add one job with one stage (of the workload's model) per iteration."""
    blocks, tokens = blocks_of(params.model, params.sequence)
    hosts = host_ordinals(fabric, params.hosts, "hosts")
    parts = parts_of(params, blocks, tokens)
    if builder.reshape is not None and _spread(params, blocks):
        parts = parts_of(
            params, blocks, tokens, _mixture(params, fabric, hosts, blocks, parts, builder.reshape)
        )
    orders = tuple(
        ORDERS[params.schedule](rank, params.pipeline, params.microbatches, params.chunks or 1)
        for rank in range(params.pipeline)
    )
    exchange, flows = _exchange(params)
    grid = Grid(
        hosts.reshape(params.pipeline, params.data, params.tensor),
        orders,
        parts,
        float(params.batch * tokens * blocks.width * params.bytes_per_activation),
        exchange,
    )
    builder.admit(params.iterations * _nodes(params, parts, flows))
    job = builder.add_job(
        params.name or params.model,
        params.start,
        params.weight,
        params.iterations,
        startup=params.startup(),
    )
    updated: dict[int, Ints] = {}
    free: dict[int, Ints] = {}
    for iteration in range(params.iterations):
        stage = builder.add_stage(job, f"iteration {iteration}", iteration)
        step = Step(job, stage, iteration, 1 + params.n_parts, hosts)
        updated, free = add_iteration(builder, grid, step, updated, free)


def _spread(params: ParallelParams, blocks: Blocks) -> bool:
    """Are there experts, and are they over several replicas?"""
    return blocks.experts > 0 and params.data > 1


def _mixture(
    params: ParallelParams,
    fabric: FabricView,
    hosts: Ints,
    blocks: Blocks,
    parts: Sequence[Part],
    reshape: Reshape,
) -> Mixture:
    """How tokens reach their experts as `reshape` has it, told of the job part by part."""
    size = np.array([float(part.parameters) for part in parts]) * params.bytes_per_parameter
    forward = np.array([sum(item.seconds for item in p.items if isinstance(item, Compute)) for p in parts])
    profile = Profile(
        model=params.model,
        size=size,
        forward=forward,
        backward=BACKWARD_COST * forward,
        workers=params.data,
        servers=0,
        rate=slowest_port(fabric, hosts),
        theta=params.theta,
        experts=blocks.experts,
    )
    before = Shape(np.arange(len(parts)), sync=params.sync)
    shape = reshape(profile, before)
    check_mixture(profile, before, shape)
    return shape.mixture


def _exchange(params: ParallelParams) -> tuple[Exchange | None, int]:
    """How the replicas of a part exchange, and its number of flows. None where there is one replica."""
    if params.data == 1:
        return None, 0
    width, group = params.bytes_per_parameter, params.group or 0
    return exchange_of(params.sync, params.data, width, group, params.pieces or PIECES)


def _nodes(params: ParallelParams, parts: Sequence[Part], exchanged: int) -> int:
    """Flows and tasks of one iteration, or a few more."""
    t, d = params.tensor, params.data
    per_pass = 0
    for part in parts:
        per_pass += t * d * 3
        for item in part.items:
            if isinstance(item, Compute):
                per_pass += t * d
            elif isinstance(item, Experts):
                per_pass += item.mixture.chunks * t * d * (5 + 2 * (d - 1))
            else:
                per_pass += d * 2 * (t - 1) * t if item.over == "slices" else t * d * (d - 1)
    return 2 * params.microbatches * per_pass + exchanged * t * params.n_parts


def parts_of(
    params: ParallelParams, blocks: Blocks, tokens: int, mixture: Mixture | None = None
) -> tuple[Part, ...]:
    """The model in parts of equally many layers, the larger first; embedding and head go with the ends.

    A slice has 1/tensor of the arithmetic and of the parameters (normalisations and biases too, which
    Megatron keeps whole on each slice: some thousandths of a layer). Experts are no replica's twins, so
    their gradients stay where they are, and each replica has an even share of a mixture's tokens.
    """
    if len(blocks.layers) < params.n_parts:
        raise ScenarioError(
            f"pipeline: {len(blocks.layers)} layers of {params.model} do not make {params.n_parts} parts"
        )
    if params.data > 1 and blocks.experts % params.data:
        raise ScenarioError(
            f"data: {blocks.experts} experts of {params.model} do not divide evenly by {params.data} replicas"
        )
    counts = even(len(blocks.layers), params.n_parts)
    parts = []
    for number, (count, end) in enumerate(zip(counts.tolist(), np.cumsum(counts).tolist(), strict=True)):
        items: list[Item] = []
        alike: list[Tensor] = []
        if number == 0:
            items.append(_compute(params, blocks.first))
            alike.extend(blocks.first)
        for layer in range(end - count, end):
            items.extend(_layer(params, blocks, layer, tokens, mixture or Mixture()))
            alike.extend((*blocks.layers[layer].attention, *blocks.layers[layer].mlp))
        if number == params.n_parts - 1:
            items.append(_compute(params, blocks.last))
            alike.extend(blocks.last)
        parameters = sum(tensor.parameters for tensor in alike)
        parts.append(Part(_merged(items), -(-parameters // params.tensor)))
    return tuple(parts)


def _layer(params: ParallelParams, blocks: Blocks, number: int, tokens: int, mixture: Mixture) -> list[Item]:
    """Attention and the second half, with what is sent in between.

    Shoeybi et al., "Megatron-LM" (2019), section 3: slices all-reduce the activations after each half, and
    their gradients before each half on the way back. Lepikhin et al., "GShard" (ICLR 2021): an
    all-to-all sends each token's activations to its experts, another one brings the results back.
    """
    layer: Layer = blocks.layers[number]
    size = float(params.batch * tokens * blocks.width * params.bytes_per_activation)
    sliced, spread = params.tensor > 1, _spread(params, blocks)
    halves: tuple[list[Item], list[Item]] = ([_compute(params, layer.attention)], [])
    routed = size * blocks.top
    if spread and mixture != Mixture():
        seconds = _compute(params, layer.experts).seconds
        halves[1].extend(
            (_compute(params, layer.mlp), Experts(seconds, routed, mixture, f"experts {number}"))
        )
    elif spread:
        halves[1].extend(
            (
                _compute(params, layer.mlp),
                Collective("replicas", routed, True, True, f"dispatch {number}"),
                _compute(params, layer.experts),
                Collective("replicas", routed, True, True, f"combine {number}"),
            )
        )
    else:
        halves[1].append(_compute(params, (*layer.mlp, *layer.experts)))
    items: list[Item] = []
    for half, name in zip(halves, ("attention", "mlp"), strict=True):
        if not sliced:
            items.extend(half)
            continue
        items.append(Collective("slices", size, False, True, f"{name} {number}"))
        items.extend(half)
        items.append(Collective("slices", size, True, False, f"{name} {number}"))
    return items


def _compute(params: ParallelParams, tensors: Sequence[Tensor]) -> Compute:
    flops = sum(tensor.flops for tensor in tensors) * params.batch / params.tensor
    return Compute(flops / (params.device.flops * params.device.efficiency))


def _merged(items: Sequence[Item]) -> tuple[Item, ...]:
    """Computations with nothing between them as one."""
    merged: list[Item] = []
    for item in items:
        if merged and isinstance(item, Compute) and isinstance(merged[-1], Compute):
            merged[-1] = Compute(merged[-1].seconds + item.seconds)
        else:
            merged.append(item)
    return tuple(merged)


PARALLEL = Kind(ParallelParams, build, "a transformer over pipeline stages, tensor slices, replicas, experts")
