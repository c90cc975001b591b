"""Figures of a comparison: CCT distributions, CCT by class of coflow, slowdown against `fair` per coflow.

They show what a mean hides: whom a policy pays for its mean with.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from netsched import units
from netsched.compare import CLASSES, Comparison, slowdown
from netsched.compare_runs import Measured
from netsched.errors import ScenarioError
from netsched.model import Floats
from netsched.plots import draw_steps, save
from netsched.report import BASELINE
from netsched.results import COMPARISONS
from netsched.style import STYLE, Colour, colours, scaled

_CDF, _CLASSES, _SLOWDOWN = COMPARISONS
_MARKERS: Final = ("o", "s", "^", "D")


def plot(comparison: Comparison, out: Path) -> list[Path]:
    """Draw the figures into the folder `out`, as PNG and SVG, and return the files.

    What nothing is known of is not drawn: no finished coflow, no `fair`. ScenarioError if `out` cannot be
    written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(STYLE):
            return _plot(comparison, out)
    except OSError as error:
        raise ScenarioError(f"{out}: cannot be written: {error.strerror}") from error


def _plot(comparison: Comparison, out: Path) -> list[Path]:
    finished = [run for run in comparison.runs if not np.isnan(run.cct).all()]
    files = []
    if finished:
        files += save(_draw_cdf(comparison, finished), out / _CDF)
        files += save(_draw_classes(comparison, finished), out / _CLASSES)
    ratios = [(run, slowdown(comparison, row)) for row, run in enumerate(comparison.runs)]
    known = [(run, each) for run, each in ratios if each is not None and not np.isnan(each).all()]
    if known:
        files += save(_draw_slowdown(comparison, known), out / _SLOWDOWN)
    return files


def _label(comparison: Comparison, run: Measured) -> str:
    return f"{run.result}: {run.key.policy}" if comparison.several else run.key.policy


def _colours(comparison: Comparison) -> dict[str, Colour]:
    """A colour per label, the same in all figures: a run that one of them leaves out keeps its own."""
    labels = list(dict.fromkeys(_label(comparison, run) for run in comparison.runs))
    return dict(zip(labels, colours(len(labels)), strict=True))


def _draw_cdf(comparison: Comparison, runs: Sequence[Measured]) -> Figure:
    factor, unit = scaled(max(float(np.nanmax(run.cct)) for run in runs))
    curves = [(_label(comparison, run), run.key.engine, run.cct / factor) for run in runs]
    figure, axes = draw_steps(curves, _colours(comparison))
    axes.set_xlabel(f"coflow completion time [{unit}]")
    axes.set_ylabel("fraction of coflows")
    return figure


def _draw_slowdown(comparison: Comparison, runs: Sequence[tuple[Measured, Floats]]) -> Figure:
    curves = [(_label(comparison, run), run.key.engine, each) for run, each in runs]
    figure, axes = draw_steps(curves, _colours(comparison))
    axes.axvline(1.0, color="0.15", linestyle=":", linewidth=1.0)
    axes.set_xlabel(f"completion time / that under {BASELINE} [x]")
    axes.set_ylabel("fraction of coflows")
    return figure


def _draw_classes(comparison: Comparison, runs: Sequence[Measured]) -> Figure:
    """Mean (marker) to p95 (dash) by class; points, because bars mean nothing on a logarithmic axis."""
    colour = _colours(comparison)
    marker = dict(zip(dict.fromkeys(run.key.engine for run in runs), itertools.cycle(_MARKERS), strict=False))
    kinds = [kind for kind in range(len(CLASSES)) if (comparison.of_class == kind).any()]
    wide = max(4.6, 2.2 + len(kinds) * (0.4 + 0.14 * len(runs)))
    figure = Figure(figsize=(wide, 3.4), layout="constrained")
    axes = figure.subplots()
    factor, unit = scaled(max(float(np.nanmax(run.cct)) for run in runs))
    drawn = []
    for (place, kind), (column, run) in itertools.product(enumerate(kinds), enumerate(runs)):
        values = run.cct[(comparison.of_class == kind) & ~np.isnan(run.cct)] / factor
        if len(values):
            at = place + (column - (len(runs) - 1) / 2) * 0.8 / len(runs)
            mean, p95 = float(values.mean()), float(np.percentile(values, 95))
            ink = colour[_label(comparison, run)]
            axes.plot([at, at], [mean, p95], color=ink, linewidth=1.0)
            axes.plot([at], [p95], color=ink, marker="_", markersize=6, linewidth=0)
            axes.plot([at], [mean], color=ink, marker=marker[run.key.engine], markersize=4.5, linewidth=0)
            drawn += [mean, p95]
    if min(drawn) > 0 and max(drawn) > 20 * min(drawn):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    _name_classes(axes, comparison, kinds)
    axes.set_ylabel(f"coflow completion time [{unit}]")
    axes.grid(True, axis="y")
    labels = dict.fromkeys(_label(comparison, run) for run in runs)
    handles = [Line2D([], [], color=colour[label], linewidth=2, label=label) for label in labels]
    handles += [
        Line2D([], [], color="0.3", marker=shape, markersize=4.5, linewidth=0, label=f"{engine}, mean")
        for engine, shape in marker.items()
    ]
    handles.append(Line2D([], [], color="0.3", marker="_", markersize=6, linewidth=0, label="p95"))
    figure.legend(handles=handles, loc="outside right upper")
    return figure


def _name_classes(axes: Axes, comparison: Comparison, kinds: Sequence[int]) -> None:
    counts = [int((comparison.of_class == kind).sum()) for kind in kinds]
    names = [f"{CLASSES[kind]}\n{n} coflows" for kind, n in zip(kinds, counts, strict=True)]
    axes.set_xticks(range(len(kinds)), names)
    limits = comparison.limits
    axes.set_xlabel(
        f"N: at most {limits.narrow} flows, S: longest flow at most {units.show_size(limits.short)}"
    )
