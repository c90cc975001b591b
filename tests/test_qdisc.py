"""A port's queue tree: what is asked for, what the kernel has, what differs."""

from __future__ import annotations

import dataclasses
import re

import pytest
from namespaces import Space, with_ports

from netsched import marking, ports, qdisc
from netsched.netlink import NetlinkError, open_netns
from netsched.qdisc import QueueError

MBIT = 1e6 / 8
RATES = [1, 100, 1000, 10_000, 40_000, 100_000]


# ------------------------------------------------------------------ the desired tree


@pytest.mark.parametrize("mbit", RATES)
def test_bursts_are_two_frames_and_a_millisecond_at_least(mbit):
    tree = qdisc.port(mbit * MBIT)
    shape = tree.parent
    assert shape is not None
    assert shape.rate == shape.ceil == mbit * 125_000
    # 1 ms of 1 Mbit/s is 125 B, less than the 2 frames (3028 B) below which HTB stalls.
    assert shape.burst * shape.rate / 1e6 >= max(2 * 1514, shape.rate / 1000) * 0.9999
    assert all(leaf.shape.ceil == shape.rate and leaf.shape.burst > 0 for leaf in tree.leaves)


@pytest.mark.parametrize("queues", range(1, 9))
def test_one_leaf_per_class_prio_equal_to_the_class_and_best_effort_the_default(queues):
    tree = qdisc.port(100 * MBIT, queues)
    assert sorted(leaf.prio for leaf in tree.leaves) == list(range(queues))
    last = next(leaf for leaf in tree.leaves if leaf.minor == tree.default)
    assert last.prio == queues - 1
    assert {f.minor for f in tree.filters} == {leaf.minor for leaf in tree.leaves} - {tree.default}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rate": 0.5 * MBIT}, "rate = 500 kbit/s"),
        ({"rate": 200_000 * MBIT}, "rate = 200 Gbit/s"),
        ({"rate": float("nan")}, "rate"),
        ({"queues": 0}, "queues = 0"),
        ({"queues": 9}, "queues = 9"),
        ({"floor": 0.2}, "floor = 0.2"),
        ({"floor": -0.1}, "floor = -0.1"),
        ({"limit": 100}, "limit = 100 B"),
        ({"burst_s": float("nan")}, "burst"),
        ({"frame": 10}, "frame = 10 B"),
    ],
)
def test_a_port_that_cannot_be_is_refused_with_the_value_and_its_unit(change, says):
    with pytest.raises(QueueError, match=says):
        qdisc.port(**({"rate": 100 * MBIT} | change))


def test_differences_name_the_class_both_values_and_their_units():
    want = qdisc.port(100 * MBIT)
    leaves = (dataclasses.replace(want.leaves[0], prio=5), *want.leaves[1:])
    (line,) = qdisc.differences(want, dataclasses.replace(want, leaves=leaves))
    assert "class 7a1:10" in line and "prio 5" in line and "wanted prio 0" in line and "100 Mbit/s" in line
    assert qdisc.differences(want, want) == []
    assert "no htb" in qdisc.differences(want, None)[0]


# ------------------------------------------------------------------ in the kernel


@pytest.fixture(scope="module")
def host():
    with with_ports("port") as made:
        yield made


@pytest.fixture
def port(host: Space):
    with open_netns(host.pid) as link:
        index = link.links()["port"]
        yield link, index
        ports.remove(link, index)


@pytest.mark.root
@pytest.mark.parametrize("mbit", RATES)
@pytest.mark.parametrize("queues", [1, 2, 3, 8])
def test_what_is_read_back_is_what_was_asked(port, mbit, queues):
    link, index = port
    want = qdisc.port(mbit * MBIT, queues)
    assert ports.apply(link, index, want) > 0
    have = ports.read_back(link, index)
    assert have == want
    for shape in (have.parent, *(leaf.shape for leaf in have.leaves)):
        assert shape.burst > 0 and shape.cburst > 0
        assert 1514 <= shape.quantum <= 200_000
    assert ports.apply(link, index, want) == 0


def bits(text):
    """tc's "100Mbit" as bit/s, "3025b" (bytes, despite the letter) as it is."""
    number, unit = re.fullmatch(r"([0-9.]+)([KMG]?)(?:bit|b)", text).groups()
    return float(number) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[unit]


