"""Which flow goes which way at present: over circuits while they are up, over packet switches, or nowhere.

The simulator asks this at every step, next to its decisions and gates: when does something change, and who
has to move. What circuits there are is decided by the scenario's scheduler, through the gate that all use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from netsched import ledger as books
from netsched.bundles import IN_FLIGHT, NOWHERE, Bundles, settle_left
from netsched.circuits import decide
from netsched.circuits.none import NoCircuits
from netsched.control import Cadence
from netsched.crossconnect import CrossConnect
from netsched.fabric import Fabric
from netsched.ledger import Ledger
from netsched.model import Bools, Circuits, Control, Event, Fault, Floats, Ints, Transport, Workload
from netsched.observe import Static
from netsched.observe_circuits import PairsOf, circuit_view, pairs_of
from netsched.optics import Optics, choices, no_optics, optics_of
from netsched.outages import Outages, outages_of
from netsched.pathtable import PathTable
from netsched.precedence import BEHIND, Precedence, in_turn, precedence
from netsched.relays import Relays, most_parcels, relays
from netsched.reroute import Moves, enlist, listed, move
from netsched.routes import Routes
from netsched.shortest import Chain, Chains
from netsched.uses import Uses

_FEW: Final = 64
"""Flows whose ways are kept for others like them. Jobs release a few at a time, again and again."""


Ways = tuple[Ints, Floats, Bools]
"""Of each flow: the row of its path, the seconds that it takes, and whether the flow must wait."""


@dataclass
class LightPaths:
    """State of one run. `head` and `following` list the flows of each pair of ends (`pairs.key`).

    packets   (F,) row of the path over packet switches;  packet_latency its seconds
    job       (F,) of each flow
    choice    (F,) number by which a flow picks one of several circuits of its pair
    row_of    (F, S) row of the path over a direct circuit of each switch, -1 where none was needed yet
    held      (F,) whether a flow must wait for a circuit;  gate  (F,) what its plan says of `not_before`
    said      (F,) the class that its plan gives a flow;  precedence  who goes first on circuits all the same
    lit       (S, E) the end that each end reaches, as flows have been told
    owner     (S, E) whose flows alone may go there, -1 for all;  owners  what it will be, and when
    cut       (F,) whether a flow's every path over packet switches has lost a link
    known     the ways of flows between the same hosts, with the same path, choice and job, as they are now
    relays    who takes two circuits one after the other, None where the scheduler has nobody do that
    """

    optics: Optics
    circuits: Circuits
    cadence: Cadence
    cross: CrossConnect
    pairs: PairsOf
    table: PathTable
    workload: Workload
    packets: Ints
    packet_latency: Floats
    job: Ints
    choice: npt.NDArray[np.uint64]
    row_of: Ints
    head: Ints
    following: Ints
    buffer: Ints
    lit: Ints
    held: Bools
    gate: Floats
    seen: npt.NDArray[np.int8]
    said: Ints
    precedence: Precedence
    cut: Bools
    outages: Outages
    relays: Relays | None
    owner: Ints
    owners: list[tuple[float, Ints]] = field(default_factory=list)
    decisions: int = 0
    chains: Chains | None = None
    latency_of: dict[int, float] = field(default_factory=dict)
    known: dict[tuple[int, ...], tuple[int, float, bool]] = field(default_factory=dict)

    @property
    def events(self) -> Event:
        """What the scheduler is to be told of."""
        return self.circuits.events

    def gated(self, flows: Ints, not_before: Floats) -> Floats:
        """Before when the flows must not send, given what their plan says."""
        self.gate[flows] = not_before
        return np.where(self.held[flows], np.inf, not_before)

    def ranked(self, flows: Ints, cls: Ints) -> Ints:
        """The classes in which the flows go, given what their plan says."""
        self.said[flows] = cls
        return in_turn(cls, self.precedence.turn[flows])

    def booked(self, flows: Ints, reserve: Floats) -> Floats:
        """What the flows may reserve, given what their plan says: nothing where others go first."""
        behind = self.precedence.turn[flows] == BEHIND
        return np.where(behind, 0.0, reserve)

    def due(self, ledger: Ledger) -> float:
        """When something changes next or the scheduler wants to be asked; inf for never."""
        # Without a flow there is nothing to ask about; the next release comes back here.
        asks = self.cadence.due() if ledger.count[books.ACTIVE_LIST] else np.inf
        return min(asks, self.cross.due(), self.outages.due())

    def enter(self, bun: Bundles, fresh: Ints) -> tuple[Bundles, Moves]:
        """The ways of flows that have just been released."""
        enlist(fresh, self.pairs.key, self.head, self.following)
        return self._ways(bun, fresh)

    def change(
        self,
        fixed: Static,
        ledger: Ledger,
        bun: Bundles,
        net: Uses,
        fresh: Ints,
        now: float,
    ) -> tuple[Bundles, Ints, bool]:
        """Ask and switch what is due at `now`; who may have moved, and True if one of them had a reserve.

        `fresh`: the flows just released, which are in no bundle until somebody has decided about them.
        """
        failed = self.outages.due() <= now
        asks = self.cadence.due() <= now
        active = self._active(ledger, bun) if failed or asks or self._looks_at_all() else fresh[:0]
        old = np.setdiff1d(active, fresh, assume_unique=True) if len(fresh) else active
        if failed:
            bun = self._fail(ledger, bun, old, now)
        while min(self.cadence.due() if len(active) else np.inf, self.cross.due()) <= now:
            if len(active) and self.cadence.due() <= now:
                view = circuit_view(fixed, ledger, self.optics, self.pairs, self.cross, active, bun.left, now)
                plan = decide(self.circuits, view, fixed.queues)
                self.decisions += 1
                self.cadence.decided(now, plan)
                if self.relays is not None:
                    self.relays.slot_bytes = plan.slot_bytes
                self.cross.command(plan, now + self.cadence.control.delay)
                self.precedence.plan(plan.first, now + self.cadence.control.delay)
                if plan.owner is not None:
                    self.owners.append((now + self.cadence.control.delay, plan.owner))
            self.cross.advance(now)
        self.cross.advance(now)
        up = self.cross.up()
        failed = self._handed_over(now) or failed
        turned = self.precedence.advance(now, up)
        if np.array_equal(up, self.lit) and not (failed or len(turned)):
            return bun, active[:0], False
        flows = old if failed else self._concerned(ledger, up, turned, old)
        if self.relays is not None:
            flows = np.union1d(flows, self._take_back(self.relays, bun, net, up))
        new = (up != self.lit) & (up >= 0)
        self.lit = up
        self.chains = None
        self.known.clear()
        bun, moves = self._ways(bun, flows[bun.bundle_of[flows] != IN_FLIGHT])
        booked = move(bun, net, ledger, moves, self.held, self.gate, self.seen, self.buffer)
        if self.relays is not None and self.relays.slot_bytes > 0:
            able = old[self.held[old] & (self.gate[old] <= now) & (bun.bundle_of[old] == NOWHERE)]
            bun = self.relays.offer(ledger, bun, net, new, up, able, active)
        return bun, flows, booked

    def _active(self, ledger: Ledger, bun: Bundles) -> Ints:
        """The flows released and not ended, `bun.left` settled for them."""
        active = books.sweep(ledger).copy()
        settle_left(bun, active)
        return active

    def _looks_at_all(self) -> bool:
        """Whether a circuit that comes or goes concerns other flows than those of its pair."""
        return self.circuits.hops > 1 or self.relays is not None or len(self.owners) > 0

    def _handed_over(self, now: float) -> bool:
        """Whether a circuit belongs to others from now on."""
        before = self.owner
        while self.owners and self.owners[0][0] <= now:
            self.owner = self.owners.pop(0)[1]
        return not np.array_equal(before, self.owner)

    def _take_back(self, relays: Relays, bun: Bundles, net: Uses, up: Ints) -> Ints:
        """Stop what is on circuits that go; the flows that have bytes again, none of which now sends."""
        flows = relays.take_back(bun, net, up)
        # One that had sent all of its own did so with a circuit, which may be there no more.
        idle = flows[bun.bundle_of[flows] == IN_FLIGHT]
        bun.bundle_of[idle] = NOWHERE
        self.held[idle] = True
        bun.not_before[idle] = np.inf
        return flows

    def readings(self, bun: Bundles, now: float) -> dict[str, Any]:
        """What became of the circuits until `now`, for the result's `mechanisms`."""
        cross = self.cross
        cross.advance(now)
        failed = {"fault_moves": self.outages.moved, "fault_waits": self.outages.stranded}
        if not len(self.optics.ends):
            return failed
        lasted = cross.up_s + cross.dark_s + cross.failed_s
        optical = np.isin(bun.path_links, self.optics.down[self.optics.down >= 0])
        crossed = np.diff(np.concatenate([[0], np.cumsum(optical)])[bun.path_ptr])
        return {
            "circuits": self.circuits.name,
            "circuit_decisions": self.decisions,
            "circuit_changes": int(cross.changes.sum()),
            "circuit_bytes": float((bun.path_bytes * crossed[: len(bun.path_bytes)]).sum()),
            "circuit_dark_s": cross.dark_s,
            "circuit_duty_cycle": cross.up_s / lasted if lasted > 0 else None,
            **(failed | {"circuit_failed_s": cross.failed_s} if self.outages.any else {}),
            **({} if self.relays is None else self.relays.readings(bun)),
        }

    def _fail(self, ledger: Ledger, bun: Bundles, old: Ints, now: float) -> Bundles:
        """Let happen what fails or comes back now: links of packet paths, optical ports, hosts."""
        links = self.outages.happen(ledger, bun, now)
        self.cadence.note(self.cross.fail(self.outages.down, bun.capacity, now))
        if len(links):
            before, cut = self.packets, self.cut
            bun, self.packets, self.packet_latency, self.cut = self.outages.ways(bun, self.table)
            self.outages.moved += int(np.count_nonzero((before != self.packets)[old] & ~self.cut[old]))
            self.outages.stranded += int(np.count_nonzero(self.cut[old] & ~cut[old]))
        return bun

    def _concerned(self, ledger: Ledger, up: Ints, turned: Ints, active: Ints) -> Ints:
        """The flows of `turned` pairs and of those that win or lose a circuit.

        All, where several in a row may be taken.
        """
        if self.circuits.hops > 1:
            return active
        s, e = np.nonzero(up != self.lit)
        n_ends = len(self.optics.ends)
        ends = np.concatenate([up[s, e], self.lit[s, e]])
        keys = np.union1d((np.tile(e, 2) * n_ends + ends)[ends >= 0], turned)
        n = listed(ledger, keys, self.head, self.following, self.buffer)
        return self.buffer[:n].copy()

    def _ways(self, bun: Bundles, flows: Ints) -> tuple[Bundles, Moves]:
        """The way of each flow over the circuits that are up, and the class in which it goes there."""
        bun, (row, latency, waits) = self._known_ways(bun, flows)
        lit = ~waits & (row != self.packets[flows])
        turn = self.precedence.turns(flows, self.pairs.key[flows], lit, waits)
        self.precedence.turn[flows] = turn
        return bun, Moves(flows, row, latency, waits, in_turn(self.said[flows], turn))

    def _known_ways(self, bun: Bundles, flows: Ints) -> tuple[Bundles, Ways]:
        if not 0 < len(flows) <= _FEW:
            return self._find_ways(bun, flows)
        ends = self.workload.flows
        columns = ends.src, ends.dst, self.packets, self.choice, self.job
        alike = list(zip(*(each[flows].tolist() for each in columns), strict=True))
        if any(each not in self.known for each in alike):
            bun, found = self._find_ways(bun, flows)
            ways = (column.tolist() for column in found)
            self.known.update(zip(alike, zip(*ways, strict=True), strict=True))
            return bun, found
        row, latency, waits = zip(*(self.known[each] for each in alike), strict=True)
        return bun, (np.array(row), np.array(latency), np.array(waits))

    def _find_ways(self, bun: Bundles, flows: Ints) -> tuple[Bundles, Ways]:
        key = self.pairs.key[flows]
        row, latency, waits = self.packets[flows], self.packet_latency[flows], self.cut[flows]
        if not len(self.optics.ends):
            return bun, (row, latency, waits)
        src, dst = np.divmod(key, len(self.optics.ends))
        owner = self.owner[:, src]
        lit = (self.lit[:, src] == dst) & (key >= 0) & ((owner < 0) | (owner == self.job[flows]))
        count = lit.sum(axis=0)
        waits |= (key >= 0) & (self.circuits.without_circuit != "eps")
        waits &= count == 0
        if count.any():
            direct = np.flatnonzero(count)
            bun, row[direct], latency[direct] = self._direct(bun, flows[direct], lit[:, direct], key[direct])
        if self.circuits.hops > 1:
            rest = np.flatnonzero((key >= 0) & (count == 0))
            bun, found, rows, seconds = self._detours(bun, flows[rest], key[rest])
            row[rest[found]], latency[rest[found]] = rows, seconds
            waits[rest[found]] = False
        return bun, (row, latency, waits)

    def _direct(self, bun: Bundles, flows: Ints, lit: Bools, key: Ints) -> tuple[Bundles, Ints, Floats]:
        """Of the circuits of its pair, each flow takes the one that its number picks."""
        count = lit.sum(axis=0).astype(np.uint64)
        wanted = (self.choice[flows] % count).astype(np.int64)
        switch = np.argmax((np.cumsum(lit, axis=0) == wanted + 1) & lit, axis=0)
        missing = np.flatnonzero(self.row_of[flows, switch] < 0)
        if len(missing):
            ends = np.divmod(key[missing], len(self.optics.ends))
            chains: list[Chain] = [
                (each,) for each in zip(switch[missing].tolist(), *(e.tolist() for e in ends), strict=True)
            ]
            bun, rows, seconds = self._rows(bun, flows[missing], chains)
            self.row_of[flows[missing], switch[missing]] = rows
            self.latency_of.update(zip(rows.tolist(), seconds.tolist(), strict=True))
        row = self.row_of[flows, switch]
        return bun, row, np.array([self.latency_of[each] for each in row.tolist()], np.float64)

    def _detours(self, bun: Bundles, flows: Ints, key: Ints) -> tuple[Bundles, Ints, Ints, Floats]:
        """Of flows without a direct circuit, those (positions) that several in a row lead to their end."""
        if self.chains is None:
            self.chains = Chains(self.lit, self.circuits.hops)
        pairs = np.divmod(key, len(self.optics.ends))
        columns = (*pairs, self.choice[flows])
        ways = [self.chains.way(*each) for each in zip(*(c.tolist() for c in columns), strict=True)]
        found = np.flatnonzero([len(way) > 0 for way in ways])
        bun, rows, seconds = self._rows(bun, flows[found], [ways[i] for i in found.tolist()])
        return bun, found, rows, seconds

    def _rows(self, bun: Bundles, flows: Ints, chains: list[Chain]) -> tuple[Bundles, Ints, Floats]:
        ends = self.workload.flows
        return self.table.of_circuits(bun, ends.src[flows], ends.dst[flows], chains)


