"""The page of published and measured figures: it is what the data and the simulator say, figure by figure."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from placement_cases import LinkNetwork, alone, cluster_of
from result_cases import outcome, training
from sim_cases import Case

from netsched.claims import OF_JOBS, Claim, Published, System, systems
from netsched.cli import main
from netsched.errors import ScenarioError
from netsched.metrics import coflows
from netsched.model import Placing
from netsched.placement import PLACEMENTS
from netsched.placement.apply import placed
from netsched.policies import POLICIES
from netsched.reproduce import MEASURES, NAMES, Finding, Laboratory, side
from netsched.reproduction_page import gain, page, published

ROOT = Path(__file__).parent.parent
PAPERS = ROOT / "scenarios" / "papers"
PAGE = ROOT / "docs" / "reproduction.md"
QUICK = ("as recreated", "25 Gbit/s", "40 Gbit/s")
"""Variants of JPAS that are measured anew here, as all of Beamer is; the others take minutes."""


def value(text: str) -> float:
    """A figure of the page as a number: 1.52 times, +24.3 %, 3.1 % less, 3.1 % more."""
    number = float(text.split(maxsplit=1)[0].removeprefix("+"))
    if text.endswith("times"):
        return number
    return round((-number if text.endswith("more") else number) / 100, 3)


def printed(system: System) -> tuple[list[Finding], list[float]]:
    """What the page says that was measured of a system, and of it with other parameters."""
    (part,) = re.findall(
        rf"^## {re.escape(system.claims.title)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.S | re.M
    )
    tables = [
        dict(re.findall(r"^\| ([^|]+?) \| [^|]+ \| ([^|]+?) \| [^|]+ \|$", block, re.M))
        for block in part.split("\n**")[1:]
    ]
    ablated = re.findall(r"^\| (?:as above|`[^|]+`) \| ([^|]+?) \|$", part, re.M)
    findings = [
        Finding(claim, {name: value(table[name]) for name in system.claims.of(claim)})
        for claim, table in zip(system.claims.claims, tables, strict=True)
    ]
    return findings, list(map(value, ablated))


def test_the_page_is_what_the_claims_and_its_own_figures_make():
    assert PAGE.read_text() == page([(system, *printed(system)) for system in systems(PAPERS)])


@pytest.mark.parametrize("variant", QUICK)
def test_the_figures_are_measured_again_to_the_digits_that_are_printed(variant):
    (system,) = systems(PAPERS, ("jpas",))
    found = printed(system)[0][0]
    assert found.outside.get(variant, "") == ("" if variant == "40 Gbit/s" else "below")
    assert Laboratory().gain(system, found.claim, variant) == found.gains[variant]


def test_what_is_outside_is_explained_and_nothing_else():
    for system in systems(PAPERS):
        for finding in printed(system)[0]:
            assert bool(finding.outside) == bool(finding.claim.why), (system.name, finding.claim.what)


FIXED: dict[str, set[str]] = {
    # Values of the released code, or of the paper's text.
    "prophet": {"partition"},
    "liquid": {"node", "rack", "domain", "far"},
    # Which job the system is for, and what the paper compares with.
    "dear": {"without_servers"},
    "mg-wfbp": {"without_servers", "merge"},
}
"""Parameters that need no ablation."""


def test_every_parameter_that_no_paper_fixes_is_tried_with_another_value():
    for system in systems(PAPERS):
        side, tried = system.claims.claims[0].system, system.claims.ablated.values()
        kind = PLACEMENTS[side.placement] if side.placement else POLICIES[side.policy.split("(")[0]]
        changed = {name for values in tried for changes in values for name in changes}
        wanted = {field.name for field in fields(kind)} - FIXED.get(system.name, set())
        assert wanted <= changed, f"{system.name}: {wanted - changed}"


def test_the_command_prints_a_system_and_writes_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(["reproduce", "beamer"]) == 0
    out = capsys.readouterr().out
    assert out in PAGE.read_text() and out.startswith("## Beamer\n")
    assert main(["reproduce", "beamer", "--out", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text().endswith(out)
    assert main(["reproduce", "beemer"]) == 2
    assert "no claims for 'beemer': did you mean 'beamer'?" in capsys.readouterr().err


# ------------------------------------------------------------------ figures and ranges


def figure(form: str, low: float | None = None, high: float | None = None) -> Published:
    return Published.model_validate({"as": form} | {"from": low, "to": high})


@pytest.mark.parametrize(
    ("figure", "gained", "where", "said", "claimed"),
    [
        (figure("times", 1.18, 2.18), 1.18, "", "1.18 times", "1.18 times to 2.18 times"),
        (figure("times", 1.18, 2.18), 1.17, "below", "1.17 times", "1.18 times to 2.18 times"),
        (figure("times", None, 2.5), 2.51, "above", "2.51 times", "up to 2.50 times"),
        (figure("times", None, 2.5), 0.99, "below", "0.99 times", "up to 2.50 times"),
        (figure("more", None, 0.25), 0.25, "", "+25.0 %", "up to +25 %"),
        (figure("more", None, 0.192), -0.013, "below", "-1.3 %", "up to +19.2 %"),
        (figure("less", None, 0.38), 0.381, "above", "38.1 % less", "up to 38 % less"),
        (figure("less", 0.0), -0.1, "below", "10.0 % more", "at least 0 % less"),
        (figure("less", 0.09, 0.3), 0.2, "", "20.0 % less", "9 % less to 30 % less"),
        (figure("times", 2.0, 2.0), 2.0, "", "2.00 times", "2.00 times"),
    ],
)
def test_a_figure_is_judged_and_printed(figure, gained, where, said, claimed):
    claim = claim_of(published=figure.model_dump(by_alias=True))
    assert (side(figure, gained), gain(claim, gained), published(figure)) == (where, said, claimed)
    assert value(said) == gained


def claim_of(**changes: object) -> Claim:
    given = {
        "what": "speed",
        "source": "abstract",
        "published": {"to": 2.0, "as": "times"},
        "measure": "step",
        "system": {"policy": "a"},
        "baseline": {"policy": "b"},
    }
    return Claim.model_validate(given | changes)


def test_measures_are_what_their_names_say():
    # Two workers, four layers, three iterations from 1 s on; node k starts at k / 10 s and takes 1 s.
    workload = training(iterations=3, layers=4, workers=2)
    n = workload.n_flows + workload.n_tasks
    start = np.arange(n) / 10
    ran = outcome(workload, np.stack((start, start + 1.0), 1))
    found = {
        name: measure(workload, ran, claim_of()) for name, measure in MEASURES.items() if name != "early"
    }
    assert set(NAMES) == set(MEASURES)
    assert set(OF_JOBS) == {"job", "job_p95", "waiting", "execution"} <= set(NAMES)
    # Per iteration 20 tasks (8 forward, 8 backward, 4 barriers): backward passes end 20 numbers apart.
    assert found["step"] == pytest.approx(2.0)
    assert found["flow"] == pytest.approx(1.0) == pytest.approx(found["urgent_flow"])
    lengths = coflows(workload, ran)["cct"]
    assert found["coflow"] == lengths.mean() and found["coflow_p95"] == np.percentile(lengths, 95)
    assert found["makespan"] == pytest.approx((n - 1) / 10 + 1.0 - 1.0)
    assert found["job"] == found["job_p95"] == found["makespan"] == found["execution"]
    assert found["waiting"] == 0.0
    # A worker computes 3 x 4 x (0.1 + 0.2) s.
    assert found["utilisation"] == pytest.approx(3.6 / found["makespan"])
    early = [
        MEASURES["early"](workload, ran, claim_of(measure="early", share=s)) for s in (0.1, 1 / 3, 0.4, 1.0)
    ]
    ends = [
        max(float(ran.task_finish[workload.tasks.iteration == i].max()), flow_end(workload, ran, i)) - 1.0
        for i in range(3)
    ]
    assert early == pytest.approx([ends[0], ends[0], ends[1], ends[2]])


def test_jobs_wait_until_a_placement_lets_them_begin():
    # Two jobs of one flow of 1 s: the second waits for the first, and another half second.
    case = Case(4)
    case.coflow((0, 1, 1.0))
    case.coflow((2, 3, 1.0), at=0.25)
    workload = case.build()
    cluster = cluster_of(LinkNetwork(4, {(0, 1): [0]}), *(alone(n, (0, 1), 1.0, (0.0, 1.0)) for n in "ab"))
    placing = Placing(tuple(j.hosts for j in cluster.jobs), ((), (0,)), np.array([0.0, 0.5]))
    late = placed(workload, cluster, placing)
    # Flows, then the arrival of the second job and its wait.
    ran = outcome(late, np.array([[0.0, 1.0], [1.5, 2.5], [0.25, 0.25], [1.0, 1.5]]))
    waits = [
        MEASURES["waiting"](late, ran, claim_of(measure="waiting", jobs=j)) for j in (["j1"], ["j2"], None)
    ]
    assert waits == pytest.approx([0.0, 1.25, 0.625])
    runs = [MEASURES["execution"](late, ran, claim_of(measure="execution", jobs=j)) for j in (["j1"], ["j2"])]
    assert runs == pytest.approx([1.0, 1.0])
    assert MEASURES["job"](late, ran, claim_of(measure="job", jobs=["j2"])) == pytest.approx(2.25)
    with pytest.raises(ScenarioError, match="no job is called 'j3'"):
        MEASURES["job"](late, ran, claim_of(measure="job", jobs=["j3"]))


def flow_end(workload, ran, iteration: int) -> float:
    return float(ran.flow_finish[workload.coflows.iteration[workload.flows.coflow] == iteration].max())


# ------------------------------------------------------------------ what is wrong with a file


GOOD = """\
title: T
paper: P
read: the abstract
published_on: Q
known: K
inferred: I
variants: {one: []}
claims:
  - {what: W, source: S, published: {to: 2.0, as: times}, measure: step,
     system: {policy: fifo}, baseline: {policy: fair}}
