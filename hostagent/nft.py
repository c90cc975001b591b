"""Asking nft: tables of one family (inet), whole scripts in one transaction."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

from netsched import marking
from netsched.errors import CapabilityError, NetschedError

_TIMEOUT_S: Final = 20.0


class NftError(NetschedError):
    """nft refused; the message is its first line."""


def run(*argv: str, script: str | None = None) -> str:
    """What `nft` prints. NftError if it refuses, CapabilityError if it is not there."""
    program = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin")
    if program is None:
        raise CapabilityError("nft is not installed: apt-get install nftables")
    done = subprocess.run(
        [program, *argv], input=script, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        if "Operation not permitted" in done.stderr:
            raise CapabilityError("nft: CAP_NET_ADMIN is needed: run as root")
        raise NftError(f"nft: {lines[0].partition('Error: ')[2] or lines[0]}")
    return done.stdout


def listed(table: str) -> str:
    """A table as the kernel has it, without the entries of its sets; "" if it is not there."""
    try:
        return run("-s", "-t", "list", "table", "inet", table)
    except NftError:
        return ""


def is_there(table: str) -> bool:
    """Whether a table is in this network namespace; False where there is no nft to look with."""
    try:
        return f"table inet {table}" in run("list", "tables", "inet").splitlines()
    except (NftError, CapabilityError):
        return False


def remove(table: str) -> bool:
    """Take a table away whoever made it; False if it was not there."""
    if not is_there(table):
        return False
    run("delete", "table", "inet", table)
    return True


def dscp_name(dscp: int) -> str:
    """A code point as nft lists it: by its name where it has one."""
    return marking.NAMES[dscp].lower() if dscp in marking.NAMES else f"0x{dscp:02x}"
