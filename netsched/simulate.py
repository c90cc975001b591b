"""The simulator: the workload's DAG over a fluid network, event by event, exact between events."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from netsched import bundles
from netsched import ledger as books
from netsched.advance import advance
from netsched.allocate import Scratch, scratch
from netsched.control import Cadence, asks_for_more, decide, decide_ahead, interim_class, unmarked_class
from netsched.errors import PolicyError
from netsched.fabric import Fabric
from netsched.lightpaths import LightPaths, light_paths, most_links
from netsched.membership import insert_all
from netsched.model import (
    PLAN_COLUMNS,
    Circuits,
    Connections,
    Control,
    Event,
    Fault,
    Floats,
    Ints,
    Outcome,
    Plan,
    Policy,
    Standing,
    Transport,
    Workload,
)
from netsched.observe import Static, ahead_of_time, static, view
from netsched.ondemand import frozen
from netsched.profiles import profiles_for
from netsched.regroup import regroup
from netsched.relays import most_parcels
from netsched.reports import Reports, reports_for
from netsched.reroute import place
from netsched.routes import Routes, route
from netsched.steering import Steering, steering_for
from netsched.uses import Uses, open_uses

_REPAIRED = 0.5
"""Of a class: where a repair would have to look at more of its bundles, computing all is cheaper."""

_SLICE = 20_000
"""Events between two calls of `progress`."""


def simulate(
    workload: Workload,
    fabric: Fabric,
    policy: Policy,
    *,
    queues: int | None,
    transport: Transport,
    control: Control,
    horizon: float = float("inf"),
    circuits: Circuits | None = None,
    faults: Sequence[Fault] = (),
    progress: Callable[[Standing], None] | None = None,
    rng: np.random.Generator | None = None,
) -> Outcome:
    """Run the workload under the policy until all is done or `horizon` (s).

    Reserves come first; of the rest classes are strict, and connections of one class share max-min (weighted
    where the plan says so). A queue's connection serves its flows in order of release, with the weight of
    the first and the reserves and caps of all of them added up. `circuits` schedules the fabric's optical
    switches, which stay dark without (and where there are none it has nothing to do). `faults` happen when
    they say, in order of time. `rng` draws which of the hosts' reports to the coordinator are lost; it is
    needed where `control` says that some are. Raises PolicyError if the policy, the circuits or the faults
    leave flows without a rate for good.
    """
    started = time.perf_counter()
    run = _open(workload, fabric, policy, queues, transport, control, circuits, faults)
    run.reports = reports_for(policy, control, workload, rng)
    _look_ahead(run)
    while _step(run, horizon):
        if progress is not None:
            progress(books.standing(run.ledger, run.now))
    return _outcome(run, time.perf_counter() - started)


def _look_ahead(run: _Run) -> None:
    """Ask a local policy about all flows at once, if what it says of each does not depend on the moment."""
    if not run.policy.local or run.fixed.profiles is not None or run.steering is not None:
        return
    seen = ahead_of_time(run.fixed, moving=run.light is not None)
    plan = decide_ahead(run.policy, seen, run.fixed.queues)
    if plan is not None:
        run.ahead = True
        _write(run, np.arange(run.fixed.workload.n_flows), plan)


@dataclass
class _Run:
    """Everything of one simulation that moves.

    ahead    all that a local policy will say has been written down: where paths are also known, flows are
             admitted as they are released
    claims   a plan has asked for more than classes
    """

    fabric: Fabric
    policy: Policy
    fixed: Static
    cadence: Cadence
    ledger: books.Ledger
    bundles: bundles.Bundles
    uses: Uses
    scratch: Scratch
    concern: int
    class_of_coflow: Ints
    waiting: list[tuple[float, Ints, Plan]]
    light: LightPaths | None = None
    steering: Steering | None = None
    gate: float = float("inf")
    decisions: int = 0
    reports: Reports | None = None
    ahead: bool = False
    claims: bool = False

    @property
    def now(self) -> float:
        return float(self.bundles.clock[0])


def _open(
    workload: Workload,
    fabric: Fabric,
    policy: Policy,
    queues: int | None,
    transport: Transport,
    control: Control,
    circuits: Circuits | None,
    faults: Sequence[Fault],
) -> _Run:
    routes = route(workload, fabric, transport)
    capacity = fabric.capacity.copy()
    light = light_paths(workload, fabric, routes, transport, circuits, control, faults, capacity)
    queued = transport.connections is Connections.PER_PAIR
    # Where circuits and links come and go, nobody else chooses the ways of flows.
    steering = None if light else steering_for(policy, workload, fabric, routes, queued)
    ledger = books.open_ledger(workload, routes.local)
    if faults:
        ledger = ledger._replace(seconds=ledger.seconds.copy())
    # Behind the flows' slots come those of parcels (relays.py), each a group of its own.
    parcels = np.arange(most_parcels(light.relays if light else None))
    none = np.zeros(len(parcels), np.int64)
    group = routes.lane if queued else routes.path
    bun = bundles.open_bundles(
        np.append(workload.flows.size, none),
        np.append(routes.path, none),
        np.append(group, parcels + group.max(initial=-1) + 1),
        np.append(routes.latency, none),
        routes.indptr,
        routes.links,
        _shown(capacity),
        queued,
    )
    if light is not None or steering is not None:
        # What a policy is shown of a flow's way is the way that it has.
        routes = replace(routes, path=bun.path_of_flow)
    longest = np.maximum(np.diff(routes.indptr), most_links(light))
    room = np.concatenate([[0], np.cumsum(longest)])
    # A flow that changes its path is on the links of both until the next repair.
    on_links = np.tile(bun.path_of_flow, 2) if light or steering else routes.path
    uses = open_uses(len(bun.left), on_links, room, len(fabric.capacity), _REPAIRED)
    bun.rank[:] = unmarked_class(queues)
    return _Run(
        fabric=fabric,
        policy=policy,
        fixed=static(
            workload,
            routes,
            fabric.capacity,
            queues,
            books.iteration_offsets(workload),
            profiles_for(policy, workload, routes, fabric.capacity),
            fabric if steering else None,
        ),
        cadence=Cadence(policy.events, Control() if policy.local else control),
        ledger=ledger,
        bundles=bun,
        uses=uses,
        scratch=scratch(len(bun.left), len(uses.link)),
        concern=_concern(policy, light),
        class_of_coflow=np.full(len(workload.coflows.job), -1, np.int64),
        waiting=[],
        light=light,
        steering=steering,
    )


def _concern(policy: Policy, light: LightPaths | None) -> int:
    """The events that the run must stop for, as bits."""
    concern = 0 if policy.local else policy.events.value
    if light is None:
        return concern
    return concern | light.events.value | (books.PARCEL_SENT if light.relays else 0)


def _shown(capacity: Floats) -> Floats:
    """The same array, read-only: kernels are compiled for what a fabric gives them, which is that."""
    seen = capacity.view()
    seen.flags.writeable = False
    return seen


def _step(run: _Run, horizon: float) -> bool:
    """Advance to the next thing that needs a decision, and make it; False at the end."""
    until = min(horizon, _due(run), run.gate, run.waiting[0][0] if run.waiting else np.inf)
    if run.reports is not None and run.ledger.count[books.ACTIVE_LIST]:
        until = min(until, run.reports.due())
    if run.light is not None:
        until = min(until, run.light.due(run.ledger))
    alive = advance(
        run.ledger,
        run.bundles,
        run.uses,
        run.scratch,
        run.ahead and run.light is None,
        run.concern,
        max(until, run.now),
        _SLICE,
    )
    fresh = books.take_fresh(run.ledger)
    happened = Event(int(run.ledger.count[books.EVENTS]) & ~books.PARCEL_SENT)
    run.ledger.count[books.EVENTS] = 0
    reported = run.reports if run.reports and run.reports.make(run.now, lambda: _sent(run)) else None
    before = run.decisions, len(run.waiting)
    if run.light is not None:
        _switch(run, run.light, fresh, happened)
    if run.policy.local:
        _admit(run, fresh, happened)
    else:
        run.cadence.note(happened)
        _coordinate(run, fresh)
    if run.gate <= run.now:
        active, _ = _active(run)
        _regroup(run, active)
    if not run.ledger.count[books.NODES_LEFT] or run.now >= horizon:
        return False
    idle = not (len(fresh) or run.waiting) and _due(run) == np.inf and run.gate == np.inf
    idle = idle and (run.light is None or run.light.due(run.ledger) == np.inf)
    quiet = before == (run.decisions, len(run.waiting)) and books.next_timer(run.ledger) == np.inf
    # That hosts report keeps no run alive where they say what they said before.
    if reported and alive and idle and quiet:
        alive = not reported.still()
    if idle and not alive:
        left = int(run.ledger.count[books.FLOWS_LEFT])
        raise PolicyError(_stuck(run, left))
    return True


def _stuck(run: _Run, left: int) -> str:
    """Why nothing can happen any more."""
    light = run.light
    if light is not None and light.cut.any():
        return f"faults: at {run.now:.6g} s {left} unfinished flows have no way left, and none comes back"
    if light is not None and light.held.any():
        return (
            f"circuits {light.circuits.name}: at {run.now:.6g} s it leaves all of {left} unfinished flows "
            "without a circuit, and they wait for one"
        )
    return (
        f"policy {run.policy.name}: at {run.now:.6g} s it leaves all of {left} unfinished flows "
        "without a rate"
    )


def _switch(run: _Run, light: LightPaths, fresh: Ints, happened: Event) -> None:
    """Give new flows their ways, and all others theirs where circuits have come or gone."""
    light.cadence.note(happened)
    if light.relays is not None:
        light.relays.sort(run.ledger, run.bundles, run.now)
    if light.due(run.ledger) <= run.now:
        failed = light.outages.due() <= run.now
        run.bundles, moved, booked = light.change(
            run.fixed, run.ledger, run.bundles, run.uses, fresh, run.now
        )
        if failed:
            run.fixed = replace(run.fixed, capacity=frozen(run.bundles.capacity.copy()))
        if (booked or failed) and not run.policy.local:
            # What it booked is gone, or does not fit: to the policy that is as if flows had come anew.
            run.cadence.note(run.policy.events & Event.FLOW_RELEASED)
        run.gate = min(run.gate, bundles.next_gate(run.bundles, moved))
    if len(fresh):
        run.bundles, moves = light.enter(run.bundles, fresh)
        place(run.bundles, moves, light.held, light.gate)
    if light.relays is not None:
        run.bundles = light.relays.forward(run.bundles, run.uses, light.lit)
    _show_paths(run)


def _due(run: _Run) -> float:
    """When the coordinator decides next: never again once all flows have ended, whatever happened."""
    return run.cadence.due() if run.ledger.count[books.FLOWS_LEFT] else np.inf


def _active(run: _Run) -> tuple[Ints, Ints]:
    """The active flows, in order of release: with bytes to send, and with all bytes on their way."""
    active = books.sweep(run.ledger)
    in_flight = run.bundles.bundle_of[active] == bundles.IN_FLIGHT
    return active[~in_flight], active[in_flight]


def _sent(run: _Run) -> tuple[Ints, Floats]:
    """The active flows, and the bytes that each has sent, those on their way included."""
    active = books.sweep(run.ledger).copy()
    bundles.settle_left(run.bundles, active)
    return active, run.ledger.size[active] - run.bundles.left[active]


def _admit(run: _Run, fresh: Ints, happened: Event) -> None:
    """A local policy speaks of the new flows only: no other flow's plan can change."""
    if not len(fresh):
        return
    if run.ahead:
        run.bundles.count[bundles.N_ADMISSIONS] += 1
        insert_all(run.bundles, run.uses, fresh)
        return
    seen = view(run.fixed, run.ledger, fresh, run.bundles.left[fresh], run.now, happened)
    plan = decide(run.policy, seen, run.fixed.queues)
    run.decisions += 1
    _steer(run, fresh, plan)
    _write(run, fresh, plan)
    insert_all(run.bundles, run.uses, fresh)
    if (plan.not_before > run.now).any():
        run.gate = min(run.gate, bundles.next_gate(run.bundles, fresh))


