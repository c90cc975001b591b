"""Capabilities: found by trying, named with what provides them."""

from __future__ import annotations

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from netsched import kernel
from netsched.errors import CapabilityError
from netsched.kernel import Capability

HTB = Capability("htb", True, "CONFIG_NET_SCH_HTB", "queues", "no queues", "a kernel with CONFIG_NET_SCH_HTB")


def test_require_names_everything_missing_and_how_to_get_it():
    found = [HTB, replace(HTB, name="netem", present=False, config_option="CONFIG_NET_SCH_NETEM")]
    found.append(
        replace(
            HTB, name="mnexec", present=False, config_option="mininet", how_to_get="apt-get install mininet"
        )
    )
    kernel.require(["htb"], found)
    with pytest.raises(CapabilityError) as caught:
        kernel.require(["mnexec", "htb", "netem"], found)
    text = str(caught.value)
    assert "CONFIG_NET_SCH_NETEM" in text and "apt-get install mininet" in text and "htb (" not in text
    assert len(text.splitlines()) == 1 and caught.value.exit_code == 4


def test_a_capability_that_nobody_knows_is_a_mistake_of_the_program():
    with pytest.raises(KeyError, match="warp"):
        kernel.require(["warp"], [HTB])


@pytest.fixture(scope="module")
def found():
    return {one.name: one for one in kernel.probe()}


@pytest.mark.root
@pytest.mark.parametrize("kind", ["htb", "tbf", "prio", "ets", "mqprio", "netem", "bfifo"])
def test_the_probe_agrees_with_tc_about_qdiscs(found, kind):
    # tc says that the kind is unknown, or (known) that options are missing or nothing.
    script = f"ip link add va type veth peer name vb; tc qdisc add dev va root {kind}"
    options = {
        "tbf": " rate 1mbit burst 5k limit 9k",
        "htb": "",
        "ets": " strict 3",
        "netem": " delay 1ms",
        "bfifo": " limit 9000",
    }
    argv = ["unshare", "--net", "sh", "-c", script + options.get(kind, "")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
    assert ("unknown" not in done.stderr) is found[kind].present, done.stderr


@pytest.mark.root
@pytest.mark.parametrize("kind", ["u32", "flower", "matchall"])
def test_the_probe_agrees_with_tc_about_filters(found, kind):
    match = {"u32": "match u32 0 0", "flower": "", "matchall": ""}[kind]
    script = (
        "ip link add va type veth peer name vb; tc qdisc add dev va root handle 1: htb; "
        f"tc filter add dev va parent 1: protocol ip {kind} {match} flowid 1:1"
    )
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script], capture_output=True, check=False, timeout=20
    )
    assert (done.returncode == 0) is found[kind].present, done.stderr


@pytest.mark.root
def test_what_the_emulation_needs_is_here_and_every_entry_is_complete(found):
    # This machine runs the emulation's tests, so these cannot be missing on it.
    for name in ("root", "namespaces", "htb", "bfifo", "u32", "veth", "ip", "unshare"):
        assert found[name].present, name
    for one in found.values():
        assert one.needed_for and one.cost_if_missing and one.how_to_get
        assert one.config_option or one.name == "root"


@pytest.mark.root
def test_the_probe_leaves_nothing_in_this_namespace(found):
    def state():
        links = sorted(p.name for p in Path("/sys/class/net").iterdir())
        namespaces = Path("/run/netns")
        return links, sorted(namespaces.iterdir()) if namespaces.exists() else []

    before = state()
    kernel.probe()
    assert state() == before


@pytest.mark.root
def test_without_rights_the_probe_says_so_and_does_not_claim(monkeypatch):
    monkeypatch.setattr(kernel, "_is_root", lambda: False)
    found = {one.name: one for one in kernel.probe()}
    assert not found["root"].present and not found["htb"].present and found["ip"].present
    assert "run as root" in found["htb"].how_to_get


def test_a_kernel_without_nfnetlink_lacks_nft_and_the_other_answers_stand(monkeypatch):
    def socket_of_such_a_kernel(*_args):
        # netlink_create: a protocol that nobody has registered and no module provides.
        raise OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT))

    monkeypatch.setattr(kernel.socket, "socket", socket_of_such_a_kernel)
    assert kernel._nft() is False
