"""What is on the wire: captured at receivers' NICs, each TCP stream put together and read chunk by chunk.

The run is the real one (enclosure, agents, endpoints); inside, two functions are wrapped to watch: the one
that makes the network, to record packets at two hosts, and the one that tells endpoints each flow's class.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from chunk_stream import HELLO, chunks_of
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapReader

from netsched import marking, scenario
from netsched.emulation import wire
from netsched.emulation.channel import Channel, Message
from netsched.emulation.enclosure import SCRATCH, run_enclosed
from netsched.model import Workload

HERE = Path(__file__).parent
WATCHED = ("h1", "h4")
PORT = 5001
SCALE = 0.01
CHUNK = 4096
WINDOW = 8 * 1448
"""Of 40 Mbit/s, 1.5 ms are less than the 8 segments that a connection always may have under way."""

SCENARIO = {
    "name": "captured",
    "fabric": {"kind": "single_switch", "hosts": 4, "rate": "4Gbit/s"},
    "workload": [
        {
            "kind": "training",
            "name": name,
            "model": "resnet50",
            "workers": workers,
            "servers": [server],
            "iterations": 1,
            "batch": 16,
            "device": {"flops": "125TFLOP/s", "efficiency": 0.4},
        }
        for name, workers, server in (("one", ["h1", "h2", "h3"], "h4"), ("two", ["h2", "h3", "h4"], "h1"))
    ],
    "policies": ["tensorexpress", "sebf"],
    "queues": 8,
    "transport": {"connections": "per-pair"},
    "control": {"delay": "5ms"},
    "emulation": {"scale": SCALE, "chunk": f"{CHUNK}B"},
}


# ------------------------------------------------------------------ inside the enclosure


def perform_watched(channel: Channel, request: Message) -> Message:
    """The stage's own `perform`, with what the hosts in WATCHED received and what endpoints were told."""
    from netsched.emulation import play, stage  # noqa: PLC0415 (patched here, in a process of its own)

    packets: dict[str, Any] = {}
    told: list[tuple[float, int, float, int, int]] = []
    make, tell = stage.emulated_network, play._to_sources

    @contextlib.contextmanager
    def recorded_network(*arguments: Any, **options: Any) -> Iterator[Any]:
        with make(*arguments, **options) as net:
            running = {host: _record(net, host) for host in WATCHED}
            yield net
            for host, process in running.items():
                process.terminate()
                assert process.wait(20) == 0, f"the capture at {host} lost packets"
                packets[host] = np.frombuffer((SCRATCH / f"{host}.pcap").read_bytes(), np.uint8)

    def noted(run: Any, kind: int, flows: Any, records: Any) -> None:
        now = time.time()
        told.extend(
            (run.zero, kind, now, flow, cls)
            for flow, cls in zip(flows.tolist(), records["cls"].tolist(), strict=True)
        )
        tell(run, kind, flows, records)

    stage.emulated_network, play._to_sources = recorded_network, noted
    result = stage.perform(channel, request)
    # The check before the run is a play too, with flows of its own: the last one counts.
    last = max(zero for zero, *_ in told)
    began = time.time() - time.monotonic() + last
    rows = np.array([entry[1:] for entry in told if entry[0] == last])
    return Message(
        "watched", {"began": began, "fidelity": result.body["fidelity"]}, {"told": rows, **packets}
    )


