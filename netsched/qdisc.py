"""The queues of one port as data: strict priority classes under one rate.

Linux forgets, clamps and ignores queue settings without an error (a burst of 0 at 10 Gbit/s, a default
class that does not exist), so a tree is something to compare: `port` says what it should be,
`ports.read_back` what it is, `differences` what is wrong, and `ports.apply` does only what is missing.

    root htb 7a1:  default -> the best-effort leaf
      parent 7a1:1  rate = ceil = the port's rate
        leaf 7a1:10 .. one per class: prio = class, rate = its floor, ceil = the port's rate; a bfifo below
    filters at the root: DSCP (IPv4, IPv6), ARP and neighbour discovery -> leaf

HTB serves leaves within their floor first and then, by prio, those that borrow from the parent; with floors
of 0.1 % that is strict priority. Mechanism name: "htb-prio".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from netsched import marking
from netsched.errors import NetschedError
from netsched.units import show_rate, show_size

MECHANISM: Final = "htb-prio"
MAJOR: Final = 0x7A1
PARENT: Final = 0x1
FIRST_LEAF: Final = 0x10
BEST_EFFORT_LEAF: Final = 0x1F
"""Minor of the last class, whatever the number of queues: HTB's default class cannot be changed in place."""
QUANTUM: Final = 60_000
"""Bytes of a deficit round: decides nothing, as every leaf has a prio of its own, but must be 1514-200000."""

MIN_RATE: Final = 1e6 / 8
MAX_RATE: Final = 100e9 / 8
_MIN_FLOOR: Final = 1000.0
_MAX_FLOORS: Final = 0.9


class QueueError(NetschedError):
    """The queues of a port are somebody else's, or did not become what was asked."""

    exit_code = 3


@dataclass(frozen=True)
class Shape:
    """Rate limit of one HTB class, in units in which the kernel's copy is exact.

    `rate` and `ceil` in bytes/s, `burst` and `cburst` in microseconds of the respective rate.
    """

    rate: int
    ceil: int
    burst: int
    cburst: int
    quantum: int = QUANTUM

    def __str__(self) -> str:
        burst, cburst = (show_size(us * rate / 1e6) for us, rate in self._bursts())
        rates = f"rate {show_rate(self.rate)}, ceil {show_rate(self.ceil)}"
        return f"{rates}, burst {burst}, cburst {cburst}, quantum {self.quantum} B"

    def _bursts(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.burst, self.rate), (self.cburst, self.ceil)


@dataclass(frozen=True)
class Leaf:
    """One class's queue. `prio` 0 is served first; `limit` is its length in bytes, None: no bfifo."""

    minor: int
    prio: int
    shape: Shape
    limit: int | None

    def __str__(self) -> str:
        limit = "no bfifo" if self.limit is None else f"bfifo {show_size(self.limit)}"
        return f"prio {self.prio}, {self.shape}, {limit}"


Match = tuple[tuple[int, int, int], ...]
"""Bytes to compare: (offset in the network header, mask, value), by offset; () matches everything."""


@dataclass(frozen=True)
class Filter:
    """Packets of `protocol` ("ip", "ipv6", "arp") that match go to the leaf with this minor.

    `node` is the last part of its u32 handle, ours to choose; `handle` the whole, the kernel's.
    """

    protocol: str
    node: int
    match: Match
    minor: int
    handle: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Tree:
    """The queues of one port. `leaves` and `filters` are sorted by minor and by (protocol, node)."""

    default: int
    parent: Shape | None
    leaves: tuple[Leaf, ...]
    filters: tuple[Filter, ...]
    linklayer_ok: bool = True

    @property
    def queues(self) -> int:
        return len(self.leaves)


@dataclass(frozen=True)
class ClassCount:
    """What one class has carried since it was made, and what waits in it. Bytes include Ethernet headers."""

    bytes: int
    packets: int
    drops: int
    overlimits: int
    backlog_bytes: int
    backlog_packets: int


@dataclass(frozen=True)
class Counters:
    """`classes[c]` for class c. `direct_packets` bypassed every class: anything but 0 is a broken tree."""

    classes: tuple[ClassCount, ...]
    direct_packets: int
    parent_overlimits: int = 0


def minor_of(cls: int, queues: int) -> int:
    """Minor number of class `cls`'s leaf; the last class has the same one for any number of queues."""
    return BEST_EFFORT_LEAF if cls == queues - 1 else FIRST_LEAF + cls


def burst_us(rate: float, frame: int, burst_s: float) -> int:
    """Microseconds of `rate` that may go out at once: `burst_s`, but 2 frames at least.

    Whatever a late timer misses beyond the burst is lost to the port, so it must cover the timer's
    lateness; at a low rate that is less than a frame, and below 2 frames HTB stalls between packets.
    """
    return max(1, math.ceil(max(burst_s, 2 * frame / rate) * 1e6))


