"""Orders that a sender keeps by itself: which of its flows goes first, whoever else sends to the same place.

A network whose switches know no priority serves senders alike, so a flow's rank counts the flows of its own
sender that go before it, and the first ones of all senders share where they meet.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from netsched.model import Floats, Ints, Plan, View
from netsched.policies.base import plan_of


def turns(sender: Ints, *keys: Ints | Floats) -> Ints:
    """The turn of each flow among those of its sender, 0 first, by ascending `keys` (the first counts most).

    Flows whose keys are all equal have one turn. Shape: that of `sender`, one value per flow.
    """
    n = len(sender)
    order = np.lexsort((*reversed(keys), sender))
    changes = np.zeros(n, bool)
    for key in keys:
        column = key[order]
        changes[1:] |= column[1:] != column[:-1]
    begins = np.ones(n, bool)
    begins[1:] = sender[order][1:] != sender[order][:-1]
    steps = np.cumsum(changes & ~begins)
    turn = np.empty(n, np.int64)
    turn[order] = steps - np.maximum.accumulate(np.where(begins, steps, 0))
    return turn


def senders(view: View, *parts: Ints) -> Ints:
    """A number for each flow's sender: its job's process on its source host, divided further by `parts`."""
    number = view.coflows.job[view.flows.coflow]
    for part in (view.flows.src, *parts):
        number = number * (int(part.max(initial=0)) + 1) + part
    return number


def plan_by_turn(view: View, turn: Ints, rate: Floats | None = None) -> Plan:
    """Rank by turn. To be asked again when a flow that had the first turn ends, for then others move up."""
    return replace(plan_of(view, turn, rate=rate), watch=turn == 0)
