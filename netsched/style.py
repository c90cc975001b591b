"""How figures look: one place, so that a paper's figures match.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart, in an order that keeps
neighbours apart in print as well.
"""

from __future__ import annotations

from typing import Any, Final

import matplotlib as mpl

Colour = tuple[float, float, float]

STYLE: Final[Any] = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "0.88",
    "grid.linewidth": 0.6,
    "hatch.color": "white",
    "hatch.linewidth": 0.8,
    "svg.hashsalt": "netsched",
}

_OKABE_ITO: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")
_TIMES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def colours(n: int) -> list[Colour]:
    """n distinct colours; beyond the palette, evenly from a map of steady lightness."""
    if n <= len(_OKABE_ITO):
        return [mpl.colors.to_rgb(name) for name in _OKABE_ITO[:n]]
    scale = mpl.colormaps["viridis"]
    return [mpl.colors.to_rgb(scale(i / (n - 1))) for i in range(n)]


def tint(colour: Colour, amount: float) -> Colour:
    """The colour mixed with white: 0 leaves it, 1 is white."""
    red, green, blue = (part + (1 - part) * amount for part in colour)
    return red, green, blue


def scaled(largest: float) -> tuple[float, str]:
    """The unit for an axis that ends at `largest` seconds: (seconds per unit, its name)."""
    return next(((factor, unit) for factor, unit in _TIMES if largest >= factor), _TIMES[-1])
