"""Making a port's queues what they should be: desired state, what the kernel has, and the least work between.

The order of the steps is such that whatever was done when the process died, traffic still flows: packets
bypass an HTB whose default class is missing, and filters come after the classes that they name.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from typing import Final

from netsched import qdisc_wire as wire
from netsched import strict
from netsched.netlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Netlink, NetlinkError
from netsched.qdisc import (
    BEST_EFFORT_LEAF,
    MAJOR,
    PARENT,
    ClassCount,
    Counters,
    Filter,
    Leaf,
    QueueError,
    Shape,
    Tree,
    differences,
)

DEFAULT_ROOTS: Final = frozenset({"noqueue", "pfifo_fast", "mq", "fq_codel", "fq", "pfifo"})
"""Root qdiscs that the kernel attaches by itself; only with handle 0: a handle means that somebody set it."""

OUR_ROOTS: Final = frozenset(f"{kind} {MAJOR:x}:" for kind in ("htb", *strict.KINDS))
"""Root qdiscs that this program sets."""
_NEW: Final = NLM_F_CREATE | NLM_F_EXCL


def read_back(link: Netlink, ifindex: int) -> Tree | None:
    """The tree as the kernel has it, complete or not; None if the root is not ours."""
    qdiscs = dump(link, wire.GETQDISC, ifindex)
    root = next((q for q in qdiscs if q.parent == wire.ROOT), None)
    if root is None or root.kind != "htb" or root.handle != wire.OUR_ROOT:
        return None
    limits = {q.parent: q.fifo_limit() for q in qdiscs if q.kind == "bfifo"}
    parent: Shape | None = None
    leaves, ethernet = [], True
    for entry in dump(link, wire.GETTCLASS, ifindex):
        if entry.kind != "htb":
            continue
        shape, prio, frames = entry.htb_class()
        ethernet &= frames
        if entry.minor == PARENT:
            parent = shape
        else:
            leaves.append(Leaf(entry.minor, prio, shape, limits.get(entry.handle)))
    leaves.sort(key=lambda leaf: leaf.minor)
    return Tree(root.htb_global()[0], parent, tuple(leaves), filters(link, ifindex), ethernet)


def filters(link: Netlink, ifindex: int) -> tuple[Filter, ...]:
    """The filters at our root, whatever its kind."""
    found = []
    for entry in dump(link, wire.GETTFILTER, ifindex, wire.OUR_ROOT):
        if entry.kind != "u32":
            found.append(Filter(f"? ({entry.kind})", entry.handle, (), -1))
        elif (filter_ := entry.u32()) is not None:
            found.append(filter_)
    return tuple(sorted(found, key=lambda f: (f.protocol, f.node)))


def root_of(link: Netlink, ifindex: int) -> str:
    """The root qdisc in words: "htb 7a1:"; "pfifo_fast" if the kernel attached it; "" if there is none."""
    for entry in dump(link, wire.GETQDISC, ifindex):
        if entry.parent == wire.ROOT:
            return f"{entry.kind} {entry.handle >> 16:x}:" if entry.handle else entry.kind
    return ""


def kinds(link: Netlink, ifindex: int) -> frozenset[str]:
    """The kinds of all queue disciplines of an interface on the way out, the root's and those below."""
    entries = dump(link, wire.GETQDISC, ifindex)
    return frozenset(entry.kind for entry in entries) - {"clsact", "ingress"}


def check_ours(link: Netlink, ifindex: int) -> None:
    """QueueError if the root qdisc was put there by somebody else: their queues are not ours to replace."""
    root = root_of(link, ifindex)
    if root not in DEFAULT_ROOTS | OUR_ROOTS | {""}:
        advice = "delete it first or leave the port alone"
        raise QueueError(f"interface {ifindex}: root qdisc is {root!r}, set by somebody else; {advice}")


def apply(link: Netlink, ifindex: int, desired: Tree) -> int:
    """Make the port's tree `desired` and read it back; returns the number of changes (0: it was so already).

    Classes, limits and filters are changed in place, so that no queue is lost. QueueError if the root is
    somebody else's or if the kernel's tree still differs afterwards; NetlinkError if it refuses a step.
    """
    before = link.operations
    actual = read_back(link, ifindex)
    if actual is None:
        check_ours(link, ifindex)
        if ifindex not in link.links().values():
            raise QueueError(f"interface {ifindex}: there is none with this index in the namespace")
        link.request(wire.NEWQDISC, wire.htb_qdisc(ifindex, desired.default), _NEW)
        actual = Tree(desired.default, None, (), ())
    elif actual.default != desired.default:
        raise QueueError(f"interface {ifindex}: {differences(desired, actual)[0]}; remove the tree first")
    if desired.parent is not None and actual.parent != desired.parent:
        flags = NLM_F_REPLACE if actual.parent is not None else _NEW
        link.request(wire.NEWTCLASS, wire.htb_class(ifindex, 0, PARENT, 0, desired.parent), flags)
    _apply_leaves(link, ifindex, desired, actual)
    apply_filters(link, ifindex, desired.filters, actual.filters)
    _drop_leaves(link, ifindex, desired, actual)
    operations = link.operations - before
    if operations and (wrong := differences(desired, read_back(link, ifindex))):
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise QueueError(f"interface {ifindex}: the kernel did not take it: {wrong[0]}{more}")
    return operations


