"""The first coflows of the public Facebook trace on the big switch that the coflow papers use.

The file is not part of the repository: it is looked for in $NETSCHED_DATA, else beside the repository.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sim_cases import run

from netsched.bounds import lower_bounds
from netsched.circuits import make
from netsched.fabric import Fabric
from netsched.fabrics import build
from netsched.metrics import coflows
from netsched.model import Outcome, Policy, Spec, Transport, Workload
from netsched.policies.aalo import Aalo
from netsched.policies.fair import Fair
from netsched.policies.fifo import Fifo
from netsched.policies.fifo_lm import FifoLm
from netsched.policies.philae import Philae
from netsched.policies.sebf import Sebf
from netsched.policies.sincronia import Sincronia
from netsched.policies.varys_deadline import VarysDeadline
from netsched.routes import route
from netsched.workloads import build as unroll

FOLDER = Path(os.environ.get("NETSCHED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
TRACE = FOLDER / "FB2010-1Hr-150-0.txt"
RATE = 125e6
"""1 Gbit/s, in bytes/s."""

pytestmark = pytest.mark.skipif(
    not TRACE.is_file(), reason=f"the coflow trace {TRACE} is not there: set NETSCHED_DATA to its folder"
)
ALL: tuple[Policy, ...] = (Fair(), Fifo(), FifoLm(), Sebf(), VarysDeadline(), Sincronia(), Aalo(), Philae())
"""All but SRPT, which decides at every end of a flow, and what knows no coflows."""


@cache
def case(limit: int) -> tuple[Workload, Fabric]:
    """The first `limit` coflows on 150 hosts at 1 Gbit/s."""
    fabric = build(Spec("single_switch", {"hosts": 150, "rate": "1Gbit/s"}))[1]
    return unroll((Spec("coflow-benchmark", {"path": str(TRACE), "limit": limit}),), fabric, 1), fabric


@cache
def outcome_of(policy: Policy, limit: int) -> Outcome:
    return run(*case(limit), policy)


def completion(policy: Policy, limit: int) -> np.ndarray:
    """Seconds per coflow."""
    return coflows(case(limit)[0], outcome_of(policy, limit))["cct"]


def big_switch_fair(workload: Workload) -> np.ndarray:
    """Finish times under per-flow max-min on a big switch of 1 Gbit/s ports, with numpy and nothing of ours.

    Progressive filling over port counts at every event: the open port with the least share freezes its flows.
    """
    flows, arrival = workload.flows, workload.jobs.arrival[workload.coflows.job[workload.flows.coflow]]
    left, finish, now = flows.size.copy(), np.full(workload.n_flows, np.nan), 0.0
    finish[left == 0.0] = arrival[left == 0.0]
    ports = np.stack([flows.src, 150 + flows.dst])
    while np.isnan(finish).any():
        active = np.flatnonzero(np.isnan(finish) & (arrival <= now))
        rate, open_ = np.zeros(len(active)), np.ones(len(active), bool)
        free = np.full(300, RATE)
        while open_.any():
            count = np.bincount(ports[:, active[open_]].ravel(), minlength=300)
            share = np.where(count > 0, free / np.maximum(count, 1), np.inf)
            port = int(share.argmin())
            frozen = open_ & (ports[:, active] == port).any(axis=0)
            rate[frozen] = share[port]
            np.subtract.at(free, ports[:, active[frozen]].ravel(), share[port])
            free[port] = 0.0
            open_ &= ~frozen
        end = now + left[active] / rate if len(active) else np.zeros(0)
        coming = arrival[arrival > now]
        then = min(end.min(initial=np.inf), coming.min(initial=np.inf))
        left[active] -= rate * (then - now)
        done = active[end <= then * (1 + 1e-12)]
        finish[done], left[done], now = then, 0.0, then
    return finish


def test_fair_agrees_flow_by_flow_with_a_simulation_of_the_big_switch_in_numpy() -> None:
    workload, _ = case(20)
    np.testing.assert_allclose(outcome_of(Fair(), 20).flow_finish, big_switch_fair(workload), rtol=1e-9)


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_every_coflow_ends_and_every_byte_is_carried(policy: Policy) -> None:
    workload, _ = case(100)
    outcome = outcome_of(policy, 100)
    assert np.isfinite(outcome.flow_finish).all()
    up = np.bincount(workload.flows.src, workload.flows.size, 150)
    down = np.bincount(workload.flows.dst, workload.flows.size, 150)
    np.testing.assert_allclose(outcome.link_bytes, np.stack([up, down], 1).ravel(), rtol=1e-9)


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_no_coflow_is_faster_than_alone_and_no_port_faster_than_its_bytes(policy: Policy) -> None:
    workload, fabric = case(100)
    paths = route(workload, fabric, Transport()).of_flows(np.arange(workload.n_flows))
    alone = lower_bounds(workload, fabric.capacity, *paths).coflow["isolation"]
    assert (completion(policy, 100) >= alone * (1 - 1e-9)).all()
    outcome = outcome_of(policy, 100)
    assert outcome.flow_finish.max() >= outcome.link_bytes.max() / RATE


def test_sebf_is_ahead_of_fair_and_far_ahead_of_fifo_in_the_mean() -> None:
    """The smallest bottleneck first is what shortest-job-first is for one port (Varys, SIGCOMM 2014, 4.1)."""
    fair, fifo, sebf = (completion(policy, 100).mean() for policy in (Fair(), Fifo(), Sebf()))
    # In its first minutes the trace leaves the network nearly idle, hence the small lead over fair.
    assert sebf < 0.8 * fair
    assert sebf < 0.3 * fifo


def test_under_sebf_a_coflow_alone_in_the_network_takes_its_bottleneck() -> None:
    """MADD is optimal for one coflow: those whose life overlaps no other's take exactly Gamma."""
    workload, fabric = case(100)
    paths = route(workload, fabric, Transport()).of_flows(np.arange(workload.n_flows))
    gamma = lower_bounds(workload, fabric.capacity, *paths).coflow["isolation"]
    table = coflows(workload, outcome_of(Sebf(), 100))
    arrival, finish = table["arrival"], table["finish"]
    alone = [
        c
        for c in range(100)
        if not any(arrival[d] < finish[c] and finish[d] > arrival[c] for d in range(100) if d != c)
    ]
    assert len(alone) > 3
    np.testing.assert_allclose(table["cct"][alone], gamma[alone], rtol=1e-9)


def test_sunflow_without_a_delay_takes_about_as_long_as_sebf():
    """CoNEXT 2016: on circuits, one per port at a time, about as a packet switch under coflow scheduling."""
    params = {"hosts": 150, "circuit_rate": "1Gbit/s", "packet_rate": "1Gbit/s", "reconfiguration": "0s"}
    fabric, workload = build(Spec("ocs_direct", params))[1], case(20)[0]
    out = run(workload, fabric, Sebf(), queues=8, circuits=make(Spec("sunflow")))
    assert coflows(workload, out)["cct"].mean() < 1.1 * completion(Sebf(), 20).mean()
