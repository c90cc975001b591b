"""ByteScheduler's tuner: Bayesian optimisation of the size of its pieces and of its credit.

Both sizes trade start-up costs and idle links against how long an urgent tensor waits; which ones are best
depends on the network and the model. Each trial is a run, so there should be few: after some random ones the
next one is where a Gaussian process expects the most improvement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.spatial.distance import cdist
from scipy.stats import norm

from netsched import metrics
from netsched.errors import ScenarioError
from netsched.model import Floats, Scenario, Spec
from netsched.scenario import build

Measure = Callable[[float, float], float]
"""Seconds that an iteration takes with pieces and a credit of so many bytes."""

_NOISE: Final = 1e-6
"""Variance of a measurement, of standardised speeds: a simulation has none, but the matrix needs some."""

_LENGTHS: Final = (0.1, 0.2, 0.4, 0.8)
"""Length scales that are tried, in units of the range of a parameter (its logarithm)."""

_CANDIDATES: Final = 2000
"""Random points among which the one of greatest expected improvement is taken."""


@dataclass(frozen=True)
class Ranges:
    """Least and greatest `partition` and `credit` in bytes."""

    partition: tuple[float, float]
    credit: tuple[float, float]

    def __post_init__(self) -> None:
        for name, (low, high) in (("partition", self.partition), ("credit", self.credit)):
            if not 0 < low < high < np.inf:
                raise ScenarioError(
                    f"{name}: {low} to {high} B is no range: give two sizes above 0, the less first"
                )


WITH_SERVERS: Final = Ranges(partition=(1e6, 32e6), credit=(4e6, 64e6))
"""Credit: the released code's 1 to 16 M parameters of 4 bytes. Partition INFERRED."""

WITHOUT_SERVERS: Final = Ranges(partition=(8e6, 128e6), credit=(16e6, 256e6))
"""For all-reduce: the released code's 2 to 32 M and 4 to 64 M parameters of 4 bytes."""


@dataclass(frozen=True)
class Trial:
    """One measurement: bytes, bytes, and the seconds that an iteration took."""

    partition: float
    credit: float
    seconds: float


@dataclass(frozen=True)
class Tuned:
    """The best trial, and all of them in the order in which they were made."""

    best: Trial
    trials: tuple[Trial, ...]


def tune(
    measure: Measure,
    ranges: Ranges,
    rng: np.random.Generator,
    *,
    steps: int = 15,
    at_random: int = 10,
    xi: float = 0.1,
) -> Tuned:
    """Look for the sizes with which `measure` is least in `steps` trials, the first `at_random` ones random.

    Peng et al., ByteScheduler (SOSP 2019), released code: expected improvement with `xi` 0.1, 15 steps, 10 of
    them random. INFERRED: speeds are standardised before `xi` counts; sizes on a logarithmic scale; the
    kernel is Matern's of 5/2, its length the most likely of a few. Equal generators give equal trials.
    """
    if not 1 <= at_random <= steps:
        raise ScenarioError(f"at_random: {at_random} of {steps} steps: give 1 to {steps}")
    low, high = np.log(np.array([ranges.partition, ranges.credit]).T)
    points = rng.random((at_random, 2))
    trials: list[Trial] = []
    for step in range(steps):
        if step >= at_random:
            speed = np.array([1 / trial.seconds for trial in trials])
            candidates = rng.random((_CANDIDATES, 2))
            chosen = candidates[np.argmax(expected_improvement(points, speed, candidates, xi))]
            points = np.vstack([points, chosen])
        partition, credit = np.exp(low + points[step] * (high - low)).tolist()
        seconds = measure(partition, credit)
        if not 0 < seconds < np.inf:
            raise ScenarioError(f"measure: {seconds} s for an iteration is not a finite time above 0")
        trials.append(Trial(partition, credit, seconds))
    return Tuned(min(trials, key=lambda trial: trial.seconds), tuple(trials))


def in_simulation(scenario: Scenario) -> Measure:
    """The mean iteration time of the scenario's jobs under ByteScheduler, in the simulator."""
    from netsched.simulate import simulate  # noqa: PLC0415 # numba is loaded when something is simulated

    def measure(partition: float, credit: float) -> float:
        policy = Spec("bytescheduler", {"partition": f"{partition:.0f}B", "credit": f"{credit:.0f}B"})
        built = build(replace(scenario, policies=(policy,)))
        (ready,) = built.ready
        outcome = simulate(
            ready.workload,
            built.fabric,
            ready.policy,
            queues=scenario.queues,
            transport=scenario.transport,
            control=scenario.control,
        )
        return float(np.mean(metrics.iterations(ready.workload, outcome)["iteration_time"]))

    return measure


def expected_improvement(points: Floats, values: Floats, at: Floats, xi: float) -> Floats:
    """How much more than the greatest of `values` + `xi` is expected `at` each of (m, d) points in [0, 1]^d.

    `points`: (n, d), with their (n,) `values`; standardised inside, and the result is in those units. Mockus
    (1975) in the form of Jones, Schonlau, Welch, "Efficient Global Optimization" (1998), equation 15.
    """
    spread = float(values.std())
    scaled = (values - values.mean()) / (spread if spread > 0 else 1.0)
    mean, deviation = _predict(points, scaled, at)
    gain = mean - scaled.max() - xi
    z = gain / deviation
    return np.asarray(gain * norm.cdf(z) + deviation * norm.pdf(z), np.float64)


def _predict(points: Floats, values: Floats, at: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation `at` some points of a Gaussian process (mean 0, variance 1) with known `values`.

    Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1.
    """
    length = max(_LENGTHS, key=lambda each: _likelihood(points, values, each))
    factor = cholesky(_matern(points, points, length) + _NOISE * np.eye(len(points)), lower=True)
    across = _matern(at, points, length)
    mean = across @ cho_solve((factor, True), values)
    explained = solve_triangular(factor, across.T, lower=True)
    variance = np.maximum(1 - (explained**2).sum(axis=0), _NOISE)
    return np.asarray(mean, np.float64), np.sqrt(variance)


def _likelihood(points: Floats, values: Floats, length: float) -> float:
    """The logarithm of the values' likelihood, but for a constant."""
    factor = cholesky(_matern(points, points, length) + _NOISE * np.eye(len(points)), lower=True)
    return float(-0.5 * values @ cho_solve((factor, True), values) - np.log(np.diag(factor)).sum())


def _matern(a: Floats, b: Floats, length: float) -> Floats:
    """Matern's covariance of smoothness 5/2 between each two points. (n, m)"""
    r = np.sqrt(5.0) * cdist(a, b) / length
    return np.asarray((1 + r + r**2 / 3) * np.exp(-r), np.float64)
