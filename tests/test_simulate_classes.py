"""The simulator against the slow oracle where flows of many classes are active and move between them."""

from __future__ import annotations

import numpy as np
import pytest
from class_cases import Drawn, drawn
from sim_cases import by_hand, run
from test_simulate_oracle import agree

from netsched import running
from netsched.model import Outcome

SEEDS = range(60, 84)
"""Of these 67 and 78 end otherwise where a flow of which rounding leaves 1e-17 B is decided about."""


def simulated(case: Drawn) -> Outcome:
    asked = {"queues": case.queues, "transport": case.transport, "control": case.control}
    return run(case.workload, case.fabric, case.policy, **asked)


@pytest.mark.parametrize("seed", SEEDS)
def test_agrees_with_the_oracle(seed: int) -> None:
    case = drawn(seed)
    asked = {"queues": case.queues, "transport": case.transport, "control": case.control}
    agree(case.workload, simulated(case), by_hand(case.workload, case.fabric, case.policy, **asked))


def test_many_classes_are_used_and_rates_repaired() -> None:
    """Else the test above says little: some six classes, a hundred flows, and rates that build on rates."""
    ran = [(case, simulated(case)) for case in map(drawn, SEEDS)]
    classes = [len(np.unique(outcome.flow_class)) for _, outcome in ran]
    assert np.mean(classes) > 6 and max(classes) == 8
    assert np.mean([case.workload.n_flows for case, _ in ran]) > 100
    repairs, rates = (
        sum(outcome.mechanisms[name] for _, outcome in ran) for name in ("repairs", "allocations")
    )
    assert repairs > 0.4 * rates


def test_rates_are_those_computed_anew_where_the_oracle_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    # All repaired that can be. 38 never ended when a bundle was parked twice in one repair.
    cases = [drawn(seed, big=True) for seed in range(36, 44)]
    monkeypatch.setattr(running, "_REPAIRED", 1.0)
    repaired = list(map(simulated, cases))
    monkeypatch.setattr(running, "_REPAIRED", 0.0)
    whole = list(map(simulated, cases))
    for one, other in zip(repaired, whole, strict=True):
        np.testing.assert_allclose(one.flow_finish, other.flow_finish, rtol=1e-9)
        np.testing.assert_allclose(one.link_bytes, other.link_bytes, rtol=1e-9)
    fewer, all_of_them = (sum(each.mechanisms["refills"] for each in ran) for ran in (repaired, whole))
    assert fewer < 0.97 * all_of_them
