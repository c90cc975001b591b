"""The agent as others see it: pages, log lines, explanations, exported commands, and how it is sent away."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from namespaces import space, wire
from test_hostagent import BASE, FAMILIES, QUEUE, agent, command, connection, wait_for

from hostagent import claim, client, export, ladder, logs, metrics, rdma, sockdiag, tagging, verify
from hostagent.client import AgentError
from hostagent.config import ConfigError, parse
from hostagent.notify import Notifier
from netsched import marking, ports, qdisc
from netsched.errors import CapabilityError, ScenarioError
from netsched.netlink import open_netns

AGENT = [sys.executable, "-m", "hostagent"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def get(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    return ask(port, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def ask(port: int, request: bytes) -> tuple[int, dict[str, str], str]:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.sendall(request)
        answer = b""
        while part := sock.recv(65536):
            answer += part
    head, _, body = answer.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def samples(text: str) -> dict[tuple[str, str], float]:
    """A page in Prometheus's text format 0.0.4, held to it: each sample after the TYPE of its family."""
    assert text.endswith("\n")
    found: dict[tuple[str, str], float] = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            if what == "TYPE":
                assert name not in kinds, f"{name} has two TYPE lines"
                kinds[name] = rest
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert kinds.get(name) or kinds.get(family) == "histogram", line
        assert kinds.get(name) != "counter" or name.endswith("_total"), line
        assert (name, labels or "") not in found, line
        found[name, labels or ""] = float(value)
    return found


# ------------------------------------------------------------------ pages


@pytest.mark.parametrize("listen", ["127.0.0.1:9469", "127.8.9.1:1", "[::1]:65535"])
def test_pages_may_be_on_any_loopback_address(listen):
    host, _, port = listen.rpartition(":")
    found = parse(f"version: 1\nmetrics: {{listen: '{listen}'}}\n", "x").metrics
    assert found is not None and found.listen == (host.strip("[]"), int(port))


@pytest.mark.parametrize(
    "listen",
    [
        *("0.0.0.0:9469", "[::]:9469", "10.0.0.1:9469", "localhost:9469", "127.0.0.1", "127.0.0.1:0"),
        *("127.0.0.1:65536", "::1:9469", "[127.0.0.1]:9469", ":9469", "127.0.0.1:94x", "127.0.0.1:²"),
    ],
)
def test_pages_anywhere_else_are_refused_with_what_would_be_right(listen):
    with pytest.raises(ConfigError, match=r"metrics\.listen.*127\.0\.0\.1"):
        parse(f"version: 1\nmetrics: {{listen: '{listen}'}}\n", "x")


def test_without_the_key_there_is_no_server_and_with_it_the_default_is_9469():
    assert parse("version: 1\n", "x").metrics is None
    found = parse("version: 1\nmetrics: {}\n", "x").metrics
    assert found is not None and found.listen == ("127.0.0.1", 9469)


@pytest.fixture
def served(tmp_path):
    """A running agent in mode mark with pages: (its socket, its process, the port of the pages)."""
    port = free_port()
    with agent(tmp_path, BASE | {"metrics": {"listen": f"127.0.0.1:{port}"}}) as (path, process):
        yield path, process, port


def test_the_pages_tell_what_the_agent_did(served):
    path, process, port = served
    assert get(port, "/healthz")[::2] == (200, "ok\n")
    assert get(port, "/readyz")[::2] == (200, "ok\n")
    with connection() as (near, far), client.connect(path, job="secret-job", strict=True) as us:
        us.tag([near, far], 1)
        with pytest.raises(AgentError):
            us.tag([near], 9)
        status, head, text = get(port, "/metrics?x=1")
    assert status == 200 and head["Content-Type"] == metrics.CONTENT_TYPE
    assert int(head["Content-Length"]) == len(text)
    found = {name.removeprefix("netsched_agent_"): value for (name, _), value in samples(text).items()}
    by_label = samples(text)
    assert by_label["netsched_agent_tags_total", 'result="ok"'] == 2
    assert by_label["netsched_agent_class_tags_total", 'class="1"'] == 2
    assert by_label["netsched_agent_requests_total", 'verb="tag",result="ok"'] == 1
    assert by_label["netsched_agent_requests_total", 'verb="tag",result="bad-class"'] == 1
    assert by_label["netsched_agent_info", 'mode="mark"'] == 1
    assert by_label["netsched_agent_tag_seconds_bucket", 'le="+Inf"'] == found["tag_seconds_count"] == 1
    assert 0 < found["tag_seconds_sum"] < 1
    assert found["ready"] == found["clients"] == 1 and found["draining"] == 0
    assert found["sockets_known"] == 2
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    assert found["memory_bytes"] == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE"), rel=0.05)
    assert "secret" not in text, "anybody on the host can read the page, so no job may be named there"


