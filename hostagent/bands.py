"""Priority where the NIC is the bottleneck: the kernel's own pfifo_fast queues, and a map to their bands.

A physical NIC with many queues has mq as its root and pfifo_fast below, each with three bands in strict
order and no lock that all share. Nothing of that is replaced: nft rules set each packet's priority by its
DSCP, which the kernel's own map does not go by. There is no rate and no floor: a lower band waits for as long
as a higher one has packets.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hostagent import logs, nft
from hostagent.nft import NftError
from hostagent.patience import Repairs
from netsched import marking, ports
from netsched.errors import CapabilityError, NetschedError
from netsched.netlink import Interface, Netlink
from netsched.qdisc import QueueError

if TYPE_CHECKING:
    from hostagent.rungs import Settled

_LOG: Final = logging.getLogger(__name__)
TABLE: Final = "netsched_bands"
MECHANISM: Final = "pfifo_fast-map"
BANDS: Final = 3
_PRIORITY_OF_BAND: Final = ("0:6", "none", "0:2")
"""Packet priorities that pfifo_fast's fixed map (priomap 1 2 2 2 1 2 0 0 1 ...) puts into each band, as nft
lists them; "none" is priority 0."""
_KINDS: Final = frozenset({"mq", "pfifo_fast"})


def band_of(cls: int, queues: int) -> int:
    """The band of a class: equal parts of the classes in order, 0 the most urgent."""
    return cls * BANDS // queues if queues > BANDS else cls


def script(names: Sequence[str], queues: int) -> str:
    """The table that sorts what leaves by these interfaces, written as nft lists it, to be compared."""
    lines = [f"table inet {TABLE} {{", "\tchain sort {"]
    lines.append("\t\ttype filter hook postrouting priority mangle; policy accept;")
    of_class = [_PRIORITY_OF_BAND[band_of(cls, queues)] for cls in range(queues)]
    shown = [(marking.dscp_of(cls, queues), of_class[cls]) for cls in range(queues - 1)]
    shown.append((marking.CONTROL_DSCP, of_class[0]))
    pairs = ", ".join(f"{nft.dscp_name(dscp)} : {priority}" for dscp, priority in sorted(shown))
    for name in names:
        out = f'\t\toifname "{name}"'
        # A mark that is none of ours is the last class's, as with every other mechanism.
        lines.append(f"{out} meta priority set {of_class[-1]}")
        lines += [f"{out} meta priority set {family} dscp map {{ {pairs} }}" for family in ("ip", "ip6")]
        kinds = "{ nd-neighbor-solicit, nd-neighbor-advert }"
        lines.append(f"{out} icmpv6 type {kinds} meta priority set {of_class[0]}")
    return "\n".join([*lines, "\t}", "}", ""])


@dataclass
class Bands:
    """The interfaces of a configuration that keep the kernel's queues. One table for all of them.

    conflict  why the table is no longer repaired
    failing   why it could not be compared or repaired the last time; it is tried again
    """

    names: Sequence[str]
    queues: int
    link: Netlink
    why: Mapping[str, str] = field(default_factory=dict)
    conflict: str = ""
    failing: str = ""
    repairs: Repairs = field(default_factory=Repairs)
    _loaded: str = ""

    @classmethod
    def of(cls, settled: Settled, link: Netlink) -> Bands:
        """Look the interfaces up; nothing is changed.

        QueueError naming every one that is missing or has other queues, CapabilityError without nft.
        """
        links, wrong = link.interfaces(), []
        config = settled.config
        names = [one.name for one in config.interfaces if one.scheduler == "pfifo_fast"]
        for name in names:
            if name not in links:
                there = ", ".join(sorted(set(links) - {"lo"})) or "none but lo"
                wrong.append(f"interface {name}: not in this network namespace (there: {there})")
                continue
            kinds = ports.kinds(link, links[name].index)
            if kinds - _KINDS or "pfifo_fast" not in kinds:
                has = ", ".join(sorted(kinds)) or "none"
                wrong.append(
                    f"interface {name}: its queues are {has}, and scheduler pfifo_fast takes mq and "
                    "pfifo_fast only, as the kernel attaches them (sysctl net.core.default_qdisc); "
                    "or write scheduler: htb" + _passed(settled.why.get(name, ""))
                )
        if wrong:
            raise QueueError("\n".join(wrong))
        made = cls(names, config.queues, link, settled.why)
        if names:
            made._check()
        return made

    def script(self) -> str:
        return script(self.names, self.queues)

    def _check(self) -> None:
        try:
            nft.run("-c", "-f", "-", script=self.script())
        except NftError as error:
            raise CapabilityError(f"{error}: a kernel with CONFIG_NF_TABLES_INET is needed") from None

    def plan(self) -> dict[str, list[str]]:
        """What is not as it should be, by interface; nothing is changed."""
        if not self.names:
            return {}
        there = nft.listed(TABLE)
        missing = [] if there == self.script() else [f"nft table inet {TABLE}: to be loaded"]
        return dict.fromkeys(self.names, missing)

    def apply(self) -> int:
        """Make the table what it should be, in one transaction; the number of changes."""
        if not self.names:
            return 0
        there = nft.listed(TABLE)
        if there and there == (self._loaded or self.script()):
            self._loaded = there
            return 0
        self._do(f"add table inet {TABLE}\ndelete table inet {TABLE}\n{self.script()}")
        self._loaded = nft.listed(TABLE)
        return 1

    def _do(self, script: str) -> None:
        nft.run("-f", "-", script=script)

    def watch(self) -> None:
        """Repair the table unless somebody keeps changing it."""
        if self.conflict:
            return
        try:
            changes = self.apply()
            self.failing = ""
            if not changes:
                return
        except NetschedError as error:
            # nft may be away for the moment, as while its package is upgraded.
            if str(error) != self.failing:
                _LOG.error("bands not compared", extra=logs.fields({"table": TABLE, "error": str(error)}))
            self.failing = str(error)
            return
        self.conflict = self.repairs.note()
        _LOG.warning("bands repaired", extra=logs.fields({"table": TABLE, "repairs": self.repairs.total}))

    def restore(self) -> list[str]:
        """Take the table away; what could not be taken away, in words."""
        self._loaded = ""
        if not self.names:
            return []
        try:
            nft.remove(TABLE)
        except NetschedError as error:
            _LOG.error("bands not removed", extra=logs.fields({"error": str(error)}))
            return [f"table {TABLE}"]
        return []

    def status(self) -> list[dict[str, Any]]:
        if not self.names:
            return []
        error, wrong = self.failing, dict[str, list[str]]()
        try:
            links, table = self.link.interfaces(), nft.listed(TABLE)
            wrong = {name: self._differences(name, links, table) for name in self.names}
        except NetschedError as failure:
            error = str(failure)
        shown = []
        for name in self.names:
            shown.append(
                {
                    "interface": name,
                    "mechanism": MECHANISM,
                    "why": self.why.get(name, ""),
                    "rate": "the NIC's own rate",
                    "queues": self.queues,
                    "bands": [band_of(cls, self.queues) for cls in range(self.queues)],
                    "conflict": self.conflict,
                    "repairs": self.repairs.total,
                    "differences": wrong.get(name, []),
                }
                | ({"error": error} if error else {})
            )
        return shown

    def _differences(self, name: str, links: Mapping[str, Interface], table: str) -> list[str]:
        wrong = [] if table and table == self._loaded else [f"nft table inet {TABLE} is not as it was set"]
        if name not in links:
            # The rules go by the name, so that they take it up by themselves when it is there again.
            return [*wrong, "no interface has this name now"]
        other = ports.kinds(self.link, links[name].index) - _KINDS
        return [*wrong, *([f"its queues are {', '.join(sorted(other))}"] if other else [])]


def _passed(why: str) -> str:
    return f" ({why})" if why else ""
