"""What users of other agents and tc tools complain of, where no other test is about it."""

from __future__ import annotations

import json
import socket

import pytest
from agent_pages import AGENT
from namespaces import space, wire, with_ports, within
from running_agent import QUEUE, agent, command

from hostagent import client
from netsched import ports, qdisc
from netsched.netlink import open_netns

pytestmark = pytest.mark.root

SO_RCVBUFFORCE = 33


def test_no_sysctl_is_changed_while_an_agent_lives_or_afterwards(tmp_path):
    with with_ports("eth0") as host:

        def settings() -> list[str]:
            lines = host.run("sysctl", "-a", "-r", "^net[.]").splitlines()
            # How many connections are tracked is a count and no setting.
            return [line for line in lines if not line.startswith("net.netfilter.nf_conntrack_count")]

        before = settings()
        assert len(before) > 100
        config = QUEUE | {"ladder": ["descriptor", "nft-tuple"]}
        with agent(tmp_path, config, host):
            assert "htb 7a1:" in host.run("tc", "qdisc", "show")
            assert settings() == before
        assert settings() == before


def test_below_mq_every_queue_is_compared(tmp_path):
    with space() as host:
        host.ip("link", "add", "name", "many", "numtxqueues", "4", "type", "ifb")
        host.ip("link", "set", "many", "up")
        host.run("tc", "qdisc", "replace", "dev", "many", "root", "handle", "1:", "mq")
        config = QUEUE | {"interfaces": [{"name": "many", "scheduler": "pfifo_fast"}], "resync": "60s"}
        with agent(tmp_path, config, host) as (path, _), client.connect(path, strict=True, timeout=5) as us:
            assert us.status()["interfaces"][0]["differences"] == []
            host.run("tc", "qdisc", "replace", "dev", "many", "parent", "1:3", "bfifo", "limit", "9000")
            assert us.status()["interfaces"][0]["differences"] == ["its queues are bfifo"]


def test_the_queues_of_a_bridge_are_refused(tmp_path):
    with space() as host:
        host.ip("link", "add", "name", "br0", "type", "bridge")
        before = host.run("tc", "qdisc", "show")
        file = tmp_path / "agent.yaml"
        one = {"name": "br0", "rate": "1Gbit/s"}
        file.write_text(json.dumps(QUEUE | {"interfaces": [one], "api": {"socket": str(tmp_path / "s")}}))
        done = command(*host.argv(*AGENT, "run", "--config", str(file)))
        assert done.returncode == 3
        assert "interface br0: a bridge: name its members, whose queues are what fills" in done.stderr
        assert host.run("tc", "qdisc", "show") == before


def test_with_a_txqueuelen_of_0_nothing_is_dropped():
    # A qdisc that takes its length from the interface would have 0 packets of room.
    with wire() as (left, right), open_netns(left.pid) as link:
        left.ip("link", "set", "left", "txqueuelen", "0")
        index = link.links()["left"]
        ports.apply(link, index, qdisc.port(100e6 / 8))
        with (
            within(right.pid, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sink,
            within(left.pid, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as source,
        ):
            sink.bind(("10.9.0.2", 9))
            sink.settimeout(5)
            for _ in range(20):
                source.sendto(b"x" * 1000, ("10.9.0.2", 9))
            assert [len(sink.recv(2000)) for _ in range(20)] == [1000] * 20
        count = ports.counters(link, index)
        assert sum(one.drops for one in count.classes) == 0 and count.direct_packets == 0


def test_what_waits_is_sent_before_the_queues_go():
    with wire() as (left, right), open_netns(left.pid) as link:
        index = link.links()["left"]
        ports.apply(link, index, qdisc.port(2e6 / 8))
        with (
            within(right.pid, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sink,
            within(left.pid, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as source,
        ):
            # Nobody reads meanwhile: there is room for all of it.
            sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
            sink.bind(("10.9.0.2", 9))
            sink.settimeout(5)
            # 100 packets of 1 kB are 0.4 s of 2 Mbit/s.
            for number in range(100):
                source.sendto(bytes([number]) * 1000, ("10.9.0.2", 9))
            assert sum(one.backlog_packets for one in ports.counters(link, index).classes) > 20
            assert ports.remove(link, index, drain_s=2.0)
            assert [sink.recv(2000)[0] for _ in range(100)] == list(range(100))
        assert ports.root_of(link, index) == "noqueue"
