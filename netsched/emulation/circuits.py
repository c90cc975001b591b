"""The scheduler of optical circuits in a run: asked in real time, about what receivers have counted.

The same object as in the simulator, through the same gate, and what has been commanded is kept by the same
model. That says where each flow should be; what really happens is up to the process that sets the switches
(`optical`), which is told when to set what, and says afterwards when it did.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netsched.circuits import decide
from netsched.control import Cadence
from netsched.crossconnect import CrossConnect
from netsched.emulation import light
from netsched.emulation.optical import OpticalSwitch
from netsched.emulation.remote import Remote
from netsched.errors import EmulationError
from netsched.ledger import ACTIVE_LIST, Ledger, open_ledger
from netsched.model import Bools, CircuitPlan, Circuits, Control, Event, Floats, Ints, Workload
from netsched.observe import Static
from netsched.observe_circuits import PairsOf, circuit_view, pairs_of
from netsched.optics import Optics
from netsched.precedence import Precedence, in_turn, precedence
from netsched.shortest import Chains


@dataclass
class Controller:
    """State of one run. Times are seconds since `zero`, which is CLOCK_MONOTONIC.

    cross  what has been commanded, and which circuits should be up
    lit    (S, E) the end that each end reaches, as the flows have been told
    chains the ways over them, of as many in a row as the scheduler allows
    held   (F,) flows that wait for a circuit
    faulty whether a link has failed or changed
    precedence  who goes first on circuits;  takes_turns  whether the scheduler says that
    """

    circuits: Circuits
    optics: Optics
    cadence: Cadence
    cross: CrossConnect
    pairs: PairsOf
    remote: Remote
    switches: Sequence[OpticalSwitch]
    lit: Ints
    chains: Chains
    held: Bools
    precedence: Precedence
    zero: float = 0.0
    decisions: int = 0
    faulty: bool = False
    takes_turns: bool = False
    before: tuple[float, float] = field(default=(0.0, 0.0))

    def begin(self) -> None:
        """The run starts now; what has happened before is none of it."""
        state = self.remote.read()
        self.before = state.lit_s, state.dark_s
        self.remote.log.clear()
        self.zero = time.monotonic()

    def rehearse(self, fixed: Static) -> None:
        """Ask about all flows before the clock runs: the first answer may take a tenth of a second."""
        ledger = open_ledger(fixed.workload, fixed.routes.local)
        ledger.coflow_active[:] = 1
        everyone, sizes = np.arange(fixed.workload.n_flows), fixed.workload.flows.size
        plan = self._ask(fixed, ledger, everyone, sizes, 0.0)
        self.takes_turns = plan.first is not None

    def _ask(self, fixed: Static, ledger: Ledger, active: Ints, left: Floats, now: float) -> CircuitPlan:
        view = circuit_view(fixed, ledger, self.optics, self.pairs, self.cross, active, left, now)
        plan = decide(self.circuits, view, fixed.queues)
        if plan.owner is not None:
            raise EmulationError(
                f"circuits {self.circuits.name}: dedicated slices cannot be emulated: routes go by "
                "address and know no jobs: leave dedicated out, or run it on the simulator"
            )
        return plan

    def fail(self, down: Bools, capacity: Floats, now: float) -> None:
        """Let these links be down, and all have these bytes/s (of the scenario), from `now` on."""
        self.cadence.note(self.cross.fail(down, capacity, now))
        self.faulty = True
        each = zip(self.switches, self.cross.broken, strict=True)
        self.remote.fail([light.ports_of(switch, ends) for switch, ends in each])

    def due(self, ledger: Ledger) -> float:
        """When something changes next or the scheduler wants to be asked; inf for never."""
        asks = self.cadence.due() if ledger.count[ACTIVE_LIST] else np.inf
        return float(min(asks, self.cross.due()))

    def step(
        self, fixed: Static, ledger: Ledger, active: Ints, left: Floats, now: float, happened: Event
    ) -> Ints:
        """Ask what is to be asked at `now`; the flows of `active` that begin or cease to wait, or
        have another turn.

        `active`: flows released and not ended, `left` the bytes of all flows that have not arrived.
        """
        self.cadence.note(happened)
        if len(active) and self.cadence.due() <= now:
            self.cross.advance(now)
            plan = self._ask(fixed, ledger, active, left, now)
            self.decisions += 1
            self.cadence.decided(now, plan)
            self.precedence.plan(plan.first, now + self.cadence.control.delay)
            if len(plan.hold):
                self.cross.command(plan, now + self.cadence.control.delay)
                self.remote.command([(self.zero + at, self._on_ports(out)) for at, out in self.cross.steps])
        self.cross.advance(now)
        before, self.lit = self.lit, self.cross.up()
        if not np.array_equal(before, self.lit):
            self.chains = Chains(self.lit, self.circuits.hops)
        self.precedence.advance(now, self.lit)
        return self.wait(active)

    def classes(self, flows: Ints, rank: Ints) -> Ints:
        """The classes in which flows go that their policy gives these."""
        return in_turn(rank, self.precedence.turn[flows])

    def wait(self, flows: Ints) -> Ints:
        """Those of `flows` that begin or cease to wait for a circuit, or have another turn on it."""
        key = self.pairs.key[flows]
        src, dst = np.divmod(key, self.lit.shape[1])
        pairs = zip(src.tolist(), dst.tolist(), strict=True)
        dark = np.array([self.chains.toward(to)[end] < 0 for end, to in pairs], bool)
        waits = (key >= 0) & dark & (self.circuits.without_circuit == "wait")
        lit = (key >= 0) & (self.lit[:, src] == dst).any(axis=0)
        turn = self.precedence.turns(flows, key, lit, waits)
        changed = (waits != self.held[flows]) | (turn != self.precedence.turn[flows])
        self.held[flows], self.precedence.turn[flows] = waits, turn
        told: Ints = flows[changed]
        return told

    def cut(self) -> int:
        """Frames that came to optical ports whose cable had failed."""
        return self.remote.read().cut

    def dark_late(self) -> Floats:
        """Seconds by which each dark time was longer than commanded, one per change that gave light again."""
        log, delay = self.remote.log, [switch.delay for switch in self.switches]
        late = [each.dark_s - delay[each.switch] for each in log if each.light < np.inf]
        return np.array(late, np.float64)

    def _on_ports(self, out: Ints) -> list[list[int]]:
        return [light.on_ports(switch, row) for switch, row in zip(self.switches, out, strict=True)]

    def readings(self, carried: Floats) -> dict[str, Any]:
        """What became of the circuits, for the result's `mechanisms`; measured, but for what is commanded.

        `carried`: payload bytes (of the scenario) that went over each link.
        """
        state = self.remote.read()
        lit, dark = state.lit_s - self.before[0], state.dark_s - self.before[1]
        lasted = lit + dark + state.failed_s
        down = self.optics.down[self.optics.down >= 0]
        late = self.dark_late()
        return {
            "circuits": self.circuits.name,
            "circuit_decisions": self.decisions,
            "circuit_changes": int(self.cross.changes.sum()),
            "circuit_bytes": float(carried[down].sum()),
            "circuit_dark_s": dark,
            "circuit_duty_cycle": lit / lasted if lasted > 0 else None,
            **({"circuit_failed_s": state.failed_s} if self.faulty else {}),
            "circuit_dark_commanded_s": sorted({float(each) for each in self.optics.delay}),
            "circuit_dark_apart_median_s": float(np.median(late)) if len(late) else None,
            "circuit_dark_apart_max_s": float(late[np.argmax(np.abs(late))]) if len(late) else None,
            "circuit_lost_frames": sum(each.lost for each in self.remote.log),
        }


def controller(
    circuits: Circuits,
    workload: Workload,
    optics: Optics,
    control: Control,
    remote: Remote,
    switches: Sequence[OpticalSwitch],
) -> Controller:
    """The controller of a run that has not begun, all circuits dark."""
    cadence = Cadence(circuits.events, control)
    cadence.review_at = 0.0
    cross = CrossConnect(optics)
    return Controller(
        circuits=circuits,
        optics=optics,
        cadence=cadence,
        cross=cross,
        pairs=pairs_of(workload, optics),
        remote=remote,
        switches=switches,
        lit=cross.up(),
        chains=Chains(cross.up(), circuits.hops),
        held=np.zeros(workload.n_flows, bool),
        precedence=precedence(workload.flows.coflow),
    )
