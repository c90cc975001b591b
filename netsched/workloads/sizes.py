"""Distributions of flow sizes, with their means.

The mean is needed to turn an offered load into a rate of arrivals, so each distribution states its own in
closed form. `max` cuts a larger draw down to itself (it is not drawn again), and the mean counts it so.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from netsched.model import Floats
from netsched.units import size
from netsched.workloads.kind import Params


def _some(text: object) -> float:
    value = size(text)
    if value <= 0:
        raise ValueError(f"{text!r} must be more than 0 bytes")
    return value


Bytes = Annotated[float, BeforeValidator(_some)]
Shape = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]


class Fixed(Params):
    """Every flow has `value` bytes."""

    kind: Literal["fixed"]
    value: Bytes

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        return np.full(count, self.value)

    def mean_bytes(self) -> float:
        return self.value


class Exponential(Params):
    """Exponential with `mean` (before the cut at `max`)."""

    kind: Literal["exponential"]
    mean: Bytes
    max: Bytes = math.inf

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        return np.minimum(rng.exponential(self.mean, count), self.max)

    def mean_bytes(self) -> float:
        return self.mean * -math.expm1(-self.max / self.mean)


class Pareto(Params):
    """P(size > x) = (min / x)^shape from `min` on: infinite variance up to shape 2, infinite mean up to 1."""

    kind: Literal["pareto"]
    min: Bytes
    shape: Shape
    max: Bytes = math.inf

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        return np.minimum(self.min * (1 + rng.pareto(self.shape, count)), self.max)

    def mean_bytes(self) -> float:
        """min + the integral of the tail from min to max."""
        if self.max <= self.min:
            return self.max
        if self.max == math.inf and self.shape <= 1:
            return math.inf
        grown = math.log(self.max / self.min)
        power = 1 - self.shape
        return self.min * (1 + (grown if power == 0 else math.expm1(power * grown) / power))


def _normal(x: float) -> float:
    """The distribution function of the standard normal variable."""
    return math.erfc(-x / math.sqrt(2)) / 2


class LogNormal(Params):
    """exp of a normal variable: half the sizes are below `median`; `sigma` is the logarithm's deviation."""

    kind: Literal["lognormal"]
    median: Bytes
    sigma: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
    max: Bytes = math.inf

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        return np.minimum(rng.lognormal(math.log(self.median), self.sigma, count), self.max)

    def mean_bytes(self) -> float:
        """E[min(X, max)]: the partial expectation below `max`, and `max` for all above it."""
        full = self.median * math.exp(self.sigma**2 / 2)
        if self.max == math.inf:
            return full
        cut = math.log(self.max / self.median) / self.sigma
        return full * _normal(cut - self.sigma) + self.max * _normal(-cut)


SizeDistribution = Annotated[Fixed | Exponential | Pareto | LogNormal, Field(discriminator="kind")]