def _coordinate(run: _Run, fresh: Ints) -> None:
    """Decide if it is time to, and put into effect what was decided `control.delay` ago."""
    run.bundles.rank[fresh] = interim_class(run.class_of_coflow[run.ledger.flow_coflow[fresh]])
    placed = not len(fresh)
    if _due(run) <= run.now:
        flows, in_flight = _active(run)
        bundles.settle_left(run.bundles, flows)
        happened = run.cadence.since(run.now)
        seen = view(
            run.fixed,
            run.ledger,
            flows,
            run.bundles.left[flows],
            run.now,
            happened,
            in_flight,
            run.class_of_coflow,
            None if run.reports is None else run.reports.at(run.now),
        )
        plan = decide(run.policy, seen, run.fixed.queues)
        run.decisions += 1
        run.cadence.decided(run.now, plan)
        if plan.watch is not None:
            run.ledger.watched[flows] = plan.watch
        run.waiting.append((run.now + run.cadence.control.delay, flows, plan))
    while run.waiting and run.waiting[0][0] <= run.now:
        _, flows, plan = run.waiting.pop(0)
        _take_effect(run, flows, plan)
        placed = True
    if not placed:
        insert_all(run.bundles, run.uses, fresh)


def _take_effect(run: _Run, flows: Ints, plan: Plan) -> None:
    """Move every active flow to where the plan wants it; flows that the plan does not know stay."""
    run.class_of_coflow[run.ledger.flow_coflow[flows]] = plan.rank
    active = flows
    if run.cadence.control.delay > 0:
        active, _ = _active(run)
        bundles.settle_left(run.bundles, active)
        # A flow that sent its last byte before the plan took effect keeps the class that it had.
        sending = np.zeros(len(run.bundles.left), bool)
        sending[active] = True
        known = sending[flows]
        if not known.all():
            flows, plan = flows[known], _rows(plan, known)
    _steer(run, flows, plan)
    _write(run, flows, plan)
    _regroup(run, active)


