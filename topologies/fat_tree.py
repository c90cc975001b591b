"""The k-ary fat-tree of Al-Fares, Loukissas and Vahdat (SIGCOMM 2008, section 2.2).

k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k^3/4 hosts, and (k/2)^2 equal
paths between any two pods, all from switches with k ports.

    mn --custom topologies/fat_tree.py --topo fat_tree,k=4,rate=100
"""

from __future__ import annotations

from mininet.topo import Topo


class FatTree(Topo):  # type: ignore[misc]  # Mininet has no types
    """Three tiers of switches with k ports, (k/2)^2 equal paths between pods, k^3/4 hosts.

    Hosts h1.. on edge1.., pod by pod; aggN and coreN above. `rate` is a host's, in Mbit/s each way.

    Links between switches carry `rate / oversubscription`: 1 is the paper's rearrangeably non-blocking
    tree. The j-th aggregation switch of every pod meets the j-th group of k/2 core switches.
    """

    def build(self, k: int = 4, rate: float = 100.0, oversubscription: float = 1.0, delay: str = "") -> None:
        if k < 2 or k % 2:
            raise ValueError(f"fat_tree: k={k} must be an even number, 2 or more")
        if not rate > 0 or not oversubscription > 0:
            raise ValueError("fat_tree: rate (Mbit/s) and oversubscription must be positive")
        half = k // 2
        extra = {"delay": delay} if delay else {}
        trunk = {"bw": rate / oversubscription} | extra
        count = 0

        def switch(name: str) -> str:
            nonlocal count
            count += 1
            return str(self.addSwitch(name, kind="eps", dpid=f"{count:x}"))

        cores = [switch(f"core{c}") for c in range(1, half * half + 1)]
        for pod in range(k):
            numbers = range(pod * half + 1, (pod + 1) * half + 1)
            edges = [switch(f"edge{n}") for n in numbers]
            for n, edge in zip(numbers, edges, strict=True):
                for h in range((n - 1) * half + 1, n * half + 1):
                    self.addLink(self.addHost(f"h{h}", kind="host"), edge, bw=rate, **extra)
            for j, n in enumerate(numbers):
                agg = switch(f"agg{n}")
                for edge in edges:
                    self.addLink(edge, agg, **trunk)
                for core in cores[j * half : (j + 1) * half]:
                    self.addLink(agg, core, **trunk)


topos = {"fat_tree": FatTree}
