"""Every job where the scenario says, as soon as it arrives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netsched.model import Cluster, Placing


@dataclass(frozen=True)
class AsGiven:
    """The hosts and begins that the scenario gives: no placement at all."""

    name: ClassVar[str] = "none"

    def __call__(self, cluster: Cluster, rng: np.random.Generator) -> Placing:
        return as_given(cluster)


def as_given(cluster: Cluster, notes: tuple[str, ...] = ()) -> Placing:
    """Nothing moved, nothing shifted."""
    n = len(cluster.jobs)
    return Placing(tuple(job.hosts for job in cluster.jobs), ((),) * n, np.zeros(n), notes)
