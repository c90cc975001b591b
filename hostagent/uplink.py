"""The agent's connection to the coordinator: a thread that dials, reads, and dials again.

gRPC brings threads of its own, so all of it stays behind two queues, and the loop that serves jobs never
waits for it. It is imported only here, by agents that have a coordinator.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hostagent import logs
from netsched.coordinator import wire
from netsched.coordinator.pem import pem_of
from netsched.errors import CapabilityError, ScenarioError

if TYPE_CHECKING:
    from hostagent.coordination import Coordinator

_LOG: Final = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 3.0
_END_S: Final = 2.0
_REASON: Final = 400
"""Characters of gRPC's reason; what OpenSSL found comes late in it."""
MAX_QUEUED: Final = 64
"""Messages that may wait for a coordinator that does not read."""


class Line:
    """One stream to the coordinator: what is put on it is sent, until it is hung up."""

    def __init__(self, hello: bytes) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._queue.put(hello)

    def send(self, message: bytes) -> None:
        self._queue.put(message)

    @property
    def is_full(self) -> bool:
        return self._queue.qsize() >= MAX_QUEUED

    def hang_up(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._queue.get, None)


@dataclass(frozen=True)
class News:
    """A message that came over a line, or why the line is down."""

    line: Line
    message: bytes = b""
    down: str = ""


class Uplink:
    """Keeps a line to the coordinator. `wake_fd` gets a byte whenever there is news.

    CapabilityError if gRPC is not installed.
    """

    def __init__(self, config: Coordinator, hello: bytes, wake_fd: int) -> None:
        try:
            import grpc  # noqa: PLC0415
        except ImportError:
            raise CapabilityError(
                "coordinator: no module grpc: pip install 'netsched[coordinator]'"
            ) from None
        self._grpc: Any = grpc
        self._lost = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        self._config = config
        self._hello = hello
        self._wake_fd = wake_fd
        self._news: deque[News] = deque()
        self._stop = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="uplink", daemon=True)
        self._thread.start()

    def news(self) -> Iterator[News]:
        """Everything that has come since the last look."""
        while self._news:
            yield self._news.popleft()

    def redial(self) -> None:
        """End the present line, if there is one; a new one is tried."""
        call = self._call
        if call is not None:
            call.cancel()

    def close(self) -> None:
        self._stop.set()
        self.redial()
        self._thread.join(_END_S)

    # -------------------------------------------------------------- in the thread

    def _run(self) -> None:
        pause, last = _FIRST_PAUSE_S, ""
        while not self._stop.is_set():
            line = Line(self._hello)
            heard, why = self._talk(line)
            line.hang_up()
            pause = _FIRST_PAUSE_S if heard else min(2 * pause, _LONGEST_PAUSE_S)
            if self._stop.is_set():
                return
            if why != last or heard:
                about: dict[str, logs.Value] = {"address": self._config.address, "why": why}
                _LOG.warning("coordinator away", extra=logs.fields(about))
            last = why
            self._tell(News(line, down=why))
            # Spread, so that a thousand agents do not all come back at one moment.
            self._stop.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311

    def _talk(self, line: Line) -> tuple[bool, str]:
        """Hold one line as long as it lasts: whether anything was heard, and why it ended."""
        heard = False
        try:
            with self._channel() as channel:
                self._call = channel.stream_stream(f"/{wire.SERVICE}/{wire.METHOD}")(iter(line))
                if self._stop.is_set():
                    self._call.cancel()
                for message in self._call:
                    heard = True
                    self._tell(News(line, message))
            return heard, "it ended the stream"
        except self._grpc.RpcError as error:
            # If the coordinator does not want us, coming back at once does not help: two agents of one name
            # would take each other's place as fast as they can.
            heard = heard and error.code() in self._lost
            return heard, self._reason(error)
        except ScenarioError as error:
            return heard, f"coordinator: {error}"
        finally:
            self._call = None

    def _reason(self, error: Any) -> str:
        text = " ".join(str(error.details()).split())[:_REASON]
        named = f"{error.code().name.lower()}: {text}"
        if not self._config.secure or error.code() not in self._lost or "onnection refused" in text:
            return named
        # Whoever finds a certificate wanting only hangs up, and gRPC does not name the file it could not use.
        files = f"{self._config.cert}, {self._config.key} and {self._config.ca}"
        return f"{named} (if it is the certificates: {files}; openssl x509 -noout -enddate -in FILE)"

    def _channel(self) -> Any:
        """A channel with the certificates as they are now, so that they can be renewed in place."""
        config, grpc = self._config, self._grpc
        options = [
            ("grpc.max_receive_message_length", wire.MAX_MESSAGE),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if not config.secure:
            return grpc.insecure_channel(config.address, options)
        ca, cert = pem_of(config.ca, secret=False), pem_of(config.cert, secret=False)
        key = pem_of(config.key, secret=True)
        return grpc.secure_channel(config.address, grpc.ssl_channel_credentials(ca, key, cert), options)

    def _tell(self, news: News) -> None:
        self._news.append(news)
        # Full: it will wake up anyway. Closed: nobody is left to be told.
        with contextlib.suppress(OSError):
            os.write(self._wake_fd, b"\0")
