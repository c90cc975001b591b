"""The `netsched-agent` command.

    netsched-agent run --config FILE [--ready-fd N]    serve until SIGTERM
    netsched-agent plan --config FILE                  what it would change; changes nothing
    netsched-agent export tc|nft --config FILE         the same as commands, for reading
    netsched-agent status                              what a running agent has done
    netsched-agent explain --job J | --flow ADDR:PORT  how sockets were marked, and why not otherwise
    netsched-agent tag --class C --pid P | --flow A B  mark a process's sockets, or one connection
    netsched-agent drain [--off] | restore             mark no new sockets; give the queues back
    netsched-agent cleanup [--orphans]                 what a dead agent left (and take it away)
    netsched-agent env --job J --class C               NCCL and UCX settings of a class
    netsched-agent verify --listen A | --peer A        whether every class's DSCP arrives at another host
    netsched-agent doctor                              what this kernel has and lacks, and what its NICs do

Every command but `run` takes --json. Exit status: 0 as wished, 1 differs or failed, 2 the configuration or
command line is wrong, 3 refused (somebody else's queues, a living agent, a guess), 4 a capability is missing,
6 done in part, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from hostagent import logs
from hostagent.protocol import DEFAULT_SOCKET
from netsched.errors import NetschedError, ScenarioError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostagent.commands import Outcome


_PIPE_CLOSED = 141
"""As a shell has it for a program that ended by SIGPIPE."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(argv)
    logs.setup(options.log_format, logging.INFO if options.verbose else logging.WARNING)
    own = {"run": _run, "plan": _plan, "status": _status}
    try:
        status = own.get(options.command, _look)(options)
        sys.stdout.flush()
        return status
    except NetschedError as error:
        for line in str(error).splitlines():
            print(f"netsched-agent: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever reads has had enough. The interpreter flushes once more at exit: somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except OSError as error:
        # Such as a full disk behind standard output, which the interpreter would meet once more at exit.
        print(f"netsched-agent: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netsched-agent", description="Marks gradient flows and owns their queues."
    )
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="log what is done, not only what goes wrong"
    )
    parser.add_argument(
        "--log-format", choices=["text", "json"], default="text", help="of the lines on standard error"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="serve until SIGTERM")
    run.add_argument(
        "--ready-fd", type=int, metavar="N", help='write "ready" to this descriptor once it serves'
    )
    plan = commands.add_parser("plan", help="what run would change; changes nothing")
    export = commands.add_parser("export", help="what run would set, as commands for reading")
    export.add_argument("what", choices=["tc", "nft"])
    for needs_config in (run, plan, export):
        needs_config.add_argument("--config", required=True, metavar="FILE")
    status = commands.add_parser("status", help="what a running agent has done")
    explain = commands.add_parser("explain", help="by which way sockets were marked, and why not by another")
    which = explain.add_mutually_exclusive_group(required=True)
    which.add_argument("--job", default="", metavar="J", help="all marked sockets of this job")
    which.add_argument("--flow", default="", metavar="ADDR:PORT", help="the sockets with this local address")
    tag = commands.add_parser("tag", help="have a running agent mark what has not asked for it")
    what = tag.add_mutually_exclusive_group(required=True)
    what.add_argument("--pid", type=int, default=0, metavar="P", help="the sockets of this process")
    what.add_argument("--flow", nargs=2, default=(), metavar="ADDR:PORT", help="a connection's two ends")
    tag.add_argument("--class", required=True, dest="cls", metavar="C", help="a number or a name")
    tag.add_argument("--job", default="", metavar="J", help="to which they belong")
    drain = commands.add_parser("drain", help="have a running agent mark no new sockets")
    drain.add_argument("--off", action="store_true", help="mark new sockets again")
    restore = commands.add_parser("restore", help="have a running agent give back what it set")
    restore.add_argument(
        "--wait",
        default="0s",
        metavar="TIME",
        help="for jobs to take the marks from their sockets, such as 60s",
    )
    cleanup = commands.add_parser("cleanup", help="what a dead agent left")
    cleanup.add_argument("--orphans", action="store_true", help="remove it")
    for asks in (status, explain, tag, drain, restore, cleanup):
        where = asks.add_mutually_exclusive_group()
        where.add_argument("--config", metavar="FILE", help="the agent's configuration, for its socket")
        where.add_argument("--socket", default=DEFAULT_SOCKET, metavar="PATH")
    env = commands.add_parser("env", help="NCCL and UCX settings with which RDMA carries a class's mark")
    env.add_argument("--job", required=True, metavar="J")
    env.add_argument(
        "--class", required=True, dest="cls", metavar="C", help="a number, or a name of --config"
    )
    env.add_argument("--config", metavar="FILE", help="for names and the number of queues")
    env.add_argument("--link-layer", choices=["auto", "roce", "infiniband"], default="auto")
    env.add_argument("--sl", type=int, metavar="N", help="service level (RoCE: 0-7, InfiniBand: 0-15)")
    env.add_argument("--ect", action="store_true", help="set ECT(0), for NICs that do not do it themselves")
    verify = commands.add_parser("verify", help="whether every class's DSCP arrives at another host and back")
    end = verify.add_mutually_exclusive_group(required=True)
    end.add_argument("--peer", metavar="HOST:PORT", help="where verify --listen runs")
    end.add_argument("--listen", metavar="ADDR:PORT", help="answer others until interrupted")
    verify.add_argument("--config", metavar="FILE", help="for the number of queues")
    doctor = commands.add_parser("doctor", help="what this machine has and lacks, and what its NICs do")
    doctor.add_argument("--config", metavar="FILE", help="for the number of queues")
    for command in (plan, export, status, explain, tag, drain, restore, cleanup, env, verify, doctor):
        command.add_argument("--json", action="store_true")
    return parser


