"""All-reduce algorithms and sharded training: bytes against closed forms, results against what a sum is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError
from sim_cases import run
from workload_fabric import GBIT, big_switch, unrolled, waits_for

from netsched.errors import ScenarioError
from netsched.model import TaskKind, Workload
from netsched.policies.fair import Fair
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.collectives import exchange_of, parents
from netsched.workloads.exchange import Bucket, Step

ALGORITHMS = ("ring-allreduce", "tree-allreduce", "hierarchical-allreduce", "reduce-scatter-all-gather")
PARAMETERS = 12_000  # divides by 2, 3, 4, 5, 6, 8 and their products below
BYTES = 4 * PARAMETERS


def exchanged(algorithm: str, n: int, group: int = 0, pieces: int = 4) -> tuple[Workload, np.ndarray, range]:
    """One bucket exchanged by n hosts: the workload, the (n, k) end nodes, and the n ready nodes."""
    builder = WorkloadBuilder(n)
    job = builder.add_job("job")
    step = Step(job, builder.add_stage(job, "stage"), 0, 1, np.arange(n))
    ready = builder.add_tasks(job, TaskKind.BACKWARD, np.arange(n), 0.0)
    exchange, flows = exchange_of(algorithm, n, 4, group, pieces)
    ends = exchange(builder, step, Bucket(0, 0, "w", PARAMETERS), ready)
    w = builder.build()
    assert w.n_flows == flows
    return w, ends, range(w.n_flows, w.n_flows + n)


def ancestors(w: Workload, nodes: list[int]) -> set[int]:
    before, seen, todo = waits_for(w), set(nodes), list(nodes)
    while todo:
        for node in before[todo.pop()] - seen:
            seen.add(node)
            todo.append(node)
    return seen


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", [4, 6, 8])
def test_every_worker_ends_with_every_workers_gradient(algorithm, n):
    w, ends, ready = exchanged(algorithm, n, group=2)
    for worker in range(n):
        mine = ends[worker].tolist()
        assert all(w.flows.dst[flow] == worker for flow in mine)
        assert set(ready) <= ancestors(w, mine)


@pytest.mark.parametrize("algorithm", ["ring-allreduce", "reduce-scatter-all-gather"])
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_a_ring_sends_2_n_minus_1_over_n_of_the_bytes(algorithm, n):
    """Patarasu and Yuan (2009): the least that an all-reduce can send per process."""
    w, _, _ = exchanged(algorithm, n)
    assert np.bincount(w.flows.src, w.flows.size).tolist() == [2 * (n - 1) / n * BYTES] * n
    assert np.bincount(w.flows.dst, w.flows.size).tolist() == [2 * (n - 1) / n * BYTES] * n


def test_the_two_halves_are_a_coflow_each_of_the_same_bytes():
    w, _, _ = exchanged("reduce-scatter-all-gather", 4)
    assert w.coflows.label == ("reduce-scatter w", "all-gather w")
    assert np.bincount(w.flows.coflow, w.flows.size).tolist() == [3 * BYTES] * 2


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 12, 13, 16, 31])
def test_two_trees_share_no_inner_node_and_are_shallow(n):
    """Sanders, Speck, Träff (2009): a rank is inner in one tree at most, depth near log2 n.

    But for rank 0 of an odd number in NCCL's numbering: the first tree's root, and inner in the shifted one.
    """
    inner = []
    for parent in parents(n):
        assert (parent < 0).sum() == 1
        for rank in range(n):
            at, hops = rank, 0
            while parent[at] >= 0:
                at, hops = int(parent[at]), hops + 1
            assert hops <= math.ceil(math.log2(n)) + 1
        assert np.bincount(parent[parent >= 0], minlength=n).max() <= 2
        inner.append({int(p) for p in parent if p >= 0})
    assert inner[0] & inner[1] == ({0} if n % 2 else set())


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_trees_send_as_much_as_a_ring_and_nobody_more_than_twice_the_bytes(n):
    w, _, _ = exchanged("tree-allreduce", n)
    assert w.flows.size.sum() == 2 * (n - 1) * BYTES
    assert np.bincount(w.flows.src, w.flows.size, n).max() <= 2 * BYTES
    assert np.bincount(w.flows.dst, w.flows.size, n).max() <= 2 * BYTES


def test_a_tree_of_one_piece_takes_two_hops_a_level():
    """Two ranks, one piece: each half goes up, then down, both trees at once, a link one half at a time."""
    w, _, _ = exchanged("tree-allreduce", 2, pieces=1)
    assert run(w, big_switch(2, 1000.0), Fair()).simulated_s == pytest.approx(BYTES / 1000)


@pytest.mark.parametrize(("nodes", "group"), [(2, 2), (2, 3), (3, 2), (4, 2)])
def test_hierarchical_sends_little_across_nodes(nodes, group):
    n = nodes * group
    w, _, _ = exchanged("hierarchical-allreduce", n, group=group)
    across = w.flows.src // group != w.flows.dst // group
    for end in (w.flows.src, w.flows.dst):
        inside = np.bincount(end[~across], w.flows.size[~across])
        outside = np.bincount(end[across], w.flows.size[across])
        assert inside.tolist() == pytest.approx([2 * (group - 1) / group * BYTES] * n)
        assert outside.tolist() == pytest.approx([2 * (nodes - 1) / nodes * BYTES / group] * n)


@pytest.mark.parametrize(
    ("algorithm", "share"),
    [
        ("ring-allreduce", 2 * 3 / 4),
        ("reduce-scatter-all-gather", 2 * 3 / 4),
        ("hierarchical-allreduce", 2 * 1 / 2 + 2 * 1 / 2 / 2),
    ],
)
def test_time_is_bytes_over_capacity_where_nothing_else_is_going_on(algorithm, share):
    w, _, _ = exchanged(algorithm, 4, group=2)
    outcome = run(w, big_switch(4, 1000.0), Fair())
    assert outcome.simulated_s == pytest.approx(share * BYTES / 1000)


# ------------------------------------------------------------------ sharded training

ALEXNET = 61_100_840 * 4
FSDP = {
    "model": "alexnet",
    "workers": ["h1", "h2", "h3", "h4"],
    "sync": "fsdp",
    "iterations": 2,
    "batch": 8,
    "device": {"flops": "10TFLOP/s", "efficiency": 0.5},
}


def test_sharding_sends_three_times_n_minus_1_over_n_of_the_bytes():
    """Rajbhandari et al. (2020), section 7.2: 3 times the model's size where plain data parallel has 2."""
    w = unrolled("training", **FSDP)
    assert np.bincount(w.flows.src, w.flows.size).tolist() == pytest.approx([2 * 3 * 3 / 4 * ALEXNET] * 4)
    kinds = {label.rsplit(" ", 1)[0] for label in w.coflows.label}
    assert kinds == {"all-gather forward", "all-gather backward", "reduce-scatter"}


