"""The start-up of messages against closed forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from sim_cases import PER_FLOW, run
from workload_fabric import GBIT, big_switch, unrolled, waits_for

from netsched.bounds import lower_bounds
from netsched.errors import ScenarioError
from netsched.model import Spec, Workload
from netsched.policies.fair import Fair
from netsched.routes import route
from netsched.runner import ENGINES
from netsched.scenario import build as scenario_build
from netsched.scenario import load
from netsched.workloads import build
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.startup import START_UP, Startup, refuse_emulated

C, THETA = 1000.0, 0.5


def pieces(series: str, *tensors: list[float], dst: int = 1, theta: float = THETA) -> Workload:
    """All pieces ready at once, from host 0 to `dst`, one coflow per tensor."""
    builder = WorkloadBuilder(3)
    job = builder.add_job("job", startup=Startup(theta, series))
    stage = builder.add_stage(job, "stage")
    for sizes in tensors:
        builder.add_flows(builder.add_coflow(job, stage, "tensor"), 0, dst, sizes)
    return builder.build()


def seconds(w: Workload) -> float:
    return run(w, big_switch(3, C), Fair()).simulated_s


@pytest.mark.parametrize("n", [1, 2, 7])
def test_pieces_in_series_take_n_times_theta_plus_their_bytes(n):
    """The papers' model: a start-up slot before each partition, n (theta + s / C)."""
    for series in ("tensor", "connection"):
        assert seconds(pieces(series, [400.0] * n)) == pytest.approx(n * (THETA + 0.4))
    assert seconds(pieces("message", [400.0] * n)) == pytest.approx(THETA + n * 0.4)


def test_partitioning_is_free_without_theta():
    whole, cut = (seconds(pieces("tensor", sizes, theta=0.0)) for sizes in ([3000.0], [3.0] * 1000))
    assert whole == pytest.approx(cut) == pytest.approx(3.0)


def test_another_tensor_uses_the_link_during_a_start_up_unless_they_share_a_connection():
    """Two tensors of 2 pieces of 0.4 s each, start-ups of 0.5 s.

    `tensor`: both start up for 0.5 s, share the link for 0.8 s, and the same again. `connection`: 4 x 0.9 s.
    """
    tensors = [400.0, 400.0], [400.0, 400.0]
    assert seconds(pieces("tensor", *tensors)) == pytest.approx(2 * (0.5 + 0.8))
    assert seconds(pieces("connection", *tensors)) == pytest.approx(4 * (0.5 + 0.4))
    assert seconds(pieces("message", *tensors)) == pytest.approx(0.5 + 1.6)


@pytest.mark.parametrize(("size", "dst"), [(400.0, 0), (0.0, 1)])
def test_a_transfer_inside_a_host_and_an_empty_one_have_no_start_up(size, dst):
    w = pieces("tensor", [size], dst=dst)
    assert w.n_tasks == 0
    assert seconds(w) == 0


def test_a_start_up_is_on_the_sender_after_all_that_the_message_waited_for():
    w = unrolled(
        "training",
        model="alexnet",
        workers=["h1", "h2"],
        servers=["h3"],
        iterations=2,
        batch=8,
        device={"flops": "10TFLOP/s", "efficiency": 0.5},
        theta="50us",
    )
    before = waits_for(w)
    for flow in range(w.n_flows):
        (start,) = before[flow]
        task = start - w.n_flows
        assert w.tasks.label[task] == START_UP
        assert w.tasks.seconds[task] == pytest.approx(50e-6)
        assert w.tasks.host[task] == w.flows.src[flow]
        assert w.tasks.iteration[task] == w.coflows.iteration[w.flows.coflow[flow]]
        what = w.coflows.label[w.flows.coflow[flow]].split()
        (waited,) = before[start]
        wanted = f"backward {what[1]}" if what[0] == "push" else f"aggregate {what[1]}"
        assert w.tasks.label[waited - w.n_flows] == wanted


RING = {
    "model": "alexnet",
    "workers": ["h1", "h2", "h3", "h4"],
    "sync": "ring-allreduce",
    "iterations": 1,
    "batch": 8,
    "fuse": "1GB",
    "device": {"flops": "10TFLOP/s", "efficiency": 0.5},
}


@pytest.mark.parametrize("series", ["message", "tensor", "connection"])
def test_a_ring_pays_theta_in_every_round(series):
    """Thakur, Rabenseifner, Gropp (2005): 2 (p - 1) alpha + 2 (p - 1) / p n beta."""
    plain = unrolled("training", **RING)
    w = unrolled("training", **RING, theta="1ms", theta_series=series)
    fabric = big_switch(8)
    extra = run(w, fabric, Fair()).simulated_s - run(plain, fabric, Fair()).simulated_s
    assert extra == pytest.approx(2 * 3 * 1e-3)


