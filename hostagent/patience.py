"""How often the agent repairs what somebody else changes before it leaves it to them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

_MOST: Final = 3
_WINDOW_S: Final = 600.0


@dataclass
class Repairs:
    """Repairs of one thing: how many in all, and when the latest were (seconds of the monotonic clock)."""

    total: int = 0
    latest: list[float] = field(default_factory=list)

    def note(self) -> str:
        """One more repair has been made. Why it was the last one, "" if it was not.

        Three within ten minutes are one too many: somebody wants it otherwise, and not by accident.
        """
        now = time.monotonic()
        self.total += 1
        self.latest = [then for then in self.latest if then > now - _WINDOW_S] + [now]
        if len(self.latest) < _MOST:
            return ""
        times = f"{len(self.latest)} times in {_WINDOW_S / 60:.0f} minutes"
        return f"changed by somebody else {times}; left as it is"
