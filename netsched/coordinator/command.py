"""`netsched coordinator`: load, warm up, serve until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from typing import TYPE_CHECKING

from hostagent import logs
from hostagent.notify import Notifier, write_ready
from netsched.coordinator.config import Config, load
from netsched.coordinator.planner import Planner
from netsched.coordinator.wire import FlowState, Hello, Report
from netsched.errors import CapabilityError

if TYPE_CHECKING:
    from netsched.coordinator.service import Service


def run(options: argparse.Namespace) -> None:
    """Be the coordinator that the command line asks for. ScenarioError, CapabilityError or PolicyError."""
    logs.setup(options.log_format, logging.INFO if options.verbose else logging.WARNING)
    config = load(options.config, options.plugin)
    try:
        from netsched.coordinator.service import Service  # noqa: PLC0415 # grpc is an extra
    except ImportError:
        raise CapabilityError("no module grpc: pip install 'netsched[coordinator]'") from None
    _warm_up(config)
    asyncio.run(_serve(Service(config), options.ready_fd))


async def _serve(service: Service, ready_fd: int | None) -> None:
    stop, notifier = asyncio.Event(), Notifier()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def ready() -> None:
        write_ready(ready_fd)
        notifier.ready("serving")

    await service.run(stop, ready)
    notifier.stopping()


def _warm_up(config: Config) -> None:
    """Have everything compiled before an agent waits for it, and find a policy that breaks its contract."""
    names = sorted(config.network.names)
    if len(names) < 2:
        return
    rehearsal = Planner(config.policy, config.network, config.control, config.stale)
    host = rehearsal.join(Hello(names[0], config.network.queues, {}), 0.0, proven=False)
    for number, active in enumerate((True, True, False)):
        flow = FlowState(number, 0, "", f"coflow {number}", names[1], 1e6, 0.0, 0, 1, 0.0, active)
        rehearsal.hear(host, Report(flows=(flow,)), 0.0)
    rehearsal.turn(0.0)
