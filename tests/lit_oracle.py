"""The plain simulator with an optical switch that follows a script, and random scripts for it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from circuit_cases import Script
from oracle import SAME_TIME, Oracle
from sim_cases import GlobalTable, OddLocal, Table

from netsched.fabrics import build
from netsched.model import Spec
from netsched.policies.fair import Fair

DELAY = 0.17
FABRIC = build(
    Spec(
        "hybrid",
        {
            "racks": 4,
            "hosts_per_rack": 2,
            "spines": 2,
            "host_rate": "24bit/s",
            "uplink_rate": "8bit/s",
            "circuit_rate": "20bit/s",
            "reconfiguration": "170ms",
        },
    )
)[1]


LINKS = {
    (FABRIC.nodes[a], FABRIC.nodes[b]): link
    for link, (a, b) in enumerate(zip(FABRIC.link_src.tolist(), FABRIC.link_dst.tolist(), strict=True))
}


def links_between(*names: str) -> tuple[int, ...]:
    """The links along these nodes."""
    return tuple(LINKS[pair] for pair in itertools.pairwise(names))


@dataclass
class Lit(Oracle):
    """The oracle with one optical switch of FABRIC that follows a script from the first release on."""

    script: Script | None = None

    def begun(self) -> float:
        return min((self.start[f] for f in self.order), default=math.inf)

    def up(self, end: int) -> int:
        """The end reached: what is commanded, if that has been so for as long as it takes."""
        assert self.script is not None
        t = self.now * (1 + SAME_TIME) - self.begun()
        past = [(at, row[end]) for at, row in self.script.steps if at <= t]
        if not past or past[-1][1] < 0:
            return -1
        since, to = past[-1]
        for at, row in reversed(past):
            if row != to:
                break
            since = at
        return to if since + DELAY <= t else -1

    def way(self, flow):
        assert self.script is not None
        flows = self.workload.flows
        src, dst = int(flows.src[flow]), int(flows.dst[flow])
        if src // 2 == dst // 2:
            return self.path[flow]
        if self.up(src // 2) == dst // 2:
            racks = f"tor{src // 2 + 1}", "ocs1", f"tor{dst // 2 + 1}"
            return links_between(FABRIC.hosts[src], *racks, FABRIC.hosts[dst])
        return self.path[flow] if self.script.without_circuit == "eps" else None

    def class_now(self, flow):
        """Where the script says who goes first on the flow's circuit, the first class is for that coflow."""
        assert self.script is not None
        src, dst = (int(each[flow]) // 2 for each in (self.workload.flows.src, self.workload.flows.dst))
        first = -1 if self.script.first is None or src == dst else self.script.first[src][dst]
        if first < 0 or self.up(src) != dst:
            return self.cls[flow]
        return 0 if first == self.coflow[flow] else max(self.cls[flow], 1)

    def next_change(self):
        assert self.script is not None
        begun = self.begun()
        if begun == math.inf:
            return math.inf
        times = [begun + at + dark for at, _ in self.script.steps for dark in (0.0, DELAY)]
        return min((t for t in times if t > self.now * (1 + SAME_TIME)), default=math.inf)


def random_script(rng, without_circuit):
    """Matchings at random times, some of whose circuits stay, and then rings, which starve nobody."""
    steps, row, at = [], [-1] * 4, 0.0
    for _ in range(int(rng.integers(3, 12))):
        order = rng.permutation(4)
        fresh = [int(order[e]) if order[e] != e and rng.random() < 0.8 else -1 for e in range(4)]
        keep = rng.random() < 0.5 and row[0] >= 0 and row[0] not in fresh[1:]
        row = [row[0] if keep else fresh[0], *fresh[1:]]
        steps.append((at, tuple(row)))
        at += float(rng.exponential(0.6)) + 1e-3
    for jump in (1, 2, 3) * 8:
        steps.append((at, tuple((e + jump) % 4 for e in range(4))))
        at += 3.0
    return Script(tuple(steps), without_circuit)


TABLES = (
    Fair(),
    Table(rank={f: f % 3 for f in range(60)}, weight={f: 1.0 + f % 2 for f in range(60)}),
    GlobalTable(rank={f: f % 4 for f in range(60)}, rate=dict.fromkeys(range(0, 60, 5), 0.7)),
    OddLocal(),
)
