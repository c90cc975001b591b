"""Killed at every step on the rungs beside HTB, with marks by control group on some."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from kill_stage import SIGNAL_9, Driver, Traffic, dump, foreign_queues, steps_of
from namespaces import Space, wire

from hostagent import bands, cgroups, nftmarks
from netsched import kernel, marking, strict, strict_ports
from netsched.errors import CapabilityError
from netsched.netlink import open_netns

pytestmark = pytest.mark.root
CLASS = 3
FLUSH = ("nft", "flush", "chain", "inet")


@dataclass(frozen=True)
class Rung:
    """`root`: the queues before; `disturb`: what somebody does to our objects.

    `apply`, `teardown` and `repair` count changes, the socket's name among them. `marked`: a new connection
    out of the group has the class on its socket while an agent lives.
    """

    scheduler: str
    ladder: tuple[str, ...]
    root: str
    disturb: tuple[tuple[str, ...], ...]
    apply: int
    teardown: int
    repair: int
    marked: bool = False


def _strict(kind: str) -> Rung:
    filters = len(strict.port(kind).filters)
    lost = ("tc", "filter", "del", "dev", "left", "parent", "7a1:", "protocol", "ip", "pref", "31248")
    # The question whether the kernel has it (refused), the socket, the root, 8 limits, the filters.
    # Taken away: the root, the socket's name. Repaired: IPv4's filters, of control and of 7 classes.
    return Rung(kind, ("descriptor",), "noqueue", (lost,), 1 + 1 + 1 + 8 + filters, 1 + 1, repair=8)


RUNGS = {
    # The socket, the program of the group, the map's table; a program goes with its agent.
    "pfifo_fast-bpf": Rung(
        "pfifo_fast",
        ("descriptor", "cgroup-bpf"),
        "pfifo_fast",
        ((*FLUSH, bands.TABLE, "sort"),),
        apply=1 + 1 + 1,
        teardown=1 + 1,
        repair=1,
        marked=True,
    ),
    # The socket, the table of marks, the map's table; all three go.
    "mq-nft": Rung(
        "pfifo_fast",
        ("descriptor", "nft-cgroup", "nft-tuple"),
        "mq",
        ((*FLUSH, bands.TABLE, "sort"), (*FLUSH, nftmarks.TABLE, nftmarks.CHAIN)),
        apply=1 + 1 + 1,
        teardown=1 + 1 + 1,
        repair=1 + 1,
    ),
    **{kind: _strict(kind) for kind in strict.KINDS},
}


@dataclass
class Stage:
    rung: Rung
    left: Space
    driver: Driver
    traffic: Traffic
    before: str = ""

    def now(self) -> object:
        """The kernel's objects; a table made anew has other handles and comes last."""
        if self.rung.scheduler in strict.KINDS:
            # Equal whatever numbers the kernel has given to filters made anew.
            with open_netns(self.left.pid) as link:
                return strict_ports.read_back(link, link.links()["left"])
        head, _, _ = dump(self.left).partition("table inet")
        tables = sorted(self.left.run("nft", "list", "tables").splitlines())
        return head + "".join(self.left.run("nft", "-s", "-t", "list", *line.split()) for line in tables)

    def flows(self, alive: bool) -> None:
        self.traffic.flows()
        near, far = self.traffic.dial()
        with near, far:
            mark = near.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2
        assert mark == (marking.dscp_of(CLASS) if alive and self.rung.marked else 0)

    def settle(self) -> None:
        """The next agent takes over or starts anew; it is killed, and its remains are taken away."""
        assert self.driver.start().startswith("ready")
        self.flows(alive=True)
        assert self.driver.do("kill") == SIGNAL_9
        self.flows(alive=False)
        said = self.driver.do("cleanup", -1)
        assert said.startswith("exit 0") and "removed" in said
        assert dump(self.left) == self.before
        assert self.driver.do("cleanup", -1) == "exit 0 nothing of ours is left"


