"""A sweep as one figure: distance to the lower bound along the last axis, a panel for each other value."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from netsched.errors import ScenarioError
from netsched.plots import DASHES, save
from netsched.style import STYLE, Colour, colours
from netsched.sweep import Swept

_SHAPES: Final = ("o", "s", "^", "D")
_COLOURS: Final = 8
_SPREAD: Final = 0.4
"""Of the distance of two values of an axis: policies stand side by side, for many are alike."""


@dataclass(frozen=True)
class _Look:
    """How a policy is told from others: every eight in turn have the same colours and another mark."""

    colour: Colour
    shape: str
    aside: float

    def line(self) -> dict[str, Any]:
        hollow = self.shape != _SHAPES[0]
        return {
            "color": self.colour,
            "marker": self.shape,
            "markerfacecolor": "white" if hollow else self.colour,
            "markersize": 3.5,
            "linewidth": 1.0,
        }


def _looks(policies: tuple[str, ...]) -> dict[str, _Look]:
    palette, n = colours(min(len(policies), _COLOURS)), len(policies)
    return {
        name: _Look(
            palette[i % _COLOURS],
            _SHAPES[i // _COLOURS % len(_SHAPES)],
            _SPREAD * (i / (n - 1) - 0.5) if n > 1 else 0.0,
        )
        for i, name in enumerate(policies)
    }


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
    looks = _looks(swept.policies)
    engines = list(dict.fromkeys(row.engine for row in swept.rows))
    for (row, upper), (column, name) in itertools.product(enumerate(down), enumerate(across)):
        at = dict(zip(others, (*upper, name), strict=False)) if others else {}
        axes = grid[row][column]
        _panel(axes, swept, metric, at, looks, engines)
        axes.set_title(", ".join(at.values()))
        axes.set_xlabel(last if row == len(down) - 1 else "")
    figure.supylabel(f"{metric.replace('_', ' ')} / lower bound [x]", size=9)
    handles = [Line2D([], [], label=name, **look.line()) for name, look in looks.items()]
    if len(engines) > 1:
        handles += [
            Line2D([], [], color="0.3", linestyle=DASHES[i % len(DASHES)], label=engine)
            for i, engine in enumerate(engines)
        ]
    figure.legend(handles=handles, loc="outside right upper")
    return figure


def _panel(
    axes: Axes, swept: Swept, metric: str, at: dict[str, str], looks: dict[str, _Look], engines: list[str]
) -> None:
    *_, last = swept.axes
    names = swept.axes[last]
    for policy, engine in itertools.product(looks, engines):
        ratios = {
            row.at[last]: row.above_bound(metric)
            for row in swept.rows
            if (row.policy, row.engine) == (policy, engine)
            and all(row.at[axis] == name for axis, name in at.items())
        }
        known = [
            (place + looks[policy].aside, ratios[name])
            for place, name in enumerate(names)
            if ratios.get(name) is not None
        ]
        if known:
            dash = DASHES[engines.index(engine) % len(DASHES)]
            axes.plot(*zip(*known, strict=True), linestyle=dash, **looks[policy].line())
    axes.axhline(1.0, color="0.15", linestyle=":", linewidth=1.0)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.35, len(names) - 0.65)
    axes.grid(True, axis="y")
