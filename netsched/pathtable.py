"""Paths that come into being while a run goes on, as rows of the bundles' path table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from netsched.bundles import NO_BUNDLE, Bundles
from netsched.fabric import Fabric
from netsched.model import Floats, Ints
from netsched.optics import Optics
from netsched.shortest import Chain


@dataclass
class PathTable:
    """Rows from `first` on were added here; `n` is their number and that of the first ones together.

    The arrays of `Bundles` have room for more rows, which are empty paths until they are taken.
    """

    fabric: Fabric
    optics: Optics | None
    first: int
    n: int
    rows: dict[tuple[int, int, Chain], int] = field(default_factory=dict)

    def of_circuits(
        self, bun: Bundles, src: Ints, dst: Ints, chains: Sequence[Chain]
    ) -> tuple[Bundles, Ints, Floats]:
        """The rows of host pairs over chains, added where they are new, and the seconds each path takes."""
        assert self.optics is not None  # noqa: S101 # who has chains has optics
        fresh: list[list[int]] = []
        found = np.empty(len(src), np.int64)
        for i, key in enumerate(zip(src.tolist(), dst.tolist(), chains, strict=True)):
            row = self.rows.get(key)
            if row is None:
                row = self.rows[key] = self.n + len(fresh)
                fresh.append(self.optics.circuit(*key))
            found[i] = row
        bun = self._add(bun, fresh)
        return bun, found, self._latency(bun, found)

    def of_links(self, bun: Bundles, paths: Sequence[Ints]) -> tuple[Bundles, Ints, Floats]:
        """New rows for the given paths."""
        found = np.arange(self.n, self.n + len(paths))
        bun = self._add(bun, [path.tolist() for path in paths])
        return bun, found, self._latency(bun, found)

    def _latency(self, bun: Bundles, rows: Ints) -> Floats:
        delay = self.fabric.delay
        if not delay.any():
            return np.zeros(len(rows))
        each = {
            row: float(delay[bun.path_links[bun.path_ptr[row] : bun.path_ptr[row + 1]]].sum())
            for row in np.unique(rows).tolist()
        }
        return np.array([each[row] for row in rows.tolist()], np.float64)

    def _add(self, bun: Bundles, fresh: list[list[int]]) -> Bundles:
        if not fresh:
            return bun
        length = np.array([len(path) for path in fresh])
        used = int(bun.path_ptr[self.n])
        bun = _with_room(bun, self.n + len(fresh), used + int(length.sum()))
        bun.path_links[used : used + length.sum()] = [link for path in fresh for link in path]
        bun.path_ptr[self.n + 1 : self.n + len(fresh) + 1] = used + np.cumsum(length)
        bun.path_ptr[self.n + len(fresh) + 1 :] = used + length.sum()
        self.n += len(fresh)
        return bun


def _with_room(bun: Bundles, rows: int, links: int) -> Bundles:
    """The bundles with room for so many rows and links: twice as many where they must grow."""
    if rows > len(bun.path_bytes):
        more = 2 * rows - len(bun.path_bytes)
        bun = bun._replace(
            path_ptr=np.concatenate([bun.path_ptr, np.full(more, bun.path_ptr[-1])]),
            path_bytes=np.concatenate([bun.path_bytes, np.zeros(more)]),
        )
    if links > len(bun.path_links):
        more = 2 * links - len(bun.path_links)
        bun = bun._replace(path_links=np.concatenate([bun.path_links, np.zeros(more, np.int64)]))
    # Flows with a connection of their own are grouped by path.
    if not bun.queued[0] and rows > len(bun.first_of):
        none = np.full(2 * rows - len(bun.first_of), NO_BUNDLE)
        bun = bun._replace(first_of=np.concatenate([bun.first_of, none]))
    return bun
