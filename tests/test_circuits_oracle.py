"""Circuits that come and go under random workloads: the simulator against the plain one in oracle.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lit_oracle import FABRIC, TABLES, Lit, random_script
from sim_cases import PER_FLOW, PER_PAIR, random_workload, run

from netsched.model import Control


@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])
@pytest.mark.parametrize("without_circuit", ["eps", "wait"])
@pytest.mark.parametrize("policy", TABLES, ids=lambda policy: policy.name)
def test_agrees_with_the_oracle_while_circuits_come_and_go(policy, without_circuit, transport):
    moved = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        workload = random_workload(rng, 8)
        script = random_script(rng, without_circuit)
        if seed % 2:  # some coflow goes first on the circuits of most pairs
            first = rng.integers(-1, len(workload.coflows.job), (4, 4))
            script = replace(script, first=tuple(map(tuple, first.tolist())))
        control = Control()
        horizon = 60.0
        outcome = run(
            workload, FABRIC, policy, transport=transport, control=control, horizon=horizon, circuits=script
        )
        right = Lit(workload, FABRIC, policy, None, transport, control, horizon, rng, script=script).run()
        for mine, wanted in (
            (outcome.flow_finish, right.column(right.finish)),
            (outcome.task_finish, right.column(right.finish, tasks=True)),
        ):
            np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-12)
        moved += outcome.mechanisms["circuit_bytes"] > 0
    assert moved >= 5
