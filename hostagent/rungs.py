"""Which queues a port gets where the NIC itself is the bottleneck: the queue ladder.

    prio, ets   a band for each class; a queue discipline that the kernel may lack
    pfifo_fast  three bands; every kernel has it

`scheduler: auto` takes the first that works, one named in the configuration must work. Found out by asking
the kernel for queues that it has to refuse, so that nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from netsched import ports, strict_ports
from netsched.errors import CapabilityError
from netsched.netlink import Netlink
from netsched.strict import KINDS

if TYPE_CHECKING:
    from hostagent.config import Config
    from hostagent.interface import Interface

_MANY_QUEUES = "the NIC has many queues (mq), and a root over all of them would have them wait for one lock"


@dataclass(frozen=True)
class Settled:
    """A configuration without `auto`. `why`: of each interface that had it, why no rung above was taken."""

    config: Config
    why: Mapping[str, str] = field(default_factory=dict)


def settle(config: Config, link: Netlink) -> Settled:
    """Choose every interface's queues. CapabilityError naming each scheduler that the kernel lacks.

    An interface that is not there stays as it is: who looks it up says so.
    """
    there = link.interfaces()
    lacking = []
    for one in config.interfaces:
        if one.name not in there:
            continue
        for kind in KINDS:
            if kind == one.scheduler and (reason := strict_ports.missing(link, there[one.name].index, kind)):
                lacking.append(f"interface {one.name}: scheduler {kind}: {reason}; or write scheduler: auto")
    if lacking:
        raise CapabilityError("\n".join(lacking))
    return choose(config, link)


def choose(config: Config, link: Netlink) -> Settled:
    """Replace `auto` by the first rung that works; what is named stays, whether it works or not."""
    there = link.interfaces()
    chosen: list[Interface] = []
    why: dict[str, str] = {}
    for one in config.interfaces:
        rung = one
        if one.name in there and one.scheduler == "auto":
            rung, why[one.name] = _first(one, link, there[one.name].index)
        chosen.append(rung)
    return Settled(config.model_copy(update={"interfaces": tuple(chosen)}), why)


def _first(interface: Interface, link: Netlink, index: int) -> tuple[Interface, str]:
    """The first rung that works, and why none above it did."""
    passed: list[str] = []
    for kind in KINDS:
        reason = _MANY_QUEUES if "mq" in ports.kinds(link, index) else strict_ports.missing(link, index, kind)
        if not reason:
            return interface.model_copy(update={"scheduler": kind}), "; ".join(passed)
        passed.append(f"not {kind}: {reason}")
    return interface.model_copy(update={"scheduler": "pfifo_fast"}), "; ".join(passed)