"""


@pytest.fixture
def papers(tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "tiny.yaml").write_text(
        "fabric: {kind: single_switch, hosts: 3, rate: 1Gbit/s}\npolicies: [fair]\n"
        "workload: {kind: training, model: alexnet, workers: [h1, h2], servers: [h3],\n"
        "  iterations: 1, batch: 1, device: {flops: 1TFLOP/s, efficiency: 0.5}}\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("read: the abstract\n", "", "read: is missing"),
        ("to: 2.0, as", "as", r"write to: for an 'up to', from: and to: for a range"),
        ("to: 2.0", "from: 3, to: 2", r"from is 3.0, to is 2.0: write the smaller one first"),
        ("measure: step", "measure: stap", r"claims.0.measure: 'stap' is not right"),
        ("measure: step", "measure: early", r"share goes with measure: early, and only with it"),
        (
            "measure: step",
            "measure: step, jobs: [a]",
            r"jobs goes with measure: job, job_p95, waiting, execution",
        ),
        ("variants: {one: []}", "variants: {one: []}\nablations: {values: []}", "ablations.values: "),
        (
            "variants: {one: []}",
            "variants: {one: []}\nablations: {variant: two, values: [{a: 1}]}",
            r"no variant is called 'two': \(good: one\)",
        ),
        (
            "variants: {one: []}",
            "variants: {one: []}\nablations: {values: [{a: 1}], elsewhere: {two: [{a: 1}]}}",
            r"no variant is called 'two': \(good: one\)",
        ),
        ("measure: step", "measure: step, variants: [two]", r"no variant is called 'two': \(good: one\)"),
        ("variants: {one: []}", "variants: {}", "variants: "),
    ],
)
def test_claims_that_are_wrong_are_refused(papers, old, new, message):
    (papers / "claims" / "tiny.yaml").write_text(GOOD.replace(old, new))
    with pytest.raises(ScenarioError, match=message):
        systems(papers)


def test_claims_need_a_scenario_and_a_measurable_run(papers):
    with pytest.raises(ScenarioError, match="no claims there"):
        systems(papers)
    (papers / "claims" / "tiny.yaml").write_text(GOOD)
    (system,) = systems(papers)
    with pytest.raises(ScenarioError, match="job alexnet has 1 iteration, a step needs 2"):
        Laboratory().measure(system)
    (papers / "claims" / "other.yaml").write_text(GOOD)
    with pytest.raises(ScenarioError, match=r"other.yaml: claims of a scenario that is not there"):
        systems(papers)
