"""Which coflow goes first on a circuit, where the scheduler of circuits says so: the same in every engine.

A scheduler that reserves a circuit for one coflow for as long as its bytes take must not find that others
had a share of it. Who has no turn of this kind goes in the class that the policy gave it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from netsched.model import Bools, Ints

ANYONE, FIRST, BEHIND = range(3)
"""A flow's turn: nothing is said of its circuit; its coflow goes first there; another one does."""

LEAST_CLASSES: Final = 2
"""The first for who goes first, and one more for all others."""

Turns = npt.NDArray[np.int8]


@dataclass
class Precedence:
    """State of one run.

    coflow  (F,) of each flow;  turn  (F,) of each flow on the circuit that it has, or had last
    first   (E, E) the coflow that goes first from one end to another, -1 none; None until a scheduler says so
    coming  what it will be, and from when on
    """

    coflow: Ints
    turn: Turns
    first: Ints | None = None
    coming: list[tuple[float, Ints]] = field(default_factory=list)

    def plan(self, first: Ints | None, at: float) -> None:
        """From `at` (s) on these coflows go first, in place of all that was to come; None: as it is."""
        if first is not None:
            self.coming = [entry for entry in self.coming if entry[0] < at]
            self.coming.append((at, first))

    def advance(self, now: float, up: Ints) -> Ints:
        """Have happen what is due; the pairs (end times E plus end) with a circuit that it concerns.

        `up` (S, E): the end that each end reaches now, -1 none.
        """
        before = self.first
        while self.coming and self.coming[0][0] <= now:
            self.first = self.coming.pop(0)[1]
        if self.first is before or self.first is None:
            return np.zeros(0, np.int64)
        switch, end = np.nonzero(up >= 0)
        key = np.unique(end * len(self.first) + up[switch, end])
        old = -1 if before is None else before.ravel()[key]
        changed: Ints = key[self.first.ravel()[key] != old]
        return changed

    def turns(self, flows: Ints, key: Ints, lit: Bools, waits: Bools) -> Turns:
        """The turns of flows of these pairs; who waits (and has no circuit: `lit`) keeps its own."""
        if self.first is None:
            return np.zeros(len(flows), np.int8)
        first = self.first.ravel()[key]
        turn = np.where(first == self.coflow[flows], FIRST, BEHIND)
        turn = np.where(lit & (first >= 0), turn, ANYONE)
        return np.where(waits, self.turn[flows], turn).astype(np.int8)


def precedence(coflow: Ints) -> Precedence:
    """Nothing said yet about flows of these coflows."""
    return Precedence(coflow, np.zeros(len(coflow), np.int8))


def in_turn(rank: Ints, turn: Turns | np.int8) -> Ints:
    """The class in which a flow goes: the policy's, but the first for who goes first, and for none behind."""
    ranked: Ints = np.where(turn == FIRST, 0, np.maximum(rank, turn == BEHIND))
    return ranked
