"""What the circuits of all optical switches are at a time: commanded, dark, up, down again.

Time alone moves this: an engine says what is commanded when, and reads which circuits carry. Ports fail and
come back here too, since a circuit whose port is gone carries nothing, whatever is commanded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from netsched.model import Bools, CircuitPlan, Event, Floats, Ints
from netsched.optics import Optics

_SAME_TIME = 1e-12


@dataclass
class CrossConnect:
    """State at `now` (s): `out` (S, E) as commanded, -1 none; `ready` (S, E) when its circuit is up.

    steps        what is commanded when, ascending
    broken       (S, E) ports without light
    soonest      when a circuit comes up next of those that are commanded, inf for none
    up_s         seconds that circuits carried light, added up over all of them
    failed_s     seconds that they would have, had no port been broken, likewise
    dark_s       seconds for which circuits were dark by command while they were set up, likewise
    changes      commands that changed a circuit, per switch
    """

    optics: Optics
    out: Ints = field(init=False)
    ready: Floats = field(init=False)
    broken: Bools = field(init=False)
    changes: Ints = field(init=False)
    steps: list[tuple[float, Ints]] = field(default_factory=list)
    now: float = 0.0
    soonest: float = float("inf")
    up_s: float = 0.0
    failed_s: float = 0.0
    dark_s: float = 0.0

    def __post_init__(self) -> None:
        shape = self.optics.up.shape
        self.out = np.full(shape, -1, np.int64)
        self.ready = np.zeros(shape)
        self.broken = np.zeros(shape, bool)
        self.changes = np.zeros(shape[0], np.int64)

    def command(self, plan: CircuitPlan, at: float) -> None:
        """Let the plan's steps follow from `at` on, in place of all that was to come."""
        if not len(plan.hold):
            return
        begins = at + np.concatenate([[0.0], np.cumsum(plan.hold)[:-1]])
        kept = [step for step in self.steps if step[0] < at]
        self.steps = kept + list(zip(begins.tolist(), plan.out, strict=True))

    def fail(self, down: Bools, capacity: Floats, now: float) -> Event:
        """Let these links of the fabric be down, and all have these bytes/s, from `now` on.

        What has happened by that: nothing to ports whose links are as they were.
        """
        self._pass(now)
        optics = self.optics
        has, before = optics.up >= 0, (self.broken, optics.rate.copy())
        self.broken = has & (down[optics.up] | down[optics.down])
        optics.rate[:] = np.where(has, np.minimum(capacity[optics.up], capacity[optics.down]), 0.0)
        same = np.array_equal(before[0], self.broken) and np.array_equal(before[1], optics.rate)
        return Event.NONE if same else Event.PORTS_CHANGED

    def due(self) -> float:
        """When a circuit changes next, as far as is known; inf for never."""
        return min(self.soonest, self.steps[0][0]) if self.steps else self.soonest

    def advance(self, now: float) -> None:
        """Carry out what is due until `now`."""
        limit = now * (1 + _SAME_TIME)
        if now == self.now and self.due() > limit:
            return
        while self.steps and self.steps[0][0] <= limit:
            at, out = self.steps.pop(0)
            self._pass(min(at, now))
            self._switch(out)
        self._pass(now)
        # What is up but for rounding is up: otherwise there would be a time that never comes.
        self.ready[(self.ready > now) & (self.ready <= limit)] = now
        dark = self.ready[(self.out >= 0) & (self.ready > self.now)]
        self.soonest = float(dark.min(initial=np.inf))

    def intact(self) -> Ints:
        """(S, E) the end to which each end's light goes, dark or not, where both ports work; -1 for none."""
        return np.where(self._severed(), -1, self.out)

    def up(self) -> Ints:
        """(S, E) the end that each end reaches over each switch now, -1 for none."""
        return np.where(self.ready <= self.now, self.intact(), -1)

    def _severed(self) -> Bools:
        """(S, E) whether the light of each end, if it has any, meets a port that is broken."""
        severed: Bools = self.broken | self.broken[np.arange(len(self.out))[:, None], self.out]
        return severed

    def _pass(self, now: float) -> None:
        """Count the seconds up to `now`."""
        if now > self.now:
            lit = self.out >= 0
            up = np.clip(now - np.maximum(self.ready, self.now), 0.0, None)
            failed = float(up[lit & self._severed()].sum()) if self.broken.any() else 0.0
            self.failed_s += failed
            self.up_s += float(up[lit].sum()) - failed
            self.dark_s += float((now - self.now) * np.count_nonzero(lit) - up[lit].sum())
            self.now = now

    def _switch(self, out: Ints) -> None:
        changed = out != self.out
        self.changes += changed.any(axis=1)
        dark = changed | (self.optics.all_stop & changed.any(axis=1))[:, None]
        until = self.now + self.optics.delay[:, None]
        self.ready = np.where(dark, until, self.ready)
        self.out = out.copy()
