"""`netsched compare`: figures worked out by hand, classes as Varys has them, and what is refused."""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib.image import imread
from result_cases import outcome, scenario, star, star_paths
from rich.console import Console

from netsched import compare_plots, compare_table, results
from netsched.bounds import lower_bounds
from netsched.cli import main
from netsched.compare import CLASSES, Limits, class_cost, classify, compare, figures, slowdown, speedup
from netsched.errors import ScenarioError
from netsched.model import Workload
from netsched.record import record
from netsched.results import Key
from netsched.workloads.builder import WorkloadBuilder

NEVER = float("nan")
MB = 1e6

# Three coflows of one flow each (1, 2 and 4 MB) from hosts 0, 1, 2 to host 3, on links of 1 MB/s: alone they
# take 1, 2 and 4 s. They arrive at 0, 0 and 1 s.
SIZES = (1 * MB, 2 * MB, 4 * MB)
ARRIVALS = (0.0, 0.0, 1.0)
FAIR = (2.0, 4.0, 8.0)
"""Finish times, made up: CCTs of 2, 4 and 7 s, mean 13/3 s, makespan 8 s."""
OTHER = (1.0, 5.0, 7.5)
"""CCTs of 1, 5 and 6.5 s, mean 12.5/3 s: slowdowns 0.5, 1.25 and 6.5/7."""


def workload(sizes=SIZES, arrivals=ARRIVALS) -> Workload:
    b = WorkloadBuilder(4)
    for i, (size, arrival) in enumerate(zip(sizes, arrivals, strict=True)):
        job = b.add_job(f"j{i}", arrival=arrival)
        coflow = b.add_coflow(job, b.add_stage(job, "all"), f"c{i}")
        b.add_flow(coflow, i % 3, 3, size)
    return b.build()


def write(folder: Path, *runs: tuple[str, str, tuple[float, ...]], work=None, rate=MB, valid=True) -> Path:
    """A result whose runs (engine, policy, finish time per coflow) are as given."""
    work = work or workload()
    results.create(folder, scenario())
    bounds = lower_bounds(work, star(4, rate).capacity, *star_paths(work))
    arrival = work.jobs.arrival[work.coflows.job[work.flows.coflow]]
    for engine, policy, finish in runs:
        done = outcome(work, np.stack((arrival, np.array(finish)), 1), fidelity={"valid": valid})
        results.add(folder, record(Key(engine, policy, 1), work, star(4, rate), done, bounds))
    return folder


@pytest.fixture
def pair(tmp_path) -> Path:
    return write(tmp_path / "pair", ("sim", "fair", FAIR), ("sim", "other", OTHER))


def printed(compared) -> str:
    console = Console(file=StringIO(), width=200)
    compare_table.show(figures(compared), console)
    return console.file.getvalue()


# ------------------------------------------------------------------ figures


def test_figures_worked_by_hand(pair):
    fair, other = figures(compare([pair]))["runs"]
    assert (fair["cct"]["mean"], fair["cct"]["p50"], fair["cct"]["max"]) == pytest.approx((13 / 3, 4.0, 7.0))
    # Linear percentile: 0.95 x 2 = 1.9, so 4 + 0.9 x (7 - 4).
    assert fair["cct"]["p95"] == pytest.approx(6.7)
    assert (fair["makespan"], other["makespan"]) == (8.0, 7.5)
    assert (fair["speedup"], fair["slowdown"]) == (1.0, None)
    assert other["speedup"] == pytest.approx(13 / 12.5)
    # Isolation: 1, 2 and 4 s. Host 3's port alone, the shortest first: the three end at 1, 3 and 7 s.
    bound = other["bound"]
    assert (bound["best"], bound["mean"]) == ("shortest-first", pytest.approx(10 / 3))
    assert bound["names"]["isolation"] == pytest.approx(7 / 3)
    assert bound["names"]["shortest-first"] == pytest.approx(10 / 3)
    assert other["above_bound"] == pytest.approx(12.5 / 10)
    slow = other["slowdown"]
    assert slow["mean"] == pytest.approx((0.5 + 1.25 + 6.5 / 7) / 3)
    assert (slow["count"], slow["p50"], slow["max"]) == (3, pytest.approx(6.5 / 7), 1.25)
    assert slow["slower"] == pytest.approx(1 / 3)


