"""Which way a socket got its mark, and why not by another one: the tagging ladder, in words.

The configuration says which levels an agent may use and in which order; the first that works is taken. By
default those that take no right at all: the job passes its descriptors, or marks its own sockets. Passing
comes first, because the agent then reads back itself what the kernel has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hostagent.ledger import Record
from hostagent.sockdiag import Found
from netsched.marking import name_of

SELF: Final = "self"
DESCRIPTOR: Final = "descriptor"
CGROUP_BPF: Final = "cgroup-bpf"
NFT_CGROUP: Final = "nft-cgroup"
NFT_TUPLE: Final = "nft-tuple"
PIDFD: Final = "pidfd"
LEVELS: Final = (SELF, DESCRIPTOR, CGROUP_BPF, NFT_CGROUP, NFT_TUPLE, PIDFD)
DEFAULT_LADDER: Final = (DESCRIPTOR, SELF)
PROVEN: Final = frozenset({DESCRIPTOR, PIDFD, NFT_TUPLE})
"""Levels at which the kernel has said whose the socket is; of SELF there is only the user's word."""

_MEANS: Final[Mapping[str, str]] = {
    SELF: "the job's process marks its own socket",
    DESCRIPTOR: "the job passes the descriptor to the agent",
    CGROUP_BPF: "a BPF program marks the cgroup's connections before their first packet",
    NFT_CGROUP: "an nft rule marks a cgroup's packets",
    NFT_TUPLE: "an nft set marks a connection's packets by its addresses",
    PIDFD: "the agent takes the descriptor by pidfd_getfd",
}
_NEEDS: Final[Mapping[str, str]] = {
    SELF: "the socket carried no mark of its process",
    DESCRIPTOR: "the job has not passed this socket",
    CGROUP_BPF: "the socket's cgroup is none of the configuration's",
    NFT_CGROUP: "the socket's cgroup is none of the configuration's",
    NFT_TUPLE: "nobody has named this connection",
    PIDFD: "nobody has named this socket's process",
}


@dataclass(frozen=True)
class Step:
    """One level's verdict for one socket."""

    level: str
    means: str
    chosen: bool
    why: str


@dataclass(frozen=True)
class ByHost:
    """What the host puts on a socket's packets because of its control group."""

    level: str
    dscp: int
    cgroup: str


def level_of(record: Record | None, found: Found | None, by_host: ByHost | None = None) -> str:
    """The level that marked a socket: the agent's record, else the mark itself; "" if nothing did."""
    if record is not None:
        return record.level
    if by_host is not None:
        return by_host.level
    return SELF if found is not None and found.dscp != 0 else ""


def explain(
    level: str, allowed: Sequence[str] = DEFAULT_LADDER, why: Mapping[str, str] | None = None
) -> list[Step]:
    """Every level with its verdict, for a socket that `level` marked ("": none did).

    `allowed` are the levels of the configuration, in its order; `why` is known of levels that do not work.
    """
    reasons = why or {}
    order = [*allowed, *(one for one in LEVELS if one not in allowed)]
    steps = []
    won = False
    for name in order:
        chosen = name == level
        if chosen:
            text = _MEANS[name]
        elif name not in allowed:
            text = "off: the configuration's ladder does not name it"
        elif name in reasons:
            text = reasons[name]
        elif won:
            text = "not tried: a level above marked the socket"
        else:
            text = _NEEDS[name]
        won |= chosen
        steps.append(Step(name, _MEANS[name], chosen, text))
    return steps


def describe(record: Record | None, found: Found | None, by_host: ByHost | None = None) -> dict[str, Any]:
    """One socket for the verb `explain`: what it should carry, what it does, and by which level."""
    now = None if found is None else found.dscp
    if found is not None and record is None and by_host is not None and by_host.level == NFT_CGROUP:
        now = by_host.dscp
    if found is not None and record is not None and record.level == NFT_TUPLE:
        now = record.dscp
    shown: dict[str, Any] = {
        "cookie": record.cookie if record is not None else 0 if found is None else found.cookie,
        "job": "" if record is None else record.job,
        "group": "" if record is None else record.group,
        "class": None if record is None else record.cls,
        "dscp_set": None if record is None else record.dscp,
        "dscp_now": now,
        "level": level_of(record, found, by_host),
        "note": _note(record, found, by_host),
    }
    if found is not None:
        shown |= {"local": _show(found.local), "peer": _show(found.peer), "family": found.family}
    return shown


def _note(record: Record | None, found: Found | None, by_host: ByHost | None) -> str:
    if record is None:
        if by_host is not None:
            return f"its control group {by_host.cgroup} is marked"
        marked = found is not None and found.dscp != 0
        return "this agent has not marked it; its process has" if marked else "nothing has marked it"
    if found is None:
        return "in another network namespace" if not record.here else "it has ended"
    if record.level != NFT_TUPLE and found.dscp != record.dscp:
        return f"its process has changed the mark to {name_of(found.dscp)} since"
    return ""


def _show(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
