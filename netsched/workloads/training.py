"""Data-parallel training: one job of equal iterations, by servers, by all-reduce or fully sharded."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from netsched.model import Ints
from netsched.units import Duration, Size
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.dataparallel import ExchangeParams, add_iterations, program_of
from netsched.workloads.device import ModelName
from netsched.workloads.kind import Count, FabricView, HostNames, JobName, Kind, Weight, host_ordinals


class TrainingParams(ExchangeParams):
    """One job. `batch`: samples per worker and iteration. `start`: when the job arrives.

    `data`: bytes that each worker loads from one of the hosts of `storage`, in turn, before the first forward
    pass begins.
    """

    model: ModelName
    workers: HostNames
    iterations: Count
    batch: Count
    start: Duration = 0.0
    weight: Weight = 1.0
    name: JobName | None = None
    data: Annotated[Size, Field(gt=0)] | None = None
    storage: HostNames | None = None

    @model_validator(mode="after")
    def _data_come_from_somewhere(self) -> TrainingParams:
        if (self.data is None) != (self.storage is None):
            given, missing = ("data", "storage") if self.storage is None else ("storage", "data")
            raise ValueError(f"{missing} is missing: {given} needs it, such as data: 10GB, storage: [h1]")
        return self

    @model_validator(mode="after")
    def _has_somebody_to_exchange_with(self) -> TrainingParams:
        if self.alone and len(self.workers) < 2:
            raise ValueError("workers: one worker has nobody to exchange with: list 2 or more hosts")
        return self


def build(
    params: TrainingParams, fabric: FabricView, builder: WorkloadBuilder, rng: np.random.Generator
) -> None:
    """Add one job with one stage per iteration."""
    workers = host_ordinals(fabric, params.workers, "workers")
    program = program_of(params, fabric, params.model, params.batch, workers, builder.reshape)
    builder.admit(params.iterations * program.nodes + (len(workers) if params.data else 0))
    job = builder.add_job(
        params.name or params.model,
        params.start,
        params.weight,
        params.iterations,
        startup=program.startup(params),
    )
    stages = [builder.add_stage(job, f"iteration {number}", number) for number in range(params.iterations)]
    add_iterations(builder, program, job, stages, _load(params, fabric, builder, job, workers))


def _load(
    params: TrainingParams, fabric: FabricView, builder: WorkloadBuilder, job: int, workers: Ints
) -> Ints | None:
    """Add the transfers of the workers' data, a stage of their own, and return them; None without data."""
    if params.data is None or params.storage is None:
        return None
    storage = host_ordinals(fabric, params.storage, "storage")
    coflow = builder.add_coflow(job, builder.add_stage(job, "load data"), "data")
    src = storage[np.arange(len(workers)) % len(storage)]
    return builder.add_flows(coflow, src, workers, params.data)


TRAINING = Kind(TrainingParams, build, "data-parallel training: parameter servers, all-reduce, or sharded")
