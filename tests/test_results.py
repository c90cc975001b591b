"""Results on disk: what is written is what happened, survives a kill, and is what docs/results.md says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import yaml
from result_cases import RATE, outcome, scenario, serial_schedule, star, star_paths, training
from rich.console import Console

from netsched import report, results
from netsched.bounds import lower_bounds
from netsched.errors import ScenarioError
from netsched.model import Outcome, Workload
from netsched.results import Key, Run
from netsched.schema import TABLES

TESTS = Path(__file__).parent
DOC = TESTS.parent / "docs" / "results.md"
NEVER = float("nan")


def a_run(
    policy: str = "fair", engine: str = "sim", *, workload: Workload | None = None, run: Outcome | None = None
) -> Run:
    work = workload or training()
    fabric = star(3)
    run = run or outcome(work, serial_schedule(work, RATE, np.random.default_rng(7)))
    return results.record(
        Key(engine, policy, 1), work, fabric, run, lower_bounds(work, fabric.capacity, *star_paths(work))
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    results.create(out, scenario())
    return out


# ------------------------------------------------------------------ the summary


def test_summary_has_the_documented_shape(folder):
    results.add(folder, a_run())
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.keys() == {"scenario", "version", "runs"}
    (run,) = summary["runs"]
    assert list(run) == [
        *("engine", "policy", "seed", "metrics", "bound", "bytes"),
        *("simulated_s", "wall_s", "peak_rss_bytes", "fidelity", "mechanisms", "weighted_cct"),
    ]
    names = {"stage_completion_time", "coflow_completion_time", "iteration_time", "job_completion_time"}
    assert run["metrics"].keys() == run["bound"].keys() == names
    for name in names:
        assert list(run["metrics"][name]) == ["count", "mean", "p50", "p95", "p99", "max", "unfinished"]
        assert run["bound"][name]["mean"] <= run["metrics"][name]["mean"]
    # 3 iterations x 2 ways x 2 workers x (0.1 + 0.2 + 0.3 + 0.4) MB
    assert run["bytes"] == pytest.approx(12e6)
    assert (run["metrics"]["stage_completion_time"]["count"], run["seed"]) == (3, 1)
    mean = run["metrics"]["iteration_time"]["mean"]
    assert mean == pytest.approx(run["metrics"]["job_completion_time"]["mean"] / 3)
    assert yaml.safe_load((folder / "scenario.yaml").read_text()) == {"name": "case", "policies": ["fair"]}


def test_an_unfinished_run_is_null_where_nothing_is_known():
    workload = training()
    times = serial_schedule(workload, RATE, np.random.default_rng(7))
    iteration = workload.coflows.iteration[workload.flows.coflow]
    times[np.flatnonzero(iteration == 2), 1] = NEVER
    run = outcome(workload, times, fidelity={"valid": True, "lag": np.float64("inf"), "ports": np.arange(2)})
    entry = a_run(workload=workload, run=run).entry
    assert entry["metrics"]["stage_completion_time"]["count"] == 2
    assert entry["metrics"]["stage_completion_time"]["unfinished"] == 1
    assert entry["metrics"]["job_completion_time"]["mean"] is None
    assert entry["bound"]["job_completion_time"] == {"mean": None, "names": {"port": None, "path": None}}
    # Two iterations ended, but JCT / 3 bounds the mean of three.
    assert entry["metrics"]["iteration_time"]["count"] == 2
    assert entry["bound"]["iteration_time"]["mean"] is None
    assert entry["bound"]["stage_completion_time"]["mean"] > 0
    assert entry["bytes"] == pytest.approx(8e6)
    assert entry["fidelity"] == {"valid": True, "lag": None, "ports": [0, 1]}


# ------------------------------------------------------------------ the tables


def documented() -> dict[str, list[tuple[str, str, str]]]:
    """(column, type, unit) by table, from the sections "### table" of the page."""
    tables = {}
    for section in re.split(r"^### ", DOC.read_text(), flags=re.M)[1:]:
        cells = [
            [cell.strip() for cell in line.split("|")[1:4]]
            for line in section.splitlines()
            if line[:2] == "| "
        ]
        tables[section.split()[0]] = [tuple(row) for row in cells if row[0] != "column"]
    return tables


def test_the_files_have_the_documented_columns(folder):
    run = a_run()
    results.add(folder, run)
    found = {}
    for name in TABLES:
        schema = pq.read_schema(folder / name / f"{run.key.stem}.parquet")
        kinds = [
            "text" if "dictionary" in str(f.type) else str(f.type).replace("double", "float64")
            for f in schema
        ]
        units = [(f.metadata or {}).get(b"unit", b"").decode() for f in schema]
        found[name] = list(zip(schema.names, kinds, units, strict=True))
    assert found == documented()


def test_tables_come_back_as_they_went(folder):
    run = a_run("aalo(first=10MB, factor=10)", "mininet")
    results.add(folder, run)
    result = results.load(folder)
    assert result.runs == (run.key,)
    for name in TABLES:
        table = results.read(result, name, run.key)
        assert list(table) == [column.name for column in TABLES[name]]
        for column, values in table.items():
            np.testing.assert_array_equal(values, run.tables[name][column])
    flows = results.read(result, "flows", run.key, ["src", "dst", "job", "policy"])
    assert {*flows["src"]} == {"h1", "h2", "h3"}
    assert ({*flows["job"]}, {*flows["policy"]}) == ({"net"}, {"aalo(first=10MB, factor=10)"})
    tasks = results.read(result, "tasks", run.key, ["kind", "host"])
    assert {*tasks["kind"]} == {"forward", "backward", "barrier"}
    links = results.read(result, "links", run.key, ["src", "dst"])
    assert (links["src"][0], links["dst"][0]) == ("h1", "s1")


def test_a_folder_of_tables_reads_as_one(folder):
    runs = [a_run(policy, engine) for policy in ("fair", "sebf") for engine in ("sim", "mininet")]
    for run in runs:
        results.add(folder, run)
    whole = pyarrow.dataset.dataset(folder / "stages").to_table().to_pydict()
    assert sorted(set(zip(whole["engine"], whole["policy"], strict=True))) == sorted(
        (run.key.engine, run.key.policy) for run in runs
    )
    assert len(whole["stage"]) == 3 * len(runs)


def test_a_folder_takes_one_run_at_a_time(tmp_path):
    where = tmp_path / "new" / "result"
    with results.alone(where):
        with pytest.raises(ScenarioError, match=r"result: another run writes its results there: wait"):
            results.alone(where).__enter__()
        with results.alone(tmp_path / "other"):
            pass
    with results.alone(where):
        assert not list(where.iterdir())


def test_labels_that_collide_as_file_names_do_not_collide():
    stems = {Key("sim", label, 1).stem for label in ("a(b=1)", "a(b=1", "a_b_1", "a/b/1", "../a", "ä", "")}
    assert len(stems) == 7
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", stem) for stem in stems)


def test_the_same_run_gives_the_same_bytes(tmp_path):
    written = []
    for name, wall in (("a", 0.5), ("b", 0.7)):
        workload = training()
        times = serial_schedule(workload, RATE, np.random.default_rng(7))
        results.create(tmp_path / name, scenario())
        results.add(tmp_path / name, a_run(workload=workload, run=outcome(workload, times, wall_s=wall)))
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        written.append({path.relative_to(tmp_path / name): path.read_bytes() for path in files})
    first, second = written
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == [Path("summary.json")]
    one, other = (json.loads(files[Path("summary.json")]) for files in written)
    assert [one["runs"][0].pop("wall_s"), other["runs"][0].pop("wall_s")] == [0.5, 0.7]
    assert one == other


# ------------------------------------------------------------------ interruption


def test_a_run_that_cannot_be_written_leaves_the_others(folder):
    results.add(folder, a_run("fair"))
    broken = a_run("sebf")
    with pytest.raises(KeyError):  # in the last table, when six are in place
        results.add(folder, replace(broken, tables={**broken.tables, "tasks": {}}))
    assert [key.policy for key in results.load(folder).runs] == ["fair"]
    results.add(folder, broken)
    assert [key.policy for key in results.load(folder).runs] == ["fair", "sebf"]


def test_recording_a_run_again_replaces_it(folder):
    for _ in range(2):
        results.add(folder, a_run("fair"))
    assert len(results.load(folder).runs) == 1


def test_a_kill_at_any_moment_leaves_a_readable_result(tmp_path):
    out = tmp_path / "out"
    script = textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
        from pathlib import Path
        from test_results import a_run, results, scenario
        out, run = Path({str(out)!r}), a_run()
        print("go", flush=True)
        while True:
            results.create(out, scenario())
            for policy in "abcdef":
                key = results.Key("sim", policy, 1)
                results.add(out, results.Run(key, {{**run.entry, "policy": policy}}, run.tables))
    """)
    for delay in (0.0, 0.013, 0.05, 0.11):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"go\n"
            time.sleep(delay)
            writer.kill()
        if (out / "summary.json").exists():
            result = results.load(out)
            for key in result.runs:
                assert len(results.read(result, "stages", key)["stage"]) == 3
        # The next run takes the folder over, whatever was left in it.
        results.create(out, scenario())
        assert [path for path in out.rglob("*") if path.is_file() and path.parent != out] == []


