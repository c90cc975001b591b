"""An agent as a process, and what its tests need beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from namespaces import Bounded, Space

ROOT = Path(__file__).parent.parent
BASE = {"version": 1, "mode": "mark"}
QUEUE = {"version": 1, "mode": "mark+queue", "interfaces": [{"name": "eth0", "rate": "100Mbit/s"}]}
OURS = "htb 7a1: dev eth0 root"
FAMILIES = [
    (socket.AF_INET, "127.0.0.1", "ipv4"),
    (socket.AF_INET6, "::1", "ipv6"),
    (socket.AF_INET6, "::ffff:127.0.0.1", "ipv4-mapped"),
]


@contextlib.contextmanager
def agent(tmp_path: Path, config: dict, where: Space | Bounded | None = None):
    """A running agent; yields (path of its socket, its process)."""
    path = str(tmp_path / "agent.sock")
    file = tmp_path / "agent.yaml"
    api = {"socket": path} | config.get("api", {})
    file.write_text(json.dumps(config | {"api": api}))
    ready, ready_child = os.pipe()
    argv = [sys.executable, "-m", "hostagent", "run", "--config", str(file), "--ready-fd", str(ready_child)]
    process = subprocess.Popen(
        argv if where is None else where.argv(*argv), pass_fds=[ready_child], cwd=ROOT, stderr=subprocess.PIPE
    )
    os.close(ready_child)
    try:
        with os.fdopen(ready) as pipe:
            said = pipe.read()
        if said != "ready\n":
            _, errors = process.communicate(timeout=10)
            pytest.fail(f"agent ended with {process.returncode}: {errors.decode()}")
        yield path, process
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 0, errors.decode()
    assert not Path(path).exists()
    assert b"Traceback" not in errors, errors.decode()


def command(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)


@contextlib.contextmanager
def connection(family: int = socket.AF_INET, address: str = "127.0.0.1"):
    """A live TCP connection over loopback: (client's end, server's end)."""
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::" if family == socket.AF_INET6 else "127.0.0.1", 0))
        listener.listen()
        with socket.socket(family, socket.SOCK_STREAM) as near:
            near.connect((address, listener.getsockname()[1]))
            far, _ = listener.accept()
            with far:
                yield near, far


def dial(path):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(5)
    sock.connect(path)
    return sock


def wait_for(true):
    """Until it is true, 10 s at most."""
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)
