"""Optical switches that join the same ends are planes of one network, and most schedulers see one matrix.

A scheduler of one switch is written for a square demand matrix. Here a view falls into such matrices, one per
group of switches with ports to the same ends, and what is scheduled for each becomes one plan again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from netsched.model import CircuitPlan, CircuitView, Floats, Ints

NONE: Final = -1
"""An end without a circuit."""

AT_ONCE: Final = 1e-9
"""Seconds by which the times of two commands differ by rounding only."""


@dataclass(frozen=True)
class Plane:
    """n ends that the same m switches join, numbered 0..n-1 here.

    view         what they are in
    share        (n, n) the group's part of each pair's bytes, by its rates where several groups join the ends
    rate         bytes/s of one port: the least of the group
    packet_rate  (n,) bytes/s of each end over packet switches
    delay        seconds, the longest of the group
    out, dark    (m, n) the present circuits, and the seconds until each is up
    """

    switches: Ints
    ends: Ints
    view: CircuitView
    share: Floats
    rate: float
    packet_rate: Floats
    delay: float
    out: Ints
    dark: Floats

    @cached_property
    def demand(self) -> Floats:
        """(n, n) bytes that wait, of those for this group. Made on demand: not all look at it."""
        found: Floats = self.view.demand[np.ix_(self.ends, self.ends)] * self.share
        return found


@dataclass(frozen=True)
class Steps:
    """What one plane is to do: `out` (k, m, n) and `hold` (k,) as in a `CircuitPlan`."""

    out: Ints
    hold: Floats


def planes(view: CircuitView) -> tuple[Plane, ...]:
    """The groups of switches with ports to the same ends, in the order of their first switch."""
    has = view.rate > 0
    groups: dict[bytes, list[int]] = {}
    for s in range(len(has)):
        groups.setdefault(has[s].tobytes(), []).append(s)
    reach = [has[group[0]] for group in groups.values()]
    total = np.zeros((has.shape[1],) * 2)
    for group, ends in zip(groups.values(), reach, strict=True):
        total += np.outer(ends, ends) * view.rate[group].sum(axis=0)
    found = []
    for group, ends in zip(groups.values(), reach, strict=True):
        rows = np.flatnonzero(ends)
        inside = np.ix_(rows, rows)
        switches = np.array(group, np.int64)
        rate = view.rate[np.ix_(switches, rows)]
        number = np.append(np.where(ends, np.cumsum(ends) - 1, NONE), NONE)  # the last entry is for -1
        found.append(
            Plane(
                switches=switches,
                ends=rows,
                view=view,
                share=rate.sum(axis=0)[:, None] / total[inside],
                rate=float(rate.min()),
                packet_rate=view.packet_rate[rows],
                delay=float(view.delay[group].max()),
                out=number[view.out[np.ix_(switches, rows)]].astype(np.int64),
                dark=view.dark[np.ix_(switches, rows)],
            )
        )
    return tuple(found)


def assemble(view: CircuitView, parts: Sequence[tuple[Plane, Steps]], review_in: float) -> CircuitPlan:
    """One plan from the steps of all planes; a plane without steps is left as it is."""
    begins = [np.concatenate([[0.0], np.cumsum(steps.hold)[:-1]]) for _, steps in parts if len(steps.hold)]
    if not begins:
        return nothing(view, review_in)
    times = apart(np.concatenate(begins))
    out = np.repeat(view.out[None], len(times), axis=0)
    end = 0.0
    for plane, steps in parts:
        if not len(steps.hold):
            continue
        starts = np.concatenate([[0.0], np.cumsum(steps.hold)[:-1]])
        at = np.searchsorted(starts, times + AT_ONCE, side="right") - 1
        named = np.append(plane.ends, NONE)[steps.out]
        out[np.ix_(np.arange(len(times)), plane.switches, plane.ends)] = named[at]
        end = max(end, float(steps.hold.sum()))
    return CircuitPlan(out, np.diff(np.append(times, end)), review_in)


def apart(times: Floats) -> Floats:
    """The times in order, without those that are AT_ONCE with one before."""
    ordered = np.unique(times)
    kept = [ordered[0]]
    for t in ordered[1:].tolist():
        if t > kept[-1] + AT_ONCE:
            kept.append(t)
    return np.array(kept)


def nothing(view: CircuitView, review_in: float = float("inf")) -> CircuitPlan:
    """Change nothing, and ask again within `review_in` seconds."""
    return CircuitPlan(np.zeros((0, *view.out.shape), np.int64), np.zeros(0), review_in)


def heaviest(weight: Floats) -> Ints:
    """A matching of greatest total weight: per row its column, -1 where that would carry nothing.

    `weight` is (n, n), 0 or more; the diagonal is not matched.
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 (slow to import)

    values = weight.copy()
    np.fill_diagonal(values, 0.0)
    rows, columns = linear_sum_assignment(values, maximize=True)
    out = np.full(len(values), NONE, np.int64)
    useful = values[rows, columns] > 0
    out[rows[useful]] = columns[useful]
    return out
