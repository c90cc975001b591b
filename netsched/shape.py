"""How a job's tensors become messages, and what a system that decides it knows of the job.

Systems at the sender cut tensors into pieces, merge them, or split a collective into its halves before the
job runs. They say so with one pure function beside their plan, `reshape(profile, shape) -> shape`, which is
applied when the workload is unrolled: every engine then carries the same messages. A policy without it
leaves the shape as the scenario says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Final, Literal

import numpy as np

from netsched.errors import ScenarioError
from netsched.model import Floats, Ints, Policy

Sync = Literal[
    "parameter-server",
    "ring-allreduce",
    "tree-allreduce",
    "hierarchical-allreduce",
    "reduce-scatter-all-gather",
    "fsdp",
]

SERVERS: Final = "parameter-server"
"""The `sync` of a job that has servers; all others exchange among the workers."""

RINGS: Final = ("ring-allreduce", "reduce-scatter-all-gather")
"""Exchanges that send round a ring: 2(N-1) rounds, 2(N-1)/N of the bytes per worker."""


@dataclass(frozen=True, eq=False)
class Profile:
    """What is known of a data-parallel job before it runs. Columns have one value per tensor, forward order.

    model     its model's name, for messages
    size      bytes of each tensor
    forward   seconds of its part of the forward pass of one worker; `backward` likewise
    workers   how many compute; `servers` how many hold parameters, 0 for none
    rate      bytes/s of the slowest port of the job's hosts
    theta     seconds that a message costs before its first byte
    experts   how many a layer of its mixture has; 0: it is no mixture, and exchanges data-parallel only
    """

    model: str
    size: Floats
    forward: Floats
    backward: Floats
    workers: int
    servers: int
    rate: float
    theta: float
    experts: int = 0

    @property
    def ready(self) -> Floats:
        """Seconds from the start of the backward pass to each tensor's gradient. One value per tensor."""
        return np.cumsum(self.backward[::-1])[::-1].astype(np.float64)


@dataclass(frozen=True)
class Slicing:
    """Buckets of more than `above` bytes are cut, evenly over all servers, in pieces of at most `largest`."""

    above: float = math.inf
    largest: float = math.inf

    def pieces(self, size: float, servers: int) -> int:
        """Pieces of a bucket of `size` bytes: 1, or a multiple of `servers` (0: there are none)."""
        if size <= self.above:
            return 1
        parts = max(servers, 1)
        return parts * max(1, math.ceil(size / (parts * self.largest)))


@dataclass(frozen=True)
class Mixture:
    """How tokens pass through a layer of experts.

    chunks   equal parts of the tokens, of which one is computed while another one is sent
    ratio    bytes before compression over bytes sent, 1 for none
    coder    bytes/s (before compression) at which a worker packs, and unpacks; inf for no time
    """

    chunks: int = 1
    ratio: float = 1.0
    coder: float = math.inf


@dataclass(frozen=True, eq=False)
class Shape:
    """How one job's tensors become messages.

    first    position of the first tensor of each bucket, in forward order, from 0 on: a bucket is sent as one
    slicing  which buckets are cut, and how small
    step     so many bytes of a piece at a time go on from a server when all workers have sent them, and all
             of a bucket from one host to another is one message with one start-up (with servers only; inf:
             pieces go on as a whole, and are messages)
    sync     how the workers make their gradients one, as `training` has it
    serial   one exchange at a time: a worker begins one when its last one has ended (not with servers)
    gather   "now": a bucket is gathered when it is reduced. "forward": all are reduced first; then the first
             one is gathered, and each next one while the forward pass computes with the one before it
             (reduce-scatter-all-gather only)
    burst    per bucket, the tensor whose gradient completes the burst that it comes with: no piece of it
             leaves before (with servers only). Buckets in forward order; empty: pieces leave as soon as they
             can
    lull     per bucket, seconds from then to the next burst, inf after the last one; as long as `burst`
    mixture  how tokens reach their experts (`parallel` with a mixture, which has nothing else to reshape)
    """

    first: Ints
    slicing: Slicing = field(default=Slicing())
    step: float = math.inf
    sync: Sync = SERVERS
    serial: bool = False
    gather: Literal["now", "forward"] = "now"
    burst: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    lull: Floats = field(default_factory=lambda: np.zeros(0))
    mixture: Mixture = field(default=Mixture())

    def sizes(self, profile: Profile) -> Floats:
        """Bytes of each bucket, in forward order."""
        return np.add.reduceat(profile.size, self.first)


