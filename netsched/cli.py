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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from netsched.command_line import Command, parser
from netsched.errors import NetschedError, ScenarioError

OK: Final = 0
FAILED: Final = 1
WRONG: Final = 2
LACKING: Final = 4
INTERRUPTED: Final = 128 + signal.SIGINT
PIPE_CLOSED: Final = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `argv` without the program's name; None: sys.argv."""
    try:
        arguments = parser(_COMMANDS).parse_args(argv)
        command: Command = arguments.command
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
    _say(f"results of {len(found)} point{'' if len(found) == 1 else 's'} in {out}")
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
    measured = [(each, laboratory.measure(each), laboratory.ablate(each)) for each in chosen]
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


_COMMANDS: Final[Mapping[str, Command]] = {
    "run": _run,
    "sweep": _sweep,
    "check": _check,
    "check-policy": _check_policy,
    "plot": _plot,
    "compare": _compare,
    "reproduce": _reproduce,
    "list": _list,
    "coordinator": _coordinator,
    "doctor": _doctor,
}


if __name__ == "__main__":
    sys.exit(main())
