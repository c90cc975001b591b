"""Measures in the simulator what papers claim of their systems: where ours is inside the range, where not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from netsched import metrics
from netsched.claims import Claim, Measure, Published, Side, System
from netsched.errors import ScenarioError
from netsched.hints import nearest
from netsched.model import UNPLACED, Floats, Ints, Outcome, Scenario, Spec, Standing, TaskKind, Workload
from netsched.placement.apply import WAIT
from netsched.runner import ENGINES
from netsched.scenario import build, load

_DIGITS: Final = {"times": 2, "more": 1, "less": 1}
_URGENT: Final = 8
"""A flow is urgent if its tensor is among the first 1/8 that the next forward pass needs."""


@dataclass(frozen=True)
class Finding:
    """A claim as measured: the gain in the published form, rounded as printed, by variant."""

    claim: Claim
    gains: Mapping[str, float]

    @property
    def outside(self) -> Mapping[str, str]:
        """Variants that are not where the paper's are: "above" or "below" by name."""
        judged = {name: side(self.claim.published, gain) for name, gain in self.gains.items()}
        return {name: where for name, where in judged.items() if where}


def side(published: Published, gain: float) -> str:
    """ "above" or "below" the published range, "" inside. "Up to" begins where nothing is gained."""
    nothing = 1.0 if published.form == "times" else 0.0
    low = nothing if published.low is None else published.low
    if gain < low:
        return "below"
    return "above" if published.high is not None and gain > published.high else ""


Run = tuple[Workload, Outcome]
Changes = Mapping[str, Any]
NO_CHANGES: Final[Changes] = MappingProxyType({})


class Laboratory:
    """Runs sides of claims, each once: a baseline is often that of several claims."""

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self._ran: dict[tuple[Path, str], Run] = {}

    def measure(self, system: System) -> tuple[Finding, ...]:
        """All claims of a system. ScenarioError if a side names what is not there."""
        return tuple(
            Finding(claim, {name: self.gain(system, claim, name) for name in system.claims.of(claim)})
            for claim in system.claims.claims
        )

    def ablate(self, system: System) -> tuple[float, ...]:
        """What the first claim gains in each ablated variant, as it stands and with each of its values."""
        claims = system.claims
        return tuple(
            self.gain(system, claims.claims[0], variant, each)
            for variant, values in claims.ablated.items()
            for each in (NO_CHANGES, *values)
        )

    def gain(self, system: System, claim: Claim, variant: str, changes: Changes = NO_CHANGES) -> float:
        """What the claim's system gains over its baseline in one variant, in the published form, rounded.

        `changes`: values of the system's parameters that differ from what the claim says.
        """
        settings, measured = system.claims.variants[variant], MEASURES[claim.measure]
        ours = measured(*self._run(system.scenario, settings, claim.system, changes), claim)
        theirs = measured(*self._run(system.scenario, settings, claim.baseline, NO_CHANGES), claim)
        if claim.measure in MORE_IS_BETTER:
            ours, theirs = theirs, ours
        form = claim.published.form
        value = 1.0 - ours / theirs if form == "less" else theirs / ours - (1.0 if form == "more" else 0.0)
        digits = _DIGITS[form] if form == "times" else _DIGITS[form] + 2
        return round(value, digits)

    def _run(self, path: Path, settings: tuple[str, ...], asked: Side, changes: Changes) -> Run:
        scenario = _only(path, (*settings, *asked.set), asked, changes)
        key = path, json.dumps(scenario.source, sort_keys=True, default=str)
        if key not in self._ran:
            (scheme,) = scenario.schemes
            self._say(" ".join((path.stem, scheme.label, *settings, *asked.set)))
            built = build(scenario)
            outcome = ENGINES["sim"].run(scenario, built, 0, _silent, Path())
            if np.isnan(outcome.flow_finish).any():
                raise ScenarioError(f"{path}: {scheme.label} did not end before the horizon: leave it out")
            self._ran[key] = built.ready[0].workload, outcome
        return self._ran[key]


def _only(path: Path, settings: tuple[str, ...], asked: Side, changes: Changes) -> Scenario:
    """The scenario with the one scheme that is asked for, `changes` in its placement or else its policy."""
    scenario = load(path, settings)
    policy = _named(scenario.policies, asked.policy)
    placement = UNPLACED if asked.placement is None else _named(scenario.placements, asked.placement)
    if asked.placement is None:
        policy = Spec(policy.name, {**policy.params, **changes})
    else:
        placement = Spec(placement.name, {**placement.params, **changes})
    chosen = {"policies": policy, "placement": placement}
    only = [f"{key}={json.dumps([{spec.name: dict(spec.params)}])}" for key, spec in chosen.items()]
    scenario = load(path, [*settings, *only])
    if len(scenario.schemes) != 1:
        labels = ", ".join(scheme.label for scheme in scenario.schemes)
        raise ScenarioError(f"{path}: {asked.policy} is one of {labels}: claims choose no circuits")
    return scenario


def _named(specs: Sequence[Spec], name: str) -> Spec:
    """The scenario's entry of that label, else of that name, else the plug-in with its defaults."""
    by_label = [spec for spec in specs if spec.label == name]
    return (by_label or [spec for spec in specs if spec.name == name] or [Spec(name)])[0]


def _silent(_: Standing) -> None:
    """Nobody watches."""


# ------------------------------------------------------------------ what is measured


