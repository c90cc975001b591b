"""Hyper-parameter search by successive halving: many short trainings, of which the better ones go on.

A stage ends with the slowest of its trainings, so what counts is when the last one is done: the stages that
Beamer orders, and a load that any policy for single jobs gets wrong.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from netsched.model import Ints, TaskKind
from netsched.units import Duration
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.dataparallel import ExchangeParams, Program, add_iterations, program_of
from netsched.workloads.device import model_name
from netsched.workloads.kind import Count, FabricView, HostNames, JobName, Kind, Weight, host_ordinals


def _listed(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


def _models(value: object) -> object:
    listed = _listed(value)
    assert isinstance(listed, list | tuple)  # noqa: S101 # as `_listed` makes it
    if not listed:
        raise ValueError("[] is not right: name a model, or a list of them")
    return [model_name(each) for each in listed]


class SearchParams(ExchangeParams):
    """One search.

    `trials` of `iterations` each make the first stage. Of each stage one in `keep_one_in` goes on, for that
    many times the iterations, until one is left or `stages` are over. A trial trains on the workers of one of
    `slots`; where there are more trials than slots, a slot takes one after the other. `model` and `batch`
    (samples per worker) are one value or a list that the trials go round.
    """

    model: Annotated[list[str], BeforeValidator(_models)]
    batch: Annotated[list[Count], BeforeValidator(_listed), Field(min_length=1)]
    trials: Annotated[int, Field(strict=True, ge=2, le=100_000)]
    keep_one_in: Annotated[int, Field(strict=True, ge=2, le=1000)] = 2
    iterations: Count
    stages: Count | None = None
    slots: Annotated[list[HostNames], Field(min_length=1)]
    start: Duration = 0.0
    weight: Weight = 1.0
    name: JobName = "search"

    @model_validator(mode="after")
    def _slots_can_train(self) -> SearchParams:
        if self.alone and min(map(len, self.slots)) < 2:
            raise ValueError("slots: one worker has nobody to exchange with: list 2 or more hosts in each")
        taken = [name for slot in self.slots for name in slot]
        twice = [name for name in taken if taken.count(name) > 1]
        if twice:
            raise ValueError(f"slots: host {twice[0]!r} is listed twice: a host computes for one slot only")
        return self

    def rungs(self) -> list[tuple[int, int]]:
        """(trials, iterations) of each stage."""
        rungs: list[tuple[int, int]] = []
        count, budget = self.trials, self.iterations
        while count and (self.stages is None or len(rungs) < self.stages):
            rungs.append((count, budget))
            if count == 1:
                break
            count, budget = count // self.keep_one_in, budget * self.keep_one_in
        return rungs


def build(
    params: SearchParams, fabric: FabricView, builder: WorkloadBuilder, rng: np.random.Generator
) -> None:
    """Add a job for each trial and stage, and a stage that the coflows of all its trials belong to.

    Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization" (AISTATS
    2016), algorithm 1; Li et al., "Hyperband" (JMLR 2018), with its budgets. Who survives is drawn by `rng`,
    for no loss is computed here. All jobs arrive at `start`, and those of a later stage begin when all
    trainings of the stage before have ended, as Beamer has it (He et al., TNSM 2022): their job completion
    times count from `start`, so a search's figure is its stages' completion time.
    """
    slots = [host_ordinals(fabric, slot, f"slots.{number}") for number, slot in enumerate(params.slots)]
    programs: dict[tuple[str, int, int], Program] = {}
    survivors = np.arange(params.trials)
    ends: Ints | None = None
    for rung, (count, budget) in enumerate(params.rungs()):
        survivors = np.sort(rng.permutation(survivors)[:count])
        over: list[Ints] = []
        free: list[Ints | None] = []
        for place, trial in enumerate(survivors.tolist()):
            slot = place % len(slots)
            key = params.model[trial % len(params.model)], params.batch[trial % len(params.batch)], slot
            if key not in programs:
                hosts, reshape = slots[slot], builder.reshape
                programs[key] = program_of(params, fabric, key[0], key[1], hosts, reshape)
            builder.admit(budget * programs[key].nodes)
            label = f"{params.name} stage {rung} trial {trial}"
            job = builder.add_job(
                label, params.start, params.weight, budget, startup=programs[key].startup(params)
            )
            if place == 0:
                stage = builder.add_stage(job, f"stage {rung}", rung)
                opened = None if ends is None else _joined(builder, job, 0, ends, f"stage {rung} begins")
                free = [opened] * len(slots)
            done = add_iterations(builder, programs[key], job, [stage] * budget, free[slot])
            free[slot] = _joined(builder, job, budget - 1, done, f"trial {trial} ends")
            over.append(done)
        ends = np.concatenate(over)


def _joined(builder: WorkloadBuilder, job: int, iteration: int, ends: Ints, label: str) -> Ints:
    """A node that all of `ends` lead to: what comes next has one edge to it and not thousands. (1,)"""
    barrier = builder.add_tasks(job, TaskKind.BARRIER, -1, 0.0, iteration, label=label)
    builder.depend_each(barrier, ends)
    return barrier


SEARCH = Kind(SearchParams, build, "hyper-parameter search by successive halving, in stages of several jobs")
