"""Bytes that take two circuits one after the other, kept by the end in between until the second one is up.

RotorLB (RotorNet, SIGCOMM 2017, section 4) in a fluid. What a flow sends ahead is a *parcel*: it leaves the
flow when it is offered, has a slot of its own in `Bundles`, behind those of the flows, and crosses first one
circuit and then the other. Its flow ends when its own bytes and all its parcels have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from netsched import ledger as books
from netsched.bundles import IN_FLIGHT, NOWHERE, Bundles, settle_left
from netsched.errors import PolicyError
from netsched.ledger import Ledger
from netsched.membership import insert_all
from netsched.model import BEST_EFFORT, Bools, Floats, Ints, Workload
from netsched.observe_circuits import PairsOf
from netsched.optics import NO_HOST, Optics
from netsched.pathtable import PathTable
from netsched.reroute import withdraw
from netsched.shortest import Chain
from netsched.uses import Uses

FREE, COMING, KEPT, LEAVING = range(4)
"""What a slot holds: nothing; a parcel on its first circuit; one that waits; one on its second circuit."""

AHEAD, FIRST = BEST_EFFORT, 0
"""The classes of a parcel on its first circuit, after all flows, and on its second, with the first flows."""

SLOTS_KEPT: Final = 2
"""Slots' worth of bytes that an end keeps for one other: the limit in Opera's released RotorLB."""

_DUST: Final = 1e-6
"""Of what a circuit carries until it goes: no part of a flow is less."""

_ROUNDING: Final = 1e-12


@dataclass
class Relays:
    """The parcels of a run; slot p has number `first` + p in `Bundles`. Bytes unless said otherwise.

    state     (P,) FREE, COMING, KEPT or LEAVING;  flow (P,) whose it is;  keeper (P,) the end in between
    switch    (P,) optical switch of the circuit that a COMING or LEAVING parcel is on
    amount    (P,) of a COMING parcel what was offered, of others what has come
    slot_bytes   what a circuit carries until it goes: `CircuitPlan.slot_bytes`
    relayed      what has arrived over two circuits, in the whole run
    """

    first: int
    optics: Optics
    workload: Workload
    pairs: PairsOf
    table: PathTable
    state: Ints
    flow: Ints
    keeper: Ints
    switch: Ints
    amount: Floats
    slot_bytes: float = 0.0
    relayed: float = 0.0

    def sending(self, bun: Bundles) -> Ints:
        """The numbers in `bun` of the parcels that are under way now."""
        slots = np.flatnonzero(self.state) + self.first
        return slots[bun.bundle_of[slots] >= 0]

    def readings(self, bun: Bundles) -> dict[str, float]:
        """For the result's `mechanisms`: what took two circuits and arrived, and what has not yet."""
        waiting = bun.left[self.first + np.flatnonzero(self.state)]
        return {"relayed_bytes": self.relayed, "relayed_bytes_left": float(waiting.sum())}

    def sort(self, ledger: Ledger, bun: Bundles, now: float) -> None:
        """Note which parcels have crossed the circuit that they were on."""
        slots = np.flatnonzero((self.state == COMING) | (self.state == LEAVING))
        ended = slots[bun.bundle_of[self.first + slots] == NOWHERE]
        came = ended[self.state[ended] == COMING]
        self._keep(bun, came, self.amount[came])
        for p in ended[self.state[ended] == LEAVING].tolist():
            self.relayed += float(self.amount[p])
            self._arrive(ledger, bun, p, now)

    def take_back(self, bun: Bundles, net: Uses, up: Ints) -> Ints:
        """Stop the parcels whose circuit has gone: the flows to which bytes went back that were offered."""
        slots = np.flatnonzero((self.state == COMING) | (self.state == LEAVING))
        src, dst = self._ends(self.flow[slots])
        coming, keeper = self.state[slots] == COMING, self.keeper[slots]
        goes = up[self.switch[slots], np.where(coming, src, keeper)]
        lost = slots[goes != np.where(coming, keeper, dst)]
        if not len(lost):
            return np.zeros(0, np.int64)
        settle_left(bun, lost + self.first)
        withdraw(bun, net, lost + self.first)
        coming = self.state[lost] == COMING
        self.state[lost[~coming]] = KEPT
        came, rest = lost[coming], bun.left[self.first + lost[coming]]
        np.add.at(bun.left, self.flow[came], rest)
        some = rest < self.amount[came]
        self._keep(bun, came[some], (self.amount[came] - rest)[some])
        none = came[~some]
        self.state[none] = FREE
        np.subtract.at(bun.parcels, self.flow[none], 1)
        return np.unique(self.flow[came[rest > 0]])

    def forward(self, bun: Bundles, net: Uses, lit: Ints) -> Bundles:
        """Let the parcels go on whose second circuit is up."""
        slots = np.flatnonzero(self.state == KEPT)
        if not len(slots):
            return bun
        dst = self._ends(self.flow[slots])[1]
        ways = lit[:, self.keeper[slots]] == dst
        able = ways.any(axis=0)
        slots, dst, switch = slots[able], dst[able], ways.argmax(axis=0)[able]
        self.state[slots] = LEAVING
        chains = self._chains(switch, self.keeper[slots], dst)
        hosts = self.workload.flows.dst[self.flow[slots]]
        return self._send(bun, net, slots, np.full(len(slots), NO_HOST), hosts, chains, FIRST)

    def offer(
        self, ledger: Ledger, bun: Bundles, net: Uses, fresh: Bools, lit: Ints, able: Ints, active: Ints
    ) -> Bundles:
        """Send ahead, over circuits (S, E) that have just come up, what flows (`able`) without one may.

        A circuit takes what its own end's bytes for the other end, and those it keeps for that, leave of
        `slot_bytes`, shared max-min by the ends that they are for. An end keeps SLOTS_KEPT times as much for
        each other: what its next circuit takes along, and what comes while that waits.
        """
        n = len(self.optics.ends)
        key = self.pairs.key
        some = active[key[active] >= 0]
        direct = np.bincount(key[some], bun.left[some], n * n).reshape(n, n)
        able = able[np.lexsort((able, ledger.start[able]))]
        for s, i in zip(*(each.tolist() for each in np.nonzero(fresh)), strict=True):
            k = int(lit[s, i])
            kept = self._kept(bun)
            mine = able[(key[able] // n == i) & (key[able] % n != k) & (bun.left[able] > 0)]
            wants = np.bincount(key[mine] % n, bun.left[mine], n).astype(np.float64)
            free = max(self.slot_bytes - float(direct[i, k]) - float(kept[i, k]), 0.0)
            quota = _fill(np.minimum(wants, np.maximum(SLOTS_KEPT * self.slot_bytes - kept[k], 0.0)), free)
            bun = self._pack(bun, net, mine, key[mine] % n, quota, s, i, k)
        return bun

    def _pack(
        self, bun: Bundles, net: Uses, flows: Ints, to: Ints, quota: Floats, s: int, i: int, k: int
    ) -> Bundles:
        """Make parcels of the flows, those released first first, until each end's quota is used up."""
        chosen: list[int] = []
        share: list[float] = []
        for f, j in zip(flows.tolist(), to.tolist(), strict=True):
            whole, most = float(bun.left[f]), float(quota[j])
            # The quota is a sum of such wholes, and what is rounded off must not wait for another circuit.
            part = whole if whole * (1 - _ROUNDING) <= most else most
            if part > _DUST * self.slot_bytes or 0 < part == whole:
                quota[j] -= part
                chosen.append(f)
                share.append(part)
        slots = np.flatnonzero(self.state == FREE)[: len(chosen)]
        if len(slots) < len(chosen):
            raise PolicyError(
                f"circuits: more than {len(self.state)} parts of flows are under way over two circuits; "
                "use fewer and larger flows, or `without_circuit: wait`"
            )
        owners, parts = np.array(chosen, np.int64), np.array(share)
        self.state[slots], self.flow[slots], self.keeper[slots] = COMING, owners, k
        self.amount[slots] = parts
        bun.left[self.first + slots] = parts
        bun.left[owners] -= parts
        bun.parcels[owners] += 1
        bun.bundle_of[owners[bun.left[owners] <= 0]] = IN_FLIGHT
        ends = (np.full(len(slots), each) for each in (s, i, k))
        hosts = self.workload.flows.src[owners]
        return self._send(bun, net, slots, hosts, np.full(len(slots), NO_HOST), self._chains(*ends), AHEAD)

    def _send(
        self, bun: Bundles, net: Uses, slots: Ints, src: Ints, dst: Ints, chains: list[Chain], cls: int
    ) -> Bundles:
        bun, rows, seconds = self.table.of_circuits(bun, src, dst, chains)
        self.switch[slots] = [chain[0][0] for chain in chains]
        number = self.first + slots
        bun.path_of_flow[number] = rows
        bun.latency[number] = seconds
        bun.rank[number] = cls
        if not bun.queued[0]:
            bun.group[number] = rows
        insert_all(bun, net, number)
        return bun

    def _keep(self, bun: Bundles, slots: Ints, amount: Floats) -> None:
        self.state[slots] = KEPT
        self.amount[slots] = amount
        bun.left[self.first + slots] = amount

    def _arrive(self, ledger: Ledger, bun: Bundles, p: int, now: float) -> None:
        """The last byte of a parcel is on its way to its host, and with the last parcel the flow's."""
        self.state[p] = FREE
        f = int(self.flow[p])
        bun.parcels[f] -= 1
        if bun.parcels[f] == 0 and bun.bundle_of[f] == IN_FLIGHT:
            books.push_timer(ledger, now + float(bun.latency[self.first + p]), f)

    def _kept(self, bun: Bundles) -> Floats:
        """(E, E) bytes that an end keeps for another, or that are on their way to it for that one."""
        n = len(self.optics.ends)
        slots = np.flatnonzero(self.state)
        dst = self._ends(self.flow[slots])[1]
        amount = np.where(self.state[slots] == COMING, self.amount[slots], bun.left[self.first + slots])
        total = np.bincount(self.keeper[slots] * n + dst, amount, n * n)
        return total.astype(np.float64).reshape(n, n)

    def _ends(self, flows: Ints) -> tuple[Ints, Ints]:
        src, dst = np.divmod(self.pairs.key[flows], len(self.optics.ends))
        return src, dst

    def _chains(self, switch: Ints, src: Ints, dst: Ints) -> list[Chain]:
        return [(each,) for each in zip(switch.tolist(), src.tolist(), dst.tolist(), strict=True)]


def room_for_parcels(n_flows: int, n_ends: int) -> int:
    """How many parcels there can be at a time.

    An offer over a circuit from i through k takes whole flows, and a part of one flow per end that they are
    for. A circuit that goes may cut all its parcels once more before a round has gone by.
    """
    return min(2 * n_flows * max(n_ends - 2, 0), n_flows + 4 * n_ends**3)


def most_parcels(relays: Relays | None) -> int:
    return 0 if relays is None else len(relays.state)


def relays(workload: Workload, optics: Optics, pairs: PairsOf, table: PathTable) -> Relays:
    n = room_for_parcels(workload.n_flows, len(optics.ends))
    return Relays(
        first=workload.n_flows,
        optics=optics,
        workload=workload,
        pairs=pairs,
        table=table,
        state=np.full(n, FREE, np.int64),
        flow=np.zeros(n, np.int64),
        keeper=np.zeros(n, np.int64),
        switch=np.zeros(n, np.int64),
        amount=np.zeros(n),
    )


def _fill(wants: Floats, total: float) -> Floats:
    """Max-min shares of `total` among the wants."""
    share = np.zeros(len(wants))
    order = np.argsort(wants, kind="stable")
    for position, j in enumerate(order.tolist()):
        share[j] = min(float(wants[j]), total / (len(order) - position))
        total -= share[j]
    return share
