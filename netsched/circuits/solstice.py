"""Solstice: few long circuits for the large demands, the packet switches for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from netsched.circuits.planes import Steps, assemble, nothing, planes
from netsched.model import CircuitPlan, CircuitView, Event, Floats, Ints
from netsched.units import Duration

_NIGHTS_PER_WEEK: Final = 50
_LEAST_WEEK: Final = 1e-3
_NIGHTS_PER_DAY: Final = 16 / 3
_NOISE: Final = 1e-12


@dataclass(frozen=True)
class Solstice:
    """BigSlice over a stuffed demand matrix (Solstice, CoNEXT 2015; its emulator's released code).

    Once per `week`: the demand is cut, max-min fair, to what an end can send and receive over circuits in
    the week; entries shorter than `min_day` are left to the packet switches; QuickStuff raises entries until
    all rows and columns have one sum; BigSlice takes perfect matchings of entries above a threshold that
    halves, each for as long as its least entry; the days are then stretched to fill the week, and where there
    are too many the shortest are dropped. Between two days is a night, the reconfiguration delay.

    `week` and `min_day` of 0 stand for the released defaults in units of the delay (1500 us and 160 us at
    30 us): 50 delays (1 ms at least) and 16/3 delays. Several switches of the same ends are one switch of
    their added rates, INFERRED, and so is that a circuit from an end to itself is left dark.
    """

    week: Duration = 0.0
    min_day: Duration = 0.0
    without_circuit: Literal["eps", "wait"] = "eps"

    name: ClassVar[str] = "solstice"
    events: ClassVar[Event] = Event.PORTS_CHANGED
    hops: ClassVar[int] = 1

    def __call__(self, view: CircuitView) -> CircuitPlan:
        longest = float(view.delay.max(initial=0.0))
        week = self.week or max(_NIGHTS_PER_WEEK * longest, _LEAST_WEEK)
        parts = []
        for plane in planes(view):
            m = len(plane.switches)
            seconds = plane.demand / (plane.rate * m)
            out, day = days(seconds, week, plane.delay, self.min_day or _NIGHTS_PER_DAY * plane.delay)
            if len(day):
                here = np.arange(out.shape[1])
                dark = np.where(out == here, -1, out)
                steps = np.repeat(dark[:, None, :], m, axis=1)
                parts.append((plane, Steps(steps, day + plane.delay)))
        return assemble(view, parts, week) if parts else nothing(view, week)


def days(demand: Floats, week: float, night: float, min_day: float) -> tuple[Ints, Floats]:
    """Permutations (k, n) and the seconds (k,) of each day, so that days and k nights make the week.

    `demand` is (n, n) in seconds of a circuit; nights are before the days. Empty: nothing is worth a day.
    """
    n = len(demand)
    empty = np.zeros((0, n), np.int64), np.zeros(0)
    room = week - night
    if room < max(min_day, _NOISE):
        return empty
    wanted = fair_cut(demand, room)
    trimmed = np.where(wanted >= max(min_day, _NOISE * week), wanted, 0.0)
    if not trimmed.any():
        return empty
    found, length = _big_slice(quick_stuff(trimmed, wanted), week, night, min_day)
    if not len(length):
        return empty
    kept = np.argsort(-length, kind="stable")
    fits = np.cumsum(length[kept] + night) <= week * (1 + _NOISE)
    kept = np.sort(kept[fits])
    free = week - night * len(kept)
    return found[kept], length[kept] * (free / length[kept].sum())


def fair_cut(demand: Floats, most: float) -> Floats:
    """The demand, no row or column above `most`: all entries rise together until theirs is full."""
    cut = np.zeros_like(demand)
    open_ = demand > 0
    while open_.any():
        rows, columns = open_.sum(axis=1), open_.sum(axis=0)
        left_row = np.maximum(most - cut.sum(axis=1), 0.0)
        left_column = np.maximum(most - cut.sum(axis=0), 0.0)
        step = min(
            float((demand - cut)[open_].min()),
            float((left_row[rows > 0] / rows[rows > 0]).min()),
            float((left_column[columns > 0] / columns[columns > 0]).min()),
        )
        cut[open_] += step
        full_row = most - cut.sum(axis=1) <= _NOISE * most
        full_column = most - cut.sum(axis=0) <= _NOISE * most
        open_ &= (demand - cut > _NOISE * most) & ~full_row[:, None] & ~full_column[None, :]
    return cut


def quick_stuff(demand: Floats, before: Floats) -> Floats:
    """The demand with entries raised until every row and column has the sum of the largest.

    First those that are not zero, the largest first, then those that were trimmed (`before` has them), then
    any, where the slack is largest: so that few small entries are made.
    """
    out = demand.copy()
    top = max(float(out.sum(axis=1).max()), float(out.sum(axis=0).max()))
    row, column = top - out.sum(axis=1), top - out.sum(axis=0)
    for group in (demand, np.where(demand > 0, 0.0, before)):
        flat = np.flatnonzero(group)
        for cell in flat[np.argsort(-group.ravel()[flat], kind="stable")].tolist():
            i, j = divmod(cell, len(out))
            more = min(row[i], column[j])
            if more > 0:
                out[i, j] += more
                row[i] -= more
                column[j] -= more
    while True:
        i, j = int(row.argmax()), int(column.argmax())
        more = min(row[i], column[j])
        if more <= _NOISE * top:
            return out
        out[i, j] += more
        row[i] -= more
        column[j] -= more


def _big_slice(stuffed: Floats, week: float, night: float, min_day: float) -> tuple[Ints, Floats]:
    """Perfect matchings of entries at the threshold or above, until they fill the week."""
    left = stuffed.copy()
    base = max(min_day, 2 * night, 1e-3 * week)
    threshold = base
    while threshold < week / 4:
        threshold *= 2
    found: list[Ints] = []
    length: list[float] = []
    here = np.arange(len(left))
    while sum(length) + night * len(length) < week:
        chosen = maximum_bipartite_matching(csr_array(left >= threshold * (1 - _NOISE)), perm_type="column")
        if (chosen < 0).any():
            if threshold <= base:
                break
            threshold = max(threshold / 2, base)
            continue
        day = float(left[here, chosen].min())
        left[here, chosen] -= day
        found.append(chosen.astype(np.int64))
        length.append(day)
    return np.array(found, np.int64).reshape(len(found), len(left)), np.array(length)
