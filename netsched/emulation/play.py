"""The workload's DAG in real time: computing is waiting, communicating is telling endpoints what to send.

It keeps the simulator's ledger and asks through the simulator's gate; only "flow f ended at t" comes from
receivers instead of arithmetic.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from netsched import ledger as books
from netsched.control import Cadence, check_sockets, decide, interim_class
from netsched.emulation import wire
from netsched.emulation.circuits import Controller
from netsched.emulation.faults import Faults
from netsched.errors import EmulationError, PolicyError
from netsched.model import Event, Floats, Ints, Memory, Plan, Policy, Standing
from netsched.observe import Static, view
from netsched.ondemand import frozen
from netsched.reports import Reports

TICK_S: Final = 0.001
"""Least time between two rounds: what happens within it is handled together."""

_PROGRESS_S: Final = 0.25
_STALL_S: Final = 20.0
"""Longest silence of all receivers while flows are active before the run is given up."""


@dataclass
class Play:
    """One run in progress. Arrays have one value per flow; times are seconds since `zero` (monotonic).

    `way` is the number that says a flow's way in its destination's address (`addresses.routed_as`).
    """

    policy: Policy
    fixed: Static
    cadence: Cadence
    ledger: books.Ledger
    control: tuple[socket.socket, ...]
    address: Ints
    way: Ints
    scale: float
    wire_bytes: Ints
    arrived: Ints
    cls: Ints
    cap: Floats
    order: Ints
    class_of_coflow: Ints
    zero: float = 0.0
    started: int = 0
    decisions: int = 0
    waiting: list[tuple[float, Ints, Plan]] = field(default_factory=list)
    held: list[tuple[float, int]] = field(default_factory=list)
    late: list[Floats] = field(default_factory=list)
    lag: list[Floats] = field(default_factory=list)
    pause: float = 0.0
    last_news: float = 0.0
    since: float = np.inf
    reports: Reports | None = None
    circuits: Controller | None = None
    faults: Faults | None = None
    memory: Memory = ()

    @property
    def now(self) -> float:
        return time.monotonic() - self.zero


def begin(
    policy: Policy,
    fixed: Static,
    cadence: Cadence,
    control: tuple[socket.socket, ...],
    address: Ints,
    way: Ints,
    scale: float,
    reports: Reports | None = None,
    circuits: Controller | None = None,
    faults: Faults | None = None,
) -> Play:
    """A run that has not begun. `address[host, way]` is the IPv4 address, as a number, that names both.

    `reports` are what the coordinator goes by, None where it sees what receivers have counted. `circuits`
    is there where the fabric has optical switches, `faults` where the scenario has any.
    """
    workload = fixed.workload
    n = workload.n_flows
    return Play(
        policy=policy,
        fixed=fixed,
        cadence=cadence,
        ledger=books.open_ledger(workload, fixed.routes.local),
        control=control,
        address=address,
        way=way,
        scale=scale,
        wire_bytes=np.array([wire.wire_size(size, scale) for size in workload.flows.size.tolist()], np.int64),
        arrived=np.zeros(n, np.int64),
        cls=np.full(n, -1, np.int64),
        cap=np.full(n, np.inf),
        order=np.zeros(n, np.int64),
        class_of_coflow=np.full(len(workload.coflows.job), -1, np.int64),
        reports=reports,
        circuits=circuits,
        faults=faults,
    )


def perform(play: Play, horizon: float, progress: Callable[[Standing], None]) -> None:
    """Run the DAG until all is done or `horizon` (s). EmulationError if an endpoint fails or all stalls."""
    ears = select.epoll()
    host_of = {end.fileno(): host for host, end in enumerate(play.control)}
    for end in play.control:
        end.setblocking(True)
        ears.register(end.fileno(), select.EPOLLIN)
    if play.circuits is not None:
        ears.register(play.circuits.remote.control.fileno(), select.EPOLLIN)
        play.circuits.begin()
    play.zero = time.monotonic() if play.circuits is None else play.circuits.zero
    next_progress = 0.0
    while play.ledger.count[books.NODES_LEFT] and play.now < horizon:
        wake = min(horizon, books.next_timer(play.ledger), play.cadence.due(), *_alarms(play))
        if play.reports is not None:
            wake = min(wake, play.reports.due())
        if play.circuits is not None:
            wake = min(wake, play.circuits.due(play.ledger))
        if play.faults is not None:
            wake = min(wake, play.faults.due())
        timeout = min(_PROGRESS_S, max(0.0, wake - play.now))
        asked = play.now
        packets = ears.poll(timeout)
        woken = play.now
        if not packets:
            play.pause = max(play.pause, woken - asked - timeout)
        for fd, _ in packets:
            if fd in host_of:
                _hear(play, host_of[fd])
            elif play.circuits is not None:
                play.circuits.remote.hear()
        now = play.now
        if play.faults is not None and play.faults.due() <= now:
            _fail(play, play.faults, now)
        late = books.fire_due(play.ledger, now)
        if len(late):
            play.late.append(late)
        _release(play, now)
        if now >= next_progress:
            next_progress = now + _PROGRESS_S
            progress(books.standing(play.ledger, now))
        _check_stall(play, now)
        spare = now + TICK_S - play.now
        if spare > 0:
            time.sleep(spare)
        play.pause = max(play.pause, play.now - woken - TICK_S)
    ears.close()


def _alarms(play: Play) -> list[float]:
    """When the next decision takes effect, and when the next held flow may go."""
    return [at for at, *_ in play.waiting[:1]] + sorted(at for at, _ in play.held)[:1]


def _check_stall(play: Play, now: float) -> None:
    busy = play.ledger.count[books.ACTIVE_LIST] and len(books.sweep(play.ledger))
    if not busy:
        play.last_news = now
    elif now - play.last_news > _STALL_S:
        raise EmulationError(
            f"policy {play.policy.name}: no byte arrived for {_STALL_S:.0f} s while {busy} flows were active"
        )


def _hear(play: Play, host: int) -> None:
    """Take one packet from a host's endpoint."""
    packet = play.control[host].recv(wire.LARGEST)
    name = f"endpoint of host {host}"
    if not packet:
        raise EmulationError(f"{name} has ended")
    kind, body = packet[0], packet[1:]
    play.last_news = play.now
    if kind == wire.DONE:
        done = np.frombuffer(body, wire.DONE_RECORD)
        flows = done["flow"].astype(np.int64)
        at = done["at"] - play.zero
        play.lag.append(play.now - at)
        play.since = min(play.since, float(at.min()))
        play.arrived[flows] = play.wire_bytes[flows]
        books.finish_nodes(play.ledger, flows, at)
    elif kind == wire.PROGRESS:
        records = np.frombuffer(body, wire.PROGRESS_RECORD)
        flows = records["flow"].astype(np.int64)
        play.arrived[flows] = np.maximum(play.arrived[flows], records["bytes"].astype(np.int64))
    elif kind == wire.FAILED:
        raise EmulationError(f"{name}: {json.loads(body)}")


