"""Bad scenarios: one clear line with file, key and cure, exit status 2, and never a traceback.

The right messages are the house rule itself: where, what was found, what would be right. Every row goes
through the real command line.
"""

from __future__ import annotations

import textwrap
from itertools import pairwise

import pytest

from netsched.circuits import CIRCUITS
from netsched.cli import main
from netsched.fabrics import FABRICS
from netsched.policies import POLICIES

GOOD = {
    "name": "name: t",
    "fabric": "fabric: {kind: single_switch, hosts: 4, rate: 1Gbit/s}",
    "workload": "workload: {kind: incast, senders: [h2, h3], receiver: h1, size: 1MB}",
    "policies": "policies: [fair, fifo]",
}

HYBRID = "fabric: {kind: hybrid, racks: 2, hosts_per_rack: 2, host_rate: 1Gbit/s}"


def scenario(*lines: str, without: str = "", **changes: str) -> str:
    """A good scenario, some parts changed, left out or added; each part of GOOD is one line of the file."""
    parts = {**GOOD, **changes}
    parts.pop(without, None)
    return "\n".join([*parts.values(), *lines]) + "\n"


BAD = {
    "unknown key": (
        scenario("polices: [fair]"),
        "bad.yaml:5: polices: unknown key: did you mean 'policies'? (good: circuits, control, description, "
        "emulation, fabric, faults, horizon, name, placement, policies, queues, seed, transport, workload)",
    ),
    "unknown key of a fabric": (
        scenario(fabric="fabric: {kind: single_switch, hosts: 4, rates: 1Gbit/s, rate: 1Gbit/s}"),
        "bad.yaml:2: fabric.rates: unknown key: did you mean 'rate'? (good: delay, hosts, rate)",
    ),
    "unknown fabric": (
        scenario(fabric="fabric: {kind: leafspine}"),
        "bad.yaml:2: fabric.kind: no fabric is called 'leafspine': did you mean 'leaf_spine'? "
        f"(good: {', '.join(sorted(FABRICS))})",
    ),
    "fabric without a kind": (
        scenario(fabric="fabric: {hosts: 4}"),
        f"bad.yaml:2: fabric.kind: is missing: name a kind of fabric (good: {', '.join(sorted(FABRICS))})",
    ),
    "fabric by name only": (
        scenario(fabric="fabric: single_switch"),
        "bad.yaml:2: fabric: 'single_switch' is not right: write a mapping such as {kind: fat_tree, ...}",
    ),
    "unknown policy": (
        scenario(policies="policies: [fair, sebv]"),
        "bad.yaml:4: policies.1: no policy is called 'sebv': did you mean 'sebf'? "
        f"(good: {', '.join(sorted(POLICIES))}), or --plugin FILE for one of your own",
    ),
    "unknown parameter of a policy": (
        scenario(policies="policies: [{tensorexpress: {level: 4}}]"),
        "bad.yaml:4: policies.0.tensorexpress.level: unknown key: did you mean 'levels'? (good: levels)",
    ),
    "a policy's parameter is no number": (
        scenario(policies="policies: [{kind: tensorexpress, levels: true}]"),
        "bad.yaml:4: policies.0.levels: true is not right: write a whole number",
    ),
    "more classes than queues": (
        scenario("queues: 4", policies="policies: [{tensorexpress: {levels: 5}}]"),
        "bad.yaml:4: policies.0.tensorexpress.levels: 5 classes, but the scenario has queues: 4: "
        "write 4 or fewer",
    ),
    "unknown circuit scheduler": (
        scenario(
            "circuits: [none, helois]",
            fabric=HYBRID,
        ),
        "bad.yaml:5: circuits.1: no circuit scheduler is called 'helois': did you mean 'helios'? "
        f"(good: {', '.join(sorted(CIRCUITS))})",
    ),
    "unknown parameter of a circuit scheduler": (
        scenario("circuits: {helios: {slots: 1ms}}", fabric=HYBRID),
        "bad.yaml:5: circuits.0.helios.slots: unknown key: did you mean 'slot'? "
        "(good: slot, without_circuit)",
    ),
    "a circuit scheduler twice": (
        scenario("circuits: [helios, helios]", fabric=HYBRID),
        "bad.yaml:5: circuits.1: the circuit scheduler helios is listed twice: list each once",
    ),
    "circuits without optical switches": (
        scenario("circuits: helios"),
        "bad.yaml:5: circuits: single_switch has no optical switches: leave this out, or use "
        "hybrid, ocs_direct, rotor, rail_ocs",
    ),
    "a policy twice": (
        scenario(policies="policies: [fair, fair]"),
        "bad.yaml:4: policies.1: the policy fair is listed twice: list each once",
    ),
    "two policies in one entry": (
        scenario(policies="policies: [{fair: {}, aalo: {sync: 5ms}}]"),
        "bad.yaml:4: policies.0: has 2 keys, 'fair', 'aalo': "
        "write {NAME: {PARAMETER: VALUE}}, one policy to an entry",
    ),
    "no policies": (
        scenario(policies="policies: []"),
        "bad.yaml:4: policies: is empty: write a list such as [fair, fifo]",
    ),
    "policies as text": (
        scenario(policies="policies: fair"),
        "bad.yaml:4: policies: 'fair' is not right: write a list such as [fair, fifo]",
    ),
    "missing part": (scenario(without="workload"), "bad.yaml: workload: is missing"),
    "empty workload list": (
        scenario(workload="workload: []"),
        "bad.yaml:3: workload: is empty: write a mapping with a kind, or a list of them",
    ),
    "workload left blank": (
        scenario(workload="workload:"),
        "bad.yaml:3: workload: is empty: write a mapping such as {kind: coflow-benchmark, ...}",
    ),
    "negative rate": (
        scenario(fabric="fabric: {kind: single_switch, hosts: 4, rate: -1Gbit/s}"),
        "bad.yaml:2: fabric.rate: '-1Gbit/s' must be more than 0",
    ),
    "unit missing": (
        scenario(fabric="fabric: {kind: single_switch, hosts: 4, rate: 1000}"),
        "bad.yaml:2: fabric.rate: 1000 is not a rate: write a number and a unit, "
        "such as 10Gbit/s or 1.25GB/s",
    ),
    "a size with a unit of time": (
        scenario(workload="workload: {kind: incast, senders: all, receiver: h1, size: 5ms}"),
        "bad.yaml:3: workload.size: '5ms' is not a size: write a number and a unit, "
        "such as 64MiB, 100kB or 8Mbit",
    ),
    "bool for a number": (
        scenario("queues: true"),
        "bad.yaml:5: queues: true is not right: write 1 to 8 priority classes, or unlimited",
    ),
    "too many queues": (
        scenario("queues: 9"),
        "bad.yaml:5: queues: 9 is not right: write 1 to 8 priority classes, or unlimited",
    ),
    "fraction for a whole number": (
        scenario("seed: 1.5"),
        "bad.yaml:5: seed: 1.5 is not right: write a whole number",
    ),
    "negative seed": (
        scenario("seed: -1"),
        "bad.yaml:5: seed: -1 is not right: should be greater than or equal to 0",
    ),
    "NaN": (scenario("seed: .nan"), "bad.yaml:5: seed: .nan is not a finite number"),
    "infinity": (
        scenario("emulation: {scale: .inf}"),
        "bad.yaml:5: emulation.scale: .inf is not a finite number",
    ),
    "huge number": (
        scenario("seed: 1e999"),
        "bad.yaml:5: seed: '1e999' is too large: numbers end at 1e+18",
    ),
    "huge whole number": (
        scenario("seed: " + "9" * 5000),
        f"bad.yaml:5: seed: '{'9' * 59}... is too large: numbers end at 1e+18",
    ),
    "unknown kind of distribution": (
        scenario(workload="workload: {kind: poisson, flows: 5, load: 0.5, size: {kind: zipf, mean: 1MB}}"),
        "bad.yaml:3: workload.size.kind: 'zipf' is not right: "
        "write one of 'fixed', 'exponential', 'pareto', 'lognormal'",
    ),
    "distribution without a kind": (
        scenario(workload="workload: {kind: poisson, flows: 5, load: 0.5, size: {mean: 1MB}}"),
        "bad.yaml:3: workload.size.kind: is missing",
    ),
    "huge quantity": (
        scenario(workload="workload: {kind: incast, senders: all, receiver: h1, size: 1e300MB}"),
        "bad.yaml:3: workload.size: '1e300MB' is not a finite quantity of a sensible size",
    ),
    "octal": (
        scenario("seed: 012"),
        "bad.yaml:5: seed: '012' reads as octal to some: write 12, or '012' for text",
    ),
    "scale of zero": (
        scenario("emulation: {scale: 0}"),
        "bad.yaml:5: emulation.scale: 0 is not right: write a number above 0 and up to 1000, such as 0.01",
    ),
    "emulation left blank": (
        scenario("emulation:"),
        "bad.yaml:5: emulation: is empty: write at least scale, such as emulation: {scale: 0.01}",
    ),
    "chunk too small": (
        scenario("emulation: {scale: 0.01, chunk: 100B}"),
        "bad.yaml:5: emulation.chunk: '100B' is not right: write whole bytes, 1448B to 16MiB",
    ),
    "an engine named": (
        scenario("engine: sim"),
        "bad.yaml:5: engine: unknown key: (good: circuits, control, description, "
        "emulation, fabric, faults, horizon, name, placement, policies, queues, seed, transport, workload)",
    ),
    "wrong word": (
        scenario("transport: {connections: per-host}"),
        "bad.yaml:5: transport.connections: 'per-host' is not right: should be 'per-pair' or 'per-flow'",
    ),
    "reports that are always lost": (
        scenario("control: {report_delay: 10ms, report_loss: 1}"),
        "bad.yaml:5: control.report_loss: 1 is not right: write a share from 0 to below 1, such as 0.01",
    ),
    "reports lost that nobody makes": (
        scenario("control: {report_loss: 0.1}"),
        "bad.yaml:5: control.report_loss: needs reports: write report_period: 10ms, "
        "or leave it out for the ideal",
    ),
    "reports late that nobody makes": (
        scenario("control: {report_delay: 10ms, report_period: 0}"),
        "bad.yaml:5: control.report_delay: needs reports: write report_period: 10ms, "
        "or leave it out for the ideal",
    ),
    "a delay without a unit": (
        scenario("control: {report_delay: 10}"),
        "bad.yaml:5: control.report_delay: 10 is not a time: write a number and a unit, "
        "such as 1.5ms, 20us or 3s",
    ),
    "a deadline that asks for nothing": (
        scenario(workload="workload: {kind: shuffle, size: 1MB, deadline: {}}"),
        "bad.yaml:3: workload.deadline: give factor (such as 2), or least (such as 200ms), or both",
    ),
    "a deadline in the wrong shape": (
        scenario(workload="workload: {kind: shuffle, size: 1MB, deadline: 200ms}"),
        "bad.yaml:3: workload.deadline: '200ms' is not right: write a mapping (key: value)",
    ),
    "a weight of zero": (
        scenario(workload="workload: {kind: shuffle, size: 1MB, weight: 0}"),
        "bad.yaml:3: workload.weight: 0 is not right: should be greater than 0",
    ),
    "horizon of zero": (
        scenario("horizon: 0"),
        "bad.yaml:5: horizon: 0 is not right: write a time above 0 such as 60s, or unlimited",
    ),
    "unsafe name": (
        scenario(name="name: ../../etc"),
        "bad.yaml:1: name: '../../etc' is not a name: write 1 to 64 letters, digits, '.', '_' or '-'",
    ),
    "host that does not exist": (
        scenario(workload="workload: {kind: incast, senders: [h2, h9], receiver: h1, size: 1MB}"),
        None,
    ),
    "duplicate key": (
        scenario("name: again"),
        "bad.yaml:5: name: written twice (first in line 1): keep one",
    ),
    "alias": (
        "a: &a [x, x]\nb: [*a, *a]\n",
        "bad.yaml:1: a: anchors and aliases (&x, *x) are refused: write the value out",
    ),
    "YAML bomb": (
        "a: &a [x, x]\n"
        + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in pairwise("abcdefghi")),
        "bad.yaml:1: a: anchors and aliases (&x, *x) are refused: write the value out",
    ),
    "deep nesting": ("[" * 5000, "bad.yaml:1: nested deeper than 24 levels"),
    "a tag": (
        "name: !!python/object/apply:os.system [id]\n",
        "bad.yaml:1: name: tags are refused: remove 'tag:yaml.org,2002:python/object/apply:os.system'",
    ),
    "tab": (
        "name: t\nfabric:\n\tkind: x\n",
        "bad.yaml:3: not valid YAML: a tab in the indentation: use spaces",
    ),
    "unclosed": ("name: [t\n", "bad.yaml:2: not valid YAML: expected ',' or ']', but got '<stream end>'"),
    "empty file": ("", "bad.yaml: the file is empty: a scenario has at least fabric, workload, policies"),
    "only comments": (
        "# nothing\n",
        "bad.yaml: the file is empty: a scenario has at least fabric, workload, policies",
    ),
    "a list": ("- name\n", "bad.yaml:1: the file holds a list: a scenario is a mapping (key: value)"),
    "text": (
        "hello\n",
        "bad.yaml:1: the file holds the single value 'hello': a scenario is a mapping (key: value)",
    ),
    "two documents": (
        scenario() + "---\n" + scenario(),
        "bad.yaml:5: a second document (---): a scenario is one document",
    ),
    "control character": ("name: a\x00b\n", "bad.yaml:1: not valid YAML: control character #x0000"),
    "key that is no text": ("? [a]\n: b\n", "bad.yaml:1: a key must be plain text"),
    "half a character": (
        'name: "\\ud800"\n',
        "bad.yaml:1: name: half of a surrogate pair is not a character",
    ),
    "large file": ("#" * 300_000, "bad.yaml: larger than 256 KiB, too large for a scenario"),
}


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err.splitlines()


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize("name", BAD)
def test_bad_scenario_is_one_line_and_exit_status_2(name, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text, message = BAD[name]
    (tmp_path / "bad.yaml").write_text(text)
    assert main([command, "bad.yaml"]) == 2
    lines = said(capsys)
    if message is None:
        assert len(lines) == 1
        assert lines[0].startswith("error: bad.yaml: workload: senders: ")
        assert "'h9'" in lines[0]
    else:
        assert lines == [f"error: {message}"]
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"], "a refused run leaves nothing behind"


def test_every_problem_is_told_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text(
        textwrap.dedent("""\
        name: t
        fabric:
          kind: single_switch
          hosts: 0
          rate: fast
        workload:
          - {kind: incast, receiver: h1, size: 1MB}
          - {kind: shufle}
        policies: [fair]
        """)
    )
    assert main(["check", "bad.yaml"]) == 2
    assert said(capsys) == [
        "error: bad.yaml:4: fabric.hosts: 0 is not right: should be greater than or equal to 1",
        "error: bad.yaml:5: fabric.rate: 'fast' is not a rate: write a number and a unit, "
        "such as 10Gbit/s or 1.25GB/s",
        "error: bad.yaml:7: workload.0.senders: is missing",
        "error: bad.yaml:8: workload.1.kind: no workload is called 'shufle': did you mean 'shuffle'? "
        "(good: coflow-benchmark, incast, parallel, poisson, search, shuffle, training)",
    ]


def test_not_utf8(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_bytes(b"name: t\nfabric: \xff\n")
    assert main(["check", "bad.yaml"]) == 2
    assert said(capsys) == ["error: bad.yaml:2: byte 0xff is not UTF-8 text"]


@pytest.mark.parametrize(
    ("path", "reason"), [("nowhere.yaml", "No such file or directory"), (".", "Is a directory")]
)
def test_unreadable_file(path, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", path]) == 2
    assert said(capsys) == [f"error: {path}: cannot be read: {reason}"]
