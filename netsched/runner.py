"""Runs a scenario: every policy on every engine, one after the other, each kept on disk as soon as it ends.

A comparison takes minutes; what has finished must survive a later failure, a Ctrl-C and a power cut. Nothing
here prints: whoever calls passes a `Reporter`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from netsched import results
from netsched.bounds import Bounds, lower_bounds
from netsched.errors import CapabilityError, NetschedError, ScenarioError
from netsched.hints import nearest
from netsched.model import Outcome, Scenario, Spec, Standing, Workload
from netsched.optics import host_ports
from netsched.record import Key, record
from netsched.results import Result
from netsched.routes import route
from netsched.scenario import Built, build

Progress = Callable[[Standing], None]
"""An engine calls it now and then."""


@dataclass(frozen=True)
class Engine:
    """`run(scenario, built, position, progress, log)` carries out the scheme at `position`.

    `log` is a file in the result folder for what processes of the engine print.
    """

    summary: str
    run: Callable[[Scenario, Built, int, Progress, Path], Outcome]
    real: bool = False


def _simulate(scenario: Scenario, built: Built, position: int, progress: Progress, log: Path) -> Outcome:
    from netsched.reports import generator  # noqa: PLC0415
    from netsched.simulate import simulate  # noqa: PLC0415 # numba is loaded for a simulation only

    ready = built.ready[position]
    return simulate(
        ready.workload,
        built.fabric,
        ready.policy,
        queues=scenario.queues,
        transport=scenario.transport,
        control=scenario.control,
        horizon=scenario.horizon,
        circuits=ready.circuits,
        faults=scenario.faults,
        progress=progress,
        rng=generator(scenario.seed),
    )


def _emulate(scenario: Scenario, built: Built, position: int, progress: Progress, log: Path) -> Outcome:
    from netsched.workloads.startup import refuse_emulated  # noqa: PLC0415

    refuse_emulated(built.ready[position].workload)
    from netsched.emulation.conductor import emulate  # noqa: PLC0415 # an emulation only needs its parts

    return emulate(scenario, position, log=log, progress=progress)


ENGINES: Final[dict[str, Engine]] = {
    "sim": Engine("fluid simulation: rates by priority and max-min fairness, no root needed", _simulate),
    "mininet": Engine("emulation: real TCP and DSCP queues of this kernel, needs root", _emulate, real=True),
}


class Reporter(Protocol):
    """What a run tells while it works. `position` counts from 0 over `total` runs."""

    def begin(self, engine: str, policy: str, position: int, total: int) -> None: ...
    def progress(self, standing: Standing) -> None: ...
    def end(self, outcome: Outcome) -> None: ...
    def fail(self, error: NetschedError) -> None: ...


@dataclass(frozen=True)
class Failure:
    """A run that did not end."""

    engine: str
    policy: str
    error: NetschedError


class Interrupted(KeyboardInterrupt):
    """Ctrl-C between two results: `finished` of `total` runs are kept in `out`."""

    def __init__(self, finished: int, total: int, out: Path) -> None:
        super().__init__(f"interrupted: {finished} of {total} runs finished, kept in {out}")
        self.finished, self.total, self.out = finished, total, out


def engines_for(scenario: Scenario, names: Sequence[str]) -> tuple[str, ...]:
    """The engines to use: those named, or all the scenario is meant for. ScenarioError for a wrong one."""
    for name in names:
        if name not in ENGINES:
            raise ScenarioError(f"--engine: no engine is called {name!r}: {nearest(name, ENGINES)}")
        if ENGINES[name].real and scenario.emulation is None:
            raise ScenarioError(
                f"--engine {name}: {scenario.path} has no emulation section: "
                "write one, or add --set emulation.scale=0.01"
            )
    chosen = names or [name for name, engine in ENGINES.items() if not engine.real or scenario.emulation]
    return tuple(dict.fromkeys(chosen))


def with_policies(scenario: Scenario, names: Sequence[str]) -> Scenario:
    """The scenario with only the policies named (as the scenario sets them, or with their defaults)."""
    from netsched.plugins import known  # noqa: PLC0415

    if not names:
        return scenario
    kinds = known(scenario.plugins)
    chosen: dict[str, Spec] = {}
    for name in names:
        own = [spec for spec in scenario.policies if name in (spec.label, spec.name)]
        if not own and name not in kinds:
            good = {*kinds, *(spec.label for spec in scenario.policies)}
            raise ScenarioError(f"--policy: no policy is called {name!r}: {nearest(name, good)}")
        chosen |= {spec.label: spec for spec in own or [Spec(name)]}
    entries = [{spec.name: dict(spec.params)} if spec.params else spec.name for spec in chosen.values()]
    source = {**scenario.source, "policies": entries}
    return dataclasses.replace(scenario, policies=tuple(chosen.values()), source=source)


@dataclass(frozen=True)
class Ended:
    """What a comparison left: the result on disk, the runs that failed, and the figures drawn."""

    result: Result
    failures: tuple[Failure, ...]
    figures: tuple[Path, ...]

    @property
    def invalid(self) -> tuple[str, ...]:
        """The runs (`engine policy`) whose machine could not keep up, by their own account."""
        runs = self.result.summary["runs"]
        return tuple(f"{r['engine']} {r['policy']}" for r in runs if not r["fidelity"].get("valid", True))


def run(
    scenario: Scenario, engines: Sequence[str], out: Path, reporter: Reporter, *, figures: bool = True
) -> Ended:
    """Run every policy of `scenario` on each of `engines`, recording each in the result folder `out`.

    A run that fails is reported and the others go on; an engine that this machine cannot run is left at its
    first CapabilityError. ScenarioError before anything has run; Interrupted on Ctrl-C.
    """
    built = build(scenario)
    with results.alone(out):
        return _run(scenario, built, engines, out, reporter, figures=figures)


def _run(
    scenario: Scenario, built: Built, engines: Sequence[str], out: Path, reporter: Reporter, *, figures: bool
) -> Ended:
    results.create(out, scenario)
    for name in ENGINES:
        # Engines append, one run after the other: without this also to what an earlier comparison left.
        (out / f"{name}.log").unlink(missing_ok=True)
    bounds = _Bounds(scenario, built)
    total = len(engines) * len(scenario.schemes)
    failures: list[Failure] = []
    finished = 0
    try:
        for row, engine in enumerate(engines):
            for column, scheme in enumerate(scenario.schemes):
                position = row * len(scenario.schemes) + column
                reporter.begin(engine, scheme.label, position, total)
                try:
                    outcome = ENGINES[engine].run(
                        scenario, built, column, reporter.progress, out / f"{engine}.log"
                    )
                except NetschedError as error:
                    failures.append(Failure(engine, scheme.label, error))
                    reporter.fail(error)
                    if isinstance(error, CapabilityError):
                        break
                    continue
                key = Key(engine, scheme.label, scenario.seed)
                ready = built.ready[column]
                of = bounds.of(ready.workload)
                results.add(out, record(key, ready.workload, built.fabric, outcome, of, ready.placed))
                finished += 1
                reporter.end(outcome)
        result = results.load(out)
        return Ended(result, tuple(failures), _draw(result) if figures and finished else ())
    except KeyboardInterrupt:
        raise Interrupted(finished, total, out) from None


class _Bounds:
    """The lower bounds of each workload of a scenario, computed once: most schemes share one workload."""

    def __init__(self, scenario: Scenario, built: Built) -> None:
        self._transport, self._fabric = scenario.transport, built.fabric
        self._known: dict[int, tuple[Workload, Bounds]] = {}

    def of(self, workload: Workload) -> Bounds:
        if id(workload) not in self._known:
            if self._fabric.switching:
                # A flow may leave its path for a circuit: only the hosts' own ports bound every way.
                found = lower_bounds(workload, *host_ports(workload, self._fabric))
            else:
                paths = route(workload, self._fabric, self._transport).of_flows(np.arange(workload.n_flows))
                found = lower_bounds(workload, self._fabric.capacity, *paths)
            # Kept with its workload, so that no other object can get this one's id.
            self._known[id(workload)] = workload, found
        return self._known[id(workload)][1]


def _draw(result: Result) -> tuple[Path, ...]:
    from netsched import plots  # noqa: PLC0415 # matplotlib is slow to import

    return tuple(plots.plot([result], result.path / results.PLOTS))