def test_a_histogram_counts_up_to_its_bounds():
    times = metrics.Histogram()
    for seconds in (50e-6, 51e-6, 2e-3, 9.0):
        times.add(seconds)
    found = {labels[0][1]: value for suffix, labels, value in times.samples() if suffix == "_bucket"}
    # An upper bound is inclusive in Prometheus's format.
    assert (found["5e-05"], found["0.0001"], found["0.001"], found["0.002"]) == (1, 2, 2, 3)
    assert (found["0.1"], found["+Inf"]) == (3, 4)


def test_a_label_is_escaped():
    family = metrics.Family("x", "gauge", "X.", (("", (("interface", 'a"b\\c'),), 1),))
    assert r'netsched_agent_x{interface="a\"b\\c"} 1' in metrics.render([family])


def test_what_is_not_a_page_gets_an_error_and_nothing_can_be_changed(served):
    _, process, port = served
    assert get(port, "/")[0] == 404 and "/metrics" in get(port, "/")[2]
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get(port, "/metrics", method)[0] == 405
    status, head, body = get(port, "/metrics", "HEAD")
    assert status == 200 and body == "" and int(head["Content-Length"]) > 0
    assert ask(port, b"\x16\x03\x01 hello\r\n\r\n")[0] == 400
    assert ask(port, b"GET / HTTP/1.1\r\nX: " + b"a" * 8200)[0] == 431
    assert get(port, "/healthz")[0] == 200 and process.poll() is None


def test_random_bytes_get_an_answer_or_an_end_and_the_agent_lives(served):
    path, process, port = served
    rng = random.Random(4)
    good = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    for turn in range(300):
        request = bytearray(good if turn % 2 else rng.randbytes(rng.randint(1, 200)))
        request[rng.randrange(len(request))] = rng.randrange(256)
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.recv(65536)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert process.poll() is None and get(port, "/healthz")[0] == 200
    with connection() as (near, _), client.connect(path, strict=True) as us:
        assert us.tag([near], 0)[0].ok


def test_slow_and_silent_readers_hold_up_neither_jobs_nor_pages(served):
    path, process, port = served
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            idle.sendall(b"GET /metr")
        begin = time.monotonic()
        assert get(port, "/healthz")[0] == 200
        with connection() as (near, _), client.connect(path, strict=True) as us:
            assert us.tag([near], 0)[0].ok
        assert time.monotonic() - begin < 1
        # 32 clients at most, the socket's own descriptors and Python's beside.
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 50


def test_a_taken_address_is_an_error_of_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = tmp_path / "agent.yaml"
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        api = {"socket": str(tmp_path / "s")}
        file.write_text(json.dumps(BASE | {"metrics": {"listen": listen}, "api": api}))
        done = command(*AGENT, "run", "--config", str(file))
    assert done.returncode == 1
    assert done.stderr == f"netsched-agent: metrics.listen {listen}: Address already in use\n"
    assert not (tmp_path / "s").exists()


# ------------------------------------------------------------------ log lines


def logged(style: logs.Format, **values: logs.Value) -> str:
    stream = io.StringIO()
    formatter = logs.JsonFormatter() if style == "json" else logs.TextFormatter()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log = logging.Logger("hostagent.x")
    log.addHandler(handler)
    log.warning("port repaired", extra=logs.fields(values))
    return stream.getvalue()