def test_an_unfinished_coflow_is_in_no_ratio_and_no_makespan(tmp_path):
    folder = write(tmp_path / "r", ("sim", "fair", FAIR), ("sim", "cut", (1.0, NEVER, 7.5)))
    cut = figures(compare([folder]))["runs"][1]
    assert (cut["cct"]["count"], cut["cct"]["unfinished"], cut["makespan"]) == (2, 1, None)
    # Of the coflows that finished under both: (2 + 7) / (1 + 6.5), bound (1 + 4) / 2.
    assert cut["speedup"] == pytest.approx(9 / 7.5)
    assert cut["slowdown"]["count"] == 2
    assert cut["above_bound"] == pytest.approx(3.75 / 2.5)
    assert "cut on sim in r: 1 of 3 coflows unfinished, not in the figures" in printed(compare([folder]))


def test_a_coflow_that_takes_no_time_under_fair_has_no_slowdown(tmp_path):
    folder = write(tmp_path / "r", ("sim", "fair", (0.0, 4.0, 8.0)), ("sim", "other", OTHER))
    ratios = slowdown(compare([folder]), 1)
    assert ratios is not None and np.isnan(ratios[0]) and ratios[1] == 1.25


def test_classes_are_those_of_varys():
    # 50 flows are narrow, 51 wide; a longest flow of 5 MB is short, anything above long.
    coflows = {"width": np.array([50, 50, 51, 51])}
    flows = {"coflow": np.array([0, 1, 1, 2, 3]), "size": np.array([5e6, 1.0, 5e6 + 1, 1.0, 6e6])}
    assert [CLASSES[kind] for kind in classify(flows, coflows, Limits())] == ["SN", "LN", "SW", "LW"]
    assert classify(flows, coflows, Limits(narrow=51, short=6e6)).tolist() == [0, 0, 0, 0]


def test_figures_by_class(pair):
    compared = compare([pair], Limits(short=2 * MB))
    told = figures(compared)
    assert told["classes"]["coflows"] == {"SN": 2, "LN": 1, "SW": 0, "LW": 0}
    classes = told["runs"][1]["classes"]
    assert (classes["SN"]["mean"], classes["LN"]["mean"], classes["SW"]["mean"]) == (3.0, 6.5, None)
    # Short: (2 + 4) / (1 + 5); long: 7 / 6.5.
    assert (classes["SN"]["speedup"], classes["LN"]["speedup"]) == (1.0, pytest.approx(7 / 6.5))
    assert "3 s (1.00x)" in printed(compared) and "6.5 s (1.08x)" in printed(compared)


def test_rows_in_another_order_are_matched_by_number(pair):
    import pyarrow.parquet as pq  # noqa: PLC0415

    before = figures(compare([pair]))
    for name in ("coflows/sim.other", "coflows/sim.fair", "flows/sim.fair"):
        path = pair / f"{name}.seed1.parquet"
        pq.write_table(pq.read_table(path, partitioning=None).take([2, 0, 1]), path)
    assert figures(compare([pair])) == before
    path = pair / "coflows/sim.other.seed1.parquet"
    pq.write_table(pq.read_table(path, partitioning=None).take([0, 2]), path)
    with pytest.raises(ScenarioError, match=r"coflows are not numbered from 0 .* in sim\.other\.seed1"):
        compare([pair])


# ------------------------------------------------------------------ several results


def test_fair_is_that_of_the_same_result_or_else_another_s_over_the_same_links(tmp_path):
    one = write(tmp_path / "one", ("sim", "fair", FAIR), ("sim", "other", OTHER))
    two = write(tmp_path / "two", ("sim", "fair", (2.0, 4.0, 9.0)), ("sim", "other", OTHER))
    bare = write(tmp_path / "bare", ("sim", "other", OTHER))
    real = write(tmp_path / "real", ("mininet", "other", OTHER))
    fast = write(tmp_path / "fast", ("sim", "other", OTHER), rate=2 * MB)
    compared = compare([two, one, bare, real, fast])
    assert compared.fair == (0, 0, 2, 2, 0, None, None)
    assert speedup(compared, 1) == pytest.approx(14 / 12.5)
    text = printed(compared)
    assert "other on sim in bare: compared with fair in two" in text
    assert "other on mininet in real: no fair on this engine and these links" in text
    assert "other on sim in fast: no fair on this engine and these links" in text


def with_queues(folder: Path, queues: object, **more: object) -> Path:
    """The result, its scenario saying so many classes."""
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "queues": queues, **more}))
    return folder


