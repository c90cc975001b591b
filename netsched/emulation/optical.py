"""Optical switches in real time: a process that sets matchings when it is told to, with their dark times.

    python -m netsched.emulation.optical CONTROL_FD CONFIG_FILE

It does nothing else, so that what it measures of itself is what the network's ports see. The ports that a
command changes (all ports where a switch is all-stop) lose the routes over them and go dark at once; `delay`
seconds later they have light again, and routes. A port that is told to change while it is dark begins its
dark time anew.

A port whose cable has failed gives no light on, whatever is commanded: what is commanded goes on meanwhile,
and counts again when the cable is mended. What comes to such a port is lost, and counted by itself.
"""

from __future__ import annotations

import json
import math
import select
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from netsched.emulation import redirects
from netsched.emulation.detours import Detours, End
from netsched.emulation.redirects import DARK, Ports
from netsched.errors import EmulationError, NetschedError
from netsched.netlink import Netlink, open_netns
from netsched.shortest import Chains

_SOON_S: Final = 1e-3
"""Closer than this to what is due next, the process listens to nobody: it must not be late."""


@dataclass(frozen=True)
class OpticalSwitch:
    """One optical switch of a run.

    node      its name in the fabric
    pid       the process that holds its network namespace
    ports     the interface of each port
    ends      the end of the optical network (ordinal) at which the port's cable begins
    delay     seconds for which the ports of a change are dark
    all_stop  a change darkens all ports, and not only those that change
    """

    node: str
    pid: int
    ports: tuple[str, ...]
    ends: tuple[int, ...]
    delay: float
    all_stop: bool


@dataclass(frozen=True)
class Switching:
    """One change of one optical switch, as it happened. Times are CLOCK_MONOTONIC seconds.

    switch     ordinal of the switch
    commanded  when it was to begin
    dark       when the last of its ports had lost its light
    light      when the first of its ports was given light again; inf where none was
    finished   when the last one had it
    ports      how many ports got light
    lost       frames that came to the switch's dark ports since the change before; not those on failed cables
    """

    switch: int
    commanded: float
    dark: float
    light: float
    finished: float
    ports: int
    lost: int

    @property
    def dark_s(self) -> float:
        """Seconds from the last port's darkness to the first port's light."""
        return self.light - self.dark


@dataclass(frozen=True)
class State:
    """All switches at a time: their matchings as read from the kernel, and what their circuits have been.

    `lit_s` are seconds with light, `dark_s` without it but waiting for it, `failed_s` without it for a cable
    had failed, each added up over all circuits. `cut` are frames that came to ports whose cable had failed.
    """

    matchings: tuple[tuple[int, ...], ...]
    lit_s: float
    dark_s: float
    failed_s: float
    cut: int


def check_matching(ports: int, out: Sequence[int]) -> None:
    """EmulationError unless `out` names, per port, another port or `DARK`, and none twice."""
    lit = [target for target in out if target != DARK]
    if len(out) != ports or any(not 0 <= target < ports for target in lit):
        raise EmulationError(
            f"matching {list(out)}: must name {ports} ports, each 0 to {ports - 1} or {DARK}"
        )
    if len(set(lit)) < len(lit) or any(port == target for port, target in enumerate(out)):
        raise EmulationError(f"matching {list(out)}: a port is the end of two circuits, or of its own")