# Each command imports what it needs: `status` must not wait for the YAML and pydantic of `run`.


def _look(options: argparse.Namespace) -> int:
    from hostagent import commands  # noqa: PLC0415

    chosen = options.command
    if chosen == "env":
        asked = (options.config, options.link_layer, options.sl, options.ect)
        outcome = commands.env(options.job, options.cls, *asked)
    elif chosen == "export":
        outcome = commands.show_export(options.what, options.config)
    elif chosen == "verify":
        outcome = _verify(options)
    elif chosen == "doctor":
        from hostagent import examine  # noqa: PLC0415

        outcome = examine.doctor(options.config)
    elif chosen == "explain":
        outcome = commands.explain(_socket(options), options.job, options.flow)
    elif chosen == "tag":
        asked_of = (options.cls, options.pid, options.flow, options.job)
        outcome = commands.tag(_socket(options), *asked_of)
    elif chosen == "drain":
        outcome = commands.drain(_socket(options), on=not options.off)
    elif chosen == "restore":
        outcome = commands.restore(_socket(options), _seconds(options.wait))
    else:
        outcome = commands.cleanup(_socket(options), remove=options.orphans)
    if options.json:
        _print_json({"version": 1} | outcome.content)
    else:
        for line in outcome.lines:
            print(line)
    return outcome.code


def _verify(options: argparse.Namespace) -> Outcome:
    from hostagent import commands  # noqa: PLC0415

    if options.peer:
        return commands.verify_peer(options.peer, options.config)
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: stopped.append(number))
    listening = f"listening at {options.listen}"
    return commands.verify_listen(
        options.listen, lambda: bool(stopped), lambda: print(listening, file=sys.stderr, flush=True)
    )


def _seconds(text: str) -> float:
    from netsched import units  # noqa: PLC0415

    try:
        return units.duration(text)
    except ValueError as error:
        raise ScenarioError(f"--wait: {error}") from None


def _socket(options: argparse.Namespace) -> str:
    """Where the agent is asked: the socket of --config, or --socket."""
    if not options.config:
        return str(options.socket)
    from hostagent.config import load  # noqa: PLC0415

    return load(options.config).api.socket


def _run(options: argparse.Namespace) -> int:
    from hostagent import safety  # noqa: PLC0415
    from hostagent.agent import Agent  # noqa: PLC0415
    from hostagent.config import load  # noqa: PLC0415
    from hostagent.notify import write_ready  # noqa: PLC0415

    config = load(options.config)
    safety.check_file(options.config, "--config")
    Agent(config).run(lambda: write_ready(options.ready_fd))
    return 0


