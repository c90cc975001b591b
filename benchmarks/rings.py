"""Ring all-reduce coflows, all at once, in a full fat-tree: 65,536 hosts (k=64) and 1,000 coflows.

Every coflow belongs to a job of its own, whose workers are drawn at random over the whole tree (each host has
at most one), so that its traffic crosses the core. 25 MiB buckets (PyTorch's default) leave within 10 ms. One
connection per host pair, as collective libraries have. Goal: 60 s from nothing, and 8 GiB.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.measure import TooLong, peak_mib, simulated, timed, verdict, warm_up
from netsched import fabrics
from netsched.model import Connections, Spec, TaskKind, Workload
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.collectives import ring_allreduce
from netsched.workloads.exchange import Bucket, Step, even

PARAMETERS = 25 * 2**20 // 4
START_SPREAD = 0.01


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--k", type=int, default=64, help="fat-tree of k^3/4 hosts")
    parser.add_argument("--coflows", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=16, help="per coflow; 64 fill all hosts")
    parser.add_argument("--policy", default="fair")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds, after which it is given up")


def rings(hosts: int, coflows: int, workers: int, rng: np.random.Generator) -> Workload:
    """`coflows` jobs of one all-reduce each, on disjoint sets of random hosts."""
    place = rng.permutation(hosts)[: coflows * workers].reshape(coflows, workers)
    chunks = even(PARAMETERS, workers) * 4.0
    builder = WorkloadBuilder(hosts)
    for number, members in enumerate(place):
        job = builder.add_job(f"job {number}", arrival=float(rng.uniform(0, START_SPREAD)))
        step = Step(job, builder.add_stage(job, "only"), 0, 1, members)
        ready = builder.add_tasks(job, TaskKind.BARRIER, members, 0.0)
        ring_allreduce(builder, step, Bucket(0, 0, "gradient", PARAMETERS), chunks, ready)
    return builder.build()


def run(options: argparse.Namespace) -> None:
    warm_up(options.policy, Connections.PER_PAIR)
    fabric = timed(lambda: fabrics.build(Spec("fat_tree", {"k": options.k, "rate": "1Gbit/s"}))[1], 1)
    tree = fabric.result
    rng = np.random.default_rng(1)
    work = timed(lambda: rings(len(tree.hosts), options.coflows, options.workers, rng), 1)
    flows = work.result.n_flows
    print(
        f"{tree.describe()}\n{options.coflows} rings of {options.workers} workers: {flows} flows", flush=True
    )
    try:
        took = timed(
            lambda: simulated(work.result, tree, options.policy, Connections.PER_PAIR, options.limit),
            options.repeat,
        )
    except TooLong as stopped:
        print(f"fabric {fabric.median:.2f} s, workload {work.median:.2f} s, simulate: {stopped}")
        print(verdict(False, "at most 60 s"))
        return
    total = fabric.median + work.median + took.median
    print(
        f"fabric {fabric.median:.2f} s, workload {work.median:.2f} s, simulate {took.median:.2f} s (median)"
    )
    print(f"all {total:.1f} s, peak memory {peak_mib():.0f} MiB, {took.result.mechanisms['events']} events")
    print(verdict(total <= 60, "at most 60 s"))
    print(verdict(peak_mib() <= 8192, "at most 8192 MiB"))
