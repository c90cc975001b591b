"""Flows over a running agent: marks, malformed words, and what is loaded for them."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import subprocess
import sys

import pytest
from agent_flows import FOLLOWING, RULES
from running_agent import BASE, ROOT, agent, connection

from hostagent import client
from hostagent.client import AgentError
from hostagent.flow import Guidance
from netsched.marking import dscp_of


def test_a_job_tells_of_its_flow_and_its_socket_is_marked_by_the_rules(tmp_path):
    config = BASE | {"classes": {"gradients": 1}, "rules": RULES}
    with (
        agent(tmp_path, config) as (path, _),
        connection() as (near, _),
        client.connect(path, job="resnet50", strict=True) as us,
    ):
        assert us.coflow("grad 1", size=2e6, flows=2, weight=2.0, deadline=0.5)
        with us.flow("layer 3", coflow="grad 1", size=1e6, need=3, need_span=8, sockets=[near]) as flow:
            assert (flow.guidance.cls, flow.guidance.source) == (1, "rule")
            assert flow.guidance.results[0].dscp == dscp_of(1) == 36
            assert near.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 36 << 2
            assert flow.wait() < 0.1
            assert flow.sent(4e5).cls == 1
            assert us.status()["coordinator"] == {
                "address": "",
                "standing": "local",
                "policy": "",
                "local_policy": "",
                "heard_s_ago": None,
                "revision": 0,
                "flows": 1,
                "why": "",
            }
        assert us.status()["coordinator"]["flows"] == 0
        with pytest.raises(AgentError, match=r"flow\.size = -1"):
            us.flow("x", coflow="y", size=-1, peer="h2")
        us.flow("waits", coflow="y", size=10, peer="h2")
    with agent(tmp_path, config) as (path, _):
        with client.connect(path, job="a", strict=True) as us:
            us.flow("x", coflow="y", size=10, peer="h2")
        with client.connect(path, strict=True) as us:
            assert us.status()["coordinator"]["flows"] == 0, "flows end with their job's connection"


def test_without_an_agent_a_flow_costs_nothing(tmp_path):
    us = client.connect(str(tmp_path / "none.sock"), job="resnet50")
    with connection() as (near, _), us.flow("f", coflow="c", size=1e6, sockets=[near]) as flow:
        assert flow.guidance == Guidance() and flow.wait() < 0.05
        assert flow.sent(10, sockets=[near]) == Guidance()
        assert not us.coflow("c", size=1e6)
        assert near.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0
    assert us.failures >= 4


def test_malformed_words_about_flows_do_not_disturb_the_agent(tmp_path):
    rng = random.Random(7)
    odd = [
        None,
        True,
        -1,
        2**70,
        1e308,
        math.nan,
        "",
        "x" * 300,
        [],
        {},
        [[1]],
        "waiting",
        "done",
        0.5,
        "h2",
        5,
    ]
    fields = [
        "flow",
        "coflow",
        "size",
        "sent",
        "need",
        "need_span",
        "peer",
        "state",
        "weight",
        "deadline",
        "flows",
    ]
    with agent(tmp_path, BASE) as (path, process), connection() as (near, _):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(path)
            sock.settimeout(5)
            for n in range(3000):
                chosen = rng.sample(fields, rng.randint(0, 8))
                good = (
                    {"flow": f"f{n % 50}", "coflow": "c", "size": 10, "peer": "h2"}
                    if rng.random() < 0.7
                    else {}
                )
                request = {"v": 1, "verb": rng.choice(["flow", "coflow"])} | good
                request |= {key: rng.choice(odd) for key in chosen if rng.random() < 0.5}
                sock.send(json.dumps(request).encode())
                answer = json.loads(sock.recv(65536))
                assert answer["ok"] or answer["code"] in ("bad-field", "too-many"), answer
        assert process.poll() is None
        with client.connect(path, strict=True) as us:
            assert us.flow("f", coflow="c", size=10, sockets=[near]).guidance.cls == 7


def test_an_agent_without_a_coordinator_loads_no_grpc_and_one_with_it_says_what_is_missing(tmp_path):
    code = (
        "import sys, hostagent.agent, hostagent.client, hostagent.uplink\n"
        "print([m for m in ('grpc', 'numpy', 'numba', 'google') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps(FOLLOWING | {"api": {"socket": str(tmp_path / "agent.sock")}}))
    without = "import sys; sys.modules['grpc'] = None; from hostagent.__main__ import main; "
    argv = [sys.executable, "-c", without + f"sys.exit(main(['run', '--config', {str(file)!r}]))"]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False, env={**os.environ}
    )
    assert done.returncode == 4
    assert "no module grpc: pip install 'netsched[coordinator]'" in done.stderr
