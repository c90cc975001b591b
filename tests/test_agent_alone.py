"""The agent where the simulator's packages are not installed, and its output where nobody reads it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from running_agent import BASE, ROOT, agent, command

# Runs the program as if the packages in the first argument were not installed.
ALONE = """
import sys
sys.modules |= dict.fromkeys(sys.argv.pop(1).split())
from hostagent.__main__ import main
sys.exit(main())
"""
# What the project depends on besides pydantic and PyYAML, as it is imported.
OTHERS = "numpy numba scipy networkx matplotlib pyarrow pyroute2 mininet rich psutil grpc"


def alone(*argv: str, lacking: str = OTHERS):
    return command(sys.executable, "-c", ALONE, lacking, *argv)


def test_that_is_all_that_the_project_depends_on():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["coordinator"]]
    names = {re.split("[>=]", one)[0] for one in wanted}
    assert names == {*OTHERS.replace("grpc", "grpcio").split(), "pydantic", "PyYAML"}


def test_the_agent_s_commands_need_pydantic_and_yaml_alone(tmp_path):
    file = tmp_path / "agent.yaml"
    file.write_text('{version: 1, mode: mark, api: {socket: "%s"}}' % (tmp_path / "s"))
    assert alone("plan", "--config", str(file)).returncode == 0
    assert alone("doctor").returncode == 0
    done = alone("env", "--job", "j", "--class", "0", "--link-layer", "roce")
    assert done.stdout.startswith("NETSCHED_JOB=j\n")
    done = alone("status", "--config", str(file))
    assert done.returncode == 1 and "No such file" in done.stderr and "Traceback" not in done.stderr
    with agent(tmp_path, BASE) as (path, _):
        assert alone("status", "--socket", path).returncode == 0
        assert alone("restore", "--socket", path).returncode == 0


def test_what_a_configuration_needs_besides_is_named(tmp_path):
    file = tmp_path / "agent.yaml"
    file.write_text("{version: 1, policy: tensorexpress}")
    for verb in ("run", "plan"):
        done = alone(verb, "--config", str(file))
        assert done.returncode == 4
        assert done.stderr == "netsched-agent: policy: no module numpy: pip install numpy\n"
    assert alone("plan", "--config", str(file), lacking=OTHERS.replace("numpy ", "")).returncode == 0


def test_a_reader_that_has_had_enough_is_no_failure():
    argv = [sys.executable, "-m", "hostagent", "doctor"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(timeout=20)) == (b"", 141)


def test_a_full_disk_behind_the_output_is_one_line(tmp_path):
    file = tmp_path / "agent.yaml"
    file.write_text("version: 1")
    argv = [sys.executable, "-m", "hostagent", "plan", "--config", str(file)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(argv, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "netsched-agent: output: No space left on device\n")
