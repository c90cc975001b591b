"""Queue trees as the kernel's bytes: the structures of tc's netlink messages, both ways.

Kept apart from what a tree means, so that each line here can be held against linux/pkt_sched.h and
linux/pkt_cls.h.
"""

from __future__ import annotations

import struct
import sys
from typing import Final

from netsched import qdisc
from netsched.netlink import attribute, attributes
from netsched.qdisc import ClassCount, Filter, Shape

NEWQDISC, DELQDISC, GETQDISC = 36, 37, 38
NEWTCLASS, DELTCLASS, GETTCLASS = 40, 41, 42
NEWTFILTER, DELTFILTER, GETTFILTER = 44, 45, 46

ROOT: Final = 0xFFFFFFFF
OUR_ROOT: Final = qdisc.MAJOR << 16
_KIND, _OPTIONS, _STATS2 = 1, 2, 7
_HTB_PARMS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_U32_CLASSID, _U32_SEL = 1, 5
_U32_TERMINAL: Final = 1
_LINKLAYER_ETHERNET: Final = 1
_R2Q: Final = 10
_TCMSG: Final = struct.Struct("=BxHiIII")
_HTB_GLOB: Final = struct.Struct("=5I")
_HTB_OPT: Final = struct.Struct("=BBHhHI BBHhHI 5I")
_U32_HEAD: Final = struct.Struct("=BBB x HHhh I")
_TICK_NS: Final = 64
"""One tick of the packet scheduler's clock (PSCHED_SHIFT 6): the unit of HTB's bursts."""

PROTOCOLS: Final = {"ip": 0x0800, "ipv6": 0x86DD, "arp": 0x0806}
PRIOS: Final = {"ip": 0x7A10, "ipv6": 0x7A11, "arp": 0x7A12}
"""tc preferences of our filters: one protocol per preference, as the kernel wants it."""


def handle_of(minor: int) -> int:
    return OUR_ROOT | minor


def leaf_handle(minor: int) -> int:
    """Handle of the bfifo below a leaf: a major of its own, so that it can be changed in place."""
    return (0x7A20 + minor - qdisc.FIRST_LEAF) << 16


def tcmsg(ifindex: int, handle: int = 0, parent: int = 0, info: int = 0) -> bytes:
    return _TCMSG.pack(0, 0, ifindex, handle, parent, info)


def body(head: bytes, kind: str, options: bytes, flags: int = 0) -> bytes:
    """A message about a qdisc, class or filter; `flags` of the attribute that holds the options."""
    return head + attribute(_KIND, kind.encode() + b"\0") + attribute(_OPTIONS | flags, options)


# ------------------------------------------------------------------ encode


def htb_qdisc(ifindex: int, default: int) -> bytes:
    options = attribute(_HTB_INIT, _HTB_GLOB.pack(3, _R2Q, default, 0, 0))
    return body(tcmsg(ifindex, OUR_ROOT, ROOT), "htb", options)


def htb_class(ifindex: int, parent: int, minor: int, prio: int, shape: Shape) -> bytes:
    low = 2**32 - 1
    spec = (0, _LINKLAYER_ETHERNET, 0, 0, 0)
    parms = _HTB_OPT.pack(
        *(*spec, min(shape.rate, low)),
        *(*spec, min(shape.ceil, low)),
        *(_ticks(shape.burst), _ticks(shape.cburst), shape.quantum, 0, prio),
    )
    options = attribute(_HTB_PARMS, parms)
    if shape.rate > low:
        options += attribute(_HTB_RATE64, struct.pack("=Q", shape.rate))
    if shape.ceil > low:
        options += attribute(_HTB_CEIL64, struct.pack("=Q", shape.ceil))
    return body(tcmsg(ifindex, handle_of(minor), handle_of(parent) if parent else OUR_ROOT), "htb", options)


def bfifo(ifindex: int, minor: int, limit: int) -> bytes:
    return body(tcmsg(ifindex, leaf_handle(minor), handle_of(minor)), "bfifo", struct.pack("=I", limit))


def u32(ifindex: int, filter_: Filter) -> bytes:
    words: dict[int, list[int]] = {}
    for at, mask, value in filter_.match:
        word = words.setdefault(at & ~3, [0, 0])
        shift = 8 * (3 - (at & 3))
        word[0] |= mask << shift
        word[1] |= value << shift
    keys = sorted(words.items()) or [(0, [0, 0])]
    select = _U32_HEAD.pack(_U32_TERMINAL, 0, len(keys), 0, 0, 0, 0, 0)
    for at, (mask, value) in keys:
        select += struct.pack(">II", mask, value) + struct.pack("=ii", at, 0)
    target = attribute(_U32_CLASSID, struct.pack("=I", handle_of(filter_.minor)))
    return body(filter_head(ifindex, filter_), "u32", target + attribute(_U32_SEL, select))