@dataclass
class _State:
    """One switch in the process. `out` is what it was told last, `lit` the ports that have light by that,
    `due` when each dark port gets it; `broken` the ports whose cable has failed, which have none.

    `counted` is what the kernel counted of each port when it was read last; `lost` and `cut` are frames since
    then added up, those of the dark since the last change, and those of failed cables. `since` says from when
    on a port with a circuit has been as it is, and whether that is severed."""

    switch: OpticalSwitch
    link: Netlink
    ports: Ports
    out: list[int]
    lit: set[int] = field(default_factory=set)
    due: dict[int, float] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    counted: tuple[int, ...] = ()
    lost: int = 0
    cut: int = 0
    commanded: float = 0.0
    dark: float = 0.0
    since: dict[int, tuple[float, bool]] = field(default_factory=dict)
    lit_s: float = 0.0
    dark_s: float = 0.0
    failed_s: float = 0.0

    def severed(self, port: int) -> bool:
        """Whether the port's light, if it has any, meets a failed cable."""
        return port in self.broken or self.out[port] in self.broken

    def change(self, darken: Iterable[int], light: Iterable[int]) -> None:
        """In the kernel: these lit ports go dark, then these have the light that they were told to have."""
        redirects.change(
            self.link,
            self.ports,
            [port for port in darken if port not in self.broken],
            [(port, self.out[port]) for port in light if port not in self.broken],
        )

    def count(self) -> None:
        """Read what has been lost."""
        before, self.counted = self.counted, redirects.lost(self.link, self.ports)
        for port, (now, then) in enumerate(zip(self.counted, before, strict=True)):
            if port in self.broken:
                self.cut += now - then
            else:
                self.lost += now - then

    def settle(self, ports: Iterable[int], now: float) -> None:
        """Count the seconds of these ports' circuits, as they have been; they begin anew now."""
        for port in ports:
            began, severed = self.since.pop(port, (now, False))
            if port not in self.lit:
                self.dark_s += now - began
            elif severed:
                self.failed_s += now - began
            else:
                self.lit_s += now - began
            if self.out[port] != DARK:
                self.since[port] = now, self.severed(port)


class Optics:
    """The switches of a network, dark at first. Times are CLOCK_MONOTONIC seconds.

    `hops` is how many circuits in a row routes may lead over.
    """

    def __init__(self, switches: Sequence[OpticalSwitch], ends: Sequence[End] = (), hops: int = 1) -> None:
        self._states = [_open(switch) for switch in switches]
        self._detours = Detours(ends)
        self._n_ends = len(ends)
        self._hops = hops
        self.done: list[Switching] = []

    def close(self) -> None:
        self._detours.close()
        for state in self._states:
            state.link.close()

    def command(self, switch: int, out: Sequence[int], at: float) -> None:
        """Set this matching of a switch now; `at` is when it was to happen, for the record."""
        state = self._states[switch]
        check_matching(len(state.ports), out)
        changed = [port for port, target in enumerate(out) if target != state.out[port]]
        state.out = list(out)
        if not changed:
            return
        stopped = range(len(state.ports)) if state.switch.all_stop else changed
        dark = sorted(state.lit.intersection(stopped))
        state.commanded = at
        self._lead(without=(switch, dark))
        if state.switch.delay > 0:
            state.change(dark, ())
        state.dark = time.monotonic()
        state.settle(stopped, state.dark)
        state.lit.difference_update(dark)
        for port in stopped:
            state.due.pop(port, None)
            if out[port] != DARK:
                state.due[port] = state.dark + state.switch.delay
        if state.switch.delay == 0:
            self._light(switch, sorted(state.due), [port for port in dark if out[port] == DARK])
        elif not state.due:
            self._note(switch, 0, math.inf, math.inf)

    def fail(self, broken: Sequence[Iterable[int]]) -> None:
        """Let the cables of these ports of each switch be those that have failed."""
        for state, ports in zip(self._states, map(set, broken), strict=True):
            if ports == state.broken:
                continue
            state.count()
            lost, mended = state.lit & (ports - state.broken), state.lit & (state.broken - ports)
            state.change(sorted(lost), ())
            state.broken = ports
            state.settle(list(state.since), time.monotonic())
            state.change((), sorted(mended))
        self._lead()

    def advance(self, now: float) -> float:
        """Give light to the ports whose time has come; when the next one's comes (inf if none waits)."""
        for number, state in enumerate(self._states):
            ready = sorted(port for port, at in state.due.items() if at <= now)
            if ready:
                self._light(number, ready, [])
        return min((at for state in self._states for at in state.due.values()), default=math.inf)

    def state(self) -> State:
        """What the kernel has now, and the seconds so far."""
        now = time.monotonic()
        for state in self._states:
            state.settle(list(state.since), now)
            state.count()
        return State(
            matchings=tuple(redirects.read_back(state.link, state.ports) for state in self._states),
            lit_s=sum(state.lit_s for state in self._states),
            dark_s=sum(state.dark_s for state in self._states),
            failed_s=sum(state.failed_s for state in self._states),
            cut=sum(state.cut for state in self._states),
        )

    def _light(self, number: int, ready: list[int], darken: list[int]) -> None:
        state = self._states[number]
        began = time.monotonic()
        state.change(darken, ready)
        finished = time.monotonic()
        state.settle(ready, finished)
        state.lit.update(ready)
        for port in ready:
            del state.due[port]
        self._lead()
        self._note(number, len(ready), began, finished)

    def _lead(self, without: tuple[int, Sequence[int]] = (0, ())) -> None:
        """Routes over the circuits that have light, and over no others. `without`: ports about to lose it."""
        lit = np.full((len(self._states), self._n_ends), DARK, np.int64)
        for number, state in enumerate(self._states):
            ends = state.switch.ends
            gone = without[1] if number == without[0] else ()
            for port in sorted(state.lit.difference(gone)):
                if not state.severed(port):
                    lit[number, ends[port]] = ends[state.out[port]]
        chains = Chains(lit, self._hops)
        self._detours.set(
            {
                (src, dst): chains.switches(src, int(chains.toward(dst)[src]))
                for dst in range(self._n_ends)
                for src in np.flatnonzero(chains.toward(dst) != DARK).tolist()
            }
        )

    def _note(self, number: int, ports: int, light: float, finished: float) -> None:
        state = self._states[number]
        state.count()
        lost, state.lost = state.lost, 0
        self.done.append(Switching(number, state.commanded, state.dark, light, finished, ports, lost))


