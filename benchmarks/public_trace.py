"""Each policy on the public coflow trace, or on open arrivals where the trace is not there.

Goals, with all 706,397 flows of FB2010-1Hr-150-0.txt on 1 Gbit/s ports: 15 s per policy, 2 GiB, and 1.5 s to
start (import and cached kernels).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.measure import SPREAD, peak_mib, simulated, start_up, timed, verdict, warm_up
from netsched import fabrics, workloads
from netsched.model import Connections, Spec
from netsched.policies import POLICIES

TRACE = "FB2010-1Hr-150-0.txt"
WANTED = ("fair", "fifo", "sebf", "aalo", "sincronia")


def trace_file() -> Path | None:
    """The public trace, where $NETSCHED_DATA or a folder beside the repository has it."""
    folders = [os.environ.get("NETSCHED_DATA"), Path(__file__).parents[2] / "shared" / "data"]
    found = [Path(folder) / TRACE for folder in folders if folder]
    return next((path for path in found if path.is_file()), None)


def workload_spec(trace: Path | None) -> Spec:
    if trace is not None:
        return Spec("coflow-benchmark", {"path": str(trace)})
    sizes = {"kind": "exponential", "mean": "1MB"}
    return Spec("poisson", {"hosts": "all", "load": 0.5, "size": sizes, "flows": 5000})


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, default=trace_file(), help="a coflow-benchmark file")
    known = [name for name in WANTED if name in POLICIES]
    parser.add_argument("--policies", nargs="+", choices=sorted(POLICIES), default=known, metavar="POLICY")


def run(options: argparse.Namespace) -> None:
    start = start_up(options.repeat)
    _, fabric = fabrics.build(Spec("single_switch", {"hosts": 150, "rate": "1Gbit/s"}))
    workload = workloads.build((workload_spec(options.trace),), fabric, 1)
    what = options.trace or "poisson arrivals (no trace found)"
    print(f"{what}: {workload.n_flows} flows, 150 hosts at 1 Gbit/s")
    print(f"{'policy':<10} {SPREAD} {'x first':>7} {'events':>8}")
    reference, slowest = 0.0, 0.0
    for name in options.policies:
        warm_up(name, Connections.PER_FLOW)
        took = timed(
            lambda name=name: simulated(workload, fabric, name, Connections.PER_FLOW), options.repeat
        )
        reference, slowest = reference or took.median, max(slowest, took.median)
        events = took.result.mechanisms["events"]
        print(f"{name:<10} {took} {took.median / reference:7.2f} {events:8d}", flush=True)
    print(f"{'start-up':<10} {start}")
    print(f"peak memory {peak_mib():.0f} MiB")
    print(verdict(slowest <= 15, "at most 15 s per policy"))
    print(verdict(start.median <= 1.5, "at most 1.5 s to start"))
    print(verdict(peak_mib() <= 2048, "at most 2048 MiB"))
