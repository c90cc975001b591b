"""Whether NICs do with the classes' marks what the classes mean, as far as drivers tell: for `doctor`.

A class is a DSCP on the wire. A NIC that goes by the DSCP maps it to one of 8 priorities, flow control is by
priority, and priorities share hardware queues (traffic classes), of which a strict one with a higher number
goes first (IEEE 802.1Q, 8.6.8.1). Nothing is changed here; a remark says what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from hostagent import rdma
from hostagent.dcb import Dcb
from hostagent.rdma import LAYER_OF, LinkLayer
from netsched import marking

_OVERRIDE: Final = re.compile(r"=\s*([0-9]{1,3})\b")
_ECN: Final = 0b11


@dataclass(frozen=True)
class Remark:
    """What was noticed of an interface, an RDMA device or an environment. `wrong`: it defeats the classes."""

    where: str
    wrong: bool
    text: str


@dataclass(frozen=True)
class Device:
    """An RDMA device: what its ports speak, its network interfaces, and the traffic class forced on it."""

    name: str
    layers: frozenset[LinkLayer]
    interfaces: tuple[str, ...]
    override: int | None


def devices(root: Path = rdma.DEVICES) -> list[Device]:
    """The RDMA devices of this machine.

    INFERRED from NVIDIA's documents and not tried: a driver that can force one traffic class on all queue
    pairs shows it in tc/1/traffic_class, as "Global tclass=96".
    """
    found = []
    for place in sorted(root.glob("*")):
        words = [file.read_text().strip() for file in sorted(place.glob("ports/*/link_layer"))]
        forced = place / "tc" / "1" / "traffic_class"
        match = _OVERRIDE.search(forced.read_text()) if forced.is_file() else None
        found.append(
            Device(
                place.name,
                frozenset(LAYER_OF[word] for word in words if word in LAYER_OF),
                tuple(sorted(one.name for one in place.glob("device/net/*"))),
                None if match is None else int(match[1]),
            )
        )
    return found


def of_interface(name: str, dcb: Dcb, queues: int) -> list[Remark]:
    """How an interface treats the TCP traffic of each class."""

    def remark(text: str, *, wrong: bool = False) -> None:
        found.append(Remark(name, wrong, text))

    found: list[Remark] = []
    if dcb.willing or dcb.firmware:
        who = "its firmware negotiates them with" if dcb.firmware else "it takes them from"
        remark(f"do not set its traffic classes here: {who} the switch (DCBX)")
    if not dcb.priority_of:
        remark("no DSCP is mapped to a priority: its own queues know no classes; switches may")
        return found
    priority = {cls: dcb.priority_of.get(_dscp(cls, queues)) for cls in range(queues)}
    for cls, one in priority.items():
        if one is None and cls < queues - 1:
            remark(f"{_class(cls, queues)} is not in the DSCP map: it rides in priority 0", wrong=True)
    placed = {cls: one or 0 for cls, one in priority.items()}
    for cls, one in placed.items():
        if one in dcb.pfc:
            text = (
                f"{_class(cls, queues)} is of priority {one}, which has flow control: where its TCP meets a "
            )
            remark(text + "full queue, it stops the whole priority instead of losing a packet", wrong=True)
    for value in sorted(set(placed.values())):
        sharing = [cls for cls, one in placed.items() if one == value]
        if len(sharing) > 1:
            remark(f"classes {', '.join(map(str, sharing))} share priority {value}: it treats them alike")
    _check_order(dcb, placed, queues, found, name)
    return found


def _check_order(dcb: Dcb, placed: Mapping[int, int], queues: int, found: list[Remark], name: str) -> None:
    """More urgent classes must not be in lower strict traffic classes."""
    if not dcb.tc_of:
        return
    for urgent, later in pairwise(placed):
        above, below = dcb.tc_of[placed[urgent]], dcb.tc_of[placed[later]]
        if above < below and {above, below} <= dcb.strict:
            text = f"{_class(urgent, queues)} is in traffic class {above}"
            text += f", and {_class(later, queues)} in {below}, which goes first"
            found.append(Remark(name, True, text))


def of_device(device: Device, known: Mapping[str, Dcb | None], queues: int) -> list[Remark]:
    """Whether the settings that `env` prints would do on an RDMA device what they say."""
    found: list[Remark] = []
    if device.override:
        text = f"all its queue pairs carry traffic class {device.override}, whatever NCCL_IB_TC says: write 0"
        found.append(Remark(device.name, True, f"{text} into tc/1/traffic_class"))
    if "roce" not in device.layers:
        return found
    for interface in device.interfaces:
        dcb = known.get(interface)
        if dcb is None or not dcb.priority_of:
            continue
        for cls in range(queues):
            dscp = _dscp(cls, queues)
            level, priority = dscp >> 3, dcb.priority_of.get(dscp, 0)
            if level != priority:
                text = (
                    f"{interface} puts DSCP {dscp} into priority {priority}, env prints service level {level}"
                )
                found.append(Remark(device.name, True, f"{_class(cls, queues)}: {text}: add --sl {priority}"))
            if priority not in dcb.pfc:
                text = f"RDMA of priority {priority} has no flow control on {interface}: it may lose packets"
                found.append(Remark(device.name, False, f"{_class(cls, queues)}: {text}"))
    return found


def of_environment(environ: Mapping[str, str], present: Sequence[Device], queues: int) -> list[Remark]:
    """Whether the NCCL and UCX settings in an environment are of a class, agree, and suit the ports."""
    found: list[Remark] = []

    def wrong(name: str, text: str) -> None:
        found.append(Remark("environment", True, f"{name}={environ[name]}: {text}"))

    infiniband = bool(present) and all(device.layers == {"infiniband"} for device in present)
    marks = {_dscp(cls, queues) for cls in range(queues)} | {marking.CONTROL_DSCP}
    for name in ("NCCL_IB_TC", "NCCL_IB_FIFO_TC", "NCCL_GIN_IB_TC", "UCX_IB_TRAFFIC_CLASS"):
        if name not in environ or (name.startswith("UCX") and environ[name] == "auto"):
            continue
        value = _number(environ[name], 255)
        if value is None:
            wrong(name, "a traffic class is 0 to 255")
        elif infiniband:
            wrong(
                name,
                "on InfiniBand a traffic class names nothing, and some libraries fail with one: unset it",
            )
        elif value >> 2 not in marks:
            tos = ", ".join(str(marking.tos_of(_dscp(cls, queues), 0)) for cls in range(queues))
            hint = f"; {value} is a class's DSCP, and the byte is 4 times that" if value in marks else ""
            wrong(name, f"DSCP {value >> 2} is of no class: the classes are {tos}{hint}")
        elif value & _ECN not in (0, rdma.ECT0):
            wrong(name, "its ECN bits mark every packet as congested: they are 0, or 2 with env --ect")
    for name in ("NCCL_IB_SL", "UCX_IB_SL"):
        most = 15 if infiniband else 7
        if name in environ and environ[name] != "auto" and _number(environ[name], most) is None:
            wrong(name, f"a service level is 0 to {most} here")
    for ours, theirs in (("NCCL_IB_TC", "UCX_IB_TRAFFIC_CLASS"), ("NCCL_IB_SL", "UCX_IB_SL")):
        if ours in environ and theirs in environ and environ[ours] != environ[theirs] != "auto":
            wrong(theirs, f"{ours} is {environ[ours]}: one job's traffic would be of two classes")
    if "NCCL_IB_TC" in environ and "NCCL_IB_SL" not in environ and not infiniband:
        wrong("NCCL_IB_TC", "NCCL_IB_SL is missing: NCCL then takes a communicator's trafficClass for it")
    return found


def _number(text: str, most: int) -> int | None:
    good = text.isascii() and text.isdigit() and int(text) <= most
    return int(text) if good else None


def _dscp(cls: int, queues: int) -> int:
    return marking.dscp_of(cls, queues)


def _class(cls: int, queues: int) -> str:
    return f"class {cls} ({marking.name_of(_dscp(cls, queues))})"
