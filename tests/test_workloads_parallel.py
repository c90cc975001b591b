"""Pipelines, tensor slices, experts and their combinations: schedules, bytes, and times in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError
from sim_cases import run
from workload_fabric import big_switch, waits_for

from netsched.errors import ScenarioError
from netsched.model import Spec, TaskKind, Workload
from netsched.policies.fair import Fair
from netsched.workloads import build
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.exchange import Step
from netsched.workloads.grid import Compute, Grid, Part, add_iteration
from netsched.workloads.models import blocks_of
from netsched.workloads.schedules import ORDERS, Op

FREE = 1e18
"""Bytes/s of a network that takes no time."""

DEVICE = {"flops": "100TFLOP/s", "efficiency": 0.5}
COMMON = {"model": "gpt3-1.3b", "batch": 1, "iterations": 1, "device": DEVICE, "sequence": 128}
ACTIVATIONS = 128 * 2048 * 2
"""Bytes of one sample's activations between two layers of gpt3-1.3b, 2 bytes each."""


def hosts(n: int) -> list[str]:
    return [f"h{i + 1}" for i in range(n)]


def parallel(n: int, size: int = 8, **params: object) -> Workload:
    return build((Spec("parallel", {"hosts": hosts(n), **COMMON, **params}),), big_switch(size), seed=1)


def pipeline(schedule: str, p: int, m: int, v: int, seconds: float, iterations: int = 1) -> Workload:
    """p stages of v parts that take `seconds` forward each, m micro-batches."""
    builder = WorkloadBuilder(p)
    orders = tuple(ORDERS[schedule](rank, p, m, v) for rank in range(p))
    parts = (Part((Compute(seconds),), 1),) * (p * v)
    grid = Grid(np.arange(p).reshape(p, 1, 1), orders, parts, 1.0, None)
    job = builder.add_job("job", iterations=iterations)
    updated, free = {}, {}
    for iteration in range(iterations):
        step = Step(job, builder.add_stage(job, "stage", iteration), iteration, 1, np.arange(p))
        updated, free = add_iteration(builder, grid, step, updated, free)
    return builder.build()


# ------------------------------------------------------------------ pipelines


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(2, 1), (2, 4), (4, 2), (4, 4), (4, 16), (7, 5)])
def test_the_bubble_of_a_flushed_pipeline(schedule, p, m):
    """GPipe (2019), section 2.3: idle (p - 1) / (m + p - 1) of the time.

    Megatron-LM (2021), section 2.2.1, says the same of both as idle over busy time: (p - 1) / m.
    """
    outcome = run(pipeline(schedule, p, m, 1, 1.0), big_switch(p, FREE), Fair())
    busy = 3.0 * m
    assert outcome.simulated_s == pytest.approx(3.0 * (m + p - 1))
    assert 1 - busy / outcome.simulated_s == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 8, 4), (4, 4, 2), (3, 9, 3)])
def test_interleaving_divides_the_bubble_by_the_chunks(p, m, v):
    """Megatron-LM (2021), section 2.2.2: idle time over ideal time is (p - 1) / (v m)."""
    outcome = run(pipeline("interleaved", p, m, v, 1.0 / v), big_switch(p, FREE), Fair())
    ideal = 3.0 * m
    assert outcome.simulated_s / ideal - 1 == pytest.approx((p - 1) / (v * m))


def test_two_iterations_flush_in_between():
    outcome = run(pipeline("1f1b", 4, 8, 1, 1.0, iterations=2), big_switch(4, FREE), Fair())
    # The first stage is the last to end and the first to begin, so no two iterations overlap.
    assert outcome.simulated_s == pytest.approx(2 * 3.0 * (8 + 4 - 1))


@pytest.mark.parametrize("schedule", ORDERS)
@pytest.mark.parametrize(("p", "m"), [(2, 2), (3, 6), (4, 4)])
def test_every_schedule_runs_every_pass_once_forward_first(schedule, p, m):
    v = 2 if schedule == "interleaved" else 1
    for rank in range(p):
        order = ORDERS[schedule](rank, p, m, v)
        assert sorted(order, key=repr) == sorted(
            [Op(f, i, c) for f in (True, False) for i in range(m) for c in range(v)], key=repr
        )
        for i in range(m):
            for c in range(v):
                assert order.index(Op(True, i, c)) < order.index(Op(False, i, c))


def test_1f1b_keeps_no_more_micro_batches_than_stages_ahead():
    """Megatron-LM (2021), section 2.2.1: at most p in flight, where GPipe has all m."""
    for rank in range(4):
        for schedule, most in (("1f1b", 4 - rank), ("gpipe", 16)):
            passes = [1 if op.forward else -1 for op in ORDERS[schedule](rank, 4, 16, 1)]
            assert np.cumsum(passes).max() == most