@contextlib.contextmanager
def member_of(group: Path):
    """This process, and so every socket that it makes, is in the group meanwhile."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    before = next(line.removeprefix("0::/") for line in lines if line.startswith("0::"))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (cgroups.mount() / before / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture(scope="module", params=RUNGS)
def stage(request, tmp_path_factory):
    rung = RUNGS[request.param]
    found = {one.name: one for one in kernel.probe()}
    needed = "nft" if rung.scheduler == "pfifo_fast" else rung.scheduler
    if not found[needed].present:
        pytest.skip(f"this kernel lacks {found[needed].config_option}")
    place = tmp_path_factory.mktemp("agent")
    config = {
        "version": 1,
        "mode": "mark+queue",
        "interfaces": [{"name": "left", "scheduler": rung.scheduler}],
        "api": {"socket": str(place / "s")},
        "ladder": list(rung.ladder),
    }
    with contextlib.ExitStack() as stack:
        left, right = stack.enter_context(wire())
        foreign_queues(left)
        if rung.root == "mq":
            left.ip("link", "add", "name", "many", "numtxqueues", "4", "type", "ifb")
            left.ip("link", "set", "many", "up")
            config["interfaces"] = [{"name": name, "scheduler": "pfifo_fast"} for name in ("left", "many")]
        if rung.root != "noqueue":
            left.run("tc", "qdisc", "add", "dev", "left", "root", "pfifo_fast")
        if len(rung.ladder) > 1:
            try:
                group = cgroups.mount() / f"netsched-kill-{os.getpid()}"
                group.mkdir()
            except (CapabilityError, OSError) as error:
                pytest.skip(f"no control group of version 2 can be made here: {error}")
            stack.callback(group.rmdir)
            config["cgroups"] = [{"path": group.name, "class": CLASS}]
        file = place / "agent.yaml"
        file.write_text(json.dumps(config))
        driver = stack.enter_context(contextlib.closing(Driver(left, file)))
        if len(rung.ladder) > 1:
            stack.enter_context(member_of(group))
        traffic = stack.enter_context(contextlib.closing(Traffic(left, right)))
        yield Stage(rung, left, driver, traffic, dump(left))


def test_killed_at_every_step_of_apply(stage):
    total = steps_of(stage.driver.start())
    assert total == stage.rung.apply
    assert stage.driver.do("stop") == "exit 0"
    assert dump(stage.left) == stage.before, "a clean end leaves every byte as it was"
    for step in range(total):
        assert stage.driver.start(step) == SIGNAL_9, f"step {step}"
        stage.flows(alive=False)
        stage.settle()


def test_killed_at_every_step_of_teardown(stage):
    for step in range(stage.rung.teardown):
        assert stage.driver.start(-1, step).startswith("ready")
        assert stage.driver.do("stop") == SIGNAL_9, f"step {step}"
        stage.flows(alive=False)
        stage.settle()
    assert stage.driver.start(-1, stage.rung.teardown).startswith("ready")
    assert stage.driver.do("stop") == "exit 0"
    assert dump(stage.left) == stage.before


def test_killed_at_every_step_of_a_repair(stage):
    step, said = 0, SIGNAL_9
    while said == SIGNAL_9:
        assert stage.driver.start(-1, step).startswith("ready")
        whole = stage.now()
        for argv in stage.rung.disturb:
            stage.left.run(*argv)
        end = time.monotonic() + 10
        while (said := stage.driver.do("look")) == "alive" and stage.now() != whole:
            assert time.monotonic() < end, f"neither died nor repaired at step {step}"
        stage.flows(alive=said == "alive")
        if said == SIGNAL_9:
            stage.settle()
            step += 1
    assert step == stage.rung.repair
    assert stage.driver.do("kill") == SIGNAL_9
    stage.settle()


def test_killed_at_every_step_of_cleanup(stage):
    # What lies there after a kill: all but the program, which has gone with its agent.
    for step in range(stage.rung.teardown):
        assert stage.driver.start().startswith("ready")
        assert stage.driver.do("kill") == SIGNAL_9
        assert stage.driver.do("cleanup", step).startswith(SIGNAL_9), f"step {step}"
        stage.flows(alive=False)
        assert stage.driver.do("cleanup", -1).startswith("exit 0")
        assert dump(stage.left) == stage.before
