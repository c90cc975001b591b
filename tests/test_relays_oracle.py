"""Bytes that take two circuits one after the other: the simulator against a plain one that knows relays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from circuit_cases import Script
from lit_oracle import FABRIC, TABLES, Lit, links_between, random_script
from oracle import BEST_EFFORT, Connection
from sim_cases import NO_COST, PER_FLOW, PER_PAIR, random_workload, run

from netsched.model import Control

RACKS = 4
FIRST = 10**6
"""Numbers of parcels, behind those of all nodes."""


@dataclass(frozen=True)
class RelayScript(Script):
    """The script's plan with what its circuits carry until they go, as far as relays believe it."""

    slot_bytes: float = 1.0

    def __call__(self, view):
        return replace(super().__call__(view), slot_bytes=self.slot_bytes)


@dataclass
class Parcel:
    """A part of a flow: on its way to rack `keeper` over a circuit, kept there, or on its way from there."""

    flow: int
    keeper: int
    amount: float
    state: str = "comes"


@dataclass
class Relaying(Lit):
    """RotorLB in plain words (RotorNet, SIGCOMM 2017, section 4; limits as docs/simulator.md states them)."""

    lit: list[int] = field(default_factory=lambda: [-1] * RACKS)
    parcels: dict[int, Parcel] = field(default_factory=dict)
    made: int = 0
    relayed: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        self.left = dict(enumerate(self.left))

    def begun(self):
        return super().begun() + self.control.delay

    def racks(self, flow):
        flows = self.workload.flows
        return int(flows.src[flow]) // 2, int(flows.dst[flow]) // 2

    def others(self):
        return {
            number: Connection(0 if p.state == "goes" else BEST_EFFORT, 1.0, np.inf, self.way(number))
            for number, p in self.parcels.items()
            if p.state != "kept"
        }

    def way(self, flow):
        if flow not in self.parcels:
            return super().way(flow)
        p, flows = self.parcels[flow], self.workload.flows
        src, dst = int(flows.src[p.flow]), int(flows.dst[p.flow])
        if p.state == "comes":
            return links_between(FABRIC.hosts[src], f"tor{src // 2 + 1}", "ocs1", f"tor{p.keeper + 1}")
        return links_between(f"tor{p.keeper + 1}", "ocs1", f"tor{dst // 2 + 1}", FABRIC.hosts[dst])

    def sent_last(self, flow):
        if flow in self.parcels:
            p = self.parcels[flow]
            if p.state == "comes":
                p.state, self.left[flow] = "kept", p.amount
                return
            self.relayed += p.amount
            del self.parcels[flow], self.left[flow]
            if p.flow in self.sent_all and not self.of(p.flow):
                self.end(p.flow)
        elif self.of(flow):
            self.sent_all.add(flow)
        else:
            super().sent_last(flow)

    def of(self, flow):
        """The parcels of a flow that have not arrived."""
        return [p for p in self.parcels.values() if p.flow == flow]

    def switch(self):
        up = [self.up(end) for end in range(RACKS)]
        self.take_back(up)
        able = [
            f
            for f in self.unsent()
            if f not in self.fresh and self.gate[f] <= self.now and self.way(f) is None
        ]
        able.sort(key=lambda f: (self.start[f], f))
        for i in range(RACKS):
            if up[i] >= 0 and up[i] != self.lit[i]:
                self.offer([f for f in able if self.racks(f)[0] == i and self.racks(f)[1] != up[i]], i, up[i])
        for p in self.parcels.values():
            if p.state == "kept" and up[p.keeper] == self.racks(p.flow)[1]:
                p.state = "goes"
        self.lit = up

    def take_back(self, up):
        """What a circuit has not carried when it goes is the flow's again, or waits on."""
        for number, p in list(self.parcels.items()):
            src, dst = self.racks(p.flow)
            if p.state == "goes" and up[p.keeper] != dst:
                p.state = "kept"
            elif p.state == "comes" and up[src] != p.keeper:
                rest = self.left[number]
                self.left[p.flow] += rest
                self.sent_all.discard(p.flow)
                p.state, p.amount = "kept", p.amount - rest
                self.left[number] = p.amount
                if p.amount <= 0:
                    del self.parcels[number], self.left[number]

    def own(self, src, dst):
        """Bytes that wait at a rack for another, of its own flows."""
        active = [f for f in self.order if f not in self.finish and self.racks(f) == (src, dst)]
        return sum(self.left[f] for f in active)

    def kept(self, keeper, dst):
        """Bytes that a rack keeps for another, or that are on their way to it for that one."""
        mine = [(n, p) for n, p in self.parcels.items() if (p.keeper, self.racks(p.flow)[1]) == (keeper, dst)]
        return sum(p.amount if p.state == "comes" else self.left[n] for n, p in mine)

    def offer(self, flows, i, k):
        """Over the circuit from rack i to rack k that has come up: what that has left, max-min by target."""
        slot = self.script.slot_bytes
        room = {j: max(0.0, 2 * slot - self.kept(k, j)) for j in range(RACKS)}
        wants = {j: min(room[j], sum(self.left[f] for f in flows if self.racks(f)[1] == j)) for j in room}
        left = max(0.0, slot - self.own(i, k) - self.kept(i, k))
        quota = dict.fromkeys(room, 0.0)
        while hungry := [j for j in quota if quota[j] < wants[j]]:
            step = min([left / len(hungry), *(wants[j] - quota[j] for j in hungry)])
            for j in hungry:
                quota[j] = wants[j] if wants[j] - quota[j] == step else quota[j] + step
            left -= step * len(hungry)
            if left <= 1e-12 * slot:
                break
        for f in flows:
            j = self.racks(f)[1]
            # As much as rounding may have taken off the sum is no reason to leave a flow behind.
            part = self.left[f] if quota[j] >= self.left[f] * (1 - 1e-12) else quota[j]
            if part > 1e-6 * slot or 0 < part == self.left[f]:
                quota[j] -= part
                number = FIRST + self.made
                self.made += 1
                self.parcels[number] = Parcel(f, k, part)
                self.left[number] = part
                self.left[f] -= part
                if self.left[f] <= 0:
                    self.sent_all.add(f)


@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])
@pytest.mark.parametrize("policy", TABLES, ids=lambda policy: policy.name)
def test_agrees_with_the_oracle_while_bytes_take_two_circuits(policy, transport):
    relayed = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        workload = random_workload(rng, 2 * RACKS)
        plain = random_script(rng, "relay")
        script = RelayScript(plain.steps, "relay", slot_bytes=float(rng.uniform(0.5, 3.0)))
        control = Control(delay=0.21) if seed % 2 and not policy.local else NO_COST
        horizon = 60.0
        outcome = run(
            workload, FABRIC, policy, transport=transport, control=control, horizon=horizon, circuits=script
        )
        right = Relaying(
            workload, FABRIC, policy, None, transport, control, horizon, rng, script=script
        ).run()
        for mine, wanted in (
            (outcome.flow_finish, right.column(right.finish)),
            (outcome.task_finish, right.column(right.finish, tasks=True)),
            (outcome.link_bytes, right.carried),
        ):
            np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-9, err_msg=f"seed {seed}")
        assert outcome.mechanisms["relayed_bytes"] == pytest.approx(right.relayed, rel=1e-9, abs=1e-9)
        relayed += right.relayed > 1.0
    assert relayed >= 4