Reshape = Callable[[Profile, Shape], Shape]


def reshape_of(policy: Policy) -> Reshape | None:
    """The policy's `reshape`, None if it leaves tensors as they are."""
    found: Reshape | None = getattr(policy, "reshape", None)
    return found


def check_shape(profile: Profile, before: Shape, shape: Shape) -> None:
    """ScenarioError if `shape`, made of `before`, is none that a workload could carry."""
    first, tensors = shape.first, len(profile.size)
    sharded, servers = shape.sync == "fsdp", shape.sync == SERVERS
    cut = shape.slicing != Slicing()
    for wrong, text in (
        (
            not len(first) or first[0] != 0 or first[-1] >= tensors or (np.diff(first) <= 0).any(),
            f"buckets begin at {first.tolist()}, must ascend from 0 to {tensors - 1} at most",
        ),
        (not shape.step > 0, f"steps of {shape.step} B, must be above 0"),
        (shape.step < math.inf and not servers, f"steps are for servers, not for sync {shape.sync}"),
        (shape.step < math.inf and len(shape.burst) > 0, "what comes in bursts cannot go in steps"),
        (not shape.slicing.largest > 0, f"pieces of {shape.slicing.largest} B, must be above 0"),
        (servers and not profile.servers, f"sync is {shape.sync}, but the job has no servers"),
        (sharded != (before.sync == "fsdp"), f"sync {before.sync} cannot become {shape.sync}"),
        (sharded and cut, "a sharded job's units cannot be cut"),
        (shape.serial and (servers or sharded), f"serial exchanges are not for sync {shape.sync}"),
        (
            shape.gather == "forward" and shape.sync != "reduce-scatter-all-gather",
            f"gather: forward is for reduce-scatter-all-gather, not for {shape.sync}",
        ),
        (len(shape.burst) > 0 and not servers, f"bursts are for servers, not for sync {shape.sync}"),
        (len(shape.lull) != len(shape.burst), f"{len(shape.lull)} lulls for {len(shape.burst)} buckets"),
        (not (shape.lull >= 0).all(), f"lulls of {shape.lull.tolist()} s, must be 0 or more"),
        (shape.mixture != before.mixture, "it has no mixture of experts"),
    ):
        if wrong:
            raise ScenarioError(f"a job of {profile.model} cannot be reshaped so: {text}")
    if len(shape.burst):
        _check_bursts(profile, shape)


def check_mixture(profile: Profile, before: Shape, shape: Shape) -> None:
    """ScenarioError if `shape`, made of `before`, asks for what a mixture of experts cannot carry."""
    mixture = shape.mixture
    others = [each.name for each in fields(Shape) if each.name != "mixture"]
    changed = [name for name in others if not np.array_equal(getattr(shape, name), getattr(before, name))]
    for wrong, text in (
        (changed, f"{', '.join(changed)}: only how tokens reach their experts can be changed"),
        (mixture.chunks < 1, f"chunks is {mixture.chunks}, must be 1 or more"),
        (not mixture.ratio >= 1, f"ratio is {mixture.ratio}, must be 1 or more"),
        (not mixture.coder > 0, f"coder is {mixture.coder} B/s, must be above 0"),
    ):
        if wrong:
            raise ScenarioError(f"a job of {profile.model} cannot be reshaped so: {text}")


def _check_bursts(profile: Profile, shape: Shape) -> None:
    """A bucket waits for its own gradient, ready with its first tensor's, or for an earlier tensor's."""
    burst, first = shape.burst, shape.first
    if len(burst) != len(first) or (burst < 0).any() or (burst > first).any():
        raise ScenarioError(
            f"a job of {profile.model} cannot be reshaped so: bursts are {burst.tolist()}, must be a tensor "
            f"for each bucket, 0 to its first one: {first.tolist()}"
        )