def test_what_few_classes_cost_is_the_ratio_to_the_same_run_without_a_limit(tmp_path):
    # Mean CCT 12.5/3 s with eight classes, (2 + 3 + 5) / 3 s without a limit: 1.25.
    eight = with_queues(write(tmp_path / "q8", ("sim", "fair", FAIR), ("sim", "other", OTHER)), 8)
    free = with_queues(write(tmp_path / "free", ("sim", "other", (2.0, 3.0, 6.0))), "unlimited")
    compared = compare([eight, free])
    assert compared.unlimited == (None, 2, None)
    assert class_cost(compared, 1) == pytest.approx(1.25)
    told = figures(compared)["runs"]
    assert [run["queues"] for run in told] == [8, 8, None]
    assert [run["over_unlimited"] for run in told] == [None, pytest.approx(1.25), None]
    assert [run["unlimited"] for run in told] == [None, "free", None]
    text = printed(compared)
    assert "unlimited [x]" in text and "1.250" in text
    assert "over unlimited: mean / mean of the same policy with as many classes as it has ranks" in text


def test_only_runs_that_differ_in_nothing_else_tell_what_classes_cost(tmp_path):
    eight = with_queues(write(tmp_path / "q8", ("sim", "other", OTHER)), 8)
    others = [
        with_queues(write(tmp_path / "slow", ("sim", "other", OTHER)), "unlimited", control={"delay": "5ms"}),
        with_queues(write(tmp_path / "pair", ("sim", "other", OTHER)), "unlimited", transport={"a": "b"}),
        with_queues(write(tmp_path / "fast", ("sim", "other", OTHER), rate=2 * MB), "unlimited"),
        with_queues(write(tmp_path / "real", ("mininet", "other", OTHER)), "unlimited"),
        with_queues(write(tmp_path / "four", ("sim", "other", OTHER)), 4),
    ]
    compared = compare([eight, *others])
    assert compared.unlimited == (None,) * 6
    assert "unlimited" not in printed(compared)
    # Without a word on it a scenario has eight.
    plain = write(tmp_path / "plain", ("sim", "other", OTHER))
    assert compare([plain]).runs[0].queues == 8


def test_a_scenario_that_cannot_be_read_is_named(tmp_path):
    folder = write(tmp_path / "r", ("sim", "other", OTHER))
    (folder / "scenario.yaml").write_text("- a\n")
    with pytest.raises(ScenarioError, match=r"r/scenario\.yaml: damaged: is no mapping: run it again"):
        compare([folder])
    (folder / "scenario.yaml").unlink()
    with pytest.raises(ScenarioError, match=r"r/scenario\.yaml: damaged: "):
        compare([folder])


def test_deadlines_met_are_shown_where_there_are_any(pair, tmp_path):
    assert "deadlines" not in printed(compare([pair]))
    b = WorkloadBuilder(4)
    for i in range(3):
        job = b.add_job(f"j{i}", arrival=ARRIVALS[i])
        coflow = b.add_coflow(job, b.add_stage(job, "all"), f"c{i}", deadline=(4.0, 4.0, np.inf)[i])
        b.add_flow(coflow, i, 3, SIZES[i])
    # CCTs 1 and 5 s against 4 s each: half of them.
    folder = write(tmp_path / "d", ("sim", "other", OTHER), work=b.build())
    compared = compare([folder])
    assert figures(compared)["runs"][0]["deadlines_met"] == 0.5
    assert "met [%]" in printed(compared) and "50.0" in printed(compared)


def test_results_in_folders_of_one_name_are_told_apart(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name / "r", ("sim", "fair", FAIR))
    names = [run.result for run in compare([tmp_path / "a" / "r", tmp_path / "b" / "r"]).runs]
    assert names == [str(tmp_path / "a" / "r"), str(tmp_path / "b" / "r")]


def test_without_fair_the_columns_are_absent_and_it_is_said(tmp_path):
    text = printed(compare([write(tmp_path / "r", ("sim", "other", OTHER))]))
    assert "vs fair [x]" not in text and "above" in text
    assert "no run of fair on the same engine: no speed-up and no slowdown" in text


@pytest.mark.parametrize(
    ("work", "what"),
    [
        (workload(SIZES[:2], ARRIVALS[:2]), "2 jobs instead of 3"),
        (workload(arrivals=(0.0, 0.0, 2.0)), "job 2 has arrival 2.0 instead of 1.0"),
        (workload((1 * MB, 3 * MB, 4 * MB)), "coflow 1 has bytes 3000000.0 instead of 2000000.0"),
    ],
)
def test_another_workload_is_refused_with_the_first_difference(pair, tmp_path, work, what):
    finish = tuple(np.arange(work.n_flows) + 2.0)
    other = write(tmp_path / "x", ("sim", "fair", finish), work=work)
    with pytest.raises(ScenarioError) as error:
        compare([pair, other])
    end = "compare results of one scenario and seed"
    assert str(error.value) == f"{other}: another workload than {pair}: {what}: {end}"


# ------------------------------------------------------------------ the command


