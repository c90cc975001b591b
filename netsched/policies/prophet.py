"""Prophet: gradients leave in blocks that the network can carry before the next burst of gradients comes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from netsched.errors import ScenarioError
from netsched.model import Event, Floats, Ints, Plan, View
from netsched.policies.senders import within_credit
from netsched.shape import SERVERS, Profile, Shape, Slicing
from netsched.units import Rate, Size


@dataclass(frozen=True)
class Prophet:
    """Predictable blocks of gradients (Zhang et al., ICPP 2021; abstract and released code were read).

    Gradients become ready in bursts. The released code: a burst ends before an interval of more than `factor`
    = 2 times the mean one. When a burst is complete, pieces leave, those of the earliest tensor first, while
    the next one is smaller than what is left of bandwidth x gap; the others stay for later bursts, whose
    pieces go before them. When gradient 0 is ready all that is left goes in the order of the tensors, under a
    window of `credit` bytes. Pieces are of at most `partition` bytes, as in BytePS, on which it is built.

    When a burst is complete and how much fits is known before the job runs, from its profile: a piece that is
    not in its burst's block waits for the burst that takes it. So the bandwidth is the profile's, that of the
    slowest port of the job's hosts, or `bandwidth`. The paper monitors it while the job runs (the released
    code has the function and calls it nowhere). That cannot be done in a plan: what is left of a block is
    what its burst's pieces have sent, those that ended too, and these are in no view; and when the next burst
    comes is in no profile that a plan is shown. docs/reproduction.md has what a wrong bandwidth costs.

    INFERRED: the gap lasts until the next burst is `complete`; in the code it is the `interval` after which
    that burst begins. In the paper's profiles bursts are instants and both are one; in the models here a
    burst takes time, in which the code's rule would have nothing to send. The mean is over all intervals (the
    code's runs along). `credit`, which the code reads from the
    environment, is ByteScheduler's; it counts all the time, for a plan does not know the stage, and for
    servers' messages too, for a view does not tell pushes from pulls.
    """

    factor: float = 2.0
    partition: Size = 4_096_000.0
    credit: Size = 16e6
    bandwidth: Rate | None = None
    gap: Literal["complete", "interval"] = "complete"

    name: ClassVar[str] = "prophet"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.WATCHED_FINISHED
    idles: ClassVar[str] = "what the credit does not cover waits, whoever is free to receive it"

    def __post_init__(self) -> None:
        if not (self.factor > 0 and self.partition > 0 and self.credit > 0):
            raise ValueError(
                f"factor is {self.factor}, partition {self.partition} B, credit {self.credit} B: "
                "must be above 0"
            )

    def reshape(self, profile: Profile, shape: Shape) -> Shape:
        """Each piece held until its block leaves. ScenarioError for a job without servers."""
        if profile.experts:
            return shape
        if shape.sync != SERVERS:
            raise ScenarioError(
                f"a job of {profile.model} has sync: {shape.sync}, but prophet is for pushes to servers: "
                f"write sync: {SERVERS}, and servers"
            )
        cut = Slicing(self.partition, self.partition)
        pieces = [cut.pieces(size, profile.servers) for size in profile.size.tolist()]
        rate = profile.rate if self.bandwidth is None else self.bandwidth
        held = blocks(profile.ready, profile.size, np.array(pieces), rate, self.factor, self.gap)
        return replace(shape, first=np.arange(len(pieces)), slicing=cut, hold=held)

    def __call__(self, view: View) -> Plan:
        return within_credit(view, self.credit)


def bursts(ready: Floats, factor: float) -> Ints:
    """The tensors whose gradients are the last of a burst, in backward order; the last is tensor 0.

    `ready`: seconds to each gradient, forward order, so that tensor i comes after tensor i + 1.
    """
    interval = ready[:-1] - ready[1:]
    long = interval > factor * interval.mean() if len(interval) else np.zeros(0, bool)
    return np.append(np.flatnonzero(long)[::-1] + 1, 0)


def blocks(
    ready: Floats, size: Floats, pieces: Ints, rate: float, factor: float, gap: str
) -> tuple[Ints, ...]:
    """For each tensor and piece the tensor whose gradient completes the burst that the piece leaves with.

    `size`: bytes per tensor; `pieces`: how many equal ones it has; `rate` in bytes/s.
    """
    held = tuple(np.zeros(count, np.int64) for count in pieces.tolist())
    waiting: list[tuple[int, int]] = []
    begin, lasts = len(ready) - 1, bursts(ready, factor).tolist()
    for end, following in zip(lasts, [*lasts[1:], None], strict=True):
        for tensor in range(begin, end - 1, -1):
            # The last piece is on top, as the released code's stack has it.
            waiting += [(tensor, piece) for piece in range(int(pieces[tensor]))]
        begin = end - 1
        budget = np.inf
        if following is not None:
            budget = rate * float(ready[following if gap == "complete" else end - 1] - ready[end])
        while waiting:
            tensor, piece = waiting[-1]
            length = float(size[tensor] / pieces[tensor])
            if not length < budget:
                break
            budget -= length
            held[tensor][piece] = end
            waiting.pop()
    return held
