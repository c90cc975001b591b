"""What a policy sees and what it says: a view of the active flows, a plan for each of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from netsched.model.columns import Bools, Floats, Ints

BEST_EFFORT = 2**31 - 1
"""The rank of traffic that nobody marks: always the last class (DSCP 0), whatever else is ranked."""


Memory = tuple[np.ndarray[Any, Any], ...]
"""What a policy keeps from one plan to the next. Engines hand it on and never look into it."""


class Event(enum.Flag):
    """What happened since a policy was last asked. A policy declares which of these concern it.

    A coflow is released when its first flow becomes active and finished when no flow of it is active any
    more. Where its flows wait for others this can happen several times: each time it enters or leaves the
    view, and a policy that is not told would keep for it what others could use.
    """

    NONE = 0
    FLOW_RELEASED = enum.auto()
    FLOW_FINISHED = enum.auto()
    COFLOW_RELEASED = enum.auto()
    COFLOW_FINISHED = enum.auto()
    REVIEW = enum.auto()
    WATCHED_FINISHED = enum.auto()
    """A flow ended that the last plan set `watch` for."""
    PORTS_CHANGED = 128
    """A port of an optical switch failed, came back or has another rate: for schedulers of circuits, since
    policies are told as if flows had been released. (64 is the ledger's own: a parcel has been sent.)"""


@dataclass(frozen=True)
class FlowView:
    """The active flows (released, not finished), one row each, in order of release.

    `coflow` is a row of `View.coflows`; `links[indptr[i]:indptr[i+1]]` are the links of flow i's path.
    `size` and `remaining` are NaN to a policy that is not clairvoyant. Bytes and seconds.
    """

    id: Ints
    coflow: Ints
    src: Ints
    dst: Ints
    size: Floats
    sent: Floats
    remaining: Floats
    need: Ints
    need_span: Ints
    release: Floats
    indptr: Ints
    links: Ints

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class CoflowView:
    """The coflows with an active flow, one row each, in order of arrival (first release, then id).

    `size` is the bytes of all its flows, released or not (NaN if not clairvoyant); `sent` the bytes
    carried so far, finished flows included; `n_flows` and `n_finished` count its flows. `cls` is the
    class that the last decision in effect gave it, -1 before its first. `burst` and `lull` are those of
    `Coflows`: what the shape of its job says of gradients that come in bursts.
    """

    id: Ints
    job: Ints
    stage: Ints
    arrival: Floats
    size: Floats
    sent: Floats
    n_flows: Ints
    n_finished: Ints
    weight: Floats
    deadline: Floats
    cls: Ints
    burst: Ints
    lull: Floats

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class JobView:
    """The jobs that own an active coflow, one row each; `CoflowView.job` is a row of this."""

    id: Ints
    arrival: Floats
    weight: Floats
    iterations: Ints
    iterations_done: Ints


@dataclass(frozen=True)
class Profile:
    """What is known of training before it runs, for policies that say that they want it.

    One value per row of `View.jobs`, for one iteration, in seconds on a network that takes no time:
    compute  its length
    lead     from its begin to the release of its first flow
    work     of all the job's workers' computations, added up
    traffic  that its bytes would take alone on the link that has most to carry for its capacity

    One value per row of `View.coflows`: `due`, the time of the run at which its bytes are needed if
    computation waits for nothing else: as long after the first release of its stage as in that schedule.
    """

    compute: Floats
    lead: Floats
    work: Floats
    traffic: Floats
    due: Floats


class Ways(Protocol):
    """The equally long paths between hosts: every pair has those numbered 0 to n_paths - 1."""

    @property
    def n_paths(self) -> int: ...

    def paths(self, src: Ints, dst: Ints, p: Ints) -> tuple[Ints, Ints]:
        """Path p[i] from host src[i] to dst[i] is `links[indptr[i]:indptr[i+1]]` of (indptr, links)."""
        ...


@dataclass(frozen=True)
class View:
    """All that a policy may look at. Its arrays are read-only; `now` is its only clock.

    `capacity` has one entry per link of the fabric in bytes/s; `queues` is the number of priority
    classes that the hardware has, None for as many as there are ranks. `profile` is None unless the policy
    is `profiled`. `ways` is None unless the policy says that it `steers` and the engine lets it: only then
    may it set `Plan.path`. `memory` is what the policy's last plan of this run had, () before its first.
    """

    now: float
    flows: FlowView
    coflows: CoflowView
    jobs: JobView
    capacity: Floats
    queues: int | None
    events: Event = Event.NONE
    profile: Profile | None = None
    ways: Ways | None = None
    memory: Memory = ()


@dataclass(frozen=True)
class Plan:
    """What a policy wants, one row per row of `View.flows`.

    rank        0 goes first, equal ranks share, BEST_EFFORT is unmarked traffic. int64
    reserve     bytes/s that the flow has before anything is shared; ranks share what all reserves leave over
    rate        cap in bytes/s, inf for none (a reserve above it is cut to it)
    weight      share inside a rank, > 0
    not_before  seconds of the run before which the flow must not send, -inf for none
    path        index of the path to take, -1 to leave it as it is
    review_in   ask again within so many seconds, inf for "when something happens"
    watch       flows whose end is a WATCHED_FINISHED event from now on, even before the plan takes effect
    memory      what the next view shows: all that a policy may know of the past beside the view's columns.
                Not for local policies, which see a flow once
    """

    rank: Ints
    reserve: Floats
    rate: Floats
    weight: Floats
    not_before: Floats
    path: Ints
    review_in: float = float("inf")
    watch: Bools | None = None
    memory: Memory = ()


PLAN_COLUMNS: Final = ("rank", "reserve", "rate", "weight", "not_before", "path")
"""The columns of a Plan that have one value per flow, always."""


class Policy(Protocol):
    """A pure function from view to plan. Its instance fields are its parameters (frozen dataclass).

    It keeps nothing in itself: what it wants to know again it puts into `Plan.memory`.

    clairvoyant  may it see sizes?
    local        does a flow's plan depend on that flow's own row only? Then a host decides it alone,
                 and no coordinator, control period or control delay is involved.
    events       what concerns it: it is not called for anything else

    It may also say, as text that gives the reason, what `testing.check_policy` else refuses:
    idles        why a link may be idle that a flow could use
    starves      whom it keeps waiting for as long as others come, and why

    and, with True, that it reads `View.profile`, which is None to all others: profiled; that it chooses paths
    among `View.ways`: steers
    """

    name: ClassVar[str]
    clairvoyant: ClassVar[bool]
    local: ClassVar[bool]
    events: ClassVar[Event]

    def __call__(self, view: View) -> Plan: ...