def _apply_leaves(link: Netlink, ifindex: int, desired: Tree, actual: Tree) -> None:
    have = {leaf.minor: leaf for leaf in actual.leaves}
    # The default leaf first: from then on nothing bypasses the port's rate.
    for leaf in sorted(desired.leaves, key=lambda leaf: (leaf.minor != BEST_EFFORT_LEAF, leaf.minor)):
        old = have.get(leaf.minor)
        if old is None or (old.prio, old.shape) != (leaf.prio, leaf.shape):
            flags = _NEW if old is None else NLM_F_REPLACE
            body = wire.htb_class(ifindex, PARENT, leaf.minor, leaf.prio, leaf.shape)
            link.request(wire.NEWTCLASS, body, flags)
        if leaf.limit is not None and (old is None or old.limit != leaf.limit):
            flags = (
                NLM_F_REPLACE if old is not None and old.limit is not None else NLM_F_CREATE | NLM_F_REPLACE
            )
            link.request(wire.NEWQDISC, wire.bfifo(ifindex, leaf.minor, leaf.limit), flags)


def apply_filters(link: Netlink, ifindex: int, desired: Sequence[Filter], actual: Sequence[Filter]) -> None:
    """Make the filters at our root what they should be. QueueError if one is somebody else's."""
    want = {(f.protocol, f.node): f for f in desired}
    have = {(f.protocol, f.node): f for f in actual}
    for key in have.keys() - want.keys():
        if key[0] not in wire.PROTOCOLS:
            raise QueueError(f"interface {ifindex}: a filter of somebody else is on our root: {have[key]}")
        link.request(wire.DELTFILTER, wire.filter_head(ifindex, have[key]))
    for key, filter_ in want.items():
        old = have.get(key)
        if old == filter_:
            continue
        if old is not None:
            # u32 would change the target in place, but keeps the old keys without an error.
            link.request(wire.DELTFILTER, wire.filter_head(ifindex, old))
        link.request(wire.NEWTFILTER, wire.u32(ifindex, filter_), _NEW)


def _drop_leaves(link: Netlink, ifindex: int, desired: Tree, actual: Tree) -> None:
    for minor in {leaf.minor for leaf in actual.leaves} - {leaf.minor for leaf in desired.leaves}:
        link.request(wire.DELTCLASS, wire.tcmsg(ifindex, wire.handle_of(minor)))


def counters(link: Netlink, ifindex: int) -> Counters:
    """What each class has carried, dropped and holds. QueueError if the tree is not ours."""
    root = next((q for q in dump(link, wire.GETQDISC, ifindex) if q.handle == wire.OUR_ROOT), None)
    if root is None:
        raise QueueError(
            f"interface {ifindex}: root qdisc is {root_of(link, ifindex)!r}, not ours: no class counters"
        )
    by_minor: dict[int, ClassCount] = {}
    for entry in dump(link, wire.GETTCLASS, ifindex):
        if entry.kind == "htb" and entry.handle >> 16 == MAJOR:
            by_minor[entry.minor] = entry.count()
    parent = by_minor.pop(PARENT, None)
    return Counters(
        classes=tuple(by_minor[minor] for minor in sorted(by_minor)),
        direct_packets=root.htb_global()[1],
        parent_overlimits=parent.overlimits if parent else 0,
    )


def remove(link: Netlink, ifindex: int, drain_s: float = 0.0) -> bool:
    """Take our tree away, after which the kernel attaches its default; False if it was not there.

    With `drain_s` the port's rate is lifted first and the queues may empty for so many seconds: deleting a
    root drops what waits in it.
    """
    tree = read_back(link, ifindex)
    if tree is None:
        return False
    if drain_s > 0 and tree.leaves:
        _open(link, ifindex, tree)
        end = time.monotonic() + drain_s
        while time.monotonic() < end and any(c.backlog_bytes for c in counters(link, ifindex).classes):
            time.sleep(0.005)
    delete_root(link, ifindex)
    return True


def delete_root(link: Netlink, ifindex: int) -> None:
    """Delete our root, whatever its kind; nothing if it, or the interface, has gone meanwhile."""
    try:
        link.request(wire.DELQDISC, wire.tcmsg(ifindex, wire.OUR_ROOT, wire.ROOT))
    except NetlinkError as error:
        gone = error.errno in (errno.ENOENT, errno.EINVAL, errno.ENODEV)
        if not gone or root_of(link, ifindex) in OUR_ROOTS:
            raise


def _open(link: Netlink, ifindex: int, tree: Tree) -> None:
    fast = Shape(rate=2**37, ceil=2**37, burst=1000, cburst=1000)
    if tree.parent is not None:
        link.request(wire.NEWTCLASS, wire.htb_class(ifindex, 0, PARENT, 0, fast), NLM_F_REPLACE)
    for leaf in tree.leaves:
        link.request(
            wire.NEWTCLASS, wire.htb_class(ifindex, PARENT, leaf.minor, leaf.prio, fast), NLM_F_REPLACE
        )


def dump(link: Netlink, message: int, ifindex: int, parent: int = 0) -> list[wire.Message]:
    """What the kernel has of one interface: its qdiscs, classes or filters."""
    payloads = link.dump(message, wire.tcmsg(ifindex, parent=parent))
    return [entry for entry in map(wire.Message, payloads) if entry.ifindex == ifindex]
