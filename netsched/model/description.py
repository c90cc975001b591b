"""What a scenario asks for: fabric, workload, schemes to compare, and how flows are carried."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


class Connections(enum.Enum):
    """Which flows share a connection, the unit that shares bandwidth.

    PER_PAIR: one connection per job, host pair and class; its flows go one after the other in the
    order of their release. PER_FLOW: every flow has a connection of its own.
    """

    PER_PAIR = "per-pair"
    PER_FLOW = "per-flow"


@dataclass(frozen=True)
class Transport:
    """How flows map to connections."""

    connections: Connections = Connections.PER_FLOW


@dataclass(frozen=True)
class Control:
    """What the coordinator costs, and what its knowledge does. Seconds; 0 is the ideal.

    delay          from a decision to its effect
    period         least time between two decisions
    report_period  every host reports the bytes that its flows have sent at 0, 1, 2, ... times this; with 0
                   the coordinator sees them as they are
    report_delay   from a report to its arrival at the coordinator
    report_loss    share of the reports that never arrive, drawn for each host and report
    """

    delay: float = 0.0
    period: float = 0.0
    report_period: float = 0.0
    report_delay: float = 0.0
    report_loss: float = 0.0


@dataclass(frozen=True)
class Emulation:
    """How the scenario meets a real kernel. Rates and sizes are both multiplied by `scale` (times stay)."""

    scale: float
    chunk: int = 4096
    delay: str = "strict"


@dataclass(frozen=True)
class Spec:
    """The name of a plug-in and its parameters, as the scenario gives them."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`name`, or `name(key=value, ...)` where parameters are set: unique inside a scenario."""
        if not self.params:
            return self.name
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in sorted(self.params.items()))})"


@dataclass(frozen=True)
class Fault:
    """What happens to a cable or a host at `at` seconds, whoever schedules what.

    link   the names of the two nodes of a cable, both ways of which it concerns; None where it is a host
    host   the name of a host; None where it is a cable
    value  of a cable: bytes/s from then on, 0 for down, inf for as built; of a host: how many times as long
           its computations take that begin from then on, 1 for as built
    """

    at: float
    link: tuple[str, str] | None
    host: str | None
    value: float


UNPLACED: Final = Spec("none")
"""The placement of a scenario that names none: every job where and when the scenario says."""


@dataclass(frozen=True)
class Scheme:
    """What one run of a comparison schedules with. `label` tells the schemes of a scenario apart.

    `circuits` is None where the scenario names no schedulers of optical circuits.
    """

    policy: Spec
    circuits: Spec | None = None
    placement: Spec = UNPLACED

    @property
    def label(self) -> str:
        placement = None if self.placement == UNPLACED else self.placement
        parts = (self.policy, self.circuits, placement)
        return " + ".join(part.label for part in parts if part is not None)


@dataclass(frozen=True)
class Scenario:
    """A checked description; only `scenario.load` builds one. It never names an engine.

    `source` is the mapping as read (after --set), written back as scenario.yaml beside the results.
    `horizon` in seconds (inf: until every job has ended). `emulation` is None where the scenario
    is not meant for a real kernel. `circuits` are tried with every policy; none where the fabric has no
    optical switch. `faults` are in order of time. `plugins` are the files of policies that whoever runs it
    has allowed.
    """

    name: str
    fabric: Spec
    workload: tuple[Spec, ...]
    policies: tuple[Spec, ...]
    queues: int | None
    seed: int
    horizon: float
    transport: Transport
    control: Control
    emulation: Emulation | None
    source: Mapping[str, Any]
    path: str
    plugins: tuple[str, ...] = ()
    circuits: tuple[Spec, ...] = ()
    faults: tuple[Fault, ...] = ()
    placements: tuple[Spec, ...] = (UNPLACED,)

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """What the scenario compares, one run of each engine per scheme, in this order."""
        return tuple(
            Scheme(policy, circuits, placement)
            for placement in self.placements
            for policy in self.policies
            for circuits in self.circuits or (None,)
        )
