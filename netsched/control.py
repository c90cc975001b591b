"""The one gate between engines and policies: hide, ask, check, fit into the hardware's classes.

Simulator, emulator and agent call `decide` and nothing else, so a policy cannot cheat in one of them and
the cost of having only so many priority classes is the same in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from netsched.errors import PolicyError
from netsched.model import BEST_EFFORT, Control, Event, Ints, Plan, Policy, View


def decide(policy: Policy, view: View, queues: int | None) -> Plan:
    """The policy's plan for this view with `rank` turned into a class 0..queues-1 (any rank if queues is None).

    Raises PolicyError if the plan is not one value per flow, finite where it must be, and positive.
    """
    plan = policy(view if policy.clairvoyant else _without_sizes(view))
    _check(policy, plan, len(view.flows))
    return replace(plan, rank=classes(plan.rank, queues))


def classes(rank: Ints, queues: int | None) -> Ints:
    """Ranks as hardware classes: kept if they fit, else the first queues-1 distinct ranks get a class each.

    All later ranks share the last class, with BEST_EFFORT, which is always there. Without a limit
    ranks become 0, 1, 2, ... in order and BEST_EFFORT stays last.
    """
    marked = rank != BEST_EFFORT
    if queues is None:
        out = np.full(len(rank), BEST_EFFORT, np.int64)
        out[marked] = np.unique(rank[marked], return_inverse=True)[1]
        return out
    out = np.full(len(rank), queues - 1, np.int64)
    if marked.any():
        named = rank[marked]
        if named.max() >= queues:
            named = np.unique(named, return_inverse=True)[1]
        out[marked] = np.minimum(named, queues - 1)
    return out


def interim_class(class_of_coflow: Ints) -> Ints:
    """The class of flows that no decision covers yet, given their coflows' class (-1: none yet).

    They ride with their coflow, or in the most urgent class: most coflows end before any coordinator could
    speak of them, and one that turns out large has lost nothing by a few milliseconds at the top (Aalo,
    SIGCOMM 2015, section 4.1, starts every coflow there for the same reason).
    """
    return np.maximum(class_of_coflow, 0)


def _without_sizes(view: View) -> View:
    def unknown(n: int) -> np.ndarray:
        hidden = np.full(n, np.nan)
        hidden.setflags(write=False)
        return hidden

    n, m = len(view.flows), len(view.coflows)
    return replace(
        view,
        flows=replace(view.flows, size=unknown(n), remaining=unknown(n)),
        coflows=replace(view.coflows, size=unknown(m)),
    )


def _check(policy: Policy, plan: Plan, n: int) -> None:
    columns = ("rank", "rate", "weight", "not_before", "path")
    for name in columns:
        column = getattr(plan, name)
        if not isinstance(column, np.ndarray) or column.shape != (n,):
            got = getattr(column, "shape", type(column).__name__)
            raise PolicyError(f"policy {policy.name}: plan.{name} must be an array of {n} values, is {got}")
        if np.isnan(column).any():
            raise PolicyError(f"policy {policy.name}: plan.{name} has NaN")
    if n and plan.rank.min() < 0:
        raise PolicyError(f"policy {policy.name}: plan.rank has {plan.rank.min()}, must be 0 or more")
    if n and plan.rate.min() < 0:
        raise PolicyError(f"policy {policy.name}: plan.rate has {plan.rate.min()} B/s, must be 0 or more")
    if n and not (plan.weight.min() > 0 and math.isfinite(plan.weight.max())):
        raise PolicyError(f"policy {policy.name}: plan.weight must be positive and finite")
    if not plan.review_in > 0:
        raise PolicyError(f"policy {policy.name}: plan.review_in is {plan.review_in} s, must be more than 0")


@dataclass
class Cadence:
    """When a coordinator may and must decide: after an event of concern, not sooner than its period allows."""

    events: Event
    control: Control
    pending: Event = Event.NONE
    last: float = -math.inf
    review_at: float = math.inf

    def note(self, happened: Event) -> None:
        """Remember what happened, if it concerns the policy."""
        self.pending |= happened & self.events

    def due(self) -> float:
        """When the next decision is to be made, as far as is known; inf for never. In the past: at once."""
        after_event = self.last + self.control.period if self.pending else math.inf
        return min(after_event, self.review_at)

    def decided(self, now: float, plan: Plan) -> None:
        """Start anew after a decision made at `now`."""
        self.pending = Event.NONE
        self.last = now
        self.review_at = now + plan.review_in
