"""One switch with every host on it: the "big switch" that most coflow papers schedule.

Only the hosts' own ports can be a bottleneck, so whatever a result shows comes from the scheduling and
not from the fabric.

    mn --custom topologies/single_switch.py --topo single_switch,hosts=8,rate=100
"""

from __future__ import annotations

from mininet.topo import Topo


class SingleSwitch(Topo):  # type: ignore[misc]  # Mininet has no types
    """The big switch of coflow papers: only the hosts' own ports can be a bottleneck.

    Hosts h1..hN on switch s1. `rate` is Mbit/s each way, `delay` a time such as "10us" ("" for none).
    """

    def build(self, hosts: int = 4, rate: float = 100.0, delay: str = "") -> None:
        if hosts < 1 or not rate > 0:
            raise ValueError(f"single_switch: hosts={hosts} and rate={rate} Mbit/s must be positive")
        link = {"bw": rate} | ({"delay": delay} if delay else {})
        switch = self.addSwitch("s1", kind="eps")
        for h in range(1, hosts + 1):
            self.addLink(self.addHost(f"h{h}", kind="host"), switch, **link)


topos = {"single_switch": SingleSwitch}
