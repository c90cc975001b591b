"""The pages that an agent shows on loopback: metrics, health, readiness."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import time
from pathlib import Path

import pytest
from agent_pages import AGENT, ask, get, samples, with_pages
from running_agent import BASE, command, connection

from hostagent import client, metrics
from hostagent.client import AgentError
from hostagent.config import ConfigError, parse
from hostagent.verbs import Verbs


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
    with with_pages(tmp_path) as running:
        yield running


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


def test_the_time_of_the_start_stays_when_the_clock_is_set(monkeypatch):
    verbs = Verbs(parse("version: 1", "x"), list)

    def start() -> float:
        text = metrics.page(verbs.status(), verbs.counts).body
        return samples(text)["netsched_agent_start_time_seconds", ""]

    before, now = start(), time.time()
    assert now - 10 < before <= now
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert start() == before, "another time is another start"


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
