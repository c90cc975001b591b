"""ByteScheduler, MG-WFBP, DeAR, Mercury: what they make of tiny jobs, against times worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_cases import star
from sender_cases import ends, finishes, forward_ends, model, now, ran, tiny_job, with_needs
from sim_cases import PER_FLOW, PER_PAIR, run
from workload_fabric import big_switch

from netsched.errors import ScenarioError
from netsched.model import Policy, Spec
from netsched.policies import make
from netsched.policies.bytescheduler import ByteScheduler
from netsched.policies.dear import DeAr, groups
from netsched.policies.fair import Fair
from netsched.policies.mercury import Mercury
from netsched.policies.mg_wfbp import MgWfbp, merged
from netsched.policies.p3 import P3
from netsched.policies.prophet import Prophet
from netsched.shape import reshape_of
from netsched.workloads import build

RING = {"workers": ["h1", "h2"], "sync": "ring-allreduce"}
SERVERS = {"workers": ["h1", "h2"], "servers": ["h3", "h4"]}

# ------------------------------------------------------------------ ByteScheduler


@pytest.mark.parametrize("seed", range(6))
def test_a_credit_of_one_piece_is_stop_and_wait(seed):
    workload, alone = with_needs(seed, 16), ByteScheduler(credit=1e-9)
    mine, right = (run(workload, star(4, 1.0), each).flow_finish for each in (alone, P3(blocking=True)))
    assert mine.tolist() == right.tolist()


@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])
@pytest.mark.parametrize("seed", range(4))
def test_an_unlimited_credit_is_first_in_first_out_on_every_connection(seed, transport):
    workload = with_needs(seed, 16)
    mine, right = (
        run(workload, star(4, 1.0), each, transport=transport).flow_finish
        for each in (ByteScheduler(credit=math.inf), Fair())
    )
    np.testing.assert_allclose(mine, right, rtol=1e-12)


def test_credit_may_go_below_zero_by_one_piece():
    # 1.5 B each, to one host. 2 B of credit: two share until 3 s, then the third goes.
    pieces = now(*((0, 1, 1.5, need) for need in (2, 0, 1)))
    assert finishes(ByteScheduler(credit=2.0), pieces) == pytest.approx([4.5, 3.0, 3.0])
    assert finishes(ByteScheduler(credit=1.5), pieces) == pytest.approx([4.5, 1.5, 3.0])


def test_an_urgent_piece_waits_for_credit_and_then_goes_first():
    # Four pieces of 1 B; the urgent one comes at 0.5 s. Credit 1: behind one piece. Credit 2: behind the two
    # that share until 2 s; it then shares with the third one.
    pieces = [(0.0, (0, 1, 1.0, 5))] * 4
    urgent = (0.5, (0, 2, 1.0, 0))
    assert finishes(ByteScheduler(credit=1.0), [*pieces, urgent]) == pytest.approx([1.0, 3.0, 4.0, 5.0, 2.0])
    assert finishes(ByteScheduler(credit=2.0), [*pieces, urgent]) == pytest.approx([2.0, 2.0, 4.0, 5.0, 4.0])


def test_bytescheduler_cuts_to_its_partition(monkeypatch):
    model(monkeypatch, [4, 10], [1.0, 1.0])
    w = tiny_job(ByteScheduler(partition=4.0), 1.0, fuse="1kB", **SERVERS)
    pushed = {
        label: w.flows.size[w.flows.coflow == row].tolist()
        for row, label in enumerate(w.coflows.label)
        if label.startswith("push")
    }
    # 10 B over two servers in pieces of at most 4: four of 3, 3, 2, 2, from each of two workers.
    assert pushed == {"push t1": [3, 3, 2, 2] * 2, "push t0": [4] * 2}


# ------------------------------------------------------------------ MG-WFBP


def test_gradients_are_merged_where_the_rule_says_so():
    size, ready = np.array([1.0, 1.0, 1.0]), np.array([3.0, 2.0, 1.0])
    # a = b = 1. Tensor 2 from 1 to 3 s; at 2 s it has run for a whole a, so tensor 1 is not merged with it.
    # That one would begin at 3 s, when tensor 0 is there: less than a before, so it waits for it.
    assert merged(size, ready, 1.0, 1.0).tolist() == [0, 2]
    # A start-up of more than the second that it has run for: all in one.
    assert merged(size, ready, 1.001, 1.0).tolist() == [0]
    # Without a start-up only what has not begun is merged: tensor 1 begins at 4 s, tensor 0 is there at 3 s;
    # with 2 s each tensor 1 begins at 3 s.
    assert merged(size, ready, 0.0, 3.0).tolist() == [0, 2]
    assert merged(size, ready, 0.0, 2.0).tolist() == [0, 1, 2]
    # An all-reduce that has ended before the next gradient has nothing to wait for.
    assert merged(size, np.array([30.0, 20.0, 10.0]), 1.0, 1.0).tolist() == [0, 1, 2]


@given(
    st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.01, 2)), min_size=1, max_size=9),
    st.floats(0, 3),
    st.floats(0.01, 2),
)
@settings(max_examples=200, deadline=None)
def test_merging_never_ends_later_than_its_two_extremes(layers, a, b):
    size, backward = (np.array(column) for column in zip(*layers, strict=True))
    ready = np.cumsum(backward[::-1])[::-1]

    def end(first: list[int]) -> float:
        at = 0.0
        for begin, stop in reversed(list(zip(first, [*first[1:], len(size)], strict=True))):
            at = max(at, ready[begin]) + a + b * size[begin:stop].sum()
        return at

    mine = end(merged(size, ready, a, b).tolist())
    assert mine <= min(end(list(range(len(size)))), end([0])) * (1 + 1e-12)


def test_mg_wfbp_in_the_simulator_takes_what_its_model_says(monkeypatch):
    # Two workers, theta 0.5 s, 2 B/s: a = 2 x 0.5 s, b = 1/2 s/B. Three tensors of 2 B, backward 1 s each.
    model(monkeypatch, [2, 2, 2], [0.5, 0.5, 0.5])
    done = {
        merge: ran(MgWfbp(merge=merge), 2.0, theta="500ms", **RING)[1].simulated_s
        for merge in ("rule", "never", "always")
    }
    # Forward until 1.5 s. By the rule 2 s from 2.5 s, then 1 + 2 s; apart 3 x 2 s; as one 1 + 3 s from 4.5 s.
    assert done == pytest.approx({"rule": 7.5, "never": 8.5, "always": 8.5})


def test_at_the_authors_figures_for_8_workers_merging_beats_both_extremes():
    # Their code, 10 GbE: a = 523 us, b = 0.857 ns/B; a ring has these at theta = a / 14, rate = 14 / 8 / b.
    a, b = 5.23e-4, 8.57e-10
    hosts = [f"h{n}" for n in range(1, 9)]
    params = {
        "model": "alexnet",
        "workers": hosts,
        "sync": "ring-allreduce",
        "iterations": 1,
        "batch": 128,
        "theta": f"{a / 14 * 1e6}us",
        "device": {"flops": "10TFLOP/s", "efficiency": 0.25},
    }
    fabric = big_switch(8, 14 / 8 / b)
    took = {}
    for merge in ("rule", "never", "always"):
        policy = MgWfbp(merge=merge)
        workload = build((Spec("training", params),), fabric, 1, reshape_of(policy))
        took[merge] = run(workload, fabric, policy).simulated_s
    assert took["rule"] < min(took["never"], took["always"])


# ------------------------------------------------------------------ DeAR


def test_groups_hold_what_fits():
    assert groups(np.array([3.0, 4.0, 1.0, 9.0, 2.0]), 8.0).tolist() == [0, 3, 4]
    assert groups(np.array([3.0, 4.0]), 0.0).tolist() == [0, 1]
    assert groups(np.array([3.0, 4.0]), 7.0).tolist() == [0]


def test_dear_hides_gathers_behind_the_next_forward_pass(monkeypatch):
    # Three tensors of 2 B on 1/2 B/s: each half of a ring of two takes 2 s. Forward 1 s each, backward 2 s.
    model(monkeypatch, [2, 2, 2], [1.0, 1.0, 1.0])
    w, outcome = ran(DeAr(fuse=0.0), 0.5, iterations=2, **RING)
    # Gradients at 5, 7, 9 s; reduced by 7, 9, 11 s. Then the first gather, to 13 s; behind its forward (to
    # 14 s) the second one, to 15 s; when that one's forward begins, at 15 s, the third one, to 17 s.
    assert ends(w, outcome, "reduce-scatter") == pytest.approx([7.0, 9.0, 11.0])
    assert ends(w, outcome, "all-gather") == pytest.approx([13.0, 15.0, 17.0])
    assert forward_ends(w, outcome) == pytest.approx([3.0, 18.0])
    # An all-reduce of 4 s each: from 5 s to 17 s, forward to 20 s.
    whole = ran(MgWfbp(merge="never"), 0.5, iterations=2, **RING)
    assert forward_ends(*whole) == pytest.approx([3.0, 20.0])


def test_gathers_that_are_faster_than_the_forward_pass_cost_only_the_first(monkeypatch):
    # 2 B/s: each half takes 1/2 s. Computing takes 3 x (1 + 2) s; all is reduced 1/2 s later, then gathered.
    model(monkeypatch, [2, 2, 2], [1.0, 1.0, 1.0])
    w, outcome = ran(DeAr(fuse=0.0), 2.0, iterations=3, **RING)
    first, second, third = forward_ends(w, outcome)
    assert second - first == pytest.approx(9 + 0.5 + 0.5) == third - second
    # What the last iteration has reduced is gathered without computing: three halves.
    assert outcome.simulated_s == pytest.approx(third + 6 + 0.5 + 3 * 0.5)


def test_dear_carries_what_a_ring_carries(monkeypatch):
    model(monkeypatch, [8, 12, 4], [1.0, 1.0, 1.0])
    plain, mine = (tiny_job(each, 1.0, iterations=3, **RING) for each in (Fair(), DeAr(fuse=12.0)))
    assert mine.flows.size.sum() == plain.flows.size.sum() == 3 * 2 * 24
    assert {label for label in mine.coflows.label if label.startswith("all-gather")} == {
        "all-gather t0",
        "all-gather t1",
        "all-gather t2",
    }


# ------------------------------------------------------------------ Mercury's aggregation


def test_a_pull_follows_the_slowest_workers_pushed_prefix(monkeypatch):
    # Two workers, one server, 4 B each at 1 B/s, from 3 s on. Whole: pushed by 11 s, pulled by 19 s. In steps
    # of 1 B: aggregated at 5, 7, 9, 11 s, each pulled within 2 s.
    model(monkeypatch, [4], [1.0])
    one = {"workers": ["h1", "h2"], "servers": ["h3"]}
    assert ran(Mercury(step=100.0), 1.0, **one)[1].simulated_s == pytest.approx(19.0)
    assert ran(Mercury(step=1.0), 1.0, **one)[1].simulated_s == pytest.approx(13.0)


@pytest.mark.parametrize("theta", [0.0, 0.125, 0.5])
def test_mercurys_gain_over_partitions_is_their_start_ups_and_vanishes_with_them(monkeypatch, theta):
    # One worker, one server, 4 B at 1 B/s from 3 s on. In four pieces each step takes theta + 1 s, the last
    # one both ways: 5 of them. A tensor pays once each way, and its pull begins when 1 B is there.
    model(monkeypatch, [4], [1.0])
    one = {"workers": ["h1"], "servers": ["h3"], "theta": f"{theta}s"}
    cut = ran(P3(), 1.0, slice="1B", **one)[1].simulated_s
    mine = ran(Mercury(step=1.0), 1.0, **one)[1].simulated_s
    assert (cut, mine) == pytest.approx((3 + 5 * (theta + 1), 3 + 2 * theta + 5))


@pytest.mark.parametrize(("workers", "right"), [(["h1"], 5 + 32 + 1), (["h1", "h2"], 5 + 2 * 32 + 2)])
def test_bytescheduler_with_partitions_of_a_packet_is_mercury(monkeypatch, workers, right):
    # From the first gradient at 5 s on the server's port takes all workers' 32 B at 1 B/s, and gives back the
    # last byte of each. Larger partitions, or what each costs to start, are what Mercury saves.
    model(monkeypatch, [8, 16, 8], [1.0, 1.0, 1.0])
    job = {"workers": workers, "servers": ["h3"]}

    def gap(packet: float, theta: float = 0.0) -> float:
        cut = ByteScheduler(partition=packet, credit=packet)
        two = [ran(each, 1.0, theta=f"{theta}s", **job)[1].simulated_s for each in (cut, Mercury(step=1.0))]
        return two[0] - two[1]

    assert ran(Mercury(step=1.0), 1.0, **job)[1].simulated_s == pytest.approx(right)
    assert [gap(packet) > 0.5 for packet in (8.0, 4.0, 2.0)] == [True] * 3
    assert gap(1.0) == pytest.approx(0.0, abs=1e-9)
    assert gap(4.0, theta=0.125) > 0.5


def test_steps_have_no_order_of_messages_to_keep(monkeypatch):
    model(monkeypatch, [4], [1.0])
    with pytest.raises(ScenarioError, match="theta_series: connection has an order of whole messages"):
        tiny_job(Mercury(), 1.0, theta="1s", theta_series="connection", **SERVERS)


def test_mercury_leaves_rings_as_they_are(monkeypatch):
    model(monkeypatch, [4], [1.0])
    plain, mine = (tiny_job(each, 1.0, **RING) for each in (Fair(), Mercury(step=1.0)))
    assert mine.flows.size.tolist() == plain.flows.size.tolist()


# ------------------------------------------------------------------ whom they take


@pytest.mark.parametrize(
    ("policy", "job", "message"),
    [
        (ByteScheduler(), {**RING, "sync": "fsdp"}, "sync: fsdp, whose units cannot be cut"),
        (Prophet(), RING, "prophet is for pushes to servers: write sync: parameter-server"),
        (MgWfbp(), SERVERS, "write sync: ring-allreduce, or the policy's without_servers: true"),
        (DeAr(), SERVERS, "write sync: ring-allreduce, or the policy's without_servers: true"),
        (DeAr(), {**RING, "sync": "tree-allreduce"}, "sync: tree-allreduce, but this system merges"),
        (
            MgWfbp(without_servers=True),
            {"workers": ["h1"], "servers": ["h2"]},
            "one worker, which has no ring",
        ),
    ],
    ids=lambda value: repr(value) if not isinstance(value, dict | str) else "",
)
def test_jobs_that_a_system_is_not_for_are_refused(monkeypatch, policy: Policy, job, message):
    model(monkeypatch, [2, 2], [1.0, 1.0])
    with pytest.raises(ScenarioError, match=message):
        tiny_job(policy, 1.0, **job)


@pytest.mark.parametrize("policy", [MgWfbp(), DeAr()], ids=repr)
def test_servers_can_be_left_out(monkeypatch, policy):
    model(monkeypatch, [2, 2], [1.0, 1.0])
    w = tiny_job(replace(policy, without_servers=True), 1.0, **SERVERS)
    assert set(w.flows.src.tolist()) == {0, 1} == set(w.flows.dst.tolist())


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("bytescheduler", {"credit": "0B"}, "credit 0.0 B: must be above 0"),
        ("bytescheduler", {"partition": "4"}, "is not a size"),
        ("prophet", {"factor": 0}, "factor is 0.0"),
        ("prophet", {"bandwidth": "fast"}, "is not a rate"),
        ("mg-wfbp", {"merge": "sometimes"}, "merge"),
        ("mg-wfbp", {"per_byte": -1.0}, "per_byte -1.0 s/B: must be 0 or more"),
        ("dear", {"fuse": 3}, "is not a size"),
        ("mercury", {"step": "0B"}, "step is 0.0 B"),
    ],
)
def test_parameters_without_sense_are_refused(name, params, message):
    with pytest.raises(ScenarioError, match=rf"policies\.{name}.*{message}"):
        make(Spec(name, params))