def _release(play: Play, now: float) -> None:
    """Let new flows go, after a decision where one is due, and put into effect what was decided before."""
    fresh = books.take_fresh(play.ledger)
    happened = Event(int(play.ledger.count[books.EVENTS]))
    play.ledger.count[books.EVENTS] = 0
    if len(fresh):
        play.since = min(play.since, float(play.ledger.start[fresh].min()))
    if play.reports is not None:
        play.reports.make(now, lambda: _report(play))
    play.order[fresh] = play.started + np.arange(len(fresh))
    play.started += len(fresh)
    if play.circuits is not None:
        _switch(play, play.circuits, fresh, now, happened)
    if play.policy.local:
        if len(fresh):
            _apply(play, fresh, _decide(play, fresh, now, happened), now)
    else:
        play.cadence.note(happened)
        _coordinate(play, fresh, now)
    for at, flow in [entry for entry in play.held if entry[0] <= now]:
        play.held.remove((at, flow))
        _send_starts(play, np.array([flow]))


def _fail(play: Play, faults: Faults, now: float) -> None:
    """Let faults happen; to the policy a network that has changed is as if flows had come anew."""
    if faults.happen(play.ledger, play.fixed.workload, now):
        play.fixed = replace(play.fixed, capacity=frozen(faults.capacity.copy()))
        if play.circuits is not None:
            play.circuits.fail(faults.down, faults.capacity, now)
        if not play.policy.local:
            play.cadence.note(play.policy.events & Event.FLOW_RELEASED)


def _switch(play: Play, circuits: Controller, fresh: Ints, now: float, happened: Event) -> None:
    """Have circuits set, and stop or let go the flows whose circuit has gone or come."""
    active = books.sweep(play.ledger).copy()
    size = play.fixed.workload.flows.size
    left: Floats = size * (1.0 - play.arrived / play.wire_bytes)
    changed = circuits.step(play.fixed, play.ledger, active, left, now, happened)
    # Those that have not been sent off yet are told with their start.
    under_way = np.setdiff1d(changed, fresh)
    under_way = under_way[play.cls[under_way] >= 0]
    _send_changes(play, np.setdiff1d(under_way, [flow for _, flow in play.held]))


def _caps(play: Play, flows: Ints) -> Floats:
    """What endpoints are told: a flow that waits for a circuit may send nothing."""
    return (
        play.cap[flows] if play.circuits is None else np.where(play.circuits.held[flows], 0, play.cap[flows])
    )


def _classes(play: Play, flows: Ints) -> Ints:
    """What endpoints are told: the policy's classes, but for circuits on which one coflow goes first."""
    return play.cls[flows] if play.circuits is None else play.circuits.classes(flows, play.cls[flows])


