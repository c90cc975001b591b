"""Orders that a sender keeps by itself: which of its flows goes first, whoever else sends to the same place.

A network whose switches know no priority serves senders alike, so a plan must not set one sender's first flow
before another's second one, but only say which flows their senders let go: those have the first rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from netsched.model import Bools, Floats, Ints, Plan, View
from netsched.policies.base import plan_of

_ROUNDS: Final = 3
_FULL: Final = 1 - 1e-9
"""A port that is expected to be full to this share is full: sums of shares are inexact."""


def turns(sender: Ints, *keys: Ints | Bools) -> Ints:
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


def let_go(view: View, turn: Ints, at_once: Bools) -> Plan:
    """The first rank for flows that their senders let go, the second for the rest, which have what is left.

    To be asked again when one that goes has ended, for then others move up.
    """
    return replace(plan_of(view, np.where(at_once, 0, 1)), watch=at_once | (turn == 0))


def within_credit(
    view: View, credit: float, *parts: Ints, offered: Bools | None = None, handed: Floats | None = None
) -> Plan:
    """Each sender has so many bytes under way at most, and what it has not let go does not move.

    `parts` divide senders further (see `senders`). Only flows that are `offered` (None: all) go, or count.

    Those that have begun come first, then those `handed` over (s) soonest, then those needed soonest, then by
    release. A flow goes while the whole
    sizes of its sender's flows before it are less than the credit, as ByteScheduler counts; one of unknown
    size uses all of it. Those that go share.
    """
    flows, sender = view.flows, senders(view, *parts)
    size = np.where(np.isnan(flows.size), credit, flows.size)
    if offered is not None:
        size = np.where(offered, size, 0.0)
    keys = (np.arange(len(flows)), flows.need, *(() if handed is None else (handed,)), flows.sent <= 0)
    order = np.lexsort((*keys, sender))
    before = np.cumsum(size[order]) - size[order]
    goes = np.empty(len(flows), bool)
    goes[order] = before - before[_starts(sender[order])] < credit
    if offered is not None:
        goes &= offered
    plan = plan_of(view, np.where(goes, 0, 1), rate=np.where(goes, np.inf, 0.0))
    return replace(plan, watch=goes)


def filling(view: View, sender: Ints, turn: Ints, *, abreast: bool = True) -> Bools:
    """Which flows go where each sender fills its port in the order of `turn`: the first, and more if need be.

    A flow goes if those of its sender before it are not expected to fill their port (the first link of a
    path). Expected of a flow is an even share of the other links of its path among the flows that go; who
    goes and what is expected follow from each other, in a few rounds from the first turns. Without `abreast`
    a sender has one turn under way to each host, and gets no more there by sending what comes later too.
    """
    flows = view.flows
    n, length = len(flows), np.diff(flows.indptr)
    owner, begin = np.repeat(np.arange(n), length), flows.indptr[:-1][length > 0]
    port = np.zeros(n)
    port[length > 0] = view.capacity[flows.links[begin]]
    order = np.lexsort((turn, sender))
    of_sender = _starts(sender[order])
    of_turn = np.maximum(of_sender, _starts(turn[order]))
    leads = np.ones(n, bool)
    if not abreast:
        leads = turns(sender * (int(flows.dst.max(initial=0)) + 1) + flows.dst, turn) == 0
    goes = turn == 0
    for _ in range(_ROUNDS):
        users = np.bincount(flows.links, goes[owner], len(view.capacity))
        share_of_link = view.capacity[flows.links] / (users[flows.links] + ~goes[owner])
        share_of_link[begin] = np.inf
        share = port.copy()
        np.minimum.at(share, owner, share_of_link)
        share[~leads] = 0.0
        before = np.cumsum(share[order]) - share[order]
        goes[order] = leads[order] & (before[of_turn] - before[of_sender] < port[order] * _FULL)
    all_that_go: Bools = goes | (turn == 0)
    return all_that_go


def _starts(column: Ints) -> Ints:
    """For each entry the position at which its run of equal ones begins."""
    new = np.ones(len(column), bool)
    new[1:] = column[1:] != column[:-1]
    starts: Ints = np.maximum.accumulate(np.where(new, np.arange(len(column)), 0))
    return starts
