"""A sweep as one figure: distance to the lower bound along the last axis, a panel for each other value."""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from netsched.errors import ScenarioError
from netsched.plots import DASHES, save
from netsched.style import STYLE, Colour, colours
from netsched.sweep import Swept


def plot(swept: Swept, metric: str, out: Path) -> list[Path]:
    """Draw `sweep_<metric>` into the folder `out`, as PNG and SVG. ScenarioError if it cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(STYLE):
            return save(_draw(swept, metric), out / f"sweep_{metric}")
    except OSError as error:
        raise ScenarioError(f"{out}: cannot be written: {error.strerror}") from error


def _draw(swept: Swept, metric: str) -> Figure:
    *others, last = swept.axes
    across = swept.axes[others[-1]] if others else ("",)
    down = list(itertools.product(*(swept.axes[axis] for axis in others[:-1])))
    figure = Figure(figsize=(1.9 + 2.3 * len(across), 0.6 + 2.1 * len(down)), layout="constrained")
    grid = figure.subplots(len(down), len(across), sharex=True, sharey=True, squeeze=False)
    colour = dict(zip(swept.policies, colours(len(swept.policies)), strict=True))
    engines = list(dict.fromkeys(row.engine for row in swept.rows))
    for (row, upper), (column, name) in itertools.product(enumerate(down), enumerate(across)):
        at = dict(zip(others, (*upper, name), strict=False)) if others else {}
        axes = grid[row][column]
        _panel(axes, swept, metric, at, colour, engines)
        axes.set_title(", ".join(at.values()))
        axes.set_xlabel(last if row == len(down) - 1 else "")
    figure.supylabel(f"{metric.replace('_', ' ')} / lower bound [x]", size=9)
    handles = [Line2D([], [], color=colour[each], marker="o", markersize=3, label=each) for each in colour]
    if len(engines) > 1:
        handles += [
            Line2D([], [], color="0.3", linestyle=DASHES[i % len(DASHES)], label=engine)
            for i, engine in enumerate(engines)
        ]
    figure.legend(handles=handles, loc="outside right upper")
    return figure


def _panel(
    axes: Axes, swept: Swept, metric: str, at: dict[str, str], colour: dict[str, Colour], engines: list[str]
) -> None:
    *_, last = swept.axes
    names = swept.axes[last]
    for policy, engine in itertools.product(colour, engines):
        ratios = {
            row.at[last]: row.above_bound(metric)
            for row in swept.rows
            if (row.policy, row.engine) == (policy, engine)
            and all(row.at[axis] == name for axis, name in at.items())
        }
        known = [(place, ratios[name]) for place, name in enumerate(names) if ratios.get(name) is not None]
        if known:
            dash = DASHES[engines.index(engine) % len(DASHES)]
            axes.plot(
                *zip(*known, strict=True),
                color=colour[policy],
                linestyle=dash,
                marker="o",
                markersize=3,
                linewidth=1.0,
            )
    axes.axhline(1.0, color="0.15", linestyle=":", linewidth=1.0)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.3, len(names) - 0.7)
    axes.grid(True, axis="y")
