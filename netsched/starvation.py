"""Whom a policy keeps waiting for as long as others keep coming: a coflow beside streams that never end.

In a workload that ends every flow ends, so a run to the end shows no starvation. Here others arrive as fast
as the link carries them, in eight ways that policies commonly prefer, and one coflow has to end all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from netsched.fabric import Fabric
from netsched.model import Circuits, Control, Ints, Policy, TaskKind, Transport, Workload
from netsched.optics import optics_of
from netsched.simulate import simulate
from netsched.workloads.builder import Node, WorkloadBuilder

_UNIT: Final = 6e6
"""Bytes. A few MB, so that limits by bytes sent (10 MB is a common first one) lie between the two sides."""
_PATIENCE: Final = 3.0
"""A stream lasts so many times what the coflow takes where all flows share."""
_LEAST_WAVES: Final = 12


@dataclass(frozen=True)
class Load:
    """One coflow: flows of `size` bytes each. `deadline` in gaps between arrivals."""

    size: float = _UNIT
    flows: int = 1
    need: int = 0
    weight: float = 1.0
    deadline: float = math.inf

    @property
    def bytes(self) -> float:
        return self.flows * self.size


@dataclass(frozen=True)
class Stream:
    """`others` keep coming over the link that `victim` needs, one when the link has carried the one before.

    jobs       "own": each of the others is a new job; "older": all are iterations of one job that came
               first; "same": they belong to the victim's job
    iteration  of its job that the victim is, counted from 0; the ones before carry nothing
    """

    what: str
    victim: Load
    others: Load
    jobs: Literal["own", "older", "same"] = "own"
    iteration: int = 0


STREAMS: Final = (
    Stream("smaller coflows", Load(3 * _UNIT), Load()),
    Stream("larger and wider coflows", Load(), Load(_UNIT / 2, flows=8)),
    Stream("coflows of fewer flows", Load(_UNIT / 4, flows=8), Load()),
    Stream("tensors that are needed sooner", Load(need=9), Load(), jobs="same"),
    Stream("new jobs, beside one in its second iteration", Load(), Load(), iteration=1),
    Stream("coflows of an older job", Load(), Load(), jobs="older"),
    Stream("coflows with deadlines", Load(), Load(deadline=2.0)),
    Stream("coflows of more weight", Load(), Load(weight=10.0)),
)


def starved(
    policy: Policy, fabric: Fabric, queues: int | None, circuits: Circuits | None = None
) -> tuple[Stream, ...]:
    """The streams beside which a coflow does not end under this policy, as long as they last.

    Each lasts at least three times as long as the coflow takes where all flows share. `fabric`: 2 hosts or
    more. With `circuits`, which must join each end to the next and keep it so, all cross such a circuit.
    """
    pair = _pair(fabric) if circuits is None else _lit_pair(fabric)
    return tuple(stream for stream in STREAMS if not _ends(stream, policy, fabric, queues, pair, circuits))


def _ends(
    stream: Stream,
    policy: Policy,
    fabric: Fabric,
    queues: int | None,
    pair: tuple[int, int, float],
    circuits: Circuits | None,
) -> bool:
    src, dst, rate = pair
    gap = stream.others.bytes / rate
    waves = _waves(stream)
    workload, victim = _workload(stream, len(fabric.hosts), (src, dst), gap, waves)
    outcome = simulate(
        workload,
        fabric,
        policy,
        queues=queues,
        transport=Transport(),
        control=Control(),
        horizon=waves * gap + float(fabric.delay.sum()),
        circuits=circuits,
    )
    return not np.isnan(outcome.flow_finish[victim]).any()


def _pair(fabric: Fabric) -> tuple[int, int, float]:
    """Host 0, a host next to it (so that there is one path), and the bytes/s of the path between them."""
    paths = {dst: fabric.path(0, dst, 0) for dst in range(1, len(fabric.hosts))}
    dst = min(paths, key=lambda each: len(paths[each]))
    return 0, dst, float(fabric.capacity[paths[dst]].min())


def _lit_pair(fabric: Fabric) -> tuple[int, int, float]:
    """Host 0, a host behind the end after its own, and the bytes/s of the circuit between them."""
    optics = optics_of(fabric)
    assert optics is not None  # noqa: S101 # who asks for circuits has optical switches
    here = int(optics.end_of_host[0])
    mates = np.flatnonzero(optics.rate[:, here] > 0)
    behind = np.flatnonzero(optics.rate[mates[0]] > 0).tolist()
    following = behind[(behind.index(here) + 1) % len(behind)]
    dst = int(np.flatnonzero(optics.end_of_host == following)[0])
    links = optics.circuit(0, dst, ((int(mates[0]), here, following),))
    return 0, dst, float(fabric.capacity[links].min())


def _waves(stream: Stream) -> int:
    """How many of the others come.

    Where all flows share, those that have come and not ended hold v bytes when the victim has sent v, so they
    are at most 2 v / s + 1 of s bytes, and V bytes take V (2 V / s + 1) / rate at most.
    """
    victim, each = stream.victim.bytes, stream.others.size
    longest = victim * (2 * victim / each + 1)
    return max(_LEAST_WAVES, math.ceil(_PATIENCE * longest / stream.others.bytes))


def _workload(
    stream: Stream, hosts: int, pair: tuple[int, int], gap: float, waves: int
) -> tuple[Workload, Ints]:
    """The workload and the victim's flows. The victim comes half a gap after the first of the others."""
    builder = WorkloadBuilder(hosts)
    older = builder.add_job("older", iterations=waves) if stream.jobs == "older" else -1
    begun = stream.jobs == "same" or stream.iteration > 0
    own = builder.add_job(
        "victim",
        arrival=0.0 if begun else gap / 2,
        iterations=waves if stream.jobs == "same" else stream.iteration + 1,
    )
    turn: Node | None = None
    for wave in range(waves):
        if stream.jobs == "own":
            job = builder.add_job(f"other {wave}", arrival=wave * gap)
            _add(builder, job, pair, stream.others, gap, 0)
            continue
        job = own if stream.jobs == "same" else older
        flows = _add(builder, job, pair, stream.others, gap, wave)
        if turn is not None:
            builder.depend_each(flows, turn)
        ticked = builder.add_task(job, TaskKind.OTHER, -1, gap, wave)
        if turn is not None:
            builder.depend(ticked, turn)
        turn = ticked
    victim = _add(builder, own, pair, stream.victim, gap, stream.iteration)
    if begun:
        late = builder.add_task(own, TaskKind.OTHER, -1, gap / 2)
        builder.depend_each(victim, late)
        for iteration in range(stream.iteration):
            builder.depend_each(late, _add(builder, own, pair, Load(0.0), gap, iteration))
    return builder.build(), victim


def _add(
    builder: WorkloadBuilder, job: int, pair: tuple[int, int], load: Load, gap: float, iteration: int
) -> Ints:
    stage = builder.add_stage(job, f"iteration {iteration}", iteration)
    coflow = builder.add_coflow(
        job, stage, "coflow", iteration, weight=load.weight, deadline=load.deadline * gap
    )
    return builder.add_flows(coflow, *pair, np.full(load.flows, load.size), need=load.need, need_span=10)
