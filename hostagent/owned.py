"""A port's queues whatever their kind: HTB classes under a rate, or strict bands at the NIC's own.

Here and nowhere else is it asked which of the two a port has.
"""

from __future__ import annotations

from netsched import ports, qdisc, strict, strict_ports
from netsched.netlink import Netlink
from netsched.qdisc import Counters, Tree
from netsched.strict import Strict
from netsched.units import show_rate

Wanted = Tree | Strict


def mechanism(want: Wanted) -> str:
    return want.kind if isinstance(want, Strict) else qdisc.MECHANISM


def rate(want: Wanted) -> float:
    """The port's rate in bytes/s; 0 where it is the NIC's own."""
    return 0 if isinstance(want, Strict) or want.parent is None else want.parent.rate


def shown_rate(want: Wanted) -> str:
    return show_rate(rate(want)) if rate(want) else "the NIC's own rate"


def differences(link: Netlink, index: int, want: Wanted) -> list[str]:
    """What the kernel has otherwise, one line of text each."""
    if isinstance(want, Strict):
        return strict.differences(want, strict_ports.read_back(link, index))
    return qdisc.differences(want, ports.read_back(link, index))


def apply(link: Netlink, index: int, want: Wanted) -> int:
    """Make the port as wanted; the number of changes. Queues of ours of another kind are taken away first."""
    before = link.operations
    root = ports.root_of(link, index)
    kind = want.kind if isinstance(want, Strict) else "htb"
    if root in ports.OUR_ROOTS and not root.startswith(f"{kind} "):
        remove(link, index)
    if isinstance(want, Strict):
        strict_ports.apply(link, index, want)
    else:
        ports.apply(link, index, want)
    return link.operations - before


def remove(link: Netlink, index: int, drain_s: float = 0.0) -> bool:
    """Take whatever of ours is there away; False if nothing was."""
    return ports.remove(link, index, drain_s) or strict_ports.remove(link, index, drain_s)


def counters(link: Netlink, index: int, want: Wanted, queues: int) -> Counters:
    """What each class has carried, dropped and holds. QueueError if the queues are not ours."""
    if isinstance(want, Strict):
        return strict_ports.counters(link, index, queues)
    return ports.counters(link, index)
