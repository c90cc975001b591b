"""The coordinator: the time of a decision, and from a job's word to its plan over agent and gRPC.

A decision is one `turn` of the planner after a flow has ended and another begun, with SEBF on 64 hosts. From
word to plan: a job tells its agent of a flow and asks until the plan has it, with agent and coordinator on
this machine, over loopback. No goal is stated anywhere but the agent's own: 0.5 % of a processor when idle.
A crowd is so many agents of one coordinator at once, played by this process over a connection each: how long
until each has its plan for 5 flows, and what they cost the coordinator when nothing happens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from benchmarks.agent import processor, resident_mb
from benchmarks.measure import verdict
from hostagent import client
from netsched.coordinator import wire
from netsched.coordinator.planner import Network, Planner
from netsched.coordinator.wire import FlowState, Hello, Report, plan_bytes, read_report, report_bytes
from netsched.fabrics import build
from netsched.model import Control, Spec
from netsched.policies.sebf import Sebf

ROOT = Path(__file__).parents[1]
HOSTS = 64
ROWS = 150


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flows", type=int, nargs="+", default=[1000, 10_000], help="that are active")
    parser.add_argument("--words", type=int, default=500, help="flows told of one by one")
    parser.add_argument("--crowd", type=int, default=1000, help="agents at once")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of watching both do nothing")


def run(options: argparse.Namespace) -> None:
    for flows in options.flows:
        decisions(flows)
    with tempfile.TemporaryDirectory() as name, both(Path(name)) as (path, agent, coordinator):
        words(path, options.words)
        before = processor(agent), processor(coordinator)
        time.sleep(options.idle)
        share = [(processor(p) - b) / options.idle for p, b in zip((agent, coordinator), before, strict=True)]
        print(
            f"idle for {options.idle:.0f} s: agent {share[0]:.2%} of a processor, coordinator {share[1]:.2%}"
        )
        print(verdict(share[0] < 0.005, "agent below 0.5 %"))
        print(f"resident: agent {resident_mb(agent):.1f} MB, coordinator {resident_mb(coordinator):.1f} MB")
    crowd(options.crowd, options.idle)


def decisions(flows: int) -> None:
    fabric = build(Spec("single_switch", {"hosts": HOSTS, "rate": "10Gbit/s"}))[1]
    names = fabric.hosts
    network = Network(fabric, 8, frozenset(names), {name: n for n, name in enumerate(names)})
    planner = Planner(Sebf(), network, Control(), stale=1e9)
    hosts = [planner.join(Hello(name, 8, {}), 0.0, proven=True) for name in names]

    def flow(number: int, host: int, coflow: str) -> FlowState:
        peer = names[(host + 1 + number % (HOSTS - 1)) % HOSTS]
        return FlowState(number, 0, "job", coflow, peer, 1e6 * (1 + number % 7), 0.0, 0, 1, 0.0, True)

    each = flows // HOSTS
    for at, host in enumerate(hosts):
        for first in range(0, each, ROWS):
            rows = (flow(n, at, f"c{(at * each + n) // 50}") for n in range(first, min(first + ROWS, each)))
            planner.hear(host, read_report(report_bytes(Report(flows=tuple(rows)))), 0.0)
    planner.turn(0.0)
    took = []
    for step in range(30):
        report = Report(done=(step,), flows=(flow(each + step, 0, f"new {step}"),))
        planner.hear(hosts[0], report, 1.0 + step)
        began = time.perf_counter()
        planner.turn(1.0 + step)
        took.append(time.perf_counter() - began)
    size = sum(len(plan_bytes(planner.tell(host, 31.0))) for host in hosts)
    median = statistics.median(took) * 1e3
    print(f"decision, {each * HOSTS} flows: median {median:.1f} ms; plan {size / 1e3:.0f} kB")


def words(path: str, number: int) -> None:
    plan, word = [], []
    with client.connect(path, job="bench", strict=True, timeout=5) as us:
        while us.status()["coordinator"]["standing"] != "following":
            time.sleep(0.05)
        for at in range(number):
            began = time.perf_counter()
            flow = us.flow(f"f{at}", coflow=f"c{at}", size=1e6, peer="h2")
            word.append(time.perf_counter() - began)
            while flow.guidance.source != "plan":
                flow.release()
            plan.append(time.perf_counter() - began)
            flow.done()
    for what, took in (("answer to a word", word), ("from word to plan", plan)):
        p50, p99 = statistics.median(took), statistics.quantiles(took, n=100)[98]
        print(f"{what}, {number} flows: p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms")


def crowd(agents: int, idle: float) -> None:
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        taken.close()
        fabric = {"kind": "single_switch", "hosts": agents, "rate": "10Gbit/s"}
        plans = {"version": 1, "listen": address, "fabric": fabric, "policy": "sebf"}
        with process(Path(name) / "c.yaml", plans, "netsched", "coordinator") as pid:
            asyncio.run(_crowd(address, agents, idle, pid))


async def _crowd(address: str, agents: int, idle: float, pid: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        began = time.perf_counter()
        lines = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options))
            for _ in range(agents)
        ]
        planned: asyncio.Semaphore = asyncio.Semaphore(0)
        tasks = [
            asyncio.ensure_future(_one_of_crowd(line, at, agents, planned)) for at, line in enumerate(lines)
        ]
        for _ in tasks:
            await planned.acquire()
        took, before = time.perf_counter() - began, processor(pid)
        await asyncio.sleep(idle)
        share = (processor(pid) - before) / idle
        print(
            f"crowd of {agents} agents: all have their plans after {took:.1f} s; idle, the coordinator takes "
            f"{share:.1%} of a processor and {resident_mb(pid):.0f} MB"
        )
        for task in tasks:
            assert not task.done(), task
            task.cancel()


async def _one_of_crowd(line: Any, at: int, agents: int, planned: asyncio.Semaphore) -> None:
    call = line.stream_stream(f"/{wire.SERVICE}/{wire.METHOD}")()
    await call.write(wire.hello_bytes(Hello(f"h{at + 1}", 8, {})))
    welcome = wire.read_answer(await call.read())
    assert isinstance(welcome, wire.Welcome)
    peer = f"h{(at + 1) % agents + 1}"
    flows = (FlowState(n, 0, "j", f"c{at // 8} {n}", peer, 1e6 + n, 0.0, 0, 1, 0.0, True) for n in range(5))
    await call.write(report_bytes(Report(flows=tuple(flows))))
    decided: set[int] = set()
    while len(decided) < 5:
        part = wire.read_answer(await call.read())
        assert isinstance(part, wire.PlanPart)
        decided |= {number for number, share in part.flows.items() if share.decided}
    planned.release()
    while True:
        await asyncio.sleep(welcome.beat)
        await call.write(report_bytes(Report()))
        await call.read()


@contextlib.contextmanager
def both(place: Path) -> Iterator[tuple[str, int, int]]:
    """(path of an agent's socket, its pid, pid of the coordinator that it follows)."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    fabric = {"kind": "single_switch", "hosts": 4, "rate": "10Gbit/s"}
    plans = {"version": 1, "listen": address, "fabric": fabric, "policy": "sebf"}
    marks = {"version": 1, "mode": "mark", "api": {"socket": str(place / "s")}}
    marks |= {"coordinator": {"address": address, "host": "h1"}}
    with (
        process(place / "coordinator.yaml", plans, "netsched", "coordinator") as coordinator,
        process(place / "agent.yaml", marks, "hostagent", "run") as agent,
    ):
        yield str(place / "s"), agent, coordinator


@contextlib.contextmanager
def process(file: Path, config: dict[str, object], *command: str) -> Iterator[int]:
    file.write_text(json.dumps(config))
    ready, theirs = os.pipe()
    argv = [sys.executable, "-m", *command, "--config", str(file), "--ready-fd", str(theirs)]
    started = subprocess.Popen(argv, pass_fds=[theirs], cwd=ROOT)
    os.close(theirs)
    try:
        with os.fdopen(ready) as pipe:
            assert pipe.read() == "ready\n", f"{command[0]} did not start"
        yield started.pid
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(timeout=30)
