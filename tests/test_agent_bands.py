"""Scheduler pfifo_fast: classes in the kernel's own three bands, by a map from DSCP to packet priority."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest
from agent_pages import AGENT
from namespaces import space, wire, within
from running_agent import agent, command, wait_for

from hostagent import bands, client
from hostagent.bands import Bands, band_of
from hostagent.config import parse
from hostagent.queues import Ports
from hostagent.rungs import Settled
from netsched import marking
from netsched.netlink import open_netns
from netsched.qdisc import QueueError

CONFIG = {
    "version": 1,
    "mode": "mark+queue",
    "resync": "1s",
    "interfaces": [{"name": "left", "scheduler": "pfifo_fast"}],
}
# pfifo_fast's map (sch_generic.c, prio2band): the band of packet priority 0, 1, 2, ...
PRIOMAP = (1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)


@pytest.fixture
def ends():
    with wire() as (left, right):
        left.run("tc", "qdisc", "add", "dev", "left", "root", "pfifo_fast")
        yield left, right


def everything(where) -> str:
    return where.run("tc", "-d", "qdisc", "show") + where.run("nft", "list", "ruleset")


def test_classes_share_the_bands_in_order_and_equally():
    assert [band_of(cls, 8) for cls in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    for queues in range(1, 9):
        found = [band_of(cls, queues) for cls in range(queues)]
        assert found == sorted(found) and set(found) == set(range(min(queues, 3)))
        sizes = [found.count(band) for band in set(found)]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.root
def test_the_table_is_what_nft_lists_so_that_the_second_time_there_is_nothing_to_do():
    with space() as where:
        for name, more in (("one", ()), ("many", ("numtxqueues", "4"))):
            where.ip("link", "add", "name", name, *more, "type", "ifb")
            where.ip("link", "set", name, "up")
        assert "mq 0: dev many root" in where.run("tc", "qdisc", "show")
        before = everything(where)
        ports = [{"name": name, "scheduler": "pfifo_fast"} for name in ("one", "many")]
        files = [json.dumps(CONFIG | {"queues": queues, "interfaces": ports}) for queues in range(1, 9)]
        code = (
            "import sys\n"
            "from hostagent.bands import Bands\n"
            "from hostagent.config import parse\n"
            "from hostagent.rungs import Settled\n"
            "from netsched.netlink import open_netns\n"
            "for file in sys.argv[1:]:\n"
            "    with open_netns() as link:\n"
            "        made = lambda: Bands.of(Settled(parse(file, 'x')), link)\n"
            "        print(made().apply(), made().apply(), made().plan(), made().restore(), flush=True)\n"
            "    sys.stdin.readline()\n"
        )
        with where.python(code, *files) as process:
            assert process.stdout is not None and process.stdin is not None
            for _ in files:
                assert process.stdout.readline() == "1 0 {'one': [], 'many': []} []\n"
                assert everything(where) == before
                process.stdin.write("\n")
                process.stdin.flush()
            assert process.wait(timeout=10) == 0


@pytest.mark.root
def test_export_prints_what_run_loads(ends, tmp_path):
    left, _ = ends
    file = tmp_path / "export.yaml"
    file.write_text(json.dumps(CONFIG))
    done = command(*left.argv(*AGENT, "export", "nft", "--config", str(file)))
    with agent(tmp_path, CONFIG, left):
        assert left.run("nft", "-s", "list", "ruleset") in done.stdout
    assert command(*left.argv(*AGENT, "export", "tc", "--config", str(file))).stdout == ""


@pytest.mark.root
def test_every_class_gets_a_priority_that_the_kernel_puts_into_its_band(ends, tmp_path):
    left, _ = ends
    shown = left.run("tc", "qdisc", "show", "dev", "left")
    assert f"priomap {' '.join(map(str, PRIOMAP))}" in shown, "the kernel's own map is the one in this file"
    with agent(tmp_path, CONFIG, left):
        lines = [f"meta priority {name} counter" for name in ("0:6", "none", "0:2")]
        count = "; ".join(f'oifname "left" udp dport 9 {line}' for line in lines)
        table = f"table inet count {{ chain c {{ type filter hook postrouting priority 100; {count}; }}; }}"
        for family, address in ((socket.AF_INET, "10.9.0.2"), (socket.AF_INET6, "fd09::2")):
            for dscp in (*(marking.dscp_of(cls) for cls in range(8)), marking.CONTROL_DSCP, 46):
                left.run("nft", table)
                with within(left.pid, lambda f=family: socket.socket(f, socket.SOCK_DGRAM)) as sock:
                    # What the program itself asks for does not count.
                    level = (socket.IPPROTO_IP, socket.IP_TOS)
                    if family == socket.AF_INET6:
                        level = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
                    sock.setsockopt(*level, dscp << 2)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 1)
                    sock.sendto(b"x", (address, 9))
                listed = json.loads(left.run("nft", "-j", "list", "table", "inet", "count"))["nftables"]
                rules = [one["rule"]["expr"] for one in listed if "rule" in one]
                packets = [part["counter"]["packets"] for expr in rules for part in expr if "counter" in part]
                band = band_of(marking.class_of(dscp), 8)
                assert packets == [int(band == at) for at in range(3)], (family, dscp)
                left.run("nft", "delete", "table", "inet", "count")


@pytest.mark.root
def test_an_urgent_packet_overtakes_what_waits_and_a_replaced_queue_is_told_of(ends, tmp_path):
    left, right = ends
    with (
        agent(tmp_path, CONFIG | {"resync": "60s"}, left) as (path, _),
        within(right.pid, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sink,
        within(left.pid, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as source,
    ):
        with client.connect(path, strict=True, timeout=5) as us:
            (port,) = us.status()["interfaces"]
        assert (port["mechanism"], port["differences"]) == ("pfifo_fast-map", [])
        assert port["bands"] == [0, 0, 0, 1, 1, 1, 2, 2]
        # 2 Mbit/s: 60 packets of 1,000 B wait for a quarter of a second.
        left.run("tc", "qdisc", "replace", "dev", "left", "root", "handle", "1:", "tbf", "rate", "2mbit",
                 "burst", "2000", "limit", "1000000")  # fmt: skip
        left.run("tc", "qdisc", "replace", "dev", "left", "parent", "1:1", "handle", "2:", "pfifo_fast")
        sink.bind(("10.9.0.2", 9))
        sink.settimeout(5)
        for cls, number in ((6, 60), (3, 5), (0, 5)):
            source.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, marking.dscp_of(cls) << 2)
            for _ in range(number):
                source.sendto(bytes([cls]) * 1000, ("10.9.0.2", 9))
        order = [sink.recv(2000)[0] for _ in range(70)]
        late = [cls for cls in order if cls != 6]
        assert late == [0] * 5 + [3] * 5, "in order of the bands"
        # The few that were under way before the urgent ones came.
        assert order.index(0) < 20, order
        done = command(*AGENT, "status", "--socket", path)
        assert done.returncode == 1 and "left: the NIC's own rate, 8 queues (pfifo_fast-map)" in done.stdout
        assert "its queues are tbf" in done.stdout


@pytest.mark.root
def test_the_table_is_repaired_three_times_then_left_and_goes_with_restore(ends, tmp_path):
    left, _ = ends
    before = everything(left)
    with agent(tmp_path, CONFIG, left) as (path, _):
        assert command(*AGENT, "status", "--socket", path).returncode == 0

        def state() -> dict:
            with client.connect(path, strict=True, timeout=5) as us:
                (port,) = us.status()["interfaces"]
                return port

        for repairs in (1, 2, 3):
            left.run("nft", "flush", "chain", "inet", bands.TABLE, "sort")
            assert "is not as it was set" in state()["differences"][0]
            wait_for(lambda n=repairs: state()["repairs"] == n)
        assert state()["conflict"] == "changed by somebody else 3 times in 10 minutes; left as it is"
        done = command(*left.argv(*AGENT, "restore", "--socket", path))
        assert done.returncode == 0 and "left: given back to the kernel's default" in done.stdout
        assert everything(left) == before
    assert everything(left) == before


@pytest.mark.root
def test_after_a_kill_the_map_stays_and_the_next_agent_or_cleanup_takes_it(ends, tmp_path):
    left, _ = ends
    before = everything(left)
    for _ in range(2):
        with contextlib.suppress(AssertionError), agent(tmp_path, CONFIG, left) as (path, process):
            loaded = everything(left)
            process.kill()
            process.wait()
        assert everything(left) == loaded != before
    done = command(*left.argv(*AGENT, "cleanup", "--orphans", "--socket", path, "--json"))
    assert done.returncode == 0 and json.loads(done.stdout)["tables"] == [bands.TABLE]
    assert everything(left) == before


@pytest.mark.root
def test_other_queues_are_refused_all_at_once_and_nothing_is_touched(tmp_path):
    with wire() as (left, _):
        before = everything(left)
        names = ("left", "gone")
        config = CONFIG | {"interfaces": [{"name": name, "scheduler": "pfifo_fast"} for name in names]}
        file = tmp_path / "agent.yaml"
        file.write_text(json.dumps(config | {"api": {"socket": str(tmp_path / "s")}}))
        for verb in ("run", "plan"):
            done = command(*left.argv(*AGENT, verb, "--config", str(file)))
            assert done.returncode == 3, done.stderr
            assert "interface left: its queues are noqueue, and scheduler pfifo_fast takes" in done.stderr
            assert "interface gone: not in this network namespace (there: left)" in done.stderr
        assert everything(left) == before


def test_without_such_an_interface_nft_is_not_asked(monkeypatch):
    monkeypatch.setattr("hostagent.nft.run", lambda *_, **__: pytest.fail("nft was asked"))
    config = parse(json.dumps({"version": 1}), "x")
    with open_netns() as link:
        made = Bands.of(Settled(config), link)
        assert (made.apply(), made.plan(), made.status(), made.restore()) == (0, {}, [], [])
        assert Ports.of(Settled(config), link).ports == []
    with pytest.raises(QueueError, match="pfifo_fast has no queues of its own"):
        parse(json.dumps(CONFIG), "x").interfaces[0].wanted(8, 1500)
