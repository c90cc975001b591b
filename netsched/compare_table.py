"""A comparison as text: one table over all runs, one by class of coflow, and what no cell can say.

It is made from the plain figures that `--json` prints, so that the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from netsched import units
from netsched.compare import CLASSES
from netsched.report import BASELINE

_MISSING: Final = "–"
_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def table(figures: Mapping[str, Any]) -> Table:
    """One row per run, all times in one unit. Without a `fair` there are no columns against it."""
    runs: Sequence[Mapping[str, Any]] = figures["runs"]
    factor, unit = _unit(runs)
    against_fair = any(run["fair"] is not None for run in runs)
    view = Table(box=box.SIMPLE_HEAD, title="coflow completion time (CCT)", pad_edge=False)
    _name_columns(view)
    headers = [f"{name}\n[{unit}]" for name in ("mean", "p50", "p95", "max", "makespan")]
    if against_fair:
        headers += [f"speed-up\nvs {BASELINE} [x]", f"slower than\n{BASELINE} [%]"]
    classes = any(run["over_unlimited"] is not None for run in runs)
    due = any(run["deadlines_met"] is not None for run in runs)
    headers += ["queues", "over\nunlimited [x]"] if classes else []
    headers += ["deadlines\nmet [%]"] if due else []
    headers += ["above\nbound [x]", "bound"]
    for header in headers:
        # Text, because rich would take "[x]" for markup.
        view.add_column(Text(header), justify="right", no_wrap=True)
    for run in runs:
        times = (*(run["cct"][name] for name in ("mean", "p50", "p95", "max")), run["makespan"])
        cells = [_MISSING if time is None else f"{time / factor:.3f}" for time in times]
        if against_fair:
            slower = run["slowdown"]["slower"] if run["slowdown"] else None
            cells.append(_MISSING if run["speedup"] is None else f"{run['speedup']:.2f}")
            cells.append(_MISSING if slower is None else f"{100 * slower:.1f}")
        if classes:
            cells.append("unlimited" if run["queues"] is None else str(run["queues"]))
            cells.append(_MISSING if run["over_unlimited"] is None else f"{run['over_unlimited']:.3f}")
        if due:
            cells.append(_MISSING if run["deadlines_met"] is None else f"{100 * run['deadlines_met']:.1f}")
        cells.append(_MISSING if run["above_bound"] is None else f"{run['above_bound']:.2f}")
        cells.append(run["bound"]["best"] or _MISSING)
        view.add_row(*_names(run), *cells)
    return view


def by_class(figures: Mapping[str, Any]) -> Table:
    """Mean CCT of each class of coflows that is not empty, with the speed-up against `fair` where known."""
    counts: Mapping[str, int] = figures["classes"]["coflows"]
    present = [name for name in CLASSES if counts[name]]
    view = Table(box=box.SIMPLE_HEAD, title=f"mean CCT by class (speed-up vs {BASELINE})", pad_edge=False)
    _name_columns(view)
    for name in present:
        view.add_column(Text(f"{name}\n{counts[name]} coflows"), justify="right", no_wrap=True)
    for run in figures["runs"]:
        view.add_row(*_names(run), *(_mean(run["classes"][name]) for name in present))
    return view


def _name_columns(view: Table) -> None:
    view.add_column("policy", overflow="fold")
    view.add_column("engine", no_wrap=True)
    view.add_column("result", overflow="fold")


def _names(run: Mapping[str, Any]) -> list[Text]:
    engine = run["engine"] if run["valid"] else f"{run['engine']} INVALID"
    return [Text(run["policy"]), Text(engine), Text(run["result"])]


def _mean(of_class: Mapping[str, Any]) -> str:
    if of_class["mean"] is None:
        return _MISSING
    ratio = "" if of_class["speedup"] is None else f" ({of_class['speedup']:.2f}x)"
    return units.show_time(of_class["mean"]) + ratio


def _unit(runs: Sequence[Mapping[str, Any]]) -> tuple[float, str]:
    """The largest unit in which the smallest mean is at least 0.1: three decimals are then three digits."""
    smallest = min((run["cct"]["mean"] for run in runs if run["cct"]["mean"]), default=1.0)
    return next(((factor, unit) for factor, unit in _UNITS if smallest >= factor / 10), _UNITS[-1])


def notes(figures: Mapping[str, Any]) -> list[str]:
    """What the ratios are, what they could not be made of, what did not finish, whom to distrust."""
    runs, classes = figures["runs"], figures["classes"]
    said = ["makespan: first arrival to last finish of all coflows"]
    if any(run["fair"] is not None for run in runs):
        said.append(f"speed-up: mean under {BASELINE} / mean under the policy, on the same engine")
        said.append(f"slower: coflows that took longer than under {BASELINE}")
    else:
        said.append(f"no run of {BASELINE} on the same engine: no speed-up and no slowdown")
    if any(run["over_unlimited"] is not None for run in runs):
        said.append("over unlimited: mean / mean of the same policy with as many classes as it has ranks")
    if any(run["deadlines_met"] is not None for run in runs):
        said.append("deadlines met: share of the coflows with a deadline that ended within it")
    names = sorted({name for run in runs if run["above_bound"] is not None for name in run["bound"]["names"]})
    if names:
        said.append(
            f"above bound: mean / the best lower bound of it, of {', '.join(names)} (1.00 cannot be beaten)"
        )
    short = units.show_size(classes["short_at_most_bytes"])
    said.append(
        f"classes: N(arrow) at most {classes['narrow_at_most_flows']} flows, else W(ide); "
        f"S(hort) longest flow at most {short}, else L(ong)"
    )
    for run in runs:
        said += _notes(run, runs)
    return said


def _notes(run: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    said = []
    name = f"{run['policy']} on {run['engine']} in {run['result']}"
    if not run["valid"]:
        said.append(f"INVALID: {name}: the machine could not keep up, see its summary.json")
    if left := run["cct"]["unfinished"]:
        said.append(f"{name}: {left} of {left + run['cct']['count']} coflows unfinished, not in the figures")
    if run["fair"] is None and any(other["fair"] is not None for other in runs):
        said.append(f"{name}: no {BASELINE} on this engine and these links to compare it with")
    elif run["fair"] is not None and run["fair"] != run["result"]:
        said.append(f"{name}: compared with {BASELINE} in {run['fair']}")
    return said


def show(figures: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the tables and the notes, on standard output unless told otherwise.

    Where the output is no terminal the tables are as wide as they need to be: a log or a pager has no edge.
    """
    target = console or Console()
    if not target.is_terminal:
        target = Console(file=target.file, width=max(target.width, 200), color_system=None)
    target.print(table(figures))
    target.print(by_class(figures))
    for note in notes(figures):
        target.print(Text(note))
