"""Ways over several circuits in a row, the fewest that there are.

Where one goes next hangs on where one is and where to, and not on where from: so routes by destination, which
the emulated network has, lead along these very ways.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from netsched.model import Bools, Ints

Chain = tuple[tuple[int, int, int], ...]
"""Circuits in a row: (switch, from end, to end) each."""

_NOWHERE = -1


@dataclass
class Chains:
    """Shortest ways over the circuits `lit` (S, E), of at most `hops`; made for one end at a time."""

    lit: Ints
    hops: int
    _joined: Bools = field(init=False)
    _next: dict[int, Ints] = field(default_factory=dict)
    _ways: dict[tuple[int, int, int], Chain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s, e = np.nonzero(self.lit >= 0)
        n = self.lit.shape[1]
        self._joined = np.zeros((n, n), bool)
        self._joined[e, self.lit[s, e]] = True

    def toward(self, dst: int) -> Ints:
        """(E,) the end that follows each end on its way to `dst`, -1 where there is none, or too long a way.

        Of several that are as near the least.
        """
        if dst not in self._next:
            found = np.full(len(self._joined), _NOWHERE, np.int64)
            front = np.array([dst])
            for _ in range(self.hops):
                into = self._joined[:, front]
                fresh = np.flatnonzero(into.any(axis=1) & (found == _NOWHERE))
                fresh = fresh[fresh != dst]
                if not len(fresh):
                    break
                found[fresh] = front[into[fresh].argmax(axis=1)]
                front = fresh
            self._next[dst] = found
        return self._next[dst]

    def switches(self, src: int, dst: int) -> list[int]:
        """Those that have a circuit from one end to another, ascending."""
        return [int(s) for s in np.flatnonzero(self.lit[:, src] == dst)]

    def way(self, src: int, dst: int, choice: int) -> Chain:
        """The circuits from one end to another, () where there are none or too many.

        `choice` picks one of several circuits between the same ends, at every end on the way.
        """
        if (src, dst, choice) in self._ways:
            return self._ways[src, dst, choice]
        after, at = self.toward(dst), src
        way: list[tuple[int, int, int]] = []
        while at != dst and after[at] != _NOWHERE:
            to = int(after[at])
            several = self.switches(at, to)
            way.append((several[choice % len(several)], at, to))
            at = to
        chain = tuple(way)
        self._ways[src, dst, choice] = chain
        return chain
