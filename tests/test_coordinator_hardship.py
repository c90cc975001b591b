"""What a coordinator and its agents meet in the field: dead lines, pauses, doubles, and the silent."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from agent_pages import free_port
from coordinators import (
    HELLO,
    PATH,
    SWITCH,
    coordinator,
    secure,
    standing,
    stream,
    wait_until,
)
from running_agent import BASE, agent

from hostagent import client
from netsched.coordinator import wire as messages
from netsched.coordinator.service import _Mouth
from netsched.coordinator.wire import FlowState, Hello, Report

__all__ = ["secure"]
STALE_S = 2.0
"""Of every coordinator here; a sign of life is due four times in it."""


class Line:
    """A TCP relay that can go dead without a word, as a cable does: it then carries and ends nothing."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.dead = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(5)

    def _run(self) -> None:
        poll, other = selectors.DefaultSelector(), dict[socket.socket, socket.socket]()
        poll.register(self._listener, selectors.EVENT_READ)
        while not self._over.is_set():
            if self.dead.is_set():
                time.sleep(0.01)
                continue
            for key, _ in poll.select(0.05):
                sock = key.fileobj
                if sock is self._listener:
                    near, far = self._listener.accept()[0], socket.create_connection(("127.0.0.1", self._to))
                    other |= {near: far, far: near}
                    poll.register(near, selectors.EVENT_READ)
                    poll.register(far, selectors.EVENT_READ)
                elif sock in other and not self._carry(sock, other[sock]):
                    for end in (sock, other.pop(sock)):
                        other.pop(end, None)
                        poll.unregister(end)
                        end.close()
        for end in (*other, self._listener):
            end.close()

    @staticmethod
    def _carry(source: socket.socket, to: socket.socket) -> bool:
        try:
            data = source.recv(65536)
            to.sendall(data)
        except OSError:
            return False
        return bool(data)


@contextlib.contextmanager
def line(to: int) -> Iterator[Line]:
    made = Line(to)
    try:
        yield made
    finally:
        made.close()


def following(port: int, files: dict[str, str], host: str = "h1"):
    return BASE | {"coordinator": {"address": f"127.0.0.1:{port}", "host": host, "keep": "30s"} | files}


def planned(us: client.Client, name: str):
    """A flow that the coordinator's plan has."""
    flow = us.flow(name, coflow=name, size=1e6, peer="h2")
    flow.wait(for_plan=10.0)
    assert flow.guidance.source == "plan", flow.guidance
    return flow


def test_a_line_that_goes_dead_without_a_word_is_noticed_by_both_ends(secure, tmp_path):
    port, authority, _ = secure
    files = authority.issue("h1")
    with (
        line(port) as cable,
        agent(tmp_path, following(cable.port, files)) as (path, _),
        client.connect(path, job="a", timeout=5, strict=True) as us,
    ):
        wait_until(lambda: standing(path)["standing"] == "following")
        flow = planned(us, "f")
        cable.dead.set()
        wait_until(lambda: standing(path)["standing"] == "kept")
        assert flow.sent(1).source == "kept"
        time.sleep(STALE_S)
        # The coordinator has let the old session go by itself: nobody has to be waited for.
        began = time.monotonic()
        assert messages.read_answer(stream(port, files, [HELLO])[0]) == messages.Welcome("sebf", STALE_S / 4)
        assert time.monotonic() - began < 1.5
        cable.dead.clear()
        wait_until(lambda: standing(path)["standing"] == "following", 20)
        wait_until(lambda: flow.sent(1).source == "plan")


def test_after_a_pause_longer_than_stale_everybody_is_there_again_with_all_flows(tmp_path):
    port = free_port()
    with (
        coordinator(tmp_path, {"listen": f"127.0.0.1:{port}", "fabric": SWITCH}) as process,
        agent(tmp_path, following(port, {})) as (path, _),
        client.connect(path, job="a", timeout=5, strict=True) as us,
    ):
        wait_until(lambda: standing(path)["standing"] == "following")
        flow = planned(us, "f")
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: standing(path)["standing"] == "kept")
        time.sleep(1.5 * STALE_S)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: standing(path)["standing"] == "following", 20)
        wait_until(lambda: flow.sent(1).source == "plan")
        planned(us, "g")


