"""What tests of several users of one agent share: who connects, and sockets that are busy."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest
from running_agent import BASE

from hostagent import client, tagging

NOBODY, SOMEBODY = 65534, 65533
AGENT = [sys.executable, "-m", "hostagent", "run", "--config"]


@contextlib.contextmanager
def as_user(uid: int):
    """Whoever connects meanwhile is this user, by the kernel's word."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def connect(path: str, uid: int, **more) -> client.Client:
    with as_user(uid):
        return client.connect(path, strict=True, timeout=30, **more)


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def allowing(*users: int, **limits):
    return BASE | {"api": {"allow": [{"uid": uid} for uid in users], "limits": limits}}


def tos(sock: socket.socket) -> int:
    return sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)


def fill(near: socket.socket) -> None:
    """Send until nothing more fits: the peer does not read."""
    near.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            near.send(b"x" * 65536)


def drain(near: socket.socket, far: socket.socket) -> None:
    far.setblocking(False)
    end = time.monotonic() + 5
    while tagging.under_way(near):
        assert time.monotonic() < end
        with contextlib.suppress(BlockingIOError):
            far.recv(1 << 20)
