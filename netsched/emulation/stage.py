"""The inside of an emulated run: network up, agents and endpoints in place, checks, the run, the readings."""

from __future__ import annotations

import gc
import resource
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import yaml

from netsched import ledger as books
from netsched import scenario as scenarios
from netsched.control import Cadence, decide
from netsched.emulation import crew, fidelity, light, machine, preflight, wire
from netsched.emulation import play as realtime
from netsched.emulation.addresses import address, routed_as
from netsched.emulation.channel import Channel, Message
from netsched.emulation.circuits import Controller, controller
from netsched.emulation.enclosure import SCRATCH
from netsched.emulation.faults import faults_of
from netsched.emulation.network import EmulatedNetwork, emulated_network
from netsched.emulation.wiring import framing
from netsched.errors import EmulationError
from netsched.fabric import Fabric
from netsched.model import (
    Bools,
    Circuits,
    Connections,
    Control,
    Emulation,
    Event,
    Floats,
    Ints,
    Policy,
    Scenario,
    Standing,
    Transport,
    Workload,
)
from netsched.observe import Static, static, view
from netsched.optics import Optics, choices, optics_of
from netsched.policies.fair import Fair
from netsched.precedence import ANYONE, BEHIND, FIRST, in_turn
from netsched.profiles import profiles_for
from netsched.reports import generator, reports_for
from netsched.routes import route

NAP_S: Final = 0.001
_MOST_OPENED: Final = 4000
"""Connections made before the run; where there could be more, they are made when first used."""


@dataclass(frozen=True)
class Cast:
    """What a run is made of, once the network stands. `optics`: of a fabric with optical switches."""

    fabric: Fabric
    crew: crew.Crew
    address: Ints
    queues: int
    emulation: Emulation
    optics: Optics | None


def perform(channel: Channel, request: Message) -> Message:
    """Entry point of the enclosure: run one scheme of the scenario in `request`; its Outcome, as columns."""
    scenario = _scenario(request.body["source"], request.body["plugins"])
    built = scenarios.build(scenario)
    ready = built.ready[request.body["position"]]
    policy, workload = ready.policy, ready.workload
    emulation, queues = refuse_impossible(scenario, workload, ready.circuits)
    scheduling = machine.go_first()
    per_pair = scenario.transport.connections is Connections.PER_PAIR
    with emulated_network(
        built.topo, built.fabric, scale=emulation.scale, n_queues=queues, delay=emulation.delay
    ) as net:
        net.mechanisms["scheduling"] = scheduling
        crew.start_agents(net, queues)
        net.verify()
        hands = crew.start_endpoints(
            net,
            queued=per_pair,
            chunk=emulation.chunk,
            scale=emulation.scale,
            progress=not policy.local or ready.circuits is not None,
            nap=NAP_S,
        )
        optics = optics_of(built.fabric)
        cast = Cast(built.fabric, hands, _addresses(built.fabric), queues, emulation, optics)
        reached = _preflight(cast)
        fixed = _fixed(workload, built.fabric, scenario.transport, queues, policy)
        way = _ways(cast, fixed, scenario.transport)
        circuits = _circuits(net, optics, ready.circuits, fixed, scenario.control)
        _open_connections(cast, policy, fixed, way, per_pair, circuits is not None and circuits.takes_turns)
        control = Control() if policy.local else scenario.control
        play = realtime.begin(
            policy,
            fixed,
            Cadence(policy.events, control),
            hands.control,
            cast.address,
            way,
            emulation.scale,
            reports_for(policy, control, workload, generator(scenario.seed)),
            circuits,
            faults_of(net, scenario.faults) if scenario.faults else None,
        )
        return _run(channel, cast, net, play, scenario.horizon, reached)


def refuse_impossible(
    scenario: Scenario, workload: Workload, circuits: Circuits | None
) -> tuple[Emulation, int]:
    """The emulation section and the number of classes. EmulationError for what a real network cannot do."""
    emulation = scenario.emulation
    if emulation is None:
        raise EmulationError(
            f"{scenario.path}: no emulation section: write one, such as emulation: {{scale: 0.01}}"
        )
    if scenario.queues is None:
        raise EmulationError(
            f"{scenario.path}: queues: unlimited cannot be emulated: a port has 1 to 8 priority classes"
        )
    if circuits is not None and circuits.without_circuit == "relay":
        raise EmulationError(
            f"{scenario.path}: circuits.{circuits.name}.without_circuit: relay cannot be emulated: no rack's "
            "switch here keeps bytes until a circuit comes: write wait or eps, or run it on the simulator"
        )
    turned = int(np.count_nonzero(workload.flows.src == workload.flows.dst)) if workload.hairpin else 0
    if turned:
        raise EmulationError(
            f"{scenario.path}: {turned} flows go from a host over its own port back to itself, "
            "which a host's kernel does not do: run this workload on the simulator"
        )
    return emulation, scenario.queues


