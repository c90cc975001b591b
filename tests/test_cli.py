"""The `netsched` command as a user meets it: what it prints, its exit status, what it leaves on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from netsched import doctor, kernel, results, runner
from netsched.cli import main
from netsched.errors import CapabilityError, EmulationError, PolicyError
from netsched.policies import POLICIES
from netsched.scenario import load

ROOT = Path(__file__).parents[1]

SCENARIO = """\
name: tiny
fabric: {kind: single_switch, hosts: 4, rate: 1Gbit/s}
workload: {kind: incast, senders: [h2, h3], receiver: h1, size: 1MB}
policies: [fair, fifo, sebf]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with tiny.yaml in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    return tmp_path


@pytest.fixture
def engine(monkeypatch):
    """Put an engine `fake` into the registry: the simulator, after `before(policy)` has had its say."""

    def put(before, after=lambda outcome: outcome):
        sim = runner.ENGINES["sim"]

        def run(scenario, built, position, progress, log):
            before(scenario.policies[position].name)
            return after(sim.run(scenario, built, position, progress, log))

        monkeypatch.setitem(runner.ENGINES, "fake", runner.Engine("for a test", run))

    return put


def start(*arguments: str, cwd: Path, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "netsched", *arguments]
    return subprocess.Popen(argv, cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True, **options)


# ------------------------------------------------------------------ run


def test_run_prints_a_table_and_keeps_the_result(here, capsys):
    assert main(["run", "tiny.yaml", "--engine", "sim", "--no-plots"]) == 0
    out, err = capsys.readouterr()
    # 2 senders x 1 MB into a port of 125 MB/s: 16 ms whatever the policy.
    rows = [line.split() for line in out.splitlines() if line.strip().startswith(("fair", "fifo", "sebf"))]
    assert [(row[0], row[1], float(row[2])) for row in rows] == [
        (name, "sim", 16) for name in ("fair", "fifo", "sebf")
    ]
    assert "[1/3] sim fair: 16 ms of the run" in err
    assert err.splitlines()[-1] == "results in results/tiny"
    result = results.load(here / "results" / "tiny")
    assert [key.policy for key in result.runs] == ["fair", "fifo", "sebf"]
    assert (here / "results" / "tiny" / "scenario.yaml").read_text().startswith("name: tiny\n")


def test_json_prints_the_summary_and_nothing_else(here, capsys):
    assert (
        main(["run", "tiny.yaml", "--policy", "fair", "--seed", "3", "--out", "o", "--json", "--no-plots"])
        == 0
    )
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((here / "o" / "summary.json").read_text())
    assert summary["scenario"] == "tiny"
    (run,) = summary["runs"]
    assert (run["engine"], run["policy"], run["seed"]) == ("sim", "fair", 3)
    assert set(run) == {
        *("engine", "policy", "seed", "metrics", "bound", "bytes", "simulated_s", "wall_s"),
        *("peak_rss_bytes", "fidelity", "mechanisms", "weighted_cct"),
    }
    assert run["metrics"]["coflow_completion_time"]["mean"] == pytest.approx(0.016)
    assert run["bytes"] == 2e6


def test_run_draws_its_figures(here):
    assert main(["run", "tiny.yaml", "--policy", "fair"]) == 0
    drawn = {path.suffix for path in (here / "results" / "tiny" / results.PLOTS).iterdir()}
    assert drawn == {".png", ".svg"}


