"""What the agent would set, as commands for people to read."""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from agent_pages import AGENT
from namespaces import with_ports
from running_agent import QUEUE, command

from hostagent import export
from netsched import marking, ports, qdisc
from netsched.netlink import open_netns


@pytest.fixture(scope="module")
def host():
    with with_ports("eth0") as made:
        yield made


@pytest.mark.root
@pytest.mark.parametrize(("rate", "queues"), [(1e6, 2), (100e6, 8), (10e9, 1), (40e9, 5)])
def test_the_exported_tc_commands_build_the_agent_s_own_tree(host, rate, queues):
    tree = qdisc.port(rate / 8, queues)
    for argv in export.tc("eth0", tree):
        host.run(*argv)
    with open_netns(host.pid) as link:
        index = link.links()["eth0"]
        actual = ports.read_back(link, index)
        ports.remove(link, index)
    assert actual is not None

    def without_bursts(one: qdisc.Tree) -> list[object]:
        leaves = [
            (leaf.minor, leaf.prio, leaf.shape.rate, leaf.shape.ceil, leaf.limit) for leaf in one.leaves
        ]
        return [one.default, leaves, one.filters, one.linklayer_ok]

    assert without_bursts(actual) == without_bursts(tree)
    for one, other in zip(actual.leaves, tree.leaves, strict=True):
        # tc counts a burst in bytes and rounds it to its clock's ticks; ours is in microseconds.
        assert one.shape.burst == pytest.approx(other.shape.burst, rel=0.01, abs=1)
        assert one.shape.cburst == pytest.approx(other.shape.cburst, rel=0.01, abs=1)


@pytest.mark.root
def test_the_exported_nft_rules_load_and_sort_as_the_filters_do(tmp_path, host):
    tree = qdisc.port(1e9 / 8, 8)
    (tmp_path / "rules.nft").write_text(export.nft({"eth0": tree}))
    host.ip("addr", "add", "10.7.0.1/24", "dev", "eth0")
    host.ip("link", "set", "eth0p", "up")
    host.ip("neigh", "add", "10.7.0.2", "lladdr", "02:00:00:00:00:02", "dev", "eth0")
    with open_netns(host.pid) as link:
        index = link.links()["eth0"]
        # Without the filters nothing but the rules can sort.
        ports.apply(link, index, qdisc.Tree(tree.default, tree.parent, tree.leaves, ()))
        host.run("nft", "-f", str(tmp_path / "rules.nft"))
        code = (
            "import socket,sys\n"
            "s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "for at, dscp in enumerate(map(int, sys.argv[1:])):\n"
            "    s.setsockopt(0, socket.IP_TOS, dscp << 2)\n"
            "    for _ in range(10 + at): s.sendto(b'x', ('10.7.0.2', 9))\n"
        )
        marks = [str(marking.dscp_of(cls)) for cls in range(8)]
        host.run(sys.executable, "-c", code, *marks)
        counted = ports.counters(link, index).classes
        host.run("nft", "delete", "table", "inet", export.TABLE)
        ports.remove(link, index)
    host.ip("addr", "del", "10.7.0.1/24", "dev", "eth0")
    # 10 packets of class 0, 11 of class 1 and so on; the last class may carry others of the host besides.
    assert [one.packets for one in counted[1:7]] == list(range(11, 17))
    assert counted[0].packets >= 10 and counted[7].packets >= 17


def test_export_prints_what_run_would_set(tmp_path):
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps(QUEUE))
    done = command(*AGENT, "export", "tc", "--config", str(file))
    assert done.returncode == 0, done.stderr
    first = shlex.split(done.stdout.splitlines()[0])
    assert first == shlex.split("tc qdisc add dev eth0 root handle 7a1: htb default 1f")
    shown = json.loads(command(*AGENT, "export", "tc", "--config", str(file), "--json").stdout)
    assert [shlex.join(argv) for argv in shown["interfaces"]["eth0"]] == done.stdout.splitlines()
    done = command(*AGENT, "export", "nft", "--config", str(file))
    assert 'oifname "eth0" meta priority set ip dscp map { 44 : 7a1:10, 40 : 7a1:10,' in done.stdout
