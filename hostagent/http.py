"""Read-only HTTP pages in the agent's own loop, for probes and a metrics collector on the same host.

Not the standard library's server: that one wants a thread or a blocking loop, and the agent's single loop
must answer jobs meanwhile. A page is a few kilobytes, a request is a line, and whoever is slow is dropped.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hostagent.server import Server
from netsched.errors import NetschedError

_LOG: Final = logging.getLogger(__name__)
_MAX_REQUEST: Final = 8192
_MAX_CLIENTS: Final = 32
_DEADLINE_S: Final = 5.0
_REST: Final = 9
"""A page is shown again for so many times as long as it took to make: whoever asks without end, which any
user of the host may, keeps the agent from its jobs for a tenth of the time with making it."""
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Page:
    """One answer. `status` is HTTP's."""

    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"


@dataclass
class _Client:
    deadline: float
    received: bytes = b""
    waiting: bytes = b""


class Http:
    """A listener at `address` (host, port) whose sockets live in `server`'s loop; one page for each path.

    NetschedError if the address cannot be had.
    """

    def __init__(
        self, server: Server, address: tuple[str, int], pages: Mapping[str, Callable[[], Page]]
    ) -> None:
        self._server = server
        self._pages = pages
        self._clients: dict[socket.socket, _Client] = {}
        self._made: dict[str, tuple[Page, float]] = {}
        host, port = address
        self._listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(_MAX_CLIENTS)
        except OSError as error:
            self._listener.close()
            raise NetschedError(f"metrics.listen {host}:{port}: {error.strerror}") from None
        self._listener.setblocking(False)
        server.watch(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        for sock in list(self._clients):
            self._drop(sock)
        self._server.unwatch(self._listener)
        self._listener.close()

    def expire(self) -> None:
        """Drop the clients that have taken too long."""
        now = time.monotonic()
        for sock in [sock for sock, client in self._clients.items() if client.deadline <= now]:
            self._drop(sock)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._clients) >= _MAX_CLIENTS:
            # The oldest is the one that is most likely stuck.
            self._drop(next(iter(self._clients)))
        sock.setblocking(False)
        self._clients[sock] = _Client(time.monotonic() + _DEADLINE_S)
        self._server.watch(sock, selectors.EVENT_READ, lambda: self._read(sock))

    def _read(self, sock: socket.socket) -> None:
        client = self._clients[sock]
        try:
            data = sock.recv(_MAX_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.received += data
        if not data:
            self._drop(sock)
        elif len(client.received) > _MAX_REQUEST:
            self._send(sock, Page(431, "the request is longer than 8 KiB\n"))
        elif b"\r\n\r\n" in client.received or b"\n\n" in client.received:
            self._send(sock, self._page(client.received), head_only=client.received.startswith(b"HEAD "))

    def _page(self, request: bytes) -> Page:
        line = request.split(b"\n", 1)[0].decode("latin-1").split()
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return Page(400, "not an HTTP/1 request\n")
        if line[0] not in ("GET", "HEAD"):
            return Page(405, "pages can only be read\n")
        make = self._pages.get(line[1].partition("?")[0])
        if make is None:
            return Page(404, f"the pages are {', '.join(self._pages)}\n")
        path = line[1].partition("?")[0]
        known, until = self._made.get(path, (None, 0.0))
        begin = time.monotonic()
        if known is not None and begin < until:
            return known
        made = self._make(make)
        end = time.monotonic()
        self._made[path] = made, end + (end - begin) * _REST
        return made

    def _make(self, make: Callable[[], Page]) -> Page:
        try:
            return make()
        except Exception:
            # Any user of the host may ask: no question may end the agent of everybody's jobs.
            _LOG.exception("page failed unexpectedly")
            return Page(500, "the agent failed at this page; its log says why\n")

    def _send(self, sock: socket.socket, page: Page, *, head_only: bool = False) -> None:
        body = page.body.encode()
        head = (
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._clients[sock].waiting = head.encode() + (b"" if head_only else body)
        self._server.unwatch(sock)
        self._server.watch(sock, selectors.EVENT_WRITE, lambda: self._write(sock))

    def _write(self, sock: socket.socket) -> None:
        client = self._clients[sock]
        try:
            client.waiting = client.waiting[sock.send(client.waiting) :]
        except BlockingIOError:
            return
        except OSError:
            client.waiting = b""
        if not client.waiting:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        del self._clients[sock]
        self._server.unwatch(sock)
        sock.close()
