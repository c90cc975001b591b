"""Queues of strict bands, prio and ets: the exact messages everywhere, the kernel's own where it has them."""

from __future__ import annotations

import errno
import functools
import json
import os
import socket
from dataclasses import replace

import pytest
from agent_pages import AGENT
from namespaces import wire, with_ports, within
from running_agent import agent, command, wait_for

from hostagent import client, export
from hostagent.config import ConfigError, parse
from netsched import kernel, marking, ports, qdisc, strict, strict_ports, strict_wire
from netsched import qdisc_wire as wire_
from netsched.errors import CapabilityError
from netsched.netlink import NetlinkError, attribute, open_netns
from netsched.qdisc import QueueError

CONFIG = {"version": 1, "mode": "mark+queue", "resync": "1s"}
# What tc of iproute2 6.1 sends for `tc qdisc add dev lo root handle 7a1: KIND bands 8 [strict 8] priomap
# 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7`, as strace shows it: struct tcmsg, TCA_KIND, TCA_OPTIONS. After prio's
# options tc sends an empty attribute for multiqueue kernels of long ago, which no kernel reads any more.
HEAD = "00000000 01000000 0000a107 ffffffff 00000000"
OF_TC = {
    "prio": f"{HEAD} 0900 0100 7072696f00 000000 1800 0200 08000000 {'07' * 16}",
    "ets": f"{HEAD} 0800 0100 65747300 9800 0280 0500010008000000 0500020008000000 8400 0580"
    + " 0500060007000000" * 16,
}
MAP = {"prio": [], "ets": ["strict", "8"]}


@functools.cache
def has(kind: str) -> bool:
    return {one.name: one.present for one in kernel.probe()}[kind]


@pytest.fixture(params=strict.KINDS)
def kind(request):
    if not has(request.param):
        pytest.skip(f"this kernel lacks CONFIG_NET_SCH_{request.param.upper()}")
    return request.param


@pytest.fixture(params=strict.KINDS)
def lacking(request):
    if has(request.param):
        pytest.skip(f"this kernel has CONFIG_NET_SCH_{request.param.upper()}")
    return request.param


# ------------------------------------------------------------------ as data and as bytes


@pytest.mark.parametrize("kind", strict.KINDS)
def test_the_message_is_byte_for_byte_what_tc_sends(kind):
    assert strict_wire.qdisc(1, strict.port(kind)) == bytes.fromhex(OF_TC[kind])


@pytest.mark.parametrize("kind", strict.KINDS)
@pytest.mark.parametrize("queues", range(1, 9))
def test_what_is_written_is_what_is_read(kind, queues):
    want = strict.port(kind, queues)
    # A dump has the layout of the request (sch_prio.c prio_dump, sch_ets.c ets_qdisc_dump).
    read = strict_wire.read_qdisc(wire_.Message(strict_wire.qdisc(3, want)))
    assert read == (max(queues, 2), max(queues, 2), (queues - 1,) * 16)


def test_bands_that_share_are_told_from_strict_ones():
    # ets with 3 bands of which 1 is strict also dumps the quanta (TCA_ETS_QUANTA, 3) of the other two.
    quanta = attribute(3 | 0x8000, (attribute(4, (1514).to_bytes(4, "little"))) * 2)
    counts = attribute(1, b"\3") + attribute(2, b"\1")
    mapped = attribute(5 | 0x8000, attribute(6, b"\2") * 16)
    body = wire_.body(
        wire_.tcmsg(3, wire_.OUR_ROOT, wire_.ROOT), "ets", counts + quanta + mapped, strict_wire.NLA_F_NESTED
    )
    assert strict_wire.read_qdisc(wire_.Message(body)) == (3, 1, (2,) * 16)


@pytest.mark.parametrize("queues", range(1, 9))
def test_every_class_has_its_band_and_what_is_unmarked_the_last(queues):
    made = strict.port("prio", queues)
    # Bands are minors 1, 2, ...; prio takes no fewer than two of them (TCQ_MIN_PRIO_BANDS).
    assert made.bands == max(queues, 2) and set(made.band_of_priority) == {queues - 1}
    of_dscp = {one.match[0][2] >> 2: one.minor - 1 for one in made.filters if one.protocol == "ip"}
    marked = {marking.dscp_of(cls, queues): cls for cls in range(queues - 1)}
    assert of_dscp == (marked | {marking.CONTROL_DSCP: 0} if queues > 1 else {})
    tree = qdisc.port(1e8, queues)
    assert [(f.protocol, f.node, f.match) for f in made.filters] == [
        (f.protocol, f.node, f.match) for f in tree.filters
    ]


