"""The coordinator's gRPC side: who is at the other end, one stream per agent, one planner for all.

Everything runs in one thread (asyncio), so that the planner needs no locks. Messages are the bytes of `wire`:
a hand-written service of one method is a page, generated stubs would be many.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from typing import Any, Final

import grpc
import grpc.aio

from hostagent import logs
from netsched.coordinator import wire
from netsched.coordinator.config import Config, Tls
from netsched.coordinator.pem import pem_of
from netsched.coordinator.planner import Planner, Unwelcome
from netsched.coordinator.registry import Host, ReportError
from netsched.errors import ScenarioError

_LOG: Final = logging.getLogger(__name__)
TICK_S: Final = 0.001
"""Least time between two rounds: what is reported within it is decided together."""
_HELLO_S: Final = 10.0
_SPARE_STREAMS: Final = 64
_MAX_SILENT: Final = 4
"""Streams of one certificate that have not said hello: others need the places as well."""
_LINE_S: Final = 1.0
"""Least time between two lines of the log about refusals."""
_LIVES_BEATS: Final = 1.5
"""Within so many beats an agent gives a sign of life, if it lives."""
_GRACE_S: Final = 1.0


class _Over(Exception):  # noqa: N818  (an end that we choose, not a failure)
    """A stream ends, and the agent is told why."""

    def __init__(self, code: Any, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Mouth:
    """What is told on one stream.

    A cancelled write goes on inside gRPC, and an end that comes before its own may be refused. One that fails
    after whoever waited for it has gone was lost with its stream, of which nobody need complain.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._write: asyncio.Future[None] | None = None

    async def tell(self, packet: bytes) -> None:
        self._write = asyncio.ensure_future(self._context.write(packet))
        self._write.add_done_callback(_look_at)
        await asyncio.shield(self._write)

    async def is_still(self, seconds: float) -> bool:
        """Whether the last write has ended, at the latest after so many seconds."""
        if self._write is None:
            return True
        done, _ = await asyncio.wait({self._write}, timeout=seconds)
        return bool(done)


def _look_at(write: asyncio.Future[None]) -> None:
    """asyncio complains of an exception that nobody has looked at."""
    if not write.cancelled():
        write.exception()