def filter_head(ifindex: int, filter_: Filter) -> bytes:
    """Address of a filter: a new one names its node only, the kernel adds its hash table's number."""
    protocol = filter_.protocol
    info = PRIOS[protocol] << 16 | swap(PROTOCOLS[protocol])
    return tcmsg(ifindex, filter_.handle or filter_.node, OUR_ROOT, info)


def swap(short: int) -> int:
    """A 16-bit number as the kernel's big-endian fields show it in our byte order."""
    return int.from_bytes(short.to_bytes(2, "big"), sys.byteorder)


def _ticks(microseconds: int) -> int:
    return min(microseconds * 1000 // _TICK_NS, 2**32 - 1)


def _microseconds(ticks: int) -> int:
    # Encoding rounds a microsecond down to a tick (64 ns), so rounding to the nearest undoes it exactly.
    return round(ticks * _TICK_NS / 1000)


# ------------------------------------------------------------------ decode


class Message:
    """One answer to a dump of qdiscs, classes or filters."""

    def __init__(self, payload: bytes) -> None:
        head: tuple[int, ...] = _TCMSG.unpack_from(payload)
        _, _, self.ifindex, self.handle, self.parent, self.info = head
        self._attributes = attributes(payload[_TCMSG.size :])
        self.kind = self._attributes.get(_KIND, b"").rstrip(b"\0").decode()
        self.raw_options = self._attributes.get(_OPTIONS, b"")

    @property
    def minor(self) -> int:
        return self.handle & 0xFFFF

    def htb_global(self) -> tuple[int, int]:
        """(minor of the default class, packets that bypassed all classes) of an htb qdisc."""
        _, _, default, _, direct = _HTB_GLOB.unpack(attributes(self.raw_options)[_HTB_INIT])
        return int(default) & 0xFFFF, int(direct)

    def htb_class(self) -> tuple[Shape, int, bool]:
        """(shape, prio, counts Ethernet frames) of an htb class."""
        options = attributes(self.raw_options)
        parms = _HTB_OPT.unpack(options[_HTB_PARMS])
        rate, ceil, (burst, cburst, quantum, _, prio) = parms[5], parms[11], parms[12:]
        if _HTB_RATE64 in options:
            rate = struct.unpack("=Q", options[_HTB_RATE64][:8])[0]
        if _HTB_CEIL64 in options:
            ceil = struct.unpack("=Q", options[_HTB_CEIL64][:8])[0]
        ethernet = all(parms[at] & 0xF == _LINKLAYER_ETHERNET and parms[at + 1] == 0 for at in (1, 7))
        return Shape(rate, ceil, _microseconds(burst), _microseconds(cburst), quantum), prio, ethernet

    def fifo_limit(self) -> int:
        return int.from_bytes(self.raw_options[:4], sys.byteorder)

    def u32(self) -> Filter | None:
        """The filter (protocol "? ..." if the preference is not ours), None for a hash table."""
        options = attributes(self.raw_options)
        if _U32_SEL not in options or _U32_CLASSID not in options:
            return None
        select = options[_U32_SEL]
        match = []
        for key in range(select[2]):
            mask, value = struct.unpack_from(">II", select, 16 + 16 * key)
            at = struct.unpack_from("=i", select, 24 + 16 * key)[0]
            for byte in range(4):
                shift = 8 * (3 - byte)
                if mask >> shift & 0xFF:
                    match.append((at + byte, mask >> shift & 0xFF, value >> shift & 0xFF))
        ours = {(PRIOS[name], swap(PROTOCOLS[name])): name for name in PROTOCOLS}
        protocol = ours.get((self.info >> 16, self.info & 0xFFFF), f"? (pref {self.info >> 16:#x})")
        target = struct.unpack("=I", options[_U32_CLASSID])[0]
        minor = target & 0xFFFF if target >> 16 == qdisc.MAJOR else -1
        return Filter(protocol, self.handle & 0xFFF, tuple(sorted(match)), minor, self.handle)

    def count(self) -> ClassCount:
        """Statistics (TCA_STATS2) of a class or qdisc."""
        stats = attributes(self._attributes.get(_STATS2, b""))
        total, packets = struct.unpack_from("=QI", stats[1])
        if 8 in stats:
            packets = struct.unpack("=Q", stats[8])[0]
        waiting, backlog, drops, _, overlimits = struct.unpack_from("=5I", stats[3])
        return ClassCount(total, packets, drops, overlimits, backlog, waiting)
