"""The agent as owner of queues: taken, repaired, refused, given back."""

from __future__ import annotations

import json
import signal
import sys

import pytest
from namespaces import with_ports
from running_agent import OURS, QUEUE, agent, command, wait_for

from hostagent import client
from netsched import marking


@pytest.fixture(scope="module")
def host():
    with with_ports("eth0") as made:
        yield made


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_agent_owns_the_queues_while_it_runs_and_gives_them_back(tmp_path, host, number):
    # Tests that run under nohup hand on that SIGHUP is ignored, and the agent keeps to that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    before = host.run("tc", "qdisc", "show")
    with agent(tmp_path, QUEUE, host) as (path, process), client.connect(path, strict=True, timeout=5) as us:
        assert OURS in host.run("tc", "qdisc", "show")
        (port,) = us.status()["interfaces"]
        assert (port["rate"], port["queues"], port["mechanism"]) == ("100 Mbit/s", 8, "htb-prio")
        assert port["differences"] == [] and port["direct_packets"] == 0 and len(port["classes"]) == 8
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
    assert host.run("tc", "qdisc", "show") == before


@pytest.mark.root
def test_after_a_kill_the_queues_stay_and_the_next_agent_takes_them_over(tmp_path, host):
    with pytest.raises(AssertionError), agent(tmp_path, QUEUE, host) as (_, process):
        process.kill()
        process.wait()
    assert OURS in host.run("tc", "qdisc", "show")
    with agent(tmp_path, QUEUE | {"on_stop": "keep"}, host):
        pass
    assert OURS in host.run("tc", "qdisc", "show")
    with agent(tmp_path, QUEUE, host):
        pass
    assert "htb" not in host.run("tc", "qdisc", "show")


@pytest.mark.root
def test_drift_is_seen_and_repaired_and_a_replaced_root_is_left_to_whoever_replaced_it(tmp_path, host):
    config = QUEUE | {"resync": "1s"}
    with agent(tmp_path, config, host) as (path, _), client.connect(path, strict=True, timeout=5) as us:
        host.run(
            "tc",
            "qdisc",
            "change",
            "dev",
            "eth0",
            "parent",
            "7a1:10",
            "handle",
            "7a20:",
            "bfifo",
            "limit",
            "5000",
        )
        assert "bfifo 5 kB" in us.status()["interfaces"][0]["differences"][0]
        wait_for(lambda: us.status()["interfaces"][0]["repairs"] == 1)
        assert us.status()["interfaces"][0]["differences"] == []
        host.run("tc", "qdisc", "del", "dev", "eth0", "root")
        host.run("tc", "qdisc", "add", "dev", "eth0", "root", "handle", "9:", "pfifo")
        wait_for(lambda: "somebody else" in us.status()["interfaces"][0]["conflict"])
    assert "pfifo 9:" in host.run("tc", "qdisc", "show", "dev", "eth0")
    host.run("tc", "qdisc", "del", "dev", "eth0", "root")


@pytest.mark.root
def test_foreign_queues_and_missing_interfaces_are_refused_all_at_once_and_nothing_is_touched(tmp_path, host):
    host.run("tc", "qdisc", "add", "dev", "eth0p", "root", "handle", "5:", "pfifo")
    before = host.run("tc", "qdisc", "show")
    two = [*QUEUE["interfaces"], {"name": "eth0p", "rate": "1Gbit/s"}, {"name": "eth7", "rate": "1Gbit/s"}]
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps(QUEUE | {"interfaces": two, "api": {"socket": str(tmp_path / "s")}}))
    done = command(*host.argv(sys.executable, "-m", "hostagent", "run", "--config", str(file)))
    after = host.run("tc", "qdisc", "show")
    host.run("tc", "qdisc", "del", "dev", "eth0p", "root")
    assert done.returncode == 3
    assert "interface eth0p" in done.stderr and "interface eth7" in done.stderr
    assert "Traceback" not in done.stderr
    assert after == before
    assert not (tmp_path / "s").exists()


@pytest.mark.root
def test_plan_changes_nothing_and_its_status_says_whether_something_would(tmp_path, host):
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps(QUEUE))
    before = host.run("tc", "qdisc", "show")
    argv = host.argv(sys.executable, "-m", "hostagent", "plan", "--config", str(file), "--json")
    done = command(*argv)
    assert done.returncode == 1, done.stderr
    shown = json.loads(done.stdout)
    assert "no htb" in shown["interfaces"]["eth0"][0]
    assert shown["dscp_of_class"] == {str(cls): marking.dscp_of(cls) for cls in range(8)}
    assert host.run("tc", "qdisc", "show") == before


@pytest.mark.root
def test_status_tells_a_healthy_agent_from_a_drifted_one_and_from_none(tmp_path, host):
    ask = [sys.executable, "-m", "hostagent", "status", "--socket"]
    with agent(tmp_path, QUEUE, host) as (path, _):
        done = command(*ask, path, "--json")
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        assert shown["mode"] == "mark+queue" and shown["interfaces"][0]["rate"] == "100 Mbit/s"
        assert "eth0: 100 Mbit/s, 8 queues (htb-prio): as it should be" in command(*ask, path).stdout
        host.run(
            "tc", *["filter", "del", "dev", "eth0", "parent", "7a1:", "protocol", "ip", "pref", "0x7a10"]
        )
        done = command(*ask, path)
        assert done.returncode == 1 and "filter ip 1: missing" in done.stdout
    done = command(*ask, path)
    assert done.returncode == 1 and "No such file" in done.stderr and "Traceback" not in done.stderr
