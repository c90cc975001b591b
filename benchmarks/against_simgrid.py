"""SimGrid and this simulator on the same flows in the same run: finish times compared, ratio of the times.

150 hosts on one switch, one flow of 1 to 64 MiB between two random hosts every 0.1 ms: they come about 16
times faster than the ports can carry them, so that nearly all are active at once. Goal: 20 times faster.
SimGrid's time is that of its own run alone, without its start-up and the building of its platform; ours is
all of `simulate`, from the workload to the finish times.
"""

from __future__ import annotations

import argparse
import subprocess

import numpy as np

from benchmarks import peer
from benchmarks.measure import SPREAD, simulated, timed, verdict, warm_up
from netsched import fabrics
from netsched.errors import CapabilityError
from netsched.model import Connections, Spec, Workload
from netsched.workloads.builder import WorkloadBuilder

GAP = 1e-4
MIB = 2**20


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flows", type=int, default=20_000)
    parser.add_argument("--hosts", type=int, default=150)
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds given to SimGrid")


def steady_arrivals(hosts: int, flows: int, rng: np.random.Generator) -> Workload:
    """A job of one flow every `GAP` seconds, between two different hosts."""
    builder = WorkloadBuilder(hosts)
    coflows = []
    for number in range(flows):
        job = builder.add_job(f"job {number}", arrival=number * GAP)
        coflows.append(builder.add_coflow(job, builder.add_stage(job, "only"), "only"))
    src = rng.integers(hosts, size=flows)
    dst = (src + 1 + rng.integers(hosts - 1, size=flows)) % hosts
    builder.add_flows(coflows, src, dst, rng.integers(MIB, 64 * MIB, flows))
    return builder.build()


def run(options: argparse.Namespace) -> None:
    reason = peer.missing()
    if reason:
        raise CapabilityError(reason)
    _, fabric = fabrics.build(Spec("single_switch", {"hosts": options.hosts, "rate": "1Gbit/s"}))
    workload = steady_arrivals(options.hosts, options.flows, np.random.default_rng(1))
    print(f"{options.flows} flows, one every {GAP * 1e3} ms, {options.hosts} hosts at 1 Gbit/s, max-min")
    warm_up("fair", Connections.PER_FLOW)
    ours = timed(lambda: simulated(workload, fabric, "fair", Connections.PER_FLOW), options.repeat)
    print(f"{'':<16} {SPREAD}\n{'netsched':<16} {ours}", flush=True)
    try:
        theirs = peer.ask(workload, fabric, options.patience)
    except subprocess.TimeoutExpired:
        ratio = options.patience / ours.median
        print(
            f"SimGrid was stopped after {options.patience:.0f} s, over {ratio:.0f} times ours; not compared"
        )
        return
    finish = ours.result.flow_finish
    apart = float((np.abs(finish - theirs.finish) / theirs.finish).max())
    ratio = theirs.seconds / ours.median
    print(f"{'SimGrid ' + theirs.version:<16} {theirs.seconds:10.3f} (once)")
    print(f"ratio {ratio:.1f}; finish times differ by at most {apart:.1e} (relative)")
    print(verdict(ratio >= 20, "at least 20 times faster than SimGrid"))
    print(verdict(apart <= 1e-6, "finish times equal within 1e-6"))
