"""An agent lives for months: what comes and goes around it neither ends it nor counts as somebody's will."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import pytest
from agent_pages import AGENT, free_port, get
from namespaces import space, with_ports
from running_agent import agent, command

from hostagent import bands, cgroups, closing, http, nft, nftmarks
from hostagent.bands import Bands
from hostagent.config import parse
from hostagent.hostmarks import HostMarks
from hostagent.queues import Ports
from hostagent.quota import Quota
from hostagent.rungs import Settled
from hostagent.server import Server
from netsched.errors import CapabilityError
from netsched.netlink import open_netns

PORTS = [{"name": name, "rate": "100Mbit/s"} for name in ("eth0", "eth1")]


def settled(**more: object) -> Settled:
    return Settled(parse(json.dumps({"version": 1, "mode": "mark+queue", **more}), "x"))


class Apart:
    """A network namespace in which programs also have mounts of their own."""

    def __init__(self, inner) -> None:
        self.inner = inner

    def argv(self, *argv: str) -> list[str]:
        return self.inner.argv("unshare", "--mount", *argv)


def nft_program() -> str:
    found = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin")
    assert found is not None
    return str(Path(found).resolve())


@pytest.mark.root
def test_an_agent_outlives_that_nft_is_away_and_goes_on_when_it_is_back(tmp_path):
    with space() as host:
        host.ip("link", "add", "left", "type", "veth", "peer", "name", "right")
        host.run("tc", "qdisc", "add", "dev", "left", "root", "pfifo_fast")
        port = free_port()
        config = {"version": 1, "mode": "mark+queue", "resync": "1s"}
        config |= {"interfaces": [{"name": "left", "scheduler": "pfifo_fast"}]}
        config |= {"metrics": {"listen": f"127.0.0.1:{port}"}}
        with agent(tmp_path, config, Apart(host)) as (path, process):
            within = host.argv("nsenter", "-t", str(process.pid), "-m")
            pages = [*within, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}"]
            status = [*within, *AGENT, "status", "--socket", path]
            assert command(*within, "mount", "--bind", "/dev/null", nft_program()).returncode == 0
            for page, code in (("metrics", "200"), ("readyz", "503"), ("healthz", "200")):
                assert command(*pages, f"http://127.0.0.1:{port}/{page}").stdout == code
            done = command(*status)
            assert done.returncode == 1 and "left: " in done.stdout and "nft is not installed" in done.stdout
            assert command(*within, "umount", nft_program()).returncode == 0
        assert bands.TABLE not in host.run("nft", "list", "tables")


def test_a_table_that_was_not_seen_is_neither_gone_nor_somebody_else_s(monkeypatch):
    kernel: list[str] = []
    away = CapabilityError("nft is not installed")

    def run(*argv: str, script: str | None = None) -> str:
        if kernel[-1:] == ["away"]:
            raise away
        if "list" in argv:
            return table.script()
        kernel.append(script or "")
        return ""

    monkeypatch.setattr(nft, "run", run)
    table = Bands(("eth0",), 8, link=None)  # type: ignore[arg-type]
    host = HostMarks(parse("{version: 1}", "x"))
    host.table = nftmarks.NftMarks(8, (), 60.0)
    for watched, read in ((table, "script"), (host, "table")):
        kernel[:] = ["away"]
        watched.watch()
        assert watched.failing == str(away) and watched.conflict == "", read
    kernel.clear()
    table.watch()
    assert (table.failing, table.conflict, kernel) == ("", "", []), "it was there all the time"


@pytest.mark.root
def test_cleanup_sees_the_table_of_marks_where_the_package_with_nft_is_gone(tmp_path):
    with space() as host:
        host.run("nft", "add", "table", "inet", nftmarks.TABLE)
        hidden = f'mount --bind /dev/null {nft_program()}; exec "$@"'
        asks = Apart(host).argv("sh", "-c", hidden, "-", *AGENT, "cleanup", "--socket", str(tmp_path / "s"))
        done = command(*asks)
        assert done.returncode == 1 and f"nft table inet {nftmarks.TABLE}: left behind" in done.stdout
        done = command(*asks, "--orphans")
        assert done.returncode == 4 and "nft is not installed" in done.stderr
        done = command(*host.argv(*AGENT, "cleanup", "--orphans", "--socket", str(tmp_path / "s")))
        assert done.returncode == 0 and nftmarks.TABLE not in host.run("nft", "list", "tables")


@pytest.mark.root
def test_an_interface_that_comes_back_is_taken_up_and_one_with_another_name_is_told_of():
    with with_ports("eth0", "eth1") as host, open_netns(host.pid) as link:
        owned = Ports.of(settled(interfaces=PORTS), link)
        owned.apply()

        def said() -> list[str]:
            owned.watch()
            return [port.get("error", "") or "; ".join(port["differences"]) for port in owned.status()]

        host.ip("link", "set", "eth1", "down")
        host.ip("link", "set", "eth1", "name", "wan1")
        other_name = "is called wan1 now; its queues stay: restart the agent with the name meant"
        assert said() == ["", other_name]
        host.ip("link", "del", "eth0")
        assert said() == ["is gone: not in this network namespace (there: eth1p, wan1)", other_name]
        host.ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth0p")
        # Somebody was there first: it is left alone, and taken when it is free.
        host.run("tc", "qdisc", "add", "dev", "eth0", "root", "handle", "9:", "htb")
        assert "set by somebody else" in said()[0]
        host.run("tc", "qdisc", "del", "dev", "eth0", "root")
        assert said() == ["", other_name]
        assert [port["conflict"] for port in owned.status()] == ["", ""]
        assert [port["repairs"] for port in owned.status()] == [0, 0], "nobody has changed anything of ours"
        host.ip("link", "set", "wan1", "name", "eth1")
        assert said() == ["", ""]
        assert sorted(owned.restore()) == ["eth0", "eth1"]
        assert "7a1:" not in host.run("tc", "qdisc", "show")


def test_a_group_that_was_away_for_a_while_is_marked_again(monkeypatch):
    there = {"a": 1, "b": 2}

    def find(name: str) -> cgroups.Cgroup:
        if name not in there:
            raise CapabilityError(f"cgroup {name}: No such file or directory")
        return cgroups.Cgroup(name, Path("/sys/fs/cgroup") / name, 1, there[name])

    monkeypatch.setattr(cgroups, "find", find)
    monkeypatch.setattr(nft, "run", lambda *_, script=None: "")
    marked = [{"path": name, "class": 0} for name in there]
    text = {"version": 1, "mode": "mark", "ladder": ["nft-cgroup"], "cgroups": marked}
    host = HostMarks.of(parse(json.dumps(text), "x"))
    del there["a"]
    host.watch()
    assert [one["cgroup"] for one in host.status()["cgroups"]] == ["b"] and host.status()["absent"] == ["a"]
    there["a"] = 3
    host.watch()
    assert [(group.name, group.number) for group, _ in host.groups] == [("a", 3), ("b", 2)]
    assert host.status()["absent"] == [] and '"a" ip dscp cs0' in host.table.script()


def test_where_no_thread_is_to_be_had_descriptors_are_closed_all_the_same(monkeypatch):
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(closing._thread, "start_new_thread", none)
    closer, done = closing.Closer(), []
    for _ in range(20):
        closer.beside(lambda: done.append(1), uid=5)
    assert len(done) == 20 and not closer.is_busy(5)


def test_who_asks_for_pages_without_end_has_a_tenth_of_the_agent_s_time(tmp_path):
    made: list[float] = []

    def slow() -> http.Page:
        made.append(time.monotonic())
        time.sleep(0.02)
        if len(made) == 1:
            raise RuntimeError("a failure is a page as well")
        return http.Page(200, f"page {len(made)}\n")

    def none(*_: object) -> dict:
        return {}

    server = Server(str(tmp_path / "s"), False, bool, none, quota=Quota(), gone=lambda _: None)
    port, over = free_port(), threading.Event()
    pages = http.Http(server, ("127.0.0.1", port), {"/slow": slow})

    def serve() -> None:
        while not over.is_set():
            server.serve(0.01)

    loop = threading.Thread(target=serve)
    loop.start()
    try:
        begin, answers = time.monotonic(), []
        while time.monotonic() < begin + 0.5:
            answers.append(get(port, "/slow")[::2])
    finally:
        over.set()
        loop.join()
        pages.close()
        server.close()
    # 20 ms of making and 180 ms of rest: 3 times in half a second, 4 if the clocks are against us.
    assert 2 <= len(made) <= 4 and len(answers) > 20
    assert answers[0] == (500, "the agent failed at this page; its log says why\n")
    assert answers[-1] == (200, f"page {len(made)}\n")
