"""Each circuit scheduler on a hybrid fabric of 4,096 hosts: 64 racks, 8 optical switches, 200 training jobs.

Goals: 60 s per scheduler and 4 GiB. A quarter and a half of it show the growth. The peak of memory is that of
the process so far: to see a scheduler's own, name it alone. Jobs are ring all-reduces of
8 workers in as many racks, drawn with seed 1.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.measure import peak_mib, verdict
from netsched import circuits, fabrics, workloads
from netsched.circuits import CIRCUITS
from netsched.model import Connections, Control, Spec, Transport
from netsched.policies.fair import Fair
from netsched.simulate import simulate

HOSTS_PER_RACK = 64
WORKERS = 8
SIZES = (16, 32, 64)
"""Racks, the last of which is what the goals are about; jobs and hosts in proportion."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--circuits", nargs="+", choices=sorted(CIRCUITS), default=list(CIRCUITS))
    parser.add_argument("--racks", nargs="+", type=int, default=list(SIZES))


def jobs(racks: int, rng: np.random.Generator) -> tuple[Spec, ...]:
    """200 jobs for 64 racks, no host in two of them."""
    free = [[rack * HOSTS_PER_RACK + h + 1 for h in range(HOSTS_PER_RACK)] for rack in range(racks)]
    made = []
    for j in range(200 * racks // 64):
        roomy = [rack for rack in range(racks) if free[rack]]
        chosen = rng.choice(roomy, WORKERS, replace=False)
        workers = [f"h{free[rack].pop()}" for rack in chosen.tolist()]
        device = {"flops": "312TFLOP/s", "efficiency": 0.4}
        training = {"model": "resnet50", "workers": workers, "iterations": 2, "batch": 64, "device": device}
        made.append(Spec("training", training | {"name": f"job{j}", "sync": "ring-allreduce"}))
    return tuple(made)


def run(options: argparse.Namespace) -> None:
    measure(options.circuits[0], 8)  # compiles the kernels, which is no part of a run
    head = f"{'scheduler':<10} {'racks':>6} {'flows':>8} {'cpu [s]':>8} {'decisions':>9}"
    print(f"{head} {'mean SCT [s]':>12} {'peak [MiB]':>10}")
    slowest = 0.0
    for name in options.circuits:
        for racks in options.racks:
            seconds, row = measure(name, racks)
            print(f"{row} {peak_mib():10.0f}", flush=True)
            if racks == SIZES[-1]:
                slowest = max(slowest, seconds)
    print(f"peak memory {peak_mib():.0f} MiB")
    if SIZES[-1] in options.racks:
        print(verdict(slowest <= 60, "at most 60 s per scheduler"))
    print(verdict(peak_mib() <= 4096, "at most 4096 MiB"))


def measure(name: str, racks: int) -> tuple[float, str]:
    """CPU seconds of the simulation, and a line about it."""
    import time  # noqa: PLC0415

    from netsched import metrics  # noqa: PLC0415

    params = {"racks": racks, "hosts_per_rack": HOSTS_PER_RACK, "optical_switches": 8, "spines": 2}
    rates = {"host_rate": "100Gbit/s", "uplink_rate": "200Gbit/s", "circuit_rate": "400Gbit/s"}
    _, fabric = fabrics.build(Spec("hybrid", params | rates | {"reconfiguration": "1ms"}))
    workload = workloads.build(jobs(racks, np.random.default_rng(1)), fabric, 1)
    began = time.process_time()
    outcome = simulate(
        workload,
        fabric,
        Fair(),
        queues=8,
        transport=Transport(Connections.PER_PAIR),
        control=Control(),
        circuits=circuits.make(Spec(name)),
    )
    seconds = time.process_time() - began
    mean = float(np.nanmean(metrics.stages(workload, outcome)["completion_time"]))
    asked = outcome.mechanisms["circuit_decisions"]
    return seconds, f"{name:<10} {racks:6d} {workload.n_flows:8d} {seconds:8.1f} {asked:9d} {mean:12.4f}"