class Service:
    """A coordinator that serves. `run` is its whole life; a PolicyError ends it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._zero = time.monotonic()
        self._beat = config.stale / 4
        self._planner = Planner(config.policy, config.network, config.control, config.stale)
        self._heard = asyncio.Event()
        self._bells: dict[Host, asyncio.Event] = {}
        self._silent: Counter[frozenset[str]] = Counter()
        self._next_line = -math.inf

    @property
    def _now(self) -> float:
        return time.monotonic() - self._zero

    async def run(self, stop: asyncio.Event, ready: Any) -> None:
        """Serve until `stop`; `ready()` is called once agents can come. ScenarioError if it cannot listen."""
        config = self._config
        streams = len(config.network.names) + _SPARE_STREAMS
        options = [("grpc.max_receive_message_length", wire.MAX_MESSAGE), ("grpc.so_reuseport", 0)]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=streams)
        method = grpc.stream_stream_rpc_method_handler(self._follow)
        handlers = grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: method})
        server.add_generic_rpc_handlers((handlers,))
        host, port = config.listen
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if config.tls is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, _credentials(config.tls))
        except RuntimeError:
            raise ScenarioError(f"listen: {address} cannot be had: another program may have it") from None
        await server.start()
        try:
            ready()
            await self._decide(stop)
        finally:
            await server.stop(_GRACE_S)

    async def _decide(self, stop: asyncio.Event) -> None:
        """Go round: take what was heard, decide what is due, wake the streams that have something to tell."""
        stopping = asyncio.ensure_future(stop.wait())
        while not stop.is_set():
            self._heard.clear()
            wake = self._planner.turn(self._now)
            for host, bell in self._bells.items():
                if self._planner.has_news(host):
                    bell.set()
            await asyncio.sleep(TICK_S)
            hearing = asyncio.ensure_future(self._heard.wait())
            left = None if wake == float("inf") else max(0.0, wake - self._now)
            await asyncio.wait({hearing, stopping}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            hearing.cancel()
        stopping.cancel()

    # -------------------------------------------------------------- one agent

    async def _follow(self, requests: Any, context: Any) -> None:
        del requests  # the stream is read by context.read(), which tells its end from a message
        try:
            host = await self._welcome(context)
        except Unwelcome as error:
            self._log_refusal(str(error))
            await _end(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
        except (wire.WireError, TimeoutError) as error:
            await _end(context, grpc.StatusCode.INVALID_ARGUMENT, f"hello: {str(error) or 'none came'}")
        if host is None:
            return
        _LOG.info("agent is here", extra=logs.fields({"host": host.name}))
        bell = self._bells[host] = asyncio.Event()
        mouth = _Mouth(context)
        tasks = [
            asyncio.ensure_future(self._speak(mouth, host, bell)),
            asyncio.ensure_future(self._listen(context, host)),
        ]
        ended: list[BaseException | None] = []
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._bells[host]
            self._planner.part(host)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        over = next((one for one in ended if isinstance(one, _Over)), None)
        _LOG.info("agent has gone", extra=logs.fields({"host": host.name, "why": str(over or "")}))
        still = await mouth.is_still(_GRACE_S)
        if over is not None:
            await _end(context, over.code, str(over))
        if not still:
            raise asyncio.CancelledError

    def _log_refusal(self, why: str) -> None:
        """A line, but not one for each attempt: who may not come must not fill the log."""
        if self._now >= self._next_line:
            self._next_line = self._now + _LINE_S
            _LOG.warning("agent refused", extra=logs.fields({"why": why}))

    async def _welcome(self, context: Any) -> Host | None:
        names = frozenset[str]() if self._config.tls is None else _names_of(context)
        packet = await self._first_packet(context, names)
        if packet is grpc.aio.EOF:
            return None
        hello = wire.read_hello(packet)
        if self._config.tls is not None:
            if hello.host not in names:
                has = ", ".join(sorted(names)) or "no name"
                raise Unwelcome(f"host {hello.host!r}: the certificate is for {has}: see its subjectAltName")
            await self._await_place(hello.host)
        return self._planner.join(hello, self._now, proven=self._config.tls is not None)

    async def _first_packet(self, context: Any, names: frozenset[str]) -> Any:
        """The hello of whoever is certified for `names`. Unwelcome if too many of its streams say none."""
        if names and self._silent[names] >= _MAX_SILENT:
            raise Unwelcome(f"{_MAX_SILENT} streams of this certificate have not said hello yet")
        self._silent[names] += 1
        try:
            async with asyncio.timeout(_HELLO_S):
                return await context.read()
        finally:
            self._silent[names] -= 1
            if not self._silent[names]:
                del self._silent[names]

    async def _await_place(self, name: str) -> None:
        """Return when no living agent of host `name` is here; Unwelcome if there is one.

        A line may be dead without either end knowing, so a new session must be able to take an old one's
        place. But two agents that were given one certificate would take it from each other for ever.
        """
        present = self._planner.present(name)
        if present is None:
            return
        heard, until = present.heard, self._now + _LIVES_BEATS * self._beat
        while present is self._planner.present(name) and self._now < until:
            if present.heard > heard:
                raise Unwelcome(f"host {name} has an agent here already, which lives: stop one of the two")
            await asyncio.sleep(self._beat / 16)

    async def _listen(self, context: Any, host: Host) -> None:
        """Take reports until the stream ends. _Over if we end it."""
        while (packet := await context.read()) is not grpc.aio.EOF:
            self._check_current(host)
            try:
                self._planner.hear(host, wire.read_report(packet), self._now)
            except (wire.WireError, ReportError) as error:
                raise _Over(grpc.StatusCode.INVALID_ARGUMENT, f"report: {error}") from None
            self._heard.set()

    async def _speak(self, mouth: _Mouth, host: Host, bell: asyncio.Event) -> None:
        """Tell the agent what is new, and after a beat without news just that we live. _Over if we end it."""
        await mouth.tell(wire.welcome_bytes(wire.Welcome(self._config.policy.name, self._beat)))
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._beat):
                    await bell.wait()
            bell.clear()
            self._check_current(host)
            try:
                async with asyncio.timeout(self._config.stale):
                    await mouth.tell(wire.plan_bytes(self._planner.tell(host, self._now)))
            except TimeoutError:
                raise _Over(grpc.StatusCode.ABORTED, f"host {host.name}: it does not read its plan") from None
            if self._planner.has_news(host):
                bell.set()

    def _check_current(self, host: Host) -> None:
        if not self._planner.is_current(host):
            why = f"host {host.name}: a newer session has begun, or this one was silent too long"
            raise _Over(grpc.StatusCode.ABORTED, why)


async def _end(context: Any, code: Any, text: str) -> None:
    """End a stream with a reason. Who has gone already is told nothing, and that is no failure of ours."""
    try:
        await context.abort(code, text)
    except grpc.aio.AbortError:
        raise
    except Exception as error:  # gRPC has no public name for it
        _LOG.info("stream was gone", extra=logs.fields({"why": text, "error": str(error)}))
        raise asyncio.CancelledError from None


def _names_of(context: Any) -> frozenset[str]:
    """The names in a client's certificate, which gRPC has checked against the certificate authority."""
    return frozenset(
        name.decode("utf-8", "replace")
        for name in context.auth_context().get("x509_subject_alternative_name", ())
    )


def _credentials(tls: Tls) -> Any:
    """Mutual TLS. The files are read again for every connection, so that they can be renewed in place."""

    def read() -> Any:
        pem = [pem_of(path, secret=path == tls.key) for path in (tls.key, tls.cert, tls.ca)]
        return grpc.ssl_server_certificate_configuration([(pem[0], pem[1])], root_certificates=pem[2])

    def again() -> Any:
        try:
            return read()
        except ScenarioError as error:
            _LOG.warning("certificates in use stay", extra=logs.fields({"why": str(error)}))
            return None

    return grpc.dynamic_ssl_server_credentials(read(), again, require_client_authentication=True)
