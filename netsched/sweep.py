"""A scenario at many points: each combination of the values of its `sweep`, a result folder each, one table.

    sweep:
      rate: {fabric.rate: [10Gbit/s, 25Gbit/s]}              # an axis of one key: its values are the names
      model:                                                 # an axis of named values, each of several keys
        small: {workload.*.model: resnet50, workload.*.batch: 64}
        large: {workload.*.model: vgg16, workload.*.batch: 32}

Keys are those of `--set`. Axes apply in the order in which they are written, so a later one may set what is
inside of what an earlier one has put there.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from netsched import results
from netsched.document import KeyPath, override, read, shown
from netsched.errors import NetschedError, ScenarioError
from netsched.metrics import METRICS
from netsched.model import Scenario
from netsched.problems import Problems
from netsched.runner import Failure, Reporter, engines_for, run, with_policies
from netsched.scenario import load

MOST: Final = 10_000
"""Points of one sweep: more is a slip of the pen."""

POINTS: Final = "points"


@dataclass(frozen=True)
class Point:
    """One combination: the value's name on each axis, and the scenario there."""

    at: Mapping[str, str]
    scenario: Scenario

    @property
    def folder(self) -> str:
        """A name for its result folder: `rate-10Gbit_s.model-small`."""
        return ".".join(f"{_safe(axis)}-{_safe(name)}" for axis, name in self.at.items())

    @property
    def title(self) -> str:
        return ", ".join(f"{axis} {name}" for axis, name in self.at.items())


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "_"


@dataclass(frozen=True)
class Row:
    """One run at one point. Seconds; None: nothing finished, or no bound is known, or there is no `fair`."""

    at: Mapping[str, str]
    engine: str
    policy: str
    valid: bool
    means: Mapping[str, float | None]
    bounds: Mapping[str, float | None]

    def above_bound(self, metric: str) -> float | None:
        """Mean / the best lower bound of it: 1 cannot be beaten."""
        mean, bound = self.means[metric], self.bounds[metric]
        return mean / bound if mean is not None and bound else None


@dataclass(frozen=True)
class Swept:
    """All runs of a sweep. `axes`: the names of the values of each axis, in order."""

    name: str
    axes: Mapping[str, tuple[str, ...]]
    rows: tuple[Row, ...]
    failures: tuple[tuple[Point, Failure], ...]

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.policy for row in self.rows))


# ------------------------------------------------------------------ points


def points(
    path: str | Path,
    overrides: Sequence[str] = (),
    plugins: Sequence[str | Path] = (),
    policies: Sequence[str] = (),
) -> tuple[Point, ...]:
    """Every point of a scenario's sweep, each checked as a scenario. ScenarioError, naming the point."""
    document = override(read(path), overrides)
    problems = Problems(document)
    axes = _axes(problems, document.data.get("sweep"))
    problems.raise_any()
    total = 1
    for values in axes.values():
        total *= len(values)
    if total > MOST:
        raise ScenarioError(f"{path}: sweep: {total:,} points, at most {MOST:,}: leave values out")
    found, folders = [], dict[str, str]()
    for combination in itertools.product(*(values.items() for values in axes.values())):
        at = dict(zip(axes, (name for name, _ in combination), strict=True))
        settings = [setting for _, each in combination for setting in each]
        try:
            scenario = with_policies(load(path, [*overrides, "sweep=null", *settings], plugins), policies)
        except ScenarioError as error:
            where = ", ".join(f"{axis} {name}" for axis, name in at.items())
            raise ScenarioError(
                "\n".join(f"{line} (at {where})" for line in str(error).splitlines())
            ) from None
        point = Point(at, scenario)
        if folders.setdefault(point.folder, point.title) != point.title:
            raise ScenarioError(
                f"{path}: sweep: {folders[point.folder]} and {point.title} would both be in {point.folder}: "
                "give one of them another name"
            )
        found.append(point)
    return tuple(found)


Axes = dict[str, dict[str, list[str]]]
"""By axis and name of a value, the `--set` strings of that value."""


def _axes(problems: Problems, value: object) -> Axes:
    if not isinstance(value, dict) or not value:
        what = "is missing" if value is None else f"{shown(value)} is not right"
        problems.add(("sweep",), f"{what}: write axes such as sweep: {{seed: {{seed: [1, 2, 3]}}}}")
        return {}
    return {str(axis): _axis(problems, ("sweep", axis), each) for axis, each in value.items()}


def _axis(problems: Problems, path: KeyPath, value: object) -> dict[str, list[str]]:
    if isinstance(value, dict) and len(value) == 1 and isinstance(next(iter(value.values())), list):
        ((key, each),) = value.items()
        if not each:
            problems.add((*path, key), "is empty: list values")
        for position, one in enumerate(each):
            if _shown(one) in map(_shown, each[:position]):
                problems.add((*path, key, position), f"{shown(one)} is listed twice: list each value once")
        return {_shown(one): [f"{key}={json.dumps(one)}"] for one in each}
    if isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values()):
        return {
            str(name): [f"{key}={json.dumps(one)}" for key, one in each.items()]
            for name, each in value.items()
        }
    text = f"{shown(value)} is not right: write {{key: [value, ...]}}, or names with a mapping of keys each"
    problems.add(path, text)
    return {}


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# ------------------------------------------------------------------ running


def sweep(found: Sequence[Point], engines: Sequence[str], out: Path, reporter: Reporter) -> Swept:
    """Run every point into a result folder below `out`; what has run before Ctrl-C stays there.

    A run that fails is kept in `failures`, and the others go on.
    """
    rows: list[Row] = []
    failures: list[tuple[Point, Failure]] = []
    for point in found:
        folder = out / POINTS / point.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        chosen = engines_for(point.scenario, engines)
        ended = run(point.scenario, chosen, folder, _At(point, reporter), figures=False)
        failures += [(point, failure) for failure in ended.failures]
        rows += _rows(point, results.load(folder))
    axes = {axis: tuple(dict.fromkeys(point.at[axis] for point in found)) for axis in found[0].at}
    return Swept(found[0].scenario.name, axes, tuple(rows), tuple(failures))


def _rows(point: Point, result: results.Result) -> list[Row]:
    return [
        Row(
            at=point.at,
            engine=key.engine,
            policy=key.policy,
            valid=bool(result.entry(key)["fidelity"].get("valid", True)),
            means={name: result.entry(key)["metrics"][name]["mean"] for name in METRICS},
            bounds={name: result.entry(key)["bound"][name]["mean"] for name in METRICS},
        )
        for key in result.runs
    ]


class _At:
    """Tells a reporter at which point a run is."""

    def __init__(self, point: Point, reporter: Reporter) -> None:
        self._point, self._reporter = point, reporter
        self.progress, self.end = reporter.progress, reporter.end

    def begin(self, engine: str, policy: str, position: int, total: int) -> None:
        self._reporter.begin(engine, f"{policy} at {self._point.title}", position, total)

    def fail(self, error: NetschedError) -> None:
        self._reporter.fail(error)
