"""The simulator: the workload's DAG over a fluid network, event by event, exact between events."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from netsched import bundles
from netsched import ledger as books
from netsched.advance import CIRCUITS, NOBODY, PACKETS, advance
from netsched.control import unmarked_class
from netsched.enact import admit, coordinate, look_ahead, settle, switch
from netsched.errors import PolicyError
from netsched.fabric import Fabric
from netsched.model import (
    Circuits,
    Control,
    Event,
    Fault,
    Floats,
    Ints,
    Outcome,
    Policy,
    Standing,
    Transport,
    Workload,
)
from netsched.reports import reports_for
from netsched.routes import Routes, gather
from netsched.running import Run, active_flows, due, open_run, parcels_under_way, sent

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
    run = open_run(workload, fabric, policy, queues, transport, control, circuits, faults)
    run.reports = reports_for(policy, control, workload, rng)
    look_ahead(run)
    while _step(run, horizon):
        if progress is not None:
            progress(books.standing(run.ledger, run.now))
    return _outcome(run, time.perf_counter() - started)


@dataclass(frozen=True)
class Glance:
    """A run at one moment.

    flows       those with bytes to send and a way, whatever their plan says: who must wait for a circuit has
                none. That of the i-th are the links `links[indptr[i]:indptr[i + 1]]`
    link_bytes  payload carried so far, per link
    decisions   made so far, those about circuits included
    """

    flows: Ints
    indptr: Ints
    links: Ints
    link_bytes: Floats
    decisions: int


def glances(
    workload: Workload,
    fabric: Fabric,
    policy: Policy,
    moments: Sequence[float],
    *,
    queues: int | None,
    transport: Transport,
    circuits: Circuits | None = None,
) -> Iterator[Glance]:
    """Run as `simulate` does, with a coordinator that costs nothing, and look at `moments` (s, ascending)."""
    run = open_run(workload, fabric, policy, queues, transport, Control(), circuits, ())
    look_ahead(run)
    for moment in moments:
        while _step(run, moment):
            pass
        flows, _ = active_flows(run)
        bundles.settle_left(run.bundles, np.append(flows, parcels_under_way(run)))
        if run.light is not None:
            flows = flows[~run.light.ways.held[flows]]
        bun = run.bundles
        indptr, links = gather(bun.path_ptr, bun.path_links, bun.path_of_flow[flows])
        about_circuits = 0 if run.light is None else run.light.decisions
        yield Glance(flows.copy(), indptr, links, _carried(run), run.decisions + about_circuits)


def _step(run: Run, horizon: float) -> bool:
    """Advance to the next thing that needs a decision, and make it; False at the end."""
    until = min(horizon, due(run), run.gate, run.waiting[0][0] if run.waiting else np.inf)
    if run.reports is not None and run.ledger.count[books.ACTIVE_LIST]:
        until = min(until, run.reports.due())
    if run.light is not None:
        until = min(until, run.light.due(run.ledger))
    alive = advance(
        run.ledger,
        run.bundles,
        run.uses,
        run.scratch,
        run.ways,
        _admitted(run),
        run.concern,
        max(until, run.now),
        _SLICE,
    )
    fresh = books.take_fresh(run.ledger)
    happened = Event(int(run.ledger.count[books.EVENTS]) & ~books.PARCEL_SENT)
    run.ledger.count[books.EVENTS] = 0
    reported = run.reports if run.reports and run.reports.make(run.now, lambda: sent(run)) else None
    before = run.decisions, len(run.waiting)
    if run.light is not None:
        switch(run, run.light, fresh, happened)
    if run.policy.local:
        admit(run, fresh, happened)
    else:
        run.cadence.note(happened)
        coordinate(run, fresh)
    if run.gate <= run.now:
        active, _ = active_flows(run)
        bundles.settle_left(run.bundles, active)
        settle(run, active)
    if not run.ledger.count[books.NODES_LEFT] or run.now >= horizon:
        return False
    idle = not (len(fresh) or run.waiting) and due(run) == np.inf and run.gate == np.inf
    idle = idle and (run.light is None or run.light.due(run.ledger) == np.inf)
    quiet = before == (run.decisions, len(run.waiting)) and books.next_timer(run.ledger) == np.inf
    # That hosts report keeps no run alive where they say what they said before.
    if reported and alive and idle and quiet:
        alive = not reported.still()
    if idle and not alive:
        left = int(run.ledger.count[books.FLOWS_LEFT])
        raise PolicyError(_stuck(run, left))
    return True


def _admitted(run: Run) -> int:
    """Which released flows need nobody's decision: see `advance`."""
    if not run.ahead:
        return NOBODY
    if run.light is None:
        return PACKETS
    return CIRCUITS if run.light.relays is None else NOBODY


def _stuck(run: Run, left: int) -> str:
    """Why nothing can happen any more."""
    light = run.light
    if light is not None and light.ways.cut.any():
        return f"faults: at {run.now:.6g} s {left} unfinished flows have no way left, and none comes back"
    if light is not None and light.ways.held.any():
        return (
            f"circuits {light.circuits.name}: at {run.now:.6g} s it leaves all of {left} unfinished flows "
            "without a circuit, and they wait for one"
        )
    return (
        f"policy {run.policy.name}: at {run.now:.6g} s it leaves all of {left} unfinished flows "
        "without a rate"
    )


def _classes(run: Run) -> Ints:
    """The last class of each flow; a flow that never had to send is unmarked, whatever was written ahead."""
    led = run.ledger
    given = run.light.ways.said if run.light else run.bundles.rank[: run.fixed.workload.n_flows]
    if not run.ahead:
        return given
    sends = ~np.isnan(led.start[: len(given)]) & (led.local == 0) & (led.size > 0)
    return np.where(sends, given, unmarked_class(run.fixed.queues))


def _carried(run: Run) -> Floats:
    """Bytes that each link has carried. All flows and parcels under way must be settled."""
    routes: Routes = run.fixed.routes
    link_bytes = np.zeros(len(run.fabric.capacity))
    hops = np.diff(routes.indptr)
    np.add.at(link_bytes, routes.links[: routes.indptr[-1]], np.repeat(run.bundles.path_bytes, hops))
    return link_bytes


def _outcome(run: Run, wall: float) -> Outcome:
    led, bun = run.ledger, run.bundles
    n = run.fixed.workload.n_flows
    bundles.settle_left(bun, np.append(books.sweep(led), parcels_under_way(run)))
    return Outcome(
        flow_release=led.start[:n],
        flow_finish=led.finish[:n],
        flow_class=_classes(run),
        task_start=led.start[n:],
        task_finish=led.finish[n:],
        link_bytes=_carried(run),
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
            "crowded": int(bun.count[bundles.N_CROWDED]),
            **(run.light.readings(bun, run.now) if run.light else {}),
        },
    )
