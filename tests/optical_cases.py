"""An optical switch between four ends, each a namespace of its own, for tests of circuits."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from namespaces import Space, space

from netsched import ports, qdisc
from netsched.emulation.detours import End
from netsched.emulation.optical import OpticalSwitch, Switching
from netsched.emulation.remote import Remote, write_config
from netsched.netlink import open_netns

ENDS = 4
MAC = "02:00:00:00:00:01"
"""Of every end: an optical switch does not rewrite addresses."""


@dataclass(frozen=True)
class Bench:
    """`ends[i]` has address 10.8.0.(i+1) and is at port i of the switch."""

    switch: Space
    ends: tuple[Space, ...]
    remote: Remote
    process: subprocess.Popen[bytes]
    stack: contextlib.ExitStack

    def keep(self, sock: socket.socket) -> socket.socket:
        """Closed with the bench."""
        return self.stack.enter_context(sock)

    def next(self) -> Switching:
        """What has happened to the switch, once it has."""
        before = len(self.remote.log)
        while len(self.remote.log) == before:
            self.remote.hear()
        (found,) = self.remote.log[before:]
        return found

    def set(self, *pairs: tuple[int, int], at: float = 0.0) -> None:
        """Join these ends, both ways, and no others."""
        self.remote.command([(at, [matching(*pairs)])])


def matching(*pairs: tuple[int, int]) -> list[int]:
    out = [-1] * ENDS
    for a, b in pairs:
        out[a], out[b] = b, a
    return out


def address(end: int) -> str:
    return f"10.8.0.{end + 1}"


@contextlib.contextmanager
def bench(delay: float, *, all_stop: bool = False, rate: float | None = None) -> Iterator[Bench]:
    """The switch, dark, with its process running. `rate`: bytes/s of frames of each end's and each port."""
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(space())
        ends = tuple(stack.enter_context(space()) for _ in range(ENDS))
        for i, end in enumerate(ends):
            end.ip(*f"link add nic address {MAC} type veth peer name port{i} netns {switch.pid}".split())
            end.ip(*f"addr add {address(i)}/24 dev nic".split())
            end.ip("link", "set", "nic", "up", "gso_max_segs", "1")
            switch.ip(*f"link set port{i} up gso_max_segs 1".split())
            for j in range(ENDS):
                if j != i:
                    end.ip(*f"neigh add {address(j)} lladdr {MAC} dev nic nud permanent".split())
        if rate is not None:
            shape(switch, [f"port{i}" for i in range(ENDS)], rate)
            for end in ends:
                shape(end, ["nic"], rate)
        interfaces = tuple(f"port{i}" for i in range(ENDS))
        described = OpticalSwitch("ocs1", switch.pid, interfaces, tuple(range(ENDS)), delay, all_stop)
        config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "optical.json"
        # No routes: the ends have one way only.
        write_config(config, [described], [End(end.pid, ("nic",), ((),), False) for end in ends])
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-m", "netsched.emulation.optical"]
        process = subprocess.Popen(
            ["chrt", "--rr", "1", *argv, str(theirs.fileno()), str(config)],
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        stack.callback(process.wait, 10)
        stack.callback(ours.close)
        remote = Remote(ours)
        assert remote.hear() == {"ready": True}
        yield Bench(switch, ends, remote, process, stack)


def shape(where: Space, names: list[str], rate: float) -> None:
    with open_netns(where.pid) as link:
        index = link.links()
        for name in names:
            ports.apply(link, index[name], qdisc.port(rate, 8))
