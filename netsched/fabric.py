"""The network as both engines see it: hosts, switches, directed links, and the paths between hosts.

It is read from the very Mininet `Topo` object that the emulator builds, so the two engines cannot disagree
about what the network is or which way a flow goes.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from mininet.topo import Topo
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from netsched import units
from netsched.errors import PolicyError, ScenarioError
from netsched.model import Floats, Ints
from netsched.routing import Router, spread

KINDS: Final = ("host", "eps", "ocs")
"""What a node is: a host, an electrical packet switch, an optical circuit switch."""


@dataclass(frozen=True)
class Switching:
    """How an optical switch changes its circuits: `delay` seconds dark, those that change or all of them."""

    delay: float
    all_stop: bool


def _no_ports() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Fabric:
    """Nodes, directed links and routes. All columns are read-only.

    nodes      names; the hosts come first, so a host's ordinal is its node ordinal
    kinds      "host", "eps" or "ocs" per node
    hosts      names in natural order (h2 before h10)
    link_src   node ordinal at which a link starts, int64. Links 2i and 2i+1 are the two ways of cable i
    link_dst   node ordinal at which it ends, int64
    capacity   bytes/s, float64
    delay      seconds, float64
    link_port  Mininet's port number at `link_src`: the interface is "{node}-eth{port}" (the order of the
               links if not given)
    switching  of each optical switch, in the order of the nodes
    """

    name: str
    nodes: tuple[str, ...]
    kinds: tuple[str, ...]
    hosts: tuple[str, ...]
    link_src: Ints
    link_dst: Ints
    capacity: Floats
    delay: Floats
    link_port: Ints = field(default_factory=_no_ports)
    switching: tuple[Switching, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.hosts)
        if self.nodes[:n] != self.hosts or self.kinds[:n] != ("host",) * n:
            raise ValueError("the hosts of a Fabric are its first nodes")
        src, dst = self.link_src, self.link_dst
        if not (np.array_equal(src[::2], dst[1::2]) and np.array_equal(src[1::2], dst[::2])):
            raise ValueError("links 2i and 2i+1 of a Fabric are the two ways of one cable")
        if len(self.switching) != self.kinds.count("ocs"):
            raise ValueError("a Fabric says of each optical switch how it changes")
        if len(self.link_port) != len(src):
            object.__setattr__(self, "link_port", np.arange(len(src), dtype=np.int64))
        for column in (self.link_src, self.link_dst, self.capacity, self.delay, self.link_port):
            column.flags.writeable = False

    @classmethod
    def from_topo(cls, topo: Topo, name: str = "") -> Fabric:
        """Read a Mininet `Topo`; needs no root and starts nothing.

        Every link needs `bw` (Mbit/s, > 0) and may have `delay` ("10us"), for both ways or, as Mininet
        allows, per interface in `params1`/`params2`. Node option `kind` is "eps" unless given.
        ScenarioError for a bad or missing value, for a property that the engines do not model (loss,
        jitter), and for hosts without a way to each other over packet switches. An optical switch (`kind`
        "ocs") may have `reconfiguration` ("10ms", 0 if not given), `model` ("all-stop" or "not-all-stop", the
        default) and `ports`, how many there are (as many as have cables if not given).
        """
        label = name or type(topo).__name__
        hosts = tuple(topo.hosts())
        nodes = hosts + tuple(topo.switches())
        if not hosts:
            raise ScenarioError(f"fabric {label}: no hosts; a fabric needs at least one")
        kinds = tuple(_kind(label, topo, node, i < len(hosts)) for i, node in enumerate(nodes))
        ends, values = _cables(label, topo, {node: i for i, node in enumerate(nodes)})

        # The order must not depend on how a Topo happens to store its links.
        swap = ends[:, 0, 0] > ends[:, 1, 0]
        ends[swap], values[swap] = ends[swap, ::-1], values[swap, ::-1]
        order = np.lexsort((ends[:, 0, 1], ends[:, 1, 0], ends[:, 0, 0]))
        ends, values = ends[order], values[order]
        fabric = cls(
            name=label,
            nodes=nodes,
            kinds=kinds,
            hosts=hosts,
            link_src=ends[:, :, 0].ravel(),
            link_dst=ends[:, ::-1, 0].ravel(),
            capacity=values[:, :, 0].ravel(),
            delay=values[:, :, 1].ravel(),
            link_port=ends[:, :, 1].ravel(),
            switching=tuple(
                _switching(label, topo, node)
                for node, kind in zip(nodes, kinds, strict=True)
                if kind == "ocs"
            ),
        )
        _check_connected(fabric)
        return fabric

    @property
    def n_links(self) -> int:
        return len(self.link_src)

    @cached_property
    def router(self) -> Router:
        """The routes over packet switches, in numbers of `packet_links`; built when first asked for."""
        kept = self.packet_links
        src, dst, port = self.link_src[kept], self.link_dst[kept], self.link_port[kept]
        return Router(len(self.nodes), len(self.hosts), src, dst, port)

    @cached_property
    def packet_links(self) -> Ints:
        """The links that do not touch an optical switch: packets are routed over these alone."""
        optical = np.array([kind == "ocs" for kind in self.kinds])
        return np.flatnonzero(~(optical[self.link_src] | optical[self.link_dst]))

    @property
    def n_paths(self) -> int:
        """Path indexes are 0..n_paths-1, for every pair of hosts; at most 64.

        In a leaf-spine path p of a pair on two leaves goes over spine p; in a fat-tree p counts the
        aggregation switches first, then the core switches above one. A pair with fewer ways uses some
        of them for several p.
        """
        return self.router.n_paths

    def next_hop(self, node: int, dst_host: int, p: int) -> int:
        """The link by which `node` sends to host `dst_host` on path index `p`; -1 at that host itself."""
        return int(self.next_hops(dst_host, p)[node])

    def next_hops(self, dst_host: int, p: int) -> Ints:
        """`next_hop` of all nodes at once, int64: what the emulator installs for (dst_host, p)."""
        self._check_rows(np.array([dst_host]), np.array([p]))
        # The last entry is for -1.
        return np.append(self.packet_links, -1)[self.router.next_hops(dst_host, p)]

    def path(self, src: int, dst: int, p: int, hairpin: bool = False) -> Ints:
        """Link ids from host `src` to host `dst`. `src == dst`: none, or the host's port out and back."""
        return self.paths(np.array([src]), np.array([dst]), np.array([p]), hairpin)[1]

    def paths(self, src: Ints, dst: Ints, p: Ints, hairpin: bool = False) -> tuple[Ints, Ints]:
        """`path` of many rows as (indptr, links): row i is `links[indptr[i]:indptr[i + 1]]`.

        Equal rows are computed once. ScenarioError for a host that does not exist, PolicyError for a
        path index that does not (only a policy chooses one freely).
        """
        src, dst, p = (np.asarray(column, dtype=np.int64) for column in (src, dst, p))
        self._check_rows(np.concatenate((src, dst)), p)
        indptr, links = self.router.paths(src, dst, p, hairpin)
        return indptr, self.packet_links[links]

    def choose_path(
        self, job: npt.ArrayLike, src: npt.ArrayLike, dst: npt.ArrayLike, salt: npt.ArrayLike
    ) -> Ints:
        """The path index of a connection that no policy steers, as ECMP would pick it: a hash of its ids.

        `splitmix64(salt, job, src, dst) mod n_paths`, see `routing.spread`; columns or scalars that
        broadcast, int64 out. Both engines call this, and nothing else, so they pick alike.
        """
        return (spread(salt, job, src, dst) % np.uint64(self.n_paths)).astype(np.int64)

    def host_ordinal(self, name: str) -> int:
        """Position of a host in `hosts`. ScenarioError, with the nearest name, if there is none."""
        try:
            return self._host_numbers[name]
        except KeyError:
            lowered = {host.lower(): host for host in self.hosts[:4096]}
            near = difflib.get_close_matches(name.lower(), lowered, n=1)
            hint = (
                f"did you mean {lowered[near[0]]}?"
                if near
                else f"its hosts are {self.hosts[0]}..{self.hosts[-1]}"
            )
            raise ScenarioError(f"fabric {self.name}: no host {name!r}; {hint}") from None

    @cached_property
    def _host_numbers(self) -> dict[str, int]:
        return {host: i for i, host in enumerate(self.hosts)}

    def describe(self) -> str:
        """One line for people: how much of what, how fast, how many ways."""
        switches = len(self.nodes) - len(self.hosts)
        ports = self.capacity[self.link_src < len(self.hosts)]
        trunks = self.capacity[(self.link_src >= len(self.hosts)) & (self.link_dst >= len(self.hosts))]
        between = f", {_span(trunks)} between switches" if len(trunks) else ""
        slowest = float(self.delay.max(initial=0.0))
        return (
            f"{self.name}: {len(self.hosts)} hosts, {switches} switch{'' if switches == 1 else 'es'}, "
            f"{self.n_links // 2} cables, {_span(ports)} per host port{between}, "
            f"{self.n_paths} path{'' if self.n_paths == 1 else 's'}"
            + (f", up to {units.show_time(slowest)} per link" if slowest else "")
        )

    def _check_rows(self, hosts: Ints, p: Ints) -> None:
        if len(hosts) and (hosts.min() < 0 or hosts.max() >= len(self.hosts)):
            bad = hosts[(hosts < 0) | (hosts >= len(self.hosts))][0]
            raise ScenarioError(f"fabric {self.name}: no host number {bad}; it has {len(self.hosts)} hosts")
        if len(p) and (p.min() < 0 or p.max() >= self.n_paths):
            bad = p[(p < 0) | (p >= self.n_paths)][0]
            raise PolicyError(
                f"fabric {self.name}: no path index {bad}; a pair of hosts has 0..{self.n_paths - 1}"
            )