def test_plot_draws_a_result_again(here, capsys):
    assert main(["run", "tiny.yaml", "--policy", "fair", "--no-plots"]) == 0
    capsys.readouterr()
    assert main(["plot", "results/tiny", "--out", "figures"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed
    assert sorted(Path(line) for line in printed) == sorted(
        path.relative_to(here) for path in (here / "figures").iterdir()
    )


def test_policy_keeps_the_parameters_of_the_scenario(here, capsys):
    (here / "tiny.yaml").write_text(
        SCENARIO.replace("[fair, fifo, sebf]", "[fair, {tensorexpress: {levels: 2}}]")
    )
    assert (
        main(["run", "tiny.yaml", "--policy", "tensorexpress", "--policy", "fifo", "--json", "--no-plots"])
        == 0
    )
    summary = json.loads(capsys.readouterr().out)
    assert [run["policy"] for run in summary["runs"]] == ["tensorexpress(levels=2)", "fifo"]
    written = (here / "results" / "tiny" / "scenario.yaml").read_text()
    assert "fair" not in written, "the scenario as run"


def test_set_and_its_result(here, capsys):
    assert main(["run", "tiny.yaml", "--set", "fabric.rate=2Gbit/s", "--json", "--no-plots"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["runs"][0]["metrics"]["coflow_completion_time"]["mean"] == pytest.approx(0.008)
    assert "2Gbit/s" in (here / "results" / "tiny" / "scenario.yaml").read_text()


def test_engines_follow_from_the_scenario(here):
    assert runner.engines_for(load("tiny.yaml"), []) == ("sim",)
    assert runner.engines_for(load("tiny.yaml", ["emulation.scale=0.1"]), []) == ("sim", "mininet")


# ------------------------------------------------------------------ wrong words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--engine", "minimet"],
            "--engine: no engine is called 'minimet': did you mean 'mininet'? (good: mininet, sim)",
        ),
        (
            ["--engine", "mininet"],
            "--engine mininet: tiny.yaml has no emulation section: write one, "
            "or add --set emulation.scale=0.01",
        ),
        (
            ["--policy", "sebff"],
            "--policy: no policy is called 'sebff': did you mean 'sebf'? "
            f"(good: {', '.join(sorted(POLICIES))})",
        ),
        (["--out", "tiny.yaml"], "tiny.yaml: is a file; the results need a folder of their own (--out)"),
        (["--out", "tiny.yaml/sub"], "tiny.yaml/sub: cannot be written: Not a directory"),
        (["--out", "."], ".: holds other files and is no result: choose an empty folder (--out)"),
        (["--out", "/proc/nowhere"], "/proc/nowhere: cannot be written: No such file or directory"),
    ],
)
def test_wrong_options_are_one_line_and_exit_status_2(here, capsys, arguments, message):
    assert main(["run", "tiny.yaml", "--no-plots", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: {message}\n")
    assert (here / "tiny.yaml").read_text() == SCENARIO


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["rum"],
        ["run"],
        ["list"],
        ["list", "policy"],
        ["run", "x", "--engin", "sim"],
        *(["run", "x", "--seed", seed] for seed in ("x", "-1", "1.5", "9" * 5000)),
    ],
)
def test_usage_errors_are_exit_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: netsched" in capsys.readouterr().err


def test_plot_of_something_else(here, capsys):
    (here / "other").mkdir()
    assert main(["plot", "other"]) == 2
    assert capsys.readouterr().err == "error: other: is no result: summary.json is missing\n"


# ------------------------------------------------------------------ runs that do not end


def test_a_failed_run_does_not_take_the_others_with_it(here, engine, capsys):
    def before(policy):
        if policy == "fifo":
            raise PolicyError("policy fifo: broke its contract")

    engine(before)
    assert main(["run", "tiny.yaml", "--engine", "fake", "--no-plots"]) == 1
    assert "error: fake fifo: policy fifo: broke its contract\n" in capsys.readouterr().err
    assert [key.policy for key in results.load(Path("results/tiny")).runs] == ["fair", "sebf"]


def test_a_missing_capability_is_exit_status_4_and_told_once(here, engine, capsys):
    def before(policy):
        raise CapabilityError("needs CONFIG_NET_SCH_HTB: load sch_htb")

    engine(before)
    assert main(["run", "tiny.yaml", "--engine", "sim", "--engine", "fake", "--no-plots"]) == 4
    out, err = capsys.readouterr()
    assert err.count("CONFIG_NET_SCH_HTB") == 1
    assert "sebf" in out, "what ran is shown"
    assert [key.engine for key in results.load(Path("results/tiny")).runs] == ["sim"] * 3


def test_nothing_but_failures_still_ends_cleanly(here, engine, capsys):
    def before(policy):
        raise EmulationError("the network did not come up")

    engine(before)
    assert main(["run", "tiny.yaml", "--engine", "fake"]) == 1
    out, err = capsys.readouterr()
    assert out == "", "no table without a row"
    assert err.count("the network did not come up") == 3
    assert err.splitlines()[-1] == "error: no run of 3 ended: no table, no figure"
    assert results.load(Path("results/tiny")).runs == ()


def test_an_engine_s_log_is_of_this_comparison_only(here, monkeypatch):
    sim = runner.ENGINES["sim"]

    def run(scenario, built, position, progress, log):
        with log.open("a") as file:
            file.write(f"{scenario.policies[position].name} says hello\n")
        return sim.run(scenario, built, position, progress, log)

    monkeypatch.setitem(runner.ENGINES, "fake", runner.Engine("for a test", run))
    for _ in range(2):
        assert main(["run", "tiny.yaml", "--engine", "fake", "--no-plots"]) == 0
    log = (here / "results" / "tiny" / "fake.log").read_text().splitlines()
    assert log == [f"{policy} says hello" for policy in ("fair", "fifo", "sebf")]
    assert main(["run", "tiny.yaml", "--engine", "sim", "--no-plots"]) == 0
    assert not (here / "results" / "tiny" / "fake.log").exists(), "of a result that is gone"


@pytest.mark.root
@pytest.mark.parametrize("right", ["net_admin", "sys_admin"])
def test_root_without_a_right_is_exit_status_4_and_names_it(here, right):
    argv = ["setpriv", "--bounding-set", f"-{right}", "--inh-caps", f"-{right}", sys.executable, "-m"]
    argv += ["netsched", "run", "tiny.yaml", "--engine", "mininet", "--set", "emulation.scale=0.1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    name = f"CAP_{right.upper()}"
    (line,) = [line for line in done.stderr.splitlines() if name in line]
    assert line.startswith(f"error: mininet fair: the mininet engine needs {name}, which root lacks here")
    assert "Traceback" not in done.stderr


def test_an_invalid_run_is_exit_status_1(here, engine, capsys):
    starved = {"valid": False, "reasons": ["CPU starvation, scale 0.005 would fit"]}
    engine(lambda policy: None, lambda outcome: replace(outcome, fidelity=starved))
    assert main(["run", "tiny.yaml", "--engine", "fake", "--policy", "fair", "--no-plots"]) == 1
    out, err = capsys.readouterr()
    assert "CPU starvation, scale 0.005 would fit" in out
    assert "error: fake fair: INVALID" in err


def test_ctrl_c_keeps_what_has_finished(here, engine, capsys):
    def before(policy):
        if policy == "sebf":
            raise KeyboardInterrupt

    engine(before)
    assert main(["run", "tiny.yaml", "--engine", "fake"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "netsched: interrupted: 2 of 3 runs finished, kept in results/tiny"
    assert [key.policy for key in results.load(Path("results/tiny")).runs] == ["fair", "fifo"]


def test_a_real_sigint_in_a_long_simulation(here):
    (here / "tiny.yaml").write_text(
        "name: long\n"
        "fabric: {kind: single_switch, hosts: 16, rate: 1Gbit/s}\n"
        "workload: {kind: poisson, flows: 3000, load: 0.95, size: {kind: exponential, mean: 1MB}}\n"
        "policies: [fair, sebf]\n"
    )
    run = start("run", "tiny.yaml", "--no-plots", cwd=here, stdout=subprocess.DEVNULL)
    assert run.stderr is not None
    try:
        assert run.stderr.readline().startswith("[1/2] sim fair: ")
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        said = run.stderr.read()
        assert run.wait(timeout=30) == 130
    finally:
        run.kill()
        run.wait()
        run.stderr.close()
    assert said == "netsched: interrupted: 1 of 2 runs finished, kept in results/long\n"
    assert [key.policy for key in results.load(here / "results" / "long").runs] == ["fair"]


# ------------------------------------------------------------------ the rest


def test_check_tells_of_each_file(here, capsys):
    (here / "bad.yaml").write_text("name: bad\n")
    assert main(["check", "tiny.yaml", "bad.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("tiny.yaml: tiny is sound\n")
    assert err.splitlines() == [
        f"error: bad.yaml: {key}: is missing" for key in ("fabric", "workload", "policies")
    ]
    assert main(["check", "tiny.yaml", "--set", "fabric.hosts=9"]) == 0
    assert "9 hosts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "names", "parameter"),
    [
        ("policies", {"fair", "fifo", "sebf", "tensorexpress"}, "levels whole number, default 0"),
        (
            "workloads",
            {"training", "coflow-benchmark", "incast", "shuffle", "poisson"},
            "size size such as 64MiB, required",
        ),
        (
            "fabrics",
            {"single_switch", "leaf_spine", "fat_tree", "rail_optimized"},
            "rate rate such as 10Gbit/s, required",
        ),
        ("engines", {"sim", "mininet"}, ""),
    ],
)
def test_list_names_every_plug_in_with_its_parameters(kind, names, parameter, capsys):
    assert main(["list", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert names <= {line.split()[0] for line in lines if not line.startswith(" ")}
    assert all(len(line.split()) > 1 for line in lines), "a name and a description"
    assert parameter in {" ".join(line.split()) for line in lines} | {""}


def _machine(*lacking: str) -> tuple[kernel.Capability, ...]:
    names = [*doctor.EMULATION, "netem"]
    return tuple(
        kernel.Capability(name, name not in lacking, "CONFIG_X", "a use", "a cost", "a way") for name in names
    )


@pytest.mark.parametrize(
    ("lacking", "status", "verdict"),
    [
        ((), 0, "engine mininet: works"),
        (("netem",), 0, "engine mininet: works"),
        (("htb", "mnexec"), 4, "engine mininet: does not work here: htb, mnexec missing"),
    ],
)
def test_doctor_judges_the_engines(lacking, status, verdict, monkeypatch, capsys):
    monkeypatch.setattr(kernel, "probe", lambda: _machine(*lacking))
    assert main(["doctor"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == verdict
    assert sum(line.strip() == "without it: a cost" for line in lines) == len(lacking)
    assert main(["doctor", "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert told["engines"] == {"sim": True, "mininet": status == 0}
    assert {each["name"] for each in told["capabilities"] if not each["present"]} == set(lacking)


def test_doctor_asks_only_for_what_is_probed(capsys):
    assert main(["doctor", "--json"]) in (0, 4)
    told = json.loads(capsys.readouterr().out)
    assert set(doctor.EMULATION) <= {each["name"] for each in told["capabilities"]}


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("netsched")


def test_a_closed_pipe_is_no_traceback(here):
    reader, writer = os.pipe()
    os.close(reader)
    run = start("list", "workloads", cwd=here, stdout=writer)
    os.close(writer)
    _, err = run.communicate(timeout=30)
    assert (run.returncode, err) == (128 + signal.SIGPIPE, "")


def test_commands_import_only_what_they_need():
    # Reason: --help has to answer at once; matplotlib alone takes longer than a small simulation.
    code = (
        "import sys\n"
        "from netsched.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )

    def modules(*arguments: str) -> set[str]:
        run = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return set(run.stderr.split())

    heavy = {"numpy", "numba", "scipy", "matplotlib", "mininet", "pydantic", "yaml", "rich", "pyarrow"}
    assert not modules("--help") & heavy
    assert not modules("check", "scenarios/incast.yaml") & {"matplotlib", "rich", "pyarrow"}
