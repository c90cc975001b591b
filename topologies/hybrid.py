"""Racks that meet over packet switches and over optical circuits: the hybrid of Helios and c-Through.

Every rack switch has an uplink to every spine and one to every optical switch. Which two racks an optical
switch joins is decided while the network runs (netsched's `circuits`); under `mn` it is an ordinary switch.

    mn --custom topologies/hybrid.py --topo hybrid,racks=4,hosts_per_rack=2,optical_switches=1
"""

from __future__ import annotations

from mininet.topo import Topo


class Hybrid(Topo):  # type: ignore[misc]  # Mininet has no types
    """Racks with uplinks to spines and to optical switches (Helios and c-Through).

    Hosts h1..hN rack by rack on tor1..torR, each of these on spine1..spineS and ocs1..ocsO.

    Rates are Mbit/s each way. An uplink to a spine has `uplink_rate`, or else what makes the ratio of a
    rack's host bandwidth to that of its spine uplinks equal to `oversubscription` (1 if neither is given);
    one to an optical switch has `circuit_rate` (the sum of a rack's hosts' unless given). `reconfiguration`
    is how long a circuit is dark while it is set up, `model` whether all circuits of a switch stop for it.
    """

    def build(
        self,
        racks: int = 4,
        hosts_per_rack: int = 2,
        spines: int = 1,
        optical_switches: int = 1,
        *,
        host_rate: float = 100.0,
        uplink_rate: float | None = None,
        oversubscription: float | None = None,
        circuit_rate: float | None = None,
        reconfiguration: str = "10ms",
        model: str = "not-all-stop",
        delay: str = "",
    ) -> None:
        if min(racks, hosts_per_rack, spines, optical_switches) < 1 or not host_rate > 0:
            raise ValueError("hybrid: all counts and rates must be positive")
        if uplink_rate is None:
            ratio = 1.0 if oversubscription is None else oversubscription
            uplink_rate = hosts_per_rack * host_rate / (spines * ratio)
        elif oversubscription is not None:
            raise ValueError("hybrid: give uplink_rate or oversubscription, not both")
        if circuit_rate is None:
            circuit_rate = hosts_per_rack * host_rate
        extra = {"delay": delay} if delay else {}
        optical = {"kind": "ocs", "reconfiguration": reconfiguration, "model": model, "ports": racks}
        count = 0

        def switch(name: str, **options: object) -> str:
            nonlocal count
            count += 1
            return str(self.addSwitch(name, dpid=f"{count:x}", **options))

        tops = [switch(f"spine{s}", kind="eps") for s in range(1, spines + 1)]
        circuits = [switch(f"ocs{o}", **optical) for o in range(1, optical_switches + 1)]
        for i in range(racks):
            tor = switch(f"tor{i + 1}", kind="eps")
            for h in range(i * hosts_per_rack + 1, (i + 1) * hosts_per_rack + 1):
                self.addLink(self.addHost(f"h{h}", kind="host"), tor, bw=host_rate, **extra)
            for top in tops:
                self.addLink(tor, top, bw=uplink_rate, **extra)
            for ocs in circuits:
                self.addLink(tor, ocs, bw=circuit_rate, **extra)


topos = {"hybrid": Hybrid}