def _open(switch: OpticalSwitch) -> _State:
    link = open_netns(switch.pid)
    index = link.links()
    ports = Ports(tuple(index[name] for name in switch.ports))
    redirects.prepare(link, ports)
    state = _State(switch, link, ports, [DARK] * len(ports))
    state.counted = redirects.lost(link, ports)
    return state


def serve(control: socket.socket, optics: Optics) -> None:
    """Carry out what comes over `control` until its other end closes."""
    control.sendall(json.dumps({"ready": True}).encode())
    steps: list[tuple[float, list[list[int]]]] = []
    while True:
        light = optics.advance(time.monotonic())
        now = time.monotonic()
        if steps and steps[0][0] <= now:
            at, matchings = steps.pop(0)
            for switch, out in enumerate(matchings):
                optics.command(switch, out, at)
            continue
        if optics.done:
            control.sendall(json.dumps({"switchings": [asdict(row) for row in optics.done]}).encode())
            optics.done.clear()
        wake = min(light, steps[0][0] if steps else math.inf)
        wait = wake - time.monotonic()
        if wait < _SOON_S:
            time.sleep(max(wait, 0.0))
            continue
        ready, _, _ = select.select([control], [], [], None if math.isinf(wait) else wait - _SOON_S / 2)
        if ready:
            packet = control.recv(1 << 17)
            if not packet:
                return
            asked = json.loads(packet)
            if "steps" in asked:
                new = [(at, out) for at, out in asked["steps"]]
                steps = [step for step in steps if step[0] < new[0][0]] + new
            if "broken" in asked:
                optics.fail(asked["broken"])
            if "read" in asked:
                control.sendall(json.dumps({"state": asdict(optics.state())}).encode())


def main(control_fd: int, config: Path) -> int:
    control = socket.socket(fileno=control_fd)
    described = json.loads(config.read_text())
    try:
        switches = [OpticalSwitch(**_tuples(each)) for each in described["switches"]]
        ends = [End(**_tuples(each)) for each in described["ends"]]
        serve(control, Optics(switches, ends, described["hops"]))
    except NetschedError as error:
        control.sendall(json.dumps({"failed": str(error)}).encode())
        return error.exit_code
    return 0


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return {key: frozen(value) for key, value in values.items()}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
