"""What tests of the agent ask its pages and commands with."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from running_agent import BASE, agent

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


@contextlib.contextmanager
def with_pages(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str], int]]:
    """A running agent in mode mark with pages: (its socket, its process, the port of the pages)."""
    port = free_port()
    with agent(folder, BASE | {"metrics": {"listen": f"127.0.0.1:{port}"}}) as (path, process):
        yield path, process, port
