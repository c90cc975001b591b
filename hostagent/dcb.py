"""What the kernel knows of a NIC's traffic classes: priority flow control, scheduling, DSCP map. Read only.

Data Center Bridging is asked through route netlink (linux/dcbnl.h, command IEEE_GET), which takes no right
and changes nothing. Writing it can flap a link and fights with whoever runs DCBX, so nothing here does.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from netsched.netlink import Netlink, NetlinkError, attribute, attributes

PRIORITIES: Final = 8
_RTM_GETDCB: Final = 78
_MESSAGE: Final = struct.Struct("=BBH")
_IEEE_GET: Final = 21
_IFNAME, _IEEE, _DCBX = 1, 13, 14
_ETS, _PFC, _APP_TABLE = 1, 2, 3
_APP: Final = struct.Struct("=BBH")
_APP_DSCP: Final = 5
_ETS_HEAD: Final = struct.Struct("=3B8s8s8s8s")
_STRICT: Final = 0
_BY_FIRMWARE: Final = 0x02
"""DCB_CAP_DCBX_LLD_MANAGED: the NIC itself speaks DCBX."""


@dataclass(frozen=True)
class Dcb:
    """One interface.

    pfc         priorities with flow control: what fills them stops the sender instead of being dropped
    tc_of       traffic class (hardware queue) of each priority; () if the NIC does not say
    strict      traffic classes served in strict priority
    priority_of priority of each DSCP that is mapped; an empty map: the NIC does not go by the DSCP
    willing     it takes its settings from the switch
    firmware    the NIC's firmware negotiates them by itself
    """

    pfc: frozenset[int]
    tc_of: tuple[int, ...]
    strict: frozenset[int]
    priority_of: Mapping[int, int]
    willing: bool
    firmware: bool


def is_in_kernel(link: Netlink) -> bool:
    """Whether the kernel has DCB at all: it then misses the interface's name in a question without one."""
    try:
        _ask(link, b"")
    except NetlinkError as error:
        return error.errno != errno.EOPNOTSUPP
    return True


def read(link: Netlink, name: str) -> Dcb | None:
    """What the kernel says of interface `name`; None if its driver has no DCB. NetlinkError if it fails."""
    try:
        answer = _ask(link, attribute(_IFNAME, name.encode() + b"\0"))
    except NetlinkError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None
        raise
    return parse(answer)


def _ask(link: Netlink, body: bytes) -> bytes:
    return link.get(_RTM_GETDCB, _MESSAGE.pack(0, _IEEE_GET, 0) + body)


def parse(answer: bytes) -> Dcb:
    """The kernel's answer to IEEE_GET (struct dcbmsg and attributes)."""
    about = attributes(answer[_MESSAGE.size :])
    ieee = attributes(about.get(_IEEE, b""))
    willing, tc_of, strict = False, tuple[int, ...](), frozenset[int]()
    ets = ieee.get(_ETS, b"")
    if len(ets) >= _ETS_HEAD.size:
        head, _, _, _, _, selection, priorities = _ETS_HEAD.unpack_from(ets)
        willing, tc_of = bool(head), tuple(priorities)
        strict = frozenset(tc for tc, how in enumerate(selection) if how == _STRICT)
    pfc = (ieee.get(_PFC, b"") + bytes(2))[1]
    apps = [_APP.unpack(one) for one in _rows(ieee.get(_APP_TABLE, b""))]
    return Dcb(
        pfc=frozenset(p for p in range(PRIORITIES) if pfc >> p & 1),
        tc_of=tc_of,
        strict=strict,
        # A code point may be there twice; NICs go by the highest priority (man dcb-app).
        priority_of=dict(sorted((dscp, priority) for kind, priority, dscp in apps if kind == _APP_DSCP)),
        willing=willing,
        firmware=bool((about.get(_DCBX, b"") + bytes(1))[0] & _BY_FIRMWARE),
    )


def _rows(table: bytes) -> Iterator[bytes]:
    """The entries of a table whose attributes are all of one type."""
    at = 0
    while at + 4 + _APP.size <= len(table):
        length, _ = struct.unpack_from("=HH", table, at)
        if length != 4 + _APP.size:
            return
        yield table[at + 4 : at + length]
        at += length
