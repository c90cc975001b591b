"""Deterministic multi-path routing over a fabric's links: one destination tree per (host, path index).

Both engines need the same route for the same flow. The emulator can only install routes, "packets for this
address leave by that port", so a path here is nothing but what such routes produce: at every node the next
hop depends on the destination and the path index alone. Everything is computed per *root*, the node behind
which a destination sits (its only switch, or the host itself if it has several ports), because all hosts of
one switch share that work: a 65,536-host fat-tree has 2,048 roots.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from netsched.errors import ScenarioError
from netsched.jit import compiled
from netsched.model import Bools, Ints

MAX_PATHS: Final = 64
"""Most path indexes of a fabric: the emulator gives every host one address for each."""

_CACHE_BYTES: Final = 2**28
_LARGEST_STRIDE: Final = 2**40
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class Graph(NamedTuple):
    """What routes are computed on: the switches and those hosts that have several ports (or a host on one).

    `indptr`, `neighbour`, `link` are its out-links in the order of the node's ports. Only `transit` nodes
    (switches) forward; `source` marks the nodes where traffic can start.
    """

    indptr: Ints
    neighbour: Ints
    link: Ints
    transit: Bools
    source: Bools


class Tree(NamedTuple):
    """Shortest ways to one root: `dist` in hops (-1: none), `stride` what a path index is divided by there.

    `total` is how many path indexes spell all choices, `digit` the largest such count of one tier or of
    several that MAX_PATHS has room for.
    """

    root: int
    dist: npt.NDArray[np.int32]
    stride: Ints
    total: int
    digit: int


@compiled
def _grow(root: int, graph: Any, cap: int) -> Any:
    """Distances to `root`, and the mixed radix in which a path index is read on the way to it.

    A node with c shortest next hops takes number (p // stride) % c; its successors read the index divided
    by c more. So a path index spells one choice per tier and all choices are spelled equally often.
    Returns the fields of `Tree` after the root.
    """
    n = len(graph.transit)
    dist = np.full(n, -1, np.int32)
    order = np.empty(n, np.int64)
    dist[root] = 0
    order[0] = root
    head, tail = 0, 1
    while head < tail:
        v = order[head]
        head += 1
        if v != root and not graph.transit[v]:
            continue
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.neighbour[e]
            if dist[u] < 0:
                dist[u] = dist[v] + 1
                order[tail] = u
                tail += 1

    stride = np.ones(n, np.int64)
    used = graph.source.copy()
    total, digit = 1, 1
    for i in range(tail - 1, 0, -1):
        v = order[i]
        if not used[v]:
            continue
        c = 0
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.neighbour[e]
            if dist[u] == dist[v] - 1 and (u == root or graph.transit[u]):
                c += 1
        reach = min(stride[v] * c, _LARGEST_STRIDE)
        total = max(total, reach)
        if reach <= cap:
            digit = max(digit, reach)
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.neighbour[e]
            if dist[u] == dist[v] - 1 and (u == root or graph.transit[u]):
                used[u] = True
                stride[u] = max(stride[u], reach)
    return dist, stride, total, digit


@compiled
def _next_edge(v: int, index: int, graph: Any, tree: Any) -> int:
    """Position in `graph.link` of the next hop from v (which has a way to the root, and is not it)."""
    c = 0
    for e in range(graph.indptr[v], graph.indptr[v + 1]):
        u = graph.neighbour[e]
        if tree.dist[u] == tree.dist[v] - 1 and (u == tree.root or graph.transit[u]):
            c += 1
    left = (index // tree.stride[v]) % c
    for e in range(graph.indptr[v], graph.indptr[v + 1]):
        u = graph.neighbour[e]
        if tree.dist[u] == tree.dist[v] - 1 and (u == tree.root or graph.transit[u]):
            if left == 0:
                return e
            left -= 1
    return -1


@compiled
def _walk(walks: Any, graph: Any, tree: Any, out: Any) -> None:
    """Write the links from start to the root at out[position], per row (start, path index, position)."""
    for r in range(len(walks)):
        v, index, at = walks[r]
        while v != tree.root:
            e = _next_edge(v, index, graph, tree)
            out[at] = graph.link[e]
            at += 1
            v = graph.neighbour[e]


def spread(*ids: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of columns of integers: one splitmix64 step (Steele, Lea, Flood 2014) per column.

    Not Python's `hash`, whose value may change with the process; not a Generator, because a host agent
    must get the same answer for a flow without knowing which flows were asked about before.
    """
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(i, dtype=np.int64)) for i in ids))
    x = np.zeros(columns[0].shape, np.uint64)
    for column in columns:
        x = (x ^ column.astype(np.uint64)) + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return x


