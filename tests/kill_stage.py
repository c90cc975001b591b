"""The stage on which agents are killed: other people's queues, traffic that must flow on, and who kills."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from namespaces import Space, within
from running_agent import ROOT

DRIVER = Path(__file__).parent / "agent_driver.py"
SIGNAL_9 = "signal 9"


def foreign_queues(left: Space) -> None:
    """Somebody else's objects, which nothing here may touch."""
    left.ip("link", "add", "other", "type", "veth", "peer", "name", "rehto")
    left.run("tc", "qdisc", "add", "dev", "other", "root", "handle", "5:", "htb", "default", "1")
    left.run("tc", "qdisc", "add", "dev", "other", "clsact")


def dump(left: Space) -> str:
    """Everything of the kernel that an agent could touch, as text."""
    parts = [left.run("tc", "-d", what, "show") for what in ("qdisc",)]
    for name in ("left", "other"):
        parts += [left.run("tc", "-d", what, "show", "dev", name) for what in ("class", "filter")]
        parts.append(left.run("tc", "-d", "filter", "show", "dev", name, "egress"))
    return "\n".join([*parts, left.run("nft", "-a", "list", "ruleset")])


class Traffic:
    """A TCP stream from left to right that lives through everything, and new connections beside it."""

    def __init__(self, left: Space, right: Space) -> None:
        self.left = left
        self.listener = within(right.pid, lambda: socket.create_server(("10.9.0.2", 0)))
        self.listener.settimeout(5)
        self.near, self.far = self.dial()

    def dial(self) -> tuple[socket.socket, socket.socket]:
        near = within(self.left.pid, lambda: socket.create_connection(self.listener.getsockname(), timeout=5))
        far, _ = self.listener.accept()
        far.settimeout(5)
        return near, far

    def flows(self) -> None:
        """200 kB over the old connection, some over a new one, within the sockets' 5 s."""
        for near, far in ((self.near, self.far), self.dial()):
            size = 200_000 if near is self.near else 2_000
            sender = threading.Thread(target=near.sendall, args=(b"x" * size,))
            sender.start()
            got = 0
            while got < size:
                part = far.recv(1 << 18)
                assert part, "the connection was closed"
                got += len(part)
            sender.join()
            if near is not self.near:
                near.close()
                far.close()

    def close(self) -> None:
        for sock in (self.near, self.far, self.listener):
            sock.close()


class Driver:
    """The process in the left namespace that runs and kills agents."""

    def __init__(self, left: Space, config: Path) -> None:
        self.socket = json.loads(config.read_text())["api"]["socket"]
        argv = left.argv(sys.executable, str(DRIVER), str(config))
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def do(self, *words: object) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline().strip()
        assert said, f"the driver died at {words}"
        return said

    def start(self, before: int = -1, after: int = -1) -> str:
        return self.do("start", before, after)

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


def steps_of(said: str) -> int:
    assert said.startswith("ready"), said
    return int(said.split()[1])
