"""Which way a socket got its mark, and why not by a better one: the tagging ladder, in words.

First available wins. The order is by what a level costs and covers: the job's own process needs no right at
all and knows its sockets; each level below needs more and knows less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hostagent.ledger import Record
from hostagent.sockdiag import Found
from netsched.marking import name_of

SELF, DESCRIPTOR = "self", "descriptor"


@dataclass(frozen=True)
class Level:
    """One way to mark. `built`: this agent has it; `absent`: why it was not taken where it is not built."""

    name: str
    means: str
    built: bool
    absent: str = ""


LADDER: Final = (
    Level(SELF, "the job's process marks its own socket", True),
    Level(DESCRIPTOR, "the job passes the descriptor to the agent", True),
    Level("cgroup-bpf", "a BPF program marks at connect", False, "this agent loads no BPF programs"),
    Level("nft-cgroup", "an nft rule marks a cgroup's packets", False, "this agent loads no nft rules"),
    Level("nft-tuple", "an nft set marks a connection's packets", False, "this agent loads no nft rules"),
    Level("pidfd", "the agent takes the descriptor by pidfd_getfd", False, "off: it needs ptrace rights"),
)


@dataclass(frozen=True)
class Step:
    """One level's verdict for one socket."""

    level: str
    means: str
    chosen: bool
    why: str


def level_of(record: Record | None, found: Found | None) -> str:
    """The level that marked a socket: the agent's record, else the mark itself; "" if nothing did."""
    if record is not None:
        return record.level
    return SELF if found is not None and found.dscp != 0 else ""


def explain(level: str) -> list[Step]:
    """Every level with its verdict, for a socket that `level` marked ("": none did)."""
    steps = []
    won = False
    for one in LADDER:
        chosen = one.name == level
        if chosen:
            why = one.means
        elif won:
            why = "not tried: a level above marked the socket"
        elif not one.built:
            why = one.absent
        elif one.name == SELF:
            why = (
                "the socket carried no mark of its process"
                if not level
                else "the job asked the agent instead"
            )
        else:
            why = "the job has not passed this socket"
        won |= chosen
        steps.append(Step(one.name, one.means, chosen, why))
    return steps


def describe(record: Record | None, found: Found | None) -> dict[str, Any]:
    """One socket for the verb `explain`: what it should carry, what it does, and by which level."""
    shown: dict[str, Any] = {
        "cookie": record.cookie if record is not None else 0 if found is None else found.cookie,
        "job": "" if record is None else record.job,
        "class": None if record is None else record.cls,
        "dscp_set": None if record is None else record.dscp,
        "dscp_now": None if found is None else found.dscp,
        "level": level_of(record, found),
        "note": _note(record, found),
    }
    if found is not None:
        shown |= {"local": _show(found.local), "peer": _show(found.peer), "family": found.family}
    return shown


def _note(record: Record | None, found: Found | None) -> str:
    if record is None:
        marked = found is not None and found.dscp != 0
        return "this agent has not marked it; its process has" if marked else "nothing has marked it"
    if found is None:
        return "in another network namespace" if not record.here else "it has ended"
    if found.dscp != record.dscp:
        return f"its process has changed the mark to {name_of(found.dscp)} since"
    return ""


def _show(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