def test_a_json_line_has_the_fields_with_their_types_and_cannot_be_forged():
    line = logged("json", interface='eth0"\n{"level": "x"}', changes=3, event="mine", ok=True)
    assert line.count("\n") == 1
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert found == {
        "level": "warning",
        "logger": "hostagent.x",
        "event": "port repaired",
        "interface": 'eth0"\n{"level": "x"}',
        "changes": 3,
        "ok": True,
    }


def test_a_text_line_quotes_what_would_be_ambiguous():
    line = logged("text", interface="eth0", conflict="changed by x=1", empty="", number=1.5)
    assert line.endswith(
        ' WARNING hostagent.x port repaired interface=eth0 conflict="changed by x=1" empty="" number=1.5\n'
    )


def test_an_agent_logs_json_lines_where_it_is_told_to(tmp_path):
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps(BASE | {"api": {"socket": str(tmp_path / "s")}}))
    argv = [*AGENT, "-v", "--log-format", "json", "run", "--config", str(file)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = json.loads(process.stderr.readline())
        process.send_signal(signal.SIGTERM)
    assert (found["event"], found["mode"], found["socket"]) == ("ready", "mark", str(tmp_path / "s"))


# ------------------------------------------------------------------ systemd


def test_the_service_manager_hears_ready_signs_of_life_and_the_end(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        file = tmp_path / "agent.yaml"
        file.write_text(json.dumps(BASE | {"api": {"socket": str(tmp_path / "s")}}))
        environ = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        argv = [*AGENT, "run", "--config", str(file)]
        with subprocess.Popen(argv, env=environ) as process:
            assert manager.recv(4096) == b"READY=1\nSTATUS=mode mark"
            begin = time.monotonic()
            assert [manager.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            # Half of 0.2 s between two of them.
            assert time.monotonic() - begin == pytest.approx(0.3, abs=0.25)
            process.send_signal(signal.SIGTERM)
            said = manager.recv(4096)
            while said == b"WATCHDOG=1":
                said = manager.recv(4096)
            assert said == b"STOPPING=1"
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "30000000"}, 15.0),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "0"}, None),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "soon"}, None),
        ({"NOTIFY_SOCKET": "@x"}, None),
        ({"WATCHDOG_USEC": "30000000"}, None),
    ],
)
def test_signs_of_life_are_given_only_when_they_are_asked_of_this_process(environ, interval):
    assert Notifier(environ).interval == interval


# ------------------------------------------------------------------ which sockets, and why


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


# ------------------------------------------------------------------ drain, restore, cleanup


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


@pytest.fixture(scope="module")
def host():
    with space() as made:
        made.ip("link", "add", "eth0", "type", "veth", "peer", "name", "peer")
        made.ip("link", "set", "eth0", "up")
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
    for name in ("lo", "eth0", "peer"):
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
    host.run("tc", "qdisc", "add", "dev", "peer", "root", "handle", "7a2:", "htb")
    (tmp_path / "file").write_text("kept")
    before = host.run("tc", "qdisc", "show")
    done = command(*host.argv(*AGENT, "cleanup", "--orphans", "--socket", str(tmp_path / "file")))
    assert done.returncode == 0, done.stderr
    assert host.run("tc", "qdisc", "show") == before and (tmp_path / "file").exists()
    host.run("tc", "qdisc", "del", "dev", "peer", "root")


@pytest.mark.root
def test_one_agent_owns_the_queues_of_a_namespace_and_a_squatter_cannot_prevent_it(tmp_path, host):
    other = tmp_path / "other"
    other.mkdir()
    with agent(tmp_path, QUEUE, host) as (_, process):
        file = other / "agent.yaml"
        file.write_text(json.dumps(QUEUE | {"api": {"socket": str(other / "s")}}))
        done = command(*host.argv(*AGENT, "run", "--config", str(file)))
        assert done.returncode == 3 and f"process {process.pid}" in done.stderr
    squat = (
        "import os,socket,sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"s=socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind({claim.NAME!r}); s.listen()\n"
        "print('held', flush=True); sys.stdin.read()\n"
    )
    with host.python(squat) as squatter:
        assert squatter.stdout is not None and squatter.stdin is not None
        assert squatter.stdout.readline() == "held\n"
        with agent(tmp_path, QUEUE, host):
            assert "htb 7a1:" in host.run("tc", "qdisc", "show")
        squatter.stdin.close()
        squatter.wait(timeout=10)


