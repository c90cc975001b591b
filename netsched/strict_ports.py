"""Making a port's queues what `netsched.strict` says: the same verbs as `netsched.ports` has for a tree.

Fails open at every step: as soon as the root is there every packet has a band, and filters come last.
"""

from __future__ import annotations

import errno
import time
from typing import Final

from netsched import ports, strict_wire
from netsched import qdisc_wire as wire
from netsched.errors import CapabilityError
from netsched.netlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Netlink, NetlinkError
from netsched.qdisc import MAJOR, ClassCount, Counters, QueueError
from netsched.strict import KINDS, Kind, Strict, differences, minor_of

_POLL_S: Final = 0.005


def missing(link: Netlink, ifindex: int, kind: Kind) -> str:
    """Why this kernel cannot have such queues, with the option that it lacks; "" if it can.

    Asked for queues that no kernel takes, so that nothing is changed. CapabilityError without CAP_NET_ADMIN.
    """
    if ports.root_of(link, ifindex) == f"{kind} {MAJOR:x}:":
        return ""
    try:
        link.request(wire.NEWQDISC, strict_wire.impossible(ifindex, kind), NLM_F_CREATE | NLM_F_REPLACE)
    except NetlinkError as error:
        if error.errno == errno.ENOENT:
            option = f"CONFIG_NET_SCH_{kind.upper()}"
            return f"this kernel has no sch_{kind}: {option} is missing"
        if error.errno == errno.EPERM:
            raise CapabilityError(f"scheduler {kind}: CAP_NET_ADMIN is needed: run as root") from None
        if error.errno in (errno.EINVAL, errno.ERANGE):
            return ""
        raise
    raise QueueError(f"interface {ifindex}: the kernel took {kind} queues that cannot be")


def read_back(link: Netlink, ifindex: int) -> Strict | None:
    """The queues as the kernel has them, complete or not; None if the root is not ours or of another kind."""
    qdiscs = ports.dump(link, wire.GETQDISC, ifindex)
    root = next((q for q in qdiscs if q.parent == wire.ROOT), None)
    if root is None or root.handle != wire.OUR_ROOT:
        return None
    kind = next((one for one in KINDS if one == root.kind), None)
    if kind is None:
        return None
    bands, strict, of_priority = strict_wire.read_qdisc(root)
    have = {q.parent: q.fifo_limit() for q in qdiscs if q.kind == "bfifo"}
    limits = tuple(have.get(wire.handle_of(minor_of(band))) for band in range(bands))
    return Strict(kind, strict, of_priority, limits, ports.filters(link, ifindex))


def apply(link: Netlink, ifindex: int, desired: Strict) -> int:
    """Make the port's queues as desired and read them back; returns the number of changes.

    Everything is changed in place: but for bands that go, no queue is lost. QueueError if the root is
    somebody else's or if the kernel's queues still differ afterwards; NetlinkError if it refuses a step.
    """
    before = link.operations
    actual = read_back(link, ifindex)
    if actual is None or actual.kind != desired.kind:
        ports.check_ours(link, ifindex)
        link.request(wire.NEWQDISC, strict_wire.qdisc(ifindex, desired), NLM_F_CREATE | NLM_F_EXCL)
    elif strict_wire.qdisc(ifindex, desired) != strict_wire.qdisc(ifindex, actual):
        link.request(wire.NEWQDISC, strict_wire.qdisc(ifindex, desired), NLM_F_REPLACE)
    if link.operations != before:
        actual = read_back(link, ifindex)
    have = () if actual is None else actual.limits
    for band, limit in enumerate(desired.limits):
        old = have[band] if band < len(have) else None
        if limit is not None and limit != old:
            # In place of the kernel's pfifo, whose length in packets is the interface's, and may be 0.
            flags = NLM_F_REPLACE if old is not None else NLM_F_CREATE | NLM_F_REPLACE
            link.request(wire.NEWQDISC, wire.bfifo(ifindex, minor_of(band), limit), flags)
    ports.apply_filters(link, ifindex, desired.filters, () if actual is None else actual.filters)
    operations = link.operations - before
    if operations and (wrong := differences(desired, read_back(link, ifindex))):
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise QueueError(f"interface {ifindex}: the kernel did not take it: {wrong[0]}{more}")
    return operations


def counters(link: Netlink, ifindex: int, queues: int) -> Counters:
    """What each class has carried, dropped and holds. QueueError if the queues are not ours."""
    if read_back(link, ifindex) is None:
        root = ports.root_of(link, ifindex)
        raise QueueError(f"interface {ifindex}: root qdisc is {root!r}, not ours: no class counters")
    found: dict[int, ClassCount] = {}
    for entry in ports.dump(link, wire.GETTCLASS, ifindex):
        if entry.kind in KINDS and entry.handle >> 16 == MAJOR:
            found[entry.minor] = entry.count()
    return Counters(tuple(found[minor_of(cls)] for cls in range(queues)), direct_packets=0)


def remove(link: Netlink, ifindex: int, drain_s: float = 0.0) -> bool:
    """Take our queues away, after which the kernel attaches its default; False if they were not there.

    For `drain_s` seconds at most the queues may empty; what waits then is lost, since the NIC's rate cannot
    be lifted.
    """
    actual = read_back(link, ifindex)
    if actual is None:
        return False
    end = time.monotonic() + drain_s
    while time.monotonic() < end and any(
        one.backlog_bytes for one in counters(link, ifindex, actual.bands).classes
    ):
        time.sleep(_POLL_S)
    ports.delete_root(link, ifindex)
    return True