def test_the_table(pair, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "pair", "--no-plots"]) == 0
    out, err = capsys.readouterr()
    (line,) = [
        line.split() for line in out.splitlines() if line.strip().startswith("other") and "(" not in line
    ]
    # mean p50 p95 max makespan speed-up slower above-bound; p95 is 5 + 0.9 x 1.5.
    assert line == [
        "other",
        "sim",
        "pair",
        "4.167",
        "5.000",
        "6.350",
        "6.500",
        "7.500",
        "1.04",
        "33.3",
        "1.25",
        "shortest-first",
    ]
    assert "the best lower bound of it, of isolation, " in out and err == ""
    assert "[s]" in out


def test_json_is_the_figures_and_the_options_reach_them(pair, capsys):
    assert main(["compare", str(pair), "--json", "--no-plots", "--short", "2MB", "--narrow", "0"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == figures(compare([pair], Limits(0, 2 * MB)))
    assert told["classes"]["coflows"] == {"SN": 0, "LN": 0, "SW": 2, "LW": 1}


def test_the_figures_are_there_and_the_same_each_time(pair, tmp_path, capsys):
    stems = ["coflow_completion_time_cdf", "coflow_completion_time_by_class", "slowdown_against_fair_cdf"]
    names = sorted(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg"))
    for out in ("one", "two"):
        assert main(["compare", str(pair), "--out", str(tmp_path / out)]) == 0
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert imread(tmp_path / "one" / names[0])[..., :3].std() > 0.02  # not a blank page
    assert capsys.readouterr().err.splitlines()[0] == f"figures in {tmp_path / 'one'}"


def test_without_fair_or_a_finished_coflow_there_is_nothing_to_draw(tmp_path):
    alone = compare([write(tmp_path / "alone", ("sim", "fair", FAIR))])
    drawn = [path.name for path in compare_plots.plot(alone, tmp_path / "a") if path.suffix == ".png"]
    assert drawn == ["coflow_completion_time_cdf.png", "coflow_completion_time_by_class.png"]
    never = compare([write(tmp_path / "never", ("sim", "fair", (NEVER, NEVER, NEVER)))])
    assert compare_plots.plot(never, tmp_path / "n") == []
    assert figures(never)["runs"][0]["speedup"] is None
    assert "3 of 3 coflows unfinished" in printed(never)


def test_figures_of_an_earlier_comparison_go_when_the_result_is_made_anew(pair):
    assert main(["compare", str(pair)]) == 0
    assert len(list((pair / results.PLOTS).iterdir())) == 6
    results.create(pair, scenario())
    assert list((pair / results.PLOTS).iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "r: is no folder; a result is the folder that `netsched run` wrote"),
        (lambda r: (r / "summary.json").unlink(), "r: is no result: summary.json is missing"),
        (lambda r: results.create(r, scenario()), "r: holds no finished run: nothing to compare"),
        (lambda r: _break(r / "coflows"), "r/coflows/sim.fair.seed1.parquet: damaged: "),
        (lambda r: _break(r / "flows"), "r/flows/sim.fair.seed1.parquet: damaged: "),
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_status_2(tmp_path, monkeypatch, capsys, spoil, message):
    monkeypatch.chdir(tmp_path)
    write(Path("r"), ("sim", "fair", FAIR))
    spoil(Path("r"))
    assert main(["compare", "r", "--no-plots"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: {message}")


def _break(folder: Path) -> None:
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-20])


def test_a_result_given_twice_is_refused(pair, tmp_path, capsys):
    (tmp_path / "link").symlink_to(pair)
    assert main(["compare", str(pair), str(tmp_path / "link")]) == 2
    assert "is given twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", [("--narrow", "5.5"), ("--narrow", "-1"), ("--short", "5"), ("--short", "5MB/s")]
)
def test_limits_without_sense_or_unit_are_usage_errors(pair, option, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(pair), *option])
    assert stop.value.code == 2
    assert option[0] in capsys.readouterr().err.splitlines()[-1]


def test_an_unwritable_folder_is_one_line(pair, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert main(["compare", str(pair), "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'file'}: cannot be written")


def test_the_command_s_limits_are_those_of_varys(pair, capsys):
    assert main(["compare", str(pair), "--json", "--no-plots"]) == 0
    told = json.loads(capsys.readouterr().out)["classes"]
    assert (told["narrow_at_most_flows"], told["short_at_most_bytes"]) == (50, 5e6)
    assert Limits() == Limits(50, 5e6)


def test_invalid_runs_are_marked(tmp_path):
    text = printed(compare([write(tmp_path / "r", ("mininet", "fair", FAIR), valid=False)]))
    assert "mininet INVALID" in text and "INVALID: fair on mininet in r" in text
