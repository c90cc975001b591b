"""A flow as a training job sees it: told of once, then a line between two chunks.

    with agent.flow("step 12, layer 3", coflow="step 12", size=n, sockets=[sock]) as flow:
        flow.wait(sockets=[sock])                 # a start that the plan puts off
        for chunk in chunks:
            sock.sendall(chunk)
            flow.sent(len(chunk), sockets=[sock])  # here, and nowhere else, may the mark change

Without an agent all of it does nothing at once: the job sends as it would have.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from hostagent.protocol import Message, Tagged, results_from_json

Sockets = Iterable[socket.socket | int]
_POLL_S: Final = 0.01
_QUIET_S: Final = 0.02
"""Progress alone is told so often at most: a user has only so many words a second."""


@dataclass(frozen=True)
class Guidance:
    """What a flow is to do now.

    cls      its class, -1 if no agent answered
    source   "plan" (the coordinator's), "interim" (until it has decided), "kept" (it is away: its last word),
             "rule" or "default" (this host's own), "" without an agent
    hold     seconds from now in which the flow should not begin
    cap      bytes/s that it should not exceed, inf for none
    refused  why the coordinator cannot plan for it, "" if it can
    results  one for each socket that was passed, as from `Client.tag`
    """

    cls: int = -1
    source: str = ""
    hold: float = 0.0
    cap: float = math.inf
    refused: str = ""
    results: tuple[Tagged, ...] = ()


def guidance_from(answer: Message) -> Guidance:
    """The guidance in an answer of the agent. ValueError or TypeError if it is nonsense."""
    if not answer:
        return Guidance()
    cap = answer["cap"]
    return Guidance(
        cls=int(answer["class"]),
        source=str(answer["source"]),
        hold=float(answer["hold_s"]),
        cap=math.inf if cap is None else float(cap),
        refused=str(answer["refused"]),
        results=tuple(results_from_json(answer.get("results", []))),
    )


class Flow:
    """One flow of a job, from `Client.flow`. `guidance` is the agent's latest word."""

    def __init__(self, tell: Callable[[dict[str, Any], Sockets], Guidance], fields: dict[str, Any]) -> None:
        self._tell = tell
        self._fields = fields
        self._next = 0.0
        self.guidance = Guidance()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.done()

    def release(self, sockets: Sockets = ()) -> Guidance:
        """The flow has bytes to send from now on. It was announced with `released=False`."""
        return self._say({"state": "active"}, sockets)

    def sent(self, more: float, sockets: Sockets = ()) -> Guidance:
        """So many more bytes have been sent; the sockets that are passed get the class of the next ones."""
        self._fields["sent"] = min(self._fields["sent"] + more, self._fields["size"])
        sockets = list(sockets)
        if not sockets and time.monotonic() < self._next:
            return self.guidance
        return self._say({}, sockets)

    def wait(self, longest: float = 60.0, *, for_plan: float = 0.0, sockets: Sockets = ()) -> float:
        """Sleep until the flow may begin, `longest` seconds at most; returns the seconds slept.

        `for_plan`: how long to wait for the coordinator's word where it has not decided yet. The sockets are
        marked for what was said last.
        """
        begin = time.monotonic()
        sockets = list(sockets)
        while self.guidance.source == "interim" and time.monotonic() - begin < min(for_plan, longest):
            time.sleep(_POLL_S)
            self._say({}, sockets)
        while self.guidance.hold > 0 and time.monotonic() - begin < longest:
            time.sleep(min(self.guidance.hold, longest - (time.monotonic() - begin)))
            # A later plan may have put the start off again.
            self._say({}, sockets)
        return time.monotonic() - begin

    def done(self) -> None:
        """The flow has ended. The agent forgets it."""
        self._say({"state": "done"}, ())

    def _say(self, change: dict[str, Any], sockets: Sockets) -> Guidance:
        self._fields |= change
        self._next = time.monotonic() + _QUIET_S
        self.guidance = self._tell(dict(self._fields), sockets)
        return self.guidance
