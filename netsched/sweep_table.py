"""A sweep as one table: a CSV file of every run, and on the terminal each policy's distance to the bound."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from statistics import fmean
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from netsched.metrics import METRICS
from netsched.sweep import Row, Swept

CSV: Final = "sweep.csv"
_MISSING: Final = "–"


def as_csv(swept: Swept) -> str:
    """One line per run: its point, and for each metric mean and bound in seconds, and their ratio.

    Empty where nothing is known.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    figures = [f"{metric}_{what}" for metric in METRICS for what in ("mean_s", "bound_s", "above_bound")]
    writer.writerow([*swept.axes, "engine", "policy", "valid", *figures])
    for row in swept.rows:
        cells = [
            cell
            for metric in METRICS
            for cell in (row.means[metric], row.bounds[metric], row.above_bound(metric))
        ]
        shown = ["" if cell is None else repr(cell) for cell in cells]
        writer.writerow([*row.at.values(), row.engine, row.policy, str(row.valid).lower(), *shown])
    return text.getvalue()


def table(swept: Swept, metric: str) -> Table:
    """A row per policy and engine: its distance to the bound at each value of each axis, over all others."""
    view = Table(
        box=box.SIMPLE_HEAD,
        title=f"{swept.name}: {metric.replace('_', ' ')} / its lower bound",
        pad_edge=False,
    )
    view.add_column("policy", overflow="fold")
    view.add_column("engine", no_wrap=True)
    for axis, names in swept.axes.items():
        for name in names:
            view.add_column(Text(f"{axis}\n{name}"), justify="right", no_wrap=True)
    for header in ("all\nmean", "all\nworst", "best at\n[points]"):
        view.add_column(Text(header), justify="right", no_wrap=True)
    best = _best(swept, metric)
    for policy in swept.policies:
        for engine in dict.fromkeys(row.engine for row in swept.rows if row.policy == policy):
            own = [row for row in swept.rows if (row.policy, row.engine) == (policy, engine)]
            cells = [
                _mean([row for row in own if row.at[axis] == name], metric)
                for axis, names in swept.axes.items()
                for name in names
            ]
            known = [ratio for row in own if (ratio := row.above_bound(metric)) is not None]
            worst = f"{max(known):.2f}" if known else _MISSING
            wins = sum(best.get((engine, *row.at.values())) == row.above_bound(metric) for row in own)
            view.add_row(Text(policy), Text(engine), *cells, _mean(own, metric), worst, str(wins))
    return view


def _best(swept: Swept, metric: str) -> Mapping[tuple[str, ...], float]:
    """The least ratio at each point and engine; equal ones are best together."""
    best: dict[tuple[str, ...], float] = {}
    for row in swept.rows:
        ratio, key = row.above_bound(metric), (row.engine, *row.at.values())
        if ratio is not None:
            best[key] = min(ratio, best.get(key, ratio))
    return best


def _mean(rows: list[Row], metric: str) -> str:
    known = [ratio for row in rows if (ratio := row.above_bound(metric)) is not None]
    return f"{fmean(known):.2f}" if known else _MISSING


def show(swept: Swept, metric: str, console: Console | None = None) -> None:
    """Print the table and what it means."""
    target = console or Console()
    if not target.is_terminal:
        target = Console(file=target.file, width=max(target.width, 240), color_system=None)
    target.print(table(swept, metric))
    target.print(
        Text(
            "mean over the points, of each point's mean / the best lower bound of it (1.00 cannot be beaten)"
        )
    )
    for row in swept.rows:
        if not row.valid:
            target.print(Text(f"INVALID: {row.policy} on {row.engine} at {', '.join(row.at.values())}"))