@pytest.mark.root
@pytest.mark.parametrize("mbit", RATES)
def test_tc_reads_the_same_rates_and_bursts(host, port, mbit):
    # An independent reader of the kernel's structures (its JSON for htb is broken, so the text is read).
    link, index = port
    want = qdisc.port(mbit * MBIT)
    ports.apply(link, index, want)
    shown = host.run("tc", "class", "show", "dev", "port")
    for leaf in want.leaves:
        (line,) = [line for line in shown.splitlines() if line.startswith(f"class htb 7a1:{leaf.minor:x} ")]
        words = line.split()
        word = {key: words[words.index(key) + 1] for key in ("prio", "rate", "ceil", "burst", "cburst")}
        assert int(word["prio"]) == leaf.prio
        assert bits(word["rate"]) == pytest.approx(leaf.shape.rate * 8, rel=1e-3)
        assert bits(word["ceil"]) == leaf.shape.ceil * 8
        assert bits(word["burst"]) == pytest.approx(leaf.shape.burst * leaf.shape.rate / 1e6, rel=0.01)
        assert bits(word["cburst"]) == pytest.approx(leaf.shape.cburst * leaf.shape.ceil / 1e6, rel=0.01)
    filters = host.run("tc", "filter", "show", "dev", "port")
    for cls in range(7):
        assert f"match {marking.dscp_of(cls) << 18:08x}/00fc0000 at 0" in filters
        assert f"match {marking.dscp_of(cls) << 22:08x}/0fc00000 at 0" in filters


@pytest.mark.root
@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8), (8, 3), (2, 8)])
def test_rate_and_number_of_queues_change_in_place(host, port, before, after):
    link, index = port
    ports.apply(link, index, qdisc.port(100 * MBIT, before))
    want = qdisc.port(250 * MBIT, after)
    ports.apply(link, index, want)
    assert ports.read_back(link, index) == want
    assert ports.counters(link, index).direct_packets == 0


@pytest.mark.root
def test_a_new_rate_touches_classes_and_limits_only(port):
    link, index = port
    ports.apply(link, index, qdisc.port(100 * MBIT, limit=300_000))
    # The parent and 8 leaves; no qdisc, no filter.
    assert ports.apply(link, index, qdisc.port(200 * MBIT, limit=300_000)) == 9


@pytest.mark.root
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            "class change dev port parent 7a1:1 classid 7a1:12 htb rate 5mbit ceil 9mbit prio 6",
            "class 7a1:12",
        ),
        ("filter del dev port parent 7a1: protocol ip pref 0x7a10", "filter ip 1: missing"),
        (
            "class change dev port parent 7a1: classid 7a1:1 htb rate 50mbit ceil 50mbit",
            "port: rate 50 Mbit/s",
        ),
        ("qdisc change dev port parent 7a1:10 handle 7a20: bfifo limit 5000", "bfifo 5 kB"),
        ("qdisc del dev port parent 7a1:1f handle 7a2f:", "class 7a1:1f"),
        ("qdisc del dev port root", "no htb"),
    ],
)
def test_a_tree_changed_by_hand_is_seen_and_repaired(host, port, damage, says):
    link, index = port
    want = qdisc.port(100 * MBIT)
    ports.apply(link, index, want)
    host.run("tc", *damage.split())
    wrong = qdisc.differences(want, ports.read_back(link, index))
    assert any(says in line for line in wrong), wrong
    assert ports.apply(link, index, want) > 0
    assert ports.read_back(link, index) == want


@pytest.mark.root
@pytest.mark.parametrize("foreign", ["htb default 1", "tbf rate 1mbit burst 5k limit 50k", "pfifo limit 7"])
def test_queues_of_somebody_else_are_refused_and_left_alone(host, port, foreign):
    link, index = port
    host.run("tc", "qdisc", "add", "dev", "port", "root", "handle", "5:", *foreign.split())
    try:
        with pytest.raises(QueueError, match="somebody else"):
            ports.apply(link, index, qdisc.port(100 * MBIT))
        assert ports.remove(link, index) is False
        assert foreign.split()[0] in host.run("tc", "qdisc", "show", "dev", "port")
    finally:
        host.run("tc", "qdisc", "del", "dev", "port", "root")


@pytest.mark.root
def test_after_removal_the_port_is_as_before(host, port):
    link, index = port
    shown = [host.run("tc", kind, "show", "dev", "port") for kind in ("qdisc", "class", "filter")]
    ports.apply(link, index, qdisc.port(100 * MBIT))
    assert ports.remove(link, index, drain_s=1.0) is True
    assert [host.run("tc", kind, "show", "dev", "port") for kind in ("qdisc", "class", "filter")] == shown
    assert ports.remove(link, index) is False


@pytest.mark.root
def test_a_port_that_does_not_exist_and_a_namespace_that_does_not_exist_are_named(port):
    link, _ = port
    with pytest.raises(QueueError, match="interface 9999"):
        ports.apply(link, 9999, qdisc.port(100 * MBIT))
    with pytest.raises(Exception, match="/no/such/namespace"):
        open_netns("/no/such/namespace")


@pytest.mark.root
def test_the_kernel_s_own_words_come_with_an_error(port):
    link, index = port
    from netsched import qdisc_wire as wire  # noqa: PLC0415

    with pytest.raises(NetlinkError) as caught:
        link.request(wire.NEWTCLASS, wire.htb_class(index, 5, 6, 0, qdisc.port(MBIT).leaves[0].shape))
    assert caught.value.errno in (2, 22, 95)


@pytest.mark.root
def test_two_hundred_sockets_into_a_namespace_leave_no_descriptor(host):
    from pathlib import Path  # noqa: PLC0415

    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(200):
        open_netns(host.pid).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