def test_stages_send_activations_forward_and_as_many_gradients_back():
    w = parallel(4, pipeline=4, microbatches=3, batch=2)
    assert set(w.flows.size.tolist()) == {2 * ACTIVATIONS}
    pairs = np.stack((w.flows.src, w.flows.dst), axis=1).tolist()
    assert sorted(pairs) == sorted([[i, i + 1] for i in range(3)] * 3 + [[i + 1, i] for i in range(3)] * 3)
    before = waits_for(w)
    for flow in range(w.n_flows):
        (task,) = before[flow]
        assert w.tasks.host[task - w.n_flows] == w.flows.src[flow]


def test_interleaved_stages_send_chunks_times_as_much_round_the_ring():
    plain = parallel(4, pipeline=4, microbatches=4)
    cut = parallel(4, pipeline=4, microbatches=4, schedule="interleaved", chunks=3)
    # 3 boundaries of 4 parts, 11 of 12.
    assert cut.flows.size.sum() / plain.flows.size.sum() == pytest.approx(11 / 3)
    assert ((cut.flows.src == 3) & (cut.flows.dst == 0)).any()


def test_a_pipeline_over_a_slow_network_pays_for_each_hop_of_the_first_micro_batch():
    """One micro-batch: p - 1 hops forward, p - 1 back, and all of the model's arithmetic in between."""
    w = parallel(4, pipeline=4)
    outcome = run(w, big_switch(8, 1e6), Fair())
    assert outcome.simulated_s == pytest.approx(w.tasks.seconds.sum() + 6 * ACTIVATIONS / 1e6)


# ------------------------------------------------------------------ tensor slices, replicas, experts


def test_slices_all_reduce_activations_four_times_a_layer():
    """Shoeybi et al. (2019), section 3: two all-reduces each way, of batch x sequence x width."""
    w = parallel(4, tensor=4, batch=2)
    assert len(w.coflows.label) == 24 * 4
    each = 2 * 3 / 4 * 2 * ACTIVATIONS
    assert np.bincount(w.flows.src, w.flows.size).tolist() == pytest.approx([24 * 4 * each] * 4)


def test_slices_share_the_arithmetic():
    whole = parallel(2, pipeline=2).tasks.seconds.sum()
    assert parallel(4, tensor=4).tasks.seconds.sum() == pytest.approx(whole)
    blocks, _ = blocks_of("gpt3-1.3b", 128)
    assert whole == pytest.approx(3 * sum(t.flops for t in blocks.tensors) / (100e12 * 0.5))


def test_an_all_reduce_of_slices_is_between_the_halves_of_a_layer():
    w = parallel(2, tensor=2)
    before = waits_for(w)
    for way, first in (("forward", "attention 0"), ("backward", "mlp 23")):
        label = f"all-reduce {first} {way} part 0 micro-batch 0"
        coflow = w.coflows.label.index(label)
        flow = int(np.flatnonzero(w.flows.coflow == coflow)[0])
        (task,) = before[flow]
        assert w.tasks.kind[task - w.n_flows] == TaskKind[way.upper()]


def test_time_of_slices_is_arithmetic_plus_all_reduces():
    w = parallel(4, tensor=4)
    outcome = run(w, big_switch(8, 1e9), Fair())
    compute = w.tasks.seconds.sum() / 4
    assert outcome.simulated_s == pytest.approx(compute + 24 * 4 * 2 * 3 / 4 * ACTIVATIONS / 1e9)


def test_replicas_exchange_each_parts_parameters():
    w = parallel(8, pipeline=2, data=4, microbatches=2)
    gradients = np.array(["all-reduce part" in label for label in w.coflows.label])[w.flows.coflow]
    blocks, _ = blocks_of("gpt3-1.3b")
    total = sum(t.parameters for t in blocks.tensors) * 2
    assert w.flows.size[gradients].sum() == 2 * (4 - 1) * total
    # Of the rest, 2 micro-batches each way on each of 4 replicas.
    assert w.flows.size[~gradients].sum() == 2 * 2 * 4 * ACTIVATIONS


MIXTRAL = {"model": "mixtral-8x7b", "sequence": 64}


def test_experts_exchange_tokens_four_times_a_layer():
    """Lepikhin et al. (2021): dispatch and combine, both ways, of top x tokens x width."""
    w = parallel(4, data=4, **MIXTRAL)
    moved = np.array(["all-to-all" in label for label in w.coflows.label])[w.flows.coflow]
    sent = np.bincount(w.flows.src[moved], w.flows.size[moved])
    assert sent.tolist() == pytest.approx([32 * 4 * 2 * 64 * 4096 * 2 * 3 / 4] * 4)
    assert len({(a, b) for a, b in zip(w.flows.src[moved], w.flows.dst[moved], strict=True)}) == 4 * 3


