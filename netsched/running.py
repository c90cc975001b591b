"""A simulation while it runs: its parts, how they are put together, and which flows are under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from netsched import bundles
from netsched import ledger as books
from netsched.allocate import Scratch, scratch
from netsched.control import Cadence, unmarked_class
from netsched.fabric import Fabric
from netsched.lightpaths import LightPaths, light_paths, most_links
from netsched.model import (
    Circuits,
    Connections,
    Control,
    Fault,
    Floats,
    Ints,
    Memory,
    Plan,
    Policy,
    Transport,
    Workload,
)
from netsched.observe import Static, static
from netsched.profiles import profiles_for
from netsched.relays import most_parcels
from netsched.reports import Reports
from netsched.routes import route
from netsched.steering import Steering, steering_for
from netsched.uses import Uses, open_uses
from netsched.ways import Ways, no_ways

_REPAIRED = 0.25
"""Of a class: where a repair would have to look at more of its bundles, computing all is cheaper."""


@dataclass
class Run:
    """Everything of one simulation that moves.

    ahead    all that a local policy will say has been written down: where paths are also known, flows are
             admitted as they are released
    claims   a plan has asked for more than classes
    memory   of the policy's last plan
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
    ways: Ways
    light: LightPaths | None = None
    steering: Steering | None = None
    gate: float = float("inf")
    decisions: int = 0
    reports: Reports | None = None
    ahead: bool = False
    claims: bool = False
    memory: Memory = ()

    @property
    def now(self) -> float:
        return float(self.bundles.clock[0])


def open_run(
    workload: Workload,
    fabric: Fabric,
    policy: Policy,
    queues: int | None,
    transport: Transport,
    control: Control,
    circuits: Circuits | None,
    faults: Sequence[Fault],
) -> Run:
    routes = route(workload, fabric, transport)
    capacity, unmarked = fabric.capacity.copy(), unmarked_class(queues)
    light = light_paths(workload, fabric, routes, transport, circuits, control, faults, capacity, unmarked)
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
    bun.rank[:] = unmarked
    return Run(
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
        ways=light.ways if light else no_ways(),
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


def due(run: Run) -> float:
    """When the coordinator decides next: never again once all flows have ended, whatever happened."""
    return run.cadence.due() if run.ledger.count[books.FLOWS_LEFT] else np.inf


def active_flows(run: Run) -> tuple[Ints, Ints]:
    """The active flows, in order of release: with bytes to send, and with all bytes on their way."""
    active = books.sweep(run.ledger)
    in_flight = run.bundles.bundle_of[active] == bundles.IN_FLIGHT
    return active[~in_flight], active[in_flight]


def sent(run: Run) -> tuple[Ints, Floats]:
    """The active flows, and the bytes that each has sent, those on their way included."""
    active = books.sweep(run.ledger).copy()
    bundles.settle_left(run.bundles, active)
    return active, run.ledger.size[active] - run.bundles.left[active]


def parcels_under_way(run: Run) -> Ints:
    """The parts of flows that are under way over one of two circuits."""
    if run.light is None or run.light.relays is None:
        return np.zeros(0, np.int64)
    return run.light.relays.sending(run.bundles)
