"""A hundred thousand malformed messages from a user who may do little: the agent lives and serves.

The generator is seeded: mutations of every verb's valid messages, random bytes, nesting, lies about lengths
and descriptors of every kind. A second client, which behaves, is served all the while.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import tempfile
import time
from pathlib import Path

import pytest
from namespaces import space
from running_agent import agent, connection
from users import NOBODY, as_user

from hostagent import client, protocol

pytestmark = pytest.mark.root

MESSAGES = 100_000
BATCH = 16
ODD = [None, True, False, 0, -1, 1.0, 2**31, 2**53, 2**64, 10**400, 1e308, float("nan"), "", "x" * 129]
ODD += [
    "\0",
    "\ud800",
    "\u202e",
    "tag",
    [],
    {},
    [[]],
    {"a": {}},
    [1, 2],
    ["127.0.0.1:1", "127.0.0.1:2"],
    "::1",
]
ODD += [[["127.0.0.1:1", "[::1]:2"]], [["a", 1]], [2**63] * 50, "127.0.0.1:99999999999999999999", "1:2"]


class Generator:
    """Messages, each a packet and how many descriptors come with it."""

    def __init__(self, seed: int, verbs: list[str]) -> None:
        self.rng = random.Random(seed)
        self.verbs = verbs
        self.turn = 0

    def message(self) -> tuple[bytes, int]:
        rng = self.rng
        self.turn += 1
        kinds = [self._bytes, self._flipped, self._cut, self._spliced, self._odd, self._odd, self._odd]
        kinds += [self._nested, self._crowded, self._valid, self._inserted]
        packet = rng.choice(kinds)()
        if self.turn % 500 == 0:
            packet = (packet * (protocol.MAX_PACKET // max(1, len(packet)) + 2))[: protocol.MAX_PACKET + 2]
        fds = 0
        if rng.random() < 0.15:
            fds = rng.choice([1, 1, 2, 3, 7, protocol.MAX_FDS if self.turn % 50 == 0 else 5])
        return packet, fds

    def valid(self) -> dict[str, object]:
        rng = self.rng
        verb = rng.choice(self.verbs)
        made: dict[str, object] = {"v": 1, "id": self.turn, "verb": verb}
        fields = {
            "job": rng.choice(["resnet", ""]),
            "lease": rng.randrange(1, 50),
            "class": rng.choice([6, 0, 7, "bulk", 3]),
            "count": rng.randrange(0, 4),
            "group": rng.choice(["", "grad", f"g{rng.randrange(999)}"]),
            "even_busy": rng.choice([True, False]),
            "cookies": [rng.randrange(1, 2**40) for _ in range(rng.randrange(1, 4))],
            "flows": [["127.0.0.1:4000", "127.0.0.1:5000"]],
            "pid": rng.choice([os.getpid(), 1, rng.randrange(1, 70_000)]),
            "local": "127.0.0.1:4000",
            "on": rng.choice([True, False]),
        }
        for key in rng.sample(sorted(fields), rng.randrange(0, 5)):
            made[key] = fields[key]
        return made

    def _valid(self) -> bytes:
        return json.dumps(self.valid()).encode()

    def _bytes(self) -> bytes:
        return self.rng.randbytes(self.rng.randrange(0, 300))

    def _flipped(self) -> bytes:
        packet = bytearray(self._valid())
        for _ in range(self.rng.randrange(1, 5)):
            packet[self.rng.randrange(len(packet))] ^= 1 << self.rng.randrange(8)
        return bytes(packet)

    def _cut(self) -> bytes:
        packet = self._valid()
        return packet[: self.rng.randrange(len(packet))]

    def _inserted(self) -> bytes:
        packet, at = self._valid(), self.rng.randrange(10)
        return (
            packet[:at]
            + self.rng.choice([b"\0", b"\xff\xfe", b'"', b"}", b"\\u0000", b"1e999"])
            + packet[at:]
        )

    def _spliced(self) -> bytes:
        one, two = self._valid(), self._valid()
        return one[: self.rng.randrange(len(one))] + two[self.rng.randrange(len(two)) :]

    def _odd(self) -> bytes:
        made = self.valid()
        for key in self.rng.sample(sorted(made), self.rng.randrange(1, len(made) + 1)):
            if key != "verb" or self.rng.random() < 0.1:
                made[key] = self.rng.choice(ODD)
        return json.dumps(made).encode()

    def _nested(self) -> bytes:
        """Depths around what the reader and the interpreter's stack can take, in every field."""
        depth = self.rng.choice([self.turn % 1200, self.rng.randrange(900, 1000)])
        one, other = self.rng.choice([("[", "]"), ('{"a":', "}")])
        key = self.rng.choice(["v", "id", "class", "count", "job", "group", "lease", "flows", "pid", "local"])
        made = json.dumps(self.valid() | {key: "@"})
        return made.replace('"@"', one * depth + "0" * (one != "[") + other * depth).encode()

    def _crowded(self) -> bytes:
        more = {f"k{number}": self.rng.choice([1, "x", None]) for number in range(self.rng.randrange(300))}
        return json.dumps(self.valid() | more).encode()


def dial(path: str) -> socket.socket:
    with as_user(NOBODY):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(10)
        sock.connect(path)
    return sock


