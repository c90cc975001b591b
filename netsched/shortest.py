"""Ways over several circuits in a row, the fewest that there are."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from netsched.model import Ints
from netsched.pathtable import Chain


@dataclass
class Chains:
    """Shortest ways over the circuits `lit` (S, E), of at most `hops`; made from one end at a time."""

    lit: Ints
    hops: int
    _graph: csr_array = field(init=False)
    _switch: dict[tuple[int, int], int] = field(init=False)
    _before: dict[int, Ints] = field(default_factory=dict)
    _ways: dict[tuple[int, int], Chain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s, e = np.nonzero(self.lit >= 0)
        to = self.lit[s, e]
        n = self.lit.shape[1]
        self._graph = csr_array((np.ones(len(e)), (e, to)), shape=(n, n))
        pairs = zip(e[::-1].tolist(), to[::-1].tolist(), s[::-1].tolist(), strict=True)
        self._switch = {(i, j): switch for i, j, switch in pairs}  # the first switch stays

    def way(self, src: int, dst: int) -> Chain:
        """The circuits from one end to another, () where there are none or too many."""
        if (src, dst) in self._ways:
            return self._ways[src, dst]
        if src not in self._before:
            found = shortest_path(self._graph, unweighted=True, indices=src, return_predecessors=True)
            self._before[src] = found[1].astype(np.int64)
        before, at = self._before[src], dst
        way: list[tuple[int, int, int]] = []
        while at != src and before[at] >= 0 and len(way) <= self.hops:
            hop = int(before[at])
            way.append((self._switch[hop, at], hop, at))
            at = hop
        chain: Chain = tuple(reversed(way)) if at == src and 0 < len(way) <= self.hops else ()
        self._ways[src, dst] = chain
        return chain
