"""The kinds of workload, by name, and the one function that unrolls a scenario's list of them.

Adding a kind is one file and one line here.
"""

from __future__ import annotations

import difflib
from typing import Any, Final

import numpy as np

from netsched.errors import ScenarioError
from netsched.model import Spec, Workload
from netsched.shape import Reshape
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.coflow_benchmark import COFLOW_BENCHMARK
from netsched.workloads.incast import INCAST
from netsched.workloads.kind import FabricView, Kind, Params
from netsched.workloads.parallel import PARALLEL
from netsched.workloads.poisson import POISSON
from netsched.workloads.search import SEARCH
from netsched.workloads.shuffle import SHUFFLE
from netsched.workloads.training import TRAINING

WORKLOADS: Final[dict[str, Kind[Any]]] = {
    "training": TRAINING,
    "parallel": PARALLEL,
    "search": SEARCH,
    "coflow-benchmark": COFLOW_BENCHMARK,
    "incast": INCAST,
    "shuffle": SHUFFLE,
    "poisson": POISSON,
}


def kind_of(name: str) -> Kind[Any]:
    """The kind called `name`. ScenarioError with the nearest good name if there is none."""
    if name in WORKLOADS:
        return WORKLOADS[name]
    near = difflib.get_close_matches(name, WORKLOADS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(WORKLOADS)}"
    raise ScenarioError(f"no workload is called {name!r}: {hint}")


def parse(spec: Spec) -> Params:
    """The parameters of `spec`, checked without a fabric. pydantic's ValidationError propagates."""
    params: Params = kind_of(spec.name).params.model_validate(dict(spec.params))
    return params


def build(specs: tuple[Spec, ...], fabric: FabricView, seed: int, reshape: Reshape | None = None) -> Workload:
    """All jobs of all `specs`, unrolled and checked.

    `reshape` decides how the tensors of jobs that exchange data-parallel become messages (`netsched.shape`);
    all other jobs are as they are.

    Each workload draws from a child generator of its own, so that adding one at the end leaves the others'
    draws as they were. ScenarioError for what is wrong with a workload, naming its key path.
    """
    hairpin = {kind_of(spec.name).hairpin for spec in specs}
    if len(hairpin) > 1:
        own = ", ".join(sorted({spec.name for spec in specs if kind_of(spec.name).hairpin}))
        raise ScenarioError(
            f"workload: {own} counts a flow from a host to itself as traffic over its port, "
            "the other kinds do not: put them into different scenarios"
        )
    builder = WorkloadBuilder(len(fabric.hosts), reshape)
    children = np.random.SeedSequence(seed).spawn(len(specs))
    for position, (spec, child) in enumerate(zip(specs, children, strict=True)):
        try:
            kind_of(spec.name).build(parse(spec), fabric, builder, np.random.default_rng(child))
        except ScenarioError as error:
            place = "workload" if len(specs) == 1 else f"workload.{position}"
            raise ScenarioError(f"{place}: {error}") from None
    try:
        return builder.build(hairpin=True in hairpin)
    except ScenarioError as error:
        raise ScenarioError(f"workload: {error}") from None
