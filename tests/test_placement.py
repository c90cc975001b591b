"""Placements: the contract over the registry, workloads as placed, and the scenario key."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import yaml
from placement_cases import LinkNetwork, alone, cluster_of, turns
from result_cases import star
from sim_cases import run

from netsched.cli import main
from netsched.errors import PolicyError, ScenarioError
from netsched.metrics import jobs as job_table
from netsched.model import Cluster, Placing, Spec, Transport
from netsched.placement import PLACEMENTS, decide, make
from netsched.placement.alone import jobs_alone
from netsched.placement.apply import WAIT, placed
from netsched.placement.as_given import as_given
from netsched.placement.cassini import Cassini
from netsched.placement.contract import check_placement
from netsched.placement.liquid import Liquid
from netsched.policies.fair import Fair
from netsched.scenario import build, load

RNG = np.random.default_rng(0)
INSTANCES = (
    *(kind() for kind in PLACEMENTS.values()),
    Cassini(move=True, candidates=4),
    Liquid(mode="batch", interval=1.0),
)


@pytest.mark.parametrize("placement", INSTANCES, ids=repr)
def test_every_placement_keeps_the_contract(placement):
    check_placement(placement, star(6, 1e6))


@dataclass(frozen=True)
class Drawn:
    """Draws from a generator of its own."""

    name: ClassVar[str] = "drawn"

    def __call__(self, cluster: Cluster, rng: np.random.Generator) -> Placing:
        own = np.random.default_rng()
        return replace(as_given(cluster), shift=own.random(len(cluster.jobs)))


@dataclass(frozen=True)
class Says:
    """Says what it is told."""

    placing: Placing

    name: ClassVar[str] = "says"

    def __call__(self, cluster: Cluster, rng: np.random.Generator) -> Placing:
        return self.placing


def test_a_placement_that_draws_for_itself_is_caught():
    with pytest.raises(PolicyError, match="placement drawn: one cluster gave two placings"):
        check_placement(Drawn(), star(6, 1e6))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shift": np.array([-1.0])}, "a shift is not a finite time of 0 s or more"),
        ({"shift": np.zeros(2)}, "hosts, after and shift must have one entry for each of 1 jobs"),
        ({"hosts": (np.array([0, 9]),)}, "job 'a' is on a host that does not exist (there are 0 to 3)"),
        ({"hosts": (np.array([0]),)}, "job 'a' has 2 places and needs so many hosts"),
        ({"hosts": (np.array([1, 1]),)}, "job 'a' computes in two places on one host"),
        ({"after": ((0,),)}, "job 'a' waits for a job that is not another one"),
    ],
)
def test_what_cannot_be_is_refused(change, says):
    cluster = cluster_of(LinkNetwork(4, {(0, 1): [0]}), alone("a", (0, 1), 1.0, (0.0, 1.0)))
    with pytest.raises(PolicyError) as error:
        decide(Says(replace(as_given(cluster), **change)), cluster, RNG)
    assert f"placement says: {says}" in str(error.value)


def test_a_job_alone_is_measured():
    # Computes 1 s, sends 2 B at 1 B/s, four times: 3 s each. Of the other job nothing shows.
    fabric, workload = turns(jobs=2, iterations=4, seconds=1.0, size=2.0)
    first, second = jobs_alone(workload, fabric, Transport())
    assert (first.period, first.duration, first.loading) == pytest.approx((3.0, 12.0, 0.0))
    assert first.hosts.tolist() == [0, 1] and first.computes.tolist() == [False, True]
    assert first.traffic.tolist() == [[0.0, 0.0], [2.0, 0.0]]
    bursts = second.bursts
    # The third iteration, from 6 s: it sends from 7 to 9 s.
    assert (bursts.begin[0], bursts.end[0], bursts.rate[0]) == pytest.approx((7.0, 9.0, 1.0))
    assert (bursts.src[0], bursts.dst[0]) == (1, 0)


def test_a_workload_is_moved_and_waits():
    fabric, workload = turns(jobs=2, iterations=2, seconds=1.0, size=1.0)
    cluster = Cluster(jobs_alone(workload, fabric, Transport()), fabric)
    first, second = (job.hosts for job in cluster.jobs)
    # The second job moves to the first one's host, begins half a second after that one's end, at 4.5 s.
    placing = Placing((first, first), ((), (0,)), np.array([0.0, 0.5]))
    made = placed(workload, cluster, placing)
    assert made.flows.src.tolist() == [1, 1, 1, 1]
    assert made.tasks.host[: workload.n_tasks].tolist() == [1, 1, 1, 1]
    assert made.tasks.label[-1] == WAIT
    outcome = run(made, fabric, Fair())
    assert job_table(made, outcome)["jct"].tolist() == pytest.approx([4.0, 8.5])
    # Nothing to change is the workload itself.
    assert placed(workload, cluster, as_given(cluster)) is workload
    # A job does not begin before it arrives, though the one before it has ended.
    late = replace(workload, jobs=replace(workload.jobs, arrival=np.array([0.0, 20.0])))
    made = placed(late, cluster, placing)
    outcome = run(made, fabric, Fair())
    assert job_table(made, outcome)["jct"].tolist() == pytest.approx([4.0, 4.5])
    with pytest.raises(ScenarioError, match="cyclic dependencies"):
        placed(workload, cluster, Placing((first, second), ((1,), (0,)), np.zeros(2)))


# ------------------------------------------------------------------ in scenarios

SCENARIO = """
name: two
fabric: {kind: single_switch, hosts: 3, rate: 1Gbit/s}
workload:
  - {kind: training, name: a, model: alexnet, workers: [h1], servers: [h3], iterations: 2, batch: 8,
     device: {flops: 10TFLOP/s, efficiency: 0.5}}
  - {kind: training, name: b, model: alexnet, workers: [h2], servers: [h3], iterations: 2, batch: 8,
     device: {flops: 10TFLOP/s, efficiency: 0.5}}
