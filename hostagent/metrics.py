"""The agent's numbers in Prometheus's text format (version 0.0.4).

Labels are classes, interfaces, verbs and outcomes only, so that their number is bounded and no user's job can
be read from them. Base units: bytes, seconds.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hostagent.http import Page

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS: Final = (50e-6, 100e-6, 200e-6, 300e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 100e-3)
"""Seconds; 0.3 ms and 2 ms are what marking may take at the median and at the 99th percentile."""
_SOFTNET: Final = Path("/proc/net/softnet_stat")
_CLASS_COUNTERS: Final = (
    ("bytes", "class_bytes_total", "counter", "Bytes sent, with Ethernet headers."),
    ("packets", "class_packets_total", "counter", "Packets sent."),
    ("drops", "class_drops_total", "counter", "Packets dropped because the queue was full."),
    ("overlimits", "class_overlimits_total", "counter", "Times that the class had to wait for its rate."),
    ("backlog_bytes", "class_backlog_bytes", "gauge", "Bytes waiting."),
)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Family:
    """One metric; `samples` are (suffix of the name, labels, value)."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[str, Labels, float], ...]


@dataclass
class Histogram:
    """How long something took, counted by upper bounds in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(_BOUNDS, seconds)] += 1
        self.total_s += seconds

    def samples(self) -> Iterable[tuple[str, Labels, float]]:
        below = 0
        for bound, count in zip((*_BOUNDS, float("inf")), self.counts, strict=True):
            below += count
            yield "_bucket", (("le", "+Inf" if bound == float("inf") else f"{bound:g}"),), below
        yield "_sum", (), self.total_s
        yield "_count", (), below


@dataclass
class Counts:
    """What the agent counts while it runs, besides what the kernel counts for it."""

    requests: dict[tuple[str, str], int] = field(default_factory=dict)
    tag_time: Histogram = field(default_factory=Histogram)
    resyncs: int = 0
    resync_s: float = 0.0
    leases_expired: int = 0

    def request(self, verb: str, result: str) -> None:
        self.requests[verb, result] = self.requests.get((verb, result), 0) + 1


def page(status: Mapping[str, Any], counts: Counts) -> Page:
    """The page /metrics, from the answer to the verb `status` and the agent's own counts."""
    return Page(200, render(families(status, counts)), CONTENT_TYPE)


def families(status: Mapping[str, Any], counts: Counts) -> list[Family]:
    """Every metric, without the common prefix `netsched_agent_`."""
    shown = [
        Family("info", "gauge", "The agent's mode.", (("", (("mode", status["mode"]),), 1),)),
        _one("start_time_seconds", "gauge", "When it started, Unix time.", status["started_unix_s"]),
        _one("ready", "gauge", "1 if it serves and every port is as it should be.", not status["not_ready"]),
        _one("draining", "gauge", "1 if it marks no new sockets.", status["state"] != "serving"),
        _one("clients", "gauge", "Connections of jobs.", status["connections"]),
        _one("sockets_known", "gauge", "Sockets that it marked and has not seen end.", status["sockets"]),
        Family(
            "tags_total",
            "counter",
            "Sockets that a job asked to have marked.",
            tuple(("", (("result", result),), n) for result, n in status["tags"].items()),
        ),
        Family(
            "class_tags_total",
            "counter",
            "Sockets marked, by class.",
            tuple(("", (("class", cls),), n) for cls, n in status["tags_by_class"].items()),
        ),
        Family(
            "requests_total",
            "counter",
            "Requests of jobs, by verb and outcome.",
            tuple(("", (("verb", v), ("result", r)), n) for (v, r), n in sorted(counts.requests.items())),
        ),
        Family(
            "tag_seconds",
            "histogram",
            "Time to mark the sockets of one request and read them back.",
            tuple(counts.tag_time.samples()),
        ),
        _one("leases_expired_total", "counter", "Leases of silent jobs that ended.", counts.leases_expired),
        _one("resyncs_total", "counter", "Comparisons of all ports with the wish.", counts.resyncs),
        _one("resync_seconds_total", "counter", "Time spent on them.", counts.resync_s),
        *_coordinator(status["coordinator"]),
        *_ports(status["interfaces"]),
        *_process(),
    ]
    return [one for one in shown if one.samples]


def render(found: Iterable[Family]) -> str:
    lines = []
    for one in found:
        name = f"netsched_agent_{one.name}"
        lines += [f"# HELP {name} {one.help}", f"# TYPE {name} {one.kind}"]
        for suffix, labels, value in one.samples:
            inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
            lines.append(f"{name}{suffix}{f'{{{inside}}}' if inside else ''} {float(value):.15g}")
    return "\n".join([*lines, ""])


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _one(name: str, kind: str, about: str, value: float) -> Family:
    return Family(name, kind, about, (("", (), value),))


def _coordinator(shown: Mapping[str, Any]) -> list[Family]:
    flows = _one("flows", "gauge", "Flows that jobs told of and that have not ended.", shown["flows"])
    if not shown["address"]:
        return [flows]
    standings = [
        ("", (("standing", one),), float(one == shown["standing"])) for one in ("following", "kept", "local")
    ]
    about = "1 for whose word counts: the coordinator's, its last plan's, or local rules'."
    return [
        flows,
        Family("coordinator_standing", "gauge", about, tuple(standings)),
        _one("coordinator_revision", "gauge", "Of the plan in force.", shown["revision"]),
    ]


def _ports(interfaces: list[dict[str, Any]]) -> list[Family]:
    def each(name: str, kind: str, about: str, key: str) -> Family:
        found = [("", (("interface", p["interface"]),), float(p[key])) for p in interfaces if key in p]
        return Family(name, kind, about, tuple(found))

    ports = [
        p | {"left": bool(p["conflict"]), "failed": "error" in p, "differs": len(p.get("differences", ()))}
        for p in interfaces
    ]
    interfaces = ports
    made = [
        each("port_rate_bytes_per_second", "gauge", "Rate of the port.", "rate_bytes_per_second"),
        each("port_conflict", "gauge", "1 if the port is left to somebody else.", "left"),
        each("port_error", "gauge", "1 if the port could not be compared or repaired.", "failed"),
        each("port_differences", "gauge", "Objects that are not as they should be (at most 4).", "differs"),
        each("port_repairs_total", "counter", "Repairs of the port.", "repairs"),
        each("port_direct_packets_total", "counter", "Packets that bypassed every class.", "direct_packets"),
    ]
    for key, name, kind, about in _CLASS_COUNTERS:
        found = [
            ("", (("interface", p["interface"]), ("class", str(one["class"]))), float(one[key]))
            for p in ports
            for one in p.get("classes", ())
        ]
        made.append(Family(name, kind, about, tuple(found)))
    return made


def _process() -> list[Family]:
    times = os.times()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    made = [
        _one("cpu_seconds_total", "counter", "Processor time of the agent.", times.user + times.system),
        _one("memory_bytes", "gauge", "Resident memory of the agent.", pages * os.sysconf("SC_PAGE_SIZE")),
    ]
    try:
        # Second column: packets dropped because a processor's input queue was full, invisible to every qdisc.
        lines = _SOFTNET.read_text().splitlines()
    except OSError:
        return made
    dropped = sum(int(line.split()[1], 16) for line in lines)
    about = "Packets that the host dropped before any queue saw them."
    return [*made, _one("softnet_dropped_total", "counter", about, dropped)]
