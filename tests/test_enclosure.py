"""The enclosure: what it passes through, what it hides, and that nothing outlives it.

Whoever a killed run leaves behind is recognised by a tag in its environment, which all descendants inherit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from mininet.topo import Topo

from netsched.emulation.channel import Channel, Message
from netsched.emulation.enclosure import SCRATCH, run_enclosed
from netsched.errors import CapabilityError, EmulationError, ScenarioError

TAG = "NETSCHED_TEST_TAG"


def entry(function) -> str:
    return f"{__name__}:{function.__name__}"


def entries(directory: str | Path) -> list[str]:
    return [path.name for path in Path(directory).iterdir()] if Path(directory).exists() else []


# ------------------------------------------------------------------ the channel


def test_a_message_keeps_its_body_and_its_columns():
    ours, theirs = socket.socketpair()
    columns = {"a": np.arange(5), "b": np.array([np.nan, np.inf]), "empty": np.zeros((0, 3))}
    with ours, theirs:
        Channel(ours).send(Message("kind", {"x": [1, None, "ü"]}, columns))
        got = Channel(theirs).receive()
    assert got is not None
    assert (got.kind, got.body) == ("kind", {"x": [1, None, "ü"]})
    assert got.arrays.keys() == columns.keys()
    for name, column in columns.items():
        np.testing.assert_array_equal(got.arrays[name], column)
        assert got.arrays[name].dtype == column.dtype


def test_a_closed_end_reads_as_none_and_cannot_be_sent_to():
    ours, theirs = socket.socketpair()
    theirs.close()
    assert Channel(ours).receive() is None
    with pytest.raises(EmulationError, match="channel is gone"):
        Channel(ours).send(Message("x", {}, {"a": np.zeros(1000)}))
    ours.close()


def test_half_a_message_reads_as_none_and_another_protocol_is_refused():
    ours, theirs = socket.socketpair()
    theirs.sendall(b"nsm1\0\0")
    theirs.close()
    assert Channel(ours).receive() is None
    ours.close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(EmulationError, match="not a message"):
            Channel(ours).receive()


def test_objects_that_would_need_pickle_are_refused():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ValueError, match="allow_pickle"):
        Channel(ours).send(Message("x", {}, {"a": np.array([object()])}))


# ------------------------------------------------------------------ what runs inside


def double(channel: Channel, request: Message) -> Message:
    channel.send(Message("progress", {"done": 0.5}))
    (SCRATCH / "file").write_text("x")
    links = sorted(name for _, name in socket.if_nameindex())
    facts = {
        "pid": os.getpid(),
        "links": links,
        "tmp": os.environ["TMPDIR"],
        "netns": entries("/run/netns"),
    }
    return Message("doubled", facts, {"x": request.arrays["x"] * 2})


def fail(channel: Channel, request: Message) -> Message:
    if request.body["how"] == "ours":
        raise ScenarioError("key: wrong")
    if request.body["how"] == "theirs":
        raise ZeroDivisionError("by zero")
    os._exit(7)


def wait_for_ever(channel: Channel, request: Message) -> Message:
    """Holds what an emulation holds: nodes in namespaces of their own, links, and programs in them."""
    # Here, as they take longer to import than most of these tests take.
    from netsched.emulation.network import emulated_network  # noqa: PLC0415
    from netsched.fabric import Fabric  # noqa: PLC0415

    topo = Small()
    channel.send(Message("building"))
    with emulated_network(topo, Fabric.from_topo(topo), scale=1.0, n_queues=8) as network:
        network.apply_host_queues()
        subprocess.run(["ip", "netns", "add", "named"], check=True)
        network.popen("left1", ["sleep", "1000"])
        network.popen("left1", ["setsid", "--fork", "sleep", "1000"])
        channel.send(Message("up"))
        time.sleep(1000)
    return Message("never")


class Small(Topo):
    def build(self) -> None:
        switch = self.addSwitch("between1")
        for host in ("left1", "right1"):
            self.addLink(self.addHost(host), switch, bw=100)


@pytest.mark.root
def test_the_function_runs_in_a_place_of_its_own(tmp_path):
    before = set(entries("/run")), socket.if_nameindex()
    seen: list[Message] = []
    request = Message("request", {}, {"x": np.arange(4.0)})
    result = run_enclosed(entry(double), request, log=tmp_path / "log", on_message=seen.append)
    assert result.kind == "doubled"
    assert result.body == {"pid": 1, "links": ["lo"], "tmp": str(SCRATCH), "netns": []}
    np.testing.assert_array_equal(result.arrays["x"], [0, 2, 4, 6])
    assert [message.body for message in seen] == [{"done": 0.5}]
    assert (set(entries("/run")), socket.if_nameindex()) == before
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.root
def test_an_error_inside_is_the_same_error_outside(tmp_path):
    log = tmp_path / "log"
    with pytest.raises(ScenarioError, match=r"^key: wrong$"):
        run_enclosed(entry(fail), Message("request", {"how": "ours"}), log=log)
    assert log.read_text() == ""
    with pytest.raises(EmulationError, match=f"ZeroDivisionError: by zero; see {log}"):
        run_enclosed(entry(fail), Message("request", {"how": "theirs"}), log=log)
    assert "Traceback" in log.read_text()
    with pytest.raises(EmulationError, match="without a result"):
        run_enclosed(entry(fail), Message("request", {"how": "exit"}), log=log)


@pytest.mark.root
def test_an_exception_in_the_callback_ends_the_inside(tmp_path, monkeypatch):
    tag = uuid.uuid4().hex
    monkeypatch.setenv(TAG, tag)

    def refuse(message: Message) -> None:
        if message.kind == "up":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_enclosed(entry(wait_for_ever), Message("request"), log=tmp_path / "log", on_message=refuse)
    # This process itself still has the environment that it was started with.
    assert tagged(tag) == []


def test_a_missing_program_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CapabilityError, match="'setpriv' is missing: apt-get install util-linux"):
        run_enclosed(entry(double), Message("request"), log=tmp_path / "log")


def test_without_root_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CapabilityError, match="needs root"):
        run_enclosed(entry(double), Message("request"), log=tmp_path / "log")


# ------------------------------------------------------------------ killed from outside


def run_as_program(log: str) -> None:
    run_enclosed(
        entry(wait_for_ever),
        Message("request"),
        log=Path(log),
        on_message=lambda message: print(message.kind, flush=True),  # noqa: T201
    )


@contextlib.contextmanager
def running(log: Path, tag: str) -> Iterator[subprocess.Popen[str]]:
    """A program that emulates for ever and says how far it is; killed at the end if it still runs."""
    program = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import run_as_program; run_as_program({str(log)!r})"],
        env={**os.environ, TAG: tag, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def wait_for(word: str, program: subprocess.Popen[str], log: Path) -> None:
    assert program.stdout is not None
    while (line := program.stdout.readline().strip()) != word:
        assert line, log.read_text()


def tagged(tag: str) -> list[int]:
    """Processes (zombies aside, whose environment is gone) that descend from the program with this tag."""
    found, wanted = [], f"{TAG}={tag}".encode()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def wait_until(condition: Callable[[], bool], within_s: float = 3.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not within {within_s} s"
        time.sleep(0.01)


def machine() -> dict[str, set[str]]:
    """What a run could leave on this machine, by what an emulation of `Small` would call it."""
    names = ("left1", "right1", "between1")
    return {
        "links": {name for _, name in socket.if_nameindex() if name.startswith(names)},
        "run": {name for name in entries("/run") if name.startswith("netsched")},
        "netns": {"named"} & set(entries("/run/netns")),
        "mounts": {
            line for line in Path("/proc/mounts").read_text().splitlines() if line.startswith("netsched ")
        },
    }


EMPTY = {"links": set(), "run": set(), "netns": set(), "mounts": set()}


@pytest.mark.root
@pytest.mark.parametrize(
    ("word", "seconds"),
    [
        *(("", 0.0), ("", 0.1), ("", 0.25), ("", 0.4), ("", 0.6)),
        *(("building", 0.0), ("building", 0.03), ("building", 0.1), ("building", 0.2)),
        *(("up", 0.0), ("up", 0.1)),
    ],
)
def test_sigkill_at_any_moment_leaves_nothing(tmp_path, word, seconds):
    tag = uuid.uuid4().hex
    with running(tmp_path / "log", tag) as program:
        if word:
            wait_for(word, program, tmp_path / "log")
        time.sleep(seconds)
        program.kill()
        program.wait()
        wait_until(lambda: tagged(tag) == [])
    assert machine() == EMPTY
    assert set(entries(tmp_path)) <= {"log"}


@pytest.mark.root
def test_what_a_kill_would_leave_is_really_there_before_it(tmp_path):
    """The check above could not fail if the tag were wrong."""
    tag = uuid.uuid4().hex
    with running(tmp_path / "log", tag) as program:
        wait_for("up", program, tmp_path / "log")
        # The program, setpriv that became unshare, the inside, three nodes' shells, two sleeps.
        wait_until(lambda: len(tagged(tag)) == 8)
    wait_until(lambda: tagged(tag) == [])


@pytest.mark.root
def test_ctrl_c_ends_everything_in_order(tmp_path):
    tag = uuid.uuid4().hex
    with running(tmp_path / "log", tag) as program:
        wait_for("up", program, tmp_path / "log")
        os.killpg(program.pid, signal.SIGINT)
        assert program.wait(timeout=5) == -signal.SIGINT
        # In order: by the time the program has ended, so has everything else.
        assert tagged(tag) == []
    assert machine() == EMPTY