def _span(rates: Floats) -> str:
    low, high = float(rates.min(initial=math.inf)), float(rates.max(initial=0.0))
    return units.show_rate(low) if low == high else f"{units.show_rate(low)} to {units.show_rate(high)}"


def _kind(fabric: str, topo: Topo, node: str, is_host: bool) -> str:
    kind = topo.nodeInfo(node).get("kind", "host" if is_host else "eps")
    if kind not in (KINDS[:1] if is_host else KINDS[1:]):
        good = "host" if is_host else "eps or ocs"
        raise ScenarioError(f"fabric {fabric}: node {node} has kind {kind!r}; it can be {good}")
    return str(kind)


def _switching(fabric: str, topo: Topo, node: str) -> Switching:
    info = topo.nodeInfo(node)
    dark, model, ports = info.get("reconfiguration", 0), info.get("model", "not-all-stop"), info.get("ports")
    if model not in ("all-stop", "not-all-stop"):
        raise ScenarioError(
            f"fabric {fabric}: switch {node} has model {model!r}; it can be all-stop or not-all-stop"
        )
    cables = len(topo.ports.get(node, {}))
    if ports is not None and ports < cables:
        raise ScenarioError(f"fabric {fabric}: switch {node} has {ports} ports and {cables} cables")
    try:
        return Switching(units.duration(dark), model == "all-stop")
    except ValueError as error:
        raise ScenarioError(f"fabric {fabric}: switch {node}: reconfiguration: {error}") from None


