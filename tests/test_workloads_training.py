"""The dependency graph and the bytes of training jobs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from pydantic import ValidationError
from workload_fabric import big_switch, unrolled, waits_for

from netsched.errors import ScenarioError
from netsched.model import Spec, TaskKind, Workload
from netsched.shape import Slicing
from netsched.workloads import build
from netsched.workloads.exchange import buckets_of, even, fused, shard
from netsched.workloads.models import tensors_of
from netsched.workloads.tensors import Tensor

DEVICE = {"flops": "10TFLOP/s", "efficiency": 0.5}
COMMON = {"batch": 32, "iterations": 2, "device": DEVICE}
RESNET_BYTES = 25_557_032 * 4
RESNET_TENSORS = 161


def servers(model: str = "resnet50", **more: object) -> Workload:
    params = {"workers": ["h1", "h2", "h3"], "servers": ["h4", "h5"], **COMMON, **more}
    return unrolled("training", model=model, **params)


def ring(model: str = "resnet50", **more: object) -> Workload:
    params = {"workers": ["h1", "h2", "h3", "h4"], "sync": "ring-allreduce", **COMMON, **more}
    return unrolled("training", model=model, **params)


def task(w: Workload, label: str, host: int, iteration: int) -> int:
    """DAG node of a task."""
    (found,) = (
        t
        for t in range(w.n_tasks)
        if (w.tasks.label[t], w.tasks.host[t], w.tasks.iteration[t]) == (label, host, iteration)
    )
    return w.n_flows + found


def flows(w: Workload, label: str, iteration: int, **where: int) -> set[int]:
    """The flows of a coflow, those only with the given src or dst."""
    coflow = [
        c
        for c in range(len(w.coflows.label))
        if (w.coflows.label[c], w.coflows.iteration[c]) == (label, iteration)
    ]
    chosen = np.isin(w.flows.coflow, coflow)
    for column, host in where.items():
        chosen &= getattr(w.flows, column) == host
    return set(np.flatnonzero(chosen).tolist())


def test_servers_get_and_give_every_byte_once_per_worker_and_iteration():
    w = servers()
    assert w.flows.size.sum() == RESNET_BYTES * 3 * 2 * 2  # workers, both ways, iterations
    for iteration in range(2):
        for worker in range(3):
            mine = w.coflows.iteration[w.flows.coflow] == iteration
            assert w.flows.size[mine & (w.flows.src == worker)].sum() == RESNET_BYTES
            assert w.flows.size[mine & (w.flows.dst == worker)].sum() == RESNET_BYTES


def test_there_is_a_push_and_a_pull_coflow_per_tensor_and_a_stage_per_iteration():
    w = servers()
    assert w.stages.label == ("iteration 0", "iteration 1")
    assert w.stages.iteration.tolist() == [0, 1]
    assert w.jobs.name == ("resnet50",)
    assert w.jobs.iterations.tolist() == [2]
    labels = Counter(label.split()[0] for label in w.coflows.label)
    assert labels == {"push": 2 * RESNET_TENSORS, "pull": 2 * RESNET_TENSORS}
    assert (w.coflows.stage == w.coflows.iteration).all()
    kinds = Counter(w.tasks.kind.tolist())
    assert kinds == {
        TaskKind.FORWARD: 2 * 3 * RESNET_TENSORS,
        TaskKind.BACKWARD: 2 * 3 * RESNET_TENSORS,
        TaskKind.BARRIER: 2 * RESNET_TENSORS,
    }


def test_a_worker_computes_forward_in_order_and_backward_in_reverse():
    w = servers("vgg16")
    before = waits_for(w)
    names = [t.name for t in tensors_of("vgg16")]
    steps = [f"forward {n}" for n in names] + [f"backward {n}" for n in reversed(names)]
    for worker in range(3):
        order = [task(w, step, worker, i) for i in range(2) for step in steps]
        assert before[order[0]] == set()
        for earlier, later in pairwise(order):
            assert earlier in before[later]


def test_push_aggregate_pull_forward():
    w = servers("vgg16")
    before = waits_for(w)
    pushes = flows(w, "push conv1.weight", 0)
    assert len(pushes) == 3
    for push in pushes:
        assert before[push] == {task(w, "backward conv1.weight", int(w.flows.src[push]), 0)}
    for pull in flows(w, "pull conv1.weight", 0):
        (aggregate,) = before[pull]
        assert w.tasks.label[aggregate - w.n_flows] == "aggregate conv1.weight"
        assert w.tasks.seconds[aggregate - w.n_flows] == 0
        assert before[aggregate] == pushes
    for worker in range(3):
        for name in ("conv1.weight", "fc2.bias"):
            needed = {b for b in before[task(w, f"forward {name}", worker, 1)] if b < w.n_flows}
            assert needed == flows(w, f"pull {name}", 0, dst=worker)
            assert len(needed) == 1


def test_need_is_the_place_in_the_forward_order():
    w = servers()
    names = [t.name for t in tensors_of("resnet50")]
    assert (w.flows.need_span == RESNET_TENSORS).all()
    for flow in range(0, w.n_flows, 97):
        label = w.coflows.label[w.flows.coflow[flow]].split()[1]
        assert names[w.flows.need[flow]] == label


def test_large_tensors_are_cut_evenly_and_small_ones_fill_the_emptier_server():
    w = servers("vgg16", slice_above="1MB")
    push = flows(w, "push fc1.weight", 0, src=0)
    assert sorted(w.flows.dst[list(push)].tolist()) == [3, 4]
    assert w.flows.size[list(push)].tolist() == [102_760_448 * 2] * 2  # 4 bytes a parameter, halved
    assert len(flows(w, "push conv1.weight", 0, src=0)) == 1
    assert w.flows.size.sum() == 138_357_544 * 4 * 3 * 2 * 2
    per_server = [w.flows.size[w.flows.dst == server].sum() for server in (3, 4)]
    # No more apart than the largest whole tensor, per worker and iteration.
    assert abs(per_server[0] - per_server[1]) <= 1e6 * 3 * 2


def test_placement_goes_to_the_server_with_the_fewest_bytes_in_forward_order():
    table = tuple(Tensor(name, (n,), 0.0) for name, n in (("a", 5), ("b", 2), ("c", 2), ("d", 2), ("e", 9)))
    placed = shard(buckets_of(table, np.arange(len(table))), np.array([10, 20]), 1, Slicing(above=8.0))
    got = {bucket.label: (s.server.tolist(), s.size.tolist()) for bucket, s in placed.items()}
    assert got == {
        "a": ([10], [5]),
        "b": ([20], [2]),
        "c": ([20], [2]),
        "d": ([20], [2]),
        "e": ([10, 20], [5, 4]),  # above 8 bytes: cut into whole parameters
    }


def test_compute_time_is_arithmetic_over_speed():
    """Conv1 of ResNet-50: 2 * 64 * 3 * 49 * 112^2 FLOP; 32 samples at 5 TFLOP/s; backward twice as long."""
    w = servers()
    seconds = 32 * 2 * 64 * 3 * 49 * 112 * 112 / 5e12
    forward, backward = (task(w, f"{way} conv1.weight", 0, 0) - w.n_flows for way in ("forward", "backward"))
    assert w.tasks.seconds[forward] == pytest.approx(seconds)
    assert w.tasks.seconds[backward] == pytest.approx(2 * seconds)
    total = sum(t.flops for t in tensors_of("resnet50")) * 32 * 3 / 5e12
    assert w.tasks.seconds.sum() == pytest.approx(2 * 3 * total)


def test_a_colocated_server_still_has_its_flow():
    w = servers("vgg16", workers=["h1", "h2"], servers=["h1"])
    own = (w.flows.src == 0) & (w.flows.dst == 0)
    assert own.sum() == 2 * 2 * 32  # both ways, iterations, tensors
    assert not w.hairpin


def test_a_ring_moves_twice_the_size_less_one_share_per_worker():
    n = 4
    w = ring()
    assert w.flows.size.sum() == 2 * (n - 1) / n * RESNET_BYTES * n * 2  # iterations
    assert set(zip(w.flows.src.tolist(), w.flows.dst.tolist(), strict=True)) == {
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 0),
    }
    sent = np.bincount(w.flows.src, weights=w.flows.size)
    assert sent == pytest.approx(np.full(n, sent.mean()), rel=1e-5)


def test_a_ring_sends_what_it_has_received_and_delivers_every_chunk():
    """Follow the sets of (chunk, contributor) that each worker holds, in dependency order."""
    n = 4
    w = ring("vgg16", fuse="0B", iterations=1)
    before = waits_for(w)
    mine = sorted(flows(w, "all-reduce fc3.bias", 0))
    assert len(mine) == 2 * (n - 1) * n
    held = [{(chunk, worker) for chunk in range(n)} for worker in range(n)]
    for turn in range(2 * (n - 1)):
        news = []
        for place, flow in enumerate(mine[turn * n : (turn + 1) * n]):
            src, dst = int(w.flows.src[flow]), int(w.flows.dst[flow])
            assert src == place
            if turn == 0:
                assert before[flow] == {task(w, "backward fc3.bias", src, 0)}
            else:
                last = mine[(turn - 1) * n : turn * n]
                assert before[flow] == {last[src], last[(src - 1) % n]}
            chunk = (src - turn) % n
            assert w.flows.size[flow] == even(1000, n)[chunk] * 4
            news.append((dst, {part for part in held[src] if part[0] == chunk}))
        for dst, parts in news:
            held[dst] |= parts
    everything = {(chunk, worker) for chunk in range(n) for worker in range(n)}
    assert all(h == everything for h in held)


def test_a_ring_bucket_waits_for_its_last_gradient_and_its_first_tensor_waits_for_it():
    w = ring()
    before = waits_for(w)
    labels = [label for label, i in zip(w.coflows.label, w.coflows.iteration, strict=True) if i == 0]
    # Tensors from the last on, closed once they hold 26,214,400 bytes; the rest is the last bucket.
    assert len(labels) == 4
    assert labels[0].endswith("..fc.bias")
    assert labels[-1].startswith("all-reduce conv1.weight..")
    for label in labels:
        first = label.removeprefix("all-reduce ").split("..")[0]
        ready = {b for flow in flows(w, label, 0, src=2) for b in before[flow] if b >= w.n_flows}
        assert ready == {task(w, f"backward {first}", 2, 0)}
        arrived = {b for b in before[task(w, f"forward {first}", 2, 1)] if b < w.n_flows}
        assert arrived == {max(flows(w, label, 0, dst=2))}
        position = [t.name for t in tensors_of("resnet50")].index(first)
        assert set(w.flows.need[list(flows(w, label, 0))].tolist()) == {position}


def test_buckets_close_once_full_from_the_last_tensor_on():
    table = tuple(Tensor(name, (n,), 0.0) for name, n in (("a", 3), ("b", 4), ("c", 1), ("d", 9)))
    size = 4 * np.array([3.0, 4.0, 1.0, 9.0])
    made = {limit: buckets_of(table, fused(size, limit)) for limit in (20.0, 0.0, np.inf)}
    assert [(b.label, b.parameters) for b in made[20.0]] == [("d", 9), ("b..c", 5), ("a", 3)]
    assert [b.label for b in made[0.0]] == ["d", "c", "b", "a"]
    assert [b.label for b in made[np.inf]] == ["a..d"]


def test_jobs_start_when_told_and_live_side_by_side():
    spec = {"workers": ["h1", "h2"], "servers": ["h3"], **COMMON}
    specs = (
        Spec("training", {"model": "resnet50", **spec}),
        Spec("training", {"model": "vgg16", "start": "20ms", "weight": 2, **spec}),
    )
    w = build(specs, big_switch(4), seed=1)
    assert w.jobs.name == ("resnet50", "vgg16")
    assert w.jobs.arrival.tolist() == [0, 0.02]
    assert w.jobs.weight.tolist() == [1, 2]
    with pytest.raises(ScenarioError, match=r"^workload\.1: job 'resnet50' exists twice"):
        build((specs[0], specs[0]), big_switch(4), seed=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "resnet51"}, "'resnet51' is not a model: use one of resnet50, vgg16"),
        ({"servers": None}, "servers is missing"),
        ({"sync": "ring-allreduce"}, "ring-allreduce has no servers"),
        (
            {"sync": "ring-allreduce", "servers": None, "slice_above": "1MB"},
            "slice_above is for parameter servers",
        ),
        ({"sync": "ring-allreduce", "servers": None, "workers": ["h1"]}, "list 2 or more hosts"),
        ({"workers": []}, "is not a list of host names"),
        ({"device": {"flops": 15.7e12, "efficiency": 0.4}}, "write a number and a unit, such as 15.7TFLOP/s"),
        ({"device": {"flops": "0TFLOP/s", "efficiency": 0.4}}, "must be more than 0"),
        ({"device": {"flops": "1TFLOP/s", "efficiency": 1.5}}, "less than or equal to 1"),
        ({"batch": 0}, "greater than or equal to 1"),
        ({"iterations": True}, "valid integer"),
        ({"slice_above": "-1MB"}, "must be 0 or more"),
        ({"epochs": 3}, "Extra inputs are not permitted"),
    ],
)
def test_bad_parameters_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        servers(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": ["h1", "h99"]}, "^workload: workers: .*no host 'h99'; its hosts are h1..h8"),
        ({"servers": ["h1", "h1"]}, "servers: host 'h1' is listed twice"),
        ({"sequence": 128}, "sequence: resnet50 reads images"),
        ({"iterations": 1_000_000}, "unrolls to .* flows and tasks, at most 20,000,000"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, message):
    with pytest.raises(ScenarioError, match=message):
        servers(**change)
