"""Whether what the agent believes, and where jobs find it, could be changed by somebody else.

The configuration says who may do what, and a job hands its descriptors to whoever listens at the socket's
path: both are as safe as the folders above them. The agent keeps no journal on disk. What it set is known by
the kernel's own handles and names, so there is no third file to forge.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from netsched.errors import NetschedError

_OPENED: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


class UnsafeError(NetschedError):
    """Somebody else could replace a file or folder that the agent trusts."""

    exit_code = 3


def check_file(path: str | Path, what: str) -> None:
    """UnsafeError unless only root and the agent's user can change the file at `path`, named `what`.

    A descriptor that the agent's parent has opened for it (/dev/stdin) is the parent's own choice.
    """
    if str(path).startswith(_OPENED):
        return
    where = _resolved(path, what)
    found = where.stat()
    if _on_read_only(where):
        return  # a ConfigMap in a container, whose folders are open to all and written by nobody
    _check_owner(found, where, what)
    _check_mode(found, where, what)
    _check_folder(where.parent, what)


def check_folder(path: str | Path, what: str) -> None:
    """UnsafeError unless only root and the agent's user can make or replace files in the folder `path`."""
    _check_folder(_resolved(path, what), what)


def _check_folder(folder: Path, what: str) -> None:
    found = folder.stat()
    _check_owner(found, folder, what)
    _check_mode(found, folder, what)
    for above in folder.parents:
        found = above.stat()
        # In a sticky folder (/tmp) others can make names but not move ours away.
        if not found.st_mode & stat.S_ISVTX:
            _check_mode(found, above, what)


def _check_owner(found: os.stat_result, where: Path, what: str) -> None:
    if found.st_uid not in (0, os.geteuid()):
        ours = "root" if os.geteuid() == 0 else f"root or user {os.geteuid()}"
        raise UnsafeError(f"{what}: {where} belongs to user {found.st_uid}, not to {ours}")


def _check_mode(found: os.stat_result, where: Path, what: str) -> None:
    writers = "others" if found.st_mode & stat.S_IWOTH else ""
    # With umask 002 a user's own group, which has no other members, may write.
    if found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid()):
        writers = writers or f"group {found.st_gid}"
    if writers:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise UnsafeError(f"{what}: {where} can be written by {writers} (mode {mode}): chmod go-w {where}")


def _on_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _resolved(path: str | Path, what: str) -> Path:
    try:
        return Path(path).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NetschedError(f"{what}: {path}: {reason}") from None