def port(
    rate: float,
    queues: int = marking.CLASSES,
    *,
    floor: float = 0.001,
    limit: int | None = None,
    burst_s: float = 1e-3,
    frame: int = 1514,
) -> Tree:
    """The tree of a port of `rate` bytes/s with `queues` strict priority classes.

    floor    share of the port that each class gets even when a more urgent one could fill it
    limit    bytes that each queue holds; default max(256 KiB, 10 ms at the port's rate)
    burst_s  seconds of the rate that may go out at once after a pause
    frame    largest Ethernet frame in bytes (MTU + 14)

    QueueError if the rate is not 1 Mbit/s to 100 Gbit/s, the queues are not 1 to 8, or the floors take more
    than 90 % of the port.
    """
    if not MIN_RATE <= rate <= MAX_RATE:
        raise QueueError(
            f"rate = {show_rate(rate)}: a port has {show_rate(MIN_RATE)} to {show_rate(MAX_RATE)}"
        )
    if not 1 <= queues <= marking.CLASSES:
        raise QueueError(f"queues = {queues}: a port has 1 to {marking.CLASSES}")
    if not 0 <= floor * queues <= _MAX_FLOORS:
        raise QueueError(f"floor = {floor:.3g}: {queues} of them must leave 10 % of the port free")
    if not frame >= 64:
        raise QueueError(f"frame = {frame} B: a frame has 64 B or more")
    if not 0 <= burst_s <= 1:
        raise QueueError(f"burst = {burst_s} s: a port has 0 s to 1 s")
    if limit is not None and limit < frame:
        raise QueueError(f"limit = {limit} B: a queue holds at least one frame ({frame} B)")
    ceil = round(rate)
    least = round(max(floor * rate, _MIN_FLOOR))
    length = max(256 * 1024, round(rate * 10e-3)) if limit is None else limit
    cburst = burst_us(ceil, frame, burst_s)
    shape = Shape(rate=least, ceil=ceil, burst=burst_us(least, frame, 0.0), cburst=cburst)
    leaves = tuple(Leaf(minor_of(cls, queues), cls, shape, length) for cls in range(queues))
    parent = Shape(rate=ceil, ceil=ceil, burst=cburst, cburst=cburst)
    return Tree(BEST_EFFORT_LEAF, parent, leaves, sort_by_dscp(queues, lambda cls: minor_of(cls, queues)))


def sort_by_dscp(queues: int, minor_of: Callable[[int], int]) -> tuple[Filter, ...]:
    """Filters that send each class's packets to the minor of its queue.

    DSCPs, and what must never starve: without ARP and neighbour discovery nothing new can connect. The last
    class needs none: it has what no filter takes.
    """
    if queues == 1:
        return ()
    top = minor_of(0)
    dscps = [(marking.CONTROL_DSCP, top)]
    dscps += [(marking.dscp_of(cls, queues), minor_of(cls)) for cls in range(queues - 1)]
    found = [Filter("arp", 1, (), top)]
    for node, (dscp, minor) in enumerate(dscps, start=1):
        found.append(Filter("ip", node, ((1, 0xFC, dscp << 2),), minor))
        # The traffic class straddles the first two bytes of an IPv6 header, after the 4-bit version.
        found.append(Filter("ipv6", node, ((0, 0x0F, dscp >> 2), (1, 0xC0, (dscp & 3) << 6)), minor))
    for node, icmp in ((20, 135), (21, 136)):
        found.append(Filter("ipv6", node, ((6, 0xFF, 58), (40, 0xFF, icmp)), top))
    return tuple(sorted(found, key=lambda f: (f.protocol, f.node)))


def differences(desired: Tree, actual: Tree | None) -> list[str]:
    """What in `actual` is not as desired, one line of text each; empty if the port is as it should be."""
    if actual is None:
        return [f"root: no htb with handle {MAJOR:x}: (wanted: {desired.queues} classes)"]
    found = []
    if desired.default != actual.default:
        found.append(
            f"root: default class {MAJOR:x}:{actual.default:x}, wanted {MAJOR:x}:{desired.default:x}"
        )
    if not actual.linklayer_ok:
        found.append("root: a class does not count Ethernet frames, wanted linklayer ethernet")
    if desired.parent != actual.parent:
        found.append(f"port: {actual.parent or 'missing'}, wanted {desired.parent}")
    want, have = {leaf.minor: leaf for leaf in desired.leaves}, {leaf.minor: leaf for leaf in actual.leaves}
    for minor in sorted(want.keys() | have.keys()):
        if want.get(minor) != have.get(minor):
            is_, should = have.get(minor, "missing"), want.get(minor, "none")
            found.append(f"class {MAJOR:x}:{minor:x}: {is_}, wanted {should}")
    return found + differing_filters(desired.filters, actual.filters)


def differing_filters(desired: Sequence[Filter], actual: Sequence[Filter]) -> list[str]:
    """Which filters are missing, too many or others than desired, one line of text each."""
    wanted = {(f.protocol, f.node): f for f in desired}
    there = {(f.protocol, f.node): f for f in actual}
    found = []
    for key in sorted(wanted.keys() | there.keys()):
        if wanted.get(key) != there.get(key):
            is_, should = _show(there.get(key), "missing"), _show(wanted.get(key), "none")
            found.append(f"filter {key[0]} {key[1]:x}: {is_}, wanted {should}")
    return found


def _show(filter_: Filter | None, absent: str) -> str:
    if filter_ is None:
        return absent
    match = " ".join(f"{value:02x}/{mask:02x}+{at}" for at, mask, value in filter_.match) or "everything"
    return f"{match} to class {MAJOR:x}:{filter_.minor:x}"
