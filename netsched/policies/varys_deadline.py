"""Varys with deadlines: a coflow is admitted if it can be on time without making an admitted one late."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from netsched.model import BEST_EFFORT, Bools, Event, Floats, Ints, Plan, View
from netsched.policies.base import classes_in_order, plan_of
from netsched.policies.sebf import shortest_first, whole_bottlenecks
from netsched.units import Duration

_ROUNDING: Final = 1e-9
"""This share of a coflow's bytes, or of its time, is no more than rounding can make."""


@dataclass(frozen=True)
class VarysDeadline:
    """Admission control and the least rates that meet deadlines (Varys, SIGCOMM 2014; its released code).

    A coflow with a deadline is looked at once, when it comes. If it needs, on what admitted coflows have not
    reserved, at most its deadline / (1 + `slack`), it is admitted: each of its flows reserves its bytes left
    / the time left, until it ends. All others share what is left as under SEBF: those that were not admitted,
    those without a deadline, and those that are late after all. `slack` of 10 % is the released code's.

    A plan is a function of the view, so a coflow's class has to tell that it was admitted. Without a limit of
    classes it is the last one, behind all others, for what it needs is reserved and more is not due to it.
    That is the price: it gets ahead of its deadline on links only that no other coflow wants.

    Hardware classes have no reserves: there the first class is for admitted coflows, each flow paced by its
    cap to the same rate, and the others follow by SEBF's rules in the rest. The price there: an admitted
    coflow ends at its deadline and no sooner, even alone. With one class nobody is admitted.

    Reserves keep every promise where flows have connections of their own and two figures are right that the
    view does not show: `path_delay`, from a byte sent to the byte received, and `control_delay`, from a
    decision to its effect. Until its class is in effect a coflow is looked at anew at each decision, with
    what is left of it and of its time, and may be refused after all. Where promises can break: with hardware
    classes newcomers ride in the first class until a delayed decision covers them; late reports make
    reserves too large, so that they may not fit for all; in a shared connection a flow waits for those
    before it, whatever its deadline. INFERRED: a coflow with flows still to come is not admitted, for
    nobody knows which links it needs.
    """

    slack: float = 0.1
    path_delay: Duration = 0.0
    control_delay: Duration = 0.0

    name: ClassVar[str] = "varys-deadline"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.COFLOW_FINISHED
    starves: ClassVar[str] = (
        "coflows not admitted that are large, as long as smaller or admitted ones come over one of "
        "their links"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.slack < math.inf:
            raise ValueError(f"slack is {self.slack}, must be 0 or more")

    def __call__(self, view: View) -> Plan:
        flows, n = view.flows, len(view.coflows)
        mark = BEST_EFFORT if view.queues is None else 0
        rate, free = self._reserve(view, mark)
        # A coflow that has a reserve has one for each of its flows.
        admitted = np.bincount(flows.coflow, rate, n) > 0
        kept = admitted[flows.coflow]
        if view.queues is None:
            rank, reserve, weight = shortest_first(view, np.where(kept, 0.0, flows.remaining), free)
            return plan_of(
                view,
                np.where(kept, mark, rank),
                reserve=np.where(kept, rate, reserve),
                weight=np.where(kept, 1.0, weight),
            )
        cls = _classes(view, admitted, view.queues)
        return plan_of(view, cls[flows.coflow], rate=np.where(kept, rate, np.inf))

    def _reserve(self, view: View, mark: int) -> tuple[Floats, Floats]:
        """Bytes/s that each flow is to have, 0 where its coflow is not admitted; what is left of each link.

        `mark` is the class that admitted coflows hold.
        """
        from netsched.madd import reserve_until  # noqa: PLC0415 (numba, which a host agent never loads)

        flows, coflows, n = view.flows, view.coflows, len(view.coflows)
        held = coflows.cls == mark
        time_left = coflows.arrival + coflows.deadline - view.now - self.path_delay
        # The rates of one that has been admitted are in effect already.
        time_left = time_left - np.where(held, 0.0, self.control_delay)
        # Rounding makes nobody late: what ends at one instant with another coflow is not thrown out by it.
        grace = _ROUNDING * coflows.deadline
        time_left = np.where(time_left > -grace, np.maximum(time_left, grace), time_left)
        shown = np.bincount(flows.coflow, flows.remaining, n)
        complete = coflows.size - coflows.sent <= shown + _ROUNDING * coflows.size
        may = np.isfinite(coflows.deadline) & (held | ((coflows.cls < 0) & complete))
        may &= view.queues is None or view.queues > 1
        # Those that were admitted come before those that ask; both in order of arrival.
        turn = np.argsort(~held, kind="stable")
        place = np.empty(n, np.int64)
        place[turn] = np.arange(n)
        return reserve_until(
            place[flows.coflow],
            n,
            # Not a number before the run, when an engine asks what a policy would say: then nothing is due.
            np.where(may & (time_left > 0), time_left, 0.0)[turn],
            np.where(held, -1.0, self.slack)[turn],
            flows.remaining,
            flows.indptr,
            flows.links,
            view.capacity,
        )


def _classes(view: View, admitted: Bools, queues: int) -> Ints:
    """The class of each coflow: the first for the admitted ones, the rest for the others as SEBF has it."""
    first = min(1, queues - 1)
    held = np.maximum(view.coflows.cls - first, -1)
    others = np.flatnonzero(~admitted)
    cls = np.zeros(len(admitted), np.int64)
    cls[others] = first + classes_in_order(whole_bottlenecks(view)[others], held[others], queues - first)
    return cls
