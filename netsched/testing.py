"""The checker that every policy must pass, ours and yours: `check_policy(policy, fabric)`.

A policy is trusted by three programs (simulator, emulator, agent), which ask it at different moments and
about different flows. They agree only if it is what it says it is: pure, local, blind to sizes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from netsched.circuits.static import StaticRing
from netsched.conservation import wasted
from netsched.control import decide, steers
from netsched.errors import PolicyError
from netsched.fabric import Fabric
from netsched.model import (
    PLAN_COLUMNS,
    Circuits,
    CoflowView,
    Connections,
    Control,
    Event,
    FlowView,
    Ints,
    JobView,
    Outcome,
    Plan,
    Policy,
    Profile,
    Spec,
    TaskKind,
    Transport,
    View,
    Workload,
)
from netsched.routes import gather
from netsched.shape_check import check_reshape
from netsched.simulate import simulate
from netsched.starvation import starved
from netsched.workloads.builder import Node, WorkloadBuilder

_QUEUES: Final = (None, 8, 3)
_MOST_VIEWS: Final = 24
"""Of a run. The engines' gate has seen each of its plans; these are asked for again, in another order."""
_SUBSETS: Final = 3
"""Views of which a part is shown as well: an agent sees the flows of its host, a coordinator who reports."""
_PATIENCE: Final = 100.0
"""A flow that has not ended after this many times what all flows take one after the other never will."""


def check_policy(policy: Policy, fabric: Fabric, *, seed: int = 0) -> None:
    """Hold a policy to the contract of `model.Policy` on random workloads over `fabric` (4 hosts or more).

    A plan has one good value per flow, also for no flow at all and for some of them; the same view gives the
    same plan, whatever was asked before and to an equal policy, and draws no random number; the view is left
    as it was; a local plan of a flow is that flow's alone; sizes hidden from a policy make no difference to
    it; all flows of a finite workload end. At moments spread over a run each flow with bytes to send crosses
    a full link, unless the policy says in `idles` why not. A coflow ends while others keep coming,
    unless it says in `starves` whom it keeps waiting and why.
    A `reshape` has one answer to one question, and one that can be carried (`netsched.shape_check`).
    All this with as many classes as the policy wants, with as many as ports have, and with too few.
    Raises PolicyError, which names what is broken.
    """
    parameters = getattr(policy, "__dataclass_params__", None)
    if not (is_dataclass(policy) and parameters is not None and parameters.frozen):
        raise PolicyError(
            f"policy {policy.name}: must be a frozen dataclass, its fields being its parameters"
        )
    rng = np.random.default_rng(seed)
    check_reshape(policy, np.random.default_rng(seed))
    for queues in _QUEUES:
        workload = sample_workload(rng, fabric)
        _check_plans(policy, _views(policy, workload, fabric, queues), rng)
        for connections in Connections:
            transport = Transport(connections)
            outcome = _run(policy, workload, fabric, queues, transport, Control())
            if not declared(policy, "idles"):
                _check_busy(policy, workload, fabric, queues, transport, outcome)
            late = Control(delay=0.05, period=0.2, report_period=0.15, report_delay=0.1)
            _run(policy, workload, fabric, queues, transport, late)
    if not declared(policy, "starves"):
        _check_starvation(policy, fabric)


def check_under_circuits(policy: Policy, fabric: Fabric, circuits: Circuits, *, seed: int = 0) -> None:
    """Hold a policy to the same on `fabric` while `circuits` schedules its optical switches, with 8 classes.

    Its plans as in `check_policy`, on the ways that flows have as circuits come and go, and all flows of a
    finite workload end. Who need not wait for a circuit crosses a full link, unless the policy says why not
    in `idles`; and over a circuit that stays nobody starves, unless it says who in `starves`. Raises
    PolicyError.
    """
    rng, queues = np.random.default_rng(seed), _QUEUES[1]
    workload = sample_workload(rng, fabric)
    _check_plans(policy, _views(policy, workload, fabric, queues, circuits), rng)
    for connections in Connections:
        transport = Transport(connections)
        outcome = _run(policy, workload, fabric, queues, transport, Control(), circuits)
        if not declared(policy, "idles"):
            _check_busy(policy, workload, fabric, queues, transport, outcome, circuits)
    if not declared(policy, "starves"):
        _check_starvation(policy, fabric, (queues,), StaticRing())


