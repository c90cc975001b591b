"""The ports whose queues an agent owns: refuse first, then apply, then watch, and give back at the end.

All ports or none: an agent that fails half-way undoes what it did, so that a wrong second interface does
not leave the first one shaped.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hostagent import logs, owned
from hostagent.owned import Wanted
from hostagent.patience import Repairs
from netsched import ports
from netsched.errors import NetschedError
from netsched.netlink import Netlink
from netsched.qdisc import QueueError

if TYPE_CHECKING:
    from hostagent.rungs import Settled

_LOG: Final = logging.getLogger(__name__)
_SHOWN: Final = 4
DRAIN_S: Final = 2.0
_MASTERS: Final = frozenset({"bond", "team", "bridge"})


@dataclass
class Port:
    """One owned port.

    ours      the queues are there because of us
    why       why these queues and none higher on the ladder
    conflict  why we no longer touch it
    """

    name: str
    index: int
    want: Wanted
    queues: int
    why: str = ""
    ours: bool = False
    repairs: Repairs = field(default_factory=Repairs)
    conflict: str = ""


@dataclass
class Ports:
    """The ports of a configuration, over one netlink socket."""

    link: Netlink
    ports: list[Port] = field(default_factory=list)

    @classmethod
    def of(cls, settled: Settled, link: Netlink) -> Ports:
        """Look the interfaces up. QueueError naming every one that is missing or belongs to somebody else."""
        links, wrong = link.interfaces(), []
        made, config = cls(link), settled.config
        for interface in config.interfaces:
            if interface.scheduler == "pfifo_fast":
                continue
            name = interface.name
            found = links.get(name)
            if found is None:
                there = ", ".join(sorted(set(links) - {"lo"})) or "none but lo"
                wrong.append(f"interface {name}: not in this network namespace (there: {there})")
                continue
            if found.kind in _MASTERS:
                wrong.append(
                    f"interface {name}: a {found.kind}: name its members, whose queues are what fills"
                )
                continue
            try:
                ports.check_ours(link, found.index)
                want, why = interface.wanted(config.queues, found.mtu), settled.why.get(name, "")
                made.ports.append(Port(name, found.index, want, config.queues, why))
            except QueueError as error:
                wrong.append(f"interface {name}: {error}")
        if wrong:
            raise QueueError("\n".join(wrong))
        return made

    def plan(self) -> dict[str, list[str]]:
        """What is not as it should be, by interface; nothing is changed."""
        return {p.name: owned.differences(self.link, p.index, p.want) for p in self.ports}

    def apply(self) -> int:
        """Make every port as it should be; the number of changes. On an error everything is given back."""
        changes = 0
        try:
            for port in self.ports:
                # Set before: a tree that is half there is ours to remove as well.
                port.ours = True
                changes += owned.apply(self.link, port.index, port.want)
        except NetschedError:
            self.restore()
            raise
        return changes

    def watch(self) -> None:
        """Repair what drifted; leave a port to whoever replaced its root or keeps changing it."""
        for port in self.ports:
            if port.conflict:
                continue
            try:
                changes = owned.apply(self.link, port.index, port.want)
            except NetschedError as error:
                port.conflict = str(error)
                about = {"interface": port.name, "conflict": port.conflict}
                _LOG.error("port left to somebody else", extra=logs.fields(about))
                continue
            if changes:
                port.conflict = port.repairs.note()
                done: dict[str, logs.Value] = {
                    "interface": port.name,
                    "changes": changes,
                    "repairs": port.repairs.total,
                }
                _LOG.warning("port repaired", extra=logs.fields(done))

    def restore(self) -> list[str]:
        """Give every port back to the kernel's default, emptying the queues first; returns their names."""
        given = []
        for port in self.ports:
            if not port.ours:
                continue
            try:
                owned.remove(self.link, port.index, drain_s=DRAIN_S)
                port.ours = False
                given.append(port.name)
            except NetschedError as error:
                about = {"interface": port.name, "error": str(error)}
                _LOG.error("port not restored", extra=logs.fields(about))
        return given

    @property
    def owned(self) -> list[str]:
        """Names of the ports whose tree is there because of us."""
        return [port.name for port in self.ports if port.ours]

    def status(self) -> list[dict[str, Any]]:
        return [self._status(port) for port in self.ports]

    def _status(self, port: Port) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "interface": port.name,
            "mechanism": owned.mechanism(port.want),
            "why": port.why,
            "rate": owned.shown_rate(port.want),
            **({"rate_bytes_per_second": owned.rate(port.want)} if owned.rate(port.want) else {}),
            "queues": port.queues,
            "conflict": port.conflict,
            "repairs": port.repairs.total,
        }
        try:
            wrong = owned.differences(self.link, port.index, port.want)
            # Some lines tell enough; all of them for every port would not fit into a packet.
            shown["differences"] = wrong[:_SHOWN]
            count = owned.counters(self.link, port.index, port.want, port.queues)
        except NetschedError as error:
            return shown | {"error": str(error)}
        classes = [vars(one) | {"class": cls} for cls, one in enumerate(count.classes)]
        return shown | {"direct_packets": count.direct_packets, "classes": classes}
