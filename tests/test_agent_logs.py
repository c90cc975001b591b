"""What the agent says on stderr and to systemd."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import time

import pytest
from agent_pages import AGENT
from running_agent import BASE

from hostagent import logs
from hostagent.notify import Notifier


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


def test_a_reader_that_hangs_holds_nobody_up_and_is_told_how_much_it_missed(monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as stream:
        logs.setup("json", logging.INFO, stream)
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, b"x" * 4096):
                pass
        os.set_blocking(writing, True)
        for _ in range(3):
            logging.getLogger("x").warning("unheard")
        reader.read(65536)
        logging.getLogger("x").warning("heard")
        stream.close()
        lines = [json.loads(line) for line in reader.read().splitlines()]
    assert [(line["event"], line.get("lines")) for line in lines] == [
        ("lines lost, nobody read", 3),
        ("heard", None),
    ]


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