def _circuits(
    net: EmulatedNetwork,
    optics: Optics | None,
    circuits: Circuits | None,
    fixed: Static,
    control: Control,
) -> Controller | None:
    """The controller of the optical switches; None where there are none, or where they stay dark."""
    if optics is None or circuits is None:
        return None
    remote, switches = light.start(net, optics, circuits.hops)
    made = controller(circuits, fixed.workload, optics, control, remote, switches)
    made.rehearse(fixed)
    return made


def _scenario(source: dict[str, Any], plugins: list[str]) -> Scenario:
    path = SCRATCH / "scenario.yaml"
    path.write_text(yaml.safe_dump(source, sort_keys=False))
    return scenarios.load(path, plugins=plugins)


def _addresses(fabric: Fabric) -> Ints:
    """The IPv4 address of every host by each way, as a number."""

    def number(text: str) -> int:
        a, b, c, d = (int(part) for part in text.split("."))
        return a << 24 | b << 16 | c << 8 | d

    hosts, paths = range(len(fabric.hosts)), range(fabric.n_paths * max(fabric.kinds.count("ocs"), 1))
    return np.array([[number(address(host, path)) for path in paths] for host in hosts], np.int64)


def _ways(cast: Cast, fixed: Static, transport: Transport) -> Ints:
    """The number of each flow's way, see `addresses.routed_as`."""
    index = fixed.routes.index
    if cast.optics is None:
        return index
    n_optical = len(cast.optics.nodes)
    choice = (choices(fixed.workload, transport) % np.uint64(n_optical)).astype(np.int64)
    return routed_as(index, choice, n_optical)


def _fixed(
    workload: Workload, fabric: Fabric, transport: Transport, queues: int, policy: Policy | None = None
) -> Static:
    routes = route(workload, fabric, transport)
    profiles = None if policy is None else profiles_for(policy, workload, routes, fabric.capacity)
    offsets = books.iteration_offsets(workload)
    return static(workload, routes, fabric.capacity, queues, offsets, profiles)


def _preflight(cast: Cast) -> Floats:
    """Share of its due rate that each host's flow reaches when all send at once: the best attempt."""
    due = preflight.expected(cast.fabric)
    fixed = _fixed(preflight.workload(cast.fabric), cast.fabric, preflight.TRANSPORT, cast.queues)
    best = np.zeros(len(cast.fabric.hosts))
    for _ in range(preflight.ATTEMPTS):
        play = realtime.begin(
            Fair(),
            fixed,
            Cadence(Event.NONE, Control()),
            cast.crew.control,
            cast.address,
            _ways(cast, fixed, preflight.TRANSPORT),
            cast.emulation.scale,
        )
        realtime.perform(play, float("inf"), lambda standing: None)
        best = max(best, preflight.shares(play, due), key=lambda shares: float(shares.min(initial=1.0)))
        if best.min(initial=1.0) >= fidelity.LEAST_RATE:
            break
    return best


def _open_connections(
    cast: Cast, policy: Policy, fixed: Static, way: Ints, per_pair: bool, turns: bool
) -> None:
    """Make the connections that the run will need, so that no flow waits for a handshake and a tag.

    `turns`: on circuits, flows go in other classes than the policy's.
    """
    flows = np.flatnonzero(fixed.routes.local == 0)
    columns = fixed.workload.flows
    ledger = books.open_ledger(fixed.workload, fixed.routes.local)
    # Asked of every policy, also to have its kernels compiled before the clock runs.
    seen = view(fixed, ledger, flows, columns.size[flows], 0.0, Event.NONE)
    plan = decide(policy, seen, cast.queues)
    lane = fixed.routes.lane[flows] if per_pair else np.full(len(flows), -1)
    dst = cast.address[columns.dst[flows], way[flows]]
    keys = np.stack([columns.src[flows], lane, dst], axis=1)
    if policy.local:
        ranks = [
            in_turn(plan.rank, np.int8(turn)) for turn in ((ANYONE, FIRST, BEHIND) if turns else (ANYONE,))
        ]
        keys = np.unique(np.vstack([np.column_stack([keys, rank]) for rank in ranks]), axis=0)
    else:
        keys = np.unique(keys, axis=0)
        classes = np.tile(np.arange(cast.queues), len(keys))
        keys = np.column_stack([np.repeat(keys, cast.queues, axis=0), classes])
    if len(keys) > _MOST_OPENED:
        return
    wanted = [keys[keys[:, 0] == host, 1:].tolist() for host in range(len(cast.fabric.hosts))]
    cast.crew.ask(wire.OPEN, wanted)


def _run(
    channel: Channel, cast: Cast, net: EmulatedNetwork, play: realtime.Play, horizon: float, reached: Floats
) -> Message:
    def progress(standing: Standing) -> None:
        channel.send(Message("progress", asdict(standing)))

    before = net.readings()
    cast.crew.ask(wire.STATS, [None] * len(cast.fabric.hosts))  # their pauses so far are none of the run's
    work = machine.work_s()
    gc.collect()
    gc.freeze()
    realtime.perform(play, horizon, progress)
    ended = play.now
    cpu = (machine.work_s() - work) / (machine.processors() * ended)
    stats = cast.crew.ask(wire.STATS, [None] * len(cast.fabric.hosts))
    seen = fidelity.Measured(
        preflight=reached,
        cpu=cpu,
        timer_late=_joined(play.late),
        report_late=_joined(play.lag),
        pause=max(play.pause, *(s["pause_s"] for s in stats)),
        due=_due(play, cast),
        ports=net.readings() - before,
        connections=sum(s["connections"] for s in stats),
        dark_late=play.circuits.dark_late() if play.circuits else np.zeros(0),
    )
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _outcome(play, cast, net, seen, ended, own + sum(s["rss_bytes"] for s in stats))


