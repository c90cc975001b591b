"""A big switch made by hand, so that tests of workloads need no topology file and no Mininet classes."""

from __future__ import annotations

import numpy as np

from netsched.fabric import Fabric
from netsched.model import Spec, Workload
from netsched.workloads import build

GBIT = 1e9 / 8


def big_switch(n: int, capacity: float = GBIT) -> Fabric:
    """Hosts h1..hn on one switch, `capacity` bytes/s each way."""
    hosts = tuple(f"h{i + 1}" for i in range(n))
    ends = np.stack((np.arange(n), np.full(n, n)), axis=1)
    return Fabric(
        name="switch",
        nodes=(*hosts, "s1"),
        kinds=("host",) * n + ("eps",),
        hosts=hosts,
        link_src=ends.ravel(),
        link_dst=ends[:, ::-1].ravel(),
        capacity=np.full(2 * n, capacity),
        delay=np.zeros(2 * n),
    )


def unrolled(kind: str, hosts: int = 8, seed: int = 1, **params: object) -> Workload:
    """The workload of one kind on a big switch."""
    return build((Spec(kind, params),), big_switch(hosts), seed)


def waits_for(w: Workload) -> list[set[int]]:
    """For each DAG node, the nodes that it depends on."""
    before: list[set[int]] = [set() for _ in range(w.n_flows + w.n_tasks)]
    for node in range(w.n_flows + w.n_tasks):
        for after in w.dag.successors[w.dag.indptr[node] : w.dag.indptr[node + 1]]:
            before[int(after)].add(node)
    return before