def test_differences_name_the_band_both_values_and_their_units():
    want = strict.port("prio")
    assert strict.differences(want, want) == []
    assert strict.differences(want, None) == ["root: no prio with handle 7a1: (wanted: 8 bands)"]
    (line,) = strict.differences(want, replace(want, limits=(5000, *want.limits[1:])))
    assert line == "band 7a1:1: bfifo 5 kB, wanted bfifo 4.194 MB"
    (line,) = strict.differences(want, replace(want, band_of_priority=(1,) * 16))
    assert line.startswith("root: prio with 8 bands, 8 of them strict, priorities to bands 1 1")
    (line,) = strict.differences(want, replace(want, filters=want.filters[1:]))
    assert line == "filter arp 1: missing, wanted everything to class 7a1:1"


def test_a_port_that_cannot_be_is_refused_with_the_value_and_its_unit():
    with pytest.raises(QueueError, match="queues = 9: a port has 1 to 8"):
        strict.port("prio", 9)
    with pytest.raises(QueueError, match=r"limit = 100 B: a queue holds at least one frame \(1514 B\)"):
        strict.port("ets", 8, limit=100)


def test_the_exported_commands_are_those_of_the_messages():
    for kind in strict.KINDS:
        root, first, *rest = export.tc("eth0", strict.port(kind, limit=5000))
        start = f"tc qdisc add dev eth0 root handle 7a1: {kind} bands 8".split()
        assert root == [*start, *MAP[kind], "priomap", *["7"] * 16]
        below = "tc qdisc add dev eth0 parent 7a1:1 handle 7a11: bfifo limit 5000"
        assert first == below.split()
        assert len(rest) == 7 + len(strict.port(kind).filters)
    # 40, class 0's DSCP, goes to the first band.
    assert "40 : 7a1:1" in export.nft({"eth0": strict.port("prio")})


# ------------------------------------------------------------------ does this kernel have it?


