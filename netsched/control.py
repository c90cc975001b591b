"""The one gate between engines and policies: hide, ask, check, fit into the hardware's classes.

Simulator, emulator and agent call `decide` and nothing else, so a policy cannot cheat in one of them and
the cost of having only so many priority classes is the same in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from netsched.errors import PolicyError
from netsched.model import BEST_EFFORT, PLAN_COLUMNS, CircuitPlan, Control, Event, Ints, Plan, Policy, View
from netsched.ondemand import ChangesWithTime, instead

NO_PROFILES: Final = (
    "it goes by what jobs compute and send in an iteration, which is known where the whole workload is "
    "(sim, mininet), and not to a coordinator of agents"
)


def profiled(policy: Policy | type[Policy]) -> bool:
    """Does the policy read `View.profile`?"""
    return bool(getattr(policy, "profiled", False))


def steers(policy: Policy) -> bool:
    """Does the policy choose paths among `View.ways`?"""
    return bool(getattr(policy, "steers", False))


def decide(policy: Policy, view: View, queues: int | None) -> Plan:
    """The policy's plan for this view, with `rank` turned into a class: 0..queues-1, any if queues is None.

    Raises PolicyError if the plan is not one value per flow, finite where it must be, and positive, or if
    the policy wants profiles of jobs and there are none.
    """
    if profiled(policy) and view.profile is None:
        raise PolicyError(f"policy {policy.name}: {NO_PROFILES}")
    if view.ways is not None and not steers(policy):
        view = replace(view, ways=None)
    plan = policy(view if policy.clairvoyant else _without_sizes(view))
    _check(policy, plan, len(view.flows))
    _check_reserve(policy, view, plan)
    _check_path(policy, view, plan)
    # A host that decides alone does not know which other ranks there are: each must always mean one class.
    fit = fixed_classes if policy.local else classes
    return replace(plan, rank=fit(plan.rank, queues))


def decide_ahead(policy: Policy, view: View, queues: int | None) -> Plan | None:
    """What a local policy will say of each flow when it is released, if that follows from what never changes.

    `view` has all flows that there will be, and raises ChangesWithTime where only the moment of a release
    tells a value (observe.ahead_of_time). A policy that is a function of the view, and local, which got along
    without such a value, will say the same at any moment. None if it did not get along, or wants more than
    classes, weights and caps.
    """
    try:
        plan = decide(policy, view, queues)
    except ChangesWithTime:
        return None
    return None if (plan.not_before > -math.inf).any() or (plan.path >= 0).any() else plan


def check_sockets(policy: Policy, plan: Plan) -> None:
    """PolicyError for what real connections cannot do, so that nobody seems to do it."""
    if (plan.weight != 1.0).any() or (plan.path >= 0).any() or plan.reserve.any():
        raise PolicyError(
            f"policy {policy.name}: plans with weights, reserves or paths cannot be carried out by TCP "
            "sockets: connections of one class share equally, and a connection keeps its path"
        )


def fixed_classes(rank: Ints, queues: int | None) -> Ints:
    """Ranks as hardware classes whatever else is ranked: a rank is its class, the last takes the rest."""
    return rank if queues is None else np.minimum(rank, queues - 1)


def classes(rank: Ints, queues: int | None) -> Ints:
    """Ranks as hardware classes: kept if they fit, else the first queues-1 distinct ranks get a class each.

    All later ranks share the last class, with BEST_EFFORT, which is always there. Without a limit
    ranks become 0, 1, 2, ... in order and BEST_EFFORT stays last.
    """
    if queues is None and rank.max(initial=-1) < BEST_EFFORT:
        return _dense(rank)
    marked = rank != BEST_EFFORT
    if queues is None:
        out = np.full(len(rank), BEST_EFFORT, np.int64)
        out[marked] = _dense(rank[marked])
        return out
    out = np.full(len(rank), queues - 1, np.int64)
    if marked.any():
        named = rank[marked]
        if named.max() >= queues:
            named = _dense(named)
        out[marked] = np.minimum(named, queues - 1)
    return out


def _dense(rank: Ints) -> Ints:
    """The place of each rank among the distinct ones: without sorting where they are small."""
    top = int(rank.max(initial=-1))
    if top > 4 * len(rank) + 1024:
        return np.unique(rank, return_inverse=True)[1]
    present = np.zeros(top + 1, np.int64)
    present[rank] = 1
    place = np.cumsum(present) - 1
    return place[rank]


def unmarked_class(queues: int | None) -> int:
    """The class of traffic that no decision ever named: the last one."""
    return BEST_EFFORT if queues is None else queues - 1


def interim_class(class_of_coflow: Ints) -> Ints:
    """The class of flows that no decision covers yet, given their coflows' class (-1: none yet).

    They ride with their coflow, or in the most urgent class: most coflows end before any coordinator could
    speak of them, and one that turns out large has lost nothing by a few milliseconds at the top (Aalo,
    SIGCOMM 2015, section 4.1, starts every coflow there for the same reason).
    """
    return np.maximum(class_of_coflow, 0)


def _without_sizes(view: View) -> View:
    unknown, n = np.full(max(len(view.flows), len(view.coflows)), np.nan), len(view.flows)
    unknown.setflags(write=False)
    return instead(
        view,
        flows=instead(view.flows, size=unknown[:n], remaining=unknown[:n]),
        coflows=instead(view.coflows, size=unknown[: len(view.coflows)]),
    )


def asks_for_more(plan: Plan) -> bool:
    """Does the plan ask for anything but classes?"""
    usual = {"reserve": 0.0, "rate": math.inf, "weight": 1.0, "not_before": -math.inf, "path": -1}
    return any((_values(getattr(plan, name)) != value).any() for name, value in usual.items())


def _values(column: np.ndarray) -> np.ndarray:
    """The column, or one value of it where it is one value in memory."""
    return column[:1] if column.strides == (0,) else column


def _check(policy: Policy, plan: Plan, n: int) -> None:
    for name in PLAN_COLUMNS:
        column = getattr(plan, name)
        if not isinstance(column, np.ndarray) or column.shape != (n,):
            got = getattr(column, "shape", type(column).__name__)
            raise PolicyError(f"policy {policy.name}: plan.{name} must be an array of {n} values, is {got}")
        if name in ("rank", "path") and column.dtype.kind != "i":
            raise PolicyError(f"policy {policy.name}: plan.{name} is {column.dtype}, must be int64")
        if column.dtype.kind == "f" and np.isnan(_values(column).min(initial=0.0)):
            raise PolicyError(f"policy {policy.name}: plan.{name} has NaN")
    reserve, rate, weight = map(_values, (plan.reserve, plan.rate, plan.weight))
    if n and not (plan.rank.min() >= 0 and plan.rank.max() <= BEST_EFFORT):
        bad = plan.rank.min() if plan.rank.min() < 0 else plan.rank.max()
        raise PolicyError(f"policy {policy.name}: plan.rank has {bad}, must be 0 to {BEST_EFFORT}")
    if n and not (reserve.min() >= 0 and math.isfinite(reserve.max())):
        raise PolicyError(f"policy {policy.name}: plan.reserve must be finite and 0 B/s or more")
    if n and rate.min() < 0:
        raise PolicyError(f"policy {policy.name}: plan.rate has {rate.min()} B/s, must be 0 or more")
    if n and not (weight.min() > 0 and math.isfinite(weight.max())):
        raise PolicyError(f"policy {policy.name}: plan.weight must be positive and finite")
    watch = plan.watch
    if watch is not None and not (
        isinstance(watch, np.ndarray) and watch.shape == (n,) and watch.dtype == np.bool_
    ):
        raise PolicyError(f"policy {policy.name}: plan.watch must be None or an array of {n} truth values")
    if not plan.review_in > 0:
        raise PolicyError(f"policy {policy.name}: plan.review_in is {plan.review_in} s, must be more than 0")
    memory = plan.memory
    if not (isinstance(memory, tuple) and all(isinstance(each, np.ndarray) for each in memory)):
        raise PolicyError(f"policy {policy.name}: plan.memory must be a tuple of arrays, is {memory!r}")
    if policy.local and memory:
        raise PolicyError(
            f"policy {policy.name}: a local policy is asked once per flow and keeps no memory; "
            "make plan.memory () or local = False"
        )
    for each in memory:
        each.setflags(write=False)
    if policy.local and plan.review_in != math.inf:
        raise PolicyError(
            f"policy {policy.name}: a local policy is asked once per flow, but its plan wants a "
            f"review in {plan.review_in} s; make it local = False"
        )


def _check_reserve(policy: Policy, view: View, plan: Plan) -> None:
    """Reserves are promises: together they must fit on every link."""
    if not _values(plan.reserve).any():
        return
    if policy.local:
        raise PolicyError(
            f"policy {policy.name}: a local policy sees one flow at a time and cannot book links; "
            "make plan.reserve 0 or local = False"
        )
    from netsched.sums import load_of_links  # noqa: PLC0415 (numba, which a host agent never loads)

    flows = view.flows
    booked = load_of_links(plan.reserve, flows.indptr, flows.links, len(view.capacity))
    over = booked - view.capacity * (1 + 1e-9)
    if over.max(initial=0.0) > 0:
        link = int(over.argmax())
        raise PolicyError(
            f"policy {policy.name}: plan.reserve books {booked[link]:.6g} B/s of link {link}, "
            f"which carries {view.capacity[link]:.6g} B/s"
        )


def _check_path(policy: Policy, view: View, plan: Plan) -> None:
    top = int(plan.path.max(initial=-1))
    if top < 0:
        return
    if view.ways is None:
        raise PolicyError(
            f"policy {policy.name}: plan.path chooses paths: that takes a policy with `steers = True` and an "
            "engine that can (the simulator, without circuits or faults); else leave it -1"
        )
    if top >= view.ways.n_paths:
        raise PolicyError(
            f"policy {policy.name}: plan.path has {top}, but there are the paths 0 to {view.ways.n_paths - 1}"
        )


@dataclass
class Cadence:
    """When a coordinator may and must decide: after an event of concern, no sooner than its period allows."""

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
        wanted = -math.inf if self.pending else self.review_at
        return max(wanted, self.last + self.control.period)

    def since(self, now: float) -> Event:
        """What the policy is to be told of at `now`: the events of concern, and whether its review is due."""
        return self.pending | (Event.REVIEW if self.review_at <= now else Event.NONE)

    def decided(self, now: float, plan: Plan | CircuitPlan) -> None:
        """Start anew after a decision made at `now`."""
        self.pending = Event.NONE
        self.last = now
        self.review_at = now + plan.review_in
