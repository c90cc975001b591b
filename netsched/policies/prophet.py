"""Prophet: gradients leave in blocks that the network can carry before the next burst of gradients comes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from netsched.errors import ScenarioError
from netsched.model import Event, Floats, Ints, Plan, View
from netsched.policies.monitor import Memory, review_in, slowest, watched
from netsched.policies.senders import within_credit
from netsched.shape import SERVERS, Profile, Shape, Slicing
from netsched.units import Duration, Rate, Size


@dataclass(frozen=True)
class Prophet:
    """Predictable blocks of gradients (Zhang et al., ICPP 2021; abstract and released code were read).

    Gradients become ready in bursts. The released code: a burst ends before an interval of more than `factor`
    = 2 times the mean one. When a burst is complete, pieces leave, those of the earliest tensor first, while
    the next one is smaller than what is left of bandwidth x gap; the others stay for later bursts, whose
    pieces go before them. When gradient 0 is ready all that is left goes in the order of the tensors, under a
    window of `credit` bytes. Pieces are of at most `partition` bytes, as in BytePS, on which it is built.

    The bandwidth is monitored while the job runs, by each sender for itself: what its gradients sent in the
    last `monitor` seconds, over the part of that time in which one was let go (`monitor.py`). It holds for
    blocks that begin from then on. Until the first period has passed it is the sender's slowest link, and
    where `bandwidth` is given it is that for good. Bursts and gaps are from the job's profile.

    INFERRED: the period and the measure. The abstract says that the bandwidth is monitored and not how; the
    released code computes a piece's size over its time when it ends and uses it nowhere. Pieces share a port
    here, so that the time of one says little of it. The gap lasts until the next burst is `complete`; in the
    code it is the `interval` after which that burst begins. In the paper's profiles bursts are instants and
    both are one; in the models here a burst takes time, in which the code's rule would have nothing to send.
    The mean is over all intervals (the code's runs along). `credit`, which the code reads from the
    environment, is ByteScheduler's. It counts inside a block too, whose pieces leave BytePS one after the
    other and would all share the port here; and, by itself, for what servers send.
    """

    factor: float = 2.0
    partition: Size = 4_096_000.0
    credit: Size = 16e6
    bandwidth: Rate | None = None
    monitor: Duration = 1.0
    gap: Literal["complete", "interval"] = "complete"

    name: ClassVar[str] = "prophet"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.WATCHED_FINISHED
    idles: ClassVar[str] = (
        "what is in no block, or the credit does not cover, waits, whoever is free to receive it"
    )

    def __post_init__(self) -> None:
        if not (self.factor > 0 and self.partition > 0 and self.credit > 0 and self.monitor > 0):
            raise ValueError(
                f"factor is {self.factor}, partition {self.partition} B, credit {self.credit} B, "
                f"monitor {self.monitor} s: must be above 0"
            )

    def reshape(self, profile: Profile, shape: Shape) -> Shape:
        """No piece before its burst is complete. ScenarioError for a job without servers."""
        if profile.experts:
            return shape
        if shape.sync != SERVERS:
            raise ScenarioError(
                f"a job of {profile.model} has sync: {shape.sync}, but prophet is for pushes to servers: "
                f"write sync: {SERVERS}, and servers"
            )
        cut = Slicing(self.partition, self.partition)
        burst, lull = lulls(profile.ready, self.factor, self.gap)
        return replace(shape, first=np.arange(len(burst)), slicing=cut, burst=burst, lull=lull)

    def __call__(self, view: View) -> Plan:
        gradient = view.coflows.burst[view.flows.coflow] >= 0
        rows = np.flatnonzero(gradient)
        if not len(rows) and not view.memory:
            return within_credit(view, self.credit)
        seen = self._filled(view, rows, self._opened(view, rows, watched(view, rows, self.monitor)))
        offered, handed = np.ones(len(gradient), bool), np.full(len(gradient), np.inf)
        offered[rows] = np.isfinite(seen.handed) | np.isinf(seen.budget[seen.owner])
        handed[rows] = seen.handed
        plan = within_credit(view, self.credit, gradient.astype(np.int64), offered=offered, handed=handed)
        seen = seen._replace(goes=(plan.rank == 0)[rows])
        return replace(plan, memory=tuple(seen), review_in=review_in(seen, view.now, self.monitor))

    def _opened(self, view: View, rows: Ints, seen: Memory) -> Memory:
        """With the budget of the newest burst of each sender, if that has come since the last look.

        `rows` are the gradients among the view's flows.
        """
        coflow, owner = view.flows.coflow[rows], seen.owner
        stage, burst, lull = (
            column[coflow] for column in (view.coflows.stage, view.coflows.burst, view.coflows.lull)
        )
        order = np.lexsort((-burst, stage, owner))
        newest = order[np.append(owner[order][1:] != owner[order][:-1], True)[: len(order)]]
        known, back = seen.stage[owner[newest]], seen.burst[owner[newest]]
        newest = newest[(stage[newest] > known) | ((stage[newest] == known) & (burst[newest] < back))]
        at, gap = owner[newest], lull[newest]
        rate = seen.rate[at] if self.bandwidth is None else np.full(len(at), self.bandwidth)
        if np.isnan(rate).any():
            rate = np.where(np.isnan(rate), slowest(view, rows, owner, len(seen.rate))[at], rate)
        stages, bursts_, budget = seen.stage.copy(), seen.burst.copy(), seen.budget.copy()
        stages[at], bursts_[at] = stage[newest], burst[newest]
        budget[at] = np.where(np.isinf(gap), np.inf, rate * np.where(np.isinf(gap), 0.0, gap))
        return seen._replace(stage=stages, burst=bursts_, budget=budget)

    def _filled(self, view: View, rows: Ints, seen: Memory) -> Memory:
        """With the pieces that the senders' blocks still take; one that does not fit ends its block."""
        waits = np.flatnonzero(~np.isfinite(seen.handed) & np.isfinite(seen.budget[seen.owner]))
        flow, owner = rows[waits], seen.owner[waits]
        # The last piece of a tensor is on top, as the released code's stack has it.
        order = np.lexsort((-view.flows.id[flow], view.flows.need[flow], owner))
        stack, owner, size = waits[order], owner[order], view.flows.size[flow[order]]
        until = np.cumsum(size)
        begins = np.flatnonzero(np.append(True, owner[1:] != owner[:-1])[: len(owner)])
        below = np.repeat(until[begins] - size[begins], np.diff(np.append(begins, len(owner))))
        fits = until - below < seen.budget[owner]
        handed, budget = seen.handed.copy(), seen.budget.copy()
        handed[stack[fits]] = view.now
        budget -= np.bincount(owner, np.where(fits, size, 0.0), len(budget))
        budget[owner[~fits]] = 0.0
        return seen._replace(handed=handed, budget=budget)


def bursts(ready: Floats, factor: float) -> Ints:
    """The tensors whose gradients are the last of a burst, in backward order; the last is tensor 0.

    `ready`: seconds to each gradient, forward order, so that tensor i comes after tensor i + 1.
    """
    interval = ready[:-1] - ready[1:]
    long = interval > factor * interval.mean() if len(interval) else np.zeros(0, bool)
    return np.append(np.flatnonzero(long)[::-1] + 1, 0)


def lulls(ready: Floats, factor: float, gap: str) -> tuple[Ints, Floats]:
    """For each tensor the one whose gradient completes its burst, and the seconds of the gap after that.

    inf after the last burst. Shapes: those of `ready`, see `bursts`.
    """
    lasts = bursts(ready, factor)[::-1]
    mine = np.searchsorted(lasts, np.arange(len(ready)), side="right") - 1
    last, following = lasts[mine], lasts[np.maximum(mine - 1, 0)]
    begins = ready[following] if gap == "complete" else ready[np.maximum(last - 1, 0)]
    return last, np.where(mine > 0, begins - ready[last], np.inf)