def declared(policy: Policy, name: str) -> str:
    """What a policy says of itself in `idles` or `starves`: a reason, or "" if it says nothing.

    PolicyError if that is not text.
    """
    reason = getattr(policy, name, "")
    if not isinstance(reason, str):
        raise PolicyError(f"policy {policy.name}: {name} is {reason!r}, must be a text that gives the reason")
    return reason.strip()


def samples() -> tuple[Fabric, ...]:
    """Fabrics to check a policy on: one switch, and a leaf-spine with narrow uplinks and delays."""
    from netsched.fabrics import build  # noqa: PLC0415 # Mininet is slow to import

    leaf_spine = {"leaves": 3, "spines": 2, "hosts_per_leaf": 2, "host_rate": "1Gbit/s"}
    specs = (
        Spec("single_switch", {"hosts": 6, "rate": "1Gbit/s"}),
        Spec("leaf_spine", {**leaf_spine, "oversubscription": 2, "delay": "5ms"}),
    )
    return tuple(build(spec)[1] for spec in specs)


def sample_workload(rng: np.random.Generator, fabric: Fabric) -> Workload:
    """Twelve coflows in four jobs: some released at once, some flow by flow, behind other flows and tasks."""
    hosts = len(fabric.hosts)
    second = float(np.median(fabric.capacity))
    builder = WorkloadBuilder(hosts)
    nodes: list[Node] = []
    for j in range(4):
        job = builder.add_job(f"job {j}", arrival=float(rng.uniform(0.0, 2.0)) if j else 0.0)
        for c in range(3):
            label = f"coflow {j}.{c}"
            coflow = builder.add_coflow(job, builder.add_stage(job, label), label)
            width = int(rng.integers(1, 6))
            src = rng.integers(0, hosts, width)
            dst = (src + rng.integers(1, hosts, width)) % hosts
            size = second * rng.lognormal(-1.0, 1.0, width)
            need = rng.integers(0, 10, width)
            flows = builder.add_flows(coflow, src, dst, size, need=need, need_span=10).tolist()
            for flow in flows:
                if c and rng.random() < 0.5:
                    builder.depend(flow, nodes[rng.integers(len(nodes))])
            task = builder.add_task(job, TaskKind.OTHER, seconds=float(rng.exponential(0.3)))
            builder.depend(task, flows[0])
            nodes += [*flows, task]
    return builder.build()


# ------------------------------------------------------------------ single plans


@dataclass(frozen=True)
class _Spy:
    """Asks a policy at every event, and keeps what it was shown."""

    policy: Policy
    seen: list[View]

    name: ClassVar[str] = "spy"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = (
        Event.FLOW_RELEASED | Event.FLOW_FINISHED | Event.COFLOW_RELEASED | Event.COFLOW_FINISHED
    )
    profiled: ClassVar[bool] = True
    steers: ClassVar[bool] = True

    def __call__(self, view: View) -> Plan:
        self.seen.append(view)
        return replace(decide(self.policy, view, view.queues), review_in=math.inf)