def _due(play: realtime.Play, cast: Cast) -> Floats:
    """Bytes that must have crossed each link; of links that circuits or faults may have spared them, none."""
    due = _on_links(play, play.arrived.astype(np.float64), len(cast.fabric.capacity))
    if play.faults is not None:
        due[~_only_ports(cast.fabric)] = 0.0
    elif cast.optics is not None:
        behind = cast.optics.access[cast.optics.access >= 0]
        due[np.setdiff1d(np.arange(len(due)), behind)] = 0.0
    return due


def _only_ports(fabric: Fabric) -> Bools:
    """The links at hosts that have no other port: whatever a host sends or gets goes over these."""
    n_hosts = len(fabric.hosts)
    single = np.append(np.bincount(fabric.link_src[fabric.link_src < n_hosts], minlength=n_hosts) == 1, False)
    at_source, at_end = (single[np.minimum(ends, n_hosts)] for ends in (fabric.link_src, fabric.link_dst))
    found: Bools = at_source | at_end
    return found


def _carried(play: realtime.Play, cast: Cast, seen: fidelity.Measured) -> Floats:
    """Bytes of the scenario that crossed each link: by the flows' paths, or measured where these change."""
    size, columns = cast.emulation.scale, play.fixed.workload.flows
    if cast.optics is None and play.faults is None:
        payload = columns.size * play.arrived / play.wire_bytes
        return _on_links(play, payload, len(cast.fabric.capacity))
    # Less the share of acknowledgements, about 2 %, which the ports count with the rest.
    measured: Floats = seen.ports.bytes.sum(axis=1) / (framing() * size)
    return measured


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0)


def _on_links(play: realtime.Play, amount: Floats, n_links: int) -> Floats:
    """An amount per flow, added up on the links of its path."""
    routes = play.fixed.routes
    per_path = np.bincount(routes.path, weights=amount, minlength=len(routes.indptr) - 1)
    carried = np.repeat(per_path, np.diff(routes.indptr))
    return np.bincount(routes.links, weights=carried, minlength=n_links).astype(np.float64)


def _mean_stage_s(play: realtime.Play) -> float:
    """Mean stage completion time so far, the yardstick of `fidelity`."""
    workload, led = play.fixed.workload, play.ledger
    n = workload.n_flows
    stage = workload.coflows.stage[workload.flows.coflow]
    first = np.full(len(workload.stages.job), np.inf)
    last = np.zeros(len(workload.stages.job))
    np.fmin.at(first, stage, led.start[:n])
    np.fmax.at(last, stage, led.finish[:n])
    took = (last - first)[np.isfinite(first) & (last > 0)]
    return float(took.mean()) if len(took) else 0.0


def decided_by(policy: Policy) -> str:
    """Whose word the classes were: never an agent's, which would take a millisecond for each flow."""
    if policy.local:
        return "conductor, once for each flow when it is released, as the flow's host would"
    return "conductor, in the coordinator's stead"


def _outcome(
    play: realtime.Play,
    cast: Cast,
    net: EmulatedNetwork,
    seen: fidelity.Measured,
    ended: float,
    rss: int,
) -> Message:
    n = play.fixed.workload.n_flows
    led = play.ledger
    carried = _carried(play, cast, seen)
    return Message(
        "outcome",
        {
            "simulated_s": ended,
            "peak_rss_bytes": rss,
            "decisions": play.decisions,
            "fidelity": fidelity.verdict(seen, cast.emulation.scale, _mean_stage_s(play)),
            "mechanisms": {
                **net.mechanisms,
                "queues": f"{cast.queues} DSCP classes per port",
                "decisions": decided_by(play.policy),
                "marking": "netsched-agent, IP_TOS and SO_PRIORITY by SCM_RIGHTS, before the first byte",
                "acknowledgements": "DSCP 44, in the queue of class 0",
                "reserves": "none: classes give order, not rates; sebf books none, other plans are refused",
                "rate caps": "token bucket per connection, in the sender",
                "window": f"{crew.WINDOW_S * 1e3:g} ms of the slowest NIC's rate per connection",
                "chunk_bytes": cast.emulation.chunk,
                **(play.circuits.readings(carried) if play.circuits else {}),
                **(play.faults.readings(play.circuits) if play.faults else {}),
            },
        },
        {
            "flow_release": led.start[:n],
            "flow_finish": led.finish[:n],
            "flow_class": np.where(play.cls < 0, cast.queues - 1, play.cls),
            "task_start": led.start[n:],
            "task_finish": led.finish[n:],
            "link_bytes": carried,
        },
    )
