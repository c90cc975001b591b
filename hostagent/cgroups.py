"""Control groups of version 2 as the configuration names them: where they are and how deep.

A group's number is the inode of its folder, which is what the kernel's rules compare: a group that was
deleted and made anew under the same name is another one.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from netsched.errors import CapabilityError, NetschedError

_NFT_ROOT: Final = Path("/sys/fs/cgroup")
"""nft looks paths up below this folder, wherever version 2 is mounted."""


@dataclass(frozen=True)
class Cgroup:
    """`path` is its folder, `level` its depth below the root, `number` its inode."""

    name: str
    path: Path
    level: int
    number: int

    @property
    def nft_path(self) -> str:
        """Its path as nft takes it. CapabilityError if version 2 is mounted where nft does not look."""
        try:
            return str(self.path.relative_to(_NFT_ROOT))
        except ValueError:
            raise CapabilityError(f"cgroup {self.name}: nft finds only groups below {_NFT_ROOT}") from None


def mount(table: Path = Path("/proc/self/mountinfo")) -> Path:
    """Where version 2 is mounted. CapabilityError if it is not."""
    for line in table.read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.split(" ", 1)[0] == "cgroup2":
            return Path(left.split()[4].encode().decode("unicode_escape"))
    raise CapabilityError("cgroup v2 is not mounted: mount -t cgroup2 none /sys/fs/cgroup/unified")


def find(name: str) -> Cgroup:
    """The group with this path below the mount. NetschedError if there is none."""
    parts = [part for part in name.split("/") if part]
    if not parts or any(part in (".", "..") for part in parts):
        raise NetschedError(f"cgroup {name!r}: write its path below the mount, such as train/job1")
    path = mount().joinpath(*parts)
    try:
        found = path.stat()
    except OSError as error:
        raise NetschedError(f"cgroup {name}: {path}: {error.strerror}") from None
    return Cgroup("/".join(parts), path, len(parts), found.st_ino)


def open_folder(group: Cgroup) -> int:
    """A descriptor of the group's folder, to attach a program to."""
    return os.open(group.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def processes(group: Cgroup) -> list[int]:
    """The numbers of the processes in a group and the groups below it, as far as they are there."""
    found: list[int] = []
    for path in [group.path, *group.path.rglob("*/")]:
        with contextlib.suppress(OSError):
            found += map(int, (path / "cgroup.procs").read_text().split())
    return found
