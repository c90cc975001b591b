"""Policies from a file of the user's: found where asked for, refused in words where something is wrong."""

from __future__ import annotations

import json

import pytest

from netsched import scenario
from netsched.cli import main
from netsched.coordinator import config as coordinator
from netsched.errors import ScenarioError
from netsched.plugins import known
from netsched.policies import POLICIES, make
from netsched.runner import with_policies

HEAD = """\
from dataclasses import dataclass
from typing import ClassVar
from netsched.model import Event, Plan, View
from netsched.policies.base import plan_of
from netsched.units import Duration

"""
LAST = (
    HEAD
    + '''
class _Base:
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.COFLOW_RELEASED
    starves: ClassVar[str] = "older coflows, as long as others come: that is what it is for"

@dataclass(frozen=True)
class Last(_Base):
    """The newest coflow first."""
    wait: Duration = 0.25
    name: ClassVar[str] = "last"

    def __call__(self, view: View) -> Plan:
        return plan_of(view, len(view.coflows) - 1 - view.flows.coflow)
'''
)
SCENARIO = """\
name: tiny
fabric: {kind: single_switch, hosts: 4, rate: 8Mbit/s}
workload:
  - {kind: incast, name: one, senders: [h2], receiver: h1, size: 2MB}
  - {kind: incast, name: two, senders: [h3], receiver: h1, size: 1MB, at: 1s}
policies: [fifo, last, {last: {wait: 3s}}]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "last.py").write_text(LAST)
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    return tmp_path


def test_a_scenario_runs_a_policy_of_a_file(here, capsys):
    argv = ["run", "tiny.yaml", "--plugin", "last.py", "--engine", "sim", "--no-plots", "--json"]
    assert main(argv) == 0
    runs = {run["policy"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    assert list(runs) == ["fifo", "last", "last(wait=3s)"]
    # 2 MB at 1 MB/s, after 1 s another MB. In order 2 s and 2 s; the newest first 3 s and 1 s.
    for label, longest in (("fifo", 2.0), ("last", 3.0)):
        cct = runs[label]["metrics"]["coflow_completion_time"]
        assert (cct["mean"], cct["max"]) == (pytest.approx(2.0), pytest.approx(longest))
    assert "last" not in POLICIES


def test_without_the_flag_no_code_of_a_file_runs(here, capsys):
    (here / "last.py").write_text("raise SystemExit('run')")
    assert main(["check", "tiny.yaml"]) == 2
    err = capsys.readouterr().err
    assert "tiny.yaml:6: policies.1: no policy is called 'last'" in err
    assert "or --plugin FILE for one of your own" in err


def test_parameters_of_a_plugin_are_checked_as_any_others(here):
    (here / "tiny.yaml").write_text(SCENARIO.replace("wait: 3s", "wait: 3"))
    with pytest.raises(ScenarioError, match=r"tiny.yaml:6: policies.2.last.wait: 3 is not a"):
        scenario.load("tiny.yaml", plugins=["last.py"])


def test_a_policy_of_a_file_can_be_chosen_built_and_used_by_the_coordinator(here):
    loaded = scenario.load("tiny.yaml", plugins=["last.py"])
    chosen = with_policies(loaded, ["last(wait=3s)"])
    (ready,) = scenario.build(chosen).ready
    assert (ready.policy.name, ready.policy.wait) == ("last", 3.0)
    # The same class as for anybody else who asks for this file.
    assert type(ready.policy) is known([here / "last.py"])["last"]
    assert chosen.plugins == (str(here / "last.py"),)
    (here / "coordinator.yaml").write_text(
        "version: 1\nlisten: 127.0.0.1:9471\nfabric: {kind: single_switch, hosts: 2, rate: 1Gbit/s}\n"
        "policy: {last: {wait: 1s}}\n"
    )
    assert coordinator.load("coordinator.yaml", ["last.py"]).policy == type(ready.policy)(1.0)
    with pytest.raises(ScenarioError, match=r"'last' is no policy: .* or --plugin FILE for your own"):
        coordinator.load("coordinator.yaml")


def test_it_is_listed_and_checked(here, capsys):
    assert main(["list", "policies", "--plugin", "last.py"]) == 0
    assert "last                 The newest coflow first.\n    wait " in capsys.readouterr().out
    assert main(["list", "engines", "--plugin", "last.py"]) == 2
    assert main(["check-policy", "last", "fair", "--plugin", "last.py"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in out] == ["last", "last", "fair", "fair"]
    text = LAST.replace("starves: ClassVar[str] =", "because =")
    (here / "last.py").write_text(text)
    assert main(["check-policy", "last", "--plugin", "last.py"]) == 1
    assert "a coflow does not end as long as smaller coflows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no policy in it: write a class with a name and a method __call__"),
        ("x = 1\ny = [0][1]\n", r"line 2: IndexError: list index out of range"),
        ("x = 1\ndef f(:\n", r"line 2: SyntaxError: invalid syntax"),
        ("import nothing_like_this\n", r"line 1: ModuleNotFoundError: No module named 'nothing_like_this'"),
        (LAST.replace('"last"', '"fair"'), r"Last.name is 'fair', which netsched has: choose another"),
        (LAST.replace('"last"', '"Last!"'), r"Last.name: write lower case letters"),
        (LAST.replace("@dataclass(frozen=True)", ""), r"Last: write @dataclass\(frozen=True\) above it"),
        (LAST.replace("(frozen=True)", ""), r"Last: write @dataclass\(frozen=True\) above it"),
        (LAST.replace("local:", "lokal:"), r"Last.local is None: write local: ClassVar\[bool\] = "),
    ],
)
def test_what_is_wrong_with_a_file_is_said(here, text, message):
    (here / "other.py").write_text(text)
    with pytest.raises(ScenarioError, match=rf"--plugin {here}/other.py: {message}"):
        known(["other.py"])


def test_two_files_cannot_have_one_name_and_a_missing_file_is_said(here):
    (here / "again.py").write_text(LAST)
    with pytest.raises(ScenarioError, match=rf"again.py: Last.name is 'last', which {here}/last.py has"):
        known(["last.py", "again.py"])
    assert known(["last.py", "./last.py"])["last"].name == "last"
    with pytest.raises(ScenarioError, match=r"none.py: cannot be read: No such file"):
        known(["none.py"])
    with pytest.raises(ScenarioError, match=r"tiny.yaml: is no Python file: its name must end in .py"):
        known(["tiny.yaml"])


def test_make_knows_the_registry_unless_told_otherwise(here):
    spec = scenario.load("tiny.yaml", plugins=["last.py"]).policies[1]
    with pytest.raises(ScenarioError, match="no policy is called 'last'"):
        make(spec)
