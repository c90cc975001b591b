"""Rail-optimized pods joined by optical switches: equal rails of two pods get a circuit when they need one.

Inside a pod the r-th NIC of every server is on the r-th rail switch, and the GPUs of a server are joined by a
switch of their own (see rail_optimized.py). Rail r of every pod has an uplink to optical switch r, and every
rail one to each spine, which carry what has no circuit.

    mn --custom topologies/rail_ocs.py --topo rail_ocs,pods=2,servers=2,gpus_per_server=2
"""

from __future__ import annotations

from mininet.topo import Topo


class RailOcs(Topo):  # type: ignore[misc]  # Mininet has no types
    """Rail-optimized pods; rail r of each pod is on optical switch r, and all rails on spines.

    Hosts server by server (h1..hG are the GPUs of the first), railN, spineN, ocsN and one nvN per server.

    `servers` counts those of one pod. Rates are Mbit/s each way: `nic_rate` from a GPU to its rail,
    `server_rate` from a GPU to its server's switch, `circuit_rate` from a rail to its optical switch
    (`servers` times `nic_rate` unless given), `uplink_rate` from a rail to a spine, or what
    `oversubscription` of the rail's NICs asks for (1 if neither is given). `reconfiguration` is how long a
    circuit is dark while it is set up, `model` whether all circuits of a switch stop for it.
    """

    def build(
        self,
        pods: int = 2,
        servers: int = 2,
        gpus_per_server: int = 2,
        spines: int = 1,
        *,
        nic_rate: float = 100.0,
        server_rate: float = 800.0,
        circuit_rate: float | None = None,
        uplink_rate: float | None = None,
        oversubscription: float | None = None,
        reconfiguration: str = "10ms",
        model: str = "not-all-stop",
        delay: str = "",
    ) -> None:
        if min(pods, servers, gpus_per_server, spines) < 1 or not nic_rate > 0 or not server_rate > 0:
            raise ValueError("rail_ocs: all counts and rates must be positive")
        if uplink_rate is None:
            ratio = 1.0 if oversubscription is None else oversubscription
            uplink_rate = servers * nic_rate / (spines * ratio)
        elif oversubscription is not None:
            raise ValueError("rail_ocs: give uplink_rate or oversubscription, not both")
        if circuit_rate is None:
            circuit_rate = servers * nic_rate
        extra = {"delay": delay} if delay else {}
        optical = {"kind": "ocs", "reconfiguration": reconfiguration, "model": model, "ports": pods}
        count = 0

        def switch(name: str, **options: object) -> str:
            nonlocal count
            count += 1
            return str(self.addSwitch(name, dpid=f"{count:x}", **options))

        tops = [switch(f"spine{s}", kind="eps") for s in range(1, spines + 1)]
        circuits = [switch(f"ocs{r}", **optical) for r in range(1, gpus_per_server + 1)]
        for pod in range(pods):
            rails = [
                switch(f"rail{pod * gpus_per_server + r + 1}", kind="eps") for r in range(gpus_per_server)
            ]
            for server in range(pod * servers, (pod + 1) * servers):
                inside = switch(f"nv{server + 1}", kind="eps")
                for r, rail in enumerate(rails):
                    gpu = self.addHost(f"h{server * gpus_per_server + r + 1}", kind="host")
                    self.addLink(gpu, rail, bw=nic_rate, **extra)
                    self.addLink(gpu, inside, bw=server_rate, **extra)
            for rail, ocs in zip(rails, circuits, strict=True):
                for top in tops:
                    self.addLink(rail, top, bw=uplink_rate, **extra)
                self.addLink(rail, ocs, bw=circuit_rate, **extra)


topos = {"rail_ocs": RailOcs}
