"""What the agent sets, written as the tc and nft commands that somebody would type for the same.

For reading, comparing and handing to those who must agree to it; the agent itself speaks netlink.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from netsched import marking, qdisc_wire
from netsched.qdisc import MAJOR, PARENT, Filter, Shape, Tree
from netsched.strict import Strict, minor_of

TABLE: Final = "netsched"
_BITS: Final = 8


def tc(interface: str, want: Tree | Strict) -> list[list[str]]:
    """The tc commands (one argv each) that build these queues where the kernel's default root is."""
    on = ["dev", interface]
    built = _bands(on, want) if isinstance(want, Strict) else _classes(on, want)
    return built + [_filter(on, filter_) for filter_ in want.filters]


def _bands(on: list[str], want: Strict) -> list[list[str]]:
    root = ["tc", "qdisc", "add", *on, "root", "handle", f"{MAJOR:x}:", want.kind, "bands", str(want.bands)]
    root += ["strict", str(want.strict)] if want.kind == "ets" else []
    commands = [[*root, "priomap", *map(str, want.band_of_priority)]]
    limits = [(minor_of(band), limit) for band, limit in enumerate(want.limits)]
    return commands + [_bfifo(on, minor, limit) for minor, limit in limits if limit is not None]


def _classes(on: list[str], tree: Tree) -> list[list[str]]:
    root = ["tc", "qdisc", "add", *on, "root", "handle", f"{MAJOR:x}:", "htb", "default", f"{tree.default:x}"]
    commands = [root]
    if tree.parent is not None:
        commands.append(_class(on, f"{MAJOR:x}:", PARENT, tree.parent))
    # As the agent does it: the default leaf first, from then on nothing bypasses the port's rate.
    for leaf in sorted(tree.leaves, key=lambda leaf: (leaf.minor != tree.default, leaf.minor)):
        commands.append(
            [*_class(on, f"{MAJOR:x}:{PARENT:x}", leaf.minor, leaf.shape), "prio", str(leaf.prio)]
        )
        if leaf.limit is not None:
            commands.append(_bfifo(on, leaf.minor, leaf.limit))
    return commands


def _bfifo(on: list[str], minor: int, limit: int) -> list[str]:
    handle = f"{qdisc_wire.leaf_handle(minor) >> 16:x}:"
    below = ["parent", f"{MAJOR:x}:{minor:x}", "handle", handle]
    return ["tc", "qdisc", "add", *on, *below, "bfifo", "limit", str(limit)]


def _class(on: list[str], parent: str, minor: int, shape: Shape) -> list[str]:
    return [
        *("tc", "class", "add", *on, "parent", parent, "classid", f"{MAJOR:x}:{minor:x}", "htb"),
        *("rate", f"{shape.rate * _BITS}bit", "ceil", f"{shape.ceil * _BITS}bit"),
        *("burst", f"{_burst(shape.burst, shape.rate)}b", "cburst", f"{_burst(shape.cburst, shape.ceil)}b"),
        *("quantum", str(shape.quantum)),
    ]


def _burst(microseconds: int, rate: int) -> int:
    return -(-microseconds * rate // 1_000_000)


def _filter(on: list[str], filter_: Filter) -> list[str]:
    argv = ["tc", "filter", "add", *on, "parent", f"{MAJOR:x}:", "protocol", filter_.protocol]
    argv += ["pref", str(qdisc_wire.PRIOS[filter_.protocol]), "handle", f"::{filter_.node:x}", "u32"]
    if not filter_.match:
        argv += ["match", "u32", "0", "0"]
    for at, mask, value in filter_.match:
        argv += ["match", "u8", f"0x{value:02x}", f"0x{mask:02x}", "at", str(at)]
    return [*argv, "flowid", f"{MAJOR:x}:{filter_.minor:x}"]


def nft(trees: Mapping[str, Tree | Strict]) -> str:
    """A ruleset for `nft -f` that sorts into the same classes by packet priority instead of by u32 filters.

    A priority with the root's major in its upper half names one of its classes directly. Interface by
    interface, since each may have queues of its own.
    """
    lines = [
        "# Sorts by DSCP into the classes of root 7a1:, as the agent's u32 filters do. Not loaded by it.",
        f"table inet {TABLE} {{",
    ]
    lines += ["    chain sort {", "        type filter hook postrouting priority mangle; policy accept;"]
    for interface, tree in trees.items():
        pairs = _dscp_pairs(tree)
        if not pairs:
            continue
        shown = ", ".join(f"{dscp} : {MAJOR:x}:{minor:x}" for dscp, minor in pairs)
        for family in ("ip", "ip6"):
            lines.append(f'        oifname "{interface}" meta priority set {family} dscp map {{ {shown} }}')
        control = f"{MAJOR:x}:{dict(pairs)[marking.CONTROL_DSCP]:x}"
        kinds = "{ nd-neighbor-solicit, nd-neighbor-advert }"
        lines.append(f'        oifname "{interface}" icmpv6 type {kinds} meta priority set {control}')
    return "\n".join([*lines, "    }", "}", ""])


def _dscp_pairs(tree: Tree | Strict) -> list[tuple[int, int]]:
    """(DSCP, minor of the class) of each IPv4 filter."""
    return [
        (marking.dscp_in(filter_.match[0][2]), filter_.minor)
        for filter_ in tree.filters
        if filter_.protocol == "ip"
    ]
