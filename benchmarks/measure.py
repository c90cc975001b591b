"""What all benchmarks share: repeat and take the median, name the machine, read the peak memory."""

from __future__ import annotations

import argparse
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numba
import numpy as np

from netsched import fabrics, policies, workloads
from netsched.fabric import Fabric
from netsched.model import Connections, Control, Outcome, Spec, Standing, Transport, Workload
from netsched.simulate import simulate

Result = TypeVar("Result")


class Subject(Protocol):
    """A module that measures one thing: its docstring's first line says what, `--help` shows all of it."""

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None: ...
    @staticmethod
    def run(options: argparse.Namespace) -> None: ...


@dataclass(frozen=True)
class Timed(Generic[Result]):
    """Seconds of all repetitions, and what the last one returned."""

    seconds: tuple[float, ...]
    result: Result

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        return f"{self.median:10.3f} {min(self.seconds):9.3f} {max(self.seconds):9.3f}"


SPREAD = f"{'median [s]':>10} {'min [s]':>9} {'max [s]':>9}"
"""The heading of a `Timed` as text."""


def timed(
    work: Callable[[], Result], repeat: int, clock: Callable[[], float] = time.perf_counter
) -> Timed[Result]:
    """Do `work` `repeat` times, by the clock on the wall or another one."""
    seconds = []
    for _ in range(repeat):
        started = clock()
        result = work()
        seconds.append(clock() - started)
    return Timed(tuple(seconds), result)


class TooLong(Exception):  # noqa: N818 - it is an answer, not an error
    """A run was given up after as many seconds as its benchmark allows."""


def simulated(
    workload: Workload, fabric: Fabric, policy: str, connections: Connections, limit: float = math.inf
) -> Outcome:
    """One run to the end: as many classes as the policy wants, control that costs nothing.

    TooLong if it is still running after `limit` seconds (looked at when the simulator reports progress).
    """
    started = time.perf_counter()

    def watch(at: Standing) -> None:
        if time.perf_counter() - started > limit:
            raise TooLong(
                f"given up after {limit:.0f} s, at {at.now:.3g} s with {at.finished} of {at.flows} flows done"
            )

    return simulate(
        workload,
        fabric,
        policies.make(Spec(policy)),
        queues=None,
        transport=Transport(connections),
        control=Control(),
        progress=watch,
    )


def warm_up(policy: str, connections: Connections) -> None:
    """Simulate a little, so that what is timed next neither compiles nor loads a kernel."""
    _, fabric = fabrics.build(Spec("single_switch", {"hosts": 4, "rate": "1Gbit/s"}))
    sizes = {"kind": "exponential", "mean": "1MB"}
    spec = Spec("poisson", {"hosts": "all", "load": 2, "size": sizes, "flows": 100})
    simulated(workloads.build((spec,), fabric, 1), fabric, policy, connections)


def start_up(repeat: int) -> Timed[object]:
    """A fresh interpreter that imports the simulator and ends a run of one flow: what every run pays."""
    command = [sys.executable, "-m", "benchmarks.one_flow"]
    return timed(lambda: subprocess.run(command, check=True, cwd=Path(__file__).parents[1]), repeat)


def peak_mib() -> float:
    """The most memory that this process has had resident so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def machine() -> str:
    """The processor and the versions that times depend on."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.machine()}, {os.cpu_count()} processors; "
        f"Python {platform.python_version()}, numpy {np.__version__}, numba {numba.__version__}"
    )


def verdict(kept: bool, goal: str) -> str:
    """How a figure stands to its goal."""
    return f"goal {'met' if kept else 'MISSED'}: {goal}"