def _plan(options: argparse.Namespace) -> int:
    from hostagent import rungs  # noqa: PLC0415
    from hostagent.bands import Bands  # noqa: PLC0415
    from hostagent.config import load  # noqa: PLC0415
    from hostagent.hostmarks import HostMarks  # noqa: PLC0415
    from hostagent.queues import Ports  # noqa: PLC0415
    from netsched import marking  # noqa: PLC0415
    from netsched.netlink import open_netns  # noqa: PLC0415

    config = load(options.config)
    dscp = {cls: marking.dscp_of(cls, config.queues) for cls in range(config.queues)}
    changes: dict[str, list[str]] = {}
    chosen: dict[str, str] = {}
    why: Mapping[str, str] = {}
    if config.mode == "mark+queue":
        with open_netns() as link:
            settled = rungs.settle(config, link)
            changes = Ports.of(settled, link).plan() | Bands.of(settled, link).plan()
            why, chosen = settled.why, {one.name: one.scheduler for one in settled.config.interfaces}
    marks = HostMarks.of(config).plan() if config.marks_by_host else []
    if options.json:
        content = {"mode": config.mode, "dscp_of_class": dscp, "interfaces": changes, "marks": marks}
        _print_json({"version": 1} | content | {"schedulers": chosen, "why": dict(why)})
    else:
        print(f"mode {config.mode}; DSCP of classes {', '.join(f'{c}: {d}' for c, d in dscp.items())}")
        for name, lines in changes.items():
            state = "as it should be" if not lines else f"{len(lines)} differences"
            reason = f" ({why[name]})" if why.get(name) else ""
            print(f"{name}: {state}; scheduler {chosen[name]}{reason}")
            for line in lines:
                print(f"  {line}")
        for line in marks:
            print(line)
    return 1 if marks or any(changes.values()) else 0


def _status(options: argparse.Namespace) -> int:
    from hostagent import client  # noqa: PLC0415

    with client.connect(_socket(options), timeout=2.0, strict=True) as agent:
        shown = agent.status()
    if options.json:
        _print_json({"version": 1} | {key: shown[key] for key in shown.keys() - {"v", "id", "ok"}})
    else:
        tags = shown["tags"]
        print(
            f"mode {shown['mode']}, {shown['state']}, up {shown['uptime_s']:.0f} s, "
            f"{shown['connections']} connections"
        )
        print(f"sockets marked {tags['ok']}, not marked {tags['failed']}")
        if shown["coordinator"]["address"]:
            print(_about_coordinator(shown["coordinator"]))
        if shown["coordinator"]["local_policy"]:
            print(f"flows that no rule fits go by {shown['coordinator']['local_policy']}")
        if shown["marks"] is not None:
            print(_about_marks(shown["marks"]))
        for port in shown["interfaces"]:
            state = (
                port.get("error") or port["conflict"] or "; ".join(port["differences"]) or "as it should be"
            )
            print(
                f"{port['interface']}: {port['rate']}, {port['queues']} queues ({port['mechanism']}): {state}"
            )
            if port["why"]:
                print(f"  {port['why']}")
    healthy = all(not (p.get("error") or p["conflict"] or p["differences"]) for p in shown["interfaces"])
    marks = shown["marks"] or {}
    healthy &= not (marks.get("conflict") or marks.get("error"))
    return 0 if healthy else 1


def _about_marks(shown: dict[str, Any]) -> str:
    groups = ", ".join(f"{one['cgroup']} (class {one['class']})" for one in shown["cgroups"]) or "none"
    by = f" by {shown['level']}" if shown["level"] else ""
    wrong = shown["conflict"] or shown["error"]
    absent = f"; not there now: {', '.join(shown['absent'])}" if shown["absent"] else ""
    flows = f"connections marked by address: {shown['flows']}"
    return f"marked cgroups{by}: {groups}{absent}; {flows}{f': {wrong}' if wrong else ''}"


def _about_coordinator(shown: dict[str, Any]) -> str:
    word = {
        "following": f"followed, policy {shown['policy']}, plan {shown['revision']}",
        "kept": f"away, its plan {shown['revision']} is kept: {shown['why']}",
        "local": f"away, local rules hold: {shown['why']}",
    }
    return f"coordinator {shown['address']} {word[shown['standing']]}; {shown['flows']} flows"


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2, sort_keys=True))


if __name__ == "__main__":
    sys.exit(main())
