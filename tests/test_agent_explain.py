"""Which sockets the agent has marked, how, and why not better."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest
from agent_pages import AGENT
from running_agent import BASE, FAMILIES, agent, command, connection

from hostagent import client, ladder, sockdiag, tagging
from hostagent.client import AgentError


@pytest.mark.parametrize(("family", "address", "name"), FAMILIES)
def test_the_kernel_s_list_has_a_socket_with_the_mark_that_goes_on_the_wire(family, address, name):
    with connection(family, address) as (near, _):
        assert tagging.tag(near, 36).ok
        cookie = int.from_bytes(near.getsockopt(socket.SOL_SOCKET, 57, 8), sys.byteorder)
        (found,) = [one for one in sockdiag.sockets() if one.cookie == cookie]
        assert (found.dscp, found.family, found.uid) == (36, name, os.getuid())
        assert found.local[1] == near.getsockname()[1] and found.peer[1] == near.getpeername()[1]
        assert found.local[0] == ("::1" if name == "ipv6" else "127.0.0.1")
        assert cookie in sockdiag.cookies()
    assert cookie not in sockdiag.cookies()


def test_explain_names_the_level_of_a_job_s_sockets_and_what_became_of_them(tmp_path):
    with agent(tmp_path, BASE) as (path, _), connection() as (near, far):
        with client.connect(path, job="resnet", strict=True) as us:
            us.tag([near, far], 2)
        local = "{}:{}".format(*near.getsockname())
        done = command(*AGENT, "explain", "--socket", path, "--job", "resnet", "--json")
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        assert {one["local"] for one in shown["sockets"]} == {local, "{}:{}".format(*far.getsockname())}
        assert {(one["class"], one["dscp_set"], one["dscp_now"]) for one in shown["sockets"]} == {(2, 32, 32)}
        steps = shown["ladder"]["descriptor"]
        assert [step["level"] for step in steps][:2] == ["descriptor", "self"]
        assert {step["level"] for step in steps} == set(ladder.LEVELS)
        assert [step["level"] for step in steps if step["chosen"]] == ["descriptor"]
        assert steps[1]["why"] == "not tried: a level above marked the socket"
        assert steps[2]["why"] == "off: the configuration's ladder does not name it"
        assert tagging.tag(near, 8).ok
        done = command(*AGENT, "explain", "--socket", path, "--flow", local)
        assert done.returncode == 1
        assert "carries CS1, class 2 (CS4)" in done.stdout and "changed the mark to CS1" in done.stdout
        near.close()
        far.close()
        done = command(*AGENT, "explain", "--socket", path, "--job", "resnet")
        assert done.returncode == 1 and "no socket of job resnet is known" in done.stdout


def test_a_socket_that_its_own_process_marked_is_told_from_an_unmarked_one(tmp_path):
    with (
        agent(tmp_path, BASE) as (path, _),
        connection() as (near, _),
        client.connect(path, strict=True) as us,
    ):
        local = "{}:{}".format(*near.getsockname())
        (one,) = us.explain(local=local)["sockets"]
        assert (one["level"], one["note"], one["dscp_now"]) == ("", "nothing has marked it", 0)
        assert tagging.tag(near, 40).ok
        answer = us.explain(local=local)
        (one,) = answer["sockets"]
        assert (one["level"], one["dscp_now"], one["class"]) == ("self", 40, None)
        assert [step["chosen"] for step in answer["ladder"]["self"]] == [False, True] + [False] * 4
        for wrong in ({"job": "a", "local": local}, {}, {"local": "nowhere"}, {"local": "1.2.3.4:²"}):
            with pytest.raises(AgentError, match="address"):
                us.explain(**wrong)


@pytest.mark.parametrize("level", ["", *ladder.LEVELS])
def test_a_ladder_has_at_most_one_winner_and_a_reason_for_each_level(level):
    broken = {"cgroup-bpf": "a kernel with CONFIG_CGROUP_BPF is needed"}
    allowed = ["pidfd", "cgroup-bpf", "descriptor", "nft-tuple"]
    steps = ladder.explain(level, allowed, {} if level == "cgroup-bpf" else broken)
    assert [step.level for step in steps[:4]] == allowed and len(steps) == len(ladder.LEVELS)
    assert [step.level for step in steps if step.chosen] == ([level] if level else [])
    assert all(step.why for step in steps)
    won = allowed.index(level) if level in allowed else len(allowed)
    for at, step in enumerate(steps):
        off = step.level not in allowed and not step.chosen
        assert ("does not name it" in step.why) == off
        if step.level == "cgroup-bpf" and level != "cgroup-bpf":
            assert step.why == broken["cgroup-bpf"]
        elif not off and not step.chosen:
            assert ("not tried" in step.why) == (at > won)


@pytest.mark.root
def test_other_users_see_neither_each_other_s_sockets_nor_the_levers():
    code = (
        "import os,sys,json,time\n"
        "from hostagent import client\n"
        "from netsched.errors import NetschedError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "with client.connect(sys.argv[1], strict=True, timeout=5) as us:\n"
        "    print(len(us.explain(job='secret')['sockets']))\n"
        "    try: us.explain(job='secret')\n"
        "    except NetschedError as error: print(error)\n"
        "    time.sleep(1.05)\n"
        "    print(len(us.explain(local=sys.argv[2])['sockets']))\n"
        "    print(json.dumps(us.status()))\n"
        "    for ask in (us.drain, us.restore):\n"
        "        try: print(ask())\n"
        "        except NetschedError as error: print('refused', error)\n"
    )
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        with (
            agent(Path(name), BASE | {"api": {"allow": [{"uid": 65534}]}}) as (path, _),
            connection() as (near, _),
            client.connect(path, job="secret", strict=True) as us,
        ):
            us.tag([near], 0)
            done = command(sys.executable, "-c", code, path, "{}:{}".format(*near.getsockname()))
            assert done.returncode == 0, done.stderr
            of_job, busy, of_address, status, drain, restore = done.stdout.splitlines()
            assert of_job == of_address == "0" and "secret" not in status
            assert "once in 1 s" in busy
            assert "may not drain" in drain and "may not restore" in restore
            assert us.tag([near], 0)[0].ok