def test_of_two_agents_with_one_certificate_the_first_keeps_its_place(secure, tmp_path):
    port, authority, _ = secure
    config = following(port, authority.issue("h1"))
    places = [tmp_path / name for name in ("first", "second")]
    for place in places:
        place.mkdir()
    with contextlib.ExitStack() as stack:
        path, _ = stack.enter_context(agent(places[0], config))
        wait_until(lambda: standing(path)["standing"] == "following")
        with agent(places[1], config) as (other, _):
            why = wait_until(
                lambda: standing(other)["why"].startswith("permission_denied") and standing(other)
            )
            assert "host h1 has an agent here already, which lives: stop one of the two" in why["why"]
            for _ in range(40):
                assert standing(path)["standing"] == "following"
                time.sleep(0.05)
            stack.close()
            wait_until(lambda: standing(other)["standing"] == "following", 15)


def test_who_opens_streams_and_says_nothing_takes_no_place_from_others(secure):
    port, authority, _ = secure
    files, other = authority.issue("h1"), authority.issue("h2")
    keys = [Path(files[name]).read_bytes() for name in ("ca", "key", "cert")]
    over = threading.Event()

    def silence() -> Iterator[bytes]:
        over.wait(8)
        yield from ()

    with grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(*keys)) as channel:
        calls = [channel.stream_stream(PATH)(silence(), timeout=20) for _ in range(80)]
        wait_until(lambda: sum(call.done() for call in calls) >= 76)
        refused = [call for call in calls if call.done()]
        assert [call.code() for call in refused] == [grpc.StatusCode.PERMISSION_DENIED] * 76
        assert "4 streams of this certificate have not said hello" in refused[0].details()
        hello = messages.hello_bytes(Hello("h2", 8, {}))
        assert messages.read_answer(stream(port, other, [hello])[0]) == messages.Welcome("sebf", 0.5)
        over.set()
        assert [call.code() for call in calls if call not in refused] == [grpc.StatusCode.OK] * 4
    assert messages.read_answer(stream(port, files, [HELLO])[0]) == messages.Welcome("sebf", 0.5)


def test_who_does_not_read_its_plan_is_let_go_and_others_are_planned_for(secure):
    port, authority, _ = secure
    files, other = authority.issue("h1"), authority.issue("h2")
    keys = [Path(files[name]).read_bytes() for name in ("ca", "key", "cert")]
    began = time.monotonic()

    def reports() -> Iterator[bytes]:
        yield HELLO
        for first in range(0, 60_000, 1000):
            rows = (
                FlowState(n, 0, "j", "c", "h3", 1e6, 0.0, 0, 1, 0.0, True) for n in range(first, first + 1000)
            )
            yield messages.report_bytes(Report(flows=tuple(rows)))
        while time.monotonic() - began < 30:
            time.sleep(0.3)
            yield messages.report_bytes(Report())

    options = [("grpc.http2.bdp_probe", 0)]
    with grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(*keys), options) as channel:
        call = channel.stream_stream(PATH)(reports(), timeout=60)
        time.sleep(3 * STALE_S)
        flow = FlowState(1, 0, "j", "own", "h3", 1e6, 0.0, 0, 1, 0.0, True)
        sent = [messages.hello_bytes(Hello("h2", 8, {})), messages.report_bytes(Report(flows=(flow,)))]
        answers = [messages.read_answer(one) for one in stream(port, other, sent, hold=1.5)]
        assert any(share.decided for plan in answers[1:] for share in plan.flows.values())
        with pytest.raises(grpc.RpcError) as ended:
            list(call)
        assert "does not read its plan" in ended.value.details()


def test_nobody_complains_of_a_write_that_fails_after_its_stream_has_gone():
    """gRPC goes on with a write whose waiter was cancelled, and it fails once the agent has hung up."""
    complaints: list[str] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what["message"]))
        hung_up = asyncio.Event()

        class Stream:
            async def write(self, packet: bytes) -> None:
                await hung_up.wait()
                raise RuntimeError("gone")

        telling = asyncio.ensure_future(_Mouth(Stream()).tell(b""))
        await asyncio.sleep(0.01)
        telling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await telling
        hung_up.set()
        await asyncio.sleep(0.01)
        gc.collect()

    asyncio.run(scene())
    assert complaints == []