policies: [fair, fifo]
placement: [none, cassini]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(SCENARIO)
    return path


def test_each_policy_with_each_placement(scenario, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["run", str(scenario), "--engine", "sim", "--out", str(out), "--no-plots", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [entry["policy"] for entry in runs] == ["fair", "fifo", "fair + cassini", "fifo + cassini"]
    assert "placement" not in runs[0]
    (first, second) = runs[2]["placement"]["jobs"]
    assert first["job"] == "a" and first["hosts"] == ["h1", "h3"] and first["shift_s"] == 0.0
    # Two alike: half an iteration apart.
    assert second["shift_s"] == pytest.approx(second["period_alone_s"] / 2, rel=0.02)
    assert yaml.safe_load((out / "scenario.yaml").read_text())["placement"] == ["none", "cassini"]
    assert main(["compare", str(out), "--no-plots", "--json"]) == 0


def test_the_workload_is_the_same_each_time_it_is_built(scenario):
    built = [build(load(scenario, ["placement={cassini: {move: true}}"])) for _ in range(2)]
    one, two = (each.ready[0].workload for each in built)
    assert one.flows.src.tolist() == two.flows.src.tolist()
    assert one.tasks.seconds.tolist() == two.tasks.seconds.tolist()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[none, cassini]", "casini", "placement: no placement is called 'casini': did you mean 'cassini'"),
        ("[none, cassini]", "[]", "placement: is empty: write a list such as [none, first-fit]"),
        ("[none, cassini]", "3", "placement: 3 is not right: write a list such as [none, first-fit]"),
        ("[none, cassini]", "[none, none]", "the placement none is listed twice"),
        ("[none, cassini]", "{cassini: {angels: 9}}", "placement.cassini.angels: unknown key"),
        ("[none, cassini]", "{cassini: {quantum: 3}}", "placement.cassini.quantum"),
        ("[none, cassini]", "{liquid: {mode: genetic}}", "placement.liquid.mode"),
    ],
)
def test_a_wrong_placement_is_said_with_its_place(scenario, old, new, says):
    scenario.write_text(SCENARIO.replace(old, new))
    with pytest.raises(ScenarioError) as error:
        load(scenario)
    assert says in str(error.value) and str(scenario) in str(error.value)


def test_an_unknown_placement_or_parameter_is_refused():
    with pytest.raises(ScenarioError, match="did you mean 'liquid'"):
        make(Spec("liquit"))
    with pytest.raises(ScenarioError, match=r"placement\.tereis: unknown parameter 'margn'"):
        make(Spec("tereis", {"margn": 0.2}))
    with pytest.raises(ScenarioError, match=r"placement\.tereis\.margin: 2 is wrong"):
        make(Spec("tereis", {"margin": 2}))


def test_placements_are_listed(capsys):
    assert main(["list", "placements"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{text}" for name in PLACEMENTS)
    assert "margin" in text and "time" in text
