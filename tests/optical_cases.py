"""An optical switch between four ends, each a namespace of its own, for tests of circuits."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from namespaces import Space, space

from netsched import ports, qdisc
from netsched.emulation.optical import OpticalSwitch, Remote
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
        described = OpticalSwitch("ocs1", switch.pid, tuple(f"port{i}" for i in range(ENDS)), delay, all_stop)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-m", "netsched.emulation.optical"]
        process = subprocess.Popen(
            ["chrt", "--rr", "1", *argv, str(theirs.fileno()), json.dumps([asdict(described)])],
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        stack.callback(process.wait, 10)
        stack.callback(ours.close)
        remote = Remote(ours)
        assert remote.receive() == {"ready": True}
        yield Bench(switch, ends, remote, process, stack)


def shape(where: Space, names: list[str], rate: float) -> None:
    with open_netns(where.pid) as link:
        index = link.links()
        for name in names:
            ports.apply(link, index[name], qdisc.port(rate, 8))
