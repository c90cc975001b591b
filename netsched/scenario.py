"""A scenario file becomes a checked `Scenario`, and a scenario becomes the pieces that an engine runs.

Holding a `Scenario` means that every key is known, every value has its unit and every plug-in exists: what
comes later may rely on it. What a scenario says is stated once here, at the YAML edge, as pydantic models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from netsched import choices, faults, units
from netsched.choices import Placed
from netsched.document import override, read, shown
from netsched.errors import ScenarioError
from netsched.faults import FaultEntry
from netsched.model import (
    UNPLACED,
    Circuits,
    Connections,
    Control,
    Emulation,
    Policy,
    Scenario,
    Scheme,
    Spec,
    Transport,
    Workload,
)
from netsched.plugins import known
from netsched.problems import Problems
from netsched.shape import reshape_of

QUEUES: Final = 8
"""Priority classes of common switch hardware (3 bits of 802.1p), and the most that a scenario may have."""

UNLIMITED: Final = "unlimited"
CHUNK_BYTES: Final = (1448, 16 * 2**20)
"""A chunk is at least one TCP segment; above the larger figure a flow could hardly change class in time."""

_SLUG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CLASS_PARAMETERS: Final = ("queues", "levels", "classes")


# ------------------------------------------------------------------ the YAML edge


def _name(value: object) -> object:
    if isinstance(value, str) and _SLUG.fullmatch(value):
        return value
    raise ValueError(f"{shown(value)} is not a name: write 1 to 64 letters, digits, '.', '_' or '-'")


def _queues(value: object) -> object:
    if value == UNLIMITED or (type(value) is int and 1 <= value <= QUEUES):
        return value
    raise ValueError(f"{shown(value)} is not right: write 1 to {QUEUES} priority classes, or {UNLIMITED}")


def _horizon(value: object) -> float:
    if value == UNLIMITED:
        return float("inf")
    if not (seconds := units.duration(value)):
        raise ValueError(f"{shown(value)} is not right: write a time above 0 such as 60s, or {UNLIMITED}")
    return seconds


def _scale(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1000:
        return float(value)
    raise ValueError(f"{shown(value)} is not right: write a number above 0 and up to 1000, such as 0.01")


def _chunk(value: object) -> int:
    size = units.size(value)
    least, most = CHUNK_BYTES
    if not least <= size <= most or size != int(size):
        raise ValueError(f"{shown(value)} is not right: write whole bytes, {least}B to {most // 2**20}MiB")
    return int(size)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Transport(_Section):
    connections: Literal["per-pair", "per-flow"] = "per-flow"


def _share(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    raise ValueError(f"{shown(value)} is not right: write a share from 0 to below 1, such as 0.01")


class _Control(_Section):
    delay: units.Duration = 0.0
    period: units.Duration = 0.0
    report_period: units.Duration | None = None
    report_delay: units.Duration = 0.0
    report_loss: Annotated[float, BeforeValidator(_share)] = 0.0

    def nouns(self) -> Control:
        # Where only the delay is given, a host reports again when its last report has come.
        every = self.report_delay if self.report_period is None else self.report_period
        return Control(self.delay, self.period, every, self.report_delay, self.report_loss)


class _Emulation(_Section):
    scale: Annotated[float, BeforeValidator(_scale)]
    chunk: Annotated[int, BeforeValidator(_chunk)] = 4096
    delay: Literal["strict", "best-effort"] = "strict"


class _File(_Section):
    """The top level. The three plug-in parts are read apart, since their keys depend on the plug-in."""

    name: Annotated[str, BeforeValidator(_name)]
    description: str = ""
    fabric: Any
    workload: Any
    policies: Any
    circuits: Any = None
    faults: tuple[FaultEntry, ...] = ()
    placement: Any = UNPLACED.name
    queues: Annotated[int | Literal["unlimited"], BeforeValidator(_queues)] = QUEUES
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 0
    horizon: Annotated[float, BeforeValidator(_horizon)] = float("inf")
    transport: _Transport = _Transport()
    control: _Control = _Control()
    emulation: _Emulation | None = None


# ------------------------------------------------------------------ loading


def load(path: str | Path, overrides: Sequence[str] = (), plugins: Sequence[str | Path] = ()) -> Scenario:
    """The scenario of a YAML file, with each `key.path=value` of `overrides` (--set) written into it first.

    `plugins`: Python files whose policies it may name as well; their code is run.
    ScenarioError with one line per problem: file and line (or the --set flag), key path, what was found and
    what would be right.
    """
    kinds = known(plugins)
    document = override(read(path), overrides)
    data = {"name": Path(path).stem} | dict(document.data)
    problems = Problems(document)
    if data.pop("sweep", None) is not None:
        text = "is for `netsched sweep`: add --set sweep=null for the scenario without it"
        problems.add(("sweep",), text)
    if "emulation" in data and data["emulation"] is None:
        problems.add(("emulation",), "is empty: write at least scale, such as emulation: {scale: 0.01}")
    top = problems.validate(_File, data, ())
    fabric = choices.fabric(problems, data.get("fabric")) if "fabric" in data else None
    workload = choices.workloads(problems, data.get("workload")) if "workload" in data else ()
    policies = choices.policies(problems, data["policies"], kinds) if "policies" in data else ()
    circuits = choices.circuits(problems, data["circuits"], fabric) if "circuits" in data else ()
    placements = choices.placements(problems, data["placement"]) if "placement" in data else (UNPLACED,)
    if top is not None:
        _check_classes(problems, policies, top.queues)
        _check_reports(problems, top.control.nouns())
    problems.raise_any()
    assert top is not None and fabric is not None  # noqa: S101 # raise_any has raised otherwise
    emulation = top.emulation
    return Scenario(
        name=top.name,
        fabric=fabric,
        workload=workload,
        policies=tuple(spec for spec, _ in policies),
        queues=None if isinstance(top.queues, str) else top.queues,
        seed=top.seed,
        horizon=top.horizon,
        transport=Transport(Connections(top.transport.connections)),
        control=top.control.nouns(),
        emulation=Emulation(emulation.scale, emulation.chunk, emulation.delay) if emulation else None,
        source=data,
        path=str(path),
        plugins=tuple(str(Path(each).resolve()) for each in plugins),
        circuits=circuits,
        faults=faults.in_order(top.faults),
        placements=placements,
    )


def _check_classes(problems: Problems, policies: tuple[Placed, ...], queues: int | str) -> None:
    for spec, place in policies:
        for key in _CLASS_PARAMETERS:
            wanted = spec.params.get(key)
            if isinstance(queues, int) and isinstance(wanted, int) and wanted > queues:
                text = f"{wanted} classes, but the scenario has queues: {queues}: write {queues} or fewer"
                problems.add((*place, key), text)


def _check_reports(problems: Problems, control: Control) -> None:
    if control.report_period > 0:
        return
    for key, value in (("report_delay", control.report_delay), ("report_loss", control.report_loss)):
        if value > 0:
            text = "needs reports: write report_period: 10ms, or leave it out for the ideal"
            problems.add(("control", key), text)


# ------------------------------------------------------------------ building


@dataclass(frozen=True)
class Ready:
    """One scheme with its pieces. Schemes that carry the same workload share the object.

    `placed`: what of the placement is to be kept with the results, None if the scheme has none.
    """

    scheme: Scheme
    policy: Policy
    workload: Workload
    circuits: Circuits | None = None
    placed: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Built:
    """The pieces that an engine runs. `topo` is the Mininet `Topo` that `fabric` was read from.

    `ready` is aligned with `Scenario.schemes`.
    """

    topo: Any
    fabric: Any
    ready: tuple[Ready, ...]


def build(scenario: Scenario) -> Built:
    """The fabric and the pieces of each scheme. ScenarioError, naming the file, where they do not fit."""
    from netsched import fabrics, policies, workloads  # noqa: PLC0415

    try:
        kinds = known(scenario.plugins)
        topo, fabric = fabrics.build(scenario.fabric)
        faults.check(scenario.faults, fabric)
        workload = workloads.build(scenario.workload, fabric, scenario.seed)
        plain = {each.label: _lay_out(scenario, each, workload, fabric) for each in scenario.placements}
        ready = tuple(
            _ready(scenario, each, policies.make(each.policy, kinds), fabric, plain[each.placement.label])
            for each in scenario.schemes
        )
    except ScenarioError as error:
        raise ScenarioError(f"{scenario.path}: {error}") from None
    return Built(topo, fabric, ready)


Laid = tuple[Workload, Mapping[str, Any] | None]


def _lay_out(scenario: Scenario, placement: Spec, workload: Workload, fabric: Any) -> Laid:
    """The workload as the placement wants it, and the placement in plain terms; nothing to do for `none`."""
    if placement == UNPLACED:
        return workload, None
    from netsched.placement.lay_out import lay_out  # noqa: PLC0415 # runs each job alone, which takes time

    return lay_out(placement, workload, fabric, scenario.transport, scenario.seed)


def _ready(scenario: Scenario, scheme: Scheme, policy: Policy, fabric: Any, plain: Laid) -> Ready:
    """The pieces of one scheme. `plain` is the workload that its placement makes if nothing is reshaped."""
    from netsched import circuits, workloads  # noqa: PLC0415

    scheduler = circuits.make(scheme.circuits) if scheme.circuits else None
    reshape = reshape_of(policy)
    if reshape is None:
        return Ready(scheme, policy, plain[0], scheduler, plain[1])
    try:
        own = workloads.build(scenario.workload, fabric, scenario.seed, reshape)
    except ScenarioError as error:
        raise ScenarioError(f"policies.{scheme.policy.label}: {error}") from None
    own, placed = _lay_out(scenario, scheme.placement, own, fabric)
    return Ready(scheme, policy, own, scheduler, placed)


def check(scenario: Scenario) -> str:
    """Build everything, run nothing, and say in lines with units what a run would carry."""
    built = build(scenario)
    workload = built.ready[0].workload
    carried = units.show_size(float(np.sum(workload.flows.size)))
    lines = {
        "fabric": f"{len(built.fabric.hosts)} hosts, {len(built.fabric.capacity)} directed links "
        f"({_span(built.fabric.capacity)})",
        "workload": ", ".join(
            f"{count} {noun}{'' if count == 1 else 's'}"
            for count, noun in (
                (len(workload.jobs.name), "job"),
                (len(workload.stages.job), "stage"),
                (len(workload.coflows.job), "coflow"),
                (workload.n_flows, "flow"),
                (workload.n_tasks, "compute task"),
            )
        ),
        "carries": carried,
        "policies": _labels(scenario.policies),
        **({"circuits": _labels(scenario.circuits)} if scenario.circuits else {}),
        **({"placement": _labels(scenario.placements)} if scenario.placements != (UNPLACED,) else {}),
        "queues": UNLIMITED if scenario.queues is None else f"{scenario.queues} priority classes",
        "transport": f"connections {scenario.transport.connections.value}",
        "emulation": f"scale {scenario.emulation.scale:g}" if scenario.emulation else "none",
    }
    rows = [f"  {key:<10} {value}" for key, value in lines.items()]
    return "\n".join([f"{scenario.path}: {scenario.name} is sound", *rows])


def _labels(specs: Sequence[Spec]) -> str:
    return ", ".join(spec.label for spec in specs)


def _span(capacity: Any) -> str:
    low, high = units.show_rate(float(np.min(capacity))), units.show_rate(float(np.max(capacity)))
    return low if low == high else f"{low} to {high}"
