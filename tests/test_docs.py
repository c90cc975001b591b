"""Every example of the README and of docs/ is run as it stands there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def sessions() -> list[tuple[str, list[str]]]:
    """The commands of each console block: one after the other in one folder, as a reader types them."""
    found = [
        (page.name, [line[2:] for line in block.splitlines() if line.startswith("$ ")])
        for page in PAGES
        for block in blocks(page, "console")
    ]
    return [(page, commands) for page, commands in found if commands]


def files(page: Path) -> dict[str, str]:
    """The files that a page gives the text of: the last `name.py` or `name.yaml` before such a block."""
    found = {}
    for ending, language in (("py", "python"), ("yaml", "yaml")):
        named = rf"`([a-z-]+\.{ending})`(?:(?!^```).)*?^```{language}\n(.*?)^```"
        found |= dict(re.findall(named, page.read_text(), re.DOTALL | re.MULTILINE))
    return found


@pytest.fixture
def folder(tmp_path):
    """A folder that looks like the repository to a command, and keeps what it writes."""
    for name in ("scenarios", "topologies", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_the_readme_has_examples():
    assert sum(len(commands) for page, commands in sessions() if page == "README.md") >= 5
    assert len(blocks(ROOT / "README.md", "yaml")) == 1


@pytest.mark.parametrize(("page", "commands"), sessions())
def test_every_command_of_a_page_works(page, commands, folder):
    for name, text in files(next(each for each in PAGES if each.name == page)).items():
        (folder / name).write_text(text)
    modules = {"netsched": "netsched", "netsched-agent": "hostagent"}
    for command in commands:
        argv = shlex.split(command)
        assert argv[0] in modules, f"{page}: {command} is no command of ours"
        done = subprocess.run(
            [sys.executable, "-m", modules[argv[0]], *argv[1:]],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, f"{page}: {command}\n{done.stderr}"


def test_the_scenario_of_the_readme_runs(folder):
    (folder / "two-jobs.yaml").write_text(blocks(ROOT / "README.md", "yaml")[0])
    argv = ["run", "two-jobs.yaml", "--engine", "sim", "--no-plots", "--policy", "fair"]
    done = subprocess.run(
        [sys.executable, "-m", "netsched", *argv],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "fair" in done.stdout


def test_the_newcomers_policy_is_short_and_the_page_says_what_the_check_does(folder):
    page = ROOT / "docs" / "write-a-policy.md"
    text = files(page)["patient.py"]
    assert len([line for line in text.splitlines() if line.strip()]) <= 25
    (folder / "patient.py").write_text(text.replace("= 125e6", "= 0.0"))
    done = subprocess.run(
        [sys.executable, "-m", "netsched", "check-policy", "patient", "--plugin", "patient.py"],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert done.stderr.split() == re.search(r"^    error: .*?\n\n", page.read_text(), re.S | re.M)[0].split()


def test_every_test_that_a_page_names_is_there():
    there = {
        name
        for file in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    pages = [*PAGES, *sorted((ROOT / "hostagent" / "deploy").iterdir()), *ROOT.glob("p4/*.md")]
    named = {page.name: set(re.findall(r"\b(test_\w+)\b(?!\.py)", page.read_text())) for page in pages}
    assert len(named["agent.md"]) > 40
    assert {page: names - there for page, names in named.items() if names - there} == {}