def _properties(fabric: str, info: Mapping[str, Any]) -> list[tuple[float, float]]:
    """(capacity, delay) of a cable's two ends. Mininet lets common options override an interface's own."""
    both = []
    for own in ("params1", "params2"):
        options = {**info[own], **info} if info.get(own) else info
        for unmodelled in ("loss", "jitter"):
            if options.get(unmodelled):
                raise _link_error(
                    fabric, info, f"{unmodelled}={options[unmodelled]!r} is not modelled; leave it out"
                )
        bw, delay = options.get("bw"), options.get("delay")
        if isinstance(bw, bool) or not isinstance(bw, int | float) or not 0 < bw < math.inf:
            raise _link_error(fabric, info, f"bw={bw!r}; give Mbit/s, more than 0")
        try:
            seconds = units.duration(delay) if delay else 0.0
        except ValueError as error:
            raise _link_error(fabric, info, f"delay: {error}") from None
        both.append((units.from_mbit(bw), seconds))
    return both


def _link_error(fabric: str, info: Mapping[str, Any], what: str) -> ScenarioError:
    return ScenarioError(f"fabric {fabric}: link {info['node1']} - {info['node2']}: {what}")


def _cables(fabric: str, topo: Topo, number: Mapping[str, int]) -> tuple[Ints, Floats]:
    """(cable, end, (node, port)) and (cable, end, (capacity, delay)), in the Topo's own order."""
    ends, values = [], []
    for _, _, info in topo.iterLinks(withInfo=True):
        ends.append(((number[info["node1"]], info["port1"]), (number[info["node2"]], info["port2"])))
        values.append(_properties(fabric, info))
    shape = (len(ends), 2, 2)
    return np.array(ends, np.int64).reshape(shape), np.array(values, np.float64).reshape(shape)


def _check_connected(fabric: Fabric) -> None:
    """Every two hosts need an island of switches in common (or a cable), because hosts do not forward.

    Optical switches are no way: what they join depends on when.
    """
    n, size = len(fabric.hosts), len(fabric.nodes)
    cables = fabric.packet_links[::2]
    src, dst = fabric.link_src[cables], fabric.link_dst[cables]
    inside = (src >= n) & (dst >= n)
    matrix = coo_array((np.ones(inside.sum()), (src[inside], dst[inside])), shape=(size, size))
    island = connected_components(matrix, directed=False)[1].astype(np.int64)
    cabled: list[set[int]] = [set() for _ in range(n)]
    for i, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        if a < n:  # a host is the lower end of its cables
            cabled[a].add(int(island[b]) if b >= n else -1 - i)
            if b < n:
                cabled[b].add(-1 - i)
    if n > 1 and not set.intersection(*cabled):
        distinct = {frozenset(islands): host for host, islands in zip(fabric.hosts, cabled, strict=True)}
        pairs = ((distinct[a], distinct[b]) for a in distinct for b in distinct if a != b and not a & b)
        apart = next(pairs, fabric.hosts[:2] if frozenset() in distinct else None)
        if apart is not None:
            raise ScenarioError(
                f"fabric {fabric.name}: no way from host {apart[0]} to host {apart[1]}; "
                "connect all hosts over packet switches"
            )
