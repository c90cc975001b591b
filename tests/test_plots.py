"""Figures: the files are there, say what the tables say, and are the same for the same result."""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from result_cases import RATE, outcome, scenario, serial_schedule, training
from test_results import a_run

from netsched import plots, results, timeline
from netsched.errors import ScenarioError
from netsched.results import Result

NEVER = float("nan")


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> Result:
    out = tmp_path_factory.mktemp("result")
    results.create(out, scenario())
    workload = training()
    starved = {"valid": False, "reasons": ["starved"]}
    for engine, policy, seed, fidelity in (
        ("sim", "fair", 1, None),
        ("sim", "a(b=1)", 2, None),
        ("mininet", "fair", 3, starved),
    ):
        times = serial_schedule(workload, RATE, np.random.default_rng(seed))
        results.add(
            out, a_run(policy, engine, workload=workload, run=outcome(workload, times, fidelity=fidelity))
        )
    return results.load(out)


@pytest.fixture(scope="module")
def drawn(result, tmp_path_factory) -> list[Path]:
    return plots.plot([result], tmp_path_factory.mktemp("figures") / "new" / "plots")


def test_every_figure_is_there_twice_and_can_be_read(result, drawn):
    stems = ["stage_completion_time_cdf", "stage_completion_time_bars"]
    stems += [f"timeline.{key.stem}" for key in result.runs]
    assert [path.name for path in drawn] == [f"{s}.{kind}" for s in stems for kind in ("png", "svg")]
    for path in drawn:
        if path.suffix == ".png":
            picture = imread(path)
            assert picture.shape[1] > 700
            assert picture[..., :3].std() > 0.02  # not a blank page
        else:
            assert ET.parse(path).getroot().tag.endswith("svg")  # noqa: S314 # our own file


def test_the_same_result_gives_the_same_files(result, drawn, tmp_path):
    for one, other in zip(drawn, plots.plot([result], tmp_path), strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_several_results_share_the_comparison_and_keep_their_timelines(result, tmp_path):
    other = tmp_path / "other"
    results.create(other, scenario("other"))
    results.add(other, a_run())
    names = [path.name for path in plots.plot([result, results.load(other)], tmp_path / "plots")]
    assert len(names) == len(set(names)) == 2 * (2 + 3 + 1)
    assert "timeline.other.sim.fair.seed1.png" in names


def test_nothing_finished_is_nothing_drawn(tmp_path):
    workload = training()
    never = outcome(workload, np.full((workload.n_flows + workload.n_tasks, 2), NEVER))
    results.create(tmp_path / "r", scenario())
    results.add(tmp_path / "r", a_run(workload=workload, run=never))
    assert plots.plot([results.load(tmp_path / "r")], tmp_path / "plots") == []


def test_an_unwritable_folder_is_one_line(result, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ScenarioError, match="cannot be written"):
        plots.plot([result], tmp_path / "file" / "plots")


def iterations(*rows: tuple[str, int, float, float]) -> dict[str, np.ndarray]:
    job, iteration, start, finish = zip(*rows, strict=True)
    return {
        "job": np.array(job, dtype=object),
        "iteration": np.array(iteration),
        "start": np.array(start),
        "finish": np.array(finish),
    }


def test_the_timeline_is_of_the_second_iteration_of_the_first_job():
    many = iterations(("a", 0, 0.0, 2.0), ("a", 1, 2.0, 5.0), ("a", 2, 5.0, 9.0), ("b", 0, 0.0, 1.0))
    assert timeline.choose(many) == timeline.Window("a", 1, 2.0, 5.0)
    cut = iterations(("a", 0, 0.0, NEVER), ("b", 0, 1.0, 2.0), ("b", 1, 2.0, NEVER))
    assert timeline.choose(cut) == timeline.Window("b", 0, 1.0, 2.0)
    assert timeline.choose(iterations(("a", 0, 0.0, NEVER))) is None
    assert timeline.choose(iterations(("a", 0, 1.0, 1.0))) is None  # took no time: nothing to see


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), min_size=1, max_size=40))
def test_stacked_intervals_do_not_overlap_and_use_as_few_levels_as_possible(rows):
    start = np.array([float(begin) for begin, _ in rows])
    finish = start + np.array([float(length) for _, length in rows])
    level, levels = timeline.stack(start, finish)
    for i, j in itertools.combinations(range(len(rows)), 2):
        assert level[i] != level[j] or finish[i] <= start[j] or finish[j] <= start[i]
    busiest = max(int(((start <= t) & (finish > t)).sum()) for t in start)
    assert levels == busiest == level.max() + 1


def test_a_thinned_curve_keeps_its_ends_and_its_order():
    x = np.sort(np.random.default_rng(0).random(700_000))
    y = np.arange(1, len(x) + 1) / len(x)
    thin_x, thin_y = plots.thin(x, y)
    assert len(thin_x) == 2000
    assert (thin_x[0], thin_x[-1], thin_y[-1]) == (x[0], x[-1], 1.0)
    assert np.abs(thin_y - np.searchsorted(x, thin_x, "right") / len(x)).max() < 1e-12
    assert plots.thin(x[:5], y[:5])[0].tolist() == x[:5].tolist()
