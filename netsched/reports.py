"""What a coordinator knows of the bytes that flows have sent: what their hosts reported, late and with gaps.

Kept apart from what was sent, by both engines alike, so that stale knowledge means the same in both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from netsched.model import Control, Floats, Ints, Policy, Workload

_PURPOSE: Final = 0x5E9
"""Keeps these draws apart from those of the workloads, which are made from the same seed."""

_AT_ONCE: Final = 1 + 1e-12
"""Two times closer than this factor are one instant (see docs/simulator.md)."""


def generator(seed: int) -> np.random.Generator:
    """The source of lost reports of a scenario with this seed."""
    return np.random.default_rng((seed, _PURPOSE))


@dataclass
class Reports:
    """The reports of one run. A host reports all its flows at once, so that one loss concerns them all.

    host       the sending host of each flow of the workload; `hosts` is how many there are
    known      bytes of each flow in the newest report of it that has arrived, 0 before the first
    number     of the next report: it is made at `number` times the period
    under_way  reports that have been made and not been read: arrival (s), flows, bytes of each
    last       flows and bytes of the newest report and of the one before it, as they were made
    """

    control: Control
    host: Ints
    hosts: int
    known: Floats
    rng: np.random.Generator
    number: int = 0
    under_way: deque[tuple[float, Ints, Floats]] = field(default_factory=deque)
    last: deque[tuple[Ints, Floats]] = field(default_factory=lambda: deque(maxlen=2))

    def due(self) -> float:
        """When the hosts report next, in seconds of the run."""
        return self.number * self.control.report_period

    def make(self, now: float, sent: Callable[[], tuple[Ints, Floats]]) -> bool:
        """Let the hosts report if it is time: `sent` gives the active flows and the bytes that each has sent.

        Reports that were due before `now` and not made (no flow was active then, or a real machine overslept)
        are drawn all the same: which are lost depends on the generator and their numbers alone. True if a
        report was made.
        """
        if self.due() > now * _AT_ONCE:
            return False
        self.at(now)  # so that only those are kept that are under way, however rarely anybody reads
        flows, amount = sent()
        lost = np.zeros(self.hosts, bool)
        while self.due() <= now * _AT_ONCE:
            arrival = self.due() + self.control.report_delay
            if self.control.report_loss > 0:
                lost = self.rng.random(self.hosts) < self.control.report_loss
            self.number += 1
        self.last.append((flows, amount))
        if lost.any():
            came = ~lost[self.host[flows]]
            flows, amount = flows[came], amount[came]
        self.under_way.append((arrival, flows, amount))
        return True

    def still(self) -> bool:
        """Do the last two reports, as they were made, say the same?"""
        if len(self.last) < 2:
            return False
        (flows, amount), (flows_now, amount_now) = self.last
        return np.array_equal(flows, flows_now) and np.array_equal(amount, amount_now)

    def at(self, now: float) -> Floats:
        """Bytes that each flow of the workload is known to have sent, from what has arrived by `now`."""
        while self.under_way and self.under_way[0][0] <= now * _AT_ONCE:
            _, flows, amount = self.under_way.popleft()
            self.known[flows] = amount
        return self.known


def reports_for(
    policy: Policy, control: Control, workload: Workload, rng: np.random.Generator | None
) -> Reports | None:
    """The reports of a run that goes by any: a coordinator's, unless it sees everything as it is.

    ValueError if some are to be lost and there is no generator to draw them from.
    """
    if policy.local or control.report_period <= 0:
        return None
    if rng is None:
        if control.report_loss > 0:
            raise ValueError("control.report_loss needs a random generator")
        rng = generator(0)
    host = workload.flows.src
    return Reports(control, host, int(host.max(initial=-1)) + 1, np.zeros(len(host)), rng)
