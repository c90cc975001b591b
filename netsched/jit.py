"""How the simulator's inner loops are compiled.

numba counts references to every array of a NamedTuple at each call, atomically: with the fifty columns of
`Bundles` that is more than half of a run. A kernel that neither makes nor returns an array needs no counting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba as nb

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """Compile a function that makes no array (slices apart) and returns none, without reference counts.

    `_nrt` is the option by which numba compiles its own string functions; a function that breaks the rule
    is refused at compile time.
    """
    options: dict[str, Any] = {"cache": True, "_nrt": False}
    compiled: Kernel = nb.njit(**options)(function)
    return compiled
