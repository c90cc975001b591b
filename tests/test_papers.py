"""The scenarios that recreate published evaluations: each is sound, runs, and shows what its paper is about.

Shortened where noted, so that the whole file takes seconds. Which policy wins, and why, follows from the
scenario; by how much is not compared with what was published here.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from netsched.cli import main
from netsched.metrics import stages as stage_table
from netsched.model import Outcome, TaskKind, Workload
from netsched.scenario import build, load
from netsched.simulate import simulate

PAPERS = Path(__file__).parent.parent / "scenarios" / "papers"
OURS = (
    *("beamer", "geryon", "jpas", "mercury", "p3"),
    *("bytescheduler", "prophet", "mg-wfbp", "dear", "schemoe"),
    *("tictac", "tensorexpress"),
)
SHORT = {
    "tictac": ["workload.iterations=2"],
    "tensorexpress": ["workload.0.iterations=1", "workload.1.iterations=1"],
    "beamer": [],
    "geryon": ["workload.iterations=2"],
    "jpas": ["workload.0.iterations=2", "workload.1.iterations=2"],
    "mercury": ["workload.iterations=2"],
    "p3": ["workload.iterations=2", "workload.slice=64MB"],
    "bytescheduler": ["workload.iterations=2"],
    "prophet": ["workload.iterations=2"],
    "mg-wfbp": ["workload.iterations=2"],
    "dear": ["workload.iterations=2"],
    "schemoe": ["workload.sequence=1024"],
}
"""--set of each run here."""

DEVICE = 15.7e12 * 0.4
VGG16_FORWARD = 3.094e10
"""FLOP of VGG-16 for one image forward: 2 for each of its 15.47 G multiply-adds (biases aside)."""


@pytest.mark.parametrize("name", OURS)
def test_is_sound(name, capsys):
    assert main(["check", str(PAPERS / f"{name}.yaml")]) == 0
    assert f"{name} is sound" in capsys.readouterr().out
    assert name in [spec.name for spec in load(PAPERS / f"{name}.yaml").policies]


# The others run below, where what they show is looked at.
@pytest.mark.parametrize("name", ["beamer", "tictac", "tensorexpress"])
def test_runs_in_the_simulator(name, tmp_path, capsys):
    settings = [word for each in SHORT[name] for word in ("--set", each)]
    asked = ["run", str(PAPERS / f"{name}.yaml"), "--engine", "sim", "--out", str(tmp_path / "out")]
    assert main([*asked, "--policy", name, "--no-plots", "--json", *settings]) == 0
    assert json.loads(capsys.readouterr().out)


def run(name: str, *settings: str, only: tuple[str, ...] = ()) -> dict[str, tuple[Workload, Outcome]]:
    """The outcome of each policy (of those with these labels, if any are given), by label."""
    scenario = load(PAPERS / f"{name}.yaml", [*SHORT.get(name, []), *settings])
    built = build(scenario)
    return {
        ready.scheme.label: (
            ready.workload,
            simulate(
                ready.workload,
                built.fabric,
                ready.policy,
                queues=scenario.queues,
                transport=scenario.transport,
                control=scenario.control,
            ),
        )
        for ready in built.ready
        if not only or ready.scheme.label in only
    }


def iteration(ran: tuple[Workload, Outcome]) -> float:
    """Seconds from the end of the first backward pass to that of the second."""
    workload, outcome = ran
    tasks = workload.tasks
    ends = [
        float(outcome.task_finish[(tasks.kind == TaskKind.BACKWARD) & (tasks.iteration == i)].max())
        for i in (0, 1)
    ]
    return ends[1] - ends[0]


# ------------------------------------------------------------------ what each is about


def test_mercury_hides_all_of_vgg16s_exchange_behind_its_computation():
    took = {label: iteration(ran) for label, ran in run("mercury", only=("fair", "mercury")).items()}
    # Forward and twice as much backward, 32 images: 0.473 s. A port carries 553.4 MB in 0.443 s each way.
    computing = 3 * 32 * VGG16_FORWARD / DEVICE
    assert computing == pytest.approx(0.473, abs=0.001)
    assert took["mercury"] == pytest.approx(computing, rel=0.005)
    # Where all parts of a tensor share, they all end last: no pull before 0.443 s of pushes.
    assert took["fair"] > 1.5 * took["mercury"]


def test_geryon_gains_more_the_more_levels_it_has():
    took = {label: iteration(ran) for label, ran in run("geryon").items()}
    assert took["geryon(levels=1)"] == took["fair"]
    assert took["fair"] > took["geryon"] > took["geryon(split=equal)"] > took["tensorexpress"]
    # Each port sends 7/8 of its worker's gradients, and its server's eighth of the parameters to 7 others.
    least = 2 * 7 / 8 * 138_357_544 * 4 / 1.25e9
    assert least <= took["tensorexpress"] < 1.02 * least


def test_without_slices_one_servers_port_is_all_that_counts():
    # fc1 (25,088 x 4096 parameters) whole on one server: 7 workers push 411 MB through its port, then pull.
    whole = {label: iteration(ran) for label, ran in run("geryon", "workload.slice=1GB").items()}
    least = 2 * 7 * 25_088 * 4096 * 4 / 1.25e9
    assert min(whole.values()) > least
    assert whole["geryon"] < whole["fair"] < 1.05 * least


def test_p3_gains_on_plain_connections_with_slices():
    took = {
        label: iteration(ran) for label, ran in run("p3", "workload.slice=4MB", only=("fair", "p3")).items()
    }
    assert took["p3"] < took["fair"]


def test_jpas_runs_a_new_jobs_first_iteration_as_if_it_were_alone():
    first = {}
    for label, (workload, outcome) in run("jpas").items():
        table = stage_table(workload, outcome)
        seconds = table["finish"] - table["start"]
        first[label] = seconds[np.asarray(table["iteration"]) == 0]
    # The second and third job are the first one's twins, which was alone in its first.
    assert first["jpas"][:3] == pytest.approx([first["jpas"][0]] * 3, rel=1e-6)
    assert first["jpas"].mean() < min(first[other].mean() for other in ("fair", "fifo", "sebf"))


def test_beamer_has_the_least_mean_stage_completion_time():
    mean = {
        label: float(np.mean(stage_table(workload, outcome)["completion_time"]))
        for label, (workload, outcome) in run("beamer").items()
    }
    assert min(mean, key=mean.__getitem__) == "beamer", mean


def test_mercurys_gain_over_partitions_vanishes_with_their_start_up():
    # P3 pays a start-up for each of its slices; Mercury, whose steps are not messages, for each tensor.
    thetas = ("0s", "10ms", "30ms")
    ran = [run("mercury", f"workload.theta={theta}", only=("p3", "mercury")) for theta in thetas]
    p3, mercury = ([iteration(each[label]) for each in ran] for label in ("p3", "mercury"))
    gain = np.array(p3) / mercury
    assert gain[0] == pytest.approx(1.0, rel=0.005)
    assert gain[0] < gain[1] < gain[2]
    # fc1 is 26 slices for each server, one after the other, and the last one is to be pulled as well.
    assert p3[2] > 27 * (0.03 + 25_088 * 4096 * 4 / 104 / 1.25e9) > 1.5 * mercury[0]


def test_bytescheduler_hides_what_plain_connections_do_not_and_needs_credit_to():
    shown = ("fair", "bytescheduler", "bytescheduler(credit=4MB)")
    took = {label: iteration(ran) for label, ran in run("bytescheduler", only=shown).items()}
    # Computing takes 0.473 s, and a port carries 553.4 MB in 0.354 s: all could be hidden.
    least = 3 * 32 * VGG16_FORWARD / DEVICE
    assert least < took["bytescheduler"] < 1.05 * least < took["fair"]
    assert took["bytescheduler(credit=4MB)"] > took["bytescheduler"]


def test_merging_beats_layer_by_layer_and_one_bucket():
    took = {label: iteration(ran) for label, ran in run("mg-wfbp").items()}
    assert took["mg-wfbp"] < min(took["mg-wfbp(merge=never)"], took["mg-wfbp(merge=always)"])
    # One bucket: all of the computation, then 14 start-ups and 2 x 7/8 of 102.2 MB at 10 Gbit/s.
    sent = 14 * 37.4e-6 + 2 * 7 / 8 * 25_557_032 * 4 / 1.25e9
    assert took["mg-wfbp(merge=always)"] == pytest.approx(3 * 32 * 8.201e9 / DEVICE + sent, rel=1e-3)


def test_dear_gains_where_a_backward_pass_is_too_short_to_hide_an_all_reduce():
    took = {label: iteration(ran) for label, ran in run("dear").items()}
    assert took["dear"] < min(took["fair"], took["mg-wfbp"])


def test_bursts_as_long_as_the_authors_make_prophets_blocks_carry_more():
    shown = ("fair", "prophet", "prophet(factor=4)")
    took = {label: iteration(ran) for label, ran in run("prophet", only=shown).items()}
    assert took["prophet(factor=4)"] < took["prophet"] < took["fair"]


def test_chunks_hide_a_mixtures_all_to_alls_behind_its_experts():
    took = {label: iteration(ran) for label, ran in run("schemoe").items()}
    assert took["schemoe(chunks=4)"] < took["schemoe"] < took["fair"]
