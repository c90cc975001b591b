"""Which flow goes which way at present: over circuits while they are up, over packet switches, or nowhere.

The simulator asks this at every step, next to its decisions and gates: when does something change, and who
has to move. What circuits there are is decided by the scenario's scheduler, through the gate that all use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
from netsched.model import Circuits, Control, Event, Fault, Floats, Ints, Transport, Workload
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
from netsched.ways import MISSING, TURNS, VERSION, Ways, find_ways, open_ways


@dataclass
class LightPaths:
    """State of one run.

    ways        which way each flow takes, and who waits, as long as circuits are as they are
    precedence  who goes first on circuits, whatever class its plan gives it
    owners      whose flows alone may use a circuit, and from when on
    relays      who takes two circuits one after the other, None where the scheduler has nobody do that
    """

    optics: Optics
    circuits: Circuits
    cadence: Cadence
    cross: CrossConnect
    pairs: PairsOf
    table: PathTable
    workload: Workload
    ways: Ways
    buffer: Ints
    seen: npt.NDArray[np.int8]
    precedence: Precedence
    outages: Outages
    relays: Relays | None
    owners: list[tuple[float, Ints]] = field(default_factory=list)
    decisions: int = 0
    chains: Chains | None = None

    @property
    def events(self) -> Event:
        """What the scheduler is to be told of."""
        return self.circuits.events

    def gated(self, flows: Ints, not_before: Floats) -> Floats:
        """Before when the flows must not send, given what their plan says."""
        self.ways.gate[flows] = not_before
        return np.where(self.ways.held[flows], np.inf, not_before)

    def ranked(self, flows: Ints, cls: Ints) -> Ints:
        """The classes in which the flows go, given what their plan says."""
        self.ways.said[flows] = cls
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
        enlist(fresh, self.ways.key, self.ways.head, self.ways.following)
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
        turned = self._take_turns(now, up)
        if np.array_equal(up, self.ways.lit) and not (failed or len(turned)):
            return bun, active[:0], False
        flows = old if failed else self._concerned(ledger, up, turned, old)
        if self.relays is not None:
            flows = np.union1d(flows, self._take_back(self.relays, bun, net, up))
        new = (up != self.ways.lit) & (up >= 0)
        self.ways.lit[:] = up
        self.ways.rule[VERSION] += 1
        self.chains = None
        bun, moves = self._ways(bun, flows[bun.bundle_of[flows] != IN_FLIGHT])
        booked = move(bun, net, ledger, moves, self.ways.held, self.ways.gate, self.seen, self.buffer)
        if self.relays is not None and self.relays.slot_bytes > 0:
            able = old[self.ways.held[old] & (self.ways.gate[old] <= now) & (bun.bundle_of[old] == NOWHERE)]
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
        if not self.owners:
            return False
        before = self.ways.owner.copy()
        while self.owners and self.owners[0][0] <= now:
            self.ways.owner[:] = self.owners.pop(0)[1]
        return not np.array_equal(before, self.ways.owner)

    def _take_turns(self, now: float, up: Ints) -> Ints:
        """Have others go first where that is due; the pairs with a circuit that it concerns."""
        before = self.precedence.first
        turned = self.precedence.advance(now, up)
        if self.precedence.first is not before and self.precedence.first is not None:
            self.ways.first[:] = self.precedence.first.ravel()
            self.ways.rule[TURNS] = True
        return turned

    def _take_back(self, relays: Relays, bun: Bundles, net: Uses, up: Ints) -> Ints:
        """Stop what is on circuits that go; the flows that have bytes again, none of which now sends."""
        flows = relays.take_back(bun, net, up)
        # One that had sent all of its own did so with a circuit, which may be there no more.
        idle = flows[bun.bundle_of[flows] == IN_FLIGHT]
        bun.bundle_of[idle] = NOWHERE
        self.ways.held[idle] = True
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
            ways = self.ways
            bun, packets, latency, cut = self.outages.ways(bun, self.table)
            self.outages.moved += int(np.count_nonzero((ways.packets != packets)[old] & ~cut[old]))
            self.outages.stranded += int(np.count_nonzero(cut[old] & ~ways.cut[old]))
            ways.packets[:], ways.packet_latency[:], ways.cut[:] = packets, latency, cut
        return bun

    def _concerned(self, ledger: Ledger, up: Ints, turned: Ints, active: Ints) -> Ints:
        """The flows of `turned` pairs and of those that win or lose a circuit.

        All, where several in a row may be taken.
        """
        if self.circuits.hops > 1:
            return active
        ways, n_ends = self.ways, len(self.optics.ends)
        s, e = np.nonzero(up != ways.lit)
        ends = np.concatenate([up[s, e], ways.lit[s, e]])
        keys = np.union1d((np.tile(e, 2) * n_ends + ends)[ends >= 0], turned)
        n = listed(ledger.status, keys, ways.head, ways.following, self.buffer)
        return self.buffer[:n].copy()

    def _ways(self, bun: Bundles, flows: Ints) -> tuple[Bundles, Moves]:
        """The way of each flow over the circuits that are up, and the class in which it goes there."""
        n = len(flows)
        row, latency, waits = np.empty(n, np.int64), np.empty(n), np.empty(n, bool)
        turn = np.empty(n, np.int8)
        if find_ways(self.ways, flows, row, latency, waits, turn):
            bun = self._make_rows(bun, flows[row == MISSING])
            find_ways(self.ways, flows, row, latency, waits, turn)
        self.ways.turn[flows] = turn
        return bun, Moves(flows, row, latency, waits, in_turn(self.ways.said[flows], turn))

    def _make_rows(self, bun: Bundles, flows: Ints) -> Bundles:
        """Paths for flows with a circuit of their pair, and for others over several where some are there."""
        ways, ends = self.ways, self.workload.flows
        src, dst = np.divmod(ways.key[flows], len(self.optics.ends))
        owner = ways.owner[:, src]
        lit = (ways.lit[:, src] == dst) & ((owner < 0) | (owner == ways.job[flows]))
        count = lit.sum(axis=0)
        wanted = ways.choice[flows] % np.maximum(count, 1)
        switch = np.argmax((np.cumsum(lit, axis=0) == wanted + 1) & lit, axis=0)
        place = np.where(count > 0, switch, ways.choice[flows])
        # Flows of the same hosts with the same circuits have one path.
        _, one = np.unique(np.stack((ways.pair[flows], place, count > 0)), axis=1, return_index=True)
        columns = (each[one].tolist() for each in (count, place, src, dst))
        chains = [
            ((s, a, b),) if direct else self._chain(a, b, s) for direct, s, a, b in zip(*columns, strict=True)
        ]
        found = np.array([len(chain) > 0 for chain in chains], bool)
        flows, at, several = flows[one], (ways.pair[flows[one]], place[one]), count[one] == 0
        bun, rows, seconds = self.table.of_circuits(
            bun, ends.src[flows[found]], ends.dst[flows[found]], [chain for chain in chains if chain]
        )
        row, latency = np.full(len(flows), MISSING, np.int64), np.zeros(len(flows))
        row[found], latency[found] = rows, seconds
        for columns_of, some in (
            ((ways.direct, ways.direct_s), ~several),
            ((ways.detour, ways.detour_s), several),
        ):
            where = at[0][some], at[1][some]
            columns_of[0][where], columns_of[1][where] = row[some], latency[some]
        ways.detour_at[at[0][several], at[1][several]] = ways.rule[VERSION]
        return bun

    def _chain(self, src: int, dst: int, choice: int) -> Chain:
        if self.chains is None:
            self.chains = Chains(self.ways.lit.copy(), self.circuits.hops)
        return self.chains.way(src, dst, choice)


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
    flows, turns = workload.flows, precedence(workload.flows.coflow)
    hosts = np.unique(flows.src * len(fabric.hosts) + flows.dst, return_inverse=True)[1]
    number = choices(workload, transport) % np.uint64(max(len(optics.nodes), 1))
    return LightPaths(
        optics=optics,
        circuits=circuits,
        cadence=cadence,
        cross=cross,
        pairs=pairs,
        table=table,
        workload=workload,
        ways=open_ways(
            pairs.key,
            hosts.astype(np.int64),
            number.astype(np.int64),
            workload.coflows.job[flows.coflow],
            flows.coflow,
            (routes.path, routes.latency),
            optics.up.shape,
            turns.turn,
            unmarked=unmarked,
            waits=circuits.without_circuit != "eps",
            several=circuits.hops > 1,
        ),
        buffer=np.zeros(workload.n_flows, np.int64),
        seen=np.zeros(workload.n_flows + most_parcels(parcels), np.int8),
        precedence=turns,
        outages=outages_of(faults, workload, fabric, routes, capacity),
        relays=parcels,
    )


def most_links(light: LightPaths | None) -> int:
    """Links of the longest way over circuits: two each, and those between a host and its end."""
    return 0 if light is None else 2 * min(light.circuits.hops, len(light.optics.ends)) + 2
