"""The nouns: what a workload, a view, a plan and an outcome are.

Bytes, seconds and bytes per second everywhere inside; `units` converts at the edge. Everything that
can be numerous is a column (a numpy array), because the public trace alone has 706,397 flows.
This module imports nothing of ours.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BEST_EFFORT = 2**31 - 1
"""The rank of traffic that nobody marks: always the last class (DSCP 0), whatever else is ranked."""


# ------------------------------------------------------------------ what is to be carried


class TaskKind(enum.IntEnum):
    """What a compute node of the DAG stands for. A BARRIER takes no time and joins dependencies."""

    BARRIER = 0
    FORWARD = 1
    BACKWARD = 2
    OTHER = 3


@dataclass(frozen=True)
class Jobs:
    """One row per job. `arrival` in seconds after the start of the run."""

    name: tuple[str, ...]
    arrival: Floats
    weight: Floats
    iterations: Ints


@dataclass(frozen=True)
class Stages:
    """One row per stage: the coflows of a job that belong together (for training: one iteration's).

    A stage may have coflows of several jobs (those of a step of a hyper-parameter search, which end it
    together); `job` is then the first of them.
    """

    job: Ints
    iteration: Ints
    label: tuple[str, ...]


@dataclass(frozen=True)
class Coflows:
    """One row per coflow. `deadline` in seconds after its first flow's release, inf for none."""

    job: Ints
    stage: Ints
    iteration: Ints
    label: tuple[str, ...]
    weight: Floats
    deadline: Floats


@dataclass(frozen=True)
class Flows:
    """One row per flow.

    `src` and `dst` are host ordinals (positions in `Fabric.hosts`), `size` in bytes, `need` the
    consumption order of the tensor inside its job (0 is needed first) out of `need_span` values.
    """

    coflow: Ints
    src: Ints
    dst: Ints
    size: Floats
    need: Ints
    need_span: Ints


@dataclass(frozen=True)
class Tasks:
    """One row per compute node of the DAG. `host` is a host ordinal (-1: nowhere), `seconds` its length."""

    job: Ints
    iteration: Ints
    host: Ints
    seconds: Floats
    kind: Ints
    label: tuple[str, ...]


@dataclass(frozen=True)
class Dag:
    """Who waits for whom. Nodes 0..F-1 are the flows, F..F+T-1 the tasks.

    A node with no dependency starts at its job's arrival, any other when its last dependency ends.
    `successors[indptr[n]:indptr[n+1]]` are the nodes that wait for node n. Acyclic (checked by the builder).
    """

    n_deps: Ints
    indptr: Ints
    successors: Ints


@dataclass(frozen=True)
class Workload:
    """All jobs of a scenario, fully unrolled.

    `hairpin` says what a flow from a host to itself is: traffic over the host's own up and down
    port (True, the coflow trace's model) or nothing at all for the network (False, loopback).
    """

    jobs: Jobs
    stages: Stages
    coflows: Coflows
    flows: Flows
    tasks: Tasks
    dag: Dag
    hairpin: bool = False

    @property
    def n_flows(self) -> int:
        return len(self.flows.size)

    @property
    def n_tasks(self) -> int:
        return len(self.tasks.seconds)


# ------------------------------------------------------------------ what a policy sees and says


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
    class that the last decision in effect gave it, -1 before its first.
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
    may it set `Plan.path`.
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
    """

    rank: Ints
    reserve: Floats
    rate: Floats
    weight: Floats
    not_before: Floats
    path: Ints
    review_in: float = float("inf")
    watch: npt.NDArray[np.bool_] | None = None


PLAN_COLUMNS: Final = ("rank", "reserve", "rate", "weight", "not_before", "path")
"""The columns of a Plan that have one value per flow, always."""


class Policy(Protocol):
    """A pure function from view to plan. Its instance fields are its parameters (frozen dataclass).

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


# ------------------------------------------------------------------ optical circuits


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

    out        (K, S, E) as `CircuitView.out`: no end is reached twice over one switch. K = 0: change nothing
    hold       (K,) seconds from the command of a step to that of the next, the dark time included
    review_in  ask again within so many seconds, inf for "when something happens"
    """

    out: Ints
    hold: Floats
    review_in: float = float("inf")


class Circuits(Protocol):
    """A circuit scheduler: a pure function from view to plan. Its fields are its parameters.

    events           what concerns it, besides its reviews: it is not called for anything else
    without_circuit  "eps": a flow without a circuit takes the packet switches; "wait": it waits for one
    hops             most circuits that a flow may take in a row
    """

    name: ClassVar[str]
    events: ClassVar[Event]

    @property
    def without_circuit(self) -> str: ...
    @property
    def hops(self) -> int: ...
    def __call__(self, view: CircuitView) -> CircuitPlan: ...


# ------------------------------------------------------------------ where jobs run, and when they begin


@dataclass(frozen=True)
class Bursts:
    """What a job sends in one iteration when alone, one row per flow between two hosts.

    `begin` and `end` in seconds after the job's begin, `src` and `dst` places (see `JobAlone`), `rate` the
    mean in bytes/s, `salt` what the path of a connection is drawn from.
    """

    begin: Floats
    end: Floats
    src: Ints
    dst: Ints
    rate: Floats
    salt: Ints


@dataclass(frozen=True)
class JobAlone:
    """A job as it runs when nobody else does. Its places are the hosts that it has in the scenario.

    hosts     the host (ordinal) of each place
    computes  (places,) does the place compute? Others serve parameters or data
    traffic   (places, places) bytes from one to another in an iteration
    period    seconds of an iteration
    loading   seconds from its begin to its first computation
    duration  seconds of all of it
    """

    name: str
    arrival: float
    iterations: int
    hosts: Ints
    computes: npt.NDArray[np.bool_]
    traffic: Floats
    period: float
    loading: float
    duration: float
    bursts: Bursts


class Network(Protocol):
    """What of a fabric a placement reads; see `netsched.fabric.Fabric`."""

    @property
    def hosts(self) -> tuple[str, ...]: ...
    @property
    def capacity(self) -> Floats: ...
    def choose_path(
        self, job: npt.ArrayLike, src: npt.ArrayLike, dst: npt.ArrayLike, salt: npt.ArrayLike
    ) -> Ints: ...
    def paths(self, src: Ints, dst: Ints, p: Ints, hairpin: bool = False) -> tuple[Ints, Ints]: ...


@dataclass(frozen=True)
class Cluster:
    """All that a placement may look at."""

    jobs: tuple[JobAlone, ...]
    network: Network


@dataclass(frozen=True)
class Placing:
    """Where each job runs and when it begins, one entry per job.

    hosts  the host (ordinal) of each place
    after  the jobs that have to end before it begins
    shift  seconds between the moment at which it could begin (it has arrived, those have ended) and its begin
    notes  for people: what the system could not do for which jobs
    """

    hosts: tuple[Ints, ...]
    after: tuple[tuple[int, ...], ...]
    shift: Floats
    notes: tuple[str, ...] = ()


class Placement(Protocol):
    """A pure function of the cluster and of what `rng` draws. Its fields are its parameters."""

    name: ClassVar[str]

    def __call__(self, cluster: Cluster, rng: np.random.Generator) -> Placing: ...


# ------------------------------------------------------------------ how it is carried


class Connections(enum.Enum):
    """Which flows share a connection, the unit that shares bandwidth.

    PER_PAIR: one connection per job, host pair and class; its flows go one after the other in the
    order of their release. PER_FLOW: every flow has a connection of its own.
    """

    PER_PAIR = "per-pair"
    PER_FLOW = "per-flow"


@dataclass(frozen=True)
class Transport:
    """How flows map to connections."""

    connections: Connections = Connections.PER_FLOW


@dataclass(frozen=True)
class Control:
    """What the coordinator costs, and what its knowledge does. Seconds; 0 is the ideal.

    delay          from a decision to its effect
    period         least time between two decisions
    report_period  every host reports the bytes that its flows have sent at 0, 1, 2, ... times this; with 0
                   the coordinator sees them as they are
    report_delay   from a report to its arrival at the coordinator
    report_loss    share of the reports that never arrive, drawn for each host and report
    """

    delay: float = 0.0
    period: float = 0.0
    report_period: float = 0.0
    report_delay: float = 0.0
    report_loss: float = 0.0


@dataclass(frozen=True)
class Emulation:
    """How the scenario meets a real kernel. Rates and sizes are both multiplied by `scale` (times stay)."""

    scale: float
    chunk: int = 4096
    delay: str = "strict"


@dataclass(frozen=True)
class Spec:
    """The name of a plug-in and its parameters, as the scenario gives them."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`name`, or `name(key=value, ...)` where parameters are set: unique inside a scenario."""
        if not self.params:
            return self.name
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in sorted(self.params.items()))})"


