"""Killed at every step of apply, repair, teardown and cleanup: traffic flows on and nothing of ours stays."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time

import pytest
from kill_stage import SIGNAL_9, Driver, Traffic, dump, foreign_queues, steps_of
from namespaces import Space, wire

from hostagent import client, nftmarks
from hostagent.config import parse
from hostagent.queues import Ports
from hostagent.rungs import Settled
from netsched import ports
from netsched.netlink import open_netns

pytestmark = pytest.mark.root

FOREIGN = """
table inet foreign {
  chain c { type filter hook output priority 7; ip dscp cs3 accept; }
}
"""


@pytest.fixture(scope="module")
def ends():
    with wire() as (left, right):
        subprocess.run(left.argv("nft", "-f", "-"), input=FOREIGN, text=True, check=True)
        foreign_queues(left)
        yield left, right


@pytest.fixture(scope="module")
def stage(ends, tmp_path_factory):
    """(left, driver, traffic, what the kernel had before, the tree that the agent wants)."""
    left, right = ends
    place = tmp_path_factory.mktemp("agent")
    config = {
        "version": 1,
        "mode": "mark+queue",
        "interfaces": [{"name": "left", "rate": "200Mbit/s"}],
        "api": {"socket": str(place / "s")},
        "ladder": ["descriptor", "nft-tuple"],
    }
    file = place / "agent.yaml"
    file.write_text(json.dumps(config))
    with (
        contextlib.closing(Traffic(left, right)) as traffic,
        contextlib.closing(Driver(left, file)) as driver,
    ):
        with open_netns(left.pid) as link:
            want = Ports.of(Settled(parse(file.read_text(), "x")), link).ports[0].want
        yield left, driver, traffic, dump(left), want


def settle(stage) -> None:
    """The next agent takes over or starts anew; then it is killed, and its remains are taken away."""
    left, driver, traffic, before, want = stage
    assert driver.start().startswith("ready")
    with open_netns(left.pid) as link:
        assert ports.read_back(link, link.links()["left"]) == want
    assert nftmarks.TABLE in left.run("nft", "list", "tables")
    assert driver.do("kill") == SIGNAL_9
    traffic.flows()
    said = driver.do("cleanup", -1)
    assert said.startswith("exit 0") and "removed" in said
    assert dump(left) == before
    assert driver.do("cleanup", -1) == "exit 0 nothing of ours is left"


def test_killed_at_every_step_of_apply(stage):
    left, driver, traffic, before, _ = stage
    total = steps_of(driver.start())
    assert driver.do("stop") == "exit 0"
    assert dump(left) == before, "a clean end leaves every byte as it was"
    # 1 socket, 1 nft table, and of the port: root, parent, 8 leaves, 8 limits, 19 filters.
    assert total == 1 + 1 + 37
    for step in range(total):
        assert driver.start(step) == SIGNAL_9, f"step {step}"
        traffic.flows()
        settle(stage)


def test_killed_at_every_step_of_teardown(stage):
    left, driver, traffic, before, _ = stage
    step = 0
    while True:
        driver.start(-1, step)
        said = driver.do("stop")
        traffic.flows()
        if said == "exit 0":
            break
        assert said == SIGNAL_9
        settle(stage)
        step += 1
    # The rates of the port and of 8 leaves are lifted, the root and the table go, and the socket's name.
    assert step == 9 + 1 + 1 + 1
    assert dump(left) == before


def test_restore_gives_every_byte_back_at_once_and_keeps_the_agent_away(stage):
    left, driver, traffic, before, _ = stage
    assert driver.start().startswith("ready")
    assert dump(left) != before
    with client.connect(driver.socket, strict=True, timeout=10) as us:
        answer = us.restore()
        assert (answer["interfaces"], answer["failed"]) == (["left"], [])
        assert dump(left) == before
        traffic.flows()
        time.sleep(0.2)  # four comparisons
        assert dump(left) == before and us.status()["state"] == "restored"
    assert driver.do("stop") == "exit 0"
    assert dump(left) == before


DRIFT = """
class change dev left parent 7a1: classid 7a1:1 htb rate 100mbit ceil 100mbit burst 25k
class change dev left parent 7a1:1 classid 7a1:11 htb rate 1mbit ceil 5mbit prio 1 burst 5k
qdisc change dev left parent 7a1:12 handle 7a22: bfifo limit 5000
filter del dev left parent 7a1: protocol ipv6 pref 31249
"""


def disturb(left: Space) -> None:
    subprocess.run(left.argv("tc", "-batch", "-"), input=DRIFT.strip(), text=True, check=True)
    left.run("nft", "flush", "chain", "inet", nftmarks.TABLE, nftmarks.CHAIN)


def test_killed_at_every_step_of_a_repair(stage):
    left, driver, traffic, before, want = stage
    list_it = ("nft", "-s", "-t", "list", "table", "inet", nftmarks.TABLE)
    step, said = 0, SIGNAL_9
    while said == SIGNAL_9:
        assert driver.start(-1, step).startswith("ready")
        table = left.run(*list_it)
        with open_netns(left.pid) as link:
            index = link.links()["left"]
            disturb(left)
            end = time.monotonic() + 5
            while (said := driver.do("look")) == "alive":
                if ports.read_back(link, index) == want and left.run(*list_it) == table:
                    break
                assert time.monotonic() < end, "neither died nor repaired"
                time.sleep(0.01)
        traffic.flows()
        if said == SIGNAL_9:
            settle(stage)
            step += 1
    assert said == "alive"
    # Its next change would be its last, and stopping is one.
    assert driver.do("kill") == SIGNAL_9
    settle(stage)
    # The parent, a leaf, a limit, 10 filters of IPv6 (control, 7 classes, neighbour discovery), the table.
    assert step >= 1 + 1 + 1 + 10 + 1
    assert dump(left) == before


def test_killed_at_every_step_of_cleanup(stage):
    left, driver, traffic, before, _ = stage
    step = 0
    while True:
        driver.start()
        driver.do("kill")
        said = driver.do("cleanup", step)
        traffic.flows()
        if said.startswith("exit 0"):
            break
        assert said == SIGNAL_9
        assert driver.do("cleanup", -1).startswith("exit 0")
        assert dump(left) == before
        step += 1
    assert step == 9 + 1 + 1 + 1
    assert dump(left) == before