@contextlib.contextmanager
def descriptors():
    """One of every kind that a process can pass."""
    with contextlib.ExitStack() as stack:
        near, far = stack.enter_context(connection())
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        one, two = socket.socketpair()
        poll = stack.enter_context(contextlib.closing(select.epoll()))
        file = stack.enter_context(tempfile.TemporaryFile())
        reading, writing = os.pipe()
        plain = [reading, writing, os.eventfd(0), os.memfd_create("x"), os.pidfd_open(os.getpid())]
        plain += [os.open("/", os.O_RDONLY), os.open("/dev/null", os.O_PATH)]
        for fd in plain:
            stack.callback(os.close, fd)
        sockets = [near, far, udp, listener, stack.enter_context(one), stack.enter_context(two)]
        yield [sock.fileno() for sock in sockets] + [poll.fileno(), file.fileno(), *plain], near


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Peer:
    """One attacker's connection: sends a batch, then reads every answer; dials again when it was dropped.

    In two steps, so that the agent answers one peer while the next one's batch is made up.
    """

    def __init__(self, path: str, fds: list[int], generator: Generator) -> None:
        self.path, self.fds, self.generator = path, fds, generator
        self.sock = dial(path)
        self.codes: dict[str, int] = {}
        self.sent = self.size = 0

    def send(self, size: int) -> None:
        sent = 0
        for _ in range(size):
            packet, number = self.generator.message()
            chosen = self.generator.rng.choices(self.fds, k=number)
            try:
                socket.send_fds(self.sock, [packet], chosen)
            except (BrokenPipeError, ConnectionResetError):
                break
            if not packet and not chosen:
                break  # an end of the connection, as far as the agent can tell
            sent += 1
        self.sent, self.size = sent, size

    def read(self) -> None:
        for _ in range(self.sent):
            try:
                data = self.sock.recv(1 << 17)
            except ConnectionResetError:
                data = b""
            if not data:
                break
            self.judge(data)
        else:
            if self.sent == self.size:
                return
        self.sock.close()
        self.sock = dial(self.path)

    def judge(self, data: bytes) -> None:
        """Each answer is one that a client understands, and none says that the agent was surprised."""
        assert len(data) <= protocol.MAX_PACKET
        answer = json.loads(data)
        assert answer["v"] == 1 and isinstance(answer["ok"], bool)
        if answer["ok"]:
            assert answer.get("dscp", 8) == 8, "a class was given that this user may not use"
            assert answer.get("state", "serving") == "serving"
        else:
            assert answer["code"] != "internal", answer
            assert answer["message"].isprintable() and len(answer["message"]) < 600
        code = "ok" if answer["ok"] else answer["code"]
        self.codes[code] = self.codes.get(code, 0) + 1


def verbs_of(path: str) -> list[str]:
    """The verbs, from the agent's own mouth, so that a new one is not left out."""
    with contextlib.closing(dial(path)) as sock:
        sock.send(b'{"v":1,"verb":"?"}')
        return json.loads(sock.recv(1 << 16))["message"].rpartition("one of ")[2].split(", ")


def test_a_hundred_thousand_malformed_messages_change_nothing():
    with tempfile.TemporaryDirectory() as name, space() as where, descriptors() as (fds, victim):
        Path(name).chmod(0o755)
        limits = {"messages": "1000000/s", "sockets": 100, "groups": 20}
        allow = [{"uid": NOBODY, "classes": [6]}]
        config = {"version": 1, "mode": "mark", "ladder": ["descriptor", "self", "nft-tuple", "pidfd"]}
        config["api"] = {"allow": allow, "limits": limits}
        with agent(Path(name), config | {"classes": {"bulk": 6}}, where) as (path, process):
            pid = process.pid
            verbs = verbs_of(path)
            assert {"hello", "tag", "drain", "restore", "heartbeat"} <= set(verbs)
            with client.connect(path, strict=True, timeout=2.0) as good, connection() as (mine, _):
                peers = [Peer(path, fds, Generator(seed, verbs)) for seed in range(5)]
                before, waited, sent, files = 0, [], 0, 0
                while sent < MESSAGES:
                    for _ in range(10):
                        for peer in peers:
                            peer.send(BATCH)
                        for peer in peers:
                            peer.read()
                    began = time.perf_counter()
                    assert good.tag([mine], 0)[0].dscp == 40
                    waited.append(time.perf_counter() - began)
                    sent = sum(peer.generator.turn for peer in peers)
                    if sent < MESSAGES // 5:
                        before, files = resident(pid), open_files(pid)
                status = good.status()
                assert process.poll() is None
                assert open_files(pid) <= files, "a descriptor that arrived was not closed"
                grown = resident(pid) - before
                for peer in peers:
                    peer.sock.close()
            codes = {code for peer in peers for code in peer.codes}
            marked = victim.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2
    assert grown < 4 << 20, f"{grown} bytes more after 80 % of the messages"
    assert max(waited) < 0.5, "the good client had to wait"
    assert status["state"] == "serving" and status["tags_by_class"]["0"] == len(waited)
    assert marked in (0, 8), "the only class that this user may use is 6 (DSCP 8)"
    # The generator reached every kind of refusal, so that silence about one is not for want of trying.
    assert codes >= {"ok", "bad-json", "bad-version", "bad-verb", "bad-field", "bad-class", "refused"}
    assert codes >= {"bad-fds", "too-long", "too-many", "bad-lease", "bad-pid"}