SYNCS = {
    "parameter-server": {"servers": ["h5", "h1"], "slice": "16MiB"},
    "ring-allreduce": {},
    "tree-allreduce": {"pieces": 3},
    "hierarchical-allreduce": {"group": 2},
    "reduce-scatter-all-gather": {},
    "fsdp": {},
}


@pytest.mark.parametrize("series", ["message", "tensor", "connection"])
@pytest.mark.parametrize("sync", SYNCS)
def test_every_exchange_runs_with_every_series_in_no_less_than_its_bound(sync, series):
    """Not: slower than without theta. Where all connections share, pieces in series contend less for it."""
    spec = {**RING, "fuse": "8MB", "iterations": 2, "sync": sync, **SYNCS[sync]}
    w, fabric = unrolled("training", **spec, theta="1ms", theta_series=series), big_switch(8)
    outcome = run(w, fabric, Fair())
    assert np.isfinite(outcome.flow_finish).all()
    paths = route(w, fabric, PER_FLOW).of_flows(np.arange(w.n_flows))
    for bound in lower_bounds(w, fabric.capacity, *paths).job.values():
        assert outcome.simulated_s >= bound[0] * (1 - 1e-9)
    messages = (w.flows.src != w.flows.dst) & (w.flows.size > 0)
    assert w.tasks.label.count(START_UP) == messages.sum() > 0


def test_slices_cost_theta_each():
    """One worker, one server, AlexNet in slices of 4 MiB: fc1.weight has 37,748,736 x 4 B = 36 of them.

    Its pushes follow each other, each with its start-up, and the last one's pull comes after them all; the
    other tensors fit into the gaps or delay it by their bytes at most, each way.
    """
    w = unrolled(
        "training",
        **{**RING, "workers": ["h1"], "servers": ["h2"], "sync": "parameter-server", "fuse": "0B"},
        slice="4MiB",
        theta="100ms",
    )
    took = run(w, big_switch(8), Fair()).simulated_s
    least = 37 * (0.1 + 2**22 / GBIT)
    others = (61_100_840 - 37_748_736) * 4 / GBIT
    assert least <= took <= least + 2 * others


def test_a_pipeline_pays_theta_at_every_hop():
    """One micro-batch through 3 stages and back: 4 messages."""
    spec = {
        "model": "gpt3-1.3b",
        "pipeline": 3,
        "batch": 1,
        "iterations": 1,
        "sequence": 64,
        "device": {"flops": "100TFLOP/s", "efficiency": 0.5},
    }

    def built(**more: object) -> Workload:
        return build(
            (Spec("parallel", {**spec, "hosts": ["h1", "h2", "h3"], **more}),), big_switch(3), seed=1
        )

    plain, slow = (run(built(theta=theta), big_switch(3), Fair()) for theta in (0, "2ms"))
    assert slow.simulated_s - plain.simulated_s == pytest.approx(4 * 2e-3)
    with pytest.raises(ValidationError, match="theta_series: connection needs an order of all messages"):
        built(theta_series="connection")


def test_the_emulation_refuses_what_it_cannot_time():
    refuse_emulated(unrolled("training", **RING))
    refuse_emulated(unrolled("training", **RING, theta="10ms"))
    with pytest.raises(ScenarioError, match=r"^workload: theta 50 us is too short for the mininet engine"):
        refuse_emulated(unrolled("training", **RING, theta="50us"))


def test_the_mininet_engine_refuses_a_short_theta(tmp_path):
    quickstart = load(
        Path(__file__).parent.parent / "scenarios" / "quickstart.yaml", ["workload.1.theta=50us"]
    )
    with pytest.raises(ScenarioError, match="theta 50 us is too short for the mininet engine"):
        ENGINES["mininet"].run(quickstart, scenario_build(quickstart), 0, lambda _: None, tmp_path / "log")
    assert list(tmp_path.iterdir()) == []


def test_two_jobs_have_their_own_theta():
    builder = WorkloadBuilder(2)
    for name, theta in (("a", 0.0), ("b", 0.25), ("c", 1.0)):
        job = builder.add_job(name, startup=Startup(theta))
        builder.add_flow(builder.add_coflow(job, builder.add_stage(job, "stage"), name), 0, 1, 1.0)
    w = builder.build()
    assert w.tasks.job.tolist() == [1, 2]
    assert w.tasks.seconds.tolist() == [0.25, 1.0]
    assert np.array_equal(w.dag.n_deps, [0, 1, 1, 0, 0])
