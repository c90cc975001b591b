"""Which way each flow takes while circuits are as they are, compiled: this is asked at every release.

The order: a circuit of its pair of ends, several circuits in a row where the scheduler allows that, packet
switches, or none, to wait for a circuit.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from netsched.bundles import Bundles
from netsched.jit import inner, kernel
from netsched.model import Bools, Floats, Ints
from netsched.precedence import ANYONE, BEHIND, FIRST, Turns

MISSING: Final = -1
"""In place of a row of the path table: one that must be made first."""

VERSION, WAITS, SEVERAL, TURNS = range(4)
"""Places in `Ways.rule`: how often circuits have changed; whether flows without one wait, whether they may
take several in a row, and whether the scheduler has said who goes first."""


class Ways(NamedTuple):
    """What ways hang on: F flows, P pairs of hosts, S optical switches, E ends. All is changed in place.

    key, pair       (F,) the pair of ends, -1 inside one end or without; the pair of hosts
    choice          (F,) number below S by which a flow picks one of several circuits of its pair
    job, coflow     (F,) of each flow
    packets         (F,) row of the path over packet switches;  packet_latency  its seconds
    cut             (F,) whether its every path over packet switches has lost a link
    lit             (S, E) the end that each end reaches, as flows have been told
    owner           (S, E) whose flows alone may go there, -1 for all
    first           (E * E,) the coflow that goes first from one end to another, -1 none
    direct, direct_s  (P, S) row of the path over a circuit of each switch, `MISSING` where none was needed
                    yet; its seconds
    detour, detour_s, detour_at  (P, S) the same by `choice` over several in a row, -1 for no way; as of which
                    `VERSION` that was looked for
    head, following   lists of the flows of each pair of ends (`reroute.enlist`)
    said, gate      (F,) what its plan gives a flow: its class, and its `not_before`
    turn            (F,) who goes first on circuits (`Precedence`);  held  (F,) whether it waits for one
    rule            VERSION, WAITS, SEVERAL, TURNS
    """

    key: Ints
    pair: Ints
    choice: Ints
    job: Ints
    coflow: Ints
    packets: Ints
    packet_latency: Floats
    cut: Bools
    lit: Ints
    owner: Ints
    first: Ints
    direct: Ints
    direct_s: Floats
    detour: Ints
    detour_s: Floats
    detour_at: Ints
    head: Ints
    following: Ints
    said: Ints
    gate: Floats
    turn: Turns
    held: Bools
    rule: Ints


def open_ways(
    key: Ints,
    pair: Ints,
    choice: Ints,
    job: Ints,
    coflow: Ints,
    packets: tuple[Ints, Floats],
    shape: tuple[int, int],
    turn: Turns,
    *,
    unmarked: int,
    waits: bool,
    several: bool,
) -> Ways:
    """All circuits dark, `shape` (S, E) of them. `packets`: rows over packet switches, and their seconds."""
    n, pairs = len(key), int(pair.max(initial=-1)) + 1
    by_switch = pairs, shape[0]
    return Ways(
        key=key,
        pair=pair,
        choice=choice,
        job=job,
        coflow=coflow.copy(),  # writable, as all the others: kernels are compiled for what they get
        packets=packets[0].copy(),
        packet_latency=packets[1].copy(),
        cut=np.zeros(n, bool),
        lit=np.full(shape, -1, np.int64),
        owner=np.full(shape, -1, np.int64),
        first=np.full(shape[1] ** 2, -1, np.int64),
        direct=np.full(by_switch, MISSING, np.int64),
        direct_s=np.zeros(by_switch),
        detour=np.full(by_switch, MISSING, np.int64),
        detour_s=np.zeros(by_switch),
        detour_at=np.full(by_switch, -1, np.int64),
        head=np.full(shape[1] ** 2, -1, np.int64),
        following=np.full(n, -1, np.int64),
        said=np.full(n, unmarked),
        gate=np.full(n, -np.inf),
        turn=turn,
        held=np.zeros(n, bool),
        rule=np.array([0, waits, several, False], np.int64),
    )


def no_ways() -> Ways:
    """For a run in which no way can ever change."""
    none, seconds = np.zeros(0, np.int64), np.zeros(0)
    return open_ways(
        none,
        none,
        none,
        none,
        none,
        (none, seconds),
        (0, 0),
        np.zeros(0, np.int8),
        unmarked=0,
        waits=False,
        several=False,
    )


@inner
def _open(ways: Ways, s: int, f: int, src: int, dst: int) -> bool:
    """Whether flow f may go from end `src` to end `dst` over switch s."""
    owner = ways.owner[s, src]
    return bool(ways.lit[s, src] == dst) and (owner < 0 or owner == ways.job[f])


@inner
def way_of(ways: Ways, f: int) -> tuple[int, float, bool]:
    """The row of flow f's path, its seconds, and whether the flow must wait. MISSING: no row there yet."""
    key = ways.key[f]
    if key < 0:
        return int(ways.packets[f]), float(ways.packet_latency[f]), bool(ways.cut[f])
    n_switches, n_ends = ways.lit.shape
    src, dst = key // n_ends, key % n_ends
    pair, choice = ways.pair[f], ways.choice[f]
    count = 0
    for s in range(n_switches):
        count += _open(ways, s, f, src, dst)
    if count:
        wanted = choice % count
        for s in range(n_switches):
            if _open(ways, s, f, src, dst):
                if wanted == 0:
                    return int(ways.direct[pair, s]), float(ways.direct_s[pair, s]), False
                wanted -= 1
    if ways.rule[SEVERAL]:
        if ways.detour_at[pair, choice] != ways.rule[VERSION]:
            return MISSING, 0.0, False
        if ways.detour[pair, choice] >= 0:
            return int(ways.detour[pair, choice]), float(ways.detour_s[pair, choice]), False
    waits = bool(ways.cut[f]) or ways.rule[WAITS] != 0
    return int(ways.packets[f]), float(ways.packet_latency[f]), waits


