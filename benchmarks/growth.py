"""How the time grows with the flows (one switch, 150 hosts) and with the hosts (fat-trees), at equal load.

Poisson arrivals, exponential sizes of 1 MB on average, 1 Gbit/s ports at half load, per-flow fair sharing.
With the hosts the flows grow too, `--flows-per-host` each, because a fabric is only as loaded as its flows
are many. "x2" is the growth of the simulation per doubling of the flows (or hosts): a step's ratio to the
power 1 / log2 of the step. Goal: at most 2.3. Seconds are those of the processor, so that other work on the
machine counts less.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator

from benchmarks.measure import TooLong, peak_mib, simulated, timed, verdict, warm_up
from netsched import fabrics, workloads
from netsched.fabric import Fabric
from netsched.model import Connections, Outcome, Spec

GOAL = 2.3
LOAD = 0.5


def options(parser: argparse.ArgumentParser) -> None:
    steps = [10**3, 10**4, 10**5, 10**6]
    parser.add_argument("--flows", type=int, nargs="*", default=steps, help="numbers of flows on one switch")
    parser.add_argument("--k", type=int, nargs="*", default=[4, 8, 16, 32, 64], help="fat-trees: k^3/4 hosts")
    parser.add_argument("--flows-per-host", type=int, default=10)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds, after which a curve ends")


def run(options: argparse.Namespace) -> None:
    warm_up("fair", Connections.PER_FLOW)
    heading = f"{'hosts':>7} {'flows':>8} {'fabric [s]':>10} {'workload [s]':>12} {'simulate [s]':>12}"
    print(f"{heading} {'us/flow':>8} {'x2':>6} {'peak [MiB]':>10}")
    switch = Spec("single_switch", {"hosts": 150, "rate": "1Gbit/s"})
    worst = [
        max(
            _rows([(switch, flows, flows) for flows in options.flows], options.repeat, options.limit),
            default=0.0,
        )
    ]
    trees = []
    for k in options.k:
        hosts = k**3 // 4
        spec = Spec("fat_tree", {"k": k, "rate": "1Gbit/s"})
        trees.append((spec, hosts * options.flows_per_host, hosts))
    worst.append(max(_rows(trees, options.repeat, options.limit), default=0.0))
    for what, most in zip(("flows", "hosts"), worst, strict=True):
        print(verdict(most <= GOAL, f"doubling the {what} costs at most {GOAL} times; most is {most:.2f}"))


def _rows(steps: list[tuple[Spec, int, int]], repeat: int, limit: float) -> Iterator[float]:
    """Print a line per (fabric, flows, what is doubled); yield the growth per doubling between lines.

    A run that takes longer than `limit` ends the curve, with a growth of inf.
    """
    before: tuple[float, int] | None = None
    for spec, flows, scale in steps:
        started = time.process_time()
        _, fabric = fabrics.build(spec)
        built = time.process_time()
        try:
            simulate_s, workload_s = _measure(fabric, flows, repeat, limit)
        except TooLong as stopped:
            print(f"{len(fabric.hosts):7d} {flows:8d} {stopped}", flush=True)
            yield math.inf
            return
        growth = math.nan
        if before is not None:
            growth = (simulate_s / before[0]) ** (1 / math.log2(scale / before[1]))
            yield growth
        before = simulate_s, scale
        print(
            f"{len(fabric.hosts):7d} {flows:8d} {built - started:10.2f} {workload_s:12.2f} "
            f"{simulate_s:12.3f} {simulate_s / flows * 1e6:8.2f} {growth:6.2f} {peak_mib():10.0f}",
            flush=True,
        )


def _measure(fabric: Fabric, flows: int, repeat: int, limit: float) -> tuple[float, float]:
    """Median seconds of simulating `flows` flows over the fabric, and seconds of making them."""
    sizes = {"kind": "exponential", "mean": "1MB"}
    spec = Spec("poisson", {"hosts": "all", "load": LOAD, "size": sizes, "flows": flows})
    built = timed(lambda: workloads.build((spec,), fabric, 1), 1, time.process_time)

    def work() -> Outcome:
        return simulated(built.result, fabric, "fair", Connections.PER_FLOW, limit)

    took = timed(work, repeat, time.process_time)
    return took.median, built.median
