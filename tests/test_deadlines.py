"""Deadlines from the scenario to the report: how they are set, how many are met, where that is shown."""

from __future__ import annotations

import json
from io import StringIO

import numpy as np
import pytest
from pydantic import ValidationError
from result_cases import outcome, scenario, star, star_paths
from rich.console import Console
from workload_fabric import GBIT, unrolled

from netsched import metrics, report, results
from netsched.bounds import lower_bounds
from netsched.cli import main
from netsched.model import Workload
from netsched.record import Key, record
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.deadlines import Deadline

NEVER = float("nan")
POISSON = {"size": {"kind": "exponential", "mean": "1MB"}, "flows": 900, "width": 3, "load": 0.5}


def bounds_of(workload: Workload, hosts: int) -> np.ndarray:
    """Seconds that each coflow needs alone on a big switch of 1 Gbit/s ports."""
    flows, n = workload.flows, len(workload.coflows.job)
    up = np.zeros((n, hosts))
    down = np.zeros((n, hosts))
    np.add.at(up, (flows.coflow, flows.src), flows.size)
    np.add.at(down, (flows.coflow, flows.dst), flows.size)
    return np.maximum(up.max(axis=1), down.max(axis=1)) / GBIT


# ------------------------------------------------------------------ how they are set


def test_a_factor_counts_from_what_the_ports_need():
    # 7 x 1.25 MB into one port of 125 MB/s: 70 ms; 7 x 1 MB from and to each host: 56 ms.
    incast = unrolled("incast", senders="all", receiver="h1", size="1.25MB", deadline={"factor": 2})
    assert incast.coflows.deadline.tolist() == pytest.approx([0.14])
    shuffle = unrolled("shuffle", size="1MB", deadline={"factor": 1.5}, weight=3)
    assert shuffle.coflows.deadline.tolist() == pytest.approx([0.084])
    assert shuffle.coflows.weight.tolist() == shuffle.jobs.weight.tolist() == [3.0]


def test_the_factor_is_drawn_for_each_coflow_and_nothing_else_changes():
    with_, without = (
        unrolled("poisson", **POISSON, **extra) for extra in ({"deadline": {"factor": 1, "spread": 2}}, {})
    )
    for column in ("coflow", "src", "dst", "size"):
        np.testing.assert_array_equal(getattr(with_.flows, column), getattr(without.flows, column))
    np.testing.assert_array_equal(with_.jobs.arrival, without.jobs.arrival)
    assert np.isinf(without.coflows.deadline).all()
    factor = with_.coflows.deadline / bounds_of(with_, 8)
    # 300 draws, uniform from 1 to 3: mean 2, standard error 0.033.
    assert 1.0 <= factor.min() < 1.05 and 2.95 < factor.max() <= 3.0
    assert factor.mean() == pytest.approx(2.0, abs=0.14)


def test_a_deadline_is_no_shorter_than_the_least():
    w = unrolled("poisson", **POISSON, deadline={"factor": 1, "least": "20ms"})
    np.testing.assert_allclose(w.coflows.deadline, np.maximum(bounds_of(w, 8), 0.02))
    fixed = unrolled("poisson", **POISSON, deadline={"least": "20ms"})
    assert set(fixed.coflows.deadline.tolist()) == {0.02}


def test_in_a_trace_a_mapper_s_own_share_counts(tmp_path):
    # Mappers 0 and 1, reducer 1 with 10 MB: 10 MB into port 1, its own 5 MB included: 80 ms.
    trace = tmp_path / "trace.txt"
    trace.write_text("2 1\n1 0 2 0 1 1 1:10\n")
    w = unrolled("coflow-benchmark", hosts=2, path=str(trace), deadline={"factor": 1})
    assert w.coflows.deadline.tolist() == pytest.approx([0.08])


def test_a_coflow_of_no_bytes_has_no_deadline_but_the_least():
    for least, right in (("0s", np.inf), ("5ms", 0.005)):
        w = unrolled("shuffle", size="0B", deadline={"factor": 2, "least": least})
        assert w.coflows.deadline.tolist() == [right]


@pytest.mark.parametrize("params", [{}, {"factor": -1}, {"spread": float("inf")}, {"least": 5}, {"x": 1}])
def test_what_has_no_sense_is_refused(params):
    with pytest.raises(ValidationError):
        Deadline(**params)


