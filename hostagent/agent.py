"""The agent's life: it takes its socket, its pages and its ports, serves, and gives everything back.

Nothing of a job passes through it: it marks sockets and owns queues, and when it dies both stay as they are.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from hostagent import claim, logs, metrics, rungs, sockdiag
from hostagent.bands import Bands
from hostagent.hostmarks import HostMarks
from hostagent.http import Http, Page
from hostagent.notify import Notifier
from hostagent.queues import Ports
from hostagent.server import Connection, Server
from hostagent.verbs import Verbs
from netsched.errors import NetschedError
from netsched.netlink import open_netns

if TYPE_CHECKING:
    from hostagent.config import Config

_LOG: Final = logging.getLogger(__name__)
_HTTP_TICK_S: Final = 5.0


class Agent:
    """One agent of one host (or network namespace). `run` is its whole life."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._stop = False
        self._server: Server | None = None
        self._http: Http | None = None
        self._verbs = Verbs(config, self._connections)

    def run(self, ready: Callable[[], None]) -> None:
        """Take the ports, serve until SIGTERM, SIGINT or SIGHUP, give them back.

        `ready` is called once it serves. NetschedError if the ports or a socket cannot be had; everything
        is then as before.
        """
        config, notifier = self.config, Notifier()
        # What service managers grant by default is a fraction of what they allow.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        with contextlib.ExitStack() as stack:
            # The socket before the ports: two agents of one configuration must not undo each other's queues.
            shared = bool(config.api.allow)
            server = self._server = Server(
                config.api.socket,
                shared,
                self._admits,
                self._verbs.answer,
                quota=config.api.limits.quota(),
                gone=self._verbs.gone,
            )
            stack.callback(server.close)
            stack.enter_context(self._signals(server.wake_fd))
            self._verbs.follower.start(server.wake_fd)
            stack.callback(self._verbs.follower.close)
            if config.metrics is not None:
                self._http = Http(server, config.metrics.listen, self._pages())
                stack.callback(self._http.close)
            if config.marks_by_host or config.mode == "mark+queue":
                stack.enter_context(_claimed(server))
            if config.marks_by_host:
                stack.enter_context(self._host_marks())
            if config.mode == "mark+queue":
                self._own_queues(stack)
            ready()
            notifier.ready(f"mode {config.mode}")
            _LOG.info("ready", extra=logs.fields({"mode": config.mode, "socket": config.api.socket}))
            self._loop(server, notifier)
            notifier.stopping()

    def _own_queues(self, stack: contextlib.ExitStack) -> None:
        """Apply all queues or none; `stack` gives them back."""
        link = stack.enter_context(open_netns())
        settled = rungs.settle(self.config, link)
        for name, why in settled.why.items():
            about = {"interface": name, "why": why}
            _LOG.info("queues chosen", extra=logs.fields(about))
        ports, bands = Ports.of(settled, link), Bands.of(settled, link)
        changes = ports.apply()
        self._verbs.ports, self._verbs.bands = ports, bands
        stack.callback(self._give_back)
        try:
            changes += bands.apply()
        except NetschedError:
            ports.restore()
            raise
        _LOG.info("queues applied", extra=logs.fields({"changes": changes}))

    @contextlib.contextmanager
    def _host_marks(self) -> Iterator[None]:
        """Mark cgroups and named connections meanwhile."""
        host = HostMarks.of(self.config)
        try:
            changes = host.apply()
            _LOG.info("host marks applied", extra=logs.fields({"changes": changes, "level": host.level}))
            self._verbs.host, self._verbs.tagger.tuples = host, host.table
            self._verbs.tagger.adopt(host.adopted)
            yield
        finally:
            if self.config.on_stop == "restore":
                host.restore()
            host.close()

    def _loop(self, server: Server, notifier: Notifier) -> None:
        """Serve until told to stop. What comes due is done between two packets, never beside one."""
        every: list[tuple[float, Callable[[], None]]] = [(self.config.resync, self._resync)]
        every.append((self.config.api.lease / 4, self._verbs.expire))
        if self._http is not None:
            every.append((_HTTP_TICK_S, self._http.expire))
        if notifier.interval is not None:
            every.append((notifier.interval, notifier.alive))
        due = [time.monotonic() + interval for interval, _ in every]
        while not self._stop:
            wake = min(*due, self._verbs.follower.due)
            server.serve(max(0.0, wake - time.monotonic()))
            _guarded(self._verbs.follower.turn)
            for at, (interval, act) in enumerate(every):
                if time.monotonic() >= due[at]:
                    due[at] = time.monotonic() + interval
                    _guarded(act)

    def _resync(self) -> None:
        begin = time.perf_counter()
        if self._verbs.state != "restored":
            for queues in (self._verbs.ports, self._verbs.bands):
                if queues is not None:
                    queues.watch()
        host = self._verbs.host if self._verbs.state != "restored" else None
        if host is not None:
            host.watch()
        if len(self._verbs.ledger):
            try:
                alive = sockdiag.cookies()
                self._verbs.ledger.prune(alive)
                if host is not None:
                    host.renew(alive)
            except (NetschedError, OSError) as error:
                _LOG.warning("sockets not listed", extra=logs.fields({"error": str(error)}))
        self._verbs.counts.resyncs += 1
        self._verbs.counts.resync_s += time.perf_counter() - begin

    def _give_back(self) -> None:
        if self.config.on_stop == "restore":
            for queues in (self._verbs.ports, self._verbs.bands):
                if queues is not None:
                    queues.restore()

    @contextlib.contextmanager
    def _signals(self, wake_fd: int) -> Iterator[None]:
        def stop(number: int, _frame: object) -> None:
            self._stop = True

        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            # By default it would be a death that gives nothing back, and that systemd takes for a clean end.
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, stop) for number in numbers}
        old_fd = signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _admits(self, uid: int) -> bool:
        return self.config.may_use(uid) is not None

    def _connections(self) -> list[Connection]:
        return [] if self._server is None else list(self._server.connections.values())

    # -------------------------------------------------------------- pages

    def _pages(self) -> dict[str, Callable[[], Page]]:
        return {
            "/metrics": lambda: metrics.page(self._verbs.status(), self._verbs.counts),
            # That it was answered is the proof: the loop that serves jobs has come round to it.
            "/healthz": lambda: Page(200, "ok\n"),
            "/readyz": self._readyz,
        }

    def _readyz(self) -> Page:
        wrong = self._verbs.status()["not_ready"]
        return Page(503, "\n".join([*wrong, ""])) if wrong else Page(200, "ok\n")


def _guarded(act: Callable[[], None]) -> None:
    """Do what came due. What goes wrong in it is logged and tried again when it comes due the next time."""
    try:
        act()
    except Exception:
        _LOG.exception("work that came due failed unexpectedly")


@contextlib.contextmanager
def _claimed(server: Server) -> Iterator[None]:
    """Hold the name of this namespace's owner of queues and nft marks meanwhile.

    ClaimedError if another agent holds it.
    """
    try:
        held = claim.take()
    except claim.ClaimedError as error:
        if claim.is_ours(error.pid, error.uid):
            raise
        # Any user can bind the name; being in the way must not be enough to keep the agent from its work.
        about = {"pid": error.pid, "uid": error.uid}
        _LOG.warning("the agent's name is held by somebody else's process", extra=logs.fields(about))
        yield
        return
    server.watch(held, selectors.EVENT_READ, lambda: claim.answer(held))
    try:
        yield
    finally:
        server.unwatch(held)
        held.close()
