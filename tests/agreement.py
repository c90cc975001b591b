"""One scenario on both engines, for the tests that hold the emulator to the simulator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from netsched import runner, scenario
from netsched.model import Standing

TRIES = 4
MOST_APART = 0.10
"""Most that the mean stage completion time may differ, of the simulator's."""

SWITCH = {"kind": "single_switch", "hosts": 4, "rate": "2Gbit/s"}
DEVICE = {"flops": "15.7TFLOP/s", "efficiency": 0.4}
COMMON = {"queues": 8, "control": {"delay": "5ms"}, "emulation": {"scale": 0.01}}


def training(name: str, model: str, workers: list[str], start: str, **more: Any) -> dict[str, Any]:
    """Slices take 67 ms of a port. With 17 ms the simulator itself gives 1.16 to 1.29 s, by the delay."""
    return {
        "kind": "training",
        "name": name,
        "model": model,
        "workers": workers,
        "servers": ["h3"],
        "iterations": 1,
        "batch": 32,
        "slice": "16MiB",
        "start": start,
        "device": DEVICE,
    } | more


class Silent:
    """Nobody watches."""

    def begin(self, engine: str, policy: str, position: int, total: int) -> None: ...
    def progress(self, standing: Standing) -> None: ...
    def end(self, outcome: object) -> None: ...
    def fail(self, error: Exception) -> None:
        raise error


def runs(described: Mapping[str, Any], engine: str, policy: str, folder: Path) -> dict[str, Any]:
    """The entry of summary.json of one policy on one engine."""
    folder.mkdir(parents=True)
    path = folder / "scenario.yaml"
    # JSON, which is YAML: it writes a value out that stands in several places, instead of referring to it.
    path.write_text(json.dumps({**COMMON, **described}))
    chosen = runner.with_policies(scenario.load(path), [policy])
    ended = runner.run(chosen, [engine], folder / "out", Silent(), figures=False)
    (entry,) = ended.result.summary["runs"]
    return dict(entry)


def emulated(described: Mapping[str, Any], policy: str, folder: Path) -> dict[str, Any]:
    """The same on Mininet, repeated while the run calls itself INVALID."""
    reasons = []
    for attempt in range(TRIES):
        entry = runs(described, "mininet", policy, folder / f"try{attempt}")
        if entry["fidelity"]["valid"]:
            return entry
        reasons.append(" and ".join(entry["fidelity"]["reasons"]))
    pytest.fail(
        f"{policy}: this machine was too busy {TRIES} times to measure anything: {'; '.join(reasons)}"
    )


def mean_stage_s(entry: Mapping[str, Any]) -> float:
    metric = entry["metrics"]["stage_completion_time"]
    assert metric["unfinished"] == 0
    return float(metric["mean"])
