"""What a policy may do to a job's messages: what is carried then, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from result_cases import star
from sender_cases import model, tiny_job
from workload_fabric import big_switch

from netsched.catalog import RESHAPES, policies
from netsched.cli import main
from netsched.errors import PolicyError, ScenarioError
from netsched.model import Spec
from netsched.policies import POLICIES
from netsched.policies.dear import DeAr
from netsched.policies.fair import Fair
from netsched.scenario import build as built
from netsched.scenario import load
from netsched.shape import Mixture, Profile, Shape, Slicing, reshape_of
from netsched.shape_check import check_reshape
from netsched.testing import check_policy
from netsched.workloads import build

SERVERS = {"workers": ["h1", "h2"], "servers": ["h3"]}
RING = {"workers": ["h1", "h2"], "sync": "ring-allreduce"}
SHARDED = {"workers": ["h1", "h2"], "sync": "fsdp"}


@dataclass(frozen=True)
class Reshaping(Fair):
    """Fair sharing of messages that the test shapes; keeps what it was told."""

    change: dict[str, Any] = field(default_factory=dict)
    told: list[Profile] = field(default_factory=list)

    def reshape(self, profile: Profile, shape: Shape) -> Shape:
        self.told.append(profile)
        return replace(shape, **self.change)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    model(monkeypatch, [4, 6, 10], [1.0, 2.0, 0.5])


def test_a_policy_is_told_what_its_job_is():
    policy = Reshaping()
    tiny_job(policy, 5.0, theta="2s", **SERVERS)
    (profile,) = policy.told
    assert profile.size.tolist() == [4, 6, 10]
    assert profile.forward.tolist() == [1.0, 2.0, 0.5] and profile.backward.tolist() == [2.0, 4.0, 1.0]
    # Backward from the last tensor on: 1 s, then 4 s, then 2 s.
    assert profile.ready.tolist() == [7.0, 5.0, 1.0]
    assert (profile.workers, profile.servers, profile.rate, profile.theta) == (2, 1, 5.0, 2.0)


@pytest.mark.parametrize("job", [SERVERS, RING, SHARDED], ids=["servers", "ring", "sharded"])
def test_a_shape_that_nobody_changes_is_the_scenarios(job):
    same, plain = tiny_job(Reshaping(), 1.0, **job), tiny_job(Fair(), 1.0, **job)
    for table in ("flows", "coflows", "tasks", "dag"):
        for name, column in vars(getattr(plain, table)).items():
            assert np.array_equal(getattr(getattr(same, table), name), column), (table, name)


def test_cut_buckets_of_a_ring_are_all_reduces_of_their_own():
    w = tiny_job(Reshaping({"first": np.arange(3), "slicing": Slicing(4.0, 4.0)}), 1.0, **RING)
    # 10 bytes in 3 parts of 4, 3, 3; 6 in two of 3; 4 whole. Each worker sends 2 (n-1)/n of a part.
    assert w.coflows.label == (
        *(f"all-reduce t2 part {k}" for k in range(3)),
        *(f"all-reduce t1 part {k}" for k in range(2)),
        "all-reduce t0",
    )
    carried = np.bincount(w.flows.coflow, w.flows.size)
    assert carried.tolist() == [2 * part for part in (4, 3, 3, 3, 3, 4)]


def test_steps_stay_where_their_piece_is():
    cut = {"slicing": Slicing(6.0, 5.0), "step": 2.0}
    w = tiny_job(Reshaping(cut), 1.0, workers=["h1"], servers=["h3", "h4"])
    # Forward order, to the emptier server: 4 B to h3, 6 B to h4; 10 B in 5 and 5, in steps of 2, 2, 1.
    pushed = {
        w.coflows.label[c]: list(zip(w.flows.dst[own].tolist(), w.flows.size[own].tolist(), strict=True))
        for c in range(len(w.coflows.label))
        for own in [w.flows.coflow == c]
    }
    assert pushed["push t0"] == [(2, 2), (2, 2)] and pushed["push t1"] == [(3, 2)] * 3
    assert pushed["push t2"] == [(2, 2), (2, 2), (2, 1), (3, 2), (3, 2), (3, 1)]


def test_a_bucket_can_wait_for_an_earlier_tensors_gradient_and_says_how_long_it_is_quiet_after_that():
    bursts = {"burst": np.array([0, 0, 2]), "lull": np.array([math.inf, math.inf, 1.5])}
    cut = {"slicing": Slicing(6.0, 5.0), **bursts}
    w = tiny_job(Reshaping(cut), 1.0, workers=["h1"], servers=["h3"])
    labels = [w.coflows.label[c] for c in w.flows.coflow]
    waits = {
        (labels[flow], int(rank)): {w.tasks.label[t] for t in range(w.n_tasks) if flow in _after(w, t)}
        for rank, flow in enumerate(range(w.n_flows))
        if labels[flow].startswith("push")
    }
    assert list(waits.values()) == [
        {"backward t2"},
        {"backward t2"},
        {"backward t0"},
        {"backward t0"},
    ]
    rows = {label: row for row, label in enumerate(w.coflows.label)}
    said = {label: (int(w.coflows.burst[row]), float(w.coflows.lull[row])) for label, row in rows.items()}
    assert said == {
        **dict.fromkeys(("push t0", "push t1"), (0, math.inf)),
        "push t2": (2, 1.5),
        **dict.fromkeys(("pull t0", "pull t1", "pull t2"), (-1, math.inf)),
    }


def burst(*lasts: int) -> dict[str, np.ndarray]:
    return {"burst": np.array(lasts), "lull": np.ones(len(lasts))}


def _after(w, task: int) -> list[int]:
    node = w.n_flows + task
    return w.dag.successors[w.dag.indptr[node] : w.dag.indptr[node + 1]].tolist()


@pytest.mark.parametrize(
    ("job", "change", "message"),
    [
        (RING, {"first": np.array([1])}, "buckets begin at .1., must ascend from 0 to 2 at most"),
        (RING, {"first": np.array([0, 3])}, "must ascend from 0 to 2"),
        (RING, {"slicing": Slicing(1.0, 0.0)}, "pieces of 0.0 B, must be above 0"),
        (RING, {"step": 4.0}, "steps are for servers, not for sync ring-allreduce"),
        (SERVERS, {"step": 0.0}, "steps of 0.0 B, must be above 0"),
        (SERVERS, {"step": 1.0, **burst(0, 0, 0)}, "what comes in bursts cannot go in steps"),
        (RING, {"sync": "parameter-server"}, "the job has no servers"),
        (RING, {"sync": "fsdp"}, "sync ring-allreduce cannot become fsdp"),
        (RING, {"gather": "forward"}, "is for reduce-scatter-all-gather, not for ring-allreduce"),
        (RING, burst(0), "bursts are for servers, not for sync ring-allreduce"),
        (RING, {"mixture": Mixture(2)}, "it has no mixture of experts"),
        (SHARDED, {"slicing": Slicing(1.0, 1.0)}, "a sharded job's units cannot be cut"),
        (SERVERS, {"serial": True}, "serial exchanges are not for sync parameter-server"),
        (SERVERS, burst(0, 0), r"bursts are \[0, 0\], must be a tensor for each bucket, 0 to its first one"),
        (SERVERS, burst(1, 1, 1), r"bursts are \[1, 1, 1\], must be .*: \[0, 1, 2\]"),
        (SERVERS, burst(0, 0, 0) | {"lull": np.zeros(2)}, "2 lulls for 3 buckets"),
        (SERVERS, burst(0, 0, 0) | {"lull": np.full(3, -1.0)}, "lulls of .* s, must be 0 or more"),
    ],
)
def test_shapes_that_cannot_be_carried_are_refused(job, change, message):
    with pytest.raises(ScenarioError, match=f"a job of tiny cannot be reshaped so: .*{message}"):
        tiny_job(Reshaping(change), 1.0, **job)


def test_pieces_go_round_the_servers_evenly():
    assert [Slicing(4.0, 3.0).pieces(size, 2) for size in (4, 5, 6, 7, 13)] == [1, 2, 2, 4, 6]
    assert [Slicing(4.0, 4.0).pieces(size, 0) for size in (4, 5, 8, 9)] == [1, 2, 2, 3]
    assert Slicing(4.0, math.inf).pieces(5.0, 3) == 3 and Slicing().pieces(1e12, 3) == 1


@dataclass(frozen=True)
class Fickle(Fair):
    """Cuts smaller each time."""

    asked: list[int] = field(default_factory=list)

    def reshape(self, profile: Profile, shape: Shape) -> Shape:
        self.asked.append(1)
        return replace(shape, serial=len(self.asked) % 2 == 0)


@dataclass(frozen=True)
class Meddler(Fair):
    """Writes into what it is told."""

    def reshape(self, profile: Profile, shape: Shape) -> Shape:
        profile.size[0] += 1.0
        return shape


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Fickle(), "reshape of 1 tensors, sync parameter-server, gave two shapes"),
        (Meddler(), "changed what it was told"),
        (Reshaping({"serial": True}), "gave a shape that nobody can carry: .* serial exchanges are not for"),
        (Reshaping({"first": np.array([1])}), "buckets begin at .1., must ascend from 0 to 0"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_checker_of_reshape_refuses(policy, message):
    with pytest.raises(PolicyError, match=message):
        check_policy(policy, star(4, 1e8))


@pytest.mark.parametrize("name", [name for name, kind in POLICIES.items() if hasattr(kind, "reshape")])
def test_every_reshape_of_the_registry_keeps_its_contract(name):
    for seed in range(5):
        check_reshape(POLICIES[name](), np.random.default_rng(seed))


def test_a_search_is_reshaped_like_its_trainings():
    params = {
        "model": "tiny",
        "batch": 1,
        "trials": 2,
        "iterations": 1,
        "slots": [["h1", "h2"]],
        "sync": "ring-allreduce",
        "device": {"flops": "1MFLOP/s", "efficiency": 1.0},
    }
    w = build((Spec("search", params),), big_switch(4, 1.0), 1, reshape_of(DeAr(fuse=0.0)))
    # Two trials of one iteration, then one of two: four iterations of three groups.
    halves = [label.split()[0] for label in w.coflows.label]
    assert halves.count("reduce-scatter") == halves.count("all-gather") == 12 == len(halves) // 2


def test_the_list_of_policies_says_which_ones_reshape():
    said = {entry.name: entry.summary.endswith(RESHAPES) for entry in policies()}
    assert said["dear"] and said["bytescheduler"] and not said["fair"]
    assert said == {name: hasattr(kind, "reshape") for name, kind in POLICIES.items()}


SCENARIO = """
fabric: {kind: single_switch, hosts: 3, rate: 1Gbit/s}
workload: {kind: training, model: alexnet, workers: [h1, h2], sync: ring-allreduce, iterations: 1, batch: 1,
  device: {flops: 1TFLOP/s, efficiency: 1.0}}
policies: [fair, fifo, {mg-wfbp: {merge: never}}, POLICY]
"""


def test_each_reshaping_policy_of_a_scenario_has_a_workload_of_its_own(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(SCENARIO.replace("POLICY", "dear"))
    ready = built(load(tmp_path / "a.yaml")).ready
    assert ready[0].workload is ready[1].workload and ready[2].workload is not ready[0].workload
    assert [len(r.workload.coflows.label) for r in ready[:3]] == [3, 3, 16]
    out = str(tmp_path / "out")
    asked = ["run", str(tmp_path / "a.yaml"), "--engine", "sim", "--out", out, "--no-plots"]
    assert main(asked) == 0
    capsys.readouterr()
    # Their iterations compare, their coflows do not.
    assert main(["compare", out]) == 2
    assert "has 16 coflows, another run 3: a policy that reshapes messages" in capsys.readouterr().err


def test_a_job_that_a_policy_is_not_for_is_refused_by_name(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(SCENARIO.replace("POLICY", "prophet"))
    assert main(["check", str(tmp_path / "a.yaml")]) == 2
    said = capsys.readouterr().err
    assert "a.yaml: policies.prophet: workload: a job of alexnet has sync: ring-allreduce" in said
