"""How an agent is sent away: drain, restore, cleanup."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from agent_pages import AGENT, get, samples, with_pages
from namespaces import with_ports
from running_agent import QUEUE, agent, command, connection, wait_for

from hostagent import claim, client, tagging
from hostagent.client import AgentError


def test_a_drained_agent_marks_nothing_new_keeps_what_is_and_says_so(served):
    path, _, port = served
    with connection() as (near, far), client.connect(path, strict=True) as us:
        us.tag([near], 0)
        done = command(*AGENT, "drain", "--socket", path, "--json")
        assert (done.returncode, json.loads(done.stdout)) == (
            0,
            {"version": 1, "state": "draining", "sockets": 1},
        )
        with pytest.raises(AgentError, match="draining"):
            us.tag([far], 0)
        assert tagging.read(near).dscp == 40 and tagging.read(far).dscp == 0
        assert get(port, "/readyz")[::2] == (503, "the agent is draining\n")
        assert get(port, "/healthz")[0] == 200
        assert samples(get(port, "/metrics")[2])["netsched_agent_draining", ""] == 1
        assert command(*AGENT, "drain", "--off", "--socket", path).returncode == 0
        assert us.tag([far], 0)[0].ok and get(port, "/readyz")[0] == 200


def test_a_job_does_not_notice_a_drained_agent(served):
    path, _, _ = served
    with client.connect(path, strict=True) as us, connection() as (near, _):
        us.drain()
        with client.connect(path) as mild:
            assert mild.tag([near], 0) == [] and mild.failures == 1


@pytest.fixture
def served(tmp_path):
    with with_pages(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def host():
    with with_ports("eth0") as made:
        yield made


WITH_PAGES = QUEUE | {"metrics": {}, "resync": "1s"}


def fetch(host, path: str) -> str:
    code = (
        "import sys,urllib.request,urllib.error\n"
        f"try: print(urllib.request.urlopen('http://127.0.0.1:9469{path}').read().decode())\n"
        "except urllib.error.HTTPError as error: print(error.code, error.read().decode())\n"
    )
    return host.run(sys.executable, "-c", code)


@pytest.mark.root
def test_the_pages_tell_how_the_ports_are(tmp_path, host):
    with agent(tmp_path, WITH_PAGES | {"resync": "60s"}, host):
        found = samples(fetch(host, "/metrics").strip() + "\n")
        assert found["netsched_agent_port_rate_bytes_per_second", 'interface="eth0"'] == 100e6 / 8
        assert found["netsched_agent_port_direct_packets_total", 'interface="eth0"'] == 0
        assert found["netsched_agent_port_differences", 'interface="eth0"'] == 0
        classes = [labels for name, labels in found if name == "netsched_agent_class_bytes_total"]
        assert classes == [f'interface="eth0",class="{cls}"' for cls in range(8)]
        assert fetch(host, "/readyz") == "ok\n\n"
        host.run("tc", "class", "change", "dev", "eth0", "classid", "7a1:10", "parent", "7a1:1", "htb",
                 "rate", "1mbit", "prio", "0")  # fmt: skip
        assert "503 eth0: class 7a1:10" in fetch(host, "/readyz")
        assert samples(fetch(host, "/metrics").strip() + "\n")["netsched_agent_ready", ""] == 0


def everything(host) -> str:
    """What the kernel has of qdiscs, classes, filters and nft rules on every interface."""
    dumps = [host.run("tc", "-d", "qdisc", "show"), host.run("nft", "list", "ruleset")]
    for name in ("lo", "eth0", "eth0p"):
        dumps += [host.run("tc", "-d", what, "show", "dev", name) for what in ("class", "filter")]
    return "\n".join(dumps)


@pytest.mark.root
def test_restore_gives_the_queues_back_at_once_and_the_agent_leaves_them_alone(tmp_path, host):
    before = everything(host)
    with agent(tmp_path, WITH_PAGES, host) as (path, _):
        assert "htb 7a1:" in host.run("tc", "qdisc", "show")
        done = command(*AGENT, "restore", "--socket", path, "--json")
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        assert (shown["state"], shown["interfaces"], shown["failed"]) == ("restored", ["eth0"], [])
        assert everything(host) == before
        resyncs = ("netsched_agent_resyncs_total", "")
        wait_for(lambda: samples(fetch(host, "/metrics").strip() + "\n")[resyncs] >= 2)
        assert everything(host) == before, "the agent took the port again"
        done = command(*AGENT, "drain", "--off", "--socket", path)
        assert done.returncode == 1 and "restart it" in done.stderr
    assert everything(host) == before


@pytest.mark.root
def test_cleanup_refuses_while_an_agent_lives_and_takes_away_what_a_killed_one_left(tmp_path, host):
    before = host.run("tc", "qdisc", "show")
    elsewhere = str(tmp_path / "other.sock")

    def cleanup(*argv: str, path: str):
        return command(*host.argv(*AGENT, "cleanup", "--socket", path, *argv))

    with pytest.raises(AssertionError), agent(tmp_path, QUEUE, host) as (path, process):
        done = cleanup("--orphans", path=elsewhere)
        assert done.returncode == 3 and f"another agent (process {process.pid}," in done.stderr
        process.kill()
        process.wait()
    assert "htb 7a1:" in host.run("tc", "qdisc", "show") and Path(path).exists()
    done = cleanup(path=path)
    assert done.returncode == 1 and "eth0: queues left behind" in done.stdout
    assert "htb 7a1:" in host.run("tc", "qdisc", "show")
    done = cleanup("--orphans", "--json", path=path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["interfaces"] == ["eth0"]
    assert host.run("tc", "qdisc", "show") == before and not Path(path).exists()
    done = cleanup("--orphans", path=path)
    assert (done.returncode, done.stdout) == (0, "nothing of ours is left\n")


@pytest.mark.root
def test_cleanup_leaves_what_is_not_ours(tmp_path, host):
    host.run("tc", "qdisc", "add", "dev", "eth0p", "root", "handle", "7a2:", "htb")
    (tmp_path / "file").write_text("kept")
    before = host.run("tc", "qdisc", "show")
    done = command(*host.argv(*AGENT, "cleanup", "--orphans", "--socket", str(tmp_path / "file")))
    assert done.returncode == 0, done.stderr
    assert host.run("tc", "qdisc", "show") == before and (tmp_path / "file").exists()
    host.run("tc", "qdisc", "del", "dev", "eth0p", "root")


@pytest.mark.root
def test_one_agent_owns_the_queues_of_a_namespace_and_a_squatter_cannot_prevent_it(tmp_path, host):
    other = tmp_path / "other"
    other.mkdir()
    with agent(tmp_path, QUEUE, host) as (_, process):
        file = other / "agent.yaml"
        file.write_text(json.dumps(QUEUE | {"api": {"socket": str(other / "s")}}))
        done = command(*host.argv(*AGENT, "run", "--config", str(file)))
        assert done.returncode == 3 and f"process {process.pid}" in done.stderr
    hold = (
        "import ctypes,os,socket,sys\n"
        "libc = ctypes.CDLL(None); before, after = map(int, sys.argv[1:])\n"
        "libc.prctl(28, before); os.setgid(65534); os.setuid(65534); assert libc.unshare(after) == 0\n"
        f"s=socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind({claim.NAME!r}); s.listen()\n"
        "print('held', flush=True); sys.stdin.read()\n"
    )
    # Who makes a user namespace (CLONE_NEWUSER) has every right there and none here; a service's user may
    # have one that counts here (SECBIT_NO_SETUID_FIXUP keeps them).
    squatter, service = ("0", str(0x10000000)), ("4", "0")
    for who in (squatter, service):
        with host.python(hold, *who) as holder:
            assert holder.stdout is not None and holder.stdin is not None
            assert holder.stdout.readline() == "held\n"
            if who is squatter:
                with agent(tmp_path, QUEUE, host):
                    assert "htb 7a1:" in host.run("tc", "qdisc", "show")
            else:
                done = command(*host.argv(*AGENT, "run", "--config", str(file)))
                assert done.returncode == 3 and f"process {holder.pid}, user 65534" in done.stderr
            holder.stdin.close()
            holder.wait(timeout=10)
