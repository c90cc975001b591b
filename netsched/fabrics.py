"""The kinds of fabric a scenario can name, their parameters, and the `Topo` and `Fabric` built from them.

This is the edge where text becomes numbers: rates and delays carry units here, counts are bounded so that a
slip of the finger cannot eat the machine, and an unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from mininet.topo import Topo
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from netsched import units
from netsched.errors import ScenarioError
from netsched.fabric import Fabric
from netsched.hints import nearest
from netsched.model import Spec
from netsched.units import Duration, Rate
from topologies import TOPOLOGIES

MAX_CABLES: Final = 2**20
"""A k=110 fat-tree has fewer. Building a fabric takes some 20 us and 4 kB per cable."""


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("give a number, not a yes/no")
    return value


Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=MAX_CABLES)]
Ratio = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=1e6, allow_inf_nan=False)]


_TIMES: Final = {"delay": "", "reconfiguration": "0us"}
"""Keys that are times, and what a `Topo` is given for one of 0."""


class FabricParams(BaseModel):
    """Parameters of one kind of fabric, as the scenario writes them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delay: Duration = 0.0

    def n_cables(self) -> int:
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Arguments for the `Topo` class: rates in Mbit/s, the delay as text with a unit."""
        given: dict[str, Any] = {}
        for key in type(self).model_fields:
            value = getattr(self, key)
            if key in _TIMES:
                given[key] = f"{value * 1e6!r}us" if value else _TIMES[key]
            elif value is not None:
                given[key] = units.mbit(value) if key == "rate" or key.endswith("_rate") else value
        return given

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.n_cables() > MAX_CABLES:
            raise ValueError(f"{self.n_cables()} cables are too many; at most {MAX_CABLES}")
        return self


class SingleSwitchParams(FabricParams):
    hosts: Count
    rate: Rate

    def n_cables(self) -> int:
        return self.hosts


class _Uplinks(FabricParams):
    """Either the rate of an uplink or the ratio that it follows from."""

    uplink_rate: Rate | None = None
    oversubscription: Ratio | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.uplink_rate is not None and self.oversubscription is not None:
            raise ValueError("give uplink_rate or oversubscription, not both")
        return self


class LeafSpineParams(_Uplinks):
    leaves: Count
    spines: Count
    hosts_per_leaf: Count
    host_rate: Rate

    def n_cables(self) -> int:
        return self.leaves * (self.hosts_per_leaf + self.spines)


class FatTreeParams(FabricParams):
    k: Count
    rate: Rate
    oversubscription: Ratio = 1.0

    def n_cables(self) -> int:
        return 3 * self.k**3 // 4

    @model_validator(mode="after")
    def _even(self) -> Self:
        if self.k % 2:
            raise ValueError(f"k={self.k} must be even")
        return self


class RailOptimizedParams(_Uplinks):
    pods: Count = 1
    servers: Count
    gpus_per_server: Count
    spines: Count = 1
    nic_rate: Rate
    server_rate: Rate

    def n_cables(self) -> int:
        return self.pods * self.gpus_per_server * (2 * self.servers + self.spines)


class OpticalParams(FabricParams):
    """How optical switches change: seconds for which circuits are dark, and which of a switch's are."""

    reconfiguration: Duration = 0.01
    model: Literal["all-stop", "not-all-stop"] = "not-all-stop"


class HybridParams(OpticalParams, _Uplinks):
    racks: Count
    hosts_per_rack: Count
    spines: Count = 1
    optical_switches: Count = 1
    host_rate: Rate
    circuit_rate: Rate | None = None

    def n_cables(self) -> int:
        return self.racks * (self.hosts_per_rack + self.spines + self.optical_switches)


class OcsDirectParams(OpticalParams):
    hosts: Count
    degree: Count = 1
    circuit_rate: Rate
    packet_rate: Rate

    def n_cables(self) -> int:
        return self.hosts * (1 + self.degree)


class RotorParams(OpticalParams):
    racks: Count
    hosts_per_rack: Count
    rotors: Count
    host_rate: Rate
    circuit_rate: Rate | None = None
    packet_share: Ratio = 0.1
    reconfiguration: Duration = 20e-6

    def n_cables(self) -> int:
        return self.racks * (self.hosts_per_rack + 1 + self.rotors)


class RailOcsParams(OpticalParams, _Uplinks):
    pods: Count
    servers: Count
    gpus_per_server: Count
    spines: Count = 1
    nic_rate: Rate
    server_rate: Rate
    circuit_rate: Rate | None = None

    def n_cables(self) -> int:
        return self.pods * self.gpus_per_server * (2 * self.servers + self.spines + 1)


@dataclass(frozen=True)
class FabricKind:
    """A name that `fabric: {kind: ...}` may have: its parameters and the `Topo` class they build."""

    name: str
    params: type[FabricParams]
    topo: type[Topo]

    @property
    def summary(self) -> str:
        """First line of the topology's description."""
        return (self.topo.__doc__ or "").strip().splitlines()[0]


_PARAMS: Final[Mapping[str, type[FabricParams]]] = {
    "single_switch": SingleSwitchParams,
    "leaf_spine": LeafSpineParams,
    "fat_tree": FatTreeParams,
    "rail_optimized": RailOptimizedParams,
    "hybrid": HybridParams,
    "ocs_direct": OcsDirectParams,
    "rotor": RotorParams,
    "rail_ocs": RailOcsParams,
}

FABRICS: Final[Mapping[str, FabricKind]] = {
    name: FabricKind(name, params, TOPOLOGIES[name]) for name, params in _PARAMS.items()
}


def make_topo(spec: Spec) -> Topo:
    """The Mininet `Topo` of a scenario's `fabric`. ScenarioError for an unknown kind.

    pydantic's ValidationError (locations relative to `spec.params`) for bad parameters.
    """
    kind = FABRICS.get(spec.name)
    if kind is None:
        raise ScenarioError(f"fabric.kind: no fabric {spec.name!r}; {nearest(spec.name, FABRICS)}")
    params = kind.params.model_validate(dict(spec.params))
    try:
        return kind.topo(**params.options())
    except ValueError as error:  # what only the Topo can tell, such as a rate that rounds to nothing
        raise ScenarioError(f"fabric: {error}") from None


def build(spec: Spec) -> tuple[Topo, Fabric]:
    """`make_topo`, and the `Fabric` read from it."""
    topo = make_topo(spec)
    return topo, Fabric.from_topo(topo, name=spec.name)
