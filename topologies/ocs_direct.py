"""Hosts whose ports are on optical switches themselves: the direct-connect fabric of TopoOpt.

With d optical switches every host can have circuits to d others at a time. One more port of each is on a
packet switch, for control and for what no circuits lead to (TopoOpt itself forwards that through hosts).

    mn --custom topologies/ocs_direct.py --topo ocs_direct,hosts=8,degree=2
"""

from __future__ import annotations

from mininet.topo import Topo


class OcsDirect(Topo):  # type: ignore[misc]  # Mininet has no types
    """Hosts with one port on each of several optical switches and one on a packet switch (TopoOpt).

    Hosts h1..hN on s1 and on ocs1..ocsD, D being the `degree`.

    Rates are Mbit/s each way: `circuit_rate` to an optical switch, `packet_rate` to the packet switch.
    `reconfiguration` is how long a circuit is dark while it is set up, `model` whether all circuits of a
    switch stop for it.
    """

    def build(
        self,
        hosts: int = 4,
        degree: int = 1,
        *,
        circuit_rate: float = 100.0,
        packet_rate: float = 10.0,
        reconfiguration: str = "10ms",
        model: str = "not-all-stop",
        delay: str = "",
    ) -> None:
        if min(hosts, degree) < 1 or not min(circuit_rate, packet_rate) > 0:
            raise ValueError("ocs_direct: hosts, degree and rates must be positive")
        extra = {"delay": delay} if delay else {}
        optical = {"kind": "ocs", "reconfiguration": reconfiguration, "model": model, "ports": hosts}
        packets = self.addSwitch("s1", kind="eps", dpid="1")
        circuits = [self.addSwitch(f"ocs{o}", dpid=f"{1 + o:x}", **optical) for o in range(1, degree + 1)]
        for h in range(1, hosts + 1):
            host = self.addHost(f"h{h}", kind="host")
            self.addLink(host, packets, bw=packet_rate, **extra)
            for ocs in circuits:
                self.addLink(host, ocs, bw=circuit_rate, **extra)


topos = {"ocs_direct": OcsDirect}
