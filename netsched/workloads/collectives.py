"""All-reduce without servers: a ring, its two halves, two trees, and rings in and across nodes.

Each is a rule of who sends which part of a bucket to whom, after what. They move nearly the same bytes and
differ in rounds, in the links that they load and in what can overlap, which is what a scheduler meets.

Each takes, per bucket, the nodes after which every worker's gradient is ready ((N,) or (N, k) handles) and
gives those after which every worker has the sum ((N, k)), as `exchange.push_pull` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from netsched.errors import ScenarioError
from netsched.model import Floats, Ints
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.exchange import Bucket, Step, even

Exchange = Callable[[WorkloadBuilder, Step, Bucket, Ints], Ints]

Algorithm = Literal["ring-allreduce", "tree-allreduce", "hierarchical-allreduce", "reduce-scatter-all-gather"]

PIECES: Final = 8
"""Pieces in which each tree passes its half on, so that all its levels are busy at once."""


@dataclass(frozen=True)
class Wire:
    """Where the flows of one operation belong: their coflow, and what they are needed for."""

    coflow: int
    need: int
    span: int


def wire(builder: WorkloadBuilder, step: Step, bucket: Bucket, what: str) -> Wire:
    """A new coflow of the bucket, called `what` and the bucket's label."""
    coflow = builder.add_coflow(step.job, step.stage, f"{what} {bucket.label}", step.iteration)
    return Wire(coflow, bucket.first, step.span)


def rounds(builder: WorkloadBuilder, to: Wire, hosts: Ints, sizes: Floats, ready: Ints) -> tuple[Ints, Ints]:
    """Rounds of neighbour flows round a ring: in round r host w sends `sizes[r, w]` bytes to host w + 1.

    A host's first send waits for its row of `ready`, each later one for its own send and its arrival of the
    round before, so its rounds are in order and what it sends holds what it has got. Returns the last
    arrival and the last send of each host, (N,) each.
    """
    turns, n = sizes.shape
    sent = builder.add_flows(
        to.coflow,
        np.tile(hosts, turns),
        np.tile(np.roll(hosts, -1), turns),
        sizes.ravel(),
        need=to.need,
        need_span=to.span,
    ).reshape(turns, n)
    came: Ints = np.roll(sent, 1, axis=1)
    builder.depend_each(sent[0][:, None], ready.reshape(n, -1))
    builder.depend_each(sent[1:], sent[:-1])
    builder.depend_each(sent[1:], came[:-1])
    return came[-1], sent[-1]


def reduce_scatter(builder: WorkloadBuilder, to: Wire, hosts: Ints, chunks: Floats, ready: Ints) -> Ints:
    """N-1 rounds after which host w has the sum of chunk w + 1 (mod N). `chunks`: (N,) bytes.

    Each host sends (N-1)/N of the bytes. Returns (N, 2): each host's last arrival and last send.
    """
    n = len(hosts)
    turns = np.arange(n - 1)[:, None]
    return np.stack(rounds(builder, to, hosts, chunks[(np.arange(n) - turns) % n], ready), axis=1)


def all_gather(builder: WorkloadBuilder, to: Wire, hosts: Ints, chunks: Floats, ready: Ints) -> Ints:
    """N-1 rounds in which host w, which has chunk w + 1 (mod N), comes to have all. As `reduce_scatter`."""
    n = len(hosts)
    turns = np.arange(n - 1)[:, None]
    return np.stack(rounds(builder, to, hosts, chunks[(np.arange(n) + 1 - turns) % n], ready), axis=1)


def chunks_of(parameters: int, pieces: int, width: int) -> Floats:
    """Bytes of each of `pieces` even parts of `parameters` of `width` bytes."""
    return even(parameters, pieces).astype(np.float64) * width


