"""What the agent tells whoever started it: that it serves, that it still lives, that it stops.

systemd's notification protocol is one datagram per message, so no library is needed for it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

_MICROSECONDS: Final = 1e6


class Notifier:
    """systemd's end of the agent, by the environment that systemd set; silent where there is none.

    `interval` is half of what WATCHDOG_USEC allows between two signs of life, in seconds; None: nobody asks.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        address = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the abstract namespace's null byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.interval = _watchdog_interval(environ) if self._address else None

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
            # A full queue must not hold up the loop whose life is being told.
            sock.setblocking(False)
            sock.sendto(text.encode(), self._address)


def _watchdog_interval(environ: Mapping[str, str]) -> float | None:
    """Half of WATCHDOG_USEC in seconds, if it is meant for this process and not for a parent of it."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / _MICROSECONDS / 2 if text.isascii() and text.isdigit() and int(text) > 0 else None


def write_ready(ready_fd: int | None) -> None:
    """A line "ready" on the descriptor that `--ready-fd` named, which is then closed."""
    if ready_fd is None:
        return
    with contextlib.suppress(BrokenPipeError):
        os.write(ready_fd, b"ready\n")
    os.close(ready_fd)
