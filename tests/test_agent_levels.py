"""Levels of the tagging ladder that do not work say why, and what the working ones are made of."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import sys
from pathlib import Path

import pytest
from ladder_ends import config_of, group
from running_agent import command

from hostagent import bpf, cgroups, nft, patience
from hostagent.config import ConfigError, parse
from hostagent.hostmarks import HostMarks
from netsched.errors import CapabilityError, NetschedError

__all__ = ["group"]


def refuse(code: int):
    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


def host_config(*levels: str, path: str = "train"):
    text = {"version": 1, "mode": "mark", "ladder": levels, "cgroups": [{"path": path, "class": 0}]}
    return parse(json.dumps(text), "x")


@pytest.fixture
def made_up(monkeypatch):
    """A control group that is there as far as this module can tell."""
    monkeypatch.setattr(
        cgroups, "find", lambda name: cgroups.Cgroup(name, Path("/sys/fs/cgroup") / name, 1, 7)
    )


def test_the_first_level_that_works_is_taken_and_the_others_say_why_not(monkeypatch, made_up):
    monkeypatch.setattr(bpf, "_call", refuse(errno.EINVAL))
    monkeypatch.setattr(nft, "run", lambda *_, script=None: "")
    host = HostMarks.of(host_config("cgroup-bpf", "nft-cgroup"))
    assert host.level == "nft-cgroup"
    assert "CONFIG_CGROUP_BPF" in host.why["cgroup-bpf"]
    host = HostMarks.of(host_config("nft-cgroup", "cgroup-bpf"))
    assert host.level == "nft-cgroup" and host.why == {"cgroup-bpf": "not tried: nft-cgroup works"}


def test_where_no_level_works_the_agent_is_refused_with_every_missing_option(monkeypatch, made_up):
    def no_nft(*_: object, script: str | None = None) -> str:
        raise nft.NftError("nft: No such file or directory")

    monkeypatch.setattr(bpf, "_call", refuse(errno.EPERM))
    monkeypatch.setattr(nft, "run", no_nft)
    with pytest.raises(CapabilityError) as caught:
        HostMarks.of(host_config("cgroup-bpf", "nft-cgroup"))
    text = str(caught.value)
    assert "CAP_BPF" in text and "CONFIG_NFT_SOCKET" in text and "CONFIG_SOCK_CGROUP_DATA" in text
    with pytest.raises(CapabilityError, match="CONFIG_NF_TABLES"):
        HostMarks.of(parse("{version: 1, mode: mark, ladder: [nft-tuple]}", "x"))
    monkeypatch.undo()
    monkeypatch.setattr(nft.shutil, "which", lambda *_, path: None)
    with pytest.raises(CapabilityError, match="apt-get install nftables"):
        HostMarks.of(parse("{version: 1, mode: mark, ladder: [nft-tuple]}", "x"))


def test_a_group_that_is_not_there_is_named(tmp_path):
    done = command(sys.executable, "-m", "hostagent", "run", "--config", write(tmp_path, "no/such.group"))
    assert done.returncode in (1, 4) and len(done.stderr.splitlines()) == 1
    assert "cgroup no/such.group: " in done.stderr or "cgroup v2 is not mounted" in done.stderr
    assert not (tmp_path / "s").exists()


def write(place: Path, path: str) -> str:
    file = place / "agent.yaml"
    content = config_of("nft-cgroup", Path(path)) | {"api": {"socket": str(place / "s")}}
    content["cgroups"][0]["path"] = path
    file.write_text(json.dumps(content))
    return str(file)


def test_where_version_2_is_not_mounted_that_is_said(tmp_path):
    table = tmp_path / "mountinfo"
    table.write_text("30 1 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n")
    with pytest.raises(CapabilityError, match="cgroup v2 is not mounted"):
        cgroups.mount(table)
    table.write_text("31 1 0:26 / /sys/fs/cgroup\\040x rw,nosuid - cgroup2 none rw\n")
    assert cgroups.mount(table) == Path("/sys/fs/cgroup x")
    for wrong in ("", "/", "a/../b", "."):
        with pytest.raises(NetschedError, match="below the mount"):
            cgroups.find(wrong)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ladder: []", "ladder"),
        ("ladder: [descriptor, descriptor]", "ladder: descriptor is named twice"),
        ("ladder: [magic]", "ladder"),
        ("cgroups: [{path: a, class: 0}]", "cgroups: the ladder needs cgroup-bpf or nft-cgroup"),
        ("ladder: [nft-cgroup]\ncgroups: [{path: a, class: 9}]", "cgroups[0]: class = 9"),
        ("ladder: [nft-cgroup]\ncgroups: [{path: a, class: 0}, {path: a, class: 1}]", "a is named twice"),
        ('ladder: [nft-cgroup]\ncgroups: [{path: "a\\" accept", class: 0}]', "cgroups[0].path"),
        ("ladder: [nft-cgroup]\ncgroups: [{path: a, class: 0, clas: 1}]", "unknown key"),
        ("api: {limits: {messages: 5}}", "write 200/s"),
        ("api: {limits: {sockets: 0}}", "api.limits.sockets"),
        ("api: {lease: 0.5s}", "api.lease"),
    ],
)
def test_a_mistake_in_what_is_marked_how_is_one_line(text, says):
    with pytest.raises(ConfigError) as caught:
        parse(f"version: 1\n{text}", "x.yaml")
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_program_is_what_the_kernel_s_header_says():
    code = bpf.program(40)
    assert len(code) % 8 == 0
    first = struct.unpack_from("=BBhi", code, 0)
    assert first == (0xBF, 0x16, 0, 0), "r6 = r1: the context is kept over the calls"
    stores = [one for one in struct.iter_unpack("=BBhi", code) if one[0] == 0x62]
    assert [one[3] for one in stores] == [160, 0], "the TOS byte of DSCP 40, then priority 0"
    calls = [one[3] for one in struct.iter_unpack("=BBhi", code) if one[0] == 0x85]
    assert calls == [49] * 3
    levels = [one[3] for one in struct.iter_unpack("=BBhi", code) if one[:2] == (0xB7, 0x02)]
    assert levels == [socket.IPPROTO_IP, socket.IPPROTO_IPV6, socket.SOL_SOCKET], "the priority is last"


@pytest.mark.root
def test_where_a_group_takes_no_program_the_level_below_is_taken(group, monkeypatch):
    monkeypatch.setattr(bpf, "attach", lambda *_: bpf._call(28, b""))

    def refuse_links(command: int, attributes: bytes) -> int:
        raise CapabilityError("cgroup-bpf: CAP_BPF and CAP_NET_ADMIN are needed")

    loaded: list[str] = []
    monkeypatch.setattr(nft, "run", lambda *argv, script=None: loaded.append(script or "") or "")
    host = HostMarks.of(host_config("cgroup-bpf", "nft-cgroup", path=group.name))
    assert host.level == "cgroup-bpf" and host.table is None
    assert host.plan() == [f"cgroup {group.name}: class 0 (CS5) by cgroup-bpf"]
    monkeypatch.setattr(bpf, "_call", refuse_links)
    assert host.apply() == 1
    assert host.level == "nft-cgroup" and "CAP_BPF" in host.why["cgroup-bpf"]
    assert f'{group.name}" ip dscp cs0 ip dscp set cs5' in loaded[-2]
    assert host.restore() == []


def test_only_repairs_in_quick_succession_count(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(patience.time, "monotonic", lambda: now)
    host = HostMarks(parse("{version: 1}", "x"))

    class Table:
        def load(self) -> int:
            return 1

    host.table = Table()  # type: ignore[assignment]
    for _ in range(5):
        host.watch()
        now += 301
    assert host.conflict == ""
    for _ in range(2):
        host.watch()
    assert "3 times in 10 minutes" in host.conflict