def _step(workload: Workload, outcome: Outcome, _: Claim) -> float:
    """Seconds of an iteration in the steady state: from the end of one's backward pass to that of the next.

    Mean over the jobs. The exchange after the last iteration, which no computation hides, is not in it.
    """
    tasks = workload.tasks
    backward = tasks.kind == TaskKind.BACKWARD
    times = []
    for job, count in enumerate(workload.jobs.iterations.tolist()):
        ends = _last_of_each(outcome.task_finish, tasks.iteration, backward & (tasks.job == job), count)
        if count < 2:
            raise ScenarioError(f"reproduce: job {workload.jobs.name[job]} has 1 iteration, a step needs 2")
        times.append((ends[-1] - ends[0]) / (count - 1))
    return float(np.mean(times))


def _last_of_each(times: Floats, group: Ints, among: np.ndarray, count: int) -> Floats:
    ends = np.full(count, -np.inf)
    np.maximum.at(ends, group[among], times[among])
    return ends


def _early(workload: Workload, outcome: Outcome, claim: Claim) -> float:
    """Seconds from a job's arrival to the end of that share of its iterations; mean over the jobs."""
    table = metrics.iterations(workload, outcome)
    share = claim.share or 1.0
    times = []
    for job, count in enumerate(workload.jobs.iterations.tolist()):
        last = max(math.ceil(share * count - 1e-9), 1) - 1
        times.append(float(table["finish"][table["job"] == job][last] - workload.jobs.arrival[job]))
    return float(np.mean(times))


def _urgent_flow(workload: Workload, outcome: Outcome, _: Claim) -> float:
    """Mean seconds from release to end of the flows of tensors that are needed soon."""
    flows = workload.flows
    urgent = flows.need * _URGENT < flows.need_span
    return float((outcome.flow_finish - outcome.flow_release)[urgent].mean())


def _of_jobs(workload: Workload, values: Floats, claim: Claim) -> Floats:
    """The values (one per job) of the claim's jobs, of all if it names none."""
    names = workload.jobs.name
    for name in claim.jobs or ():
        if name not in names:
            raise ScenarioError(
                f"claim {claim.what!r}: jobs: no job is called {name!r}: {nearest(name, names)}"
            )
    return values[[claim.jobs is None or name in claim.jobs for name in names]]


def _job(workload: Workload, outcome: Outcome, claim: Claim) -> Floats:
    """Seconds from arrival to end of each job."""
    return _of_jobs(workload, metrics.jobs(workload, outcome)["jct"], claim)


def _waiting(workload: Workload, outcome: Outcome, claim: Claim) -> Floats:
    """Seconds from each job's arrival until a placement let it begin."""
    tasks, begin = workload.tasks, workload.jobs.arrival.copy()
    waits = np.array([label == WAIT for label in tasks.label])
    begin[tasks.job[waits]] = outcome.task_finish[waits]
    return _of_jobs(workload, begin - workload.jobs.arrival, claim)


def _utilisation(workload: Workload, outcome: Outcome, _: Claim) -> float:
    """Share of the time from the first arrival to the last end in which hosts that compute do."""
    tasks = workload.tasks
    busy = np.bincount(np.maximum(tasks.host, 0), np.where(tasks.host >= 0, tasks.seconds, 0.0))
    return float(busy[busy > 0].mean() / _makespan(workload, outcome, _))


def _makespan(workload: Workload, outcome: Outcome, _: Claim) -> float:
    ends = np.concatenate((outcome.flow_finish, outcome.task_finish))
    return float(ends.max() - workload.jobs.arrival.min())


MEASURES: Final[Mapping[Measure, Callable[[Workload, Outcome, Claim], float]]] = {
    "step": _step,
    "stage": lambda w, o, _: float(metrics.stages(w, o)["completion_time"].mean()),
    "coflow": lambda w, o, _: float(metrics.coflows(w, o)["cct"].mean()),
    "coflow_p95": lambda w, o, _: float(np.percentile(metrics.coflows(w, o)["cct"], 95)),
    "job": lambda w, o, c: float(_job(w, o, c).mean()),
    "job_p95": lambda w, o, c: float(np.percentile(_job(w, o, c), 95)),
    "waiting": lambda w, o, c: float(_waiting(w, o, c).mean()),
    "execution": lambda w, o, c: float((_job(w, o, c) - _waiting(w, o, c)).mean()),
    "early": _early,
    "flow": lambda w, o, _: float((o.flow_finish - o.flow_release).mean()),
    "urgent_flow": _urgent_flow,
    "utilisation": _utilisation,
    "makespan": _makespan,
}
"""Seconds (utilisation: a share) from what was carried and what happened."""

MORE_IS_BETTER: Final = ("utilisation",)

NAMES: Final[Mapping[Measure, str]] = {
    "step": "time of an iteration in the steady state",
    "stage": "mean stage completion time",
    "coflow": "mean coflow completion time",
    "coflow_p95": "95th percentile of the coflow completion time",
    "job": "mean job completion time",
    "job_p95": "95th percentile of the job completion time",
    "waiting": "mean time that jobs wait to begin",
    "execution": "mean time from a job's begin to its end",
    "early": "mean time that jobs take for their early iterations",
    "flow": "mean flow completion time",
    "urgent_flow": "mean completion time of flows of the first 1/8 of the tensors",
    "utilisation": "share of the time in which hosts compute",
    "makespan": "time from the first arrival to the last end",
}