def _record(net: Any, host: str) -> subprocess.Popen[bytes]:
    nic = net.nics(net.fabric.hosts.index(host))[0].interface
    argv = [sys.executable, str(HERE / "capture.py"), nic, str(SCRATCH / f"{host}.pcap")]
    process: subprocess.Popen[bytes] = net.popen(host, argv, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


# ------------------------------------------------------------------ read back


@dataclass
class Stream:
    """What a host received over one connection. `dscp` and `at` (s) are of each byte's first arrival."""

    first: int = -1
    parts: list[tuple[int, bytes, int, float]] = field(default_factory=list)

    def joined(self) -> tuple[bytes, np.ndarray, np.ndarray]:
        length = max((offset + len(data) for offset, data, _, _ in self.parts), default=0)
        stream, dscp, at = bytearray(length), np.full(length, -1), np.zeros(length)
        for offset, data, code, when in self.parts:
            end = offset + len(data)
            new = dscp[offset:end] < 0
            dscp[offset:end][new], at[offset:end][new] = code, when
            stream[offset:end] = data
        assert (dscp >= 0).all(), "a byte was never seen: the capture has a hole"
        return bytes(stream), dscp, at


@dataclass
class Seen:
    """What one capture has: data towards this host, marks of what it answers, all ECN bits."""

    streams: dict[tuple[str, int], Stream]
    answers: list[int]
    ecn: set[int]


def read_capture(data: bytes, address: str) -> Seen:
    seen = Seen(defaultdict(Stream), [], set())
    for raw, meta in RawPcapReader(io.BytesIO(data)):
        packet = Ether(raw)
        if IP not in packet or TCP not in packet:
            continue
        ip, tcp = packet[IP], packet[TCP]
        seen.ecn.add(ip.tos & 3)
        if ip.src == address and tcp.sport == PORT:
            assert len(tcp.payload) == 0, "a receiver sends no data"
            seen.answers.append(ip.tos >> 2)
        if ip.dst != address or tcp.dport != PORT:
            continue
        stream = seen.streams[ip.src, tcp.sport]
        if tcp.flags.S:
            stream.first = tcp.seq + 1
        elif length := ip.len - 4 * ip.ihl - 4 * tcp.dataofs:
            assert stream.first >= 0, "data without a SYN: the capture began too late"
            offset = (tcp.seq - stream.first) % 2**32
            body = bytes(tcp.payload)[:length]
            stream.parts.append((offset, body, ip.tos >> 2, meta.sec + meta.usec * 1e-9))
    return seen


@dataclass
class Run:
    """A captured run. `pieces[flow]`: (time, bytes, DSCP) as they arrived; `told[flow]`: (time, class)."""

    workload: Workload
    fidelity: dict[str, Any]
    seen: dict[str, Seen]
    pieces: dict[int, list[tuple[float, int, int]]]
    total: dict[int, int]
    told: dict[int, list[tuple[float, int]]]

    def expected(self) -> set[int]:
        """Flows that a watched host must have received."""
        flows = self.workload.flows
        hosts = [int(host[1:]) - 1 for host in WATCHED]
        return set(np.flatnonzero(np.isin(flows.dst, hosts) & (flows.src != flows.dst)).tolist())


def captured(policy: str, tmp: Path) -> Run:
    path = tmp / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    loaded = scenario.load(path)
    position = [spec.name for spec in loaded.policies].index(policy)
    request = Message("perform", {"source": dict(loaded.source), "position": position, "plugins": []})
    entry = f"{__name__}:{perform_watched.__name__}"
    got = run_enclosed(entry, request, log=tmp / "log")
    run = Run(
        workload=scenario.build(loaded).ready[0].workload,
        fidelity=got.body["fidelity"],
        seen={host: read_capture(got.arrays[host].tobytes(), f"10.0.0.{host[1:]}") for host in WATCHED},
        pieces=defaultdict(list),
        total={},
        told=defaultdict(list),
    )
    for _, at, flow, cls in got.arrays["told"].tolist():
        run.told[int(flow)].append((at, int(cls)))
    for seen in run.seen.values():
        for stream in seen.streams.values():
            _gather(run, *stream.joined(), got.body["began"])
    for pieces in run.pieces.values():
        pieces.sort()
    return run


def _gather(run: Run, data: bytes, dscp: np.ndarray, at: np.ndarray, began: float) -> None:
    """Add one connection's chunks to their flows, those of the check before the run left out."""
    for chunk in chunks_of(data):
        if chunk.flow == HELLO or at[chunk.start] < began:
            continue
        run.total[chunk.flow] = chunk.total
        # A chunk lies in several packets, each with a mark of its own.
        edges = np.flatnonzero(np.diff(at[chunk.start : chunk.end])) + chunk.start + 1
        for start, end in zip([chunk.start, *edges], [*edges, chunk.end], strict=True):
            run.pieces[chunk.flow].append((float(at[start]), int(end - start), int(dscp[start])))


@pytest.fixture(scope="module", params=["tensorexpress", "sebf"])
def run(request, tmp_path_factory) -> Run:
    return captured(request.param, tmp_path_factory.mktemp(request.param))


# ------------------------------------------------------------------ the checks


TURN_S = 0.004
"""Until an endpoint has read of the change: a turn of its event loop, on a machine with other work too."""
IN_FLIGHT = 2 * (CHUNK + 16) + 2 * 1448 + WINDOW + round(TURN_S * 5e6)
"""Bytes that leave by the old class after a change: what a 5 MB/s port takes in that turn, the chunk in the
process's hands, what the kernel takes before it says stop (TCP_NOTSENT_LOWAT, a chunk, and a segment), and
what is under way."""


def share_right(pieces: list[tuple[float, int, int]], told: list[tuple[float, int]]) -> tuple[int, int]:
    """Bytes with the class in force when they arrived, or still under way when it changed; and all bytes."""
    right = 0
    allowance: dict[int, int] = {}
    position, current = 0, -1
    for at, size, dscp in pieces:
        while position < len(told) and told[position][0] <= at:
            allowance[current], current = IN_FLIGHT, told[position][1]
            position += 1
        cls = marking.class_of(dscp)
        if cls == current:
            right += size
        elif allowance.get(cls, 0) >= size:
            allowance[cls] -= size
            right += size
    return right, sum(size for _, size, _ in pieces)


@pytest.mark.root
def test_every_flow_arrived_whole(run):
    flows = run.workload.flows
    assert set(run.pieces) == run.expected()
    for flow in run.expected():
        due = wire.wire_size(float(flows.size[flow]), SCALE)
        assert run.total[flow] == due
        assert sum(size for _, size, _ in run.pieces[flow]) == due


@pytest.mark.root
def test_at_least_99_percent_of_the_bytes_of_each_flow_carry_the_class_that_its_endpoint_was_told(run):
    for flow, pieces in run.pieces.items():
        right, total = share_right(pieces, run.told[flow])
        assert right >= 0.99 * total, (flow, run.told[flow], pieces)


@pytest.mark.root
def test_bytes_carry_the_class_in_force_when_they_arrive_but_for_what_was_under_way(run):
    """Without the allowance: all where classes stay, and most where flows of some 50 kB change theirs."""
    strict = total = 0
    for flow, pieces in run.pieces.items():
        history = run.told[flow]
        for at, size, dscp in pieces:
            in_force = next(cls for since, cls in reversed(history) if since <= at)
            strict += size * (marking.class_of(dscp) == in_force)
            total += size
    assert strict >= (0.99 if all(len(history) == 1 for history in run.told.values()) else 0.85) * total


@pytest.mark.root
def test_no_byte_carries_a_class_that_its_flow_never_had(run):
    for flow, pieces in run.pieces.items():
        had = {marking.dscp_of(cls) for _, cls in run.told[flow]}
        assert {dscp for _, _, dscp in pieces} <= had


@pytest.mark.root
def test_several_classes_were_in_use(run):
    """Otherwise the checks above would pass on a network that marks nothing."""
    used = {dscp for pieces in run.pieces.values() for _, _, dscp in pieces}
    assert len(used) >= 5


@pytest.mark.root
@pytest.mark.parametrize("run", ["sebf"], indirect=True)
def test_flows_changed_class_on_their_way(run):
    """Otherwise nothing above has seen a flow go on in another class than it began in."""
    over_two = [flow for flow, pieces in run.pieces.items() if len({dscp for *_, dscp in pieces}) > 1]
    assert len(over_two) >= 10


@pytest.mark.root
@pytest.mark.parametrize("run", ["tensorexpress"], indirect=True)
def test_tensorexpress_marks_by_the_consumption_order_of_the_tensor(run):
    """Tensor l of L goes to queue floor(l * 8 / L), here worked out from the workload and not from a plan."""
    flows = run.workload.flows
    wanted = flows.need * 8 // flows.need_span
    right = sum(
        size
        for flow, pieces in run.pieces.items()
        for _, size, dscp in pieces
        if dscp == marking.dscp_of(int(wanted[flow]))
    )
    assert right == sum(run.total[flow] for flow in run.expected())


@pytest.mark.root
def test_acknowledgements_are_control_traffic_and_ecn_bits_stay_as_the_sockets_have_them(run):
    for seen in run.seen.values():
        assert len(seen.answers) > 100
        assert set(seen.answers) == {marking.CONTROL_DSCP}
        assert seen.ecn == {0}
