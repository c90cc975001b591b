"""An optical switch in the kernel: whatever enters a port leaves by another, or is lost.

A port's frames are redirected, unread, at the ingress hook of its interface (clsact) by a u32 filter that
matches all and whose action is a mirred redirect to the port at the circuit's other end. A port without that
filter is dark: its frames climb into a network stack that has no address and forwards nothing, and which
counts them (`rx_otherhost_dropped`), as they are addressed to nobody in it.

    light goes from port a to port b   <->   a's ingress hook redirects to b

Circuits have a direction; one that carries both ways is two. A change is one message to the kernel with
all its parts, which are carried out one after the other, about 20 microseconds each. A port whose light is
turned to another port directly is never dark.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from netsched.errors import CapabilityError, EmulationError
from netsched.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    Netlink,
    NetlinkError,
    Request,
    attribute,
    attributes,
)
from netsched.qdisc_wire import DELTFILTER, GETTFILTER, NEWQDISC, NEWTFILTER, Message, swap, tcmsg

MECHANISM: Final = "clsact ingress, u32, mirred redirect"
DARK: Final = -1
NEEDS: Final = ("clsact", "u32", "mirred")
"""What of `kernel.probe` an optical switch needs."""

_CLSACT: Final = 0xFFFF0000
_CLSACT_PARENT: Final = 0xFFFFFFF1
_INGRESS: Final = 0xFFFFFFF2
_EVERYTHING: Final = 1 << 16 | swap(0x0003)
"""Preference 1, protocol ETH_P_ALL."""
_U32_SEL, _U32_ACT = 5, 7
_ACT_KIND, _ACT_OPTIONS, _MIRRED_PARMS = 1, 2, 2
_STOLEN, _EGRESS_REDIRECT = 4, 1
_MIRRED: Final = struct.Struct("=IIiii iI")
_SELECT: Final = struct.Struct("=BBBxHHhhI IIii")
_ALWAYS: Final = _SELECT.pack(1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
_NEVER: Final = _SELECT.pack(1, 0, 1, 0, 0, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0)
"""No frame's payload begins like this: IP version 15."""
_PLACE, _LIGHT = 0x80000001, 0x80000002
"""Handles: the first filter never matches and keeps the place, as making that anew takes twice as long."""
_GETLINK: Final = 18
_IFLA_STATS64: Final = 23
_OTHERHOST_DROPPED: Final = 24
"""Position in struct rtnl_link_stats64, which has had it since Linux 5.19."""


@dataclass(frozen=True)
class Ports:
    """The ports of one optical switch: `index[p]` is the interface index of port p in its namespace."""

    index: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.index)


def prepare(link: Netlink, ports: Ports) -> None:
    """Make the ports able to be joined; all are dark. CapabilityError naming the option that is missing."""
    for index in ports.index:
        body = tcmsg(index, _CLSACT, _CLSACT_PARENT) + attribute(1, b"clsact\0")
        try:
            link.request(NEWQDISC, body, NLM_F_CREATE | NLM_F_EXCL)
        except NetlinkError as error:
            raise _lacking(error, "clsact", "CONFIG_NET_SCH_INGRESS") from error
        try:
            place = _filter(index, _PLACE, attribute(_U32_SEL, _NEVER))
            link.request(NEWTFILTER, place, NLM_F_CREATE | NLM_F_EXCL)
        except NetlinkError as error:
            raise _lacking(error, "u32", "CONFIG_NET_CLS_U32") from error
    if ports.index:
        # Whether there is a mirred is known now, before hosts and jobs wait for it.
        change(link, ports, [], [(0, 0)])
        change(link, ports, [0], [])


def change(link: Netlink, ports: Ports, darken: Sequence[int], join: Sequence[tuple[int, int]]) -> None:
    """In one message: the ports `darken` lose their light, then each (a, b) of `join` is a circuit a to b.

    The ports in `darken` have light. CapabilityError where the kernel has no mirred.
    """
    requests = [
        Request(DELTFILTER, tcmsg(ports.index[port], _LIGHT, _INGRESS, _EVERYTHING)) for port in darken
    ]
    requests += [
        Request(NEWTFILTER, _redirect(ports.index[a], ports.index[b]), NLM_F_CREATE) for a, b in join
    ]
    try:
        link.transaction(requests)
    except NetlinkError as error:
        if error.errno == errno.ENOENT and join and not darken:
            raise _lacking(error, "mirred", "CONFIG_NET_ACT_MIRRED") from error
        raise EmulationError(f"optical switch: {error}") from error


def read_back(link: Netlink, ports: Ports) -> tuple[int, ...]:
    """The port at which the light of each port leaves, `DARK` if nowhere, as the kernel has it.

    EmulationError if a port redirects to what is none of the ports, or in more than one way.
    """
    number = {index: port for port, index in enumerate(ports.index)}
    found = []
    for port, index in enumerate(ports.index):
        answers = map(Message, link.dump(GETTFILTER, tcmsg(index, 0, _INGRESS)))
        targets = [target for answer in answers if (target := _target(answer.raw_options)) is not None]
        if len(targets) > 1 or any(target not in number for target in targets):
            raise EmulationError(
                f"optical switch: port {port} redirects to interfaces {targets}: not our doing"
            )
        found.append(number[targets[0]] if targets else DARK)
    return tuple(found)


def lost(link: Netlink, ports: Ports) -> tuple[int, ...]:
    """Frames that have come to each port while it was dark. CapabilityError on Linux before 5.19."""
    by_index = {}
    for payload in link.dump(_GETLINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0)):
        counters = attributes(payload[16:]).get(_IFLA_STATS64, b"")
        at = 8 * _OTHERHOST_DROPPED
        if len(counters) < at + 8:
            raise CapabilityError(
                "optical switch: this kernel does not count frames that are lost in the dark "
                "(rx_otherhost_dropped): Linux 5.19 or newer"
            )
        by_index[struct.unpack_from("=i", payload, 4)[0]] = struct.unpack_from("=Q", counters, at)[0]
    return tuple(by_index[index] for index in ports.index)


def _redirect(index: int, target: int) -> bytes:
    parms = attribute(_MIRRED_PARMS, _MIRRED.pack(0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, target))
    action = attribute(_ACT_KIND, b"mirred\0") + attribute(_ACT_OPTIONS, parms)
    return _filter(index, _LIGHT, attribute(_U32_SEL, _ALWAYS) + attribute(_U32_ACT, attribute(1, action)))


def _filter(index: int, handle: int, options: bytes) -> bytes:
    return tcmsg(index, handle, _INGRESS, _EVERYTHING) + attribute(1, b"u32\0") + attribute(2, options)


def _target(options: bytes) -> int | None:
    """The interface to which a filter redirects, None for what a dump shows beside that."""
    actions = attributes(attributes(options).get(_U32_ACT, b""))
    if not actions:
        return None
    parms = attributes(attributes(actions[1]).get(_ACT_OPTIONS, b""))[_MIRRED_PARMS]
    return int(_MIRRED.unpack(parms[: _MIRRED.size])[-1])


def _lacking(error: NetlinkError, what: str, option: str) -> CapabilityError | EmulationError:
    if error.errno != errno.ENOENT:
        return EmulationError(f"optical switch: {what}: {error}")
    return CapabilityError(f"optical switch: this kernel has no {what}: a kernel with {option}")
