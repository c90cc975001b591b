"""Racks joined by rotor switches, which turn through fixed matchings: RotorNet and Opera.

Each rack has one uplink to every rotor, of a host's rate, and as many rotors as hosts is the balance that the
papers build. A slow packet switch carries what cannot wait for a turn (RotorNet's hybrid variant gives it a
tenth of the bandwidth).

    mn --custom topologies/rotor.py --topo rotor,racks=4,hosts_per_rack=2,rotors=2
"""

from __future__ import annotations

from mininet.topo import Topo


class Rotor(Topo):  # type: ignore[misc]  # Mininet has no types
    """Racks with one uplink to each of several rotor switches and one to a slow packet switch (RotorNet).

    Hosts h1..hN rack by rack on tor1..torR, each of these on ocs1..ocsO and on core1.

    Rates are Mbit/s each way. An uplink to a rotor has `circuit_rate` (`host_rate` unless given); the one to
    the packet switch has `packet_share` of a rack's host bandwidth. `reconfiguration` is how long a circuit
    is dark while its rotor turns, `model` whether all circuits of a switch stop for it.
    """

    def build(
        self,
        racks: int = 4,
        hosts_per_rack: int = 2,
        rotors: int = 2,
        *,
        host_rate: float = 100.0,
        circuit_rate: float | None = None,
        packet_share: float = 0.1,
        reconfiguration: str = "20us",
        model: str = "not-all-stop",
        delay: str = "",
    ) -> None:
        if min(racks, hosts_per_rack, rotors) < 1 or not host_rate > 0 or not packet_share > 0:
            raise ValueError("rotor: all counts, rates and packet_share must be positive")
        extra = {"delay": delay} if delay else {}
        optical = {"kind": "ocs", "reconfiguration": reconfiguration, "model": model, "ports": racks}
        core = self.addSwitch("core1", kind="eps", dpid="1")
        circuits = [self.addSwitch(f"ocs{o}", dpid=f"{1 + o:x}", **optical) for o in range(1, rotors + 1)]
        for i in range(racks):
            tor = self.addSwitch(f"tor{i + 1}", kind="eps", dpid=f"{2 + rotors + i:x}")
            for h in range(i * hosts_per_rack + 1, (i + 1) * hosts_per_rack + 1):
                self.addLink(self.addHost(f"h{h}", kind="host"), tor, bw=host_rate, **extra)
            self.addLink(tor, core, bw=packet_share * hosts_per_rack * host_rate, **extra)
            for ocs in circuits:
                self.addLink(tor, ocs, bw=host_rate if circuit_rate is None else circuit_rate, **extra)


topos = {"rotor": Rotor}
