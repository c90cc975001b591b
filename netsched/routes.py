"""Which path each flow takes and with which others it shares a connection: computed once, for all engines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netsched.fabric import Fabric
from netsched.jit import compiled
from netsched.model import Connections, Floats, Ints, Transport, Workload


@dataclass(frozen=True)
class Routes:
    """Per flow: the path index p (which of the fabric's equal-cost paths), the distinct path it is, its lane.

    local     the flow never reaches the network (source is destination, and the workload has no hairpins)
    lane      flows of equal lane share a connection per class: job, source and destination are equal
    path      row of the path table: links[indptr[path]:indptr[path+1]]
    latency   seconds of propagation over the path
    """

    index: Ints
    path: Ints
    lane: Ints
    local: npt.NDArray[np.int8]
    latency: Floats
    indptr: Ints
    links: Ints

    def of_flows(self, flows: Ints) -> tuple[Ints, Ints]:
        """The paths of some flows as CSR (indptr, links)."""
        return gather(self.indptr, self.links, self.path[flows])


@compiled
def gather(indptr: Ints, values: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The given rows of a CSR table as a new CSR table (indptr, values)."""
    ptr = np.zeros(len(rows) + 1, np.int64)
    for i in range(len(rows)):
        ptr[i + 1] = ptr[i] + indptr[rows[i] + 1] - indptr[rows[i]]
    out = np.empty(ptr[-1], np.int64)
    for i in range(len(rows)):
        first = indptr[rows[i]]
        for k in range(ptr[i], ptr[i + 1]):
            out[k] = values[first + k - ptr[i]]
    return ptr, out


def route(workload: Workload, fabric: Fabric, transport: Transport) -> Routes:
    """Choose every flow's path by hash: of job and host pair, and of the flow where each has a connection."""
    flows = workload.flows
    job = workload.coflows.job[flows.coflow]
    per_flow = transport.connections is Connections.PER_FLOW
    salt = np.arange(workload.n_flows) if per_flow else np.zeros(workload.n_flows, np.int64)
    index = fabric.choose_path(job, flows.src, flows.dst, salt)
    n_hosts = len(fabric.hosts)
    pair = flows.src * n_hosts + flows.dst
    _, lane = np.unique(job * n_hosts**2 + pair, return_inverse=True)
    keys, first, path = np.unique(pair * fabric.n_paths + index, return_index=True, return_inverse=True)
    indptr, links = fabric.paths(flows.src[first], flows.dst[first], index[first], workload.hairpin)
    delay = np.add.reduceat(np.append(fabric.delay[links], 0.0), indptr[:-1]) if len(keys) else np.zeros(0)
    delay[np.diff(indptr) == 0] = 0.0
    local = (flows.src == flows.dst) & (not workload.hairpin)
    return Routes(
        index=index.astype(np.int64),
        path=path.astype(np.int64),
        lane=lane.astype(np.int64),
        local=local.astype(np.int8),
        latency=delay[path],
        indptr=indptr.astype(np.int64),
        links=links.astype(np.int64),
    )