# ------------------------------------------------------------------ export


@pytest.mark.root
@pytest.mark.parametrize(("rate", "queues"), [(1e6, 2), (100e6, 8), (10e9, 1), (40e9, 5)])
def test_the_exported_tc_commands_build_the_agent_s_own_tree(host, rate, queues):
    tree = qdisc.port(rate / 8, queues)
    for argv in export.tc("eth0", tree):
        host.run(*argv)
    with open_netns(host.pid) as link:
        index = link.links()["eth0"]
        actual = ports.read_back(link, index)
        ports.remove(link, index)
    assert actual is not None

    def without_bursts(one: qdisc.Tree) -> list[object]:
        leaves = [
            (leaf.minor, leaf.prio, leaf.shape.rate, leaf.shape.ceil, leaf.limit) for leaf in one.leaves
        ]
        return [one.default, leaves, one.filters, one.linklayer_ok]

    assert without_bursts(actual) == without_bursts(tree)
    for one, other in zip(actual.leaves, tree.leaves, strict=True):
        # tc counts a burst in bytes and rounds it to its clock's ticks; ours is in microseconds.
        assert one.shape.burst == pytest.approx(other.shape.burst, rel=0.01, abs=1)
        assert one.shape.cburst == pytest.approx(other.shape.cburst, rel=0.01, abs=1)


@pytest.mark.root
def test_the_exported_nft_rules_load_and_sort_as_the_filters_do(tmp_path, host):
    tree = qdisc.port(1e9 / 8, 8)
    (tmp_path / "rules.nft").write_text(export.nft({"eth0": tree}))
    host.ip("addr", "add", "10.7.0.1/24", "dev", "eth0")
    host.ip("link", "set", "peer", "up")
    host.ip("neigh", "add", "10.7.0.2", "lladdr", "02:00:00:00:00:02", "dev", "eth0")
    with open_netns(host.pid) as link:
        index = link.links()["eth0"]
        # Without the filters nothing but the rules can sort.
        ports.apply(link, index, qdisc.Tree(tree.default, tree.parent, tree.leaves, ()))
        host.run("nft", "-f", str(tmp_path / "rules.nft"))
        code = (
            "import socket,sys\n"
            "s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "for at, dscp in enumerate(map(int, sys.argv[1:])):\n"
            "    s.setsockopt(0, socket.IP_TOS, dscp << 2)\n"
            "    for _ in range(10 + at): s.sendto(b'x', ('10.7.0.2', 9))\n"
        )
        marks = [str(marking.dscp_of(cls)) for cls in range(8)]
        host.run(sys.executable, "-c", code, *marks)
        counted = ports.counters(link, index).classes
        host.run("nft", "delete", "table", "inet", export.TABLE)
        ports.remove(link, index)
    host.ip("addr", "del", "10.7.0.1/24", "dev", "eth0")
    # 10 packets of class 0, 11 of class 1 and so on; the last class may carry others of the host besides.
    assert [one.packets for one in counted[1:7]] == list(range(11, 17))
    assert counted[0].packets >= 10 and counted[7].packets >= 17


def test_export_prints_what_run_would_set(tmp_path):
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps(QUEUE))
    done = command(*AGENT, "export", "tc", "--config", str(file))
    assert done.returncode == 0, done.stderr
    first = shlex.split(done.stdout.splitlines()[0])
    assert first == shlex.split("tc qdisc add dev eth0 root handle 7a1: htb default 1f")
    shown = json.loads(command(*AGENT, "export", "tc", "--config", str(file), "--json").stdout)
    assert [shlex.join(argv) for argv in shown["interfaces"]["eth0"]] == done.stdout.splitlines()
    done = command(*AGENT, "export", "nft", "--config", str(file))
    assert 'oifname "eth0" meta priority set ip dscp map { 44 : 7a1:10, 40 : 7a1:10,' in done.stdout


