"""The nearest good name, said the same way everywhere.

A mistyped name is the most frequent mistake in a scenario, and its best answer is the name that was meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, good: Iterable[str]) -> str:
    """`did you mean 'x'? (good: a, b, x)`, without the question where nothing comes close."""
    names = sorted(good)
    lowered = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    question = f"did you mean '{lowered[close[0]]}'? " if close else ""
    return f"{question}(good: {', '.join(names)})" if names else "it is not taken here"
