"""Flows that change their path under way: out of their bundles, and back into others.

A bundle is of one path, so that whoever changes it must leave. Nothing else is touched: the next repair sees
bundles that end and bundles that come, as it does when flows do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netsched.bundles import NO_FLOW, NOWHERE, Bundles, free_reserve, settle_left
from netsched.jit import kernel
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
def listed(led: Ledger, keys: Ints, head: Ints, following: Ints, out: Ints) -> int:
    """Write the flows of some keys into `out`, their number; those that have ended are dropped."""
    n = 0
    for key in keys:
        before = NO_FLOW
        f = head[key]
        while f >= 0:
            if led.status[f] == DONE:
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


@kernel
def gather_mates(bun: Bundles, flows: Ints, seen: np.ndarray, out: Ints) -> int:
    """Write all flows of the bundles that the given ones are in into `out`; their number. `seen`: all 0."""
    n = 0
    for f in flows:
        b = bun.bundle_of[f]
        if b < 0 or seen[b]:
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
    flows = moves.flows
    changed = (moves.row != bun.path_of_flow[flows]) | (moves.waits != held[flows])
    changed |= moves.rank != bun.rank[flows]
    moves = moves.only(changed)
    flows = moves.flows
    if not len(flows):
        return False
    mates = buffer[: gather_mates(bun, flows, seen, buffer)].copy()
    settle_left(bun, mates)
    withdraw(bun, net, mates)
    booked = bool((bun.reserve[flows] > 0).any())
    bun.cap[flows] += bun.reserve[flows]
    bun.reserve[flows] = 0.0
    place(bun, moves, held, gate)
    back = np.union1d(mates, flows)
    insert_all(bun, net, back[np.lexsort((back, ledger.start[back]))])
    return booked
