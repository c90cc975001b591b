"""Figures of results: stage completion times by policy and engine, and where an iteration's time goes.

They are drawn from the files of a result and nothing else, so that any result can be drawn again, elsewhere
and later. Importing this module imports matplotlib, which is slow: the command line does it last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from netsched import timeline
from netsched.errors import ScenarioError
from netsched.model import Floats
from netsched.results import FIGURES, Key, Result, read
from netsched.style import STYLE, Colour, colours, scaled

_CDF, _BARS, _TIMELINE = FIGURES
_MAX_POINTS: Final = 2000
"""Of one CDF curve: finer than a printed page can show, and small enough for an SVG of a large trace."""

DASHES: Final = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
_HATCHES: Final = ("", "////", "....", "xxxx")


@dataclass(frozen=True)
class Series:
    """Stage completion times of one run in seconds (NaN: unfinished), and what its line is called."""

    label: str
    engine: str
    valid: bool
    times: Floats
    bound: float | None


def plot(results: Sequence[Result], out: Path) -> list[Path]:
    """Draw all figures of the results into the folder `out`, as PNG and SVG, and return the files.

    Several results are drawn into the same CDF and bars, and get a timeline each. What nothing is known
    of (no finished stage, no finished iteration) is not drawn. ScenarioError if `out` cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(STYLE):
            return _plot(results, out)
    except OSError as error:
        raise ScenarioError(f"{out}: cannot be written: {error.strerror}") from error