class Router:
    """Routes of one fabric. Nodes 0..n_hosts-1 are hosts; link i and link i^1 are the two ways of a cable."""

    def __init__(self, n_nodes: int, n_hosts: int, src: Ints, dst: Ints, port: Ints) -> None:
        self.n_hosts = n_hosts
        self._link_src, self._link_dst = src, dst
        by_port = np.lexsort((port, src))
        first = np.searchsorted(src[by_port], np.arange(n_nodes + 1))
        self._first_link = np.full(n_hosts, -1, np.int64)
        cabled = np.flatnonzero(np.diff(first[: n_hosts + 1]) > 0)
        self._first_link[cabled] = by_port[first[cabled]]

        degree = np.diff(first)
        inner = np.ones(n_nodes, bool)
        inner[:n_hosts] = degree[:n_hosts] != 1
        onto_host = dst < n_hosts
        inner[src[onto_host & (src < n_hosts)]] = True  # a host cabled to a host has no switch to sit behind
        self._inner = np.flatnonzero(inner)
        number = np.cumsum(inner) - 1
        stub = np.flatnonzero(~inner)
        self._up = np.full(n_nodes, -1, np.int64)
        self._up[stub] = self._first_link[stub]
        behind = np.arange(n_nodes)
        behind[stub] = dst[self._up[stub]]
        self._root = number[behind]
        self._rank = np.argsort(np.argsort(self._root[:n_hosts], kind="stable"))

        kept = by_port[(inner[src] & inner[dst])[by_port]]
        source = self._inner < n_hosts
        source[self._root[:n_hosts]] = True
        self._graph = Graph(
            indptr=np.searchsorted(number[src[kept]], np.arange(len(self._inner) + 1)).astype(np.int64),
            neighbour=number[dst[kept]].astype(np.int64),
            link=kept.astype(np.int64),
            transit=self._inner >= n_hosts,
            source=source,
        )
        self._trees: OrderedDict[int, Tree] = OrderedDict()

    @cached_property
    def n_paths(self) -> int:
        """How many path indexes there are: enough to spell all shortest paths of any pair, at most MAX_PATHS.

        Where there are more, it is the largest multiple of a tier's choices that fits, and every
        destination reads a window of its own (index + n_paths * root), so that all links still carry
        traffic evenly.
        """
        most = 1
        for root in np.unique(self._root[: self.n_hosts]):
            tree = self._tree(int(root))
            if tree.total > MAX_PATHS:
                return MAX_PATHS // tree.digit * tree.digit
            most = max(most, tree.total)
        return most

    def _tree(self, root: int) -> Tree:
        tree = self._trees.get(root)
        if tree is None:
            tree = Tree(root, *_grow(root, self._graph, MAX_PATHS))
            self._trees[root] = tree
            if len(self._trees) * (tree.dist.nbytes + tree.stride.nbytes) > _CACHE_BYTES:
                self._trees.popitem(last=False)
        return tree

    def next_hops(self, dst: int, path: int) -> Ints:
        """The link of every node towards host `dst` on path index `path`; -1 at `dst` and where none is."""
        root = int(self._root[dst])
        tree = self._tree(root)
        index = path + self.n_paths * root
        hops = self._up.copy()
        for v in np.flatnonzero(tree.dist > 0):
            edge = _next_edge(int(v), index, self._graph, tree)
            hops[self._inner[v]] = self._graph.link[edge]
        if self._up[dst] >= 0:
            hops[self._inner[root]] = self._up[dst] ^ 1
        hops[tree.dist[self._root] < 0] = -1
        hops[dst] = -1
        return hops

    def paths(self, src: Ints, dst: Ints, path: Ints, hairpin: bool) -> tuple[Ints, Ints]:
        """CSR (indptr, links) of the paths of the rows, all int64. ScenarioError for a row without a way."""
        key = (self._rank[dst] * self.n_hosts + src) * self.n_paths + path
        _, first, row = np.unique(key, return_index=True, return_inverse=True)
        src, dst, path = src[first], dst[first], path[first]
        cuts = np.flatnonzero(np.diff(self._root[dst])) + 1  # the key is sorted by root
        groups = [g for g in np.split(np.arange(len(src)), cuts) if len(g)]
        parts = [self._paths_to_root(src[g], dst[g], path[g], hairpin) for g in groups]
        none = np.zeros(0, np.int64)
        length = np.concatenate([part[0] for part in parts] or [none])
        links = np.concatenate([part[1] for part in parts] or [none])
        begin = np.cumsum(length) - length
        indptr = np.zeros(len(row) + 1, np.int64)
        np.cumsum(length[row], out=indptr[1:])
        return indptr, links[np.arange(indptr[-1]) + np.repeat(begin[row] - indptr[:-1], length[row])]

    def _paths_to_root(self, src: Ints, dst: Ints, path: Ints, hairpin: bool) -> tuple[Ints, Ints]:
        """Lengths and links of paths whose destinations have the same root."""
        root = int(self._root[dst[0]])
        tree = self._tree(root)
        start, up, down = self._root[src], self._up[src], self._up[dst]
        hops = tree.dist[start].astype(np.int64)
        if hops.min() < 0:
            lost = int(np.argmin(hops))
            raise ScenarioError(
                f"host number {src[lost]} has no way to host number {dst[lost]} over switches"
            )
        to_self = src == dst
        length = hops + (up >= 0) + (down >= 0)
        length[to_self] = 2 if hairpin else 0
        end = np.cumsum(length)
        begin = end - length
        links = np.empty(end[-1], np.int64)
        if hairpin:
            port = self._first_link[src[to_self]]
            links[begin[to_self]], links[begin[to_self] + 1] = port, port ^ 1
        upward, downward = (up >= 0) & ~to_self, (down >= 0) & ~to_self
        links[begin[upward]] = up[upward]
        links[end[downward] - 1] = down[downward] ^ 1
        walks = np.column_stack((start, path + self.n_paths * root, begin + upward))
        _walk(walks[(hops > 0) & ~to_self], self._graph, tree, links)
        return length, links
