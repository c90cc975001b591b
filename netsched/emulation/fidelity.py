"""What an emulated run measured of itself, and whether its figures may be trusted.

An overloaded machine stretches every time without any error. So before each run all hosts send at once and
every receiver must get what the simulator says it gets, and during the run timers, processors and ports are
watched. A run that fails a check is INVALID: it is kept and shown, with the reason and a `scale` that
would fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from netsched.emulation.queues import Readings
from netsched.emulation.wiring import payload_share
from netsched.model import Floats

LEAST_RATE: Final = 0.93
"""Least share of its due rate that a port must reach before the run."""
MOST_LATE: Final = 0.05
"""Most that the slow tail of the control path (99th percentile) may be of a stage's completion time."""
MOST_CPU: Final = 0.9
"""Largest share of the processors that a run may use."""
MOST_PAUSE: Final = 0.1
"""Longest that a process of the run may stand still while it has work, of a stage's completion time."""
MOST_DARK_APART_S: Final = 1e-3
"""Most that the median dark time of optical switches may differ from the commanded one."""
LEAST_CARRIED: Final = 0.99
"""Least share of the flows' bytes that the ports must have seen."""


@dataclass(frozen=True)
class Measured:
    """The raw readings of one run.

    preflight   achieved rate over due rate, per host, when all send at once
    cpu         share of all processors that the run itself used, packets included, 0..1
    timer_late  s, how late each computation's end was noticed
    report_late s, how long after a flow's last byte its end was known
    pause       s, the longest that the conductor or an endpoint did not run when it was its turn
    due         payload bytes that should have crossed each link, on the wire
    ports       counters of the run
    connections how many were open
    dark_late   s by which each dark time of an optical switch was longer than commanded
    """

    preflight: Floats
    cpu: float
    timer_late: Floats
    report_late: Floats
    pause: float
    due: Floats
    ports: Readings
    connections: int
    dark_late: Floats


def verdict(seen: Measured, scale: float, stage_s: float) -> dict[str, Any]:
    """The `fidelity` of an Outcome: readings with units in their keys, `valid`, `reasons`, `fitting_scale`.

    `stage_s` is the mean stage completion time of the run, against which delays are judged.
    """
    carried = _carried(seen)
    late = max(_percentile(seen.timer_late, 99), _percentile(seen.report_late, 99))
    reached = float(seen.preflight.min(initial=1.0))
    reasons = []
    shrink = 1.0
    if reached < LEAST_RATE:
        shrink = min(shrink, 0.8 * reached)
        reasons.append(f"a port reached {reached:.0%} of its rate before the run, {LEAST_RATE:.0%} is needed")
    if seen.cpu > MOST_CPU:
        shrink = min(shrink, 0.7 / seen.cpu)
        reasons.append(f"the run used {seen.cpu:.0%} of the processors, at most {MOST_CPU:.0%} leaves room")
    if late > MOST_LATE * stage_s:
        shrink = min(shrink, 0.5)
        reasons.append(
            f"timers and reports were up to {late * 1e3:.1f} ms late (99th percentile), "
            f"more than {MOST_LATE:.0%} of a stage of {stage_s * 1e3:.0f} ms"
        )
    if seen.pause > MOST_PAUSE * stage_s:
        reasons.append(
            f"a process of the run stood still for {seen.pause * 1e3:.0f} ms, "
            f"more than {MOST_PAUSE:.0%} of a stage of {stage_s * 1e3:.0f} ms"
        )
    if carried < LEAST_CARRIED:
        reasons.append(f"a port saw {carried:.0%} of the bytes of its flows, {LEAST_CARRIED:.0%} is needed")
    if direct := int(seen.ports.direct_packets.sum()):
        reasons.append(f"{direct} packets went around the queues of a port")
    apart = float(np.median(seen.dark_late)) if len(seen.dark_late) else 0.0
    if abs(apart) > MOST_DARK_APART_S:
        reasons.append(
            f"dark times of optical switches were {apart * 1e3:+.1f} ms off (median), "
            f"{MOST_DARK_APART_S * 1e3:g} ms is allowed"
        )
    found: dict[str, Any] = {
        "valid": not reasons,
        "reasons": reasons,
        "preflight_rate_share_min": round(reached, 4),
        "cpu_share": round(seen.cpu, 4),
        "timer_late_p99_s": _percentile(seen.timer_late, 99),
        "timer_late_max_s": _percentile(seen.timer_late, 100),
        "report_late_p99_s": _percentile(seen.report_late, 99),
        "longest_pause_s": seen.pause,
        "port_bytes_share_min": round(carried, 4),
        "dropped_packets": int(seen.ports.drops.sum()),
        "direct_packets": direct,
        "connections": seen.connections,
    }
    if reasons:
        found["fitting_scale"] = float(f"{scale * shrink:.2g}")
    return found


def _carried(seen: Measured) -> float:
    """The least share, over links, of bytes seen to bytes due. Acknowledgements make it a bit more than 1."""
    payload = seen.ports.bytes.sum(axis=1) * payload_share()
    busy = seen.due > 0.01 * seen.due.max(initial=0.0)
    return float((payload[busy] / seen.due[busy]).min()) if busy.any() else 1.0


def _percentile(values: Floats, q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else 0.0


def reason_lines(fidelity: Mapping[str, Any]) -> list[str]:
    """The reasons of an INVALID run, with the scale that would fit."""
    advice = (
        f"; emulation.scale: {fidelity['fitting_scale']:g} would fit" if "fitting_scale" in fidelity else ""
    )
    return [f"{reason}{advice}" for reason in fidelity["reasons"]]
