"""What papers say of their systems, as data: a file of claims beside the scenario that recreates each one.

A claim is a published figure, the two runs that it compares, and the variants of the scenario in which they
are compared. Why ours differs, where it does, is data too: nobody writes into the page by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from netsched.document import read
from netsched.errors import ScenarioError
from netsched.hints import nearest
from netsched.problems import Problems

FOLDER: Final = "claims"
"""Below the folder of the scenarios: claims of `NAME.yaml` are in `claims/NAME.yaml`."""

Text = Annotated[str, Field(strict=True, min_length=1)]
Measure = Literal[
    "step",
    "stage",
    "coflow",
    "coflow_p95",
    "job",
    "job_p95",
    "waiting",
    "execution",
    "early",
    "flow",
    "urgent_flow",
    "utilisation",
    "makespan",
]
OF_JOBS: Final = ("job", "job_p95", "waiting", "execution")
"""Measures that may be of some jobs only."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Side(_Section):
    """One of the two runs of a claim: a policy as the scenario or the registry has it, and `--set` values.

    `placement` likewise (default: jobs where and when the scenario says).
    """

    policy: Text
    placement: Text | None = None
    set: tuple[Text, ...] = ()


class Published(_Section):
    """The figure: `to` alone is "up to", `from` and `to` a range; both equal a single figure.

    form  times: baseline / system, in seconds; more: that less 1; less: 1 - system / baseline. Where more is
          better, as for utilisation, system and baseline change places
    """

    low: float | None = Field(default=None, alias="from")
    high: float | None = Field(default=None, alias="to")
    form: Literal["times", "more", "less"] = Field(alias="as")

    @model_validator(mode="after")
    def _ordered(self) -> Published:
        if self.low is None and self.high is None:
            raise ValueError("write to: for an 'up to', from: and to: for a range")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"from is {self.low}, to is {self.high}: write the smaller one first")
        return self


class Claim(_Section):
    """`variants` are names of the file's variants (default: all). `why`: why ours is outside, if it is.

    `share`: of measure `early`, the share of a job's iterations that is its early stage. `jobs`: of a measure
    of jobs, the names of those that count (default: all).
    """

    what: Text
    source: Text
    published: Published
    measure: Measure
    system: Side
    baseline: Side
    variants: tuple[Text, ...] | None = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    jobs: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    why: Text | None = None

    @model_validator(mode="after")
    def _share_where_needed(self) -> Claim:
        if (self.measure == "early") != (self.share is not None):
            raise ValueError("share goes with measure: early, and only with it")
        if self.jobs is not None and self.measure not in OF_JOBS:
            raise ValueError(f"jobs goes with measure: {', '.join(OF_JOBS)}, and only with these")
        return self


Values = Annotated[tuple[Annotated[dict[Text, Any], Field(min_length=1)], ...], Field(min_length=1)]
"""Values of parameters, those of one run in each entry."""


class Ablations(_Section):
    """Values of parameters that no paper fixes, each put in the place of the system's in the first claim.

    The system is its placement where it has one, else its policy. `variant`: of the file (default: the
    claim's first). `elsewhere`: values that are tried in another variant, by its name. `note`: what to know
    when reading the figures.
    """

    variant: Text | None = None
    values: Values
    elsewhere: dict[Text, Values] = {}
    note: Text | None = None


class Claims(_Section):
    """A system's file of claims. `variants`: by name, `--set` values that both runs get before their own."""

    title: Text
    paper: Text
    read: Text
    published_on: Text
    known: Text
    inferred: Text
    variants: Annotated[dict[Text, tuple[Text, ...]], Field(min_length=1)]
    claims: Annotated[tuple[Claim, ...], Field(min_length=1)]
    ablations: Ablations | None = None

    @model_validator(mode="after")
    def _variants_exist(self) -> Claims:
        for named in (*(claim.variants or () for claim in self.claims), tuple(self.ablated)):
            for name in named:
                if name not in self.variants:
                    raise ValueError(f"no variant is called {name!r}: {nearest(name, self.variants)}")
        return self

    def of(self, claim: Claim) -> Mapping[str, tuple[str, ...]]:
        """The variants in which a claim is measured, by name."""
        names = self.variants if claim.variants is None else claim.variants
        return {name: self.variants[name] for name in names}

    @property
    def ablated(self) -> Mapping[str, Values]:
        """Other values of parameters for the first claim, by the variant in which they are tried."""
        if self.ablations is None:
            return {}
        first = self.ablations.variant or next(iter(self.claims[0].variants or self.variants))
        return {first: self.ablations.values, **self.ablations.elsewhere}


@dataclass(frozen=True)
class System:
    """A system to reproduce: its name, its scenario's file and its claims."""

    name: str
    scenario: Path
    claims: Claims


def systems(folder: Path, names: tuple[str, ...] = ()) -> tuple[System, ...]:
    """The systems of `folder`/claims by name (all, in alphabetical order, if none is named).

    ScenarioError for a name without claims, claims without a scenario, or a file that is wrong.
    """
    found = sorted(path.stem for path in (folder / FOLDER).glob("*.yaml"))
    if not found:
        raise ScenarioError(f"{folder / FOLDER}: no claims there: name the folder of the papers' scenarios")
    for name in names:
        if name not in found:
            raise ScenarioError(f"reproduce: no claims for {name!r}: {nearest(name, found)}")
    return tuple(_system(folder, name) for name in dict.fromkeys(names or found))


def _system(folder: Path, name: str) -> System:
    path, scenario = folder / FOLDER / f"{name}.yaml", folder / f"{name}.yaml"
    if not scenario.is_file():
        raise ScenarioError(f"{path}: claims of a scenario that is not there: {scenario}")
    document = read(path)
    problems = Problems(document)
    data: dict[str, Any] = dict(document.data)
    claims = problems.validate(Claims, data, ())
    problems.raise_any()
    assert claims is not None  # noqa: S101 # raise_any has raised otherwise
    return System(name, scenario, claims)
