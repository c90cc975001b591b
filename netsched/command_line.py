"""The command line of `netsched`: which commands there are, and what each takes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

METRIC_NAMES: Final = (
    *("stage_completion_time", "coflow_completion_time", "iteration_time", "job_completion_time"),
)
"""`metrics.METRICS`, whose module is too slow to import for every command."""
KINDS: Final = ("policies", "circuits", "placements", "workloads", "fabrics", "engines")

Command = Callable[[argparse.Namespace], int]
"""What a command does; it returns the exit status."""


def parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser; what it returns has the `command` that was named, one of `commands`."""
    top = argparse.ArgumentParser(
        prog="netsched",
        description="Compare network scheduling policies for distributed training: "
        "simulated, and emulated in the Linux kernel.",
        epilog="exit status: 0 ok, 1 a run failed or is INVALID, 2 scenario or usage wrong, "
        "4 this machine lacks something, 130 interrupted",
        allow_abbrev=False,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (does, arguments) in _COMMANDS.items():
        one = subparsers.add_parser(name, help=does, description=does, allow_abbrev=False)
        one.set_defaults(command=commands[name])
        arguments(one)
    return top


class _Version(argparse.Action):
    """--version, whose look-up of the installed package is too slow to do for every command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib import metadata  # noqa: PLC0415

        try:
            text = f"netsched {metadata.version('netsched')}\n"
        except metadata.PackageNotFoundError:
            text = "netsched, run from its source without being installed\n"
        sys.stdout.write(text)
        parser.exit()


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO", help="a YAML file, such as scenarios/quickstart.yaml")
    _add_choice(parser)
    parser.add_argument(
        "--seed", type=_seed, metavar="N", help="seed of everything random (default: the scenario's)"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="folder for the results (default: results/<scenario name>)"
    )
    _add_set(parser)
    _add_plugin(parser)
    parser.add_argument("--json", action="store_true", help="print summary.json instead of the table")
    parser.add_argument("--no-plots", action="store_true", help="draw no figures")


def _sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO", help="a YAML file with a sweep")
    _add_choice(parser)
    parser.add_argument(
        "--metric",
        choices=METRIC_NAMES,
        default="job_completion_time",
        help="what the table and the figure show (default: %(default)s)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="folder for the results (default: results/<scenario name>)"
    )
    _add_set(parser)
    _add_plugin(parser)
    parser.add_argument("--no-plots", action="store_true", help="draw no figure")


def _check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", nargs="+", metavar="SCENARIO", help="a YAML file")
    _add_set(parser)
    _add_plugin(parser)


def _check_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", nargs="+", metavar="POLICY", help="the name of a policy")
    _add_plugin(parser)


def _plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", nargs="+", metavar="RESULT", help="a folder that `netsched run` wrote")
    parser.add_argument(
        "--out", metavar="DIR", help="folder for the figures (default: plots/ in the first result)"
    )


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", nargs="+", metavar="RESULT", help="a folder that `netsched run` wrote")
    parser.add_argument(
        "--narrow",
        type=_count,
        default=50,
        metavar="FLOWS",
        help="a coflow of at most so many flows is narrow (default: 50, as Varys)",
    )
    parser.add_argument(
        "--short",
        type=_size,
        default=5e6,
        metavar="SIZE",
        help="a coflow whose longest flow is at most this is short (default: 5MB, as Varys)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="folder for the figures (default: plots/ in the first result)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of tables")
    parser.add_argument("--no-plots", action="store_true", help="draw no figures")


def _reproduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", metavar="NAME", help="a system (default: all that have claims)")
    parser.add_argument(
        "--scenarios", default="scenarios/papers", metavar="DIR", help="its scenarios (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the page here (default: docs/reproduction.md; with names: print their parts instead)",
    )


def _list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, help="what to list")
    _add_plugin(parser)


def _coordinator(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="FILE", help="see docs/coordinator.md")
    _add_plugin(parser)
    parser.add_argument("--ready-fd", type=int, metavar="N", help='write "ready" here once it serves')
    parser.add_argument("--verbose", "-v", action="store_true", help="log what is done as well")
    parser.add_argument("--log-format", choices=["text", "json"], default="text", help="of log lines")


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _seed(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text[:20]) < 2**53:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a seed: write a whole number, 0 or more")


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text[:20]) < 2**53:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"{text[:40]!r} is not a number of flows: write a whole number, 0 or more"
    )


def _size(text: str) -> float:
    from netsched import units  # noqa: PLC0415

    try:
        return units.size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="NAME",
        help="sim or mininet (default: all it is meant for)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help="only this policy (default: all of the scenario)",
    )


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="write a value into the scenario first, such as fabric.hosts=16 (repeatable)",
    )


def _add_plugin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="run this Python file and know its policies too (repeatable; see docs/write-a-policy.md)",
    )


_COMMANDS: Final[Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]] = {
    "run": ("run a scenario and compare its policies", _run),
    "sweep": ("run a scenario at every point of its sweep, into one table and figure", _sweep),
    "check": ("read scenarios and build all they name, without running", _check),
    "check-policy": ("hold policies to what all engines rely on", _check_policy),
    "plot": ("draw the figures of one or more results", _plot),
    "compare": ("compare the coflow completion times of results of one workload", _compare),
    "reproduce": ("measure what papers claim, beside what they published", _reproduce),
    "list": ("list what a scenario can name, with parameters and defaults", _list),
    "coordinator": ("plan for the agents of many hosts until SIGTERM", _coordinator),
    "doctor": ("say what this machine offers, what is missing and what that costs", _doctor),
}
