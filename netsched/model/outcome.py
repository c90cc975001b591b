"""What happened: how far a run is, and what one engine did with one scheme."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from netsched.model.columns import Floats, Ints


@dataclass(frozen=True)
class Standing:
    """How far a run is: its time in seconds, active flows, the coflows that own them, ended flows of all."""

    now: float
    active: int
    coflows: int
    finished: int
    flows: int


@dataclass(frozen=True)
class Outcome:
    """What one engine did with one policy, columns aligned with the `Workload`. Times in seconds, NaN: never.

    `flow_class` is the last class the flow had; `link_bytes` payload bytes carried per fabric link;
    `fidelity` what the engine measured of itself ("valid": bool, "reasons": [str], ...);
    `mechanisms` what realised the plan ("priority": "htb-prio", ...).
    """

    flow_release: Floats
    flow_finish: Floats
    flow_class: Ints
    task_start: Floats
    task_finish: Floats
    link_bytes: Floats
    simulated_s: float
    wall_s: float
    peak_rss_bytes: int
    decisions: int
    fidelity: Mapping[str, Any]
    mechanisms: Mapping[str, Any]
