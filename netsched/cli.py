"""The `netsched` command: parse, call, print; the work is done elsewhere.

Exit status: 0 everything ran; 1 a run failed or is INVALID; 2 the scenario or the command line is wrong;
4 this machine lacks something; 130 Ctrl-C; 141 the reader of the output went away.
Modules are imported by the command that needs them, so that --help answers at once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from netsched.errors import NetschedError, ScenarioError

OK: Final = 0
FAILED: Final = 1
WRONG: Final = 2
LACKING: Final = 4
INTERRUPTED: Final = 128 + signal.SIGINT
PIPE_CLOSED: Final = 128 + signal.SIGPIPE

METRIC_NAMES: Final = (
    *("stage_completion_time", "coflow_completion_time", "iteration_time", "job_completion_time"),
)
"""`metrics.METRICS`, whose module is too slow to import for every command."""
KINDS: Final = ("policies", "circuits", "placements", "workloads", "fabrics", "engines")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `argv` without the program's name; None: sys.argv."""
    try:
        arguments = _parser().parse_args(argv)
        command: Callable[[argparse.Namespace], int] = arguments.command
        status = command(arguments)
        sys.stdout.flush()
        return status
    except NetschedError as error:
        _complain(error)
        return error.exit_code
    except KeyboardInterrupt as stop:
        _say(f"netsched: {stop}" if str(stop) else "netsched: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except MemoryError:
        _say("error: out of memory: the scenario is too large for this machine")
        return FAILED
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _say(f"error: {place}{error.strerror or error}")
        return FAILED


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _complain(error: NetschedError, prefix: str = "") -> None:
    for line in str(error).splitlines():
        _say(f"error: {prefix}{line}")


# ------------------------------------------------------------------ commands


def _run(arguments: argparse.Namespace) -> int:
    from netsched import report  # noqa: PLC0415
    from netsched.progress import Watch  # noqa: PLC0415
    from netsched.runner import engines_for, run, with_policies  # noqa: PLC0415
    from netsched.scenario import load  # noqa: PLC0415

    settings = list(arguments.set)
    if arguments.seed is not None:
        settings.append(f"seed={arguments.seed}")
    scenario = with_policies(load(arguments.scenario, settings, arguments.plugin), arguments.policy)
    engines = engines_for(scenario, arguments.engine)
    out = Path(arguments.out) if arguments.out else Path("results") / scenario.name
    with Watch() as watch:
        ended = run(scenario, engines, out, watch, figures=not arguments.no_plots)
    if arguments.json:
        print(json.dumps(ended.result.summary, indent=2, allow_nan=False))
    elif ended.result.runs:
        report.show(ended.result)
    if ended.result.runs:
        _say(f"results in {out}")
    for failure in ended.failures:
        _complain(failure.error, f"{failure.engine} {failure.policy}: ")
    if not ended.result.runs:
        _say(f"error: no run of {len(engines) * len(scenario.schemes)} ended: no table, no figure")
    for name in ended.invalid:
        _say(f"error: {name}: INVALID, see the reason in the table")
    if ended.failures:
        return max(failure.error.exit_code for failure in ended.failures)
    return FAILED if ended.invalid else OK


def _sweep(arguments: argparse.Namespace) -> int:
    from netsched import sweep, sweep_table  # noqa: PLC0415
    from netsched.progress import Watch  # noqa: PLC0415

    found = sweep.points(arguments.scenario, arguments.set, arguments.plugin, arguments.policy)
    out = Path(arguments.out) if arguments.out else Path("results") / found[0].scenario.name
    with Watch() as watch:
        swept = sweep.sweep(found, arguments.engine, out, watch)
    (out / sweep_table.CSV).write_text(sweep_table.as_csv(swept), encoding="utf-8")
    sweep_table.show(swept, arguments.metric)
    sys.stdout.flush()
    if not arguments.no_plots and swept.rows:
        from netsched import sweep_plot  # noqa: PLC0415 # matplotlib is slow to import

        sweep_plot.plot(swept, arguments.metric, out / "plots")
    _say(f"results of {len(found)} points in {out}")
    for point, failure in swept.failures:
        _complain(failure.error, f"{point.title}: {failure.engine} {failure.policy}: ")
    if swept.failures:
        return max(failure.error.exit_code for _, failure in swept.failures)
    return FAILED if not all(row.valid for row in swept.rows) else OK


def _check(arguments: argparse.Namespace) -> int:
    from netsched.scenario import check, load  # noqa: PLC0415

    status = OK
    for path in arguments.scenario:
        try:
            print(check(load(path, arguments.set, arguments.plugin)))
        except NetschedError as error:
            _complain(error)
            status = max(status, error.exit_code)
    return status


def _plot(arguments: argparse.Namespace) -> int:
    from netsched import plots, results  # noqa: PLC0415

    loaded = [results.load(Path(path)) for path in arguments.result]
    out = Path(arguments.out) if arguments.out else loaded[0].path / results.PLOTS
    for path in plots.plot(loaded, out):
        print(path)
    return OK


def _compare(arguments: argparse.Namespace) -> int:
    from netsched import compare, results  # noqa: PLC0415

    limits = compare.Limits(arguments.narrow, arguments.short)
    comparison = compare.compare([Path(path) for path in arguments.result], limits)
    figures = compare.figures(comparison)
    if arguments.json:
        print(json.dumps(figures, indent=2, allow_nan=False))
    else:
        from netsched import compare_table  # noqa: PLC0415

        compare_table.show(figures)
        sys.stdout.flush()
    if not arguments.no_plots:
        from netsched import compare_plots  # noqa: PLC0415 # matplotlib is slow to import

        out = Path(arguments.out) if arguments.out else Path(arguments.result[0]) / results.PLOTS
        compare_plots.plot(comparison, out)
        _say(f"figures in {out}")
    return OK


def _list(arguments: argparse.Namespace) -> int:
    from netsched import catalog  # noqa: PLC0415

    if arguments.plugin and arguments.kind != "policies":
        raise ScenarioError(f"--plugin: a file of policies adds no {arguments.kind}: list policies")
    own = arguments.plugin and catalog.policies(arguments.plugin)
    print(catalog.text(own or catalog.CATALOG[arguments.kind]()))
    return OK


def _check_policy(arguments: argparse.Namespace) -> int:
    from netsched.model import Spec  # noqa: PLC0415
    from netsched.plugins import known  # noqa: PLC0415
    from netsched.policies import make  # noqa: PLC0415
    from netsched.testing import check_policy, samples  # noqa: PLC0415 # numba is slow to import

    kinds = known(arguments.plugin)
    chosen = [make(Spec(name), kinds) for name in arguments.policy]
    for policy in chosen:
        for fabric in samples():
            check_policy(policy, fabric)
            print(f"{policy.name}: keeps the contract on {fabric.describe()}")
    return OK


def _reproduce(arguments: argparse.Namespace) -> int:
    from netsched.claims import systems  # noqa: PLC0415
    from netsched.reproduce import Laboratory  # noqa: PLC0415 # numba is slow to import
    from netsched.reproduction_page import page, section  # noqa: PLC0415

    laboratory = Laboratory(_say)
    chosen = systems(Path(arguments.scenarios), tuple(arguments.name))
    measured = [(system, laboratory.measure(system)) for system in chosen]
    if arguments.name and not arguments.out:
        print("\n".join(section(*each) for each in measured), end="")
        return OK
    out = Path(arguments.out or "docs/reproduction.md")
    out.write_text(page(measured), encoding="utf-8")
    _say(f"written: {out}")
    return OK


def _coordinator(arguments: argparse.Namespace) -> int:
    from netsched.coordinator import command  # noqa: PLC0415

    command.run(arguments)
    return OK


def _doctor(arguments: argparse.Namespace) -> int:
    from netsched import doctor  # noqa: PLC0415

    findings = doctor.examine()
    print(json.dumps(doctor.plain(findings), indent=2) if arguments.json else doctor.text(findings))
    return LACKING if findings.missing else OK


# ------------------------------------------------------------------ the command line


class _Version(argparse.Action):
    """--version, whose look-up of the installed package is too slow to do for every command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib import metadata  # noqa: PLC0415

        try:
            print(f"netsched {metadata.version('netsched')}")
        except metadata.PackageNotFoundError:
            print("netsched, run from its source without being installed")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netsched",
        description="Compare network scheduling policies for distributed training: "
        "simulated, and emulated in the Linux kernel.",
        epilog="exit status: 0 ok, 1 a run failed or is INVALID, 2 scenario or usage wrong, "
        "4 this machine lacks something, 130 interrupted",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, does: str, function: Callable[[argparse.Namespace], int]
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=does, description=does, allow_abbrev=False)
        sub.set_defaults(command=function)
        return sub

    run = command("run", "run a scenario and compare its policies", _run)
    run.add_argument("scenario", metavar="SCENARIO", help="a YAML file, such as scenarios/quickstart.yaml")
    _add_choice(run)
    run.add_argument(
        "--seed", type=_seed, metavar="N", help="seed of everything random (default: the scenario's)"
    )
    run.add_argument("--out", metavar="DIR", help="folder for the results (default: results/<scenario name>)")
    _add_set(run)
    _add_plugin(run)
    run.add_argument("--json", action="store_true", help="print summary.json instead of the table")
    run.add_argument("--no-plots", action="store_true", help="draw no figures")

    swept = command("sweep", "run a scenario at every point of its sweep, into one table and figure", _sweep)
    swept.add_argument("scenario", metavar="SCENARIO", help="a YAML file with a sweep")
    _add_choice(swept)
    swept.add_argument(
        "--metric",
        choices=METRIC_NAMES,
        default="job_completion_time",
        help="what the table and the figure show (default: %(default)s)",
    )
    swept.add_argument(
        "--out", metavar="DIR", help="folder for the results (default: results/<scenario name>)"
    )
    _add_set(swept)
    _add_plugin(swept)
    swept.add_argument("--no-plots", action="store_true", help="draw no figure")

    check = command("check", "read scenarios and build all they name, without running", _check)
    check.add_argument("scenario", nargs="+", metavar="SCENARIO", help="a YAML file")
    _add_set(check)
    _add_plugin(check)

    vet = command("check-policy", "hold policies to what all engines rely on", _check_policy)
    vet.add_argument("policy", nargs="+", metavar="POLICY", help="the name of a policy")
    _add_plugin(vet)

    plot = command("plot", "draw the figures of one or more results", _plot)
    plot.add_argument("result", nargs="+", metavar="RESULT", help="a folder that `netsched run` wrote")
    plot.add_argument(
        "--out", metavar="DIR", help="folder for the figures (default: plots/ in the first result)"
    )

    compare = command("compare", "compare the coflow completion times of results of one workload", _compare)
    compare.add_argument("result", nargs="+", metavar="RESULT", help="a folder that `netsched run` wrote")
    compare.add_argument(
        "--narrow",
        type=_count,
        default=50,
        metavar="FLOWS",
        help="a coflow of at most so many flows is narrow (default: 50, as Varys)",
    )
    compare.add_argument(
        "--short",
        type=_size,
        default=5e6,
        metavar="SIZE",
        help="a coflow whose longest flow is at most this is short (default: 5MB, as Varys)",
    )
    compare.add_argument(
        "--out", metavar="DIR", help="folder for the figures (default: plots/ in the first result)"
    )
    compare.add_argument("--json", action="store_true", help="print the figures as JSON instead of tables")
    compare.add_argument("--no-plots", action="store_true", help="draw no figures")

    reproduce = command("reproduce", "measure what papers claim, beside what they published", _reproduce)
    reproduce.add_argument("name", nargs="*", metavar="NAME", help="a system (default: all that have claims)")
    reproduce.add_argument(
        "--scenarios", default="scenarios/papers", metavar="DIR", help="its scenarios (default: %(default)s)"
    )
    reproduce.add_argument(
        "--out",
        metavar="FILE",
        help="write the page here (default: docs/reproduction.md; with names: print their parts instead)",
    )

    catalog = command("list", "list what a scenario can name, with parameters and defaults", _list)
    catalog.add_argument("kind", choices=KINDS, help="what to list")
    _add_plugin(catalog)

    coordinator = command("coordinator", "plan for the agents of many hosts until SIGTERM", _coordinator)
    coordinator.add_argument("--config", required=True, metavar="FILE", help="see docs/coordinator.md")
    _add_plugin(coordinator)
    coordinator.add_argument("--ready-fd", type=int, metavar="N", help='write "ready" here once it serves')
    coordinator.add_argument("--verbose", "-v", action="store_true", help="log what is done as well")
    coordinator.add_argument("--log-format", choices=["text", "json"], default="text", help="of log lines")

    doctor = command("doctor", "say what this machine offers, what is missing and what that costs", _doctor)
    doctor.add_argument("--json", action="store_true", help="print JSON")
    return parser


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


if __name__ == "__main__":
    sys.exit(main())
