"""What a placement sees and what it says: jobs as they run alone, hosts and begins for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from netsched.model.columns import Bools, Floats, Ints


@dataclass(frozen=True)
class Bursts:
    """What a job sends in one iteration when alone, one row per flow between two hosts.

    `begin` and `end` in seconds after the job's begin, `src` and `dst` places (see `JobAlone`), `rate` the
    mean in bytes/s, `salt` what the path of a connection is drawn from.
    """

    begin: Floats
    end: Floats
    src: Ints
    dst: Ints
    rate: Floats
    salt: Ints


@dataclass(frozen=True)
class JobAlone:
    """A job as it runs when nobody else does. Its places are the hosts that it has in the scenario.

    hosts     the host (ordinal) of each place
    computes  (places,) does the place compute? Others serve parameters or data
    traffic   (places, places) bytes from one to another in an iteration
    period    seconds of an iteration
    loading   seconds from its begin to its first computation
    duration  seconds of all of it
    """

    name: str
    arrival: float
    iterations: int
    hosts: Ints
    computes: Bools
    traffic: Floats
    period: float
    loading: float
    duration: float
    bursts: Bursts


class Network(Protocol):
    """What of a fabric a placement reads; see `netsched.fabric.Fabric`."""

    @property
    def hosts(self) -> tuple[str, ...]: ...
    @property
    def capacity(self) -> Floats: ...
    def choose_path(
        self, job: npt.ArrayLike, src: npt.ArrayLike, dst: npt.ArrayLike, salt: npt.ArrayLike
    ) -> Ints: ...
    def paths(self, src: Ints, dst: Ints, p: Ints, hairpin: bool = False) -> tuple[Ints, Ints]: ...


@dataclass(frozen=True)
class Cluster:
    """All that a placement may look at."""

    jobs: tuple[JobAlone, ...]
    network: Network


@dataclass(frozen=True)
class Placing:
    """Where each job runs and when it begins, one entry per job.

    hosts  the host (ordinal) of each place
    after  the jobs that have to end before it begins
    shift  seconds between the moment at which it could begin (it has arrived, those have ended) and its begin
    notes  for people: what the system could not do for which jobs
    """

    hosts: tuple[Ints, ...]
    after: tuple[tuple[int, ...], ...]
    shift: Floats
    notes: tuple[str, ...] = ()


class Placement(Protocol):
    """A pure function of the cluster and of what `rng` draws. Its fields are its parameters."""

    name: ClassVar[str]

    def __call__(self, cluster: Cluster, rng: np.random.Generator) -> Placing: ...
