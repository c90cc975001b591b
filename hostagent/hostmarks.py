"""The marks that the host puts on for jobs which do not ask: by control group, and by address.

The first level of the configuration's ladder that works is taken for each; why the others were not is kept
for `explain`. If none works the agent refuses to start, with the name of what the kernel lacks.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hostagent import bpf, cgroups, ladder, logs, sockdiag, undo
from hostagent.cgroups import Cgroup
from hostagent.nftmarks import TABLE, NftMarks
from hostagent.patience import Repairs
from netsched import marking
from netsched.errors import CapabilityError, NetschedError

if TYPE_CHECKING:
    from hostagent.config import Config

_LOG: Final = logging.getLogger(__name__)
_HOLD: Final = 4
"""Comparisons (`resync`) that an entry for a connection outlives without being renewed."""


@dataclass
class HostMarks:
    """The marks of one agent. `groups` are the configuration's, `level` is the one that marks them.

    `why`: reason, by level, why it was not taken. `conflict`: why the table is no longer repaired. `failing`:
    what could not be done the last time, and is tried again. `adopted`: the living connections that a dead
    agent had marked by address, with their classes.
    """

    config: Config
    groups: tuple[tuple[Cgroup, int], ...] = ()
    level: str = ""
    table: NftMarks | None = None
    why: dict[str, str] = field(default_factory=dict)
    conflict: str = ""
    failing: str = ""
    repairs: Repairs = field(default_factory=Repairs)
    adopted: list[tuple[sockdiag.Found, int]] = field(default_factory=list)
    _links: dict[Cgroup, int] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config) -> HostMarks:
        """Find the groups and a level that works; nothing is changed.

        NetschedError naming a group that is not there, CapabilityError if no level works.
        """
        groups = tuple((cgroups.find(one.path), config.number_of(one.cls)) for one in config.cgroups)
        made = cls(config, groups)
        if groups:
            made._choose(config.ladder)
        made._make_table()
        return made

    def _choose(self, levels: Sequence[str]) -> None:
        self.level = ""
        for level in levels:
            if level not in (ladder.CGROUP_BPF, ladder.NFT_CGROUP):
                continue
            if self.level:
                self.why[level] = f"not tried: {self.level} works"
                continue
            try:
                if level == ladder.CGROUP_BPF:
                    bpf.check()
                else:
                    NftMarks(self.config.queues, self.groups, 1.0).check()
                self.level = level
            except CapabilityError as error:
                self.why[level] = str(error)
        if not self.level:
            reasons = "; ".join(f"{level}: {text}" for level, text in self.why.items())
            raise CapabilityError(f"cgroups: no level of the ladder works here: {reasons}")

    def _make_table(self) -> None:
        if ladder.NFT_TUPLE in self.config.ladder or self.level == ladder.NFT_CGROUP:
            by_nft = self.groups if self.level == ladder.NFT_CGROUP else ()
            self.table = NftMarks(self.config.queues, by_nft, _HOLD * self.config.resync)
            self.table.check()

    def plan(self) -> list[str]:
        """What `apply` would do, one line each."""
        lines = [
            f"cgroup {group.name}: class {cls} ({self._name_of(cls)}) by {self.level}"
            for group, cls in self.groups
        ]
        if self.table is not None and self.table.read_back() != self.table.script():
            lines.append(f"nft table inet {TABLE}: to be loaded")
        return lines

    def _name_of(self, cls: int) -> str:
        return marking.name_of(marking.dscp_of(cls, self.config.queues))

    def apply(self) -> int:
        """Make the marks what they should be, keeping a dead agent's entries; the number of changes."""
        changes = 0
        if self.level == ladder.CGROUP_BPF:
            try:
                changes += self._attach()
            except CapabilityError as error:
                # The program is good, but the group does not take it: the level below may work.
                self._detach()
                at = self.config.ladder.index(ladder.CGROUP_BPF)
                self.why[ladder.CGROUP_BPF] = str(error)
                self._choose(self.config.ladder[at + 1 :])
                self._make_table()
        if self.table is None:
            return changes
        self.adopted = self.table.adopt(sockdiag.sockets())
        return changes + self.table.load()

    def _attach(self) -> int:
        missing = [(group, cls) for group, cls in self.groups if group not in self._links]
        for group, cls in missing:
            self._links[group] = bpf.attach(group, marking.dscp_of(cls, self.config.queues))
        return len(missing)

    def _detach(self) -> None:
        for link in self._links.values():
            os.close(link)
        self._links.clear()

    def watch(self) -> None:
        """Follow groups that were made anew, and repair the table unless somebody keeps changing it."""
        try:
            self._follow()
            changes = 0 if self.table is None or self.conflict else self.table.load()
        except NetschedError as error:
            # A group may just have ended, nft may be away while its package is upgraded.
            if str(error) != self.failing:
                _LOG.error("marks not compared", extra=logs.fields({"table": TABLE, "error": str(error)}))
            self.failing = str(error)
            return
        self.failing = ""
        if not changes:
            return
        self.conflict = self.repairs.note()
        _LOG.warning("marks repaired", extra=logs.fields({"table": TABLE, "repairs": self.repairs.total}))

    def _follow(self) -> None:
        """A group that was deleted and made again has another number, which no rule knows yet."""
        now = []
        for one in self.config.cgroups:
            with contextlib.suppress(NetschedError):
                now.append((cgroups.find(one.path), self.config.number_of(one.cls)))
        if tuple(now) != self.groups:
            kept = {group for group, _ in now}
            for gone in [group for group in self._links if group not in kept]:
                os.close(self._links.pop(gone))
            self.groups = tuple(now)
            if self.table is not None and self.level == ladder.NFT_CGROUP:
                self.table.regroup(self.groups)
        if self.level == ladder.CGROUP_BPF:
            self._attach()

    def renew(self, alive: set[int]) -> None:
        """Keep the entries of these living connections (by cookie), drop the others'."""
        if self.table is not None and len(self.table):
            try:
                self.table.renew(alive)
            except NetschedError as error:
                _LOG.warning("entries not renewed", extra=logs.fields({"error": str(error)}))

    def of_socket(self, found: sockdiag.Found) -> ladder.ByHost | None:
        """What is put on a socket's packets because of its control group; None if its job has marked it."""
        for group, cls in self.groups:
            dscp = marking.dscp_of(cls, self.config.queues)
            # nft marks what is unmarked; the program's mark is on the socket, until the job sets another.
            untouched = found.dscp == (dscp if self.level == ladder.CGROUP_BPF else 0)
            if self.level and untouched and found.cgroup in _numbers_below(group):
                return ladder.ByHost(self.level, dscp, group.name)
        return None

    def restore(self) -> list[str]:
        """Take all of it away; what could not be taken away, in words."""
        self._detach()
        try:
            if self.table is not None:
                self.table.remove()
        except NetschedError as error:
            _LOG.error("marks not removed", extra=logs.fields({"error": str(error)}))
            return [f"table {TABLE}"]
        return []

    def put_back(self, known: Callable[[int], bool], close: Callable[[Sequence[int]], None]) -> None:
        """Take the program's marks off the groups' sockets, but for those that `known` has by cookie.

        An nft rule marks packets and leaves sockets as they are.
        """
        if self.level == ladder.CGROUP_BPF:
            for group, cls in self.groups:
                dscp = marking.dscp_of(cls, self.config.queues)
                undo.unmark(cgroups.processes(group), dscp, known, close)

    def still_marked(self, known: Callable[[int], bool]) -> list[dict[str, Any]]:
        """Sockets of this namespace that the program's mark is still on, by group and user."""
        if self.level != ladder.CGROUP_BPF:
            return []
        count: dict[tuple[str, int], int] = {}
        for one in sockdiag.sockets():
            by = None if known(one.cookie) else self.of_socket(one)
            if by is not None and by.dscp:
                key = f"control group {by.cgroup}", one.uid
                count[key] = count.get(key, 0) + 1
        return [{"job": job, "uid": uid, "sockets": n, "pids": []} for (job, uid), n in sorted(count.items())]

    def close(self) -> None:
        """Let go of the programs, which ends them."""
        self._detach()

    def status(self) -> dict[str, Any]:
        groups = [{"cgroup": group.name, "class": number} for group, number in self.groups]
        flows = 0 if self.table is None else len(self.table)
        there = {group.name for group, _ in self.groups}
        absent = [one.path for one in self.config.cgroups if one.path not in there]
        shown = {"level": self.level, "cgroups": groups, "absent": absent, "flows": flows}
        return shown | {"conflict": self.conflict, "error": self.failing}


def _numbers_below(group: Cgroup) -> set[int]:
    found = {group.number}
    with contextlib.suppress(OSError):
        found |= {path.stat().st_ino for path in group.path.rglob("*/")}
    return found