# ------------------------------------------------------------------ RDMA


# The traffic class is the whole byte: 4 times the DSCP. The Ethernet priority is its upper 3 bits.
ROCE = [(0, 160, 5), (1, 144, 4), (2, 128, 4), (3, 80, 2), (4, 72, 2), (5, 64, 2), (6, 32, 1), (7, 0, 0)]


@pytest.mark.parametrize(("cls", "traffic_class", "priority"), ROCE)
def test_on_roce_the_settings_are_the_socket_s_mark(cls, traffic_class, priority):
    made = {one.name: one.value for one in rdma.settings("a.b-1", cls, 8, "roce")}
    assert made == {
        "NETSCHED_JOB": "a.b-1",
        "NCCL_IB_TC": str(traffic_class),
        "NCCL_IB_FIFO_TC": "176",
        "NCCL_IB_SL": str(priority),
        "UCX_IB_TRAFFIC_CLASS": str(traffic_class),
        "UCX_IB_SL": str(priority),
    }
    with connection() as (near, _):
        tagging.tag(near, marking.dscp_of(cls))
        assert near.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == traffic_class
    ect = {one.name: one.value for one in rdma.settings("a", cls, 8, "roce", ect=True)}
    assert int(ect["NCCL_IB_TC"]) == traffic_class | 2 and ect["NCCL_IB_FIFO_TC"] == "178"


def test_on_infiniband_there_is_a_service_level_if_it_is_given_and_never_a_traffic_class():
    made = {one.name: one.value for one in rdma.settings("j", 0, 8, "infiniband", service_level=15)}
    assert made == {"NETSCHED_JOB": "j", "NCCL_IB_SL": "15", "UCX_IB_SL": "15"}
    with pytest.raises(rdma.RdmaError, match="subnet manager"):
        rdma.settings("j", 0, 8, "infiniband")


@pytest.mark.parametrize(
    ("job", "cls", "layer", "level", "says"),
    [
        ("j", 0, "roce", 8, "0 to 7"),
        ("j", 0, "roce", -1, "0 to 7"),
        ("j", 0, "infiniband", 16, "0 to 15"),
        ("j", 8, "roce", None, "0 to 7"),
        ("a b", 0, "roce", None, "--job"),
        ("$(x)", 0, "roce", None, "--job"),
        ("", 0, "roce", None, "--job"),
        ("a\nB=1", 0, "roce", None, "--job"),
    ],
)
def test_what_is_out_of_range_is_refused(job, cls, layer, level, says):
    with pytest.raises(ScenarioError, match=says):
        rdma.settings(job, cls, 8, layer, service_level=level)


def test_the_link_layer_is_asked_of_the_ports_and_never_guessed(tmp_path):
    def port(device: str, layer: str) -> None:
        folder = tmp_path / device / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "link_layer").write_text(f"{layer}\n")

    with pytest.raises(CapabilityError, match="no RDMA port"):
        rdma.link_layer(tmp_path)
    port("mlx5_0", "Ethernet")
    port("mlx5_1", "Ethernet")
    assert rdma.link_layer(tmp_path) == "roce"
    port("mlx5_2", "InfiniBand")
    with pytest.raises(rdma.RdmaError, match=r"infiniband \(mlx5_2:1\) and roce \(mlx5_0:1, mlx5_1:1\)"):
        rdma.link_layer(tmp_path)


