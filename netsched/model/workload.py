"""What is to be carried: jobs, their stages, coflows and flows, the computations between, and their order."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from netsched.model.columns import Floats, Ints


class TaskKind(enum.IntEnum):
    """What a compute node of the DAG stands for. A BARRIER takes no time and joins dependencies."""

    BARRIER = 0
    FORWARD = 1
    BACKWARD = 2
    OTHER = 3


@dataclass(frozen=True)
class Jobs:
    """One row per job. `arrival` in seconds after the start of the run."""

    name: tuple[str, ...]
    arrival: Floats
    weight: Floats
    iterations: Ints


@dataclass(frozen=True)
class Stages:
    """One row per stage: the coflows of a job that belong together (for training: one iteration's).

    A stage may have coflows of several jobs (those of a step of a hyper-parameter search, which end it
    together); `job` is then the first of them.
    """

    job: Ints
    iteration: Ints
    label: tuple[str, ...]


@dataclass(frozen=True)
class Coflows:
    """One row per coflow. `deadline` in seconds after its first flow's release, inf for none.

    `burst` is the tensor whose gradient completes the burst with which the coflow's bytes come, -1 where no
    shape speaks of bursts; `lull` the seconds from then to the next burst of its stage, inf after the last.
    """

    job: Ints
    stage: Ints
    iteration: Ints
    label: tuple[str, ...]
    weight: Floats
    deadline: Floats
    burst: Ints
    lull: Floats


@dataclass(frozen=True)
class Flows:
    """One row per flow.

    `src` and `dst` are host ordinals (positions in `Fabric.hosts`), `size` in bytes, `need` the
    consumption order of the tensor inside its job (0 is needed first) out of `need_span` values.
    """

    coflow: Ints
    src: Ints
    dst: Ints
    size: Floats
    need: Ints
    need_span: Ints


@dataclass(frozen=True)
class Tasks:
    """One row per compute node of the DAG. `host` is a host ordinal (-1: nowhere), `seconds` its length."""

    job: Ints
    iteration: Ints
    host: Ints
    seconds: Floats
    kind: Ints
    label: tuple[str, ...]


@dataclass(frozen=True)
class Dag:
    """Who waits for whom. Nodes 0..F-1 are the flows, F..F+T-1 the tasks.

    A node with no dependency starts at its job's arrival, any other when its last dependency ends.
    `successors[indptr[n]:indptr[n+1]]` are the nodes that wait for node n. Acyclic (checked by the builder).
    """

    n_deps: Ints
    indptr: Ints
    successors: Ints


@dataclass(frozen=True)
class Workload:
    """All jobs of a scenario, fully unrolled.

    `hairpin` says what a flow from a host to itself is: traffic over the host's own up and down
    port (True, the coflow trace's model) or nothing at all for the network (False, loopback).
    """

    jobs: Jobs
    stages: Stages
    coflows: Coflows
    flows: Flows
    tasks: Tasks
    dag: Dag
    hairpin: bool = False

    @property
    def n_flows(self) -> int:
        return len(self.flows.size)

    @property
    def n_tasks(self) -> int:
        return len(self.tasks.seconds)