def _views(
    policy: Policy, workload: Workload, fabric: Fabric, queues: int | None, circuits: Circuits | None = None
) -> list[View]:
    """Some of what the policy is shown in the course of a run, sizes included; parts of that, and nothing."""
    seen: list[View] = []
    _run(_Spy(policy, seen), workload, fabric, queues, Transport(), Control(), circuits)
    chosen = np.unique(np.linspace(0, len(seen) - 1, _MOST_VIEWS).astype(np.int64))
    seen = [seen[i] for i in chosen.tolist()]
    step = max(1, len(seen) // _SUBSETS)
    parts = [only(each, np.arange(0, len(each.flows), 2)) for each in seen[::step][:_SUBSETS]]
    return [*seen, *parts, only(seen[0], np.zeros(0, np.int64))]


def only(view: View, rows: Ints) -> View:
    """The view of some of its flows, and of the coflows and jobs that own them."""
    coflows, coflow = np.unique(view.flows.coflow[rows], return_inverse=True)
    jobs, job = np.unique(view.coflows.job[coflows], return_inverse=True)
    indptr, links = gather(view.flows.indptr, view.flows.links, rows)
    flow_columns = _rows(view.flows, rows) | {"coflow": coflow, "indptr": indptr, "links": links}
    return replace(
        view,
        flows=FlowView(**flow_columns),
        coflows=CoflowView(**_rows(view.coflows, coflows) | {"job": job}),
        jobs=JobView(**_rows(view.jobs, jobs)),
        profile=None if view.profile is None else _of_profile(view.profile, jobs, coflows),
    )


def _of_profile(profile: Profile, jobs: Ints, coflows: Ints) -> Profile:
    per_job = {each.name: getattr(profile, each.name)[jobs] for each in fields(profile) if each.name != "due"}
    return Profile(**per_job, due=profile.due[coflows])


def _rows(table: FlowView | CoflowView | JobView, rows: Ints) -> dict[str, Any]:
    names = [each.name for each in fields(table) if each.name not in ("indptr", "links")]
    return {name: getattr(table, name)[rows] for name in names}


def _check_plans(policy: Policy, views: list[View], rng: np.random.Generator) -> None:
    plans = []
    drawn = _drawn()
    for view in views:
        before = [array.tobytes() for array in _arrays(view)]
        plans.append(decide(policy, view, view.queues))
        if [array.tobytes() for array in _arrays(view)] != before:
            raise PolicyError(
                f"policy {policy.name}: it changed the view at {view.now:.6g} s; copy before writing"
            )
    twin = replace(policy)  # type: ignore[type-var] # check_policy has seen that it is a dataclass
    for i in rng.permutation(len(views)).tolist():
        for asked in (policy, twin):
            if not _equal(decide(asked, views[i], views[i].queues), plans[i]):
                raise PolicyError(
                    f"policy {policy.name}: the view of {views[i].now:.6g} s gave two plans; "
                    "a plan may depend on nothing but the view and the policy's parameters"
                )
    if _drawn() != drawn:
        raise PolicyError(f"policy {policy.name}: it drew random numbers; a plan follows from the view alone")
    for view, plan in zip(views, plans, strict=True):
        if policy.local:
            _check_local(policy, view, plan)
        if not policy.clairvoyant:
            _check_blind(policy, view, rng)


def _drawn() -> tuple[Any, ...]:
    """Equal as long as nobody draws from the random numbers that all of a process share."""
    _, key, *rest = np.random.get_state()
    return random.getstate(), np.asarray(key).tobytes(), *rest


def _check_local(policy: Policy, view: View, plan: Plan) -> None:
    for row in range(len(view.flows)):
        alone = decide(policy, only(view, np.array([row])), view.queues)
        wrong = [name for name in PLAN_COLUMNS if getattr(alone, name)[0] != getattr(plan, name)[row]]
        if wrong:
            raise PolicyError(
                f"policy {policy.name}: it is local, but plan.{wrong[0]} of flow {view.flows.id[row]} is "
                f"{getattr(alone, wrong[0])[0]} alone and {getattr(plan, wrong[0])[row]} among others"
            )


def _check_blind(policy: Policy, view: View, rng: np.random.Generator) -> None:
    factor = rng.lognormal(0.0, 2.0, len(view.flows))
    other = replace(
        view,
        flows=replace(view.flows, size=factor * view.flows.size, remaining=factor * view.flows.remaining),
        coflows=replace(view.coflows, size=view.coflows.size * rng.lognormal(0.0, 2.0, len(view.coflows))),
    )
    if not _equal(policy(view), policy(other)):
        raise PolicyError(
            f"policy {policy.name}: its plan at {view.now:.6g} s depends on sizes; set clairvoyant = True"
        )


def _arrays(view: View) -> Iterator[np.ndarray[Any, Any]]:
    profile = () if view.profile is None else (view.profile,)
    for table in (view.flows, view.coflows, view.jobs, *profile):
        yield from (getattr(table, each.name) for each in fields(table))
    yield view.capacity
    yield from view.memory


def _equal(a: Plan, b: Plan) -> bool:
    same = all(np.array_equal(getattr(a, name), getattr(b, name)) for name in PLAN_COLUMNS)
    watch = [plan.watch.tolist() if plan.watch is not None else None for plan in (a, b)]
    kept = [[each.tobytes() for each in plan.memory] for plan in (a, b)]
    return same and a.review_in == b.review_in and watch[0] == watch[1] and kept[0] == kept[1]


# ------------------------------------------------------------------ whole runs


def _run(
    policy: Policy,
    workload: Workload,
    fabric: Fabric,
    queues: int | None,
    transport: Transport,
    control: Control,
    circuits: Circuits | None = None,
) -> Outcome:
    """A run to the end of all flows. PolicyError if some never do."""
    serial = float(workload.flows.size.sum() / fabric.capacity.min() + workload.tasks.seconds.sum())
    horizon = _PATIENCE * (serial + float(workload.jobs.arrival.max()))
    outcome = simulate(
        workload,
        fabric,
        policy,
        queues=queues,
        transport=transport,
        control=control,
        horizon=horizon,
        circuits=circuits,
    )
    left = int(np.isnan(outcome.flow_finish).sum())
    if left:
        raise PolicyError(
            f"policy {policy.name}: {left} of {workload.n_flows} flows had not ended after {horizon:.6g} s, "
            f"{_PATIENCE:.0f} times what they need one after the other"
        )
    return outcome


def _on_given_paths(policy: Policy) -> Policy:
    """The policy without a say in paths: no outcome says which it takes; who wastes links does so on any."""
    if not steers(policy):
        return policy
    kind: Any = type(policy)
    own = {each.name: getattr(policy, each.name) for each in fields(kind)}
    blind: Policy = type(kind.__name__, (kind,), {"steers": False})(**own)
    return blind


def _check_busy(
    policy: Policy,
    workload: Workload,
    fabric: Fabric,
    queues: int | None,
    transport: Transport,
    outcome: Outcome,
    circuits: Circuits | None = None,
) -> None:
    given = _on_given_paths(policy)
    if given is not policy and circuits is None:
        outcome = _run(given, workload, fabric, queues, transport, Control())
    found, _ = wasted(given, workload, fabric, queues, transport, outcome, circuits)
    if found is not None:
        raise PolicyError(
            f"policy {policy.name}: after {found.at:.6g} s flow {found.flow} could have more, because no "
            "link of its path is full; give it what is left, or say in `idles: ClassVar[str]` why not"
        )


# ------------------------------------------------------------------ streams that never end


def _check_starvation(
    policy: Policy,
    fabric: Fabric,
    asked: Sequence[int | None] = _QUEUES[:2],
    circuits: Circuits | None = None,
) -> None:
    for queues in asked:
        beside = starved(policy, fabric, queues, circuits)
        if beside:
            classes = "as many classes as ranks" if queues is None else f"{queues} classes"
            raise PolicyError(
                f"policy {policy.name}: with {classes} a coflow does not end as long as "
                f"{' or '.join(stream.what for stream in beside)} keep coming; let it age, or say in "
                "`starves: ClassVar[str]` whom the policy keeps waiting and why"
            )