def _parcels(run: _Run) -> Ints:
    """The parts of flows that are under way over one of two circuits."""
    if run.light is None or run.light.relays is None:
        return np.zeros(0, np.int64)
    return run.light.relays.sending(run.bundles)


def _regroup(run: _Run, active: Ints) -> None:
    """Put the active flows where what has been written of them says."""
    everyone = np.append(active, _parcels(run)) if run.light else active
    bundles.settle_left(run.bundles, everyone)
    regroup(run.bundles, run.uses, run.scratch, everyone)
    run.gate = bundles.next_gate(run.bundles, active)


def _steer(run: _Run, flows: Ints, plan: Plan) -> None:
    if run.steering is not None:
        run.bundles = run.steering.steer(run.bundles, run.uses, run.ledger, flows, plan)
        _show_paths(run)


def _show_paths(run: _Run) -> None:
    """Have views read the paths that have been added."""
    table = run.bundles.path_ptr, run.bundles.path_links
    routes = run.fixed.routes
    if table[0] is not routes.indptr or table[1] is not routes.links:
        run.fixed = replace(run.fixed, routes=replace(routes, indptr=table[0], links=table[1]))


def _rows(plan: Plan, rows: np.ndarray) -> Plan:
    return replace(plan, **{name: getattr(plan, name)[rows] for name in PLAN_COLUMNS})


