"""Edge cases, for every policy of the registry and both transports: right or refused, never wrong.

Values are closed forms, worked in the comments. Where policies differ they are grouped by what they do; one
that is in no group has to keep the laws that hold for all.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from result_cases import star
from sim_cases import PER_FLOW, PER_PAIR, Case, by_hand, run

from netsched.errors import ScenarioError
from netsched.metrics import coflows as coflow_table
from netsched.model import Outcome, Policy, Workload
from netsched.policies import POLICIES
from netsched.workloads.builder import WorkloadBuilder

SHARING = (
    *("fair", "tensorexpress", "geryon", "mercury", "p3", "tictac", "parrot", "crux"),
    *("bytescheduler", "prophet", "mg-wfbp", "dear", "schemoe"),
)
"""Coflows without an order here: of tensors that are needed together, of jobs that have had nothing yet."""
BY_SIZE = ("sebf", "varys-deadline", "sincronia", "beamer", "srpt", "echelonflow")
BY_ARRIVAL = ("fifo", "fifo-lm", "aalo", "philae", "jpas")
WEIGHS = ("sincronia", "beamer")
MINDS_DEADLINES = ("varys-deadline",)

GIGABIT = 125e6
TERABYTE = 1e12

each_policy = pytest.mark.parametrize("policy", [kind() for kind in POLICIES.values()], ids=lambda p: p.name)
each_grouped = pytest.mark.parametrize(
    "policy",
    [kind() for kind in POLICIES.values() if kind.name in (*SHARING, *BY_SIZE, *BY_ARRIVAL)],
    ids=lambda p: p.name,
)
each_transport = pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])


def test_the_groups_are_of_policies_that_there_are():
    assert {*SHARING, *BY_SIZE, *BY_ARRIVAL} <= set(POLICIES)


def cct(workload: Workload, outcome: Outcome) -> list[float]:
    return coflow_table(workload, outcome)["cct"].tolist()


# ------------------------------------------------------------------ what is carried at no time


@each_transport
@each_policy
@pytest.mark.parametrize("queues", [None, 8])
def test_flows_of_no_bytes_and_to_their_own_host_end_as_they_begin(policy: Policy, transport, queues):
    # Over 0 -> 1 at 1 B/s: 2 B. Beside it in the same coflow 0 B, and 1 TB that never leaves host 2; a coflow
    # of such flows only; and one that waits for it and has 1 B over 2 -> 3.
    case = Case(4)
    case.coflow((0, 1, 2.0), (0, 1, 0.0), (2, 2, TERABYTE), at=1.0)
    job = case.job(2.0)
    nothing = case.coflow((0, 1, 0.0), (3, 3, 5.0), job=job)
    (after,) = case.coflow((2, 3, 1.0), job=job)
    case.builder.depend(after, *nothing)
    workload = case.build()
    outcome = run(workload, star(4, 1.0), policy, queues=queues, transport=transport)
    assert outcome.flow_finish.tolist() == pytest.approx([3.0, 1.0, 1.0, 2.0, 2.0, 3.0], rel=1e-12)
    assert cct(workload, outcome) == pytest.approx([2.0, 0.0, 1.0], abs=1e-12)
    assert outcome.link_bytes.sum() == pytest.approx(2 * 3.0)


@each_transport
@each_policy
def test_a_workload_that_needs_no_network_takes_no_time(policy: Policy, transport):
    case = Case(2)
    first = case.coflow((0, 1, 0.0), (1, 1, 7.0))
    last = case.coflow((0, 1, 0.0))
    case.builder.depend(last[0], *first)
    outcome = run(case.build(), star(2, 1.0), policy, transport=transport)
    assert outcome.flow_finish.tolist() == [0.0, 0.0, 0.0]
    assert outcome.decisions == 0 and outcome.simulated_s == 0.0


@each_transport
@each_policy
@pytest.mark.parametrize("queues", [None, 8])
def test_with_hairpins_a_flow_to_its_own_host_crosses_its_port_both_ways(policy: Policy, transport, queues):
    # 2 B from host 0 to itself, then 3 B from host 0 to host 1 in the same coflow: 5 B leave host 0 at 1 B/s.
    case = Case(2)
    case.coflow((0, 0, 2.0), (0, 1, 3.0))
    workload = case.build(hairpin=True)
    outcome = run(workload, star(2, 1.0), policy, queues=queues, transport=transport)
    assert cct(workload, outcome) == pytest.approx([5.0], rel=1e-12)
    # Host 0: 5 B up, 2 B down; host 1: 3 B down.
    assert outcome.link_bytes.tolist() == pytest.approx([5.0, 2.0, 0.0, 3.0])


# ------------------------------------------------------------------ at one time


@each_transport
@each_grouped
def test_identical_coflows_that_come_together(policy: Policy, transport):
    # Three times 3 B over one link: all at 9 s if they share, else one after the other, by number.
    case = Case(2)
    for _ in range(3):
        case.coflow((0, 1, 3.0), at=1.0)
    outcome = run(case.build(), star(2, 1.0), policy, transport=transport)
    right = [10.0, 10.0, 10.0] if policy.name in SHARING else [4.0, 7.0, 10.0]
    assert outcome.flow_finish.tolist() == pytest.approx(right, rel=1e-12)


@each_transport
@each_policy
@pytest.mark.parametrize("queues", [8, 3, 1])
def test_identical_coflows_in_few_classes_waste_nothing(policy: Policy, transport, queues):
    case = Case(2)
    for _ in range(12):
        case.coflow((0, 1, 3.0))
    outcome = run(case.build(), star(2, 1.0), policy, queues=queues, transport=transport)
    # Whatever the order: the last byte at 36 s, and each flow between its own 3 s and that.
    assert outcome.flow_finish.max() == pytest.approx(36.0, rel=1e-12)
    assert outcome.flow_finish.min() >= 3.0 * (1 - 1e-12)
    assert outcome.link_bytes.tolist() == pytest.approx([36.0, 0.0, 0.0, 36.0])


@each_transport
@each_policy
@pytest.mark.parametrize("queues", [None, 8])
def test_a_coflow_that_comes_in_the_instant_in_which_another_ends(policy: Policy, transport, queues):
    case = Case(2)
    case.coflow((0, 1, 2.0))
    case.coflow((0, 1, 3.0), at=2.0)
    outcome = run(case.build(), star(2, 1.0), policy, queues=queues, transport=transport)
    assert outcome.flow_finish.tolist() == pytest.approx([2.0, 5.0], rel=1e-12)


# ------------------------------------------------------------------ one byte beside a terabyte


def small_beside_large(policy: str) -> tuple[float, float]:
    """When 1 TB and 1 B that come together over one port of 1 Gbit/s end, the large one being the first.

    1 B takes 8 ns, 1 TB 8000 s. Sharing, the byte takes twice as long. By size it goes first. By arrival it
    goes last; but Aalo's limit of 10 MB is reached at 80 ms, when the large one sinks below it, and FIFO-LM's
    of 1 GB at 8 s, from when on both share.
    """
    byte, both = 1 / GIGABIT, (TERABYTE + 1) / GIGABIT
    special = {"aalo": 0.08 + byte, "fifo-lm": 8.0 + 2 * byte}
    if policy in special:
        return both, special[policy]
    if policy in BY_ARRIVAL:
        return TERABYTE / GIGABIT, both
    return both, byte * (2 if policy in SHARING else 1)


@each_transport
@each_grouped
def test_one_byte_beside_a_terabyte(policy: Policy, transport):
    case = Case(2)
    case.coflow((0, 1, TERABYTE))
    case.coflow((0, 1, 1.0))
    outcome = run(case.build(), star(2, GIGABIT), policy, transport=transport)
    assert outcome.flow_finish.tolist() == pytest.approx(small_beside_large(policy.name), rel=1e-12, abs=0)
    assert outcome.link_bytes.tolist() == pytest.approx([TERABYTE + 1, 0, 0, TERABYTE + 1], rel=1e-15)


@each_transport
@each_grouped
def test_one_byte_that_comes_into_the_middle_of_a_terabyte(policy: Policy, transport):
    # At 4000 s. Sharing: 16 ns; else 8 ns, because the large one has more left, or has sunk; but by arrival
    # without a limit it waits for the end, and under FIFO-LM it shares with what is heavy by then. Parrot
    # takes the job that was served least for the shortest, and gives it 10 shares of 11.
    case = Case(2)
    case.coflow((0, 1, TERABYTE))
    case.coflow((0, 1, 1.0), at=4000.0)
    outcome = run(case.build(), star(2, GIGABIT), policy, transport=transport)
    byte = 1 / GIGABIT
    takes = {**dict.fromkeys(SHARING, 2 * byte), "fifo-lm": 2 * byte, "parrot": 1.1 * byte}
    last = policy.name in ("fifo", "philae", "jpas")
    right = (TERABYTE + 1) / GIGABIT if last else 4000.0 + takes.get(policy.name, byte)
    # Times near 4000 s are known to 1e-12 of themselves: 4 ns.
    assert outcome.flow_finish[1] == pytest.approx(right, rel=1e-12, abs=0)
    assert outcome.flow_finish[1] > 4000.0


@each_transport
@each_policy
def test_one_byte_and_a_terabyte_in_one_coflow(policy: Policy, transport):
    # Over one pair. Together (1 TB + 1 B) / rate; per pair in the order of their numbers.
    case = Case(2)
    case.coflow((0, 1, TERABYTE), (0, 1, 1.0))
    workload = case.build()
    outcome = run(workload, star(2, GIGABIT), policy, transport=transport)
    both = (TERABYTE + 1) / GIGABIT
    assert cct(workload, outcome) == pytest.approx([both], rel=1e-12)
    if transport == PER_PAIR and policy.name != "srpt":
        assert outcome.flow_finish.tolist() == pytest.approx([TERABYTE / GIGABIT, both], rel=1e-12)


# ------------------------------------------------------------------ weights and deadlines


@each_transport
@each_grouped
def test_weights_count_where_a_policy_says_so_and_nowhere_else(policy: Policy, transport):
    def finish(*weights: float) -> list[float]:
        case = Case(2)
        for size, weight in zip((2.0, 1.0), weights, strict=True):
            case.coflow((0, 1, size), weight=weight)
        return run(case.build(), star(2, 1.0), policy, transport=transport).flow_finish.tolist()

    plain = finish(1.0, 1.0)
    if policy.name in WEIGHS:
        # Smith's rule on one link: ascending size / weight. 2/4 before 1/1, though 1 before 2 unweighted.
        assert plain == pytest.approx([3.0, 1.0])
        assert finish(4.0, 1.0) == pytest.approx([2.0, 3.0])
    else:
        assert finish(4.0, 1.0) == plain
    # What counts is their ratio, however large they are.
    for factor in (1e-200, 1e200):
        assert finish(4.0 * factor, factor) == finish(4.0, 1.0)


@each_transport
@each_grouped
def test_deadlines_count_where_a_policy_says_so_and_nowhere_else(policy: Policy, transport):
    def finish(deadline: float) -> list[float]:
        case = Case(2)
        case.coflow((0, 1, 1.0))
        case.coflow((0, 1, 2.0), deadline=deadline)
        return run(case.build(), star(2, 1.0), policy, transport=transport).flow_finish.tolist()

    without = finish(math.inf)
    if policy.name in MINDS_DEADLINES:
        # 2 B in 2.5 s leave 1/5 B/s: 0.5 B of the first by 2.5 s, the other half by 3 s.
        assert without == pytest.approx([1.0, 3.0])
        assert finish(2.5) == pytest.approx([3.0, 2.5])
        # Too short to be kept, so that nobody is held up for it; and far away.
        assert finish(1e-300) == without
    else:
        assert finish(2.5) == without == finish(1e-300)
    assert max(finish(1e300)) == pytest.approx(3.0)


def builder() -> tuple[WorkloadBuilder, int, int]:
    made = WorkloadBuilder(2)
    job = made.add_job("j")
    return made, job, made.add_stage(job, "s")


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_weights_without_sense_are_refused(weight):
    made, job, stage = builder()
    with pytest.raises(ScenarioError, match=r"weight .* must be finite and more than 0"):
        made.add_coflow(job, stage, "c", weight=weight)
    with pytest.raises(ScenarioError, match=r"weight .* must be finite and more than 0"):
        made.add_job("other", weight=weight)


@pytest.mark.parametrize("deadline", [0.0, -1.0, math.nan])
def test_deadlines_without_sense_are_refused(deadline):
    made, job, stage = builder()
    with pytest.raises(ScenarioError, match=r"deadline .* s must be more than 0"):
        made.add_coflow(job, stage, "c", deadline=deadline)


@pytest.mark.parametrize("size", [-1.0, math.nan, math.inf])
def test_sizes_without_sense_are_refused(size):
    made, job, stage = builder()
    made.add_flow(made.add_coflow(job, stage, "c"), 0, 1, size)
    with pytest.raises(ScenarioError, match=r"size .* bytes must be a finite number, 0 or more"):
        made.build()


def test_a_coflow_weighs_what_its_job_does_unless_it_says_otherwise():
    made = WorkloadBuilder(2)
    job = made.add_job("j", weight=3.0)
    stage = made.add_stage(job, "s")
    for weight in (None, 2.0):
        made.add_flow(made.add_coflow(job, stage, "c", weight=weight), 0, 1, 1.0)
    assert made.build().coflows.weight.tolist() == [3.0, 2.0]


# ------------------------------------------------------------------ dependencies


@each_transport
@each_policy
@pytest.mark.parametrize("queues", [None, 8])
def test_coflows_that_wait_for_each_other(policy: Policy, transport, queues):
    # A: 2 B over 0 -> 1. B: 3 B over 1 -> 2 and C: 1 B over 1 -> 3 wait for A, D: 1 B over 2 -> 0 for both.
    # B and C share host 1's port: both done at 2 + 4 = 6 s; D at 7 s.
    case = Case(4)
    job = case.job()
    (a,) = case.coflow((0, 1, 2.0), job=job)
    (b,), (c,), (d,) = (case.coflow(flow, job=job) for flow in ((1, 2, 3.0), (1, 3, 1.0), (2, 0, 1.0)))
    case.builder.depend(b, a)
    case.builder.depend(c, a)
    case.builder.depend(d, b, c)
    workload = case.build()
    outcome = run(workload, star(4, 1.0), policy, queues=queues, transport=transport)
    assert outcome.flow_release.tolist() == pytest.approx([0.0, 2.0, 2.0, 6.0])
    assert outcome.flow_finish[[0, 3]].tolist() == pytest.approx([2.0, 7.0])
    assert outcome.flow_finish[1:3].max() == pytest.approx(6.0)


@each_transport
@each_policy
@pytest.mark.parametrize("queues", [None, 8])
def test_a_coflow_whose_flows_come_one_by_one(policy: Policy, transport, queues):
    # The second flow waits for the first, the third for a task of 1 s after the second: 1 + 2 + 1 + 1.5 s, on
    # other ports each. The coflow is in the view twice and gone in between.
    case = Case(4)
    job = case.job(1.0)
    one, two, three = case.coflow((0, 1, 1.0), (1, 2, 2.0), (2, 3, 1.5), job=job)
    task = case.task(1.0, job)
    case.builder.depend(two, one)
    case.builder.depend(task, two)
    case.builder.depend(three, task)
    workload = case.build()
    outcome = run(workload, star(4, 1.0), policy, queues=queues, transport=transport)
    assert outcome.flow_finish.tolist() == pytest.approx([2.0, 4.0, 6.5], rel=1e-12)
    assert cct(workload, outcome) == pytest.approx([5.5])


def test_cycles_are_refused():
    case = Case(2)
    job = case.job()
    (one,), (two,) = case.coflow((0, 1, 1.0), job=job), case.coflow((1, 0, 1.0), job=job)
    case.builder.depend(one, two)
    case.builder.depend(two, one)
    with pytest.raises(ScenarioError, match="cyclic dependencies"):
        case.build()


# ------------------------------------------------------------------ all at once


def medley(seed: int) -> Workload:
    """Everything above in one workload: sizes of 0, 1 and 1e12 B, own hosts, weights, deadlines, waiting."""
    rng = np.random.default_rng(seed)
    case = Case(3)
    before: list = []
    for _ in range(6):
        job = case.job(float(rng.choice([0.0, 0.0, 8.0])))
        for _ in range(2):
            flows = [
                (*rng.integers(0, 3, 2).tolist(), float(rng.choice([0.0, 1.0, 1e6, 1e9, TERABYTE])))
                for _ in range(int(rng.integers(1, 4)))
            ]
            weight, deadline = (
                float(rng.choice([1.0, 1e-3, 1e3])),
                float(rng.choice([math.inf, 1e-9, 20.0, 1e5])),
            )
            made = case.coflow(*flows, job=job, weight=weight, deadline=deadline)
            if before and rng.random() < 0.5:
                case.builder.depend(made[0], before[int(rng.integers(len(before)))])
            before += made
    return case.build(hairpin=bool(rng.random() < 0.5))


@each_transport
@each_policy
def test_the_oracle_agrees_on_all_of_it_together(policy: Policy, transport):
    for seed in range(4):
        workload, queues = medley(seed), (None, 8, 2, 1)[seed]
        asked = {"queues": queues, "transport": transport}
        if policy.name == "aalo":
            # Looked at every 80 ms for 8000 s the oracle would need minutes.
            policy = type(policy)(sync=100.0)
        if policy.name == "fifo-lm":
            policy = type(policy)(sync=100.0)
        mine = run(workload, star(3, GIGABIT), policy, **asked)
        right = by_hand(workload, star(3, GIGABIT), policy, **asked)
        np.testing.assert_allclose(mine.flow_finish, right.column(right.finish), rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(mine.flow_release, right.column(right.start), rtol=1e-9, atol=1e-15)
        assert np.isfinite(mine.flow_finish).all()
