"""The coordinator's configuration and its command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from netsched.coordinator import config
from netsched.errors import ScenarioError
from netsched.model import Control

GOOD = """\
version: 1
listen: 127.0.0.1:9471
fabric: {kind: single_switch, hosts: 2, rate: 10Gbit/s}
hosts:
  h1: {name: node-17, addresses: [10.0.0.17, "fd00::17"]}
policy: {aalo: {first: 1MB}}
control: {period: 10ms, delay: 1ms}
"""


def read(tmp_path, text: str) -> config.Config:
    file = tmp_path / "coordinator.yaml"
    file.write_text(text)
    return config.load(file)


def test_a_configuration_is_read_with_its_units(tmp_path):
    found = read(tmp_path, GOOD)
    assert found.listen == ("127.0.0.1", 9471) and found.tls is None
    assert found.network.names == {"node-17", "h2"}
    assert found.network.ordinal_of == {"node-17": 0, "10.0.0.17": 0, "fd00::17": 0, "h2": 1}
    assert found.network.queues == 8 and found.network.fabric.capacity.tolist() == [1.25e9] * 4
    assert found.policy.first == 1e6 and found.control == Control(0.001, 0.01) and found.stale == 10.0
    tls = GOOD.replace("127.0.0.1", "10.0.0.9") + "tls: {ca: ca.pem, cert: c.pem, key: /k.pem}\n"
    found = read(tmp_path, tls)
    assert found.tls is not None and found.tls.ca == tmp_path / "ca.pem" and str(found.tls.key) == "/k.pem"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("127.0.0.1:9471", "10.0.0.9:9471", r"listen: 10\.0\.0\.9 is not on loopback: without tls only"),
        ("127.0.0.1:9471", "node-1:9471", "is not an address and a port"),
        ("127.0.0.1:9471", "127.0.0.1:0", "is not an address and a port"),
        ("version: 1", "version: 2", "version"),
        ("single_switch", "single_swich", "did you mean 'single_switch'"),
        ("10Gbit/s", "10", "fabric.rate"),
        ("  h1:", "  h9:", "hosts.h9: no such host: the fabric has h1 to h2"),
        ("node-17", "h2", "'h2' is h1 already"),
        ("10.0.0.17", "10.0.0.999", "is not an address"),
        ("{aalo: {first: 1MB}}", "{aalo: {frist: 1MB}}", "policy.aalo.frist: unknown key"),
        ("{aalo: {first: 1MB}}", "sbef", "did you mean 'sebf'"),
        ("{aalo: {first: 1MB}}", "[sebf]", "is no policy"),
        ("{aalo: {first: 1MB}}", "crux", "policy: crux is for sim and mininet only: it goes by what jobs"),
        ("period: 10ms", "period: 10", "control.period"),
        ("control:", "stale: 1ms\ncontrol:", "stale: 1 ms is too short"),
        ("control:", "modus: x\ncontrol:", "modus: unknown key"),
    ],
)
def test_a_wrong_configuration_is_one_line_with_its_place(tmp_path, old, new, says):
    with pytest.raises(ScenarioError, match=says) as error:
        read(tmp_path, GOOD.replace(old, new))
    assert "\n" not in str(error.value) and "coordinator.yaml" in str(error.value)


@pytest.mark.parametrize(
    ("text", "before", "status", "says"),
    [
        (
            GOOD.replace("sebf", "x").replace("aalo", "alo"),
            "",
            2,
            "policy: 'alo' is no policy: did you mean 'aalo'",
        ),
        (GOOD, "sys.modules['grpc'] = None; ", 4, "no module grpc: pip install 'netsched[coordinator]'"),
    ],
)
def test_the_command_says_in_one_line_why_it_does_not_start(tmp_path, text, before, status, says):
    file = tmp_path / "coordinator.yaml"
    file.write_text(text)
    code = f"import sys; {before}from netsched.cli import main; "
    code += f"sys.exit(main(['coordinator', '--config', {str(file)!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and says in line
