"""What a kind of workload is: the type of its parameters and the function that adds its jobs.

One shape for all of them, so that adding a kind is one file and one line in the registry, and so that host
names, unknown keys and counts are refused with the same words everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, Protocol, TypeVar

import numpy as np
from pydantic import BeforeValidator, Field

from netsched.errors import ScenarioError
from netsched.model import Floats, Ints
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.params import Params

__all__ = [
    "Count",
    "FabricView",
    "HostNames",
    "HostNamesOrAll",
    "JobName",
    "Kind",
    "Params",
    "Weight",
    "host_ordinals",
    "slowest_port",
]


class FabricView(Protocol):
    """The part of `netsched.fabric.Fabric` that workloads read: no Mininet has to be there to list them.

    A host's ordinal is its node ordinal; `link_src`, `link_dst` (node ordinals) and `capacity` (bytes/s) are
    per link.
    """

    @property
    def hosts(self) -> tuple[str, ...]: ...
    @property
    def link_src(self) -> Ints: ...
    @property
    def link_dst(self) -> Ints: ...
    @property
    def capacity(self) -> Floats: ...
    def host_ordinal(self, name: str) -> int: ...


P = TypeVar("P", bound=Params)


@dataclass(frozen=True)
class Kind(Generic[P]):
    """`build(params, fabric, builder, rng)` adds the jobs; `hairpin` is the model of same-host flows."""

    params: type[P]
    build: Callable[[P, FabricView, WorkloadBuilder, np.random.Generator], None]
    summary: str
    hairpin: bool = False


Count = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
JobName = Annotated[str, Field(min_length=1, max_length=100)]
Weight = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


def _names(value: object) -> object:
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return list(value)
    raise ValueError(f"{value!r} is not a list of host names: write one, such as [h1, h2]")


def _names_or_all(value: object) -> object:
    if value == "all" or (isinstance(value, list | tuple) and value):
        return value if value == "all" else _names(value)
    raise ValueError(f"{value!r} is neither all nor a list of host names, such as [h1, h2]")


HostNames = Annotated[list[str], BeforeValidator(_names)]
HostNamesOrAll = Annotated[Literal["all"] | list[str], BeforeValidator(_names_or_all)]


def host_ordinals(fabric: FabricView, names: HostNamesOrAll, key: str) -> Ints:
    """Host ordinals of `names` ("all": every host). ScenarioError, naming `key`, if unknown or repeated."""
    if names == "all":
        return np.arange(len(fabric.hosts), dtype=np.int64)
    seen: dict[str, int] = {}
    for name in names:
        if name in seen:
            raise ScenarioError(f"{key}: host {name!r} is listed twice: list each host once")
        try:
            seen[name] = fabric.host_ordinal(name)
        except ScenarioError as error:
            raise ScenarioError(f"{key}: {error}") from None
    return np.array(list(seen.values()), dtype=np.int64)


def slowest_port(fabric: FabricView, hosts: Ints) -> float:
    """Bytes/s of the slowest link that begins or ends at one of these host ordinals."""
    touched = np.isin(fabric.link_src, hosts) | np.isin(fabric.link_dst, hosts)
    return float(fabric.capacity[touched].min())
