"""Liquid's search for the layout of a batch of jobs: layouts that mutate and exchange hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from netsched.model import Ints
from netsched.placement.costs import NOWHERE, Layout, Task

_GAIN: Final = 1e-6
"""What a generation has to gain to count as better, as in the released code."""


@dataclass(frozen=True)
class Genetic:
    """`population` layouts, of which `fitted` begin as the best fit; at most `most` generations.

    It ends after `patience` generations without a gain. The released code has 30 + tasks / 2, a tenth and
    30 + tasks, and ends after 30 s; a number of generations does not depend on the machine.
    """

    population: int
    fitted: int
    patience: int
    most: int = 500

    @classmethod
    def of(cls, tasks: int) -> Genetic:
        population = 30 + tasks // 2
        return cls(population, max(1, population // 10), 30 + tasks)


def evolve(
    layout: Layout, tasks: list[Task], params: Genetic, rng: np.random.Generator
) -> dict[int, Ints] | None:
    """The host of each place of each job in the cheapest layout found, None if there is no room for all.

    INFERRED, how parents are chosen: each child is the better of two drawn at random, crossed with another
    such, then mutated; the best layout always stays.
    """
    empty = np.full(len(tasks), NOWHERE)
    first = layout.fill(tasks, empty, None)
    if first is None:
        return None
    drawn = [layout.fill(tasks, empty, rng) for _ in range(params.population - params.fitted)]
    people = [first] * params.fitted + [each for each in drawn if each is not None]
    costs = [layout.total(tasks, each) for each in people]
    best, since = min(costs), 0
    for _ in range(params.most):
        elite = people[int(np.argmin(costs))]
        children = [elite]
        while len(children) < params.population:
            child = _crossed(layout, tasks, _chosen(people, costs, rng), _chosen(people, costs, rng), rng)
            children.append(_mutated(layout, tasks, child, rng))
        people, costs = children, [layout.total(tasks, each) for each in children]
        since = 0 if min(costs) < best - _GAIN else since + 1
        best = min(best, *costs)
        if since >= params.patience:
            break
    return layout.by_job(tasks, people[int(np.argmin(costs))])


def _chosen(people: list[Ints], costs: list[float], rng: np.random.Generator) -> Ints:
    a, b = rng.integers(len(people), size=2).tolist()
    winner: Ints = people[a if costs[a] <= costs[b] else b]
    return winner


def _crossed(layout: Layout, tasks: list[Task], one: Ints, mate: Ints, rng: np.random.Generator) -> Ints:
    """`one` with the tasks that `mate` has on one of its hosts there and no others, which find new places."""
    host = int(rng.choice(mate))
    child = one.copy()
    child[child == host] = NOWHERE
    child[mate == host] = host
    filled = layout.fill(tasks, child, rng)
    return one if filled is None else filled


def _mutated(layout: Layout, tasks: list[Task], one: Ints, rng: np.random.Generator) -> Ints:
    """`one` with a host emptied, whose tasks are placed anew by best fit."""
    child = one.copy()
    child[child == int(rng.choice(one))] = NOWHERE
    filled = layout.fill(tasks, child, None)
    return one if filled is None else filled