@dataclass(frozen=True)
class Fault:
    """What happens to a cable or a host at `at` seconds, whoever schedules what.

    link   the names of the two nodes of a cable, both ways of which it concerns; None where it is a host
    host   the name of a host; None where it is a cable
    value  of a cable: bytes/s from then on, 0 for down, inf for as built; of a host: how many times as long
           its computations take that begin from then on, 1 for as built
    """

    at: float
    link: tuple[str, str] | None
    host: str | None
    value: float


UNPLACED: Final = Spec("none")
"""The placement of a scenario that names none: every job where and when the scenario says."""


@dataclass(frozen=True)
class Scheme:
    """What one run of a comparison schedules with. `label` tells the schemes of a scenario apart.

    `circuits` is None where the scenario names no schedulers of optical circuits.
    """

    policy: Spec
    circuits: Spec | None = None
    placement: Spec = UNPLACED

    @property
    def label(self) -> str:
        placement = None if self.placement == UNPLACED else self.placement
        parts = (self.policy, self.circuits, placement)
        return " + ".join(part.label for part in parts if part is not None)


@dataclass(frozen=True)
class Scenario:
    """A checked description; only `scenario.load` builds one. It never names an engine.

    `source` is the mapping as read (after --set), written back as scenario.yaml beside the results.
    `horizon` in seconds (inf: until every job has ended). `emulation` is None where the scenario
    is not meant for a real kernel. `circuits` are tried with every policy; none where the fabric has no
    optical switch. `faults` are in order of time. `plugins` are the files of policies that whoever runs it
    has allowed.
    """

    name: str
    fabric: Spec
    workload: tuple[Spec, ...]
    policies: tuple[Spec, ...]
    queues: int | None
    seed: int
    horizon: float
    transport: Transport
    control: Control
    emulation: Emulation | None
    source: Mapping[str, Any]
    path: str
    plugins: tuple[str, ...] = ()
    circuits: tuple[Spec, ...] = ()
    faults: tuple[Fault, ...] = ()
    placements: tuple[Spec, ...] = (UNPLACED,)

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """What the scenario compares, one run of each engine per scheme, in this order."""
        return tuple(
            Scheme(policy, circuits, placement)
            for placement in self.placements
            for policy in self.policies
            for circuits in self.circuits or (None,)
        )


# ------------------------------------------------------------------ what happened


@dataclass(frozen=True)
class Standing:
    """How far a run is: its time in seconds, active flows, the coflows that own them, ended flows of all."""

    now: float
    active: int
    coflows: int
    finished: int
    flows: int


@dataclass(frozen=True)
class Outcome:
    """What one engine did with one policy, columns aligned with the `Workload`. Times in seconds, NaN: never.

    `flow_class` is the last class the flow had; `link_bytes` payload bytes carried per fabric link;
    `fidelity` what the engine measured of itself ("valid": bool, "reasons": [str], ...);
    `mechanisms` what realised the plan ("priority": "htb-prio", ...).
    """

    flow_release: Floats
    flow_finish: Floats
    flow_class: Ints
    task_start: Floats
    task_finish: Floats
    link_bytes: Floats
    simulated_s: float
    wall_s: float
    peak_rss_bytes: int
    decisions: int
    fidelity: Mapping[str, Any]
    mechanisms: Mapping[str, Any]