def _sent(play: Play, flows: Ints) -> Floats:
    """Bytes of the scenario that each flow has sent, as its receiver has counted them."""
    size: Floats = play.fixed.workload.flows.size[flows]
    return size * (play.arrived[flows] / play.wire_bytes[flows])


def _report(play: Play) -> tuple[Ints, Floats]:
    flows = books.sweep(play.ledger).copy()
    return flows, _sent(play, flows)


def _decide(play: Play, flows: Ints, now: float, happened: Event) -> Plan:
    seen = view(
        play.fixed,
        play.ledger,
        flows,
        play.fixed.workload.flows.size[flows] - _sent(play, flows),
        now,
        happened,
        class_of_coflow=play.class_of_coflow,
        known=None if play.reports is None else play.reports.at(now),
        memory=play.memory,
    )
    plan = decide(play.policy, seen, play.fixed.queues)
    check_sockets(play.policy, plan)
    play.decisions, play.memory = play.decisions + 1, plan.memory
    if plan.watch is not None:
        play.ledger.watched[flows] = plan.watch
    return plan


def _coordinate(play: Play, fresh: Ints, now: float) -> None:
    play.cls[fresh] = interim_class(play.class_of_coflow[play.ledger.flow_coflow[fresh]])
    if not play.cadence.pending:
        play.since = np.inf
    if play.cadence.due() <= now and play.ledger.count[books.FLOWS_LEFT]:
        flows = books.sweep(play.ledger).copy()
        plan = _decide(play, flows, now, play.cadence.since(now))
        # The scenario's delay counts from the event, so that our own reaction time is a part of it.
        at = min(now, max(play.since, play.cadence.due()))
        play.cadence.decided(at, plan)
        play.since = np.inf
        play.waiting.append((at + play.cadence.control.delay, flows, plan))
    unsent = fresh
    while play.waiting and play.waiting[0][0] <= now:
        due, flows, plan = play.waiting.pop(0)
        if play.cadence.control.delay > 0:
            play.late.append(np.array([now - due]))
        _apply(play, flows, plan, now, fresh=unsent)
        play.class_of_coflow[play.ledger.flow_coflow[flows]] = plan.rank
        unsent = np.setdiff1d(unsent, flows)
    if len(unsent):
        _send_starts(play, unsent)


def _apply(play: Play, flows: Ints, plan: Plan, now: float, fresh: Ints | None = None) -> None:
    """Start those of the plan's flows that are new (all, if `fresh` is None); tell of changes of others."""
    alive = play.ledger.status[flows] == books.ACTIVE
    flows, rank, rate, gate = flows[alive], plan.rank[alive], plan.rate[alive], plan.not_before[alive]
    is_new = np.ones(len(flows), bool) if fresh is None else np.isin(flows, fresh)
    if play.held:
        # A flow that waits at its gate has not begun: the newer plan says when it may.
        known = set(flows.tolist())
        is_new |= np.isin(flows, [flow for _, flow in play.held])
        play.held = [(at, flow) for at, flow in play.held if flow not in known]
    if (~is_new & (gate > now)).any():
        raise PolicyError(
            f"policy {play.policy.name}: not_before for a flow that has begun cannot be emulated: only "
            "a start can be put off"
        )
    changed = ~is_new & ((play.cls[flows] != rank) | (play.cap[flows] != rate))
    play.cls[flows], play.cap[flows] = rank, rate
    if changed.any():
        _send_changes(play, flows[changed])
    late = is_new & (gate > now)
    play.held += list(zip(gate[late].tolist(), flows[late].tolist(), strict=True))
    _send_starts(play, flows[is_new & ~late])


def _send_starts(play: Play, flows: Ints) -> None:
    columns, routes = play.fixed.workload.flows, play.fixed.routes
    records = np.zeros(len(flows), wire.START_RECORD)
    records["flow"], records["order"] = flows, play.order[flows]
    records["lane"] = routes.lane[flows]
    records["dst"] = play.address[columns.dst[flows], play.way[flows]]
    records["cls"], records["bytes"] = _classes(play, flows), play.wire_bytes[flows]
    records["cap"] = _caps(play, flows)
    _to_sources(play, wire.START, flows, records)


def _send_changes(play: Play, flows: Ints) -> None:
    records = np.zeros(len(flows), wire.CHANGE_RECORD)
    records["flow"], records["cls"], records["cap"] = flows, _classes(play, flows), _caps(play, flows)
    _to_sources(play, wire.CHANGE, flows, records)


def _to_sources(play: Play, kind: int, flows: Ints, records: np.ndarray[Any, Any]) -> None:
    sources = play.fixed.workload.flows.src[flows]
    for host in np.unique(sources).tolist():
        wire.send_records(play.control[host], kind, records[sources == host])
