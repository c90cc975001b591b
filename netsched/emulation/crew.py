"""The processes in the emulated hosts: one agent and one endpoint each, started together and watched.

Each endpoint is tied to the conductor by a socket pair; when either end closes, the other gives up.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from netsched.emulation import wire
from netsched.emulation.enclosure import SCRATCH
from netsched.emulation.endpoint import Config
from netsched.emulation.network import EmulatedNetwork
from netsched.emulation.wiring import ETHERNET, MTU, payload_share
from netsched.errors import EmulationError

_READY_S: Final = 60.0
WINDOW_S: Final = 1.5e-3
"""Most that one connection has under way, in seconds of its port's rate: enough to fill the port through a
busy kernel, and little enough that a dozen connections do not overflow a switch's queue."""
FRAME: Final = MTU + ETHERNET
SEGMENT: Final = round(FRAME * payload_share())
_LEAST_SEGMENTS: Final = 8


@dataclass(frozen=True)
class Crew:
    """`control[h]` is the conductor's end to the endpoint of host ordinal h, `process[h]` that endpoint."""

    control: tuple[socket.socket, ...]
    process: tuple[subprocess.Popen[bytes], ...]

    def ask(self, kind: int, bodies: list[Any]) -> list[Any]:
        """Send each endpoint a JSON body and wait for its answer of the matching kind."""
        for end, body in zip(self.control, bodies, strict=True):
            wire.send_json(end, kind, body)
        return self.expect(wire.OPENED if kind == wire.OPEN else kind)

    def expect(self, kind: int) -> list[Any]:
        """Wait for one answer of this kind from each endpoint."""
        return [self._answer(host, kind) for host in range(len(self.control))]

    def _answer(self, host: int, kind: int) -> Any:
        end = self.control[host]
        deadline = time.monotonic() + _READY_S
        while True:
            ready, _, _ = select.select([end], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise EmulationError(f"endpoint of host {host}: no answer within {_READY_S:.0f} s")
            packet = end.recv(wire.LARGEST)
            if not packet:
                raise EmulationError(
                    f"endpoint of host {host} has ended (status {self.process[host].poll()})"
                )
            if packet[0] == wire.FAILED:
                raise EmulationError(f"endpoint of host {host}: {json.loads(packet[1:])}")
            if packet[0] == kind:
                return json.loads(packet[1:])


def start_agents(net: EmulatedNetwork, queues: int) -> None:
    """One netsched-agent per host in mode mark+queue; returns when all own their queues and serve."""
    waiting: dict[int, str] = {}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    for host, name in enumerate(net.fabric.hosts):
        path = SCRATCH / f"{name}.yaml"
        path.write_text(yaml.safe_dump(_agent_config(net, host, name, queues)))
        reading, writing = os.pipe()
        argv = [sys.executable, "-m", "hostagent", "run", "--config", str(path), "--ready-fd", str(writing)]
        processes[name] = net.popen(name, argv, pass_fds=(writing,))
        os.close(writing)
        waiting[reading] = name
    deadline = time.monotonic() + _READY_S
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise EmulationError(f"agent of {min(waiting.values())}: not ready within {_READY_S:.0f} s")
        for reading in ready:
            if not os.read(reading, 64):
                name = waiting[reading]
                raise EmulationError(f"agent of {name} has ended (status {processes[name].wait()})")
            os.close(reading)
            del waiting[reading]


def _agent_config(net: EmulatedNetwork, host: int, name: str, queues: int) -> dict[str, Any]:
    return {
        "version": 1,
        "mode": "mark+queue",
        "queues": queues,
        "interfaces": [{"name": nic.interface, "rate": f"{nic.rate:.0f}B/s"} for nic in net.nics(host)],
        "api": {"socket": str(agent_socket(name))},
        "on_stop": "keep",
    }


def agent_socket(host: str) -> Path:
    """Where the agent of a host listens."""
    return SCRATCH / f"{host}.sock"


def window(rate: float) -> int:
    """Most bytes that one connection may have under way from a port of `rate` bytes/s."""
    return max(_LEAST_SEGMENTS, round(rate * WINDOW_S / FRAME)) * SEGMENT


def start_endpoints(
    net: EmulatedNetwork, *, queued: bool, chunk: int, scale: float, progress: bool, nap: float
) -> Crew:
    """One endpoint per host, listening, not yet connected to each other. Their agents must be ready."""
    slowest = min(nic.rate for host in range(len(net.fabric.hosts)) for nic in net.nics(host))
    ends: list[socket.socket] = []
    processes: list[subprocess.Popen[bytes]] = []
    for name in net.fabric.hosts:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = Config(str(agent_socket(name)), queued, chunk, scale, progress, nap, window(slowest))
        argv = [
            sys.executable,
            "-m",
            "netsched.emulation.endpoint",
            str(theirs.fileno()),
            json.dumps(asdict(config)),
        ]
        processes.append(net.popen(name, argv, pass_fds=(theirs.fileno(),)))
        theirs.close()
        ends.append(ours)
    crew = Crew(tuple(ends), tuple(processes))
    crew.expect(wire.OPENED)
    return crew