def ring_allreduce(builder: WorkloadBuilder, step: Step, bucket: Bucket, chunks: Floats, ready: Ints) -> Ints:
    """One coflow of 2(N-1) rounds of N neighbour flows: reduce-scatter, then all-gather.

    Patarasu and Yuan, "Bandwidth Optimal All-reduce Algorithms" (JPDC 2009). In round r worker w sends chunk
    (w - r) mod N to worker w + 1. `chunks`: (N,) bytes. Returns (N, 1): the flows of the last round, by
    receiver, each of which completes the bucket there.
    """
    n = len(step.workers)
    turns = np.arange(2 * (n - 1))[:, None]
    to = wire(builder, step, bucket, "all-reduce")
    came, _ = rounds(builder, to, step.workers, chunks[(np.arange(n) - turns) % n], ready)
    return came[:, None]


def two_phase(builder: WorkloadBuilder, step: Step, bucket: Bucket, chunks: Floats, ready: Ints) -> Ints:
    """The ring's two halves as a coflow each, so that a policy can let other traffic in between.

    The split of DeAR (Zhang et al., ICDCS 2023) and of ZeRO's stages 1 and 2 (Rajbhandari et al., SC 2020).
    Returns (N, 1).
    """
    scatter = wire(builder, step, bucket, "reduce-scatter")
    ready = reduce_scatter(builder, scatter, step.workers, chunks, ready)
    gather = wire(builder, step, bucket, "all-gather")
    return all_gather(builder, gather, step.workers, chunks, ready)[:, :1]


def hierarchical(
    builder: WorkloadBuilder, step: Step, bucket: Bucket, group: int, width: int, ready: Ints
) -> Ints:
    """Reduce-scatter in each node, all-reduce across nodes of what each place holds, all-gather in each node.

    One coflow. A node is `group` workers that follow each other in the list; worker i of every node is on the
    ring of the i-th places. With M nodes each worker sends 2(group-1)/group of the bytes in its node and
    2(M-1)/M of bytes/group across. The hierarchy of Jia et al., "Highly Scalable Deep Learning Training
    System" (2018), with the reduction in a node scattered over its workers. Returns (N, 1).
    """
    nodes = step.workers.reshape(-1, group)
    to = wire(builder, step, bucket, "all-reduce")
    shares = even(bucket.parameters, group)
    inside = shares.astype(np.float64) * width
    ready = ready.reshape(*nodes.shape, -1)
    held = np.stack(
        [reduce_scatter(builder, to, each, inside, ready[m]) for m, each in enumerate(nodes)]
    )  # (nodes, group, 2)
    summed = np.empty_like(held)
    n = len(nodes)
    turns = np.arange(2 * (n - 1))[:, None]
    for place in range(group):
        parts = chunks_of(int(shares[(place + 1) % group]), n, width)[(np.arange(n) - turns) % n]
        ends = rounds(builder, to, nodes[:, place], parts, held[:, place])
        summed[:, place] = np.stack(ends, axis=1)
    last = [all_gather(builder, to, each, inside, summed[m])[:, :1] for m, each in enumerate(nodes)]
    return np.concatenate(last)


def all_to_all(builder: WorkloadBuilder, to: Wire, group: Ints, size: float, ready: Ints) -> Ints:
    """Every host sends 1/N of its `size` bytes to each other, all at once. (N, 2 (N - 1)): in and out."""
    n = len(group)
    src, dst = np.divmod(np.arange(n * n), n)
    src, dst = src[src != dst], dst[src != dst]
    flows = builder.add_flows(to.coflow, group[src], group[dst], size / n, need=to.need, need_span=to.span)
    builder.depend_each(flows[:, None], ready[src])
    return np.stack([np.concatenate((flows[dst == h], flows[src == h])) for h in range(n)])


def parents(n: int) -> tuple[Ints, Ints]:
    """The parent of each of `n` ranks in two binary trees, -1 for the root. (N,) each.

    No rank is an inner node of both, but for rank 0 where N is odd: odd ranks are leaves of the first tree,
    and the second is the first one mirrored (N even) or shifted by one rank (N odd). Sanders, Speck, Träff,
    "Two-Tree Algorithms for Full Bandwidth Broadcast, Reduction and Scan" (Parallel Computing 2009), in the
    numbering that NCCL uses.
    """

    def above(rank: int) -> int:
        if rank == 0:
            return -1
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        return up if up < n else rank ^ bit

    first = np.array([above(rank) for rank in range(n)], dtype=np.int64)
    if n % 2 == 0:
        return first, np.where(first[::-1] < 0, -1, n - 1 - first[::-1])
    shifted = np.roll(first, 1)
    return first, np.where(shifted < 0, -1, (shifted + 1) % n)


