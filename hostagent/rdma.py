"""The NCCL and UCX settings with which RDMA traffic of a class carries the same mark as its TCP sockets.

RDMA never passes through a socket, so nothing can mark it but the library that opens the queue pair, and that
reads its environment once, when a job starts.

Sources: NCCL src/transport/net_ib (IB_TC, IB_SL and IB_FIFO_TC default to -1; where one is -1 the
communicator's trafficClass takes its place, for the service level too) and src/transport/net_ib/gin.cc
(GIN_IB_TC falls back to IB_TC); UCX src/uct/ib/base/ib_iface.c (TRAFFIC_CLASS "auto" is 106 on RoCE v2, SL is
the Ethernet priority there).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hostagent.protocol import JOB_VARIABLE, MAX_TEXT
from netsched import marking
from netsched.errors import CapabilityError, NetschedError, ScenarioError

LinkLayer = Literal["roce", "infiniband"]

DEVICES: Final = Path("/sys/class/infiniband")
_JOB: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_TEXT - 1}}}")
ECT0: Final = 0b10
LAYER_OF: Final[dict[str, LinkLayer]] = {"Ethernet": "roce", "InfiniBand": "infiniband"}


class RdmaError(NetschedError):
    """The settings would be a guess: the fabric, not the host, decides."""

    exit_code = 3


@dataclass(frozen=True)
class Setting:
    """One environment variable. `why`: what it does, for people."""

    name: str
    value: str
    why: str


def link_layer(devices: Path = DEVICES) -> LinkLayer:
    """What the RDMA ports of this machine speak, if they all speak the same.

    CapabilityError without a port, RdmaError if there are both kinds (a job would need both settings).
    """
    found: dict[LinkLayer, list[str]] = {}
    for file in sorted(devices.glob("*/ports/*/link_layer")):
        text = file.read_text().strip()
        if text in LAYER_OF:
            found.setdefault(LAYER_OF[text], []).append(f"{file.parts[-4]}:{file.parts[-2]}")
    if not found:
        raise CapabilityError(
            "--link-layer: this machine has no RDMA port to ask; write --link-layer roce or infiniband"
        )
    if len(found) > 1:
        kinds = " and ".join(f"{layer} ({', '.join(ports)})" for layer, ports in sorted(found.items()))
        raise RdmaError(f"--link-layer: the ports are {kinds}; write the one that the job uses")
    return next(iter(found))


def settings(
    job: str, cls: int, queues: int, layer: LinkLayer, *, service_level: int | None = None, ect: bool = False
) -> tuple[Setting, ...]:
    """The environment of `job` in class `cls` of `queues`, in the order in which it is printed.

    service_level  0 to 7 on RoCE (the Ethernet priority; default: the DSCP's upper 3 bits, as NICs map by
                   default, so that a NIC that trusts either finds the same priority), 0 to 15 on InfiniBand,
                   where it must be given: only the subnet manager knows what a level means
    ect            set ECT(0) in the two ECN bits, for NICs that do not do it themselves (as UCX's 106 does)

    On InfiniBand no traffic class is set: it names nothing there, and some libraries fail with one.
    ScenarioError for a bad job, class or level, RdmaError on InfiniBand without a level.
    """
    if not _JOB.fullmatch(job):
        raise ScenarioError(
            f"--job {job[:MAX_TEXT]!r}: letters, digits, '.', '_' and '-', {MAX_TEXT} at most"
        )
    try:
        dscp = marking.dscp_of(cls, queues)
    except ValueError as error:
        raise ScenarioError(f"--class: {error}") from None
    most = 7 if layer == "roce" else 15
    if service_level is not None and not 0 <= service_level <= most:
        raise ScenarioError(f"--sl {service_level}: a service level of {layer} is 0 to {most}")
    named = Setting(JOB_VARIABLE, job, "the job's name for the agent, unless client.connect gives one")
    if layer == "infiniband":
        if service_level is None:
            raise RdmaError(
                "--sl: on InfiniBand the subnet manager decides what a service level means; write 0 to 15"
            )
        return (named, *_levels(service_level, "InfiniBand service level"))
    level = dscp >> 3 if service_level is None else service_level
    tos = marking.tos_of(dscp, ECT0 if ect else 0)
    control = marking.tos_of(marking.CONTROL_DSCP, ECT0 if ect else 0)
    mark = f"traffic class {tos} = DSCP {dscp} ({marking.name_of(dscp)}){' with ECT(0)' if ect else ''}"
    return (
        named,
        Setting("NCCL_IB_TC", str(tos), mark),
        Setting("NCCL_IB_FIFO_TC", str(control), "clear-to-send messages travel as control traffic"),
        *_levels(level, "Ethernet priority")[:1],
        Setting("UCX_IB_TRAFFIC_CLASS", str(tos), mark),
        *_levels(level, "Ethernet priority")[1:],
    )


def _levels(level: int, meaning: str) -> tuple[Setting, Setting]:
    # Without it NCCL would take a communicator's trafficClass for the service level as well.
    return (
        Setting("NCCL_IB_SL", str(level), f"{meaning} {level}"),
        Setting("UCX_IB_SL", str(level), f"{meaning} {level}"),
    )
