"""How long the simulator takes per policy, on the public trace if it is there, else on open arrivals.

python -m benchmarks [--repeat N] [--trace FILE]
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import sys
import time
from pathlib import Path

import numba
import numpy as np

from netsched import fabrics, policies, workloads
from netsched.errors import NetschedError
from netsched.model import Control, Spec, Transport
from netsched.simulate import simulate

TRACE = "FB2010-1Hr-150-0.txt"
POLICIES = ("fair", "fifo", "sebf")


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="runs per policy; the median is printed")
    parser.add_argument("--trace", type=Path, default=trace_file(), help="a coflow-benchmark file")
    options = parser.parse_args()
    _, fabric = fabrics.build(Spec("single_switch", {"hosts": 150, "rate": "1Gbit/s"}))
    workload = workloads.build((workload_spec(options.trace),), fabric, 1)
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"numpy {np.__version__}, numba {numba.__version__}"
    )
    what = options.trace or "poisson arrivals (no trace found)"
    print(f"{what}: {workload.n_flows} flows, 150 hosts at 1 Gbit/s")
    print(f"{'policy':<8} {'median [s]':>10} {'min [s]':>8} {'max [s]':>8} {'x fair':>7} {'events':>8}")
    reference = 0.0
    for name in POLICIES:
        times = []
        for _ in range(options.repeat):
            started = time.perf_counter()
            outcome = simulate(
                workload,
                fabric,
                policies.make(Spec(name)),
                queues=None,
                transport=Transport(),
                control=Control(),
            )
            times.append(time.perf_counter() - started)
        median = statistics.median(times)
        reference = reference or median
        spread = f"{median:10.2f} {min(times):8.2f} {max(times):8.2f} {median / reference:7.2f}"
        print(f"{name:<8} {spread} {outcome.mechanisms['events']:8d}", flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NetschedError as error:
        sys.exit(f"benchmarks: {error}")
