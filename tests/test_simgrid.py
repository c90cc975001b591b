"""Our simulator and SimGrid (an independent max-min solver, C++) find the same finish times.

What differs between the two models is switched off on SimGrid's side, with the reason for each setting, in
`benchmarks/simgrid_side.py`: TCP's rate bound and its overhead, acknowledgements on the way back, weights by
link bandwidth, latency factors, coarse precision. Links have no latency in either program.
"""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from benchmarks import peer
from netsched import fabrics, workloads
from netsched.fabric import Fabric
from netsched.model import Control, Floats, Spec, Transport, Workload
from netsched.policies.fair import Fair
from netsched.simulate import simulate
from netsched.workloads.builder import WorkloadBuilder

FLOWS = 2000
AGREE = 1e-9
"""Relative; far more than either program loses to rounding (1e-14 seen), far less than any other model."""

PATIENCE = 100.0
"""Seconds for SimGrid, which takes about one."""


@pytest.fixture(scope="module", autouse=True)
def _simgrid() -> None:
    """Where packages come from apt the set-up has installed SimGrid, so its absence is a failure."""
    reason = peer.missing()
    if reason and (shutil.which("apt-get") or os.environ.get("CI")):
        pytest.fail(f"{reason} (scripts/setup does)")
    if reason:
        pytest.skip(reason)


def ours(workload: Workload, fabric: Fabric) -> Floats:
    outcome = simulate(workload, fabric, Fair(), queues=None, transport=Transport(), control=Control())
    return outcome.flow_finish


def difference(a: Floats, b: Floats) -> float:
    """The largest relative difference; NaN (never finished) is different from everything."""
    return float(np.nan_to_num(np.abs(a - b) / b, nan=np.inf).max())


def arrivals(fabric: Fabric, seed: int, load: float, sizes: dict[str, object]) -> Workload:
    params = {"hosts": "all", "load": load, "size": sizes, "flows": FLOWS}
    return peer.whole_bytes(workloads.build((Spec("poisson", params),), fabric, seed))


def test_a_case_solved_by_hand() -> None:
    """Three hosts at 100 bytes/s. a: 0 to 1, b: 0 to 2, 1000 bytes each at 0 s; c: 1 to 2, 300 bytes at 5 s.

    a and b share the up port of 0 at 50 each, c gets what b leaves of host 2's port: 50, until 11 s. So a and
    b end at 20 s. This holds SimGrid's side, with its settings, to arithmetic and not to us.
    """
    _, fabric = fabrics.build(Spec("single_switch", {"hosts": 3, "rate": "800bit/s"}))
    builder = WorkloadBuilder(3)
    for number, (arrival, src, dst, size) in enumerate([(0, 0, 1, 1000), (0, 0, 2, 1000), (5, 1, 2, 300)]):
        job = builder.add_job(f"job {number}", arrival=float(arrival))
        coflow = builder.add_coflow(job, builder.add_stage(job, "only"), f"coflow {number}")
        builder.add_flow(coflow, src, dst, size)
    workload = builder.build()
    right = np.array([20.0, 20.0, 11.0])
    assert difference(peer.ask(workload, fabric, PATIENCE).finish, right) < 1e-9
    assert difference(ours(workload, fabric), right) < 1e-9


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("load", [0.5, 1.5], ids=["half-load", "overload"])
def test_star(seed: int, load: float) -> None:
    """40 hosts on one switch, exponential sizes: short queues, and more flows at a time than are sent."""
    _, fabric = fabrics.build(Spec("single_switch", {"hosts": 40, "rate": "1Gbit/s"}))
    workload = arrivals(fabric, seed, load, {"kind": "exponential", "mean": "1MB"})
    assert difference(ours(workload, fabric), peer.ask(workload, fabric, PATIENCE).finish) < AGREE


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("oversubscription", [1, 4])
def test_fat_tree(seed: int, oversubscription: int) -> None:
    """128 hosts (k=8), heavy-tailed sizes over five decades, paths by hash: inner links fill too."""
    spec = Spec("fat_tree", {"k": 8, "rate": "1Gbit/s", "oversubscription": oversubscription})
    _, fabric = fabrics.build(spec)
    sizes = {"kind": "pareto", "min": "10kB", "shape": 1.1, "max": "1GB"}
    workload = arrivals(fabric, seed, 0.6, sizes)
    assert difference(ours(workload, fabric), peer.ask(workload, fabric, PATIENCE).finish) < AGREE