def _plot(results: Sequence[Result], out: Path) -> list[Path]:
    series = [_series(result, key, len(results) > 1) for result in results for key in result.runs]
    series = [one for one in series if not np.isnan(one.times).all()]
    files = []
    if series:
        files += save(_draw_cdf(series), out / _CDF)
        files += save(_draw_bars(series), out / _BARS)
    for result in results:
        for key in result.runs:
            figure = timeline.draw(result, key)
            if figure is not None:
                prefix = f"{_TIMELINE}.{result.scenario}" if len(results) > 1 else _TIMELINE
                files += save(figure, out / f"{prefix}.{key.stem}")
    return files


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write the figure as PNG and SVG. The same figure gives the same bytes: no date, no random ids."""
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    figure.savefig(png, dpi=200)
    figure.savefig(svg, metadata={"Date": None})
    return [png, svg]


def _series(result: Result, key: Key, several: bool) -> Series:
    run = result.entry(key)
    return Series(
        label=f"{result.scenario}: {key.policy}" if several else key.policy,
        engine=key.engine,
        valid=bool(run["fidelity"].get("valid", True)),
        times=read(result, "stages", key, ["completion_time"])["completion_time"],
        bound=run["bound"]["stage_completion_time"]["mean"],
    )


def _orders(series: Sequence[Series]) -> tuple[dict[str, Colour], list[str]]:
    """A colour per label, and the engines, both in order of appearance: equal in all figures."""
    labels = list(dict.fromkeys(one.label for one in series))
    return dict(zip(labels, colours(len(labels)), strict=True)), list(dict.fromkeys(s.engine for s in series))


# ------------------------------------------------------------------ distribution


def _draw_cdf(series: Sequence[Series]) -> Figure:
    finished = [one.times[~np.isnan(one.times)] for one in series]
    factor, unit = scaled(max(float(times.max()) for times in finished))
    colour, _ = _orders(series)
    figure, axes = draw_steps([(one.label, one.engine, one.times / factor) for one in series], colour)
    axes.set_xlabel(f"stage completion time [{unit}]")
    axes.set_ylabel("fraction of stages")
    return figure


def draw_steps(
    curves: Sequence[tuple[str, str, Floats]], colour: Mapping[str, Colour]
) -> tuple[Figure, Axes]:
    """Distributions of (label, engine, values), each with a value that is not NaN, and their legend.

    `colour` is by label; each engine has its dash. Logarithmic where the values span more than two decades.
    """
    labels = list(dict.fromkeys(label for label, _, _ in curves))
    engines = list(dict.fromkeys(engine for _, engine, _ in curves))
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    finished = [np.sort(values[~np.isnan(values)]) for _, _, values in curves]
    for (label, engine, values), known in zip(curves, finished, strict=True):
        # Of all rows: a curve that ends below 1 shows that some did not finish.
        x, y = thin(known, np.arange(1, len(known) + 1) / len(values))
        axes.plot(
            np.concatenate((x[:1], x)),
            np.concatenate(([0.0], y)),
            drawstyle="steps-post",
            color=colour[label],
            linestyle=DASHES[engines.index(engine) % len(DASHES)],
            linewidth=1.5,
        )
    axes.set_ylim(0, 1.02)
    smallest = min(float(known[known > 0].min(initial=np.inf)) for known in finished)
    if max(float(known[-1]) for known in finished) > 100 * smallest:
        axes.set_xscale("log")
    axes.grid(True)
    handles = [Line2D([], [], color=colour[label], label=label) for label in labels]
    handles.append(Line2D([], [], linewidth=0, label=""))
    handles += [
        Line2D([], [], color="0.3", linestyle=DASHES[i % len(DASHES)], label=engine)
        for i, engine in enumerate(engines)
    ]
    figure.legend(handles=handles, loc="outside right upper")
    return figure, axes


def thin(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """At most _MAX_POINTS of the points, evenly chosen, with the first and the last."""
    if len(x) <= _MAX_POINTS:
        return x, y
    keep = np.linspace(0, len(x) - 1, _MAX_POINTS).round().astype(np.int64)
    return x[keep], y[keep]


# ------------------------------------------------------------------ bars


def _draw_bars(series: Sequence[Series]) -> Figure:
    colour, engines = _orders(series)
    labels = list(colour)
    figure = Figure(
        figsize=(max(3.6, 1.6 + 0.5 * len(labels) * (1 + len(engines) / 2)), 3.4), layout="constrained"
    )
    axes = figure.subplots()
    factor, unit = scaled(max(float(np.nanpercentile(one.times, 95)) for one in series))
    width = 0.8 / len(engines)
    for one in series:
        at = labels.index(one.label) + (engines.index(one.engine) - (len(engines) - 1) / 2) * width
        mean, p95 = float(np.nanmean(one.times)), float(np.nanpercentile(one.times, 95))
        bars = axes.bar(
            at, mean / factor, 0.92 * width, color=colour[one.label], edgecolor="white", linewidth=0.6
        )
        _mark_engine(bars, engines.index(one.engine), one.valid)
        axes.plot([at, at], [mean / factor, p95 / factor], color="0.15", linewidth=1.0)
        axes.plot([at], [p95 / factor], color="0.15", marker="_", markersize=36 * width / 2, linewidth=0)
        if not one.valid:
            axes.annotate(
                "invalid", (at, 0), (0, 4), textcoords="offset points", rotation=90, ha="center", size=7
            )
    _draw_bounds(axes, series, labels, factor)
    axes.set_xticks(range(len(labels)), labels)
    if sum(map(len, labels)) > 60:
        axes.tick_params(axis="x", labelrotation=25)
    axes.set_ylabel(f"stage completion time [{unit}]")
    axes.set_ylim(bottom=0)
    axes.grid(True, axis="y")
    handles: list[Any] = [
        Patch(facecolor="0.6", edgecolor="white", hatch=_HATCHES[i % len(_HATCHES)], label=engine)
        for i, engine in enumerate(engines)
    ]
    handles.append(Line2D([], [], color="0.15", marker="_", markersize=8, label="mean (bar) to p95"))
    if any(one.bound for one in series):
        handles.append(Line2D([], [], color="0.15", linestyle=":", label="lower bound of the mean"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _mark_engine(bars: BarContainer, engine: int, valid: bool) -> None:
    for bar in bars:
        bar.set_hatch(_HATCHES[engine % len(_HATCHES)])
        if not valid:
            bar.set_alpha(0.35)


def _draw_bounds(axes: Axes, series: Sequence[Series], labels: Sequence[str], factor: float) -> None:
    for position, label in enumerate(labels):
        bounds = [one.bound for one in series if one.label == label and one.bound]
        if bounds:
            level = min(bounds) / factor
            axes.plot(
                [position - 0.45, position + 0.45], [level, level], color="0.15", linestyle=":", linewidth=1.2
            )
