"""Geryon, Mercury, P3, TicTac, Beamer, JPAS, Parrot: schedules worked by hand, and what they must reduce to.

Links carry 1 B/s, so that a flow of x bytes takes x seconds alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_cases import star
from sender_cases import finishes, now, tensors, with_needs
from sim_cases import PER_FLOW, PER_PAIR, Case, run

from netsched.control import decide
from netsched.errors import ScenarioError
from netsched.model import Event, Plan, Policy, Spec, Transport, View, Workload
from netsched.policies import make
from netsched.policies.beamer import Beamer
from netsched.policies.fair import Fair
from netsched.policies.fifo import Fifo
from netsched.policies.geryon import Geryon
from netsched.policies.jpas import Jpas
from netsched.policies.mercury import Mercury
from netsched.policies.p3 import P3
from netsched.policies.parrot import Parrot, scaled_rates
from netsched.policies.senders import turns
from netsched.policies.sincronia import Sincronia
from netsched.policies.tensorexpress import TensorExpress
from netsched.policies.tictac import TicTac


@dataclass(frozen=True)
class Watched:
    """Asks a policy and keeps what it was shown."""

    policy: Policy
    seen: list[View] = field(default_factory=list)

    name: ClassVar[str] = "watched"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.FLOW_FINISHED

    def __call__(self, view: View) -> Plan:
        self.seen.append(view)
        return decide(self.policy, view, view.queues)


def shown(workload: Workload, policy: Policy, queues: int | None = None) -> list[View]:
    spy = Watched(policy)
    run(workload, star(4, 1.0), spy, queues=queues)
    return spy.seen


def ended(workload: Workload, policy: Policy, queues: int | None, transport: Transport) -> list[float]:
    return run(workload, star(4, 1.0), policy, queues=queues, transport=transport).flow_finish.tolist()


# ------------------------------------------------------------------ Geryon


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("transport", [PER_PAIR, PER_FLOW], ids=["per-pair", "per-flow"])
def test_geryon_with_one_level_is_first_come_first_served_in_every_connection(seed, transport):
    # What the paper compares itself with: one connection per pair of hosts, and nothing said of it.
    workload = with_needs(seed, 16)
    geryon, vanilla = (ended(workload, policy, 8, transport) for policy in (Geryon(levels=1), Fair()))
    assert geryon == vanilla


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 3), st.integers(0, 15)), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_geryon_with_one_level_and_one_pair_of_hosts_is_fifo(flows):
    # Arrivals of one instant go by number in a queue, and by coflow number under FIFO.
    workload = tensors([(at, (0, 1, size, need)) for at, size, need in flows])
    geryon, fifo = (ended(workload, policy, None, PER_PAIR) for policy in (Geryon(levels=1), Fifo()))
    assert geryon == pytest.approx(fifo, rel=1e-12)


@pytest.mark.parametrize("split", ["geometric", "equal"])
@pytest.mark.parametrize("seed", range(6))
def test_geryon_with_a_level_per_tensor_is_tensorexpress_with_a_queue_per_tensor(seed, split):
    workload, geryon = with_needs(seed, 8), Geryon(levels=8, split=split)
    for view in shown(workload, TensorExpress(), queues=8):
        for right in (TensorExpress(), TensorExpress(levels=8)):
            assert geryon(view).rank.tolist() == right(view).rank.tolist()
    assert ended(workload, geryon, 8, PER_PAIR) == ended(workload, TensorExpress(), 8, PER_PAIR)


def levels_of(policy: Geryon, span: int, queues: int | None = None) -> list[int]:
    """The level of each of `span` tensors."""
    (view, *_) = shown(tensors(now(*((0, 1, 1.0, 0) for _ in range(span)))), Fair())
    places = replace(view.flows, need=np.arange(span), need_span=np.full(span, span))
    return policy(replace(view, flows=places, queues=queues)).rank.tolist()


@pytest.mark.parametrize(
    ("policy", "span", "right"),
    [
        # Halves: the last level from 16 / 2, the one before from 16 / 4, the second from 16 / 8.
        (Geryon(levels=4), 16, [0] * 2 + [1] * 2 + [2] * 4 + [3] * 8),
        (Geryon(levels=4, split="equal"), 16, [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4),
        # ceil(5 / 8) = 1, ceil(5 / 4) = 2, ceil(5 / 2) = 3.
        (Geryon(levels=4), 5, [0, 1, 2, 3, 3]),
        (Geryon(levels=2), 5, [0, 0, 0, 1, 1]),
        (Geryon(levels=1), 3, [0, 0, 0]),
        (Geryon(levels=8), 3, [0, 1, 2]),
        (Geryon(bounds=(1 / 3, 0.5)), 6, [0, 0, 1, 2, 2, 2]),
        (Geryon(levels=0), 3, [0, 1, 2]),
    ],
    ids=repr,
)
def test_where_geryons_levels_begin(policy, span, right):
    assert levels_of(policy, span) == right


def test_geryon_without_a_number_of_levels_has_the_hardwares():
    assert levels_of(Geryon(levels=0, split="equal"), 8, queues=2) == [0] * 4 + [1] * 4


# ------------------------------------------------------------------ what senders do by themselves


def test_only_switches_know_whose_tensor_is_needed_first():
    # Two workers, one server. TensorExpress' switch lets the urgent one pass; otherwise the port is shared.
    jobs = now((0, 2, 1.0, 0), (1, 2, 1.0, 5))
    assert finishes(TensorExpress(), jobs) == pytest.approx([1.0, 2.0])
    for policy in (Mercury(), P3(), P3(blocking=True), TicTac()):
        assert finishes(policy, jobs) == pytest.approx([2.0, 2.0]), policy


@pytest.mark.parametrize("policy", [Mercury(), P3(), P3(blocking=True), TicTac(timing=True)], ids=repr)
def test_a_sender_sends_first_what_is_needed_first(policy):
    # From one host to one other: 2 B needed at place 9, 1 B at place 4, 3 B at place 7.
    jobs = now((0, 1, 2.0, 9), (0, 1, 1.0, 4), (0, 1, 3.0, 7))
    assert finishes(policy, jobs) == pytest.approx([6.0, 1.0, 4.0])


@pytest.mark.parametrize(
    ("policy", "one_tensor", "two_tensors"),
    [
        # One tensor to two workers: they share; or one message goes after the other; or pairs are apart.
        (Mercury(), [2.0, 2.0], [2.0, 1.0]),
        (P3(), [1.0, 2.0], [2.0, 1.0]),
        (P3(blocking=True), [1.0, 2.0], [2.0, 1.0]),
        (TicTac(), [2.0, 2.0], [2.0, 2.0]),
    ],
    ids=lambda value: repr(value) if not isinstance(value, list) else "",
)
def test_one_sender_with_several_receivers(policy, one_tensor, two_tensors):
    assert finishes(policy, now((0, 1, 1.0, 3), (0, 2, 1.0, 3))) == pytest.approx(one_tensor)
    assert finishes(policy, now((0, 1, 1.0, 5), (0, 2, 1.0, 3))) == pytest.approx(two_tensors)


def test_mercury_sends_parts_of_one_tensor_in_order_and_copies_together():
    # 1 B parts of one tensor, two for each of two workers: the first parts share, then the second ones do.
    jobs = now(*((0, dst, 1.0, 3) for dst in (1, 1, 2, 2)))
    assert finishes(Mercury(), jobs) == pytest.approx([2.0, 4.0, 2.0, 4.0])
    assert finishes(P3(), jobs) == pytest.approx([1.0, 2.0, 3.0, 4.0])


def test_a_second_flow_is_not_put_behind_the_first_flow_of_another_sender():
    # Host 0's first flow has half of host 3's port, so its second one has the other half of its own port; it
    # meets a first flow of host 2 at host 4, and they share like equals: 1 B each at 1/2 B/s.
    jobs = now((0, 3, 1.0, 0), (1, 3, 1.0, 0), (0, 4, 1.0, 1), (2, 4, 1.0, 0))
    for policy in (Mercury(), P3()):
        assert finishes(policy, jobs) == pytest.approx([2.0, 2.0, 2.0, 2.0])


def test_what_the_first_message_cannot_use_goes_to_the_next_unless_it_blocks():
    # Host 0's first message shares host 2's port with host 1's: half a port is left for its second one.
    jobs = now((0, 2, 1.0, 0), (1, 2, 1.0, 0), (0, 3, 1.0, 1))
    assert finishes(Mercury(), jobs) == pytest.approx([2.0, 2.0, 2.0])
    assert finishes(P3(), jobs) == pytest.approx([2.0, 2.0, 2.0])
    assert finishes(P3(blocking=True), jobs) == pytest.approx([2.0, 2.0, 3.0])


def test_a_message_that_blocks_is_ended_first():
    jobs = [(0.0, (0, 1, 2.0, 5)), (1.0, (0, 1, 1.0, 0))]
    assert finishes(P3(), jobs) == pytest.approx([3.0, 2.0])
    assert finishes(P3(blocking=True), jobs) == pytest.approx([2.0, 3.0])


def test_slices_bound_what_an_urgent_tensor_waits_for():
    # The same 2 B in slices of 0.5 B, the urgent tensor at 0.75 s: it waits for the second slice's end only.
    slices = [(0.0, (0, 1, 0.5, 5))] * 4
    done = finishes(P3(blocking=True), [*slices, (0.75, (0, 1, 1.0, 0))])
    assert done == pytest.approx([0.5, 1.0, 2.5, 3.0, 2.0])


@pytest.mark.parametrize("policy", [Mercury(), P3(), P3(blocking=True), TicTac()], ids=repr)
def test_jobs_on_one_host_do_not_know_of_each_other(policy):
    # 1 B each at half a port, whatever the place inside the own job.
    assert finishes(policy, now((0, 1, 1.0, 0)), now((0, 1, 1.0, 9))) == pytest.approx([2.0, 2.0])


def test_tic_gives_the_first_two_layers_one_priority_and_tac_does_not():
    # An operation of layer 1 needs 2 transfers in all, whether it is looked at from layer 0's or its own.
    jobs = now((0, 1, 1.0, 1), (0, 1, 1.0, 0), (0, 1, 1.0, 2))
    assert finishes(TicTac(), jobs) == pytest.approx([2.0, 2.0, 3.0])
    assert finishes(TicTac(timing=True), jobs) == pytest.approx([2.0, 1.0, 3.0])


@pytest.mark.parametrize("policy", [Mercury(), P3(), TicTac()], ids=repr)
@pytest.mark.parametrize("queues", [2, 8])
def test_two_classes_keep_the_order_of_four(policy, queues):
    # When a message has ended the next one moves up.
    jobs = now(*((0, 1, 1.0, need) for need in (6, 5, 4, 3)))
    assert finishes(policy, jobs, queues=queues) == pytest.approx([4.0, 3.0, 2.0, 1.0])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), max_size=30))
def test_turns_count_the_distinct_keys_of_the_same_sender_that_are_smaller(flows):
    columns = np.array(flows, np.int64).reshape(-1, 3).T
    right = [
        len({(b, c) for s, b, c in flows if s == sender and (b, c) < key})
        for sender, *key_ in flows
        for key in [tuple(key_)]
    ]
    assert turns(columns[0], columns[1], columns[2]).tolist() == right


# ------------------------------------------------------------------ Beamer


def coflows(seed: int) -> Workload:
    """20 jobs of one coflow of 1 to 4 flows each, with weights, at distinct times."""
    rng, case = np.random.default_rng(seed), Case(4)
    for at in np.cumsum(rng.exponential(0.3, 20)).tolist():
        ends = rng.integers(0, 4, (int(rng.integers(1, 5)), 2)).tolist()
        case.coflow(
            *((a, b, float(rng.lognormal(0.0, 1.0))) for a, b in ends),
            at=at,
            weight=float(rng.uniform(0.5, 3)),
        )
    return case.build(hairpin=True)


@pytest.mark.parametrize("stages", ["stage", "arrival", "job"])
@pytest.mark.parametrize("seed", range(5))
def test_beamer_with_one_job_per_stage_and_one_iteration_left_is_sincronia(seed, stages):
    workload, beamer = coflows(seed), Beamer(stages=stages)
    views = shown(workload, Sincronia())
    assert max(len(view.coflows) for view in views) > 5
    for view in views:
        assert beamer(view).rank.tolist() == Sincronia()(view).rank.tolist()
    for queues in (None, 3):
        assert ended(workload, beamer, queues, PER_FLOW) == ended(workload, Sincronia(), queues, PER_FLOW)


def test_beamer_ends_stages_sooner_and_jobs_later_than_sincronia():
    # One link. Stage A: 1 B and 4 B from 0 s; stage B: 2 B and 1.5 B from 0.5 s. Each a job's.
    case = Case(2)
    for size, at in ((1.0, 0.0), (4.0, 0.0), (2.0, 0.5), (1.5, 0.5)):
        case.coflow((0, 1, size), at=at)
    workload = case.build()
    workload = replace(workload, coflows=replace(workload.coflows, stage=np.array([0, 0, 2, 2])))
    # The laggard of A until 0.5 s; then B has 3.5 B to A's 4.5 B, the laggard first in each.
    for beamer in (Beamer(), Beamer(stages="arrival")):
        assert ended(workload, beamer, None, PER_FLOW) == pytest.approx([8.5, 7.5, 2.5, 4.0])
    # Shortest first: 1 B by 1 s, 1.5 B by 2.5 s, 2 B by 4.5 s, 4 B by 8.5 s.
    assert ended(workload, Sincronia(), None, PER_FLOW) == pytest.approx([1.0, 8.5, 4.5, 2.5])
    # Mean stage completion time (8.5 + 3.5) / 2 against (8.5 + 4) / 2; of jobs 5.4 against 3.9.


def chained(case: Case, size: float, iterations: int, at: float) -> None:
    """A job that sends `size` bytes from host 0 to host 1 in each iteration."""
    job, before = case.job(at, iterations), None
    for iteration in range(iterations):
        (flow,) = case.coflow((0, 1, size), job=job, iteration=iteration)
        if before is not None:
            case.builder.depend(flow, before)
        before = flow


def test_beamer_counts_the_iterations_that_are_still_to_come():
    # Ten times 1 B, an iteration a stage, against 5 B at 0.5 s: 9.5 B are left of the first.
    case = Case(2)
    chained(case, 1.0, 10, 0.0)
    chained(case, 5.0, 1, 0.5)
    workload = case.build()
    assert np.array(ended(workload, Beamer(), None, PER_FLOW))[[9, 10]].tolist() == pytest.approx([15.0, 5.5])
    # Sincronia sees 0.5 B, then 1 B at a time.
    assert np.array(ended(workload, Sincronia(), None, PER_FLOW))[[9, 10]].tolist() == pytest.approx(
        [10.0, 15.0]
    )


# ------------------------------------------------------------------ JPAS


def test_jpas_puts_new_jobs_first_then_the_greatest_gain_and_converged_ones_last():
    case = Case(2)
    for at in (0.0, 0.0, 0.0, 0.0):
        case.coflow((0, 1, 1.0), at=at)
    view = shown(case.build(), Fair())[0]
    jobs = replace(
        view.jobs,
        iterations=np.array([100, 100, 10, 7]),
        iterations_done=np.array([80, 10, 1, 0]),
        arrival=np.array([0.0, 1.0, 2.0, 3.0]),
    )
    # 80 % of the iterations make 95.7 % of the accuracy. From 10 % on an iteration of 1 % gains less than one
    # of 10 %. The job without an iteration is the last to arrive.
    assert Jpas()(replace(view, jobs=jobs)).rank.tolist() == [3, 2, 1, 0]
    assert Jpas(plateau=1.0)(replace(view, jobs=jobs)).rank.tolist() == [3, 2, 1, 0]
    twins = replace(
        jobs, iterations=np.full(4, 10), iterations_done=np.full(4, 2), arrival=np.array([3.0, 1.0, 2.0, 0.0])
    )
    assert Jpas()(replace(view, jobs=twins)).rank.tolist() == [3, 1, 2, 0], "ties by arrival"


def test_the_curve_of_accuracy():
    jpas = Jpas(steepness=3.0)
    half = -math.log(1 - 0.5 * (1 - math.exp(-3))) / 3
    assert jpas.accuracy(np.array([0.0, half, 1.0])).tolist() == pytest.approx([0.0, 0.5, 1.0])
    assert half == pytest.approx(0.21, abs=0.005)
    assert jpas.accuracy(np.array([0.78])).item() == pytest.approx(0.95, abs=0.002)


def test_jpas_lets_a_young_job_pass_an_old_one():
    # Each iteration is 2 B over one link. The first job has 20, the second, from 1 s, has 2. Its first goes
    # when the first job has one (2 to 4 s); its second gains more than one of twenty (4 to 6 s).
    case = Case(2)
    chained(case, 2.0, 20, 0.0)
    chained(case, 2.0, 2, 1.0)
    workload = case.build()
    done = ended(workload, Jpas(), None, PER_FLOW)
    assert done[:2] == pytest.approx([2.0, 8.0]) and done[20:] == pytest.approx([4.0, 6.0])
    # First in, first out: they take turns.
    assert ended(workload, Fifo(), None, PER_FLOW)[20:] == pytest.approx([4.0, 8.0])


# ------------------------------------------------------------------ Parrot


def test_parrot_gives_the_job_that_was_served_least_ten_times_as_much():
    # 10 B from 0 s, 1 B from 2 s. Served 2 B and nothing: sure is 1, the weights 1 and 10.
    case = Case(2)
    case.coflow((0, 1, 10.0))
    case.coflow((0, 1, 1.0), at=2.0)
    workload = case.build()
    assert ended(workload, Parrot(), None, PER_FLOW) == pytest.approx([11.0, 2.0 + 11 / 10])
    assert ended(workload, Parrot(most=1.0), None, PER_FLOW) == pytest.approx([11.0, 4.0])
    # In hardware it has the first class.
    assert ended(workload, Parrot(), 8, PER_FLOW) == pytest.approx([11.0, 3.0])


def test_parrot_gives_the_first_class_only_to_whom_it_is_confident_of():
    # At 3 s 2 B and 1 B are served, as below: `sure` is 1/2.
    case = Case(4)
    case.coflow((0, 1, 9.0))
    case.coflow((0, 1, 9.0), at=1.0)
    case.coflow((2, 3, 3.0))
    (view,) = [each for each in shown(case.build(), Fair(), queues=8) if each.now == pytest.approx(3.0)]
    assert Parrot(confident=0.4)(view).rank.tolist() == [1, 0]
    assert Parrot(confident=0.6)(view).rank.tolist() == [1, 1]


def test_parrot_is_as_sure_as_the_service_differs():
    # At 3 s the jobs of 9 B have been served 2 B (alone for 1 s, then halves) and 1 B, so sure is 1/2 and the
    # weight 1 + 9/2; the third job, on links of its own, has been served nothing before and 3 B of its 3 B.
    case = Case(4)
    case.coflow((0, 1, 9.0))
    case.coflow((0, 1, 9.0), at=1.0)
    case.coflow((2, 3, 3.0))
    spy = Watched(Parrot(age=1e9))
    run(case.build(), star(4, 1.0), spy)
    at_one, at_three = (view for view in spy.seen if view.now in (1.0, 3.0))
    # At 1 s nothing against 1 B: all of the weight, and the third job's is 1.
    assert Parrot(age=1e9)(at_one).weight.tolist() == pytest.approx([1.0, 1.0, 10.0])
    served = at_three.coflows.sent
    assert served.tolist() == pytest.approx([1 + 2 / 11, 20 / 11])
    assert Parrot(age=1e9)(at_three).weight.tolist() == pytest.approx([1 + 9 * (1 - 13 / 20), 1.0])


def test_who_waits_weighs_more_with_time():
    # Two of 4 B share until 2 s: each has sent 1 B, so waited 1 s, and weighs 2; 1 B that comes then weighs 1
    # and has a fifth: ends at 7 s. Then 1 B is left of each of the others: 9 s.
    case = Case(2)
    case.coflow((0, 1, 4.0))
    case.coflow((0, 1, 4.0))
    case.coflow((0, 1, 1.0), at=2.0)
    parrot = Parrot(most=1.0, age=1.0)
    assert ended(case.build(), parrot, None, PER_FLOW) == pytest.approx([9.0, 9.0, 7.0])


@pytest.mark.parametrize(
    ("weight", "right"),
    [
        # Host 0 sends for both jobs, host 3 for the second one to the same receiver: 1/2 each, all full.
        ((1.0, 1.0), [0.5, 0.5]),
        # Host 0's port in quarters; the receiver of the second job is then half empty.
        ((3.0, 1.0), [0.75, 0.25]),
        # 1/3 and 2/3 would overload the receiver: 1/2 there, and what host 0 has left.
        ((1.0, 2.0), [0.5, 0.5]),
    ],
)
def test_rates_are_the_fairest_multiples_of_the_weights(weight, right):
    case = Case(4)
    case.coflow((0, 1, 1.0))
    case.coflow((0, 2, 1.0), (3, 2, 1.0))
    view = shown(case.build(), Fair())[0]
    job = view.coflows.job[view.flows.coflow]
    assert scaled_rates(view, job, np.array(weight)).tolist() == pytest.approx(right)


# ------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("geryon", {"levels": -1}, "levels is -1"),
        ("geryon", {"split": "thirds"}, "split"),
        ("geryon", {"bounds": [0.5, 0.5]}, r"bounds are \(0.5, 0.5\), must ascend"),
        ("geryon", {"bounds": [0.0]}, "must ascend between 0 and 1"),
        ("beamer", {"stages": "label"}, "stages"),
        ("jpas", {"steepness": 0}, "steepness is 0.0"),
        ("jpas", {"plateau": 1.5}, "plateau 1.5"),
        ("parrot", {"most": 0.5}, "most is 0.5"),
        ("parrot", {"age": 0}, "age 0.0 s"),
        ("parrot", {"confident": 1.0}, "confident is 1.0"),
        ("p3", {"blocking": "perhaps"}, "blocking"),
    ],
)
def test_parameters_without_sense_are_refused(name, params, message):
    with pytest.raises(ScenarioError, match=rf"policies\.{name}.*{message}"):
        make(Spec(name, params))
