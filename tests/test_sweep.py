"""A sweep of a scenario: its points, their results side by side, and what is wrong with one in words."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from netsched import results
from netsched.cli import main
from netsched.command_line import METRIC_NAMES
from netsched.errors import ScenarioError
from netsched.metrics import METRICS
from netsched.scenario import load
from netsched.sweep import points

SHOOTOUT = Path(__file__).parent.parent / "scenarios" / "shootout.yaml"
SCENARIO = """\
name: tiny
fabric: {kind: single_switch, hosts: 4, rate: 1Gbit/s}
workload:
  - {kind: incast, name: one, senders: [h2], receiver: h1, size: 125MB}
  - {kind: incast, name: two, senders: [h3], receiver: h1, size: 125MB, at: 100ms}
policies: [fair, sebf]
sweep:
  size:
    equal: {}
    small: {workload.1.size: 25MB, name: other}
  rate: {fabric.rate: [1Gbit/s, 10Gbit/s]}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    return tmp_path


def test_the_metrics_of_the_command_line_are_those_that_there_are():
    assert set(METRIC_NAMES) == set(METRICS)


def test_every_combination_is_run_and_stands_in_one_table(here, capsys):
    assert main(["sweep", "tiny.yaml", "--metric", "coflow_completion_time", "--out", "out"]) == 0
    with (here / "out" / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["size"], row["rate"], row["policy"]) for row in rows] == [
        (size, rate, policy)
        for size in ("equal", "small")
        for rate in ("1Gbit/s", "10Gbit/s")
        for policy in ("fair", "sebf")
    ]
    mean = {
        (row["size"], row["rate"], row["policy"]): float(row["coflow_completion_time_mean_s"]) for row in rows
    }
    # 125 MB take 1 s of a port of 1 Gbit/s. Sharing from 0.1 s on, both take 1.9 s; by size the
    # second waits for the first to end at 1 s. At 10 Gbit/s the first one is gone when the second comes.
    assert mean["equal", "1Gbit/s", "fair"] == pytest.approx((1.9 + 1.9) / 2)
    assert mean["equal", "1Gbit/s", "sebf"] == pytest.approx((1.0 + 1.9) / 2)
    # 25 MB: fair 0.4 s, the first then at 1.2 s; by size 0.2 s, and the first at 1.2 s as well.
    assert mean["small", "1Gbit/s", "fair"] == pytest.approx((1.2 + 0.4) / 2)
    assert mean["small", "1Gbit/s", "sebf"] == pytest.approx((1.2 + 0.2) / 2)
    assert mean["equal", "10Gbit/s", "fair"] == mean["equal", "10Gbit/s", "sebf"] == pytest.approx(0.1)
    above = {
        (row["rate"], row["policy"]): float(row["coflow_completion_time_above_bound"]) for row in rows[4:]
    }
    assert above["1Gbit/s", "sebf"] == pytest.approx(1.0)
    assert above["1Gbit/s", "fair"] == pytest.approx(0.8 / 0.7)
    # At each point a result like any other, and one figure.
    folders = sorted(path.name for path in (here / "out" / "points").iterdir())
    assert folders[0] == "size-equal.rate-10Gbit_s" and len(folders) == 4
    assert results.load(here / "out" / "points" / "size-small.rate-1Gbit_s").scenario == "other"
    assert {path.name for path in (here / "out" / "plots").iterdir()} == {
        "sweep_coflow_completion_time.png",
        "sweep_coflow_completion_time.svg",
    }
    out = capsys.readouterr().out
    (fair,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["fair"])
    # Means over the points: of each size, of each rate, of all; the worst; and how often it is the best.
    equal, small = 1.9 / 1.45, 0.8 / 0.7
    right = [(equal + 1) / 2, (small + 1) / 2, (equal + small) / 2, 1.0, (equal + small + 2) / 4, equal]
    assert fair[:2] == ["fair", "sim"] and fair[8] == "2"
    assert [float(each) for each in fair[2:8]] == pytest.approx(right, abs=0.0051)


def test_the_same_sweep_gives_the_same_bytes(here):
    for out in ("a", "b"):
        assert main(["sweep", "tiny.yaml", "--out", out, "--policy", "fair"]) == 0
    for name in ("sweep.csv", "plots/sweep_job_completion_time.png"):
        assert (here / "a" / name).read_bytes() == (here / "b" / name).read_bytes()


def test_a_run_of_a_sweep_is_refused_with_both_ways_out(here, capsys):
    assert main(["check", "tiny.yaml"]) == 2
    assert "tiny.yaml:7: sweep: is for `netsched sweep`: add --set sweep=null" in capsys.readouterr().err
    assert main(["check", "tiny.yaml", "--set", "sweep=null"]) == 0
    assert "sweep" not in load("tiny.yaml", ["sweep=null"]).source


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("sweep=null", r"sweep: is missing: write axes such as"),
        ("sweep=[1, 2]", r"sweep: \[1, 2\] is not right: write axes"),
        ("sweep.rate=[1]", r"sweep.rate: \[1\] is not right: write \{key: \[value, ...\]\}, or names"),
        ("sweep.rate={fabric.rate: []}", r"sweep.rate.fabric.rate: is empty: list values"),
        (
            "sweep.rate={fabric.rate: [1Gbit/s, 2Gbit/s, 1Gbit/s]}",
            r"fabric.rate.2: '1Gbit/s' is listed twice",
        ),
        ("sweep.rate={fabric.rat: [1Gbit/s]}", r"fabric.rat: unknown key.* \(at size equal, rate 1Gbit/s\)"),
        ("sweep.rate={fabric.rate: [1Gbit/s, 1bit]}", r"'1bit' is not a rate.*\(at size equal, rate 1bit\)"),
        ("sweep.rate={description: [a/b, a.b]}", r"rate a/b and size equal, rate a.b would both be in"),
        (f"sweep.seed={{seed: {list(range(2600))}}}", r"10,400 points, at most 10,000"),
    ],
)
def test_what_is_wrong_with_a_sweep_is_said(here, setting, message):
    with pytest.raises(ScenarioError, match=message):
        points("tiny.yaml", [setting])


def test_a_star_stands_for_each_entry_of_a_list(here):
    sizes = [
        spec.params["size"] for spec in load("tiny.yaml", ["sweep=null", "workload.*.size=2MB"]).workload
    ]
    assert sizes == ["2MB", "2MB"]
    mapping = "workload={kind: incast, senders: [h2], receiver: h1, size: 1MB}"
    (spec,) = load("tiny.yaml", ["sweep=null", mapping, "workload.*.size=3MB"]).workload
    assert spec.params["size"] == "3MB"


def test_the_shootout_is_sound_and_its_points_are_all_different():
    found = points(SHOOTOUT)
    shown = re.findall(r"^ (\S+) +sim ", (SHOOTOUT.parent.parent / "docs" / "shootout.md").read_text(), re.M)
    assert [spec.label for spec in found[0].scenario.policies] == shown
    assert len(found) == 2 * 3 * 3
    assert {point.scenario.fabric.params["rate"] for point in found} == {"10Gbit/s", "25Gbit/s", "100Gbit/s"}
    assert {len(point.scenario.workload) for point in found} == {1, 4}
    assert {spec.params["model"] for point in found for spec in point.scenario.workload} == {
        *("resnet50", "vgg16", "bert-large"),
    }
