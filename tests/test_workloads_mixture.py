"""Experts whose tokens come in chunks: times of two streams worked by hand, what `parallel` carries then."""

from __future__ import annotations

import math

import numpy as np
import pytest
from result_cases import star
from sim_cases import run
from workload_fabric import big_switch

from netsched.errors import ScenarioError
from netsched.model import Spec, TaskKind, Workload
from netsched.policies.dear import DeAr
from netsched.policies.fair import Fair
from netsched.policies.schemoe import ScheMoe
from netsched.shape import Mixture, Profile, Shape, reshape_of
from netsched.workloads import build
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.exchange import Step
from netsched.workloads.mixture import Experts, add_experts


def seconds(mixture: Mixture, kind: TaskKind = TaskKind.FORWARD) -> float:
    """A layer of experts on two hosts at 1 B/s: 4 B per host, of which half leave it, and 4 s of work."""
    made = WorkloadBuilder(2)
    job = made.add_job("job")
    step = Step(job, made.add_stage(job, "stage"), 0, 1, np.arange(2))
    item = Experts(4.0, 4.0, mixture, "layer")
    nothing = np.empty((2, 1, 0), np.int64)
    add_experts(made, step, item, np.array([[0], [1]]), nothing, kind, "pass")
    return run(made.build(), star(2, 1.0), Fair()).simulated_s


def test_in_one_piece_nothing_overlaps():
    assert seconds(Mixture()) == pytest.approx(2 + 4 + 2)
    assert seconds(Mixture(), TaskKind.BACKWARD) == pytest.approx(2 + 8 + 2)


def test_two_chunks_overlap():
    # Sent there by 1 and 2 s; computed from 1 to 3 and to 5 s; sent back by 4 and by 6 s.
    assert seconds(Mixture(2)) == pytest.approx(6.0)
    # Four: sent by 0.5, 1, 1.5, 2 s; computed from 0.5 s to 4.5 s; the last one back by 5 s.
    assert seconds(Mixture(4)) == pytest.approx(5.0)


def test_packing_is_computing():
    # 2 B of a chunk at 2 B/s: 1 s. Packed at 1 and 2 s; unpacked by 3 s, computed by 5, packed by 6 s; the
    # second one by 7, 9, 10 s, back at 11 s; the first one, there since 7 s, is unpacked meanwhile.
    assert seconds(Mixture(2, coder=2.0)) == pytest.approx(12.0)
    # Half the bytes: nothing waits for what is sent, except the second chunk's unpacking for the first one's.
    assert seconds(Mixture(2, ratio=2.0, coder=2.0)) == pytest.approx(12.0)
    # Without packing half the bytes are half the sending: from 0.5 s to 4.5 s, and back by 5 s.
    assert seconds(Mixture(2, ratio=2.0)) == pytest.approx(5.0)


PARALLEL = {
    "model": "mixtral-8x7b",
    "hosts": ["h1", "h2"],
    "data": 2,
    "batch": 1,
    "iterations": 1,
    "sequence": 64,
    "device": {"flops": "312TFLOP/s", "efficiency": 0.4},
}


def carried(policy: object, **more: object) -> Workload:
    spec = Spec("parallel", {**PARALLEL, **more})
    return build((spec,), big_switch(4, 1e9), 1, reshape_of(policy))  # type: ignore[arg-type]


def test_chunks_carry_the_bytes_of_the_whole():
    plain, two = carried(Fair()), carried(ScheMoe())
    assert two.flows.size.sum() == pytest.approx(plain.flows.size.sum())
    assert two.tasks.seconds.sum() == pytest.approx(plain.tasks.seconds.sum())
    routed = [sum(label.startswith("all-to-all") for label in w.coflows.label) for w in (plain, two)]
    assert routed == [2 * 2 * 32, 2 * routed[0]]
    packed = carried(ScheMoe(ratio=4.0, coder=math.inf))
    # Of 64 tokens of 4096 x 2 B for two experts each, half go to the other host: 128 times per host.
    moved = 128 * 2 * 64 * 4096 * 2 * 2 / 2
    assert plain.flows.size.sum() - packed.flows.size.sum() == pytest.approx(3 / 4 * moved)


def test_one_chunk_is_what_it_was():
    def took(policy: object) -> float:
        return run(carried(policy), big_switch(4, 1e9), Fair()).simulated_s

    assert took(Fair()) == took(ScheMoe(chunks=1)) > took(ScheMoe())


def test_jobs_without_experts_apart_are_left_alone():
    for more in ({"model": "gpt3-1.3b"}, {"data": 1, "tensor": 2}):
        same, plain = carried(ScheMoe(), **more), carried(Fair(), **more)
        assert np.array_equal(same.flows.size, plain.flows.size)
        assert same.coflows.label == plain.coflows.label
    # And what others make of tensors does not concern a mixture.
    assert carried(DeAr()).coflows.label == carried(Fair()).coflows.label


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda shape: Shape(shape.first, sync="fsdp"), "sync: only how tokens reach their experts"),
        (lambda shape: Shape(shape.first, sync=shape.sync, mixture=Mixture(0)), "chunks is 0, must be"),
        (lambda shape: Shape(shape.first, sync=shape.sync, mixture=Mixture(2, 0.5)), "ratio is 0.5, must"),
        (lambda shape: Shape(shape.first, sync=shape.sync, mixture=Mixture(2, 1, 0)), "coder is 0 B/s, must"),
    ],
)
def test_a_mixture_refuses_other_shapes(made, message):
    class Odd(Fair):
        def reshape(self, profile: Profile, shape: Shape) -> Shape:
            assert profile.experts == 8 and profile.workers == 2 and profile.rate == 1e9
            return made(shape)

    with pytest.raises(ScenarioError, match=message):
        carried(Odd())