def test_experts_keep_their_gradients():
    w = parallel(4, data=4, **MIXTRAL)
    reduced = np.array(["all-reduce" in label for label in w.coflows.label])[w.flows.coflow]
    shared = 46_702_792_704 - 32 * 8 * 3 * 4096 * 14336
    assert w.flows.size[reduced].sum() == pytest.approx(2 * 3 * shared * 2)


def test_backward_through_experts_begins_with_the_way_back_of_the_results():
    w = parallel(2, data=2, **MIXTRAL)
    before = waits_for(w)
    labels = w.coflows.label
    first = labels.index("all-to-all combine 31 backward part 0 micro-batch 0")
    second = labels.index("all-to-all dispatch 31 backward part 0 micro-batch 0")
    into = {before_flow for flow in np.flatnonzero(w.flows.coflow == second) for before_flow in before[flow]}
    waited = {x for task in into for x in before[task]}
    assert waited >= set(np.flatnonzero(w.flows.coflow == first).tolist())


def test_all_three_at_once_run_and_move_what_they_should():
    """2 stages x 2 replicas x 2 slices, 4 micro-batches, one iteration."""
    w = parallel(8, pipeline=2, data=2, tensor=2, microbatches=4, iterations=2)
    # "activations part 0 ...", "gradients part 1 ...", "all-reduce part 0", "all-reduce attention 3 ..."
    kinds = [" ".join(label.split()[:2]) for label in w.coflows.label]
    size = {k: w.flows.size[np.array([x == k for x in kinds])[w.flows.coflow]].sum() for k in set(kinds)}
    blocks, _ = blocks_of("gpt3-1.3b")
    parameters = sum(t.parameters for t in blocks.tensors)
    handed = 2 * 4 * 2 * 2 * ACTIVATIONS  # iterations, micro-batches, replicas, slices
    assert size["activations part"] == size["gradients part"] == handed
    # Iterations, micro-batches, replicas, layers, four a layer; two slices send 2 (2 - 1) / 2 of it each.
    assert size["all-reduce attention"] + size["all-reduce mlp"] == 2 * 4 * 2 * 24 * 4 * 2 * ACTIVATIONS
    # Every slice has half of the parameters, and 2 (d-1)/d of its bytes go round each ring of 2.
    assert size["all-reduce part"] == pytest.approx(2 * 2 * parameters * 2, rel=1e-6)
    outcome = run(w, big_switch(8, 1e9), Fair())
    assert np.isfinite(outcome.flow_finish).all()
    assert math.isfinite(outcome.simulated_s)


def test_the_next_iterations_first_pass_waits_for_its_parts_gradients():
    w = parallel(4, pipeline=2, data=2, microbatches=2, iterations=2)
    before = waits_for(w)
    for part, host in ((0, 0), (1, 2)):
        (first,) = (
            w.n_flows + t
            for t in range(w.n_tasks)
            if w.tasks.label[t] == f"forward part {part} micro-batch 0"
            and (w.tasks.iteration[t], w.tasks.host[t]) == (1, host)
        )
        labels = {w.coflows.label[w.flows.coflow[n]] for n in before[first] if n < w.n_flows}
        assert f"all-reduce part {part}" in labels


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pipeline": 3}, "hosts: 4 hosts are not pipeline 3 x data 1 x tensor 1 = 3"),
        ({"pipeline": 4, "chunks": 2}, "chunks: interleaved needs 2 or more, other schedules have none"),
        ({"pipeline": 4, "schedule": "interleaved"}, "chunks: interleaved needs 2 or more"),
        (
            {"pipeline": 4, "schedule": "interleaved", "chunks": 2, "microbatches": 6},
            "microbatches: interleaved needs a multiple of pipeline 4, and 2 or more stages, not 6",
        ),
        ({"data": 4, "group": 2}, "group is for hierarchical-allreduce"),
        ({"model": "gpt"}, "'gpt' is not a model: use one of resnet50"),
        ({"hosts": ["h1"]}, "one host has nobody to send to"),
    ],
)
def test_bad_parameters_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        parallel(4, **change)


@pytest.mark.parametrize(
    ("n", "change", "message"),
    [
        (
            4,
            {"pipeline": 4, "model": "resnet50", "sequence": None},
            "^workload: model: resnet50 is no transf",
        ),
        (3, {"data": 3, **MIXTRAL}, "^workload: data: 8 experts of mixtral-8x7b do not divide evenly by 3"),
        (30, {"pipeline": 30}, "^workload: pipeline: 24 layers of gpt3-1.3b do not make 30 parts"),
        (8, {"tensor": 8, "microbatches": 10_000}, "unrolls to .* flows and tasks"),
    ],
)
def test_what_does_not_fit_together_is_refused(n, change, message):
    with pytest.raises(ScenarioError, match=message):
        parallel(n, size=30, **change)
