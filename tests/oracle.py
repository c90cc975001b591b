"""A slow simulator that is right by inspection: at every event everything is computed anew, in plain Python.

It shares with netsched.simulate the nouns, the paths (tested on their own) and the policies, and no line of
its arithmetic: no ledger, no bundles, no virtual clocks, no gate, no view code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from profile_oracle import Profiled

from netsched.control import profiled
from netsched.fabric import Fabric
from netsched.model import (
    BEST_EFFORT,
    CoflowView,
    Connections,
    Control,
    Event,
    FlowView,
    JobView,
    Plan,
    Policy,
    Profile,
    Transport,
    View,
    Workload,
)

SAME_TIME = 1e-12
"""Relative difference of two times below which they are one: the model's own definition of "at once"."""


@dataclass(frozen=True)
class Connection:
    """What shares bandwidth as one: class, weight, cap in bytes/s, the links it crosses, bytes/s reserved."""

    cls: int
    weight: float
    cap: float
    links: tuple[int, ...]
    reserve: float = 0.0


def share(connections: list[Connection], capacity: Iterable[float]) -> list[float]:
    """Bytes/s of each connection: classes in order; inside one, all rise until a link or a cap stops some."""
    full = [float(c) for c in capacity]
    booked = [math.fsum(c.reserve for c in connections if link in c.links) for link in range(len(full))]
    free = [c - b if c - b > 1e-9 * c else 0.0 for c, b in zip(full, booked, strict=True)]
    rate = [c.reserve for c in connections]
    more = [c.cap - c.reserve for c in connections]
    for cls in sorted({c.cls for c in connections}):
        rising = [i for i, c in enumerate(connections) if c.cls == cls]
        level = 0.0
        while rising:
            step, claims = math.inf, {}
            for i in rising:
                for link in connections[i].links:
                    claims[link] = claims.get(link, 0.0) + connections[i].weight
                step = min(step, more[i] / connections[i].weight - level)
            step = max(0.0, min([step, *(free[link] / claim for link, claim in claims.items())]))
            level += step
            for link, claim in claims.items():
                free[link] -= step * claim
            tight = {link for link in claims if free[link] <= 1e-11 * full[link]}
            for link in tight:
                free[link] = 0.0
            stuck = [
                i
                for i in rising
                if tight.intersection(connections[i].links)
                or more[i] <= level * connections[i].weight * (1 + 1e-12)
            ]
            assert stuck, "the level rose without stopping at anything"
            for i in stuck:
                rate[i] += min(more[i], level * connections[i].weight)
            rising = [i for i in rising if i not in stuck]
    return rate


def hardware_classes(policy: Policy, rank: list[int], queues: int | None) -> list[int]:
    """Ranks as classes, as control's texts say: a coordinator knows all ranks, a host only its own."""
    marked = sorted({r for r in rank if r != BEST_EFFORT})
    last = BEST_EFFORT if queues is None else queues - 1
    if policy.local or (queues is not None and all(r < queues for r in marked)):
        return [min(r, last) for r in rank]
    return [last if r == BEST_EFFORT else min(marked.index(r), last) for r in rank]