@inner
def turn_of(ways: Ways, f: int, row: int, waits: bool) -> int:
    """As `Precedence.turns` has it, for a flow whose way is `row`."""
    if not ways.rule[TURNS]:
        return ANYONE
    if waits:
        return int(ways.turn[f])
    first = ways.first[ways.key[f]] if ways.key[f] >= 0 else -1
    if first < 0 or row == ways.packets[f]:
        return ANYONE
    return FIRST if first == ways.coflow[f] else BEHIND


@kernel
def find_ways(ways: Ways, flows: Ints, row: Ints, latency: Floats, waits: Bools, turn: Turns) -> int:
    """Write `way_of` and `turn_of` of each flow; how many rows are MISSING."""
    missing = 0
    for i in range(len(flows)):
        at, seconds, wait = way_of(ways, flows[i])
        row[i], latency[i], waits[i] = at, seconds, wait
        turn[i] = turn_of(ways, flows[i], at, wait)
        missing += at == MISSING
    return missing


@inner
def all_known(ways: Ways, flows: Ints) -> bool:
    """Whether no flow's row is MISSING."""
    for f in flows:
        row, _, _ = way_of(ways, f)
        if row == MISSING:
            return False
    return True


@inner
def enter(ways: Ways, bun: Bundles, f: int) -> None:
    """Put flow f, which is released, on the list of its pair, and write its way and class."""
    key = ways.key[f]
    if key >= 0:
        ways.following[f] = ways.head[key]
        ways.head[key] = f
    row, seconds, waits = way_of(ways, f)
    turn = turn_of(ways, f, row, waits)
    ways.turn[f] = turn
    ways.held[f] = waits
    bun.path_of_flow[f] = row
    bun.latency[f] = seconds
    if turn == FIRST:
        bun.rank[f] = 0
    else:
        bun.rank[f] = max(ways.said[f], 1 if turn == BEHIND else 0)
    if not bun.queued[0]:
        bun.group[f] = row
    bun.not_before[f] = np.inf if waits else ways.gate[f]
