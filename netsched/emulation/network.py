"""The fabric as a network of the kernel: built by Mininet, configured by netlink, checked, and taken down.

Called inside an enclosure (`enclosure.run_enclosed`). What a flow meets here is decided by data alone: the
path by its destination address (`addresses`), the rate and the class of service by the queues of each port
on its way (`queues`).
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

from mininet.log import setLogLevel
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netsched import qdisc
from netsched.emulation import addresses, configure, netns, queues, redirects, wiring
from netsched.emulation.nodes import RoutedMininet
from netsched.emulation.queues import Readings
from netsched.emulation.wiring import Wire
from netsched.errors import EmulationError
from netsched.fabric import Fabric
from netsched.netlink import open_netns

_STOP_S: Final = 2.0
_CARRIER_S: Final = 30.0

Stream = int | IO[bytes] | None


class EmulatedNetwork:
    """A running network; only `emulated_network` makes one.

    wires       one per link of the fabric, in its order
    mechanisms  what realises the scenario here, for `Outcome.mechanisms`
    """

    def __init__(self, net: RoutedMininet, fabric: Fabric, wires: tuple[Wire, ...], n_queues: int) -> None:
        self.fabric = fabric
        self.wires = wires
        self.n_queues = n_queues
        self.mechanisms: dict[str, Any] = {}
        self._net = net
        self._processes: list[subprocess.Popen[bytes]] = []

    def pid(self, node: str) -> int:
        """The process that holds the node's namespaces (as `/proc/PID/ns/net`)."""
        return int(self._net[node].pid)

    def netns(self, node: str) -> str:
        return f"/proc/{self.pid(node)}/ns/net"

    def address(self, host: int, path: int) -> str:
        """Where to connect to reach host ordinal `host` by path index `path`; also what to bind to."""
        return addresses.address(host, path)

    def nics(self, host: int) -> list[Wire]:
        """The ports of host ordinal `host`, whose queues its agent has to make."""
        return [wire for wire in self.wires if int(self.fabric.link_src[wire.link]) == host]

    def popen(
        self,
        node: str,
        argv: Sequence[str],
        *,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Starts a program in the node's namespaces. It is ended with the network if not before."""
        process = subprocess.Popen(
            ["mnexec", "-a", str(self.pid(node)), *argv],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(pass_fds),
            env=env,
        )
        self._processes.append(process)
        return process

    def apply_host_queues(self) -> None:
        """Gives the hosts' NICs their queues, where no agent does it."""
        queues.apply(self._of_hosts(), self.n_queues)

    def apply_switch_queues(self) -> None:
        n_hosts = len(self.fabric.hosts)
        switches = [wire for wire in self.wires if self.fabric.link_src[wire.link] >= n_hosts]
        queues.apply(switches, self.n_queues)

    def verify(self) -> None:
        """EmulationError naming port and difference unless the kernel has every port as it should be."""
        if found := queues.differences(self.wires, self.n_queues):
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise EmulationError(f"port {found[0]}{more}")

    def readings(self) -> Readings:
        """The counters of all ports now."""
        return queues.read(self.wires, self.n_queues)

    def stop(self) -> None:
        """Ends every process that `popen` started, then the nodes, and with these their namespaces."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._net.stop()

    def _of_hosts(self) -> list[Wire]:
        return [wire for wire in self.wires if self.fabric.link_src[wire.link] < len(self.fabric.hosts)]


@contextlib.contextmanager
def emulated_network(
    topo: Any, fabric: Fabric, *, scale: float, n_queues: int, delay: str = "strict"
) -> Iterator[EmulatedNetwork]:
    """The network of `topo`, up and connected, its switches' queues made; the hosts' are for their agents.

    `fabric` is `Fabric.from_topo(topo)`. A port carries `capacity * scale` bytes/s of TCP payload (see
    `wiring.wires`). `delay` is the scenario's emulation.delay. Call inside an enclosure.
    CapabilityError where the kernel lacks something that the scenario asks for, else EmulationError.
    """
    mechanisms = wiring.check(fabric, delay, _has_netem() if fabric.delay.any() else False)
    setLogLevel("warning")
    _raise_open_files()
    net = RoutedMininet(topo)
    network = None
    try:
        network = EmulatedNetwork(net, fabric, wiring.wires(net, fabric, scale), n_queues)
        network.mechanisms = {
            "priority": qdisc.MECHANISM,
            "switch": "network namespace, IPv4 forwarding by destination and path",
            **({"optical_switch": redirects.MECHANISM} if "ocs" in fabric.kinds else {}),
            "tcp": f"{configure.CONGESTION_CONTROL}, least retransmission timeout {configure.RTO_MIN_MS} ms",
            "segmentation": "none (gso_max_segs 1)",
            "scale": scale,
            "framing": wiring.framing(),
            **mechanisms,
        }
        _configure(network)
        network.apply_switch_queues()
        yield network
    finally:
        if network is not None:
            network.stop()
        else:
            net.stop()


def _configure(network: EmulatedNetwork) -> None:
    """Interfaces up, neighbours, addresses and routes of every node."""
    fabric = network.fabric
    hops = wiring.next_hops(fabric)
    wires_of = wiring.by_node(network.wires)
    for ordinal, node in enumerate(fabric.nodes):
        is_host = ordinal < len(fabric.hosts)
        with open_netns(network.pid(node)) as link:
            index = link.links()
            port_of = {wire.link: index[wire.interface] for wire in wires_of.get(node, [])}
            configure.set_up(link, index["lo"])
            for wire in wires_of.get(node, []):
                configure.set_up(link, port_of[wire.link], wiring.MTU)
                if fabric.kinds[ordinal] != "ocs":
                    configure.add_neighbour(link, port_of[wire.link], wire.peer_mac)
            if is_host:
                own = [addresses.address(ordinal, path) for path in range(len(hops))]
                configure.add_addresses(link, port_of[wires_of[node][0].link], own)
            configure.add_routes(link, addresses.routes(hops[:, :, ordinal]), port_of, tcp=is_host)
    _wait_until_up(network.wires)


def _wait_until_up(wires: tuple[Wire, ...]) -> None:
    """A port drops all until the kernel has noticed its carrier: many seconds with hundreds of ports."""
    end = time.monotonic() + _CARRIER_S
    for node_wires in wiring.by_node(wires).values():
        waiting = {wire.interface for wire in node_wires}
        with netns.entered(node_wires[0].pid), IPRoute() as ipr:
            while waiting:
                waiting -= {m.get("ifname") for m in ipr.get_links() if m.get("operstate") == "UP"}
                if waiting and time.monotonic() > end:
                    raise EmulationError(f"port {min(waiting)}: no carrier after {_CARRIER_S:.0f} s")
                time.sleep(0.005 if waiting else 0)


def _has_netem() -> bool:
    """Whether the kernel takes a netem qdisc, tried on a loopback nobody uses: the enclosure's own."""
    with IPRoute() as ipr:
        try:
            ipr.tc("add", "netem", index=1, handle=0x7A20000, delay=0)
        except NetlinkError:
            return False
        ipr.tc("del", index=1, handle=0x7A20000, root=True)
        return True


def _raise_open_files() -> None:
    """Mininet holds five descriptors per node, and the usual limit of 1024 ends at 200 nodes."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
