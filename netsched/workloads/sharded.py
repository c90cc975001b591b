"""Fully sharded data parallelism: every worker keeps 1/N of the parameters and gathers them when it computes.

The third stage of ZeRO and PyTorch's FSDP: half as much traffic again as an all-reduce, and gathers stand
before the computation where a gradient's exchange only follows it, so they are what a scheduler must not
delay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netsched.model import Ints
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.collectives import Wire, all_gather, chunks_of, reduce_scatter
from netsched.workloads.exchange import Bucket, Step


@dataclass(frozen=True)
class Sharding:
    """`units`: in forward order, each gathered and freed as one, `prefetch` of them ahead of use."""

    units: tuple[Bucket, ...]
    width: int
    prefetch: int

    def flows(self, workers: int) -> int:
        """Flows of one iteration."""
        return 3 * len(self.units) * (workers - 1) * workers


def add_gathers(
    builder: WorkloadBuilder,
    sharding: Sharding,
    step: Step,
    chain: Ints,
    updated: dict[Bucket, Ints],
    opened: Ints | None = None,
) -> dict[Bucket, Ints]:
    """All transfers of one iteration whose compute nodes are `chain` (2 * tensors, workers), forward first.

    Rajbhandari et al., "ZeRO" (SC 2020), section 5.3, and Zhao et al., "PyTorch FSDP" (VLDB 2023), section
    3.3: each unit is all-gathered before its forward and again before its backward, and its gradient is
    reduce-scattered after that, 3(N-1)/N of the bytes per worker in all. Gathers follow each other in the
    order of computing, and one begins when the computation `prefetch` + 1 units before has ended (INFERRED:
    the rate limiter of FSDP allows two gathers in flight). `updated`: the nodes after which a worker's
    shard of a unit has its new values, none in the first iteration; returned for the next one. `opened`: what
    the first gather waits for, if not for the job's arrival.

    Flows are needed in the order forward, backward, next forward: `need` runs through three times the
    tensors.
    """
    units, tensors = sharding.units, step.span
    order = [(unit, unit.first, unit.last) for unit in units]
    order += [(u, 2 * tensors - 1 - u.last, 2 * tensors - 1 - u.first) for u in reversed(units)]
    previous: Ints | None = None
    for place, (unit, begin, _) in enumerate(order):
        way = "forward" if place < len(units) else "backward"
        to = _wire(builder, step, f"all-gather {way} {unit.label}", begin)
        waits = [] if previous is None else [previous]
        if place < len(units) and unit in updated:
            waits.append(updated[unit])
        if place == 0 and opened is not None:
            waits.append(np.tile(opened, (len(step.workers), 1)))
        if place > sharding.prefetch:
            waits.append(chain[order[place - 1 - sharding.prefetch][2]][:, None])
        if place >= len(units):
            # What the forward pass still computes with is not freed, so there is nothing to gather yet.
            waits.append(chain[unit.last][:, None])
        chunks = chunks_of(unit.parameters, len(step.workers), sharding.width)
        # With nothing to wait for a gather still starts with the iteration, so (N, 0) is a fair set of nodes.
        ready = np.concatenate(waits, axis=1) if waits else np.empty((len(step.workers), 0), np.int64)
        previous = all_gather(builder, to, step.workers, chunks, ready)
        builder.depend_each(chain[begin], previous[:, 0])
    return {unit: _scatter(builder, sharding, step, unit, chain) for unit in reversed(units)}


def _scatter(builder: WorkloadBuilder, sharding: Sharding, step: Step, unit: Bucket, chain: Ints) -> Ints:
    to = _wire(builder, step, f"reduce-scatter {unit.label}", 2 * step.span + unit.first)
    chunks = chunks_of(unit.parameters, len(step.workers), sharding.width)
    return reduce_scatter(builder, to, step.workers, chunks, chain[2 * step.span - 1 - unit.first])


def _wire(builder: WorkloadBuilder, step: Step, label: str, need: int) -> Wire:
    return Wire(builder.add_coflow(step.job, step.stage, label, step.iteration), need, 3 * step.span)
