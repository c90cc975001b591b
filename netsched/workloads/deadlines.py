"""Deadlines of coflows: how many times as long as its bytes need the ports for, each coflow may take.

As the coflow papers set them, so that a deadline says how urgent a coflow is and not how large.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from netsched.model import Floats, Ints
from netsched.units import Duration
from netsched.workloads.kind import FabricView, Params

Factor = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class Deadline(Params):
    """A coflow's deadline: a factor times the time that its ports need for its bytes, and at least `least`.

    The factor is drawn for each coflow, uniformly from `factor` to `factor` + `spread`. Varys (SIGCOMM 2014,
    section 7) has {factor: 1, spread: x}, its released code also {least: 200ms}. A fixed deadline is
    {least: 50ms} alone.
    """

    factor: Factor = 0.0
    spread: Factor = 0.0
    least: Duration = 0.0

    @model_validator(mode="after")
    def _asks_for_something(self) -> Deadline:
        if not (self.factor or self.spread or self.least):
            raise ValueError("give factor (such as 2), or least (such as 200ms), or both")
        return self


def deadlines(
    wanted: Deadline | None,
    fabric: FabricView,
    flows: tuple[Ints, Ints, Ints, Floats],
    count: int,
    rng: np.random.Generator,
    *,
    hairpin: bool = False,
) -> Floats:
    """The deadline of each of `count` coflows in seconds after its release; inf for none. (count,)

    flows    coflow (0..count-1), source, destination (host ordinals) and bytes of each flow
    hairpin  does a flow from a host to itself use its port?

    The time at a host's port is bytes / all capacity from or to that host: the isolation bound where the
    network inside is no bottleneck, less than it elsewhere. Without bytes there is no deadline but `least`.
    """
    if wanted is None:
        return np.full(count, math.inf)
    factor = wanted.factor + wanted.spread * rng.random(count)
    coflow, src, dst, size = flows
    n = len(fabric.hosts)
    bound = np.zeros(count)
    apart = (src != dst) | hairpin
    for end, of_link in ((src, fabric.link_src), (dst, fabric.link_dst)):
        port = np.bincount(of_link, weights=fabric.capacity, minlength=n)
        key, row = np.unique(coflow[apart] * n + end[apart], return_inverse=True)
        np.maximum.at(bound, key // n, np.bincount(row, size[apart], len(key)) / port[key % n])
    seconds: Floats = np.maximum(factor * bound, wanted.least)
    return np.where(seconds > 0, seconds, math.inf)
