"""Which levels of the tagging ladder work on this machine, found out by trying, for `doctor`.

Nothing is changed: the kernel checks the BPF program and the nft rules without keeping them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hostagent import bpf, cgroups, ladder, peers, retro
from hostagent.cgroups import Cgroup
from hostagent.nftmarks import NftMarks
from netsched import marking
from netsched.errors import NetschedError
from netsched.kernel import Capability

_COST: Final = "jobs pass their sockets, or mark them themselves"


def _by_program() -> None:
    cgroups.mount()
    bpf.check()


def _by_group() -> None:
    # The root stands for any group: that no packet is of one at depth 1 with its number is no matter here.
    root = cgroups.mount()
    NftMarks(marking.CLASSES, ((Cgroup("", root, 1, root.stat().st_ino), 0),), 1.0).check()


def _by_tuple() -> None:
    NftMarks(marking.CLASSES, (), 1.0).check()


_TRIES: Final[Mapping[str, tuple[Callable[[], None], str, str]]] = {
    ladder.CGROUP_BPF: (_by_program, "CONFIG_CGROUP_BPF", "marking a cgroup's connections, SYN included"),
    ladder.NFT_CGROUP: (_by_group, "CONFIG_NFT_SOCKET", "marking a cgroup's packets"),
    ladder.NFT_TUPLE: (_by_tuple, "CONFIG_NF_TABLES_INET", "marking connections by address"),
    ladder.PIDFD: (retro.check, "pidfd_getfd, Linux 5.6", "marking connections of processes that do not ask"),
}


def probe() -> tuple[Capability, ...]:
    """Every level but those that any process has, and what tells who asks."""
    found = []
    for level, (attempt, option, needed) in _TRIES.items():
        try:
            attempt()
            why = ""
        except (NetschedError, OSError) as error:
            why = str(error)
        found.append(Capability(f"ladder {level}", not why, option, needed, _COST, why))
    return (*found, _peer_handle())


def _peer_handle() -> Capability:
    try:
        peers.check()
        why = ""
    except NetschedError as error:
        why = str(error)
    needed = "telling a job's process from a later one with its number"
    cost = "status and restore name the process number of the time of connecting (SO_PEERCRED)"
    return Capability("peer pidfd", not why, "SO_PEERPIDFD, Linux 6.5", needed, cost, why)
