"""What a policy and circuits want, put into effect on a simulation that runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from netsched import bundles
from netsched.control import asks_for_more, decide, decide_ahead, interim_class
from netsched.lightpaths import LightPaths
from netsched.membership import insert_all
from netsched.model import (
    PLAN_COLUMNS,
    Event,
    Ints,
    Plan,
)
from netsched.observe import ahead_of_time, view
from netsched.ondemand import frozen
from netsched.regroup import regroup
from netsched.reroute import place
from netsched.running import Run, active_flows, due, parcels_under_way


def look_ahead(run: Run) -> None:
    """Ask a local policy about all flows at once, if what it says of each does not depend on the moment."""
    if not run.policy.local or run.fixed.profiles is not None or run.steering is not None:
        return
    seen = ahead_of_time(run.fixed, moving=run.light is not None)
    plan = decide_ahead(run.policy, seen, run.fixed.queues)
    if plan is not None:
        run.ahead = True
        _write(run, np.arange(run.fixed.workload.n_flows), plan)


def switch(run: Run, light: LightPaths, fresh: Ints, happened: Event) -> None:
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
        if light.relays is not None or (light.ways.gate[moved] > run.now).any():
            run.gate = min(run.gate, bundles.next_gate(run.bundles, moved))
    if len(fresh):
        run.bundles, moves = light.enter(run.bundles, fresh)
        place(run.bundles, moves, light.ways.held, light.ways.gate)
    if light.relays is not None:
        run.bundles = light.relays.forward(run.bundles, run.uses, light.ways.lit)
    _show_paths(run)


def admit(run: Run, fresh: Ints, happened: Event) -> None:
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


def coordinate(run: Run, fresh: Ints) -> None:
    """Decide if it is time to, and put into effect what was decided `control.delay` ago."""
    _rank(run, fresh, interim_class(run.class_of_coflow[run.ledger.flow_coflow[fresh]]))
    placed = not len(fresh)
    if due(run) <= run.now:
        flows, in_flight = active_flows(run)
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
            run.memory,
        )
        plan = decide(run.policy, seen, run.fixed.queues)
        run.decisions, run.memory = run.decisions + 1, plan.memory
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


def _take_effect(run: Run, flows: Ints, plan: Plan) -> None:
    """Move every active flow to where the plan wants it; flows that the plan does not know stay."""
    run.class_of_coflow[run.ledger.flow_coflow[flows]] = plan.rank
    active = flows
    if run.cadence.control.delay > 0:
        active, _ = active_flows(run)
        bundles.settle_left(run.bundles, active)
        # A flow that sent its last byte before the plan took effect keeps the class that it had.
        sending = np.zeros(len(run.bundles.left), bool)
        sending[active] = True
        known = sending[flows]
        if not known.all():
            flows, plan = flows[known], _rows(plan, known)
    _steer(run, flows, plan)
    _write(run, flows, plan)
    settle(run, active)


def settle(run: Run, active: Ints) -> None:
    """Put the active flows, of which `left` is as of now, where what has been written of them says."""
    everyone = active
    if run.light:
        parcels = parcels_under_way(run)
        bundles.settle_left(run.bundles, parcels)
        everyone = np.append(active, parcels)
    regroup(run.bundles, run.uses, run.scratch, everyone)
    run.gate = bundles.next_gate(run.bundles, active)


def _steer(run: Run, flows: Ints, plan: Plan) -> None:
    if run.steering is not None:
        run.bundles = run.steering.steer(run.bundles, run.uses, run.ledger, flows, plan)
        _show_paths(run)


def _show_paths(run: Run) -> None:
    """Have views read the paths that have been added."""
    table = run.bundles.path_ptr, run.bundles.path_links
    routes = run.fixed.routes
    if table[0] is not routes.indptr or table[1] is not routes.links:
        run.fixed = replace(run.fixed, routes=replace(routes, indptr=table[0], links=table[1]))


def _rows(plan: Plan, rows: np.ndarray) -> Plan:
    return replace(plan, **{name: getattr(plan, name)[rows] for name in PLAN_COLUMNS})


def _rank(run: Run, flows: Ints, cls: Ints) -> None:
    run.bundles.rank[flows] = run.light.ranked(flows, cls) if run.light else cls


def _write(run: Run, flows: Ints, plan: Plan) -> None:
    bun = run.bundles
    _rank(run, flows, plan.rank)
    run.claims = run.claims or asks_for_more(plan)
    if not run.claims and run.light is None:
        return
    bun.weight[flows] = plan.weight
    reserve = np.minimum(plan.reserve, plan.rate)
    bun.reserve[flows] = run.light.booked(flows, reserve) if run.light else reserve
    bun.cap[flows] = plan.rate - bun.reserve[flows]
    bun.not_before[flows] = run.light.gated(flows, plan.not_before) if run.light else plan.not_before
    if not bun.queued[0]:
        bun.alone[flows] = (plan.weight != 1.0) | np.isfinite(plan.rate) | (plan.reserve > 0)
