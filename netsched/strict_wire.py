"""Qdiscs prio and ets as the kernel's bytes, both ways.

Source: linux/pkt_sched.h, struct tc_prio_qopt and TCA_ETS_*.
"""

from __future__ import annotations

import struct
from typing import Final

from netsched import qdisc_wire as wire
from netsched.netlink import attribute, attributes
from netsched.strict import PRIORITIES, Kind, Strict

NLA_F_NESTED: Final = 0x8000
_TRIAL: Final = 0x7A1F << 16
_PRIO_OPT: Final = struct.Struct(f"=i{PRIORITIES}B")
_ETS_NBANDS, _ETS_NSTRICT, _ETS_PRIOMAP, _ETS_PRIOMAP_BAND = 1, 2, 5, 6


def qdisc(ifindex: int, want: Strict) -> bytes:
    """The root with its bands and its map of priorities; bfifos and filters come after it."""
    return wire.body(wire.tcmsg(ifindex, wire.OUR_ROOT, wire.ROOT), want.kind, *_options(want))


def impossible(ifindex: int, kind: Kind) -> bytes:
    """A root that no kernel takes: one that has the qdisc says EINVAL, one that lacks it ENOENT.

    prio has 2 bands at least, ets 1. The handle is not that of our root, which would be changed, not made.
    """
    head = wire.tcmsg(ifindex, _TRIAL, wire.ROOT)
    if kind == "prio":
        return wire.body(head, kind, _PRIO_OPT.pack(1, *(0,) * PRIORITIES))
    return wire.body(head, kind, _byte(_ETS_NBANDS, 0), NLA_F_NESTED)


def _options(want: Strict) -> tuple[bytes, int]:
    """The options and the flag of the attribute that holds them: ets wants it said that they are nested."""
    if want.kind == "prio":
        return _PRIO_OPT.pack(want.bands, *want.band_of_priority), 0
    bands = b"".join(_byte(_ETS_PRIOMAP_BAND, band) for band in want.band_of_priority)
    counts = _byte(_ETS_NBANDS, want.bands) + _byte(_ETS_NSTRICT, want.strict)
    return counts + attribute(_ETS_PRIOMAP | NLA_F_NESTED, bands), NLA_F_NESTED


def _byte(kind: int, value: int) -> bytes:
    return attribute(kind, bytes([value]))


def read_qdisc(entry: wire.Message) -> tuple[int, int, tuple[int, ...]]:
    """(bands, strict ones among them, band of each priority) of a prio or ets qdisc in a dump."""
    if entry.kind == "prio":
        bands, *of_priority = _PRIO_OPT.unpack_from(entry.raw_options)
        return int(bands), int(bands), tuple(of_priority)
    options = attributes(entry.raw_options)
    # One attribute for each priority, all of the same type: 4 bytes of head, 1 of value, 3 of padding.
    nested = options.get(_ETS_PRIOMAP, b"")
    strict = options.get(_ETS_NSTRICT, b"\0")[0]
    return options[_ETS_NBANDS][0], strict, tuple(nested[at + 4] for at in range(0, len(nested), 8))
