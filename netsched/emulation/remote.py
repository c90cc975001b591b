"""The program's end of the process that sets optical switches (`optical`): what it is told, what it says."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from netsched.emulation.detours import End
from netsched.emulation.optical import OpticalSwitch, State, Switching
from netsched.errors import EmulationError

_BATCH: Final = 32
"""Steps of a message."""


class Remote:
    """Tells the process what to set and hears what became of it; `log` has all that."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.log: list[Switching] = []

    def command(self, steps: Sequence[tuple[float, Sequence[Sequence[int]]]]) -> None:
        """At each time (s, CLOCK_MONOTONIC, ascending) set the matching of each switch.

        What was to happen from the first of these times on is forgotten.
        """
        rows = [[at, [list(out) for out in matchings]] for at, matchings in steps]
        for first in range(0, len(rows), _BATCH):
            self.control.sendall(json.dumps({"steps": rows[first : first + _BATCH]}).encode())

    def fail(self, broken: Sequence[Sequence[int]]) -> None:
        """From now on the cables of these ports of each switch are those that have failed."""
        self.control.sendall(json.dumps({"broken": [list(ports) for ports in broken]}).encode())

    def read(self) -> State:
        """The switches' state now."""
        self.control.sendall(json.dumps({"read": True}).encode())
        while "state" not in (message := self.hear()):
            pass
        return State(**message["state"] | {"matchings": tuple(map(tuple, message["state"]["matchings"]))})

    def hear(self) -> dict[str, Any]:
        """Take the next message: it has "switchings" (which go to `log`), "state" or "ready".

        EmulationError if the process says that it failed, or has ended.
        """
        packet = self.control.recv(1 << 17)
        if not packet:
            raise EmulationError("the process of the optical switches has ended")
        message: dict[str, Any] = json.loads(packet)
        if "failed" in message:
            raise EmulationError(f"optical switches: {message['failed']}")
        self.log += [Switching(**row) for row in message.get("switchings", ())]
        return message


def write_config(path: Path, switches: Sequence[OpticalSwitch], ends: Sequence[End], hops: int = 1) -> None:
    """What the process is to be started with. `hops`: most circuits in a row that routes lead over."""
    config = {"switches": [asdict(each) for each in switches], "ends": [asdict(each) for each in ends]}
    path.write_text(json.dumps({**config, "hops": hops}))