# ------------------------------------------------------------------ refusals


def test_a_result_is_replaced_but_nothing_else_is_removed(folder):
    results.add(folder, a_run())
    (folder / "plots").mkdir()
    figure, notes = folder / "plots" / "timeline.sim.fair.seed1.png", folder / "plots" / "mine.png"
    for path in (figure, notes, folder / "README.txt"):
        path.write_text("x")
    results.create(folder, scenario("again"))
    assert results.load(folder).runs == ()
    assert results.load(folder).scenario == "again"
    assert (figure.exists(), notes.exists(), (folder / "README.txt").exists()) == (False, True, True)


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ScenarioError, match="holds other files and is no result"):
        results.create(tmp_path, scenario())
    with pytest.raises(ScenarioError, match="is a file"):
        results.create(tmp_path / "thesis.tex", scenario())
    with pytest.raises(ScenarioError, match="cannot be written: Not a directory"):
        results.create(tmp_path / "thesis.tex" / "out", scenario())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("summary", "message"),
    [
        (None, "is no result: summary.json is missing"),
        ("{", "damaged, not JSON"),
        ("\x00\xff", "damaged"),
        ("[]", "needs the keys scenario, version and runs"),
        ('{"scenario": "x", "version": 99, "runs": []}', "version 99 is not known, only 1"),
        ('{"scenario": "x", "version": 1, "runs": [{}]}', "damaged: a run lacks 'metrics'"),
        ('{"scenario": "x", "version": 1, "runs": [[]]}', "damaged: runs: "),
        ('{"scenario": "x", "version": 1, "runs": 3}', "damaged: runs: "),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(tmp_path, summary, message):
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary, encoding="latin-1")
    with pytest.raises(ScenarioError, match=re.escape(message)) as caught:
        results.load(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ScenarioError):
        results.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("seed",), "a run lacks 'seed'"),
        (("fidelity",), "a run lacks 'fidelity'"),
        (("metrics", "iteration_time"), "a run lacks 'iteration_time'"),
        (("metrics", "stage_completion_time", "p95"), "a run lacks 'p95'"),
        (("bound", "stage_completion_time", "mean"), "a run lacks 'mean'"),
    ],
)
def test_a_key_that_readers_rely_on_is_missed_at_once(folder, path, message):
    results.add(folder, a_run())
    summary = json.loads((folder / "summary.json").read_text())
    inner = summary["runs"][0]
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ScenarioError, match=f"summary.json: damaged: {message}"):
        results.load(folder)
    results.create(folder, scenario())  # but it is known as a result, and can be replaced


