"""Faults as the simulator carries them out: which links are down, and the way round them.

A flow whose path over packet switches has lost a link takes the next path index all of whose links work, and
goes back when its own does again; where no index has one, it waits. The emulator's routes do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from netsched.bundles import DIRTY, UNSORTED, Bundles
from netsched.fabric import Fabric
from netsched.faults import DOWN, links_of
from netsched.ledger import Ledger
from netsched.model import Bools, Fault, Floats, Ints, Workload
from netsched.pathtable import PathTable
from netsched.routes import Routes

_SAME_TIME = 1e-12


@dataclass
class Outages:
    """State of one run: `faults` to come, links that are `down`, each link's bytes/s as built.

    capacity  what `Bundles.capacity` shows, writable
    other     row of the path that takes the place of another, by (row, path index)
    any       whether there were faults at all
    moved, stranded   how many times a flow was given another path, and none
    """

    fabric: Fabric
    workload: Workload
    routes: Routes
    faults: list[Fault]
    built: Floats
    capacity: Floats
    down: Bools
    other: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    any: bool = False
    moved: int = 0
    stranded: int = 0

    def due(self) -> float:
        """When the next fault happens; inf for never."""
        return self.faults[0].at if self.faults else np.inf

    def happen(self, ledger: Ledger, bun: Bundles, now: float) -> Ints:
        """Let the faults that are due happen; the links that went down or came back."""
        before = self.down.copy()
        while self.faults and self.faults[0].at <= now * (1 + _SAME_TIME):
            fault = self.faults.pop(0)
            if fault.host is not None:
                rows = np.flatnonzero(self.workload.tasks.host == self.fabric.host_ordinal(fault.host))
                ledger.seconds[rows] = self.workload.tasks.seconds[rows] * fault.value
                continue
            links = links_of(fault, self.fabric)
            self.down[links] = fault.value == DOWN
            if fault.value != DOWN:
                self.capacity[links] = np.where(np.isinf(fault.value), self.built[links], fault.value)
                # Every class and every link is laid out anew on what there is now.
                bun.count[UNSORTED] = bun.count[DIRTY] = 1
        return np.flatnonzero(before != self.down)

    def ways(self, bun: Bundles, table: PathTable) -> tuple[Bundles, Ints, Floats, Bools]:
        """Every flow's path over packet switches now: row, seconds, and whether there is none."""
        rows, latency = self.routes.path.copy(), self.routes.latency.copy()
        cut = np.zeros(len(rows), bool)
        ptr = self.routes.indptr
        if not self.down.any():
            return bun, rows, latency, cut
        broken = np.add.reduceat(np.append(self.down[self.routes.links], False), ptr[:-1]) > 0
        broken &= np.diff(ptr) > 0
        for row in np.flatnonzero(broken).tolist():
            flows = np.flatnonzero(self.routes.path == row)
            bun, found = self._round(bun, table, row, int(flows[0]))
            if found is None:
                cut[flows] = True
            else:
                rows[flows], latency[flows] = found
        return bun, rows, latency, cut

    def _round(
        self, bun: Bundles, table: PathTable, row: int, flow: int
    ) -> tuple[Bundles, tuple[int, float] | None]:
        """The first path after a flow's own that works, None if there is none."""
        ends, fabric = self.workload.flows, self.fabric
        src, dst, own = int(ends.src[flow]), int(ends.dst[flow]), int(self.routes.index[flow])
        for step in range(1, fabric.n_paths):
            index = (own + step) % fabric.n_paths
            links = fabric.path(src, dst, index, self.workload.hairpin)
            if self.down[links].any():
                continue
            if (row, index) not in self.other:
                bun, rows, seconds = table.of_links(bun, [links])
                self.other[row, index] = int(rows[0]), float(seconds[0])
            return bun, self.other[row, index]
        return bun, None


def outages_of(
    faults: Sequence[Fault], workload: Workload, fabric: Fabric, routes: Routes, capacity: Floats
) -> Outages:
    """A run's faults, none of which has happened. `capacity` is the array that the run's kernels read."""
    return Outages(
        fabric=fabric,
        workload=workload,
        routes=routes,
        faults=list(faults),
        built=fabric.capacity,
        capacity=capacity,
        down=np.zeros(len(fabric.capacity), bool),
        any=bool(faults),
    )
