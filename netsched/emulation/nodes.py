"""Mininet's nodes and links, made so that Mininet only does what it does well: namespaces and names.

Mininet configures through a shell per node (`ifconfig`, `ip`, `tc` one after the other, errors printed and
ignored), raises limits of the whole machine at start-up, and caps rates at 1 Gbit/s. These classes keep its
object model and its namespaces, and leave configuration to netlink (`network.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any, Final

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Node, Switch
from pyroute2 import IPRoute

from netsched.emulation import netns
from netsched.errors import CapabilityError

_FIRST_INDEX: Final = 1000

OPTICAL_MAC: Final = "02:01:00:00:00:00"
"""Of every port that is cabled to an optical switch. Light is not addressed to the port at which it comes
out: what leaves one of these ports must be welcome at any other."""


class _Quiet:
    """What both kinds of node share: no shell command is ever sent to configure them."""

    @classmethod
    def setup(cls) -> None:
        if shutil.which("mnexec") is None:
            raise CapabilityError("program 'mnexec' is missing: apt-get install mininet")

    def config(self, **_params: Any) -> dict[str, str]:
        return {}


class EmulatedHost(_Quiet, Node):  # type: ignore[misc]
    """A host: a network namespace with TCP set for an experiment."""

    def __init__(self, name: str, **params: Any) -> None:
        super().__init__(name, **params)
        with netns.entered(self.pid):
            # Before any interface exists, so that each inherits conf/default.
            netns.set_parameters(netns.HOST)


class _NamespaceSwitch(_Quiet, Switch):  # type: ignore[misc]
    """A switch that is a namespace with these kernel parameters and nothing else: no OpenFlow, no bridge."""

    controlIntf = None  # noqa: N815
    parameters: Mapping[str, str] = {}

    def __init__(self, name: str, **params: Any) -> None:
        super().__init__(name, **{**params, "inNamespace": True})
        with netns.entered(self.pid):
            netns.set_parameters(self.parameters)

    def defaultDpid(self, dpid: str | None = None) -> str:  # noqa: N802
        return dpid or ""

    def start(self, _controllers: object) -> None:
        return

    def stop(self, deleteIntfs: bool = False) -> None:  # noqa: N803
        return


class RouterSwitch(_NamespaceSwitch):
    """A packet switch: forwards by destination address."""

    parameters = netns.SWITCH


class OpticalSwitch(_NamespaceSwitch):
    """An optical switch: `redirects` joins its ports; what no filter redirects is lost."""

    parameters = netns.OPTICAL


def _switch(name: str, **params: Any) -> Switch:
    return (OpticalSwitch if params.get("kind") == "ocs" else RouterSwitch)(name, **params)


class PlainPort(Intf):  # type: ignore[misc]
    """An interface that Mininet knows by name and does not touch."""

    def config(self, **_params: Any) -> dict[str, str]:
        return {}


class VethLink(Link):  # type: ignore[misc]
    """A veth pair whose two ends are born in their nodes' namespaces, one packet per MTU."""

    def __init__(self, node1: Node, node2: Node, **params: Any) -> None:
        own = {**params, "intf": PlainPort, "fast": True}
        for end, other in (("addr1", node2), ("addr2", node1)):
            if isinstance(other, OpticalSwitch):
                own[end] = OPTICAL_MAC
        super().__init__(node1, node2, **own)

    def makeIntfPair(  # noqa: N802
        self,
        intfname1: str,
        intfname2: str,
        addr1: str,
        addr2: str,
        node1: Node,
        node2: Node,
        deleteIntfs: bool = False,  # noqa: N803
    ) -> None:
        # index: where both ends have the same number in their namespaces, as is usual, the kernel takes
        # the pair for no pair and may notice its carrier a second late; MACs number our interfaces anyway.
        number = addr2 if addr1 == OPTICAL_MAC else addr1
        index = _FIRST_INDEX + int(number.replace(":", "")[-6:], 16)
        # gso_max_segs: otherwise TCP hands 64 KB super-packets to the queues, and at 100 Mbit/s each of
        # them holds a port for 5 ms, whatever more urgent packet waits.
        one = {"ifname": intfname1, "net_ns_pid": node1.pid, "address": addr1, "gso_max_segs": 1}
        two = {"ifname": intfname2, "net_ns_pid": node2.pid, "address": addr2, "gso_max_segs": 1}
        with IPRoute() as ipr:
            ipr.link("add", kind="veth", index=index, peer=two, **one)

    def stop(self) -> None:
        # Both ends go with their namespaces; deleting each by hand takes Mininet a shell command.
        return


class RoutedMininet(Mininet):  # type: ignore[misc]
    """Mininet with these nodes and links, without a controller."""

    def __init__(self, topo: Any) -> None:
        # Mininet.init() would raise kernel limits of the whole machine, for ever.
        Mininet.inited = True
        self._macs = 0
        super().__init__(
            topo=topo, host=EmulatedHost, switch=_switch, link=VethLink, controller=None, build=True
        )

    def randMac(self) -> str:  # noqa: N802
        """Locally administered addresses in order of creation: two builds are alike, none collide."""
        self._macs += 1
        return ":".join(f"{byte:02x}" for byte in (0x02, 0, *self._macs.to_bytes(4, "big")))