def test_env_prints_lines_for_a_shell_and_names_come_from_the_configuration(tmp_path):
    argv = [*AGENT, "env", "--job", "resnet", "--link-layer", "roce"]
    done = command(*argv, "--class", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["NETSCHED_JOB=resnet", "NCCL_IB_TC=144"]
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps({"version": 1, "queues": 4, "classes": {"bulk": 2}}))
    shown = json.loads(command(*argv, "--class", "bulk", "--config", str(file), "--json").stdout)
    assert (shown["class"], shown["dscp"], shown["environment"]["NCCL_IB_TC"]) == (2, 32, "128")
    for wrong in (["--class", "bulk"], ["--class", "8"], ["--class", "4", "--config", str(file)]):
        done = command(*argv, *wrong)
        assert done.returncode == 2 and done.stderr.startswith("netsched-agent: --class"), done.stderr


def test_a_client_takes_its_job_s_name_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("NETSCHED_JOB", "from-env")
    with (
        agent(tmp_path, BASE) as (path, _),
        client.connect(path, strict=True) as us,
        client.connect(path, job="named", strict=True),
    ):
        assert sorted(one["job"] for one in us.status()["clients"]) == ["from-env", "named"]


# ------------------------------------------------------------------ at the other end


@pytest.fixture(scope="module")
def two_hosts():
    with wire() as (left, right):
        yield left, right


@contextlib.contextmanager
def listening(where, place: str):
    argv = where.argv(*AGENT, "verify", "--listen", place, "--json")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stderr.readline() == f"listening at {place}\n"
            told: dict[str, int] = {}
            yield told
            process.send_signal(signal.SIGTERM)
            told |= json.loads(process.stdout.read())
            process.wait(timeout=10)
        finally:
            process.kill()
    assert process.returncode == 0


@pytest.mark.root
@pytest.mark.parametrize("place", ["10.9.0.2:9470", "[fd09::2]:9470"])
def test_every_class_s_mark_is_seen_to_arrive(two_hosts, place):
    left, right = two_hosts
    with listening(right, place) as told:
        done = command(*left.argv(*AGENT, "verify", "--peer", place, "--json"))
        assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)["classes"]
    assert [one["dscp"] for one in found] == list(marking.DSCP_OF_CLASS)
    assert all(one["there"] == one["back"] == [one["dscp"]] and one["intact"] for one in found)
    assert told["answered"] >= sum(one["answered"] for one in found) >= 8 * verify.PROBES


@pytest.mark.root
def test_a_cleared_a_changed_and_a_dropped_mark_are_told_apart_by_direction(two_hosts):
    left, right = two_hosts
    rules = (
        "add table inet mangler; "
        "add chain inet mangler in { type filter hook prerouting priority mangle; }; "
        "add rule inet mangler in ip dscp cs5 ip dscp set cs0; "
        "add rule inet mangler in ip dscp cs1 drop; "
        "add chain inet mangler out { type route hook output priority mangle; }; "
        "add rule inet mangler out ip dscp cs4 ip dscp set af11"
    )
    right.run("nft", rules)
    try:
        with listening(right, "10.9.0.2:9470"):
            done = command(*left.argv(*AGENT, "verify", "--peer", "10.9.0.2:9470"))
    finally:
        right.run("nft", "delete table inet mangler")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    # The peer answers with the mark that was asked for, whatever has arrived of it.
    assert lines[0] == "class 0: CS5 arrives there as CS0"
    assert lines[2] == "class 2: CS4 arrives back as AF11"
    assert lines[6] == "class 6: CS1 gets no answer: this DSCP is dropped on the way"
    assert lines[1] == "class 1: AF42 arrives, both ways (5 of 5 answered)"


@pytest.mark.root
def test_where_nobody_listens_that_is_said_once(two_hosts):
    left, _ = two_hosts
    done = command(*left.argv(*AGENT, "verify", "--peer", "10.9.0.2:9471"))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "verify --listen there" in done.stderr


@pytest.mark.parametrize(
    "text", ["10.0.0.2", "10.0.0.2:0", ":9470", "fd00::2:9470", "[10.0.0.2]:9470", "x:²"]
)
def test_what_is_no_address_of_a_peer_is_refused(text):
    with pytest.raises(ScenarioError, match="such as"):
        verify.address(text, "--peer")