def light_paths(
    workload: Workload,
    fabric: Fabric,
    routes: Routes,
    transport: Transport,
    circuits: Circuits | None,
    control: Control,
    faults: Sequence[Fault],
    capacity: Floats,
    unmarked: int,
) -> LightPaths | None:
    """The ways of a run at its begin, all circuits dark; None where no way can ever change.

    `capacity` is the writable array behind what the run's kernels read, `unmarked` the class of a flow of
    which no plan has said anything.
    """
    optics = optics_of(fabric)
    if not faults and (optics is None or circuits is None):
        return None
    circuits = circuits or NoCircuits()
    optics = optics or no_optics(fabric)
    cross = CrossConnect(optics)
    cadence = Cadence(circuits.events, control)
    if len(optics.ends):
        cadence.review_at = 0.0
    n_paths = len(routes.indptr) - 1
    pairs, table = pairs_of(workload, optics), PathTable(fabric, optics, n_paths, n_paths)
    parcels = relays(workload, optics, pairs, table) if circuits.without_circuit == "relay" else None
    return LightPaths(
        optics=optics,
        circuits=circuits,
        cadence=cadence,
        cross=cross,
        pairs=pairs,
        table=table,
        workload=workload,
        packets=routes.path.copy(),
        packet_latency=routes.latency.copy(),
        job=workload.coflows.job[workload.flows.coflow],
        choice=choices(workload, transport) % np.uint64(max(len(optics.nodes), 1)),
        row_of=np.full((workload.n_flows, len(optics.nodes)), -1, np.int64),
        head=np.full(len(optics.ends) ** 2, -1, np.int64),
        following=np.full(workload.n_flows, -1, np.int64),
        buffer=np.zeros(workload.n_flows, np.int64),
        lit=cross.up(),
        held=np.zeros(workload.n_flows, bool),
        gate=np.full(workload.n_flows, -np.inf),
        seen=np.zeros(workload.n_flows + most_parcels(parcels), np.int8),
        said=np.full(workload.n_flows, unmarked),
        precedence=precedence(workload.flows.coflow),
        cut=np.zeros(workload.n_flows, bool),
        outages=outages_of(faults, workload, fabric, routes, capacity),
        relays=parcels,
        owner=np.full(optics.up.shape, -1, np.int64),
    )


def most_links(light: LightPaths | None) -> int:
    """Links of the longest way over circuits: two each, and those between a host and its end."""
    return 0 if light is None else 2 * min(light.circuits.hops, len(light.optics.ends)) + 2
