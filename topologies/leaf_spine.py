"""A two-tier leaf-spine fabric: every leaf has one uplink to every spine.

It is what most training clusters are built of. Its two parameters of interest are the number of spines,
which is the number of paths between two leaves, and the oversubscription of the leaves.

    mn --custom topologies/leaf_spine.py --topo leaf_spine,leaves=4,spines=2,oversubscription=2
"""

from __future__ import annotations

from mininet.topo import Topo


class LeafSpine(Topo):  # type: ignore[misc]  # Mininet has no types
    """Two tiers, one uplink from every leaf to every spine, oversubscribed as you like.

    Hosts h1..hN leaf by leaf on leaf1..leafL, each leaf on spine1..spineS.

    Rates are Mbit/s each way. An uplink has `uplink_rate`, or else what makes the ratio of a leaf's host
    bandwidth to its uplink bandwidth equal to `oversubscription` (1 when neither is given).
    """

    def build(
        self,
        leaves: int = 2,
        spines: int = 2,
        hosts_per_leaf: int = 2,
        *,
        host_rate: float = 100.0,
        uplink_rate: float | None = None,
        oversubscription: float | None = None,
        delay: str = "",
    ) -> None:
        if min(leaves, spines, hosts_per_leaf) < 1 or not host_rate > 0:
            raise ValueError("leaf_spine: leaves, spines, hosts_per_leaf and host_rate must be positive")
        if uplink_rate is None:
            ratio = 1.0 if oversubscription is None else oversubscription
            uplink_rate = hosts_per_leaf * host_rate / (spines * ratio)
        elif oversubscription is not None:
            raise ValueError("leaf_spine: give uplink_rate or oversubscription, not both")
        extra = {"delay": delay} if delay else {}

        # Two switches of different tiers share a number, and Mininet derives the datapath id from it.
        tops = [self.addSwitch(f"spine{s}", kind="eps", dpid=f"{leaves + s:x}") for s in range(1, spines + 1)]
        for i in range(leaves):
            leaf = self.addSwitch(f"leaf{i + 1}", kind="eps", dpid=f"{i + 1:x}")
            for h in range(i * hosts_per_leaf + 1, (i + 1) * hosts_per_leaf + 1):
                self.addLink(self.addHost(f"h{h}", kind="host"), leaf, bw=host_rate, **extra)
            for top in tops:
                self.addLink(leaf, top, bw=uplink_rate, **extra)


topos = {"leaf_spine": LeafSpine}
