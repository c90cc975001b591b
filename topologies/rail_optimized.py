"""A rail-optimized GPU fabric: the r-th NIC of every server of a pod is on the pod's r-th rail switch.

Collectives between equally numbered GPUs then cross one switch, and only traffic between rails or pods
climbs to the spines (the wiring of NVIDIA's DGX SuperPOD reference architecture).

A GPU with its own NIC is one host. The GPUs of a server are joined by a switch of their own that stands
for NVLink/NVSwitch, so every host has two ports: port 0 on its rail, port 1 inside the server. A host does
not forward for others: traffic to another rail of another server goes over a spine, never through a
neighbour GPU (no PXN).

    mn --custom topologies/rail_optimized.py --topo rail_optimized,servers=2,gpus_per_server=4
"""

from __future__ import annotations

from mininet.topo import Topo


class RailOptimized(Topo):  # type: ignore[misc]  # Mininet has no types
    """GPU servers whose r-th NICs share a rail switch; rails meet in spines, GPUs inside the server.

    Hosts server by server (h1..hG are the GPUs of the first), railN, spineN and one nvN per server.

    `servers` counts those of one pod. Rates are Mbit/s each way: `nic_rate` from a GPU to its rail,
    `server_rate` from a GPU to its server's switch. Every rail has an uplink to every spine, of
    `uplink_rate` or else of what `oversubscription` of the rail switch asks for (1 if neither is given).
    """

    def build(
        self,
        pods: int = 1,
        servers: int = 2,
        gpus_per_server: int = 2,
        spines: int = 1,
        *,
        nic_rate: float = 100.0,
        server_rate: float = 800.0,
        uplink_rate: float | None = None,
        oversubscription: float | None = None,
        delay: str = "",
    ) -> None:
        if min(pods, servers, gpus_per_server, spines) < 1 or not nic_rate > 0 or not server_rate > 0:
            raise ValueError("rail_optimized: all counts and rates must be positive")
        if uplink_rate is None:
            ratio = 1.0 if oversubscription is None else oversubscription
            uplink_rate = servers * nic_rate / (spines * ratio)
        elif oversubscription is not None:
            raise ValueError("rail_optimized: give uplink_rate or oversubscription, not both")
        extra = {"delay": delay} if delay else {}
        count = 0

        def switch(name: str) -> str:
            nonlocal count
            count += 1
            return str(self.addSwitch(name, kind="eps", dpid=f"{count:x}"))

        tops = [switch(f"spine{s}") for s in range(1, spines + 1)]
        for pod in range(pods):
            rails = [switch(f"rail{pod * gpus_per_server + r + 1}") for r in range(gpus_per_server)]
            for server in range(pod * servers, (pod + 1) * servers):
                inside = switch(f"nv{server + 1}")
                for r, rail in enumerate(rails):
                    gpu = self.addHost(f"h{server * gpus_per_server + r + 1}", kind="host")
                    self.addLink(gpu, rail, bw=nic_rate, **extra)
                    self.addLink(gpu, inside, bw=server_rate, **extra)
            for rail in rails:
                for top in tops:
                    self.addLink(rail, top, bw=uplink_rate, **extra)


topos = {"rail_optimized": RailOptimized}
