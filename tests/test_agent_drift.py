"""What somebody else changes is put right, object by object; what somebody insists on is left to them."""

from __future__ import annotations

import json
import socket

import pytest
from namespaces import Space, with_ports, within

from hostagent.config import parse
from hostagent.queues import Ports
from hostagent.rungs import Settled
from netsched import ports
from netsched.netlink import open_netns

pytestmark = pytest.mark.root

RTMGRP_TC = 8
CONFIG = {
    "version": 1,
    "mode": "mark+queue",
    "interfaces": [{"name": "eth0", "rate": "100Mbit/s"}, {"name": "eth1", "rate": "1Gbit/s"}],
}
SHAPE = "rate 100kbit ceil 100mbit burst 5k cburst 20k quantum 60000"

# What is changed behind the agent's back: tc's words, and how the difference is told.
DRIFT = {
    "the port's rate": ("class change dev eth0 parent 7a1: classid 7a1:1 htb rate 50mbit", "port: rate 50 M"),
    "a leaf's ceiling": (
        "class change dev eth0 parent 7a1:1 classid 7a1:10 htb rate 100kbit ceil 5mbit prio 0 burst 5k",
        "class 7a1:10: prio 0, rate 100 kbit/s, ceil 5 Mbit/s",
    ),
    "a leaf's prio": (
        f"class change dev eth0 parent 7a1:1 classid 7a1:11 htb prio 6 {SHAPE}",
        "class 7a1:11: prio 6",
    ),
    "a leaf's burst": (
        "class change dev eth0 parent 7a1:1 classid 7a1:12 htb prio 2 rate 100kbit ceil 100mbit burst 50k",
        "class 7a1:12: prio 2",
    ),
    "the length of a queue": (
        "qdisc change dev eth0 parent 7a1:13 handle 7a23: bfifo limit 5000",
        "bfifo 5 kB",
    ),
    "a queue": ("qdisc del dev eth0 parent 7a1:14", "class 7a1:14: prio 4"),
    "a class of somebody's": (
        f"class add dev eth0 parent 7a1:1 classid 7a1:33 htb prio 3 {SHAPE}",
        "class 7a1:33: prio 3",
    ),
    "the filters of IPv4": ("filter del dev eth0 parent 7a1: protocol ip pref 31248", "filter ip 1: missing"),
    "the filters of IPv6": (
        "filter del dev eth0 parent 7a1: protocol ipv6 pref 31249",
        "filter ipv6 1: missing",
    ),
    "the filter of ARP": ("filter del dev eth0 parent 7a1: protocol arp pref 31250", "filter arp 1: missing"),
    "everything": ("qdisc del dev eth0 root", "root: no htb with handle 7a1:"),
}


@pytest.fixture(scope="module")
def host():
    with with_ports("eth0", "eth1") as made:
        yield made


@pytest.fixture
def owned(host):
    """The agent's ports, applied; given back afterwards."""
    with open_netns(host.pid) as link:
        made = Ports.of(Settled(parse(json.dumps(CONFIG), "x")), link)
        made.apply()
        yield made
        for port in made.ports:
            ports.remove(link, port.index)


class Ear:
    """Hears what changes in the queues of a namespace, from the kernel."""

    def __init__(self, pid: int) -> None:
        self.sock = within(pid, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
        self.sock.bind((0, RTMGRP_TC))
        self.sock.settimeout(0.05)

    def heard(self) -> int:
        count = 0
        try:
            while self.sock.recv(1 << 16):
                count += 1
        except TimeoutError:
            return count
        finally:
            self.sock.settimeout(0.05)


def tc(host: Space, words: str) -> None:
    host.run("tc", *words.split())


def test_the_second_time_there_is_nothing_to_do_by_the_kernel_s_own_word(host, owned):
    ear = Ear(host.pid)
    with ear.sock, open_netns(host.pid) as link:
        tc(host, "class change dev eth1 parent 7a1: classid 7a1:1 htb rate 50mbit")
        assert ear.heard() >= 1, "the ear works"
        owned.watch()
        assert ear.heard() >= 1
        before = owned.link.operations
        owned.watch()
        assert owned.apply() == 0
        assert owned.link.operations == before
        again = Ports.of(Settled(parse(json.dumps(CONFIG), "x")), link)
        assert again.apply() == 0 and link.operations == 0, "nor for the next agent"
        assert ear.heard() == 0


@pytest.mark.parametrize("what", DRIFT)
def test_each_object_is_seen_to_differ_and_put_right_once(host, owned, what):
    words, told = DRIFT[what]
    port, other = owned.ports
    tc(host, words)
    plan = owned.plan()
    assert any(told in line for line in plan["eth0"]), plan
    assert plan["eth1"] == []
    owned.watch()
    assert ports.read_back(owned.link, port.index) == port.want
    assert (port.repairs.total, port.conflict, other.repairs.total) == (1, "", 0)
    before = owned.link.operations
    owned.watch()
    assert owned.link.operations == before and port.repairs.total == 1


def test_what_is_not_ours_is_left_where_it_is(host, owned):
    tc(host, "qdisc add dev eth0 clsact")
    tc(host, "filter add dev eth0 egress protocol ip pref 5 u32 match ip dst 10.1.2.3/32 flowid 1:1")
    shown = host.run("tc", "filter", "show", "dev", "eth0", "egress")
    tc(host, "qdisc change dev eth0 parent 7a1:13 handle 7a23: bfifo limit 5000")
    owned.watch()
    assert owned.ports[0].conflict == "" and owned.plan()["eth0"] == []
    assert host.run("tc", "filter", "show", "dev", "eth0", "egress") == shown
    tc(host, "qdisc del dev eth0 clsact")


def test_who_keeps_changing_a_port_has_it_after_three_repairs_and_is_told_of(host, owned):
    port = owned.ports[0]
    for _ in range(3):
        assert port.conflict == ""
        tc(host, "qdisc change dev eth0 parent 7a1:13 handle 7a23: bfifo limit 5000")
        owned.watch()
        assert owned.plan()["eth0"] == []
    assert port.conflict == "changed by somebody else 3 times in 10 minutes; left as it is"
    tc(host, "qdisc change dev eth0 parent 7a1:13 handle 7a23: bfifo limit 6000")
    before = owned.link.operations
    owned.watch()
    assert owned.link.operations == before and "bfifo 6 kB" in owned.plan()["eth0"][0]
    assert owned.status()[0]["conflict"] == port.conflict


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["qdisc del dev eth0 root", "qdisc add dev eth0 root handle 9: pfifo"],
            "'pfifo 9:', set by somebody",
        ),
        (
            ["filter add dev eth0 parent 7a1: protocol 802.1q pref 7 u32 match u32 0 0 flowid 7a1:10"],
            "a filter of somebody else is on our root",
        ),
    ],
)
def test_a_replaced_root_and_a_foreign_filter_are_reported_and_not_fought(host, owned, words, says):
    for line in words:
        tc(host, line)
    before = owned.link.operations
    for _ in range(3):
        owned.watch()
    assert says in owned.ports[0].conflict
    assert owned.link.operations == before
    assert owned.ports[1].conflict == ""
    tc(host, "qdisc del dev eth0 root")
