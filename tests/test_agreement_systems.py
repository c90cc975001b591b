"""Every system that needs marks, queues, gates, caps or begins, on both engines: times within a tenth.

A scenario of its own for each, of a few seconds, in which the system does what it is for: `test_agreement.py`
has the baselines. Messages last much longer than the coordinator's delay, and jobs begin at different times,
so that no order hangs on a race (docs/emulation.md).
"""

from __future__ import annotations

from typing import Any

import pytest
from agreement import DEVICE, MOST_APART, SWITCH, emulated, mean_stage_s, runs, training

pytestmark = pytest.mark.timeout(600)
"""A busy machine may need all tries."""


def two_jobs(**more: Any) -> list[dict[str, Any]]:
    """Two jobs that meet at one server, and on one host."""
    return [
        training("one", "resnet50", ["h1", "h2"], "0ms", **more),
        training("two", "alexnet", ["h1", "h4"], "100ms", **more),
    ]


def search(
    name: str, slots: list[list[str]], start: str, batch: list[int], iterations: int
) -> dict[str, Any]:
    return {
        "kind": "search",
        "name": name,
        "model": "resnet50",
        "trials": 2,
        "iterations": iterations,
        "slots": slots,
        "servers": ["h6"],
        "batch": batch,
        "fuse": "32MiB",
        "device": DEVICE,
        "start": start,
    }


PER_PAIR = {"connections": "per-pair"}
SLOW = {"flops": "0.4TFLOP/s", "efficiency": 0.4}


def senders(policy: str | dict[str, Any], model: str = "resnet50", **more: Any) -> dict[str, Any]:
    """A job with two servers, so that a sender has somewhere else to send while one is busy.

    Buckets of 16 MiB for systems that take messages as they are; for those that cut tensors by themselves
    AlexNet, few of whose tensors are small, on a slow processor: gradients come apart by more than the delay.
    """
    job = training("one", model, ["h1", "h2"], "0ms", servers=["h3", "h4"], **more)
    return {"workload": [job], "transport": PER_PAIR, "policies": [policy]}


SYSTEMS: dict[str, dict[str, Any]] = {
    # Switch queues by tensor, over connections of a class each.
    "tensorexpress": {"workload": two_jobs(), "transport": PER_PAIR},
    "geryon": {"workload": two_jobs(), "transport": PER_PAIR},
    # One sender's order: what goes, and what waits behind it.
    "mercury": senders("mercury", fuse="16MiB", batch=64, iterations=2),
    "p3": senders("p3", fuse="16MiB", batch=64, iterations=2),
    # Credit for a piece to each server: docs/emulation.md says what becomes of more.
    "bytescheduler": senders(
        {"bytescheduler": {"partition": "16MB", "credit": "32MB"}}, model="alexnet", device=SLOW
    ),
    # Periods that end before the second iteration's blocks begin, which then go by what was measured.
    "prophet": senders(
        {"prophet": {"partition": "16MB", "credit": "64MB", "monitor": "300ms"}},
        model="alexnet",
        device=SLOW,
        iterations=2,
    ),
    # Jobs and stages in order. Of two searches with as much to send each, the one that is a message ahead
    # goes first, which is a race: with twice the iterations one has more to send at all times.
    "beamer": {
        "fabric": SWITCH | {"hosts": 6},
        "workload": [
            search("even", [["h1"], ["h2"]], "0ms", [16, 32], 2),
            search("uneven", [["h4"], ["h5"]], "50ms", [8, 64], 1),
        ],
        "transport": PER_PAIR,
    },
    "jpas": {"workload": two_jobs(iterations=2), "transport": PER_PAIR},
    # A later begin: without it stages take a quarter longer in both engines.
    "cassini": {
        "fabric": SWITCH | {"hosts": 5, "rate": "5Gbit/s"},
        "workload": [
            training(name, "resnet50", workers, "0ms", servers=["h5"], fuse="32MiB", batch=192, iterations=3)
            for name, workers in (("one", ["h1", "h2"]), ("two", ["h3", "h4"]))
        ],
        "policies": ["fair"],
        "placement": ["cassini"],
        "transport": PER_PAIR,
    },
}


@pytest.mark.root
@pytest.mark.parametrize("name", SYSTEMS)
def test_stage_completion_times_differ_by_at_most_a_tenth(name, tmp_path):
    described = {"name": name, "fabric": SWITCH, "policies": [name], **SYSTEMS[name]}
    policy = "fair" if "placement" in described else name
    simulated = runs(described, "sim", policy, tmp_path / "sim")
    measured = emulated(described, policy, tmp_path / "mininet")
    # What was carried is the same workload to the byte, whatever the times are.
    assert measured["bytes"] == simulated["bytes"]
    right, found = mean_stage_s(simulated), mean_stage_s(measured)
    assert found == pytest.approx(right, rel=MOST_APART), f"emulated {found:.3f} s, simulated {right:.3f} s"
