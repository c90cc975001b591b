"""What a message costs before its first byte: a start-up time theta, the price of cutting tensors small.

Without it a tensor in a thousand pieces is as fast as a whole one, and systems that avoid partitions
(Mercury) or tune their size (ByteScheduler, P3) would have nothing to gain.

Every flow between two hosts is one message. Its start-up is a task of theta seconds on the sender, after all
that the flow waited for and before the flow itself, so both engines run it as they run any computation, and
no policy can shorten it. What follows what is a choice, since the papers speak of a start-up slot before each
partition (Duan et al., Mercury, INFOCOM 2022, abstract) but not of what else may be sent meanwhile:

* `message`: start-ups overlap freely. Theta is a latency; n pieces sent at once pay it once.
* `tensor` (default): the pieces of one tensor from one host to another follow each other, each after the end
  of the one before and a start-up: alone on a link of C bytes/s, n pieces of s bytes take n (theta + s / C),
  the papers' figure. Other tensors may use the link during a start-up, as they do where a window of several
  partitions is under way; for a sender that stops and waits with all its tensors it is a lower estimate.
* `connection`: all messages of the job from one host to another follow each other, in the order in which the
  workload adds them (a tensor's whole push before the next one's): one connection, first in, first out. No
  policy can then reorder messages of the same pair.

INFERRED: that the slot is the sender's; that a transfer inside a host, and one of no bytes, has none. A flow
is released when its start-up is over, so completion times of flows, coflows and stages do not count the
start-up before their first byte; iterations and jobs do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from netsched.errors import ScenarioError
from netsched.model import Ints, Workload
from netsched.units import Duration, show_time
from netsched.workloads.params import Params

START_UP: Final = "start-up"
"""The label of these tasks."""

LEAST_EMULATED: Final = 0.01
"""Seconds. The emulation looks at its timers every millisecond: from ten on it errs by 10 % at most."""

Series = Literal["message", "tensor", "connection"]


class StartupParams(Params):
    """`theta`: what each message between two hosts costs before its first byte.

    `theta_series`: which messages wait for each other's end (see `netsched.workloads.startup`).
    """

    theta: Duration = 0.0
    theta_series: Series = "tensor"

    def startup(self, *, in_steps: bool = False) -> Startup:
        """`in_steps`: all of a coflow between two hosts is one message. ScenarioError if that cannot be."""
        if in_steps and self.theta > 0 and self.theta_series == "connection":
            raise ScenarioError(
                "theta_series: connection has an order of whole messages, and the policy sends steps of "
                "several at once: use tensor or message"
            )
        return Startup(self.theta, self.theta_series, in_steps)


@dataclass(frozen=True)
class Startup:
    """Theta in seconds, which messages wait for each other's end, and whether each flow is a message.

    `in_steps`: what a coflow sends from one host to another is one message, whatever its flows.
    """

    theta: float = 0.0
    series: Series = "tensor"
    in_steps: bool = False


def predecessors(series: Series, coflow: Ints, job: Ints, src: Ints, dst: Ints) -> tuple[Ints, Ints]:
    """Rows of the columns that wait for another one's end, and the row that each waits for.

    The columns have one value per message, in the order in which they were added.
    """
    if series == "message":
        none: Ints = np.empty(0, np.int64)
        return none, none
    group = coflow if series == "tensor" else job
    order = np.lexsort((np.arange(len(src)), dst, src, group))
    same = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in (group, src, dst):
        same &= column[order[1:]] == column[order[:-1]]
    return order[1:][same], order[:-1][same]


def opening(coflow: Ints, src: Ints, dst: Ints) -> Ints:
    """For each row of the columns the first one of the same coflow and host pair (it may be that itself)."""
    order = np.lexsort((np.arange(len(src)), dst, src, coflow))
    new = np.ones(len(order), np.bool_)
    for column in (coflow, src, dst):
        new[1:] &= column[order[1:]] == column[order[:-1]]
    new[1:] = ~new[1:]
    first: Ints = np.empty(len(order), np.int64)
    first[order] = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
    return first


def refuse_emulated(workload: Workload) -> None:
    """ScenarioError if the workload has start-ups too short for the emulation to keep their time."""
    mine = [number for number, label in enumerate(workload.tasks.label) if label == START_UP]
    if mine and (theta := float(workload.tasks.seconds[mine].min())) < LEAST_EMULATED:
        raise ScenarioError(
            f"workload: theta {show_time(theta)} is too short for the mininet engine, which keeps times to "
            f"1 ms: use {show_time(LEAST_EMULATED)} or more, or --engine sim"
        )