def test_one_unit_gathers_computes_gathers_computes_scatters():
    w = unrolled("training", **FSDP, fuse="1GB")
    compute = w.tasks.seconds.sum() / 4
    outcome = run(w, big_switch(8), Fair())
    assert outcome.simulated_s == pytest.approx(compute + 2 * 3 * 3 / 4 * ALEXNET / GBIT)


def test_a_gather_is_ahead_of_the_computation_by_so_many_units():
    w = unrolled("training", **FSDP, fuse="0B", prefetch=2)
    before = waits_for(w)
    first = {
        w.coflows.label[c]: int(np.flatnonzero(w.flows.coflow == c)[0])
        for c in range(len(w.coflows.label))
        if w.coflows.iteration[c] == 0
    }

    def computations(label: str) -> set[str]:
        return {w.tasks.label[n - w.n_flows] for n in before[first[label]] if n >= w.n_flows}

    assert (
        computations("all-gather forward conv2.weight") == set()
    )  # the third tensor: nothing is 3 before it
    assert computations("all-gather forward conv2.bias") == {"forward conv1.weight"}
    assert computations("all-gather backward fc3.bias") == {"forward fc2.bias", "forward fc3.bias"}
    assert computations("all-gather backward fc3.weight") == {"forward fc3.weight"}
    assert computations("reduce-scatter conv1.weight") == {"backward conv1.weight"}


def test_the_next_iteration_gathers_what_the_last_one_updated():
    w = unrolled("training", **FSDP, fuse="0B")
    before = waits_for(w)
    coflow = {(w.coflows.label[c], int(w.coflows.iteration[c])): c for c in range(len(w.coflows.label))}
    gather = np.flatnonzero(w.flows.coflow == coflow["all-gather forward fc1.weight", 1])[:4]
    scatter = set(np.flatnonzero(w.flows.coflow == coflow["reduce-scatter fc1.weight", 0]).tolist())
    for flow in gather.tolist():
        assert len(before[flow] & scatter) == 2  # the worker's last arrival and its last send


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sync": "hierarchical-allreduce"}, "group is missing"),
        ({"group": 2}, "group is for hierarchical-allreduce: leave it out with fsdp"),
        ({"pieces": 2}, "pieces is for tree-allreduce"),
        ({"sync": "tree-allreduce", "prefetch": 3}, "prefetch is for fsdp"),
        ({"servers": ["h5"]}, "fsdp has no servers"),
        ({"sync": "tree"}, "Input should be 'parameter-server', 'ring-allreduce'"),
    ],
)
def test_keys_that_do_not_suit_the_exchange_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        unrolled("training", **{**FSDP, **change})


def test_nodes_of_unequal_size_are_refused():
    with pytest.raises(ScenarioError, match=r"^workload: group: 3 workers a node do not divide 4 workers"):
        unrolled("training", **{**FSDP, "sync": "hierarchical-allreduce", "group": 3})
