"""Open arrivals: coflows that come at random times between random hosts, with sizes from a distribution.

The load that flow scheduling papers sweep; it does not wait for the network, so delay grows with load.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from netsched.errors import ScenarioError
from netsched.model import Ints
from netsched.units import Duration
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.deadlines import Deadline, deadlines
from netsched.workloads.kind import Count, FabricView, HostNamesOrAll, JobName, Kind, Params, host_ordinals
from netsched.workloads.sizes import SizeDistribution

_FREQUENCY: Final = re.compile(r"(\d{1,15}(?:\.\d{0,15})?(?:[eE][+-]?\d{1,2})?)\s*/\s*(ms|s|min|h)", re.ASCII)
_SECONDS: Final = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def frequency(text: object) -> float:
    """Arrivals per second of a rate such as "200/s". ValueError if it is not one."""
    match = _FREQUENCY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a rate of arrivals: write a number and a unit, such as 200/s")
    value = float(match[1]) / _SECONDS[match[2]]
    if not 0 < value <= 1e15:
        raise ValueError(f"{text!r} must be more than 0/s and at most 1e15/s")
    return value


class PoissonParams(Params):
    """`flows` in all, `width` of them in each arrival's coflow, each between two hosts drawn for it alone.

    Either `rate` of arrivals, or `load`: the share of the hosts' up ports that the average arrivals fill.
    """

    hosts: HostNamesOrAll = "all"
    size: SizeDistribution
    flows: Count
    width: Count = 1
    load: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None
    rate: Annotated[float, BeforeValidator(frequency)] | None = None
    start: Duration = 0.0
    deadline: Deadline | None = None
    name: JobName = "poisson"

    @model_validator(mode="after")
    def _whole_arrivals_at_one_rate(self) -> PoissonParams:
        if (self.load is None) == (self.rate is None):
            raise ValueError("give either load (such as 0.6) or rate (such as 200/s)")
        if self.flows % self.width:
            raise ValueError(f"flows: {self.flows} is not a multiple of width {self.width}")
        return self


def build(
    params: PoissonParams, fabric: FabricView, builder: WorkloadBuilder, rng: np.random.Generator
) -> None:
    """Add a job of one coflow per arrival: exponential gaps, uniform pairs of different hosts."""
    hosts = host_ordinals(fabric, params.hosts, "hosts")
    n, count = len(hosts), params.flows
    if n < 2:
        raise ScenarioError("hosts: one host has nobody to send to: name 2 or more")
    builder.admit(count)
    rate = params.rate if params.rate is not None else _rate_for(params, fabric, hosts)
    arrivals = params.start + np.cumsum(rng.exponential(1 / rate, count // params.width))
    src = rng.integers(n, size=count)
    dst = (src + 1 + rng.integers(n - 1, size=count)) % n
    sizes = params.size.draw(rng, count)
    member = np.arange(count) // params.width
    # Drawn last, so that asking for deadlines leaves the rest as it is.
    due = deadlines(params.deadline, fabric, (member, hosts[src], hosts[dst], sizes), len(arrivals), rng)
    first = 0
    for number, arrival in enumerate(arrivals.tolist()):
        label = f"{params.name} {number}"
        job = builder.add_job(label, arrival=arrival)
        coflow = builder.add_coflow(job, builder.add_stage(job, label), label, deadline=float(due[number]))
        first = coflow if number == 0 else first
    builder.add_flows(first + member, hosts[src], hosts[dst], sizes)


def _rate_for(params: PoissonParams, fabric: FabricView, hosts: Ints) -> float:
    """Arrivals per second that offer `load` of the capacity of all up ports of `hosts`, on average."""
    mean = params.size.mean_bytes()
    if params.load is None or not 0 < mean < np.inf:
        raise ScenarioError("load: the sizes have no finite mean above 0: give rate, or size.max")
    up = np.bincount(fabric.link_src, weights=fabric.capacity, minlength=len(fabric.hosts))
    return params.load * float(up[hosts].sum()) / (params.width * mean)


POISSON = Kind(PoissonParams, build, "coflows that arrive at random, sizes from a distribution")
