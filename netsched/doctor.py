"""What this machine offers to netsched: every mechanism, what its lack costs, and how to get it.

A user should learn in one command, before a run, which engines work here and which fallbacks they would use.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from dataclasses import dataclass
from typing import Any, Final

from netsched import kernel
from netsched.kernel import Capability

EMULATION: Final = ("root", "namespaces", "htb", "bfifo", "u32", "veth", "ip", "unshare", "mnexec")
"""What the mininet engine cannot do without; everything else has a fallback or a narrower use."""


@dataclass(frozen=True)
class Findings:
    """One examination. `cpus` counts those that this process may use."""

    kernel: str
    python: str
    cpus: int
    capabilities: tuple[Capability, ...]

    @property
    def missing(self) -> tuple[Capability, ...]:
        """What keeps the mininet engine from running here."""
        return tuple(each for each in self.capabilities if each.name in EMULATION and not each.present)


def examine() -> Findings:
    """Try everything on this machine; takes under a second and leaves nothing behind."""
    cpus = len(os.sched_getaffinity(0))
    return Findings(platform.release(), platform.python_version(), cpus, kernel.probe())


def plain(findings: Findings) -> dict[str, Any]:
    """The findings as JSON has them."""
    return {**dataclasses.asdict(findings), "engines": {"sim": True, "mininet": not findings.missing}}


def text(findings: Findings) -> str:
    """The findings as lines: one per mechanism, two more under one that is missing."""
    lines = [f"Linux {findings.kernel}, Python {findings.python}, {findings.cpus} CPUs", ""]
    for each in findings.capabilities:
        lines.append(f"{'yes' if each.present else 'NO ':<4} {each.name:<12} {each.needed_for}")
        if not each.present:
            lines.append(f"{'':<17} without it: {each.cost_if_missing}")
            lines.append(f"{'':<17} to get it: {each.how_to_get}")
    lines += ["", "engine sim: works"]
    verdict = ", ".join(each.name for each in findings.missing)
    lines.append(f"engine mininet: {f'does not work here: {verdict} missing' if verdict else 'works'}")
    return "\n".join(lines)
