"""What a scheduler of optical circuits sees and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from netsched.model.columns import Floats, Ints
from netsched.model.decision import Event, JobView


@dataclass(frozen=True)
class Pairs:
    """Bytes from one end of the optical network to another, one row per (owner, src, dst) with bytes > 0.

    `src` and `dst` are ends (racks, or hosts, with a port on an optical switch), ordinals 0..E-1 and never
    equal. Sorted by owner, src, dst.
    """

    owner: Ints
    src: Ints
    dst: Ints
    bytes: Floats


@dataclass(frozen=True)
class CircuitView:
    """All that a circuit scheduler may look at: S optical switches, E ends. Its arrays are read-only.

    waiting      bytes not yet sent of the active flows; the owner is the coflow's id
    announced    the same with all flows to come of the coflows that have an active one
    work         bytes of one iteration of each job; the owner is a row of `jobs`
    jobs         the jobs that have arrived and have flows to come
    out          (S, E) the end to which each end's light goes over each switch, dark or not; -1 none
    dark         (S, E) seconds until the circuit of `out` is up, 0 where it is
    rate         (S, E) bytes/s of each end's port on each switch, 0 where it has none
    packet_rate  (E,) bytes/s that each end can send over packet switches
    delay        (S,) seconds for which circuits are dark while they are set up
    """

    now: float
    waiting: Pairs
    announced: Pairs
    work: Pairs
    jobs: JobView
    out: Ints
    dark: Floats
    rate: Floats
    packet_rate: Floats
    delay: Floats

    @property
    def demand(self) -> Floats:
        """(E, E) bytes that wait at one end for another, whoever owns them."""
        n = len(self.packet_rate)
        total = np.bincount(self.waiting.src * n + self.waiting.dst, self.waiting.bytes, n * n)
        return total.astype(np.float64).reshape(n, n)


@dataclass(frozen=True)
class CircuitPlan:
    """Matchings of all optical switches, K steps one after the other; the last one stays.

    out          (K, S, E) as `CircuitView.out`: no end is reached twice over one switch. K = 0: no change
    hold         (K,) seconds from the command of a step to that of the next, the dark time included
    review_in    ask again within so many seconds, inf for "when something happens"
    owner        (S, E) the job (`JobView.id`) whose flows alone may use the circuit from each end, -1 for all
                 jobs; with one step only. None: all may use all
    first        (E, E) the coflow whose flows go before all others over circuits from one end to another, in
                 the first class, -1 for none; with a step or more. None: as it was, at first none
    slot_bytes   what a circuit carries until it goes; more is not sent ahead over it. 0 but for "relay"
    """

    out: Ints
    hold: Floats
    review_in: float = float("inf")
    owner: Ints | None = None
    first: Ints | None = None
    slot_bytes: float = 0.0


class Circuits(Protocol):
    """A circuit scheduler: a pure function from view to plan. Its fields are its parameters.

    events           what concerns it, besides its reviews: it is not called for anything else
    without_circuit  "eps": a flow without a circuit takes the packet switches; "wait": it waits for one;
                     "relay": it waits, and bytes of it go ahead over circuits that have nothing better to do
                     to ends that keep them until their own circuit to where they go comes up
    hops             most circuits that a flow may take in a row
    """

    name: ClassVar[str]
    events: ClassVar[Event]

    @property
    def without_circuit(self) -> str: ...
    @property
    def hops(self) -> int: ...
    def __call__(self, view: CircuitView) -> CircuitPlan: ...
