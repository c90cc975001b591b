"""Simulator and emulator on the same scenarios: times within a tenth, the policies in the same order.

Nothing in the two scenarios hangs on a race: jobs and coflows arrive at different times, by more than any
scheduling jitter, so that which one goes first is decided by the policy and not by the machine.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from agreement import MOST_APART, SWITCH, emulated, mean_stage_s, runs, training

CLEAR = 0.08
"""Where the simulator has a larger gap between two policies, the emulator must order them alike."""


pytestmark = pytest.mark.timeout(600)
"""A busy machine may need all tries for each of the policies, which one fixture runs."""


SCENARIOS: dict[str, dict[str, Any]] = {
    "training, per pair": {
        "name": "two-jobs",
        "fabric": SWITCH,
        "workload": [
            training("one", "resnet50", ["h1", "h2"], "0ms"),
            training("two", "alexnet", ["h1", "h4"], "100ms"),
        ],
        "policies": ["fair", "fifo", "sebf", "tensorexpress"],
        "transport": {"connections": "per-pair"},
    },
    "coflows, per flow": {
        "name": "coflows",
        "fabric": SWITCH,
        "workload": [
            {"kind": "shuffle", "name": "large", "size": "50MB"},
            {
                "kind": "incast",
                "name": "small",
                "senders": ["h2", "h3"],
                "receiver": "h1",
                "size": "12.5MB",
                "at": "150ms",
            },
        ],
        "policies": ["fair", "fifo", "sebf"],
        "transport": {"connections": "per-flow"},
    },
}


@pytest.fixture(scope="module", params=SCENARIOS)
def both(request, tmp_path_factory) -> dict[str, tuple[float, float]]:
    """Mean stage completion time in seconds by policy: simulated, emulated."""
    described, folder = SCENARIOS[request.param], tmp_path_factory.mktemp("agreement")
    found = {}
    for policy in described["policies"]:
        simulated = runs(described, "sim", policy, folder / policy / "sim")
        measured = emulated(described, policy, folder / policy)
        # What was carried is the same workload to the byte, whatever the times are.
        assert measured["bytes"] == simulated["bytes"]
        found[policy] = mean_stage_s(simulated), mean_stage_s(measured)
    return found


@pytest.mark.root
def test_stage_completion_times_differ_by_at_most_a_tenth(both):
    apart = {policy: measured / simulated - 1 for policy, (simulated, measured) in both.items()}
    far = {policy: f"{share:+.1%}" for policy, share in apart.items() if abs(share) > MOST_APART}
    assert not far, f"emulated over simulated mean stage completion time: {far}; s: {both}"


@pytest.mark.root
def test_policies_are_in_the_same_order(both):
    clear = 0
    for one, two in combinations(both, 2):
        (sim_one, real_one), (sim_two, real_two) = both[one], both[two]
        if abs(sim_one - sim_two) > CLEAR * min(sim_one, sim_two):
            clear += 1
            assert (sim_one < sim_two) == (real_one < real_two), (one, two, both)
    assert clear, f"no two policies differ enough to tell their order: {both}"
