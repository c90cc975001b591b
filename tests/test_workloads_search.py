"""Successive halving: who trains when, and what a stage is."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from sim_cases import PER_FLOW, run
from workload_fabric import GBIT, big_switch, unrolled

from netsched import metrics
from netsched.bounds import lower_bounds
from netsched.model import Workload
from netsched.policies.beamer import Beamer
from netsched.policies.fair import Fair
from netsched.policies.fifo import Fifo
from netsched.routes import route

SEARCH = {
    "model": "alexnet",
    "batch": [8, 16],
    "trials": 5,
    "iterations": 1,
    "slots": [["h1", "h2"], ["h3", "h4"]],
    "servers": ["h5"],
    "device": {"flops": "10TFLOP/s", "efficiency": 0.5},
}
SIZE = 61_100_840 * 4
WAY = SIZE / GBIT
"""Seconds of a model over a port, one way."""


def search(seed: int = 1, **change: object) -> Workload:
    return unrolled("search", seed=seed, **{**SEARCH, **change})


def rows(w: Workload) -> list[tuple[int, int]]:
    """(stage, trial) of each job, as its name says."""
    words = [name.split() for name in w.jobs.name]
    return [(int(word[2]), int(word[4])) for word in words]


def test_stages_shrink_and_budgets_grow():
    """Hyperband (JMLR 2018), algorithm 1: n / eta^i configurations with r eta^i of the resource each."""
    w = search(trials=9, keep_one_in=3, iterations=2)
    assert [stage for stage, _ in rows(w)] == [0] * 9 + [1] * 3 + [2]
    assert w.jobs.iterations.tolist() == [2] * 9 + [6] * 3 + [18]
    assert w.stages.label == ("stage 0", "stage 1", "stage 2")
    trials = {stage: {t for s, t in rows(w) if s == stage} for stage in range(3)}
    assert trials[0] == set(range(9))
    assert trials[2] <= trials[1] <= trials[0]


def test_a_stage_holds_the_coflows_of_all_its_trials():
    w = search()
    stage_of_job = np.array([stage for stage, _ in rows(w)])
    assert (w.coflows.stage == stage_of_job[w.coflows.job]).all()
    sent = np.bincount(w.coflows.stage[w.flows.coflow], w.flows.size)
    # 5 trials of 1 iteration, 2 of 2, 1 of 4; two workers push and pull all of the model.
    assert sent.tolist() == [2 * 2 * SIZE * each for each in (5, 4, 4)]


def test_a_stage_begins_when_all_trials_of_the_one_before_have_ended():
    w = search()
    outcome = run(w, big_switch(8), Fair())
    stage_of_job = np.array([stage for stage, _ in rows(w)])[metrics.node_jobs(w)]
    start = np.concatenate((outcome.flow_release, outcome.task_start))
    finish = np.concatenate((outcome.flow_finish, outcome.task_finish))
    for stage in (1, 2):
        assert start[stage_of_job == stage].min() == finish[stage_of_job == stage - 1].max()
    table = metrics.stages(w, outcome)
    first = outcome.flow_release[w.coflows.stage[w.flows.coflow] == 1].min()
    assert table["start"][1] == first
    assert table["completion_time"][1] == pytest.approx(table["finish"][1] - first)


def test_a_slot_takes_one_trial_after_the_other():
    w = search()
    outcome = run(w, big_switch(8), Fair())
    for job, (stage, trial) in enumerate(rows(w)):
        if (stage, trial) in {(0, 2), (0, 4)}:  # the slot's earlier trial is two before
            began = outcome.task_start[w.tasks.job == job].min()
            before = metrics.node_jobs(w) == job - 2
            ended = np.concatenate((outcome.flow_finish, outcome.task_finish))[before].max()
            assert began == ended


def test_one_trial_per_slot_and_stage_takes_as_long_as_its_bytes():
    """Two trials, a server: 4 models in and 4 out, less what overlaps; no arithmetic to speak of.

    Pushes fill the server's port for 4 WAY in all, and no pull is there before its tensor's last push, so the
    stage takes more than 4 WAY and, as both ways overlap, less than 8.
    """
    w = search(trials=2, device={"flops": "1000TFLOP/s", "efficiency": 1}, stages=1)
    table = metrics.stages(w, run(w, big_switch(8), Fair()))
    assert 4 * WAY < table["completion_time"][0] < 8 * WAY


@pytest.mark.parametrize("policy", [Fair(), Fifo(), Beamer()], ids=lambda policy: policy.name)
@pytest.mark.parametrize("change", [{}, {"servers": None, "sync": "fsdp"}, {"theta": "1ms"}], ids=str)
def test_no_stage_of_several_jobs_beats_its_lower_bounds(policy, change):
    w, fabric = search(trials=4, **change), big_switch(8)
    table = metrics.stages(w, run(w, fabric, policy, queues=8))
    paths = route(w, fabric, PER_FLOW).of_flows(np.arange(w.n_flows))
    bounds = lower_bounds(w, fabric.capacity, *paths).stage
    for name, bound in bounds.items():
        assert (table["completion_time"] >= bound * (1 - 1e-9)).all(), name
    assert (np.maximum.reduce(list(bounds.values())) > 0).all()


def test_survivors_are_drawn_by_the_seed():
    drawn = [tuple(t for s, t in rows(search(seed, trials=8)) if s == 1) for seed in range(6)]
    assert drawn[0] == tuple(t for s, t in rows(search(0, trials=8)) if s == 1)
    assert len(set(drawn)) > 1


def test_trials_go_round_the_lists():
    w = search(model=["alexnet", "vgg16"], batch=4, stages=1)
    bytes_of = np.bincount(w.coflows.job[w.flows.coflow], w.flows.size)
    assert bytes_of.tolist() == [4 * SIZE, 4 * 138_357_544 * 4] * 2 + [4 * SIZE]
    slow = search(stages=1)
    busy = np.bincount(slow.tasks.job, slow.tasks.seconds)
    assert busy[1] == pytest.approx(2 * busy[0])  # 16 samples and 8


def test_a_sharded_trial_gathers_nothing_before_its_turn():
    w = search(servers=None, sync="fsdp", stages=1, trials=4)
    outcome = run(w, big_switch(8), Fair())
    job = w.coflows.job[w.flows.coflow]
    ended = np.concatenate((outcome.flow_finish, outcome.task_finish))[metrics.node_jobs(w) == 0].max()
    assert outcome.flow_release[job == 2].min() == ended


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trials": 1}, "greater than or equal to 2"),
        ({"slots": [["h1", "h2"], ["h2", "h3"]]}, "slots: host 'h2' is listed twice"),
        ({"slots": [["h1"], ["h2"]], "servers": None, "sync": "fsdp"}, "list 2 or more hosts in each"),
        ({"servers": None}, "servers is missing"),
        ({"model": []}, r"\[\] is not right: name a model"),
        ({"model": "alexnett"}, "'alexnett' is not a model"),
        ({"batch": [0]}, "greater than or equal to 1"),
        ({"workers": ["h1"]}, "Extra inputs are not permitted"),
    ],
)
def test_bad_parameters_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        search(**change)
