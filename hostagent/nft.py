"""Asking nft: tables of one family (inet), whole scripts in one transaction."""

from __future__ import annotations

import errno
import shutil
import socket
import struct
import subprocess
from typing import Final

from netsched import marking
from netsched.errors import CapabilityError, NetschedError
from netsched.netlink import Netlink, NetlinkError, attributes

_TIMEOUT_S: Final = 20.0
_NETLINK_NETFILTER: Final = 12
_GETTABLE: Final = 10 << 8 | 1
"""NFNL_SUBSYS_NFTABLES, NFT_MSG_GETTABLE."""
_INET: Final = struct.pack("!BBH", 1, 0, 0)
"""struct nfgenmsg: family NFPROTO_INET."""
_TABLE_NAME: Final = 1


class NftError(NetschedError):
    """nft refused, or did not come round to it; the message is its first line."""


class NotThereError(NftError):
    """What was asked for is not in the kernel."""


def run(*argv: str, script: str | None = None) -> str:
    """What `nft` prints. NftError if it refuses, CapabilityError if it is not there."""
    program = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin")
    if program is None:
        raise CapabilityError("nft is not installed: apt-get install nftables")
    try:
        done = subprocess.run(
            [program, *argv], input=script, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NftError(f"nft: no answer within {_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise NftError(f"nft: {program}: {error.strerror}") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        if "Operation not permitted" in done.stderr:
            raise CapabilityError("nft: CAP_NET_ADMIN is needed: run as root")
        text = f"nft: {lines[0].partition('Error: ')[2] or lines[0]}"
        raise NotThereError(text) if "No such file or directory" in done.stderr else NftError(text)
    return done.stdout


def listed(table: str) -> str:
    """A table as the kernel has it, without the entries of its sets; "" if it is not there.

    NftError if that cannot be told now: a table that was not seen must not be taken for one that is gone.
    """
    try:
        return run("-s", "-t", "list", "table", "inet", table)
    except NotThereError:
        return ""


def is_there(table: str) -> bool:
    """Whether a table is in this network namespace. CapabilityError without CAP_NET_ADMIN.

    The kernel is asked, since what an agent left stays there when the package with nft is removed.
    """
    try:
        with Netlink(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)) as link:
            found = [attributes(body[len(_INET) :]) for body in link.dump(_GETTABLE, _INET)]
    except OSError as error:
        if error.errno in (errno.EPROTONOSUPPORT, errno.ENOPROTOOPT):
            return False
        raise NftError(f"nf_tables: {error.strerror}") from None
    except NetlinkError as error:
        # A kernel without nf_tables has no table of ours either.
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT):
            return False
        raise
    return any(one.get(_TABLE_NAME, b"").rstrip(b"\0") == table.encode() for one in found)


def remove(table: str) -> bool:
    """Take a table away whoever made it; False if it was not there."""
    if not is_there(table):
        return False
    run("delete", "table", "inet", table)
    return True


def dscp_name(dscp: int) -> str:
    """A code point as nft lists it: by its name where it has one."""
    return marking.NAMES[dscp].lower() if dscp in marking.NAMES else f"0x{dscp:02x}"
