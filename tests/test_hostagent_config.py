"""The agent's configuration file: what is read, and one clear line for each thing that is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hostagent import config
from hostagent.config import ConfigError

ROOT = Path(__file__).parent.parent

FULL = """
version: 1
mode: mark+queue
queues: 4
classes: {gradients: 0, bulk: 2}
interfaces:
  - {name: eth0, rate: 10Gbit/s, floor: 1%, limit: 1MiB, burst: 2ms}
on_stop: keep
resync: 10s
api: {socket: /tmp/agent.sock, allow: [{uid: 1001, classes: [bulk, 3]}, {uid: 1002}]}
"""


def test_a_full_file_is_read_with_its_units():
    read = config.parse(FULL, "agent.yaml")
    (port,) = read.interfaces
    # 10 Gbit/s = 1.25e9 bytes/s; 1 MiB = 1048576 bytes.
    assert (port.rate, port.floor, port.limit, port.burst, read.resync) == (1.25e9, 0.01, 1048576, 0.002, 10)
    tree = port.wanted(read.queues, mtu=9000)
    assert tree.queues == 4
    assert all(leaf.limit == 1048576 and leaf.shape.rate == 12_500_000 for leaf in tree.leaves)
    # Two frames of 9014 bytes at the floor of 12.5 MB/s are 1442.24 us, rounded up.
    assert tree.leaves[0].shape.burst == 1443
    assert read.may_use(1001) == {2, 3} and read.may_use(1002) == {0, 1, 2, 3} and read.may_use(1003) is None
    assert read.may_use(0) == {0, 1, 2, 3}


def test_the_default_writes_nothing():
    assert config.parse("version: 1", "agent.yaml").mode == "observe"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a mapping is expected"),
        ("[1]", "a mapping is expected"),
        ("mode: mark", "version: missing"),
        ("version: 2", "version = 2: input should be 1"),
        ("version: 1\nmodus: mark", "modus: unknown key, did you mean mode?"),
        ("version: 1\nmode: all", "mode = 'all'"),
        ("version: 1\nqueues: 9", "queues = 9"),
        ("version: 1\nqueues: '8'", "queues = '8'"),
        ("version: 1\nclasses: {fast: 8}", "classes.fast = 8: with 8 queues it is 0 to 7"),
        ("version: 1\nresync: 5", "resync: 5 is not a time"),
        ("version: 1\nresync: 5ms", "resync = 0.005 s: 1 s or more"),
        ("version: 1\nmode: mark+queue", "interfaces: mode mark+queue needs one"),
        ("version: 1\ninterfaces: [{name: eth0}]", "interfaces[0]: rate: missing: scheduler htb needs"),
        (
            "version: 1\ninterfaces: [{name: e, scheduler: pfifo_fast, rate: 1Gbit/s}]",
            "interfaces[0]: rate: scheduler pfifo_fast has none",
        ),
        ("version: 1\ninterfaces: [{name: e, scheduler: fq}]", "interfaces[0].scheduler = 'fq'"),
        ("version: 1\ninterfaces: [{name: eth0, rate: 100}]", "interfaces[0].rate: 100 is not a rate"),
        ("version: 1\ninterfaces: [{name: eth0, rate: -1Gbit/s}]", "must be more than 0"),
        ("version: 1\ninterfaces: [{name: eth0, rate: 1kbit/s}]", "interfaces[0].rate = 1 kbit/s"),
        ("version: 1\ninterfaces: [{name: eth0, rate: .nan}]", "interfaces[0].rate: nan is not a rate"),
        (
            "version: 1\ninterfaces: [{name: e, rate: 1Gbit/s, floor: 0.1}]",
            "interfaces[0].floor: 0.1 is not a share",
        ),
        ("version: 1\ninterfaces: [{name: e, rate: 1Gbit/s, floor: 50%}]", "interfaces[0].floor = 0.5"),
        ("version: 1\ninterfaces: [{name: a/b, rate: 1Gbit/s}]", "interfaces[0].name = 'a/b'"),
        (
            "version: 1\ninterfaces: [{name: a, rate: 1Gbit/s}, {name: a, rate: 2Gbit/s}]",
            "interfaces: a is named twice",
        ),
        ("version: 1\napi: {allow: [{uid: root}]}", "api.allow[0].uid = 'root'"),
        ("version: 1\napi: {allow: [{uid: 1, classes: [gold]}]}", "api.allow[0].classes: class = 'gold'"),
        ("version: 1\nversion: 1", "key 'version' is there twice"),
        ("version: &a 1\nqueues: *a", "aliases are not allowed"),
        ("version: 1\nmode: !!python/object:os.system x", "not YAML"),
        ("version: [1", "not YAML"),
        ("{" * 5000, "not YAML"),
        ("version: 1\x00", "not YAML"),
    ],
)
def test_a_mistake_is_one_line_with_the_file_the_key_and_what_would_be_right(text, says):
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "agent.yaml")
    (line,) = str(caught.value).splitlines()
    assert line.startswith("agent.yaml: ") and says in line
    assert caught.value.exit_code == 2


def test_all_mistakes_are_named_at_once_by_the_command():
    text = "version: 1\nqueues: 0\nmodus: mark\ninterfaces: [{name: eth0, rate: 5}]\non_stop: explode\n"
    argv = [sys.executable, "-m", "hostagent", "run", "--config", "/dev/stdin"]
    done = subprocess.run(argv, input=text, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 4 and all(line.startswith("netsched-agent: /dev/stdin: ") for line in lines)
    for word in ("queues = 0", "modus: unknown key", "interfaces[0].rate: 5", "on_stop = 'explode'"):
        assert any(word in line for line in lines)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "modus: x\nclasses: {fast: 8}\ninterfaces: [{name: e, rate: 1Gbit/s, floor: 50%}]\n",
            ["modus: unknown key", "classes.fast = 8", "interfaces[0].floor = 0.5"],
        ),
        (
            "on_stop: x\nresync: 5ms\nrules: [{class: 8}]\napi: {alow: 1, allow: [{uid: 1, classes: [9]}]}\n",
            ["on_stop = 'x'", "api.alow: unknown key", "resync = 0.005 s", "classes: class = 9", "class = 8"],
        ),
        # Three times over: an interface's own check waits for its keys, and the file's for its.
        (
            "interfaces: [{name: e, rat: 1}]\nclasses: {a: 9}\n",
            ["interfaces[0].rat: unknown key", "interfaces[0]: rate: missing", "classes.a = 9"],
        ),
        # Nothing that would be a guess: how many classes there are, which names they have, which interfaces.
        ("queues: x\nclasses: {a: 9}\n", ["queues = 'x'"]),
        ("classes: {a: x}\nrules: [{class: a}]\n", ["classes.a = 'x'"]),
        ("mode: mark+queue\ninterfaces: [{name: e, rate: 5}]\n", ["interfaces[0].rate: 5"]),
        ("ladder: [x]\ncgroups: [{path: a, class: 0}]\n", ["ladder[0] = 'x'"]),
    ],
)
def test_a_mistake_does_not_hide_another_and_makes_none(text, says):
    with pytest.raises(ConfigError) as caught:
        config.parse("version: 1\n" + text, "agent.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == len(says), lines
    assert all(any(one in line for line in lines) for one in says), lines


def test_a_file_that_is_not_there_or_far_too_long_is_named(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "no.yaml")
    long = tmp_path / "long.yaml"
    long.write_text("#" * (1 << 21))
    with pytest.raises(ConfigError, match="longer than 1 MiB"):
        config.load(long)