@dataclass
class Oracle:
    """One run. Flows are 0..F-1 and tasks F..F+T-1, as in the DAG; `order` has the flows as released."""

    workload: Workload
    fabric: Fabric
    policy: Policy
    queues: int | None
    transport: Transport
    control: Control
    horizon: float = math.inf
    rng: np.random.Generator | None = None
    now: float = 0.0
    start: dict[int, float] = field(default_factory=dict)
    finish: dict[int, float] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    sent_all: set[int] = field(default_factory=set)
    timers: list[tuple[float, int]] = field(default_factory=list)
    arrival: dict[int, float] = field(default_factory=dict)
    happened: Event = Event.NONE
    pending: Event = Event.NONE
    last_decision: float = -math.inf
    review_at: float = math.inf
    waiting: list[tuple[float, list[int], Plan, list[int]]] = field(default_factory=list)
    history: list[tuple[float, float, dict[int, float]]] = field(default_factory=list)
    decisions: list[float] = field(default_factory=list)
    watched: set[int] = field(default_factory=set)
    reports: int = 0
    under_way: list[tuple[float, dict[int, float]]] = field(default_factory=list)
    known: dict[int, float] = field(default_factory=dict)
    profiled: Profiled | None = None

    def __post_init__(self) -> None:
        w, flows = self.workload, self.workload.flows
        self.n = w.n_flows
        self.size = [float(s) for s in flows.size]
        self.left = list(self.size)
        self.deps = [int(d) for d in w.dag.n_deps]
        self.coflow = [int(c) for c in flows.coflow]
        self.job = [int(w.coflows.job[c]) for c in self.coflow]
        per_flow = self.transport.connections is Connections.PER_FLOW
        self.path: list[tuple[int, ...]] = []
        for f in range(self.n):
            src, dst = int(flows.src[f]), int(flows.dst[f])
            (index,) = self.fabric.choose_path([self.job[f]], [src], [dst], [f if per_flow else 0]).tolist()
            self.path.append(tuple(int(x) for x in self.fabric.path(src, dst, index, w.hairpin)))
        self.latency = [self.seconds(path) for path in self.path]
        self.carried = np.zeros(len(self.fabric.capacity))
        last = BEST_EFFORT if self.queues is None else self.queues - 1
        self.cls, self.cap, self.weight = [last] * self.n, [math.inf] * self.n, [1.0] * self.n
        self.gate, self.reserve = [-math.inf] * self.n, [0.0] * self.n
        self.class_of_coflow: dict[int, int] = {}
        self.timers = [(float(a), -1 - j) for j, a in enumerate(w.jobs.arrival)]

    def seconds(self, path: tuple[int, ...]) -> float:
        return math.fsum(float(self.fabric.delay[k]) for k in path)

    # -------------------------------------------------------------- the DAG

    def active(self, coflow: int) -> list[int]:
        """The flows of a coflow that are released and have not ended."""
        mine = [f for f in range(self.n) if self.coflow[f] == coflow]
        return [f for f in mine if f in self.start and f not in self.finish]

    def begin(self, node: int) -> bool:
        """Start a node; True if it ends at once."""
        if node >= self.n:
            self.start[node] = self.now
            seconds = float(self.workload.tasks.seconds[node - self.n])
            if seconds > 0:
                self.timers.append((self.now + seconds, node))
            return seconds <= 0
        if self.coflow[node] not in self.arrival:
            self.arrival[self.coflow[node]] = self.now
        if not self.active(self.coflow[node]):
            self.happened |= Event.COFLOW_RELEASED
        self.start[node] = self.now
        if self.size[node] == 0 or not self.path[node]:
            return True
        self.order.append(node)
        self.fresh.append(node)
        self.happened |= Event.FLOW_RELEASED
        return False

    def end(self, node: int) -> None:
        """End a node and whatever follows in no time; what was found last goes on first."""
        stack, dag = [node], self.workload.dag
        while stack:
            ended = stack.pop()
            self.finish[ended] = self.now
            if ended < self.n:
                self.happened |= Event.FLOW_FINISHED
                if ended in self.watched:
                    self.happened |= Event.WATCHED_FINISHED
                if not self.active(self.coflow[ended]):
                    self.happened |= Event.COFLOW_FINISHED
            for after in dag.successors[dag.indptr[ended] : dag.indptr[ended + 1]].tolist():
                self.deps[after] -= 1
                if self.deps[after] == 0 and self.begin(after):
                    stack.append(after)

    def fire(self, limit: float) -> None:
        """Job arrivals, ends of tasks and arrivals of last bytes that are due, the earliest first."""
        while self.timers and min(self.timers)[0] <= limit:
            timer = min(self.timers)
            self.timers.remove(timer)
            node = timer[1]
            if node >= 0:
                self.end(node)
                continue
            for root in range(len(self.deps)):
                of = self.job[root] if root < self.n else int(self.workload.tasks.job[root - self.n])
                if of == -1 - node and self.workload.dag.n_deps[root] == 0 and self.begin(root):
                    self.end(root)

    # -------------------------------------------------------------- which way

    def way(self, flow: int) -> tuple[int, ...] | None:
        """The links that a flow crosses at present, None while it must wait for some."""
        return self.path[flow]

    def class_now(self, flow: int) -> int:
        """The class in which a flow goes at present."""
        return self.cls[flow]

    def next_change(self) -> float:
        """When ways change next."""
        return math.inf

    def switch(self) -> None:
        """Let ways change that are due to."""

    def others(self) -> dict[int, Connection]:
        """What else sends, by numbers that no node has."""
        return {}

    # -------------------------------------------------------------- who sends how fast

    def unsent(self) -> list[int]:
        """Released flows with bytes to send, in order of release."""
        return [f for f in self.order if f not in self.finish and f not in self.sent_all]

    def rates(self) -> dict[int, float]:
        """Bytes/s of the flows that send."""
        queue: dict[object, list[int]] = {}
        per_flow = self.transport.connections is Connections.PER_FLOW
        flows = self.workload.flows
        for f in self.unsent():
            if self.gate[f] <= self.now and self.way(f) is not None:
                lane = (
                    f if per_flow else (self.job[f], int(flows.src[f]), int(flows.dst[f]), self.class_now(f))
                )
                queue.setdefault(lane, []).append(f)
        others = self.others()
        heads = [*(members[0] for members in queue.values()), *others]
        connections = [
            Connection(
                self.class_now(q[0]),
                self.weight[q[0]],
                sum(self.cap[f] for f in q),
                self.way(q[0]) or (),
                sum(self.reserve[f] for f in q),
            )
            for q in queue.values()
        ]
        connections += others.values()
        return dict(zip(heads, share(connections, self.fabric.capacity), strict=True))

    # -------------------------------------------------------------- what the policy says

    def due(self) -> float:
        """When the coordinator decides next: not before its period is over, never without flows to come."""
        if self.policy.local or all(f in self.finish for f in range(self.n)):
            return math.inf
        earliest = self.last_decision + self.control.period
        return max(earliest, -math.inf if self.pending else self.review_at)

    def ask(self, flows: list[int], events: Event) -> tuple[Plan, list[int]]:
        """The plan for these flows and the class of each."""
        plan = self.policy(self.view(flows, events))
        self.decisions.append(self.now)
        return plan, hardware_classes(self.policy, plan.rank.tolist(), self.queues)

    def write(self, flows: list[int], plan: Plan, classes: list[int]) -> None:
        """Let the plan hold for those of its flows that still send."""
        sending = set(self.unsent())
        for i, f in enumerate(flows):
            if f in sending:
                self.cls[f], self.cap[f] = classes[i], float(plan.rate[i])
                self.reserve[f] = min(float(plan.reserve[i]), self.cap[f])
                self.weight[f], self.gate[f] = float(plan.weight[i]), float(plan.not_before[i])
            self.class_of_coflow[self.coflow[f]] = classes[i]
        for i, f in enumerate(flows):
            if f in sending and plan.path[i] >= 0:
                self.steer(f, int(plan.path[i]))

    def steer(self, flow: int, index: int) -> None:
        """Give the flow another path, and all others of its connection."""
        w = self.workload
        src, dst = int(w.flows.src[flow]), int(w.flows.dst[flow])
        for f in range(self.n):
            ends = self.job[f], int(w.flows.src[f]), int(w.flows.dst[f])
            same = self.transport.connections is Connections.PER_PAIR and ends == (self.job[flow], src, dst)
            if (f == flow or same) and f not in self.sent_all and f not in self.finish:
                self.path[f] = tuple(int(x) for x in self.fabric.path(src, dst, index, w.hairpin))
                self.latency[f] = self.seconds(self.path[f])

    def control_step(self) -> None:
        """Decide if it is time, and put into effect what was decided long enough ago."""
        fresh, self.fresh = sorted(self.fresh), []
        self.order[len(self.order) - len(fresh) :] = fresh
        events, self.happened = self.happened, Event.NONE
        if self.policy.local:
            if fresh:
                self.write(fresh, *self.ask(fresh, events))
            return
        self.pending |= events & self.policy.events
        for f in fresh:
            self.cls[f] = max(0, self.class_of_coflow.get(self.coflow[f], -1))
        if self.due() <= self.now:
            flows = self.unsent()
            review = Event.REVIEW if self.review_at <= self.now else Event.NONE
            plan, classes = self.ask(flows, self.pending | review)
            self.pending, self.last_decision = Event.NONE, self.now
            self.review_at = self.now + plan.review_in
            if plan.watch is not None:
                self.watched -= set(flows)
                self.watched |= {f for f, watch in zip(flows, plan.watch.tolist(), strict=True) if watch}
            self.waiting.append((self.now + self.control.delay, flows, plan, classes))
        while self.waiting and self.waiting[0][0] <= self.now:
            _, flows, plan, classes = self.waiting.pop(0)
            self.write(flows, plan, classes)

    def report_due(self) -> float:
        """When hosts report next: never where each decides alone, or the coordinator sees all as it is."""
        never = self.policy.local or self.control.report_period == 0
        return math.inf if never else self.reports * self.control.report_period

    def report(self) -> None:
        """Make the reports that are due, draw for each host which are lost, and read those that have come."""
        while self.report_due() <= self.now * (1 + SAME_TIME):
            lost = [False] * (1 + int(max(self.workload.flows.src)))
            if self.control.report_loss > 0:
                assert self.rng is not None
                lost = [x < self.control.report_loss for x in self.rng.random(len(lost)).tolist()]
            sent = {
                f: self.size[f] - self.left[f]
                for f in self.order
                if f not in self.finish and not lost[int(self.workload.flows.src[f])]
            }
            arrival = self.report_due() + self.control.report_delay
            self.reports += 1
            if self.report_due() > self.now * (1 + SAME_TIME):
                # Reports that nobody made, for no flow was active, say nothing.
                self.under_way.append((arrival, sent))
        while self.under_way and self.under_way[0][0] <= self.now * (1 + SAME_TIME):
            self.known |= self.under_way.pop(0)[1]

    def sent(self, flow: int) -> float:
        """Bytes that the coordinator knows a flow to have sent."""
        if self.report_due() == math.inf or flow in self.finish:
            return self.size[flow] - self.to_come(flow)
        return self.known.get(flow, 0.0)

    def view(self, flows: list[int], events: Event) -> View:
        """What the policy may see: the given flows, in order of release, and the coflows that own them."""
        w, hidden = self.workload, not self.policy.clairvoyant
        ids = sorted({self.coflow[f] for f in flows}, key=lambda c: (self.arrival[c], c))
        jobs = sorted({int(w.coflows.job[c]) for c in ids})
        of = {c: [f for f in range(self.n) if self.coflow[f] == c] for c in ids}
        paths = [self.path[f] for f in flows]

        def floats(values: Iterable[float], secret: bool = False) -> np.ndarray:
            found = list(values)
            return np.array([math.nan] * len(found) if secret and hidden else found, np.float64)

        def ints(values: Iterable[int]) -> np.ndarray:
            return np.array(list(values), np.int64)

        return View(
            now=self.now,
            flows=FlowView(
                id=ints(flows),
                coflow=ints(ids.index(self.coflow[f]) for f in flows),
                src=w.flows.src[flows],
                dst=w.flows.dst[flows],
                size=floats((self.size[f] for f in flows), True),
                sent=floats(self.sent(f) for f in flows),
                remaining=floats((self.size[f] - self.sent(f) for f in flows), True),
                need=w.flows.need[flows],
                need_span=w.flows.need_span[flows],
                release=floats(self.start[f] for f in flows),
                indptr=ints(np.cumsum([0, *map(len, paths)])),
                links=ints(link for path in paths for link in path),
            ),
            coflows=CoflowView(
                id=ints(ids),
                job=ints(jobs.index(int(w.coflows.job[c])) for c in ids),
                stage=w.coflows.stage[ids],
                arrival=floats(self.arrival[c] for c in ids),
                size=floats((sum(self.size[f] for f in of[c]) for c in ids), True),
                sent=floats(sum(self.sent(f) for f in of[c]) for c in ids),
                n_flows=ints(len(of[c]) for c in ids),
                n_finished=ints(sum(f in self.finish for f in of[c]) for c in ids),
                weight=w.coflows.weight[ids],
                deadline=w.coflows.deadline[ids],
                cls=ints(self.class_of_coflow.get(c, -1) for c in ids),
                burst=w.coflows.burst[ids],
                lull=w.coflows.lull[ids],
            ),
            jobs=JobView(
                id=ints(jobs),
                arrival=w.jobs.arrival[jobs],
                weight=w.jobs.weight[jobs],
                iterations=w.jobs.iterations[jobs],
                iterations_done=ints(self.iterations_done(j) for j in jobs),
            ),
            capacity=self.fabric.capacity,
            queues=self.queues,
            events=events,
            profile=self.profile(ids, jobs),
            ways=self.fabric if getattr(self.policy, "steers", False) else None,
        )

    def profile(self, coflows: list[int], jobs: list[int]) -> Profile | None:
        """What a policy that wants it knows of these jobs and coflows beforehand."""
        if not profiled(self.policy):
            return None
        self.profiled = self.profiled or Profiled(self.workload, self.fabric, self.path)
        known = {name: getattr(self.profiled, name) for name in ("compute", "lead", "work", "traffic")}
        per_job = {name: np.array([of[j] for j in jobs], np.float64) for name, of in known.items()}
        return Profile(**per_job, due=self.profiled.due(self.arrival, coflows))

    def to_come(self, flow: int) -> float:
        """Bytes that a flow still has to send; none if it has ended, even if the network never saw it."""
        return 0.0 if flow in self.finish else self.left[flow]

    def iterations_done(self, job: int) -> int:
        """How many iterations of the job have no node that has not ended."""
        w = self.workload
        nodes = [(int(w.coflows.iteration[self.coflow[f]]), f) for f in range(self.n) if self.job[f] == job]
        tasks = np.flatnonzero(w.tasks.job == job).tolist()
        nodes += [(int(w.tasks.iteration[t]), self.n + t) for t in tasks]
        return len({i for i, _ in nodes} - {i for i, node in nodes if node not in self.finish})

    # -------------------------------------------------------------- time

    def run(self) -> Oracle:
        """Until everything has ended, or the horizon; `history` gets (from, to, rates) of every interval."""
        while len(self.finish) < len(self.deps) and self.now < self.horizon:
            rates = self.rates()
            ends = {f: self.now + self.left[f] / r for f, r in rates.items() if r > 0}
            gates = [self.gate[f] for f in self.unsent() if self.gate[f] > self.now]
            at = [self.horizon, self.due(), self.next_change(), *ends.values(), *gates]
            at += [self.report_due()] if any(f not in self.finish for f in self.order) else []
            at += [entry[0] for entry in (*self.timers, *self.waiting)]
            then = max(self.now, min(at))
            assert then < math.inf, "nothing will ever happen again"
            for f, r in rates.items():
                self.carry(f, min(self.left[f], r * (then - self.now)))
            self.history.append((self.now, then, rates))
            self.now = then
            limit = then * (1 + SAME_TIME)
            self.fire(limit)
            for f in [f for f in ends if ends[f] <= limit]:
                self.carry(f, self.left[f])
                self.left[f] = 0.0
                self.sent_last(f)
            self.switch()
            self.report()
            self.control_step()
        return self

    def sent_last(self, flow: int) -> None:
        """The last byte of a flow has left."""
        self.sent_all.add(flow)
        if self.latency[flow] > 0:
            self.timers.append((self.now + self.latency[flow], flow))
        else:
            self.end(flow)

    def carry(self, flow: int, amount: float) -> None:
        """So many more bytes of a flow have left."""
        self.left[flow] -= amount
        for link in self.way(flow) or ():
            self.carried[link] += amount

    def column(self, times: dict[int, float], tasks: bool = False) -> np.ndarray:
        """Times of all flows (or tasks) as the Outcome has them, NaN for never."""
        rows = range(self.n, len(self.deps)) if tasks else range(self.n)
        return np.array([times.get(node, math.nan) for node in rows], np.float64)

    def link_bytes(self) -> np.ndarray:
        """Bytes that each link has carried."""
        if_local = [f for f in range(self.n) if not self.path[f]]
        assert all(self.left[f] == self.size[f] for f in if_local)
        return self.carried
