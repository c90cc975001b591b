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
from netsched.errors import CapabilityError, NetschedError
from netsched.netlink import Interface as Link
from netsched.netlink import Netlink, NetlinkError
from netsched.qdisc import QueueError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostagent.interface import Interface
    from hostagent.rungs import Settled

_LOG: Final = logging.getLogger(__name__)
_SHOWN: Final = 4
DRAIN_S: Final = 2.0
_MASTERS: Final = frozenset({"bond", "team", "bridge"})


class LostError(NetschedError):
    """The interface of a port is not where it was."""


def _note_failure(port: Port, reason: str) -> None:
    if reason != port.failing:
        about = {"interface": port.name, "error": reason}
        _LOG.error("port not compared", extra=logs.fields(about))
    port.failing = reason


@dataclass
class Port:
    """One owned port.

    ours      the queues are there because of us
    why       why these queues and none higher on the ladder
    conflict  why we no longer touch it
    failing   why it could not be compared or repaired the last time; it is tried again
    """

    name: str
    index: int
    want: Wanted
    queues: int
    why: str = ""
    ours: bool = False
    repairs: Repairs = field(default_factory=Repairs)
    conflict: str = ""
    failing: str = ""


@dataclass
class Ports:
    """The ports of a configuration, over one netlink socket. `settled` says what each is to have."""

    link: Netlink
    settled: Settled
    ports: list[Port] = field(default_factory=list)

    @classmethod
    def of(cls, settled: Settled, link: Netlink) -> Ports:
        """Look the interfaces up. QueueError naming every one that is missing or belongs to somebody else."""
        links, wrong = link.interfaces(), []
        made = cls(link, settled)
        for interface in settled.config.interfaces:
            if interface.scheduler != "pfifo_fast":
                try:
                    made.ports.append(made._place(interface, links))
                except QueueError as error:
                    wrong.append(f"interface {interface.name}: {error}")
        if wrong:
            raise QueueError("\n".join(wrong))
        return made

    def _place(self, interface: Interface, links: Mapping[str, Link]) -> Port:
        """The port of an interface. QueueError if it is missing, or its queues are somebody else's matter."""
        name, queues = interface.name, self.settled.config.queues
        found = links.get(name)
        if found is None:
            there = ", ".join(sorted(set(links) - {"lo"})) or "none but lo"
            raise QueueError(f"not in this network namespace (there: {there})")
        if found.kind in _MASTERS:
            raise QueueError(f"a {found.kind}: name its members, whose queues are what fills")
        ports.check_ours(self.link, found.index)
        why = self.settled.why.get(name, "")
        return Port(name, found.index, interface.wanted(queues, found.mtu), queues, why)

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
        """Repair what drifted; leave a port to whoever replaced its root or keeps changing it.

        An interface that comes back under its name, with another index, is taken as at the start.
        """
        try:
            links = self.link.interfaces()
        except NetschedError as error:
            _LOG.error("interfaces not listed", extra=logs.fields({"error": str(error)}))
            return
        for port in self.ports:
            try:
                anew = self._find(port, links)
                if port.conflict:
                    continue
                changes = owned.apply(self.link, port.index, port.want)
                port.failing = ""
            except (LostError, CapabilityError, NetlinkError) as error:
                # Not somebody else's will, and it may pass.
                _note_failure(port, str(error))
                continue
            except NetschedError as error:
                port.conflict, port.failing = str(error), ""
                about = {"interface": port.name, "conflict": port.conflict}
                _LOG.error("port left to somebody else", extra=logs.fields(about))
                continue
            if changes and not anew:
                port.conflict = port.repairs.note()
                done: dict[str, logs.Value] = {
                    "interface": port.name,
                    "changes": changes,
                    "repairs": port.repairs.total,
                }
                _LOG.warning("port repaired", extra=logs.fields(done))

    def _find(self, port: Port, links: Mapping[str, Link]) -> bool:
        """See that the index is still that of the interface that was meant. LostError if no interface is.

        Whether it is another one now.
        """
        name = next((name for name, one in links.items() if one.index == port.index), "")
        if name == port.name:
            return False
        if name and ports.root_of(self.link, port.index) in ports.OUR_ROOTS:
            raise LostError(f"is called {name} now; its queues stay: restart the agent with the name meant")
        try:
            interface = next(one for one in self.settled.config.interfaces if one.name == port.name)
            fresh = self._place(interface, links)
        except QueueError as error:
            port.ours, port.conflict = False, ""
            raise LostError(f"is gone: {error}") from None
        about: dict[str, logs.Value] = {"interface": port.name, "index": fresh.index}
        _LOG.warning("port taken up again", extra=logs.fields(about))
        port.index, port.want, port.conflict, port.ours = fresh.index, fresh.want, "", True
        return True

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
        if port.failing:
            return shown | {"differences": [], "error": port.failing}
        try:
            wrong = owned.differences(self.link, port.index, port.want)
            # Some lines tell enough; all of them for every port would not fit into a packet.
            shown["differences"] = wrong[:_SHOWN]
            count = owned.counters(self.link, port.index, port.want, port.queues)
        except NetschedError as error:
            return shown | {"error": str(error)}
        classes = [vars(one) | {"class": cls} for cls, one in enumerate(count.classes)]
        return shown | {"direct_packets": count.direct_packets, "classes": classes}
