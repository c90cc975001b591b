"""An all-reduce in two halves that are apart: buckets are summed during one backward pass, spread in the next
forward pass.

What half of an exchange the computation waits for is decided here, by the graph: a gather that is under way
while layers before it compute costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netsched.model import Ints
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.collectives import all_gather, chunks_of, reduce_scatter, wire
from netsched.workloads.exchange import Bucket, Step


def add_reductions(
    builder: WorkloadBuilder, width: int, step: Step, buckets: Sequence[Bucket], chain: Ints
) -> dict[Bucket, Ints]:
    """Reduce-scatter each bucket when its gradients are ready and the one before it has ended on that worker.

    `chain`: (2 * tensors, workers) computations, forward first; `width`: bytes per parameter. Returns
    (workers, 2): last arrival and last send.
    """
    reduced: dict[Bucket, Ints] = {}
    last = np.empty((len(step.workers), 0), np.int64)
    for bucket in buckets:
        ready = np.concatenate([chain[-1 - bucket.first][:, None], last], axis=1)
        chunks = chunks_of(bucket.parameters, len(step.workers), width)
        to = wire(builder, step, bucket, "reduce-scatter")
        last = reduced[bucket] = reduce_scatter(builder, to, step.workers, chunks, ready)
    return reduced


def add_deferred_gathers(
    builder: WorkloadBuilder, width: int, step: Step, reduced: dict[Bucket, Ints], chain: Ints | None
) -> dict[Bucket, Ints]:
    """All-gather the buckets that `step` has reduced, under the forward pass of the next iteration's `chain`.

    Zhang et al., DeAR (ICDCS 2023, released code): when all reductions have ended on a worker it gathers the
    first bucket; when the forward pass comes to a bucket it waits for that one's gather and starts the next
    one's. `chain` None: no iteration follows, and one gather follows the other. Returns (workers, 2) nodes.
    """
    gathered: dict[Bucket, Ints] = {}
    waits = np.concatenate(list(reduced.values()), axis=1)
    for bucket in sorted(reduced, key=lambda each: (each.first, each.label)):
        chunks = chunks_of(bucket.parameters, len(step.workers), width)
        to = wire(builder, step, bucket, "all-gather")
        ends = gathered[bucket] = all_gather(builder, to, step.workers, chunks, waits)
        waits = ends
        if chain is not None:
            builder.depend_each(chain[bucket.first], ends[:, 0])
            if bucket.first:
                # The pass comes to this bucket when it has computed with the tensor before it.
                waits = np.concatenate([ends, chain[bucket.first - 1][:, None]], axis=1)
    return gathered