def test_missing_and_damaged_tables_are_named(folder):
    run = a_run()
    results.add(folder, run)
    path = folder / "flows" / f"{run.key.stem}.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ScenarioError, match=r"flows/sim.fair.seed1.parquet: damaged") as caught:
        results.read(results.load(folder), "flows", run.key)
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(
        ScenarioError, match=r"flows/sim.fair.seed1.parquet: missing, but listed in summary.json"
    ):
        results.load(folder)


# ------------------------------------------------------------------ the table


def entry(policy: str, engine: str, mean: float | None, **other: object) -> dict[str, object]:
    stage = {"count": 4, "mean": mean, "p50": mean, "p95": mean, "p99": mean, "max": mean, "unfinished": 0}
    return {
        "engine": engine,
        "policy": policy,
        "seed": 1,
        "metrics": {"stage_completion_time": stage, "iteration_time": stage},
        "bound": {"stage_completion_time": {"mean": 0.5, "names": {}}},
        "simulated_s": 9.0,
        "fidelity": {"valid": True},
    } | other


def shown(summary: dict[str, object], folder: Path) -> str:
    out = StringIO()
    report.show(results.Result(folder, "x", summary, ()), Console(file=out))
    return out.getvalue()


def test_ratios_are_against_fair_the_bound_and_the_first_engine(tmp_path):
    runs = [entry("fair", "sim", 2.0), entry("sebf", "sim", 1.0)]
    runs += [entry("fair", "mininet", 2.2), entry("sebf", "mininet", 1.1)]
    summary = {"scenario": "x", "version": 1, "runs": runs}
    rows = {(row.policy, row.engine): row for row in report.rows(summary)}
    assert list(rows) == [("fair", "sim"), ("fair", "mininet"), ("sebf", "sim"), ("sebf", "mininet")]
    assert rows["sebf", "sim"].speedup == pytest.approx(2.0)  # 2.0 / 1.0
    assert rows["sebf", "mininet"].speedup == pytest.approx(2.0)  # 2.2 / 1.1, its own engine's fair
    assert rows["sebf", "sim"].over_bound == pytest.approx(2.0)  # 1.0 / 0.5
    assert rows["sebf", "mininet"].difference == pytest.approx(0.1)  # (1.1 - 1.0) / 1.0
    assert rows["sebf", "sim"].difference is None
    text = shown(summary, tmp_path)
    assert "[s]" in text
    assert "+10.0" in text
    assert max(map(len, text.splitlines())) < 120