class Answering:
    """A netlink socket to a kernel that answers a request for a qdisc with this error, and has none."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.asked: list[bytes] = []

    def request(self, message: int, body: bytes, flags: int = 0) -> None:
        self.asked.append(body)
        if self.code:
            raise NetlinkError(self.code, "")

    def dump(self, message: int, body: bytes) -> list[bytes]:
        return []


@pytest.mark.parametrize("kind", strict.KINDS)
def test_a_kernel_is_asked_for_what_it_must_refuse(kind):
    # tc_modify_qdisc: ENOENT for a kind that it does not know; prio_tune and ets_qdisc_change: EINVAL for too
    # few bands.
    link = Answering(errno.ENOENT)
    missing = strict_ports.missing(link, 1, kind)
    assert missing == f"this kernel has no sch_{kind}: CONFIG_NET_SCH_{kind.upper()} is missing"
    bands = strict_wire.read_qdisc(wire_.Message(link.asked[0]))[0] if kind == "prio" else 0
    assert bands < 2
    assert strict_ports.missing(Answering(errno.EINVAL), 1, kind) == ""
    with pytest.raises(CapabilityError, match="CAP_NET_ADMIN"):
        strict_ports.missing(Answering(errno.EPERM), 1, kind)
    with pytest.raises(QueueError, match="that cannot be"):
        strict_ports.missing(Answering(0), 1, kind)


@pytest.mark.root
@pytest.mark.parametrize("kind", strict.KINDS)
def test_the_question_changes_nothing_and_agrees_with_the_probe(kind):
    with with_ports("eth0") as host:
        for root in ((), ("handle", "7a1:", "htb", "default", "1f"), ("handle", "1:", "pfifo_fast")):
            if root:
                host.run("tc", "qdisc", "replace", "dev", "eth0", "root", *root)
            before = host.run("tc", "-d", "qdisc", "show")
            with open_netns(host.pid) as link:
                assert (strict_ports.missing(link, link.links()["eth0"], kind) == "") is has(kind)
            assert host.run("tc", "-d", "qdisc", "show") == before


@pytest.mark.root
def test_by_name_the_missing_option_is_named_and_nothing_is_touched(lacking, tmp_path):
    with with_ports("eth0") as host:
        before = host.run("tc", "-d", "qdisc", "show")
        file = tmp_path / "agent.yaml"
        port = {"name": "eth0", "scheduler": lacking}
        file.write_text(json.dumps(CONFIG | {"interfaces": [port], "api": {"socket": str(tmp_path / "s")}}))
        for verb in ("run", "plan"):
            done = command(*host.argv(*AGENT, verb, "--config", str(file)))
            assert done.returncode == 4, done.stderr
            assert f"interface eth0: scheduler {lacking}: this kernel has no sch_{lacking}" in done.stderr
            assert f"CONFIG_NET_SCH_{lacking.upper()}" in done.stderr and "scheduler: auto" in done.stderr
        assert host.run("tc", "-d", "qdisc", "show") == before


@pytest.mark.root
def test_auto_takes_the_first_rung_that_works_and_says_why_none_above(tmp_path):
    with with_ports("eth0") as host:
        expected = next((kind for kind in strict.KINDS if has(kind)), "pfifo_fast-map")
        if expected == "pfifo_fast-map":
            # A veth has no queues by itself; a NIC has these.
            host.run("tc", "qdisc", "add", "dev", "eth0", "root", "pfifo_fast")
        before = host.run("tc", "-d", "qdisc", "show") + host.run("nft", "list", "ruleset")
        config = CONFIG | {"interfaces": [{"name": "eth0", "scheduler": "auto"}]}
        with agent(tmp_path, config, host) as (path, _):
            with client.connect(path, strict=True, timeout=5) as us:
                (port,) = us.status()["interfaces"]
            assert (port["mechanism"], port["differences"]) == (expected, [])
            for kind in strict.KINDS[: strict.KINDS.index(expected) if expected in strict.KINDS else None]:
                assert (
                    f"not {kind}: this kernel has no sch_{kind}: CONFIG_NET_SCH_{kind.upper()}" in port["why"]
                )
            done = command(*host.argv(*AGENT, "plan", "--config", str(tmp_path / "agent.yaml")))
            assert f"eth0: as it should be; scheduler {expected.removesuffix('-map')}" in done.stdout
            assert port["why"] in done.stdout
            done = command(*AGENT, "status", "--socket", path)
            assert done.returncode == 0 and f"({expected}): as it should be" in done.stdout
            assert port["why"] in done.stdout and "rate_bytes_per_second" not in port
        assert host.run("tc", "-d", "qdisc", "show") + host.run("nft", "list", "ruleset") == before


@pytest.mark.root
def test_auto_leaves_a_nic_with_many_queues_to_them(tmp_path):
    with with_ports() as host:
        host.ip("link", "add", "name", "many", "numtxqueues", "4", "type", "ifb")
        host.ip("link", "set", "many", "up")
        config = CONFIG | {"interfaces": [{"name": "many", "scheduler": "auto"}]}
        with agent(tmp_path, config, host) as (path, _), client.connect(path, strict=True, timeout=5) as us:
            (port,) = us.status()["interfaces"]
        assert port["mechanism"] == "pfifo_fast-map" and "one lock" in port["why"]


@pytest.mark.parametrize(
    ("port", "says"),
    [
        ({"scheduler": "prio", "rate": "1Gbit/s"}, "rate: scheduler prio has none: it goes at the NIC's own"),
        ({"scheduler": "ets", "floor": "1%"}, "floor: scheduler ets has none"),
        ({"scheduler": "auto", "burst": "1ms"}, "burst: scheduler auto has none"),
        ({"scheduler": "prio", "limit": "100B"}, "limit = 100 B"),
        ({"scheduler": "prio", "limit": "0B"}, "limit = 0 B"),
    ],
)
def test_what_a_scheduler_does_not_know_is_refused(port, says):
    with pytest.raises(ConfigError, match=says):
        parse(json.dumps(CONFIG | {"interfaces": [{"name": "eth0"} | port]}), "x")


# ------------------------------------------------------------------ where the kernel has them


@pytest.mark.root
@pytest.mark.parametrize("queues", [1, 2, 5, 8])
def test_the_queues_are_made_read_back_and_changed_in_place(kind, queues):
    with with_ports("eth0") as host, open_netns(host.pid) as link:
        before = host.run("tc", "-d", "qdisc", "show")
        index = link.links()["eth0"]
        other = strict.port(kind, 3, limit=20_000)
        for want in (strict.port(kind, queues), other, strict.port(kind, queues, limit=9000)):
            assert strict_ports.apply(link, index, want) > 0
            assert strict_ports.read_back(link, index) == want
            assert strict_ports.apply(link, index, want) == 0
        assert strict_ports.remove(link, index) and not strict_ports.remove(link, index)
        assert host.run("tc", "-d", "qdisc", "show") == before


@pytest.mark.root
def test_the_exported_commands_build_the_agent_s_own_queues(kind):
    with with_ports("eth0") as host, open_netns(host.pid) as link:
        want = strict.port(kind)
        for argv in export.tc("eth0", want):
            host.run(*argv)
        assert strict_ports.read_back(link, link.links()["eth0"]) == want


@pytest.mark.root
def test_every_class_is_sorted_into_its_band_over_both_families(kind):
    with wire() as (left, right), open_netns(left.pid) as link:
        index = link.links()["left"]
        strict_ports.apply(link, index, strict.port(kind))
        [peer] = json.loads(right.ip("-json", "link", "show", "right"))
        for family, address in ((socket.AF_INET, "10.9.0.2"), (socket.AF_INET6, "fd09::2")):
            level = (socket.IPPROTO_IP, socket.IP_TOS)
            if family == socket.AF_INET6:
                level = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
            # To ask for it may take a second, for which packets would wait above the queues.
            left.ip("neigh", "replace", address, "lladdr", peer["address"], "dev", "left", "nud", "permanent")
            with within(left.pid, lambda f=family: socket.socket(f, socket.SOCK_DGRAM)) as sock:
                for cls in range(8):
                    before = strict_ports.counters(link, index, 8).classes
                    sock.setsockopt(*level, marking.dscp_of(cls) << 2)
                    for _ in range(20):
                        sock.sendto(b"x" * 1000, (address, 9))
                    after = strict_ports.counters(link, index, 8).classes
                    gained = [b.bytes - a.bytes for a, b in zip(before, after, strict=True)]
                    assert gained[cls] >= 20_000 and max(gained[:cls] + gained[cls + 1 :]) < 5000, gained


@pytest.mark.root
def test_an_agent_owns_repairs_and_gives_back_such_queues(kind, tmp_path):
    with with_ports("eth0") as host:
        before = host.run("tc", "-d", "qdisc", "show")
        config = CONFIG | {"interfaces": [{"name": "eth0", "scheduler": kind}]}
        with agent(tmp_path, config, host) as (path, _):

            def state() -> dict:
                with client.connect(path, strict=True, timeout=5) as us:
                    (port,) = us.status()["interfaces"]
                    return port

            shown = state()
            assert (shown["mechanism"], shown["rate"]) == (kind, "the NIC's own rate")
            assert [one["class"] for one in shown["classes"]] == list(range(8))
            host.run(
                "tc", "filter", "del", "dev", "eth0", "parent", "7a1:", "protocol", "ip", "pref", "31248"
            )
            wait_for(lambda: state()["repairs"] == 1 and not state()["differences"])
        assert host.run("tc", "-d", "qdisc", "show") == before


@pytest.mark.root
def test_a_killed_agent_s_queues_are_taken_over_by_one_with_htb_and_cleaned_up(kind, tmp_path):
    with with_ports("eth0") as host, open_netns(host.pid) as link:
        index = link.links()["eth0"]
        before = host.run("tc", "-d", "qdisc", "show")
        strict_ports.apply(link, index, strict.port(kind))
        config = CONFIG | {"interfaces": [{"name": "eth0", "rate": "1Gbit/s"}], "on_stop": "keep"}
        with agent(tmp_path, config, host):
            assert ports.root_of(link, index) == "htb 7a1:"
        with agent(tmp_path, config | {"interfaces": [{"name": "eth0", "scheduler": kind}]}, host):
            assert ports.root_of(link, index) == f"{kind} 7a1:"
        done = command(*host.argv(*AGENT, "cleanup", "--orphans", "--socket", str(tmp_path / "s")))
        assert done.returncode == 0 and "eth0: queues removed" in done.stdout
        assert host.run("tc", "-d", "qdisc", "show") == before
        assert os.listdir(tmp_path) == ["agent.yaml"]  # noqa: PTH208


@pytest.mark.root
def test_an_urgent_packet_overtakes_what_waits(kind):
    # A veth has no rate at which anything could wait: the queues hang below one that a slow kernel fills.
    with wire() as (left, right):
        left.run("tc", "qdisc", "add", "dev", "left", "root", "handle", "1:", "tbf", "rate", "100kbit",
                 "burst", "2000", "limit", "1000000")  # fmt: skip
        (_, _, _, *root), *others = export.tc("left", strict.port(kind))
        at = root.index("root")
        left.run("tc", "qdisc", "replace", *root[:at], "parent", "1:1", *root[at + 1 :])
        for argv in others:
            left.run(*argv)
        with (
            within(right.pid, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sink,
            within(left.pid, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as source,
        ):
            sink.bind(("10.9.0.2", 9))
            sink.settimeout(5)
            for cls, number in ((7, 40), (6, 5), (3, 5), (0, 5)):
                source.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, marking.dscp_of(cls) << 2)
                for _ in range(number):
                    source.sendto(bytes([cls]) * 1000, ("10.9.0.2", 9))
            order = [sink.recv(2000)[0] for _ in range(55)]
        assert [cls for cls in order if cls != 7] == [0] * 5 + [3] * 5 + [6] * 5, "in order of the classes"
        # The few that were under way before the urgent ones came.
        assert order.index(0) < 20, order