def _write(run: _Run, flows: Ints, plan: Plan) -> None:
    bun = run.bundles
    bun.rank[flows] = plan.rank
    run.claims = run.claims or asks_for_more(plan)
    if not run.claims and run.light is None:
        return
    bun.weight[flows] = plan.weight
    bun.reserve[flows] = np.minimum(plan.reserve, plan.rate)
    bun.cap[flows] = plan.rate - bun.reserve[flows]
    bun.not_before[flows] = run.light.gated(flows, plan.not_before) if run.light else plan.not_before
    if not bun.queued[0]:
        bun.alone[flows] = (plan.weight != 1.0) | np.isfinite(plan.rate) | (plan.reserve > 0)


def _classes(run: _Run) -> Ints:
    """The last class of each flow; a flow that never had to send is unmarked, whatever was written ahead."""
    led, given = run.ledger, run.bundles.rank[: run.fixed.workload.n_flows]
    if not run.ahead:
        return given
    sends = ~np.isnan(led.start[: len(given)]) & (led.local == 0) & (led.size > 0)
    return np.where(sends, given, unmarked_class(run.fixed.queues))


def _outcome(run: _Run, wall: float) -> Outcome:
    led, bun = run.ledger, run.bundles
    n = run.fixed.workload.n_flows
    bundles.settle_left(bun, np.append(books.sweep(led), _parcels(run)))
    routes: Routes = run.fixed.routes
    link_bytes = np.zeros(len(run.fabric.capacity))
    hops = np.diff(routes.indptr)
    np.add.at(link_bytes, routes.links[: routes.indptr[-1]], np.repeat(bun.path_bytes, hops))
    return Outcome(
        flow_release=led.start[:n],
        flow_finish=led.finish[:n],
        flow_class=_classes(run),
        task_start=led.start[n:],
        task_finish=led.finish[n:],
        link_bytes=link_bytes,
        simulated_s=run.now,
        wall_s=wall,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        decisions=run.decisions + int(bun.count[bundles.N_ADMISSIONS]),
        fidelity={"valid": True, "reasons": []},
        mechanisms={
            "rates": "fluid: strict priority between classes, weighted max-min inside one",
            "reserves": "booked before classes share; sebf books only where classes are unlimited",
            "events": int(bun.count[bundles.N_EVENTS]),
            "allocations": int(bun.count[bundles.N_ALLOCATIONS]),
            "repairs": int(bun.count[bundles.N_REPAIRS]),
            "refills": int(bun.count[bundles.N_WHOLE]),
            **(run.light.readings(bun, run.now) if run.light else {}),
        },
    )
