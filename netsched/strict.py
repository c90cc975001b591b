"""The queues of one port in strict order at the NIC's own rate, as data: qdisc prio or ets.

The kernel's plainest priority queues: one band for each class, the first that has a packet sends. There is no
rate that must be known and no floor, so a band waits for as long as one above has packets.

    root prio (or ets, every band strict) 7a1:
      band 7a1:1 .. one per class, a bfifo below
    filters at the root as `netsched.qdisc` has them; what none of them takes is the last class's

Mechanism names: "prio" and "ets". Layout and meaning: linux/pkt_sched.h, tc-prio(8), tc-ets(8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from netsched import marking
from netsched.qdisc import MAJOR, Filter, QueueError, differing_filters, sort_by_dscp
from netsched.units import show_size

Kind = Literal["prio", "ets"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
PRIORITIES: Final = 16
"""Packet priorities that a map to bands has (TC_PRIO_MAX + 1)."""
LIMIT: Final = 4 << 20
"""Bytes that a band holds unless told otherwise: 3 ms of a 10 Gbit/s NIC, 34 ms of a 1 Gbit/s one."""
_MIN_BANDS: Final = 2


@dataclass(frozen=True)
class Strict:
    """The queues of one port.

    strict  how many of the bands, from the first, are in strict order
    band_of_priority  the band of packet priority 0 to 15, for what no filter takes
    limits  bytes that each band holds; None: no bfifo there
    """

    kind: Kind
    strict: int
    band_of_priority: tuple[int, ...]
    limits: tuple[int | None, ...]
    filters: tuple[Filter, ...]

    @property
    def bands(self) -> int:
        return len(self.limits)


def minor_of(cls: int) -> int:
    """Minor number of a class's band: the kernel counts them from 1."""
    return cls + 1


def port(kind: Kind, queues: int = marking.CLASSES, *, limit: int = LIMIT, frame: int = 1514) -> Strict:
    """The queues of a port with `queues` strict priority classes of at most `limit` bytes each.

    frame  largest Ethernet frame in bytes (MTU + 14)

    QueueError if the queues are not 1 to 8 or one cannot hold a frame.
    """
    if not 1 <= queues <= marking.CLASSES:
        raise QueueError(f"queues = {queues}: a port has 1 to {marking.CLASSES}")
    if limit < frame:
        raise QueueError(f"limit = {limit} B: a queue holds at least one frame ({frame} B)")
    # prio takes no fewer than two; the second of them then has no packets.
    bands = max(queues, _MIN_BANDS)
    filters = sort_by_dscp(queues, minor_of)
    return Strict(kind, bands, (queues - 1,) * PRIORITIES, (limit,) * bands, filters)


def differences(desired: Strict, actual: Strict | None) -> list[str]:
    """What in `actual` is not as desired, one line of text each; empty if the port is as it should be."""
    if actual is None:
        return [f"root: no {desired.kind} with handle {MAJOR:x}: (wanted: {desired.bands} bands)"]
    found = []
    if _root(desired) != _root(actual):
        found.append(f"root: {_show_root(actual)}, wanted {_show_root(desired)}")
    for band, (want, have) in enumerate(zip(desired.limits, actual.limits, strict=False)):
        if want != have:
            found.append(f"band {MAJOR:x}:{minor_of(band):x}: {_show(have)}, wanted {_show(want)}")
    return found + differing_filters(desired.filters, actual.filters)


def _root(one: Strict) -> tuple[object, ...]:
    return one.kind, one.bands, one.strict, one.band_of_priority


def _show_root(one: Strict) -> str:
    others = " ".join(map(str, one.band_of_priority))
    return f"{one.kind} with {one.bands} bands, {one.strict} of them strict, priorities to bands {others}"


def _show(limit: int | None) -> str:
    return "no bfifo" if limit is None else f"bfifo {show_size(limit)}"
