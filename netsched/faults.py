"""What fails in a scenario, as it is written there and as engines get it: changes in order of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from netsched import units
from netsched.errors import ScenarioError
from netsched.fabric import Fabric
from netsched.hints import nearest
from netsched.model import Fault, Ints

AS_BUILT = float("inf")
DOWN = 0.0


def _slowdown(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1e6:
        return float(value)
    raise ValueError(f"{value!r} is not right: write how many times as long computations take, such as 3")


class FaultEntry(BaseModel):
    """One entry of a scenario's `faults`.

    Of a cable (`link`, its two nodes): down from `at` to `until`, or at `rate` then, or at the `rates` of a
    list of (time, rate). Of a `host`: its computations that begin from `at` to `until` take `slowdown` times
    as long. Without `until` for good.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    link: tuple[str, str] | None = None
    host: str | None = None
    at: units.Duration | None = None
    until: units.Duration | None = None
    rate: units.Rate | None = None
    rates: tuple[tuple[units.Duration, units.Rate], ...] = ()
    slowdown: Annotated[float, BeforeValidator(_slowdown)] | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> FaultEntry:
        if (self.link is None) == (self.host is None):
            raise ValueError("name a link, such as [tor1, spine1], or a host: one of the two")
        if self.host is not None and (self.slowdown is None or self.rate is not None or self.rates):
            raise ValueError("a host needs slowdown, such as 3, and has no rate")
        if self.link is not None and self.slowdown is not None:
            raise ValueError("a link has no slowdown: write rate, or nothing for down")
        if self.rates and (self.at is not None or self.rate is not None):
            raise ValueError("rates say when by themselves: leave at and rate out")
        if not self.rates and self.at is None:
            raise ValueError("at is missing: write when it begins, such as 1s")
        begin = self.rates[-1][0] if self.rates else self.at
        if self.until is not None and begin is not None and self.until <= begin:
            raise ValueError("until must be later than when it begins")
        return self

    def faults(self) -> list[Fault]:
        if self.host is not None:
            value, whole = self.slowdown or 1.0, 1.0
        else:
            value, whole = DOWN if self.rate is None else self.rate, AS_BUILT
        changes = list(self.rates) or [(self.at or 0.0, value)]
        if self.until is not None:
            changes.append((self.until, whole))
        return [Fault(at, self.link, self.host, value) for at, value in changes]


def in_order(entries: Sequence[FaultEntry]) -> tuple[Fault, ...]:
    """All changes, in order of time; those of one time in the order of the entries."""
    return tuple(sorted((fault for entry in entries for fault in entry.faults()), key=lambda f: f.at))


def links_of(fault: Fault, fabric: Fabric) -> Ints:
    """The links of the fault's cables, both ways. ScenarioError if there is none between these nodes."""
    assert fault.link is not None  # noqa: S101
    ends = []
    for name in fault.link:
        if name not in fabric.nodes:
            raise ScenarioError(
                f"faults: fabric {fabric.name} has no node {name!r}: {nearest(name, fabric.nodes[:4096])}"
            )
        ends.append(fabric.nodes.index(name))
    one, other = ends
    src, dst = fabric.link_src, fabric.link_dst
    found = np.flatnonzero(((src == one) & (dst == other)) | ((src == other) & (dst == one)))
    if not len(found):
        near = sorted({fabric.nodes[node] for node in dst[src == one].tolist()})
        raise ScenarioError(
            f"faults: no cable joins {fault.link[0]} and {fault.link[1]}: "
            f"those of {fault.link[0]} lead to {', '.join(near[:8])}"
        )
    return found


def check(faults: Sequence[Fault], fabric: Fabric) -> None:
    """ScenarioError for a fault of something that the fabric does not have."""
    for fault in faults:
        if fault.host is not None:
            fabric.host_ordinal(fault.host)
        else:
            links_of(fault, fabric)
