"""How much one user may ask of the agent, so that no user's jobs can be crowded out by another's.

Root and the agent's own user have no rate: they could stop the agent anyway.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

BURST_S: Final = 5.0
"""Seconds of the rate that may come at once: a job that starts has more to say than one that runs."""

_EXPECTED_S: Final = 0.5e-3
"""Processor time that is in the price of 1."""
_SHARE: Final = 0.2


@dataclass(frozen=True)
class Quota:
    """What one user may have at a time, whatever the number of jobs; `messages` are requests per second."""

    connections: int = 512
    sockets: int = 4096
    groups: int = 256
    messages: float = 200.0


class Pace:
    """Requests per second, by user: a bucket for each that fills at `rate` and holds BURST_S of it."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._buckets: dict[int, tuple[float, float]] = {}

    def wait(self, uid: int, cost: float = 1.0) -> float:
        """0 if the user may ask now, which costs so much; else the seconds until the next request may come.

        Whoever has 1 left may ask for more than that, and owes it.
        """
        now = time.monotonic()
        full = max(1.0, self._rate * BURST_S)
        then, held = self._buckets.get(uid, (now, full))
        held = min(full, held + (now - then) * self._rate)
        allowed = held >= 1
        self._buckets[uid] = (now, held - cost if allowed else held)
        return 0.0 if allowed else (1 - held) / self._rate

    def charge(self, uid: int, packet_cost: float, seconds: float) -> None:
        """Count processor time that a request took beyond what its packet cost, whatever it was spent on.

        At its full rate a user keeps the agent busy for _SHARE of the time, and no longer than that by
        asking for what is dear.
        """
        beyond = seconds - packet_cost * _EXPECTED_S
        if beyond > 0:
            then, held = self._buckets.get(uid, (time.monotonic(), 0.0))
            self._buckets[uid] = (then, held - beyond * self._rate / _SHARE)


def cost_of(size: int, fds: int) -> float:
    """What a packet of `size` bytes with `fds` descriptors costs: 1, and the work for what comes with it.

    Marking 16 sockets or reading 4 KiB takes about as long as the rest of a request.
    """
    return 1 + fds / 16 + size / 4096
