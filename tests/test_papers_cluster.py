"""The scenarios that recreate evaluations of systems for whole clusters: sound, and each shows its point."""

from __future__ import annotations

import numpy as np
import pytest
from test_papers import PAPERS, run

from netsched.cli import main
from netsched.metrics import iterations, jobs
from netsched.model import Outcome, TaskKind, Workload

OURS = ("cassini", "crux", "echelonflow", "liquid", "tereis", "parrot")

Ran = tuple[Workload, Outcome]


COFLOWS = ("varys", "aalo", "philae", "fifo-lm", "sincronia")


@pytest.mark.parametrize("name", OURS + COFLOWS)
def test_is_sound(name, capsys):
    assert main(["check", str(PAPERS / f"{name}.yaml")]) == 0
    assert f"{name} is sound" in capsys.readouterr().out


def completion(ran: Ran) -> dict[str, float]:
    """Seconds of each job from its arrival, by name."""
    return dict(zip(ran[0].jobs.name, jobs(*ran)["jct"].tolist(), strict=True))


def makespan(ran: Ran) -> float:
    return float(max(ran[1].flow_finish.max(), ran[1].task_finish.max()))


def test_cassini_gives_each_job_the_link_in_turn():
    ran = run("cassini")
    # Beside none both jobs take as long; shifted, half an iteration alone later, each runs as if alone.
    plain, shifted = (np.array(list(completion(ran[label]).values())) for label in ("fair", "fair + cassini"))
    assert plain[0] == pytest.approx(plain[1])
    assert (shifted < plain).all()
    means = [
        float(np.mean(iterations(*ran[label])["iteration_time"])) for label in ("fair", "fair + cassini")
    ]
    assert means[0] / means[1] > 1.3


def test_crux_speeds_up_the_intensive_jobs():
    ran = run("crux", only=("fair", "crux"))
    fair, crux = completion(ran["fair"]), completion(ran["crux"])
    # BERT computes longest for what it sends, ResNet-50 next; AlexNet least.
    assert all(crux[job] < fair[job] * 1.001 for job in ("dense", "image"))

    def busy(label: str) -> float:
        """Share of the time until the intensive jobs have ended for which their processors compute."""
        workload = ran[label][0]
        mine = np.isin(workload.tasks.job, [workload.jobs.name.index(job) for job in ("dense", "image")])
        computing = workload.tasks.seconds[mine & (workload.tasks.kind != TaskKind.BARRIER)].sum()
        return float(computing / sum({"fair": fair, "crux": crux}[label][job] for job in ("dense", "image")))

    assert busy("crux") > busy("fair")


def test_echelonflow_has_the_shortest_iterations():
    mean = {
        label: float(np.mean(iterations(*ran)["iteration_time"])) for label, ran in run("echelonflow").items()
    }
    assert min(mean, key=mean.__getitem__) == "echelonflow", mean


def test_liquid_keeps_jobs_in_their_rack():
    ran = run("liquid")
    first_fit, fitted, searched = (float(np.mean(list(completion(each).values()))) for each in ran.values())
    assert max(fitted, searched) < 0.8 * first_fit


def test_tereis_computes_while_data_are_on_their_way():
    ran = run("tereis")
    ends = {label: makespan(each) for label, each in ran.items()}
    assert ends["fair + tereis"] < ends["fair + first-fit"]
    short = [completion(ran[f"fair + {name}"])["short-1"] for name in ("tereis", "first-fit")]
    assert short[0] < short[1] / 3


def test_parrot_completes_jobs_sooner_than_aalo():
    total = {label: sum(completion(each).values()) for label, each in run("parrot").items()}
    assert total["parrot"] < total["aalo"], total
