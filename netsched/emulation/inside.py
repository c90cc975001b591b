"""Process 1 of an enclosure: makes its file systems private, then calls the function it was started for.

Started by `enclosure.run_enclosed` only: `python -m netsched.emulation.inside FD MODULE:FUNCTION`.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyroute2 import IPRoute

from netsched import errors
from netsched.emulation.channel import Channel, Message
from netsched.emulation.enclosure import SCRATCH
from netsched.errors import NetschedError

_RUN: Final = Path("/run")


def main(descriptor: int, entry: str) -> int:
    os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=descriptor))
    request = channel.receive()
    if request is None:
        return 1
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    try:
        _make_private()
        channel.send(Message("started"))
        result = _function(entry)(channel, request)
        channel.send(Message("result", {"kind": result.kind, "body": result.body}, result.arrays))
    except NetschedError as error:
        # The class that the outside knows: a module's own error is one of the tree's.
        known = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        channel.send(Message("error", {"error": known.__name__, "text": str(error)}))
    except Exception as error:
        traceback.print_exc()
        channel.send(Message("error", {"error": type(error).__name__, "text": str(error)}))
    return 0


def _end_with(channel: Channel) -> None:
    """Ends this process, and with it everything in its pid namespace, when the outside is gone."""
    channel.wait_for_close()
    os._exit(0)


def _make_private() -> None:
    """A /run of our own (named network namespaces, sockets, scratch), and loopback up."""
    kept = [
        path for path in map(Path.resolve, map(Path, (*sys.path, sys.prefix, "."))) if _RUN in path.parents
    ]
    handles = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in kept if path.is_dir()}
    _mount("-t", "tmpfs", "-o", "mode=755", "netsched", str(_RUN))
    for path, handle in handles.items():
        # The program itself may live below /run (some containers): it stays reachable.
        path.mkdir(parents=True, exist_ok=True)
        _mount("--no-canonicalize", "--bind", f"/proc/{os.getpid()}/fd/{handle}", str(path))
        os.close(handle)
    for directory in (SCRATCH, _RUN / "netns", _RUN / "lock"):
        directory.mkdir(mode=0o755)
    with IPRoute() as ipr:
        ipr.link("set", index=1, state="up")


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _function(entry: str) -> Callable[[Channel, Message], Message]:
    module, _, name = entry.partition(":")
    function: Callable[[Channel, Message], Message] = getattr(importlib.import_module(module), name)
    return function


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
