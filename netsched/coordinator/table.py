"""The flows that agents have reported and that have not ended, as columns.

A decision looks at all of them at once; ten thousand Python objects would take longer than the policy does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from netsched.coordinator.wire import CoflowKey, FlowState
from netsched.model import Ints

ROW: Final = np.dtype(
    [(name, np.int64) for name in ("number", "src", "dst", "coflow", "need", "need_span", "path", "cls")]
    + [(name, np.float64) for name in ("size", "sent", "release", "not_before", "cap")]
    + [(name, np.bool_) for name in ("active", "decided", "watched")]
)
"""One flow. Host ordinals, bytes, seconds of the coordinator's clock, bytes/s.

number                    flows count up in the order in which they became known; -1: the slot is free
coflow                    the number of its coflow
path                      row of its path in the camera's table, -1 before it was looked up
cls, not_before, cap      what is in effect for it, cls -1 before anything is
decided                   whether the policy has spoken of it
watched                   whether its end is an event of its own
"""


@dataclass(eq=False)
class Flow:
    """Whose a slot of the table is, and what its agent said last. `over`: it has ended."""

    host: str
    key: CoflowKey
    slot: int
    state: FlowState
    over: bool = False


class Table:
    """Rows by slot; a slot whose flow has ended is used again."""

    def __init__(self) -> None:
        self.rows: npt.NDArray[Any] = np.zeros(0, ROW)
        self.flows: list[Flow | None] = []
        self._free: list[int] = []

    def add(
        self, host: str, state: FlowState, number: int, coflow: int, ends: tuple[int, int], now: float
    ) -> Flow:
        """A new flow from host ordinal `ends[0]` to `ends[1]`."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        flow = Flow(host, state.key, slot, state)
        self.flows[slot] = flow
        row = self.rows[slot]
        row["number"], row["coflow"] = number, coflow
        row["src"], row["dst"] = ends
        row["path"] = row["cls"] = -1
        row["not_before"], row["cap"] = -np.inf, np.inf
        row["decided"] = row["watched"] = False
        row["sent"], row["release"] = 0.0, now - state.age
        self.update(flow, state, now)
        return flow

    def update(self, flow: Flow, state: FlowState, now: float) -> None:
        """Its agent says something else of it. Bytes that were sent stay sent."""
        row = self.rows[flow.slot]
        if not flow.state.active:
            row["release"] = now - state.age
        row["size"], row["sent"] = state.size, min(max(float(row["sent"]), state.sent), state.size)
        row["need"], row["need_span"], row["active"] = state.need, state.need_span, state.active
        flow.state = state

    def remove(self, flow: Flow) -> None:
        flow.over = True
        self.rows["number"][flow.slot] = -1
        self.flows[flow.slot] = None
        self._free.append(flow.slot)

    def live(self) -> Ints:
        """The slots that are in use."""
        return np.flatnonzero(self.rows["number"] >= 0)

    def _grow(self) -> None:
        old = len(self.rows)
        more = np.zeros(max(256, old), ROW)
        more["number"] = -1
        self.rows = np.concatenate((self.rows, more))
        self.flows += [None] * len(more)
        self._free += range(len(self.rows) - 1, old - 1, -1)
