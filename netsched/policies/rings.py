"""What systems that merge gradients for a ring all-reduce share: which jobs they take, what one costs."""

from __future__ import annotations

from dataclasses import replace

from netsched.errors import ScenarioError
from netsched.shape import RINGS, SERVERS, Profile, Shape, Slicing


def in_a_ring(profile: Profile, shape: Shape, without_servers: bool) -> Shape:
    """The shape if its workers reduce round a ring. Servers are left out only if that is asked for.

    ScenarioError otherwise, or if there is no second worker.
    """
    if shape.sync in RINGS:
        return shape
    if shape.sync != SERVERS or not without_servers:
        cure = ", or the policy's without_servers: true" if shape.sync == SERVERS else ""
        raise ScenarioError(
            f"a job of {profile.model} has sync: {shape.sync}, but this system merges gradients for a ring: "
            f"write sync: ring-allreduce{cure}"
        )
    if profile.workers < 2:
        raise ScenarioError(f"a job of {profile.model} has one worker, which has no ring: list 2 or more")
    return replace(shape, sync="ring-allreduce", slicing=Slicing())


def ring_cost(profile: Profile) -> tuple[float, float]:
    """Seconds a and seconds per byte b of an all-reduce round a ring: each of its rounds pays a start-up."""
    rounds = 2 * (profile.workers - 1)
    return rounds * profile.theta, rounds / profile.workers / profile.rate
