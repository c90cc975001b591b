"""The checker of `reshape`: what each policy that has one must keep, ours and yours; part of `check_policy`.

Two engines unroll a job from the shape that they are each given: they carry the same messages only if equal
questions have equal answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

import numpy as np

from netsched.errors import PolicyError, ScenarioError
from netsched.model import Policy
from netsched.shape import (
    SERVERS,
    Profile,
    Reshape,
    Shape,
    Slicing,
    Sync,
    check_mixture,
    check_shape,
    reshape_of,
)

_SYNCS: Final[tuple[Sync, ...]] = (SERVERS, "ring-allreduce", "reduce-scatter-all-gather", "fsdp")
_TENSORS: Final = (1, 2, 40)


def check_reshape(policy: Policy, rng: np.random.Generator) -> None:
    """Hold `policy.reshape`, if it has one, to its contract on random jobs.

    Equal jobs get equal shapes; what it is told is left as it was; the shape can be carried, or the job is
    refused with a ScenarioError. Raises PolicyError, which names what is broken.
    """
    reshape = reshape_of(policy)
    if reshape is None:
        return
    for profile, shape in _jobs(rng):
        told = [*_values(profile), *_values(shape)]
        made = _answer(reshape, profile, shape)
        again = _answer(reshape, profile, shape)
        what = f"policy {policy.name}: reshape of {len(profile.size)} tensors, sync {shape.sync},"
        if [*_values(profile), *_values(shape)] != told:
            raise PolicyError(f"{what} changed what it was told; copy before writing")
        if (made is None) != (again is None) or (made and again and _values(made) != _values(again)):
            raise PolicyError(f"{what} gave two shapes; a shape may depend on nothing but what it is told")
        if made is not None:
            try:
                (check_mixture if profile.experts else check_shape)(profile, shape, made)
            except ScenarioError as error:
                raise PolicyError(f"{what} gave a shape that nobody can carry: {error}") from None


def _jobs(rng: np.random.Generator) -> Iterator[tuple[Profile, Shape]]:
    """Random jobs of every kind, and a mixture of experts."""
    for tensors in _TENSORS:
        size, forward = rng.lognormal(14.0, 2.0, tensors), rng.lognormal(-6.0, 1.0, tensors)
        for sync in _SYNCS:
            servers = 3 if sync == SERVERS else 0
            for theta in (0.0, 1e-4):
                first = np.arange(tensors) if servers else np.zeros(1, np.int64)
                profile = Profile("sample", size, forward, 2 * forward, 4, servers, 1.25e9, theta)
                yield profile, Shape(first, Slicing(), sync=sync)
        mixture = Profile("mixture", size, forward, 2 * forward, 4, 0, 1.25e9, 0.0, experts=4)
        yield mixture, Shape(np.arange(tensors), sync="ring-allreduce")


def _answer(reshape: Reshape, profile: Profile, shape: Shape) -> Shape | None:
    """The shape, None for a job that is refused."""
    try:
        return reshape(profile, shape)
    except ScenarioError:
        return None


def _values(noun: Profile | Shape) -> list[Any]:
    """The fields, with arrays as what can be compared."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.tolist()
        return [plain(each) for each in value] if isinstance(value, tuple) else value

    return [plain(getattr(noun, each.name)) for each in fields(noun)]
