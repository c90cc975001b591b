"""The `netsched-agent` command.

    netsched-agent run --config FILE [--ready-fd N]    serve until SIGTERM
    netsched-agent plan --config FILE [--json]         what it would change; changes nothing
    netsched-agent status [--config FILE | --socket PATH] [--json]
    netsched-agent doctor [--json]                     what this kernel has and lacks

Exit status: 0 as wished, 1 differs or failed, 2 the configuration or command line is wrong, 3 refused
(somebody else's queues), 4 a capability is missing, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any

from hostagent.protocol import DEFAULT_SOCKET
from netsched.errors import NetschedError


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(argv)
    level = logging.INFO if options.verbose else logging.WARNING
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        return {"run": _run, "plan": _plan, "status": _status, "doctor": _doctor}[options.command](options)
    except NetschedError as error:
        for line in str(error).splitlines():
            print(f"netsched-agent: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netsched-agent", description="Marks gradient flows and owns their queues."
    )
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="log what is done, not only what goes wrong"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="run|plan|status|doctor")
    run = commands.add_parser("run", help="serve until SIGTERM")
    run.add_argument("--config", required=True, metavar="FILE")
    run.add_argument(
        "--ready-fd", type=int, metavar="N", help='write "ready" to this descriptor once it serves'
    )
    plan = commands.add_parser("plan", help="what run would change; changes nothing")
    plan.add_argument("--config", required=True, metavar="FILE")
    status = commands.add_parser("status", help="what a running agent has done")
    where = status.add_mutually_exclusive_group()
    where.add_argument("--config", metavar="FILE", help="the running agent's configuration")
    where.add_argument("--socket", default=DEFAULT_SOCKET, metavar="PATH")
    doctor = commands.add_parser("doctor", help="what this machine has and lacks")
    for command in (plan, status, doctor):
        command.add_argument("--json", action="store_true")
    return parser


# Each command imports what it needs: `status` must not wait for the YAML and pydantic of `run`.


def _run(options: argparse.Namespace) -> int:
    from hostagent.agent import Agent, notify_ready  # noqa: PLC0415
    from hostagent.config import load  # noqa: PLC0415

    Agent(load(options.config)).run(lambda: notify_ready(options.ready_fd))
    return 0


def _plan(options: argparse.Namespace) -> int:
    from hostagent.config import load  # noqa: PLC0415
    from hostagent.queues import Ports  # noqa: PLC0415
    from netsched import marking  # noqa: PLC0415
    from netsched.netlink import open_netns  # noqa: PLC0415

    config = load(options.config)
    marks = {cls: marking.dscp_of(cls, config.queues) for cls in range(config.queues)}
    changes: dict[str, list[str]] = {}
    if config.mode == "mark+queue":
        with open_netns() as link:
            changes = Ports.of(config, link).plan()
    if options.json:
        _print_json({"version": 1, "mode": config.mode, "dscp_of_class": marks, "interfaces": changes})
    else:
        print(f"mode {config.mode}; DSCP of classes {', '.join(f'{c}: {d}' for c, d in marks.items())}")
        for name, lines in changes.items():
            print(f"{name}: {'as it should be' if not lines else f'{len(lines)} differences'}")
            for line in lines:
                print(f"  {line}")
    return 1 if any(changes.values()) else 0


def _status(options: argparse.Namespace) -> int:
    from hostagent import client  # noqa: PLC0415

    path = options.socket
    if options.config:
        from hostagent.config import load  # noqa: PLC0415

        path = load(options.config).api.socket
    with client.connect(path, timeout=2.0, strict=True) as agent:
        shown = agent.status()
    if options.json:
        _print_json({"version": 1} | {key: shown[key] for key in shown.keys() - {"v", "id", "ok"}})
    else:
        tags = shown["tags"]
        print(f"mode {shown['mode']}, up {shown['uptime_s']:.0f} s, {len(shown['clients'])} clients")
        print(f"sockets marked {tags['ok']}, not marked {tags['failed']}")
        for port in shown["interfaces"]:
            state = (
                port.get("error") or port["conflict"] or "; ".join(port["differences"]) or "as it should be"
            )
            print(
                f"{port['interface']}: {port['rate']}, {port['queues']} queues ({port['mechanism']}): {state}"
            )
    healthy = all(not (p.get("error") or p["conflict"] or p["differences"]) for p in shown["interfaces"])
    return 0 if healthy else 1


def _doctor(options: argparse.Namespace) -> int:
    from netsched.kernel import probe  # noqa: PLC0415

    found = probe()
    if options.json:
        _print_json({"version": 1, "capabilities": [vars(one) for one in found]})
        return 0
    for one in found:
        print(f"{'yes' if one.present else 'NO ':4}{one.name:22}{one.needed_for}")
        if not one.present:
            print(f"      costs: {one.cost_if_missing}\n      get it: {one.how_to_get}")
    return 0


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2, sort_keys=True))


if __name__ == "__main__":
    sys.exit(main())