# ------------------------------------------------------------------ how many are met


def three(*deadlines: float) -> Workload:
    """Coflows of one flow of 1 MB that come at 0, 1 and 2 s."""
    b = WorkloadBuilder(4)
    for i, deadline in enumerate(deadlines):
        job = b.add_job(f"j{i}", arrival=float(i))
        b.add_flow(b.add_coflow(job, b.add_stage(job, "s"), "c", deadline=deadline), i, 3, 1e6)
    return b.build()


def met(deadlines: tuple[float, ...], finish: tuple[float, ...], ended: float = 10.0):
    work = three(*deadlines)
    times = np.stack((work.jobs.arrival, np.array(finish)), axis=1)
    return metrics.deadlines_met(metrics.coflows(work, outcome(work, times)), ended)


def test_on_time_is_within_the_deadline_but_for_rounding():
    # They take 2, 2 and 3 s.
    assert met((2.0, 1.9, np.inf), (2.0, 3.0, 5.0)) == {"share": 0.5, "met": 1, "count": 2}
    assert met((2.0 * (1 - 1e-10), 2.0 * (1 - 1e-8), 9.0), (2.0, 3.0, 5.0))["met"] == 2


def test_who_has_not_ended_is_late_only_once_the_deadline_is_over():
    # Deadlines at 3, 4 and 12 s; the run ends at 10 s with one unfinished, then two, then all.
    assert met((3.0, 3.0, 10.0), (2.0, NEVER, NEVER)) == {"share": 0.5, "met": 1, "count": 2}
    assert met((3.0, 3.0, 10.0), (NEVER, NEVER, NEVER), 2.0) == {"share": None, "met": 0, "count": 0}
    # One that has not even come.
    work = three(1.0, 1.0, 1.0)
    times = np.array([[0.0, 0.5], [1.0, 3.0], [NEVER, NEVER]])
    assert metrics.deadlines_met(metrics.coflows(work, outcome(work, times)), 1e9)["count"] == 2


def test_without_deadlines_there_is_nothing_to_say():
    assert met((np.inf, np.inf, np.inf), (2.0, 3.0, 5.0)) is None


# ------------------------------------------------------------------ where it is shown


def shown(folder, *deadlines: float) -> tuple[dict, str]:
    work = three(*deadlines)
    times = np.stack((work.jobs.arrival, np.array((2.0, 3.0, 5.0))), axis=1)
    results.create(folder, scenario())
    bounds = lower_bounds(work, star(4).capacity, *star_paths(work))
    for engine in ("sim", "mininet"):
        results.add(folder, record(Key(engine, "fair", 1), work, star(4), outcome(work, times), bounds))
    console = Console(file=StringIO(), width=200)
    result = results.load(folder)
    report.show(result, console)
    return result.summary["runs"][0], console.file.getvalue()


def test_the_summary_and_the_table_have_it_only_where_there_are_deadlines(tmp_path):
    entry, text = shown(tmp_path / "with", 2.0, 1.0, 1.0)
    assert entry["deadlines_met"] == {"share": pytest.approx(1 / 3), "met": 1, "count": 3}
    assert "met [%]" in text and "33.3" in text and "+0.0" in text
    assert "deadlines met: share of the coflows with a deadline that ended within it" in text
    entry, text = shown(tmp_path / "without", np.inf, np.inf, np.inf)
    assert "deadlines_met" not in entry and "deadlines" not in text and "+0.0" in text


def test_admission_pays_in_a_scenario_of_the_command_line(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(
        """\
name: s
fabric: {kind: single_switch, hosts: 8, rate: 1Gbit/s}
workload:
  kind: poisson
  flows: 600
  width: 3
  load: 0.9
  size: {kind: exponential, mean: 1MB}
  deadline: {factor: 1.2, spread: 1}
policies: [fair, sebf, varys-deadline]
queues: unlimited
seed: 3
"""
    )
    assert (
        main(["run", str(path), "--engine", "sim", "--json", "--no-plots", "--out", str(tmp_path / "r")]) == 0
    )
    runs = json.loads(capsys.readouterr().out)["runs"]
    fair, sebf, mine = (run["deadlines_met"]["share"] for run in runs)
    assert all(run["deadlines_met"]["count"] == 200 for run in runs)
    # Who is admitted is on time, and that is more than are by chance.
    assert fair < mine <= 1.0 and 0 < sebf < 1
