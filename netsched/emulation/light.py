"""The optical side of an emulated network: switches and ends as the kernel has them, and their process."""

from __future__ import annotations

import socket
import sys
from typing import Final

import numpy as np

from netsched import kernel
from netsched.emulation import netns, redirects
from netsched.emulation.addresses import routed_as
from netsched.emulation.detours import End
from netsched.emulation.enclosure import SCRATCH
from netsched.emulation.network import EmulatedNetwork
from netsched.emulation.optical import OpticalSwitch
from netsched.emulation.remote import Remote, write_config
from netsched.errors import EmulationError
from netsched.model import Bools, Ints
from netsched.optics import Optics

_CONFIG: Final = SCRATCH / "optical.json"


def switches(net: EmulatedNetwork, optics: Optics) -> list[OpticalSwitch]:
    """The optical switches of the network; port p of each is that of the p-th end that is cabled to it."""
    found = []
    for s, node in enumerate(optics.nodes.tolist()):
        name = net.fabric.nodes[node]
        ends = np.flatnonzero(optics.down[s] >= 0)
        found.append(
            OpticalSwitch(
                node=name,
                pid=net.pid(name),
                ports=tuple(net.wires[link].interface for link in optics.down[s, ends].tolist()),
                ends=tuple(ends.tolist()),
                delay=float(optics.delay[s]),
                all_stop=bool(optics.all_stop[s]),
            )
        )
    return found


def ends(net: EmulatedNetwork, optics: Optics) -> list[End]:
    n_hosts, n_switches = len(net.fabric.hosts), len(optics.nodes)
    found = []
    for e, node in enumerate(optics.ends.tolist()):
        behind = np.flatnonzero(optics.end_of_host == e).tolist()
        found.append(
            End(
                pid=net.pid(net.fabric.nodes[node]),
                interfaces=tuple(
                    net.wires[link].interface if link >= 0 else "" for link in optics.up[:, e].tolist()
                ),
                addresses=tuple(
                    tuple(
                        net.address(host, routed_as(path, choice, n_switches))
                        for host in behind
                        for path in range(net.fabric.n_paths)
                    )
                    for choice in range(n_switches)
                ),
                tcp=node < n_hosts,
            )
        )
    return found


def on_ports(switch: OpticalSwitch, out: Ints) -> list[int]:
    """A matching of ends, (E,) with -1 for none, as one of the switch's ports."""
    port_of = {end: port for port, end in enumerate(switch.ends)}
    return [port_of[int(out[end])] if out[end] >= 0 else redirects.DARK for end in switch.ends]


def ports_of(switch: OpticalSwitch, ends: Bools) -> list[int]:
    """The switch's ports of the ends that are marked, (E,)."""
    return [port for port, end in enumerate(switch.ends) if ends[end]]


def start(net: EmulatedNetwork, optics: Optics, hops: int = 1) -> tuple[Remote, list[OpticalSwitch]]:
    """The process that sets the switches, ready, all of them dark. CapabilityError naming what is missing.

    With `hops` above 1 ends pass on what comes over one circuit to the next one, also ends that are hosts.
    """
    kernel.require(redirects.NEEDS)
    found = switches(net, optics)
    write_config(_CONFIG, found, ends(net, optics), hops)
    if hops > 1:
        for node in optics.ends.tolist():
            with netns.entered(net.pid(net.fabric.nodes[node])):
                netns.set_parameters(netns.SWITCH)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-m", "netsched.emulation.optical", str(theirs.fileno()), str(_CONFIG)]
    # It enters the namespaces of all switches and ends by itself, wherever it is.
    net.popen(found[0].node, argv, pass_fds=(theirs.fileno(),))
    theirs.close()
    remote = Remote(ours)
    if "ready" not in remote.hear():
        raise EmulationError("the process of the optical switches did not say that it is ready")
    return remote, found
