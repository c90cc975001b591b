"""EchelonFlow: pipelines that are fed in time, and coflows as a special case."""

from __future__ import annotations

import numpy as np
import pytest
from result_cases import star
from sim_cases import Case, run

from netsched.model import TaskKind, Workload
from netsched.policies.echelonflow import EchelonFlow
from netsched.policies.sebf import Sebf


def pipeline(case: Case, host: int, pieces: int, size: float, seconds: float) -> None:
    """Pieces from host 0 to `host`, all of one stage; each is computed with for so long, one by one."""
    job = case.job()
    stage = case.builder.add_stage(job, "s")
    before = None
    for i in range(pieces):
        flow = case.builder.add_flow(case.builder.add_coflow(job, stage, f"piece {i}"), 0, host, size)
        task = case.builder.add_task(job, TaskKind.OTHER, host, seconds)
        case.builder.depend(task, flow, *([] if before is None else [before]))
        before = task


def test_a_pipeline_is_fed_piece_by_piece():
    # Three pieces of 1 B at 1 B/s that take 1 s each to compute with. One after the other they arrive at 1, 2
    # and 3 s and all is computed at 4 s; as one coflow they all arrive at 3 s, and it takes until 6 s.
    case = Case(2)
    pipeline(case, 1, 3, 1.0, 1.0)
    outcome = run(case.build(), star(2, 1.0), EchelonFlow())
    assert outcome.flow_finish.tolist() == pytest.approx([1.0, 2.0, 3.0])
    assert outcome.task_finish.max() == pytest.approx(4.0)


@pytest.mark.parametrize("queues", [None, 8])
def test_who_needs_its_bytes_later_lets_others_go_first(queues):
    # Two pieces of 2 B to host 1, due at 0 and 10 s, and a coflow of 3 B of the same port, that comes at
    # 2 s, due at once. The second piece has 8 s left, which count beside its 2 B: the coflow's 3 B go first.
    case = Case(3)
    pipeline(case, 1, 2, 2.0, 10.0)
    case.coflow((0, 2, 3.0), at=2.0)
    outcome = run(case.build(), star(3, 1.0), EchelonFlow(), queues=queues)
    assert outcome.flow_finish.tolist() == pytest.approx([2.0, 7.0, 5.0])
    # By their bytes alone the piece is first. In a class above it takes all, 4 s. With rates it reserves
    # what it needs by 10 s, 0.25 B/s, and the coflow the rest: 3 B in 4 s.
    ignoring = run(case.build(), star(3, 1.0), EchelonFlow(slack="ignore"), queues=queues)
    right = [2.0, 7.0, 6.0] if queues is None else [2.0, 4.0, 7.0]
    assert ignoring.flow_finish.tolist() == pytest.approx(right)


def coflows(seed: int) -> Workload:
    """Of one flow each: where flows of a coflow wait for each other's links, what they reserve differs."""
    rng = np.random.default_rng(seed)
    case = Case(5)
    for _ in range(8):
        src, hops = rng.integers(0, 5), rng.integers(1, 5)
        case.coflow((int(src), int((src + hops) % 5), float(rng.lognormal())), at=float(rng.exponential()))
    return case.build()


@pytest.mark.parametrize("queues", [None, 8])
def test_coflows_that_are_due_at_once_go_as_under_sebf(queues):
    for seed in range(10):
        workload, fabric = coflows(seed), star(5, 1.0)
        mine, varys = (run(workload, fabric, policy, queues=queues) for policy in (EchelonFlow(), Sebf()))
        assert mine.flow_finish.tolist() == pytest.approx(varys.flow_finish.tolist(), rel=1e-6)
