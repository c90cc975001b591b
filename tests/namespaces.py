"""Scratch network namespaces for tests: each lives in a child process and dies with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence


class Space:
    """A network namespace held open by a process of ours; `pid` is that process."""

    def __init__(self) -> None:
        hold = "import os,sys; print('ready', flush=True); sys.stdin.read()"
        self._holder = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-S", "-c", hold],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n", "cannot make a network namespace"
        self.pid = self._holder.pid
        self.ip("link", "set", "lo", "up")

    def argv(self, *argv: str) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "-n", *argv]

    def run(self, *argv: str) -> str:
        done = subprocess.run(self.argv(*argv), capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def ip(self, *argv: str) -> str:
        return self.run("ip", *argv)

    def python(
        self, code: str, *argv: str, keep: Sequence[int] = (), before: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start a Python program inside; the caller waits for it. `keep`: descriptors that it inherits.

        `before`: a program that starts it, such as chrt.
        """
        return subprocess.Popen(
            self.argv(*before, sys.executable, "-c", code, *argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=keep,
        )

    def close(self) -> None:
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(timeout=10)
        self._holder.stdout.close()


class Bounded:
    """Where programs run without one right, such as "sys_ptrace"."""

    def __init__(self, lacking: str) -> None:
        self.lacking = lacking

    def argv(self, *argv: str) -> list[str]:
        without = f"-{self.lacking}"
        return ["setpriv", "--bounding-set", without, "--inh-caps", without, *argv]


@contextlib.contextmanager
def space() -> Iterator[Space]:
    made = Space()
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def with_ports(*names: str) -> Iterator[Space]:
    """A namespace with the named ports, whose other ends lead nowhere."""
    with space() as made:
        for name in names:
            made.ip("link", "add", name, "type", "veth", "peer", "name", f"{name}p")
            made.ip("link", "set", name, "up")
        yield made


@contextlib.contextmanager
def wire(mtu: int = 1500) -> Iterator[tuple[Space, Space]]:
    """Two namespaces joined by a veth pair: `left` (10.9.0.1, fd09::1) and `right` (10.9.0.2, fd09::2)."""
    with space() as one, space() as two:
        one.ip("link", "add", "left", "type", "veth", "peer", "name", "right", "netns", str(two.pid))
        for where, name, last in ((one, "left", 1), (two, "right", 2)):
            # gso_max_size: a 64 kB super-packet would block a slow port for several packet times.
            where.ip("link", "set", name, "mtu", str(mtu), "gso_max_size", "2000")
            where.ip("addr", "add", f"10.9.0.{last}/24", "dev", name)
            where.ip("addr", "add", f"fd09::{last}/64", "dev", name, "nodad")
            where.ip("link", "set", name, "up")
        yield one, two


def within(pid: int, make: Callable[[], socket.socket]) -> socket.socket:
    """A socket that a thread of ours makes in the network namespace of process `pid`."""
    made: list[socket.socket | BaseException] = []

    def work() -> None:
        try:
            fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            try:
                setns(fd)
            finally:
                os.close(fd)
            made.append(make())
        except BaseException as error:
            made.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(made[0], BaseException):
        raise made[0]
    return made[0]


def setns(fd: int) -> None:
    assert ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000) == 0, os.strerror(ctypes.get_errno())