def tree_allreduce(
    builder: WorkloadBuilder, step: Step, bucket: Bucket, pieces: int, width: int, ready: Ints
) -> Ints:
    """Two binary trees, each of which sums and spreads one half of the bucket, in `pieces`. One coflow.

    A rank sends a piece up once its children's have come, down once it has it from above; pieces go over an
    edge in order. All workers together send 2(N-1) times the bytes, as round a ring, none of them more than
    twice the bytes. Returns (N, 2): per tree, the flow that completes its half at each worker.
    """
    n = len(step.workers)
    to = wire(builder, step, bucket, "all-reduce")
    ready = ready.reshape(n, -1)
    ends = []
    for parent, half in zip(parents(n), even(bucket.parameters, 2).tolist(), strict=True):
        ends.append(_tree(builder, to, step.workers, parent, chunks_of(half, pieces, width), ready))
    return np.stack(ends, axis=1)


def _tree(builder: WorkloadBuilder, to: Wire, hosts: Ints, parent: Ints, sizes: Floats, ready: Ints) -> Ints:
    """One tree: up and down flows of all pieces; the last flow that each rank waits for. (N,)"""
    edges = np.flatnonzero(parent >= 0)
    top = parent[edges]
    up, down = (
        builder.add_flows(
            to.coflow,
            np.repeat(hosts[src], len(sizes)),
            np.repeat(hosts[dst], len(sizes)),
            np.tile(sizes, len(edges)),
            need=to.need,
            need_span=to.span,
        ).reshape(len(edges), len(sizes))
        for src, dst in ((edges, top), (top, edges))
    )
    row = np.full(len(parent), -1)
    row[edges] = np.arange(len(edges))
    builder.depend_each(up[:, :1], ready[edges])
    for flows in (up, down):
        builder.depend_each(flows[:, 1:], flows[:, :-1])
    inner = np.flatnonzero(row[top] >= 0)
    builder.depend_each(up[row[top[inner]]], up[inner])
    builder.depend_each(down[inner], down[row[top[inner]]])
    below = np.flatnonzero(row[top] < 0)
    # The root has the sum of a piece when its own gradient is there and all its children have sent theirs.
    for edge in below:
        builder.depend_each(down[edge], up[below])
        builder.depend_each(down[edge][:1, None], ready[top[edge]][None, :])
    ends: Ints = np.empty(len(parent), dtype=np.int64)
    ends[edges] = down[:, -1]
    ends[top[below]] = up[below, -1]
    return ends


def exchange_of(algorithm: Algorithm, n: int, width: int, group: int, pieces: int) -> tuple[Exchange, int]:
    """The exchange of `n` workers, and the flows that it adds for a bucket. `width`: bytes per parameter.

    ScenarioError if `group` does not suit hierarchical-allreduce.
    """
    if algorithm == "tree-allreduce":
        return (lambda b, s, k, r: tree_allreduce(b, s, k, pieces, width, r)), 4 * (n - 1) * pieces
    if algorithm == "hierarchical-allreduce":
        if n % group or not 1 < group < n:
            raise ScenarioError(
                f"group: {group} workers a node do not divide {n} workers into 2 or more nodes of 2 or more"
            )
        flows = 2 * (group - 1) * n + 2 * (n // group - 1) * n
        return (lambda b, s, k, r: hierarchical(b, s, k, group, width, r)), flows
    ring = ring_allreduce if algorithm == "ring-allreduce" else two_phase
    return (lambda b, s, k, r: ring(b, s, k, chunks_of(k.parameters, n, width), r)), 2 * (n - 1) * n