def test_one_engine_without_fair_has_no_such_columns_filled(tmp_path):
    summary = {"scenario": "x", "version": 1, "runs": [entry("sebf", "sim", 0.004)]}
    (row,) = report.rows(summary)
    assert (row.speedup, row.difference) == (None, None)
    text = shown(summary, tmp_path)
    assert "4.000" in text
    assert "[ms]" in text
    assert "mean vs" not in text
    assert "speed-up:" not in text  # the note, which would explain nothing


def test_invalid_unfinished_and_empty_runs_say_so_below_the_table(tmp_path):
    starved = entry(
        "fair", "mininet", 1.0, fidelity={"valid": False, "reasons": ["CPU starved: use scale 0.005"]}
    )
    cut = entry("fifo", "mininet", 1.0)
    cut["metrics"]["stage_completion_time"]["unfinished"] = 2
    empty = entry("sebf", "mininet", None)
    empty["metrics"]["stage_completion_time"]["count"] = 0
    text = shown({"scenario": "x", "version": 1, "runs": [starved, cut, empty]}, tmp_path)
    assert "mininet INVALID" in text
    assert "INVALID: fair on mininet: CPU starved: use scale 0.005" in text
    assert "fifo on mininet: 2 of 6 stages unfinished after 9 s, not in the figures" in text
    assert "sebf on mininet: no stages" in text
    assert shown({"scenario": "x", "version": 1, "runs": []}, tmp_path)


def test_the_json_variant_is_the_file(folder):
    results.add(folder, a_run())
    assert report.as_json(results.load(folder)) + "\n" == (folder / "summary.json").read_text()
