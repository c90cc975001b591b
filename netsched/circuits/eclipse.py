"""Eclipse: the matching and duration that carry most per second of day and night, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np

from netsched.circuits.planes import NONE, Steps, assemble, heaviest, nothing, planes
from netsched.model import CircuitPlan, CircuitView, Event, Floats, Ints
from netsched.units import Duration

_NIGHTS_PER_WINDOW: Final = 50
_LEAST_WINDOW: Final = 1e-3
_SHORTEST: Final = 1e-6
"""The shortest day as a share of the window."""


@dataclass(frozen=True)
class Eclipse:
    """Greedy choice of (matching, duration) by bytes per second, delay included (Eclipse, SIGMETRICS 2016).

    What circuits carry is submodular in the configurations chosen, so that the greedy choice carries at
    least about 1 - 1/e of the best for a window, direct circuits only (the multi-hop Eclipse++ is not here).
    For each duration a max-weight matching of the demand cut to it. Durations tried are those at which the
    cut begins to bite, the demands themselves; where these are more than `durations`, quantiles of them.

    INFERRED: `window` of 0 is 50 reconfiguration delays, 1 ms at least; several switches of the same ends are
    one of their added rates.
    """

    window: Duration = 0.0
    durations: int = 32
    without_circuit: Literal["eps", "wait"] = "eps"

    name: ClassVar[str] = "eclipse"
    events: ClassVar[Event] = Event.PORTS_CHANGED
    hops: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.durations < 1:
            raise ValueError(f"durations is {self.durations}, must be 1 or more")

    def __call__(self, view: CircuitView) -> CircuitPlan:
        window = self.window or max(_NIGHTS_PER_WINDOW * float(view.delay.max(initial=0.0)), _LEAST_WINDOW)
        parts = []
        for plane in planes(view):
            m = len(plane.switches)
            out, day = greedy(plane.demand / (plane.rate * m), window, plane.delay, self.durations)
            if len(day):
                parts.append((plane, Steps(np.repeat(out[:, None, :], m, axis=1), day + plane.delay)))
        return assemble(view, parts, window) if parts else nothing(view, window)


def greedy(demand: Floats, window: float, delay: float, durations: int) -> tuple[Ints, Floats]:
    """Matchings (k, n), -1 for none, and the seconds (k,) of each: days and k delays fit the window.

    `demand` is (n, n) in seconds of a circuit.
    """
    left = demand.copy()
    np.fill_diagonal(left, 0.0)
    n = len(left)
    time = window
    found: list[Ints] = []
    length: list[float] = []
    rows = np.arange(n)
    shortest = _SHORTEST * window
    while time - delay > shortest and left.any():
        best, chosen, day = 0.0, np.full(n, NONE, np.int64), 0.0
        for alpha in _durations(left, shortest, time - delay, durations):
            cut = np.minimum(left, alpha)
            out = heaviest(cut)
            up = out >= 0
            value = float(cut[rows[up], out[up]].sum()) / (alpha + delay)
            if value > best:
                best, chosen, day = value, out, alpha
        up = chosen >= 0
        left[rows[up], chosen[up]] = np.maximum(0.0, left[rows[up], chosen[up]] - day)
        found.append(chosen)
        length.append(day)
        time -= day + delay
        # What rounding leaves over would be served in ever smaller days.
        left[left < 1e-9 * window] = 0.0
    return np.array(found, np.int64).reshape(len(found), n), np.array(length)


def _durations(left: Floats, least: float, most: float, count: int) -> list[float]:
    each = np.unique(np.clip(left[left > 0], least, most))
    if len(each) > count:
        each = np.unique(np.quantile(each, np.linspace(0.0, 1.0, count), method="nearest"))
    return [float(x) for x in each]
