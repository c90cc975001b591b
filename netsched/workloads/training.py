"""Data-parallel training: one job of equal iterations, by servers, by all-reduce or fully sharded."""

from __future__ import annotations

import numpy as np
from pydantic import model_validator

from netsched.units import Duration
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.dataparallel import ExchangeParams, add_iterations, program_of
from netsched.workloads.device import ModelName
from netsched.workloads.kind import Count, FabricView, HostNames, JobName, Kind, Weight, host_ordinals


class TrainingParams(ExchangeParams):
    """One job. `batch`: samples per worker and iteration. `start`: when the first forward pass begins."""

    model: ModelName
    workers: HostNames
    iterations: Count
    batch: Count
    start: Duration = 0.0
    weight: Weight = 1.0
    name: JobName | None = None

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
    builder.admit(params.iterations * program.nodes)
    job = builder.add_job(
        params.name or params.model,
        params.start,
        params.weight,
        params.iterations,
        startup=program.startup(params),
    )
    stages = [builder.add_stage(job, f"iteration {number}", number) for number in range(params.iterations)]
    add_iterations(builder, program, job, stages)


TRAINING = Kind(TrainingParams, build, "data-parallel training: parameter servers, all-reduce, or sharded")
