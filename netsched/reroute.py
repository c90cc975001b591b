"""Flows that change their path under way: out of their bundles, and back into others.

A bundle is of one path, so that whoever changes it must leave. Nothing else is touched: the next repair sees
bundles that end and bundles that come, as it does when flows do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netsched.bundles import NO_FLOW, NOWHERE, Bundles, free_reserve, settle_left
from netsched.jit import inner, kernel
from netsched.ledger import DONE, Ledger
from netsched.membership import close_bundle, insert_all
from netsched.model import Bools, Floats, Ints
from netsched.uses import Uses


@dataclass(frozen=True)
class Moves:
    """Flows, and for each the row of its path, the seconds that it takes, if it must wait, and its class."""

    flows: Ints
    row: Ints
    latency: Floats
    waits: Bools
    rank: Ints

    def only(self, some: Bools) -> Moves:
        return Moves(self.flows[some], self.row[some], self.latency[some], self.waits[some], self.rank[some])


@kernel
def enlist(flows: Ints, key: Ints, head: Ints, following: Ints) -> None:
    """Put flows first on the list of their key: `head` of a key, `following` of a flow; -1 ends a list."""
    for f in flows:
        if key[f] >= 0:
            following[f] = head[key[f]]
            head[key[f]] = f


@kernel
def listed(status: np.ndarray, keys: Ints, head: Ints, following: Ints, out: Ints) -> int:
    """Write the flows of some keys into `out`, their number; those that have ended (`status`) are dropped."""
    n = 0
    for key in keys:
        before = NO_FLOW
        f = head[key]
        while f >= 0:
            if status[f] == DONE:
                if before < 0:
                    head[key] = following[f]
                else:
                    following[before] = following[f]
            else:
                out[n] = f
                n += 1
                before = f
            f = following[f]
    return n


@inner
def _changes(bun: Bundles, held: Bools, f: int, row: int, waits: bool, rank: int) -> bool:
    return bool(bun.path_of_flow[f] != row or held[f] != waits or bun.rank[f] != rank)


@inner
def _gather(
    bun: Bundles, flows: Ints, row: Ints, waits: Bools, rank: Ints, held: Bools, seen: np.ndarray, out: Ints
) -> int:
    """Write into `out` all flows of the bundles that those which change are in; their number.

    `seen`: all 0, and so again.
    """
    n = 0
    for i in range(len(flows)):
        b = bun.bundle_of[flows[i]]
        if b < 0 or seen[b] or not _changes(bun, held, flows[i], row[i], waits[i], rank[i]):
            continue
        seen[b] = 1
        first = n
        out[n] = bun.root[b]
        n += 1
        while first < n:
            child = bun.child[out[first]]
            while child >= 0:
                out[n] = child
                n += 1
                child = bun.sibling[child]
            first += 1
    for f in flows:
        if bun.bundle_of[f] >= 0:
            seen[bun.bundle_of[f]] = 0
    return n


@kernel
def withdraw(bun: Bundles, net: Uses, flows: Ints) -> None:
    """Take flows, all those of their bundles and settled, out of these."""
    for f in flows:
        free_reserve(bun, f)
        b = bun.bundle_of[f]
        bun.bundle_of[f] = NOWHERE
        bun.members[b] -= 1
        if bun.members[b] == 0:
            close_bundle(bun, net, b)


def place(bun: Bundles, moves: Moves, held: Bools, gate: Floats) -> None:
    """Write ways and classes of flows in no bundle. `held`, `gate`: of all flows, who waits, their gates."""
    flows = moves.flows
    bun.path_of_flow[flows] = moves.row
    bun.latency[flows] = moves.latency
    bun.rank[flows] = moves.rank
    if not bun.queued[0]:
        bun.group[flows] = moves.row
    held[flows] = moves.waits
    bun.not_before[flows] = np.where(moves.waits, np.inf, gate[flows])


@kernel
def _change(
    bun: Bundles,
    net: Uses,
    flows: Ints,
    row: Ints,
    latency: Floats,
    waits: Bools,
    rank: Ints,
    held: Bools,
    gate: Floats,
    seen: np.ndarray,
    out: Ints,
) -> tuple[int, bool]:
    """Take the flows that change out of their bundles, and write what they become.

    How many flows, in `out`, are to be put into bundles again, and True if one that changes had a reserve.
    """
    n = _gather(bun, flows, row, waits, rank, held, seen, out)
    n_mates = n
    for i in range(len(flows)):
        f = flows[i]
        if bun.bundle_of[f] < 0 and _changes(bun, held, f, row[i], waits[i], rank[i]):
            out[n] = f
            n += 1
    settle_left(bun, out[:n_mates])
    withdraw(bun, net, out[:n_mates])
    booked = False
    for i in range(len(flows)):
        f = flows[i]
        if not _changes(bun, held, f, row[i], waits[i], rank[i]):
            continue
        if bun.reserve[f] > 0.0:
            booked = True
            bun.cap[f] += bun.reserve[f]
            bun.reserve[f] = 0.0
        bun.path_of_flow[f] = row[i]
        bun.latency[f] = latency[i]
        bun.rank[f] = rank[i]
        if not bun.queued[0]:
            bun.group[f] = row[i]
        held[f] = waits[i]
        bun.not_before[f] = np.inf if waits[i] else gate[f]
    return n, booked


def move(
    bun: Bundles,
    net: Uses,
    ledger: Ledger,
    moves: Moves,
    held: Bools,
    gate: Floats,
    seen: npt.NDArray[np.int8],
    buffer: Ints,
) -> bool:
    """Let flows that are under way go on as `moves` says, from now on; True if one of them had a reserve.

    What a flow had reserved was on its old path and is given back. `seen` (all 0) and `buffer` are room for
    one entry per flow.
    """
    n, booked = _change(
        bun,
        net,
        moves.flows,
        moves.row,
        moves.latency,
        moves.waits,
        moves.rank,
        held,
        gate,
        seen,
        buffer,
    )
    if n:
        back = buffer[:n]
        insert_all(bun, net, back[np.lexsort((back, ledger.start[back]))])
    return booked
