"""TopoOpt: a fixed topology per set of jobs, of rings for their all-reduce and of links for the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from netsched.circuits.planes import NONE, Plane, Steps, assemble, heaviest, planes
from netsched.model import CircuitPlan, CircuitView, Event, Floats, Ints
from netsched.ondemand import frozen


@dataclass(frozen=True)
class TopoOpt:
    """Rings by coprime jumps for all-reduce groups, matchings for other traffic (TopoOpt, NSDI 2023).

    The switches of a group of ends are its degree d: each gives every end one circuit. An all-reduce group
    of g ends may be any ring i -> i + p with gcd(p, g) = 1 (TotientPerms); it gets a share of d by its bytes,
    and jumps near a geometric progression, which keeps detours short. What is left of d goes to matchings of
    greatest weight; a pair with c circuits counts c / (c + 1) as much at the next. Flows without a circuit of
    their own take the fewest circuits in a row, up to `hops` (over rings that is coin change modulo g).

    TopoOpt itself has no packet switches; here flows that no circuits lead to their end use them, unless
    told to wait. The topology is made anew when the set of jobs changes, as the paper has one per job; the
    search over parallelisations that it alternates with is not here. INFERRED: the all-reduce group of a job
    are its ends where each sends to one and hears from one other and all are in one ring; shares of d are
    own * d / total, rounded by largest remainder (the released code gives all to all-reduce).
    """

    hops: int = 8
    without_circuit: Literal["eps", "wait"] = "eps"

    name: ClassVar[str] = "topoopt"
    events: ClassVar[Event] = Event.COFLOW_RELEASED | Event.COFLOW_FINISHED | Event.PORTS_CHANGED

    def __post_init__(self) -> None:
        if self.hops < 1:
            raise ValueError(f"hops is {self.hops}, must be 1 or more")

    def __call__(self, view: CircuitView) -> CircuitPlan:
        parts = [(plane, Steps(_topology(view, plane)[None], np.full(1, np.inf))) for plane in planes(view)]
        return assemble(view, parts, float("inf"))


def _topology(view: CircuitView, plane: Plane) -> Ints:
    """(m, n) circuits for the jobs of the view among the ends of one group of switches."""
    n = plane.out.shape[1]
    local = np.full(len(view.packet_rate), NONE, np.int64)
    local[plane.ends] = np.arange(n)
    work = view.work
    inside = (local[work.src] >= 0) & (local[work.dst] >= 0)
    columns = work.owner[inside], local[work.src[inside]], local[work.dst[inside]], work.bytes[inside]
    owner, src, dst, amount = (each.tobytes() for each in columns)
    return _circuits(owner, src, dst, amount, plane.out.shape)


@lru_cache(maxsize=16)
def _circuits(owner: bytes, src: bytes, dst: bytes, amount: bytes, shape: tuple[int, int]) -> Ints:
    """The circuits for rows (job, pair, bytes), as the bytes of their columns.

    Kept, since it is asked for the same jobs again whenever a coflow comes or ends.
    """
    job, one, other = (np.frombuffer(each, np.int64) for each in (owner, src, dst))
    size = np.frombuffer(amount, np.float64)
    rest = np.zeros((shape[1],) * 2)
    rings: dict[tuple[int, ...], float] = {}
    for rows in np.split(np.arange(len(job)), np.flatnonzero(np.diff(job)) + 1):
        ring = ring_of(one[rows], other[rows]) if len(rows) else ()
        if ring:
            rings[ring] = rings.get(ring, 0.0) + float(size[rows].sum())
        else:
            np.add.at(rest, (one[rows], other[rows]), size[rows])
    out = np.full(shape, NONE, np.int64)
    _lay_rings(out, rings, float(rest.sum()))
    _lay_matchings(out, rest)
    return frozen(out)


def ring_of(src: Ints, dst: Ints) -> tuple[int, ...]:
    """The ends in ring order from the least on, () where the pairs are no single ring."""
    after = dict(zip(src.tolist(), dst.tolist(), strict=True))
    if len(after) < len(src) or len(set(after.values())) < len(src) or set(after) != set(after.values()):
        return ()
    first = min(after)
    ring = [first]
    while (following := after[ring[-1]]) != first:
        ring.append(following)
    return tuple(ring) if len(ring) == len(after) else ()


def jumps(group: int, count: int) -> list[int]:
    """`count` jumps coprime to `group`, near a geometric progression; all there are if they are fewer."""
    coprime = [p for p in range(1, group) if math.gcd(p, group) == 1]
    if count >= len(coprime):
        return coprime
    ratio = (coprime[-1] / coprime[0]) ** (1 / max(count - 1, 1))
    chosen: list[int] = []
    for k in range(count):
        wanted = coprime[0] * ratio**k
        free = [p for p in coprime if p not in chosen]
        chosen.append(min(free, key=lambda p: (abs(p - wanted), p)))
    return sorted(chosen)


def degrees(amounts: Floats, degree: int) -> Ints:
    """`degree` circuits per end shared out by bytes, largest remainder first; ties to the earlier."""
    total = float(amounts.sum())
    if total <= 0:
        return np.zeros(len(amounts), np.int64)
    exact = amounts * degree / total
    given = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - given), kind="stable")
    given[order[: degree - int(given.sum())]] += 1
    return given


def _lay_rings(out: Ints, rings: dict[tuple[int, ...], float], rest: float) -> None:
    """Give groups their rings, most bytes first. Groups without a common end do not compete."""
    ordered = sorted(rings.items(), key=lambda each: (-each[1], each[0]))
    member = np.zeros((len(ordered), out.shape[1]))
    for i, (ring, _) in enumerate(ordered):
        member[i, list(ring)] = 1.0
    meets = member @ member.T > 0
    amounts = np.array([amount for _, amount in ordered])
    reached = np.zeros(out.shape, bool)
    for i, (ring, amount) in enumerate(ordered):
        ends = np.array(ring)
        rival = rest + float(amounts[meets[i]].sum()) - amount
        share = max(1, int(degrees(np.array([amount, rival]), len(out))[0]))
        taken = ((out[:, ends] != NONE) | reached[:, ends]).any(axis=1)
        free = np.flatnonzero(~taken).tolist()
        for s, jump in zip(free, jumps(len(ring), min(share, len(free))), strict=False):
            out[s, ends] = np.roll(ends, -jump)
            reached[s, ends] = True


def _lay_matchings(out: Ints, demand: Floats) -> None:
    """Fill the ends that are still free, switch by switch, with matchings of what weighs most."""
    weight = demand.copy()
    n = out.shape[1]
    count = np.zeros((n, n))
    for row in out:
        free_src = row == NONE
        free_dst = np.ones(n, bool)
        free_dst[row[~free_src]] = False
        found = heaviest(np.where(free_src[:, None] & free_dst[None, :], weight, 0.0))
        ends = np.flatnonzero(found >= 0)
        row[ends] = found[ends]
        count[ends, found[ends]] += 1
        c = count[ends, found[ends]]
        weight[ends, found[ends]] *= c / (c + 1)
