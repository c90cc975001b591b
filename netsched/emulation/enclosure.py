"""Runs a function of ours inside network, mount and pid namespaces that die with this process.

A killed emulation must leave nothing: not a veth, not a namespace, not a process, not a file. Instead of
cleaning up (which a SIGKILL prevents), everything is made where the kernel itself throws it away:

* the inside is process 1 of a pid namespace: when it ends, the kernel kills all its descendants;
* `setpriv --pdeathsig` and `unshare --kill-child` hand a SIGKILL of this process down to it;
* it also ends as soon as its end of the channel reads end-of-file, which covers the instants in which
  those two are not yet in force;
* its interfaces, qdiscs and named namespaces live in its own network and mount namespaces, its sockets
  and scratch files on a tmpfs that only it can see.

The death signal belongs to the *thread* that called `run_enclosed`: call it from one that lives as long
as the process does, usually the main one.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from netsched import errors, kernel
from netsched.emulation.channel import Channel, Message
from netsched.errors import CapabilityError, EmulationError

SCRATCH: Final = Path("/run/netsched")
"""Where the inside may write: a tmpfs that no other process sees. TMPDIR inside."""

_PROGRAMS: Final = {
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "mnexec": "mininet",
}
_NAMESPACES: Final = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_GRACE_S: Final = 5.0


def require() -> None:
    """CapabilityError unless this process may make an enclosure: root, its rights, and the programs."""
    if os.geteuid() != 0:
        raise CapabilityError("the mininet engine makes network namespaces and needs root: run it with sudo")
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            raise CapabilityError(f"program {program!r} is missing: apt-get install {package}")
    if missing := kernel.missing_rights():
        grant = " ".join(f"--cap-add {name.removeprefix('CAP_')}" for name in missing)
        raise CapabilityError(
            f"the mininet engine needs {' and '.join(missing)}, which root lacks here: "
            f"run it outside of the container, or start that with {grant} or --privileged"
        )


def run_enclosed(
    entry: str, request: Message, *, log: Path, on_message: Callable[[Message], None] | None = None
) -> Message:
    """Calls `entry` ("module:function") inside an enclosure and returns the message that it returns.

    The function's signature is `(channel: Channel, request: Message) -> Message`; what it sends meanwhile
    comes to `on_message`. A NetschedError inside is raised here with its own class and text; anything else,
    and everything written to stdout or stderr inside, goes to the file `log`. All that the inside started
    is gone when this returns or raises, whatever the reason (an exception of `on_message`, Ctrl-C).
    """
    require()
    ours, theirs = socket.socketpair()
    with ours, log.open("ab") as output:
        with theirs:
            inside = _start(entry, theirs, output.fileno())
        channel = Channel(ours)
        try:
            channel.send(request)
            return _converse(channel, inside, log, on_message)
        finally:
            channel.close()
            _end(inside)


def _start(entry: str, end: socket.socket, output: int) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches this process only, which then ends the inside in order.
    inside = [sys.executable, "-m", "netsched.emulation.inside", str(end.fileno()), entry]
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES, *inside],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(end.fileno(),),
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(SCRATCH), "PYTHONPATH": os.pathsep.join(_import_path())},
    )


def _import_path() -> list[str]:
    """The directories we import from, so that the inside finds the very same modules."""
    return [str(Path(entry).absolute()) for entry in sys.path if Path(entry or ".").is_dir()]


def _converse(
    channel: Channel,
    inside: subprocess.Popen[bytes],
    log: Path,
    on_message: Callable[[Message], None] | None,
) -> Message:
    started = False
    while (message := channel.receive()) is not None:
        if message.kind == "started":
            started = True
        elif message.kind == "result":
            return Message(message.body["kind"], message.body["body"], message.arrays)
        elif message.kind == "error":
            raise _error(message, log)
        elif on_message is not None:
            on_message(message)
    _end(inside)
    if not started:
        raise CapabilityError(
            f"no private namespaces on this machine: {_last_line(log) or 'unshare failed'} "
            "(needs CAP_SYS_ADMIN and CONFIG_NET_NS, CONFIG_PID_NS)"
        )
    raise EmulationError(f"the emulation ended without a result (status {inside.returncode}); see {log}")


def _error(message: Message, log: Path) -> errors.NetschedError:
    """The exception that happened inside; one outside our tree is an EmulationError naming the log."""
    kind = getattr(errors, str(message.body["error"]), None)
    text = str(message.body["text"])
    if isinstance(kind, type) and issubclass(kind, errors.NetschedError):
        return kind(text)
    return EmulationError(f"the emulation failed: {message.body['error']}: {text}; see {log}")


def _end(inside: subprocess.Popen[bytes]) -> None:
    """Waits for the inside, whose channel is closed; kills it if it does not go. Idempotent."""
    try:
        inside.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        inside.kill()
        inside.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1].strip() if lines else ""
