"""How the inner loops are compiled, and where the compiled code is kept.

numba takes compiled code from its cache as long as the function's own file is unchanged, even where a
function that it calls, in another file, has changed. So ours is kept in a folder named after all sources that
define compiled functions and all that those import.

numba counts references to every array of a NamedTuple at each call, atomically: with the fifty columns of
`Bundles` that is more than half of a run. A kernel that neither makes nor returns an array needs no counting.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba as nb

Kernel = TypeVar("Kernel", bound=Callable[..., object])


_PACKAGE: Final = Path(__file__).parent
_PREFIX: Final = "kernels-"
_UNUSED_S: Final = 86_400.0
_IMPORT: Final = re.compile(r"^\s*from (netsched(?:\.\w+)*) import", re.MULTILINE)


def _sources() -> list[Path]:
    """Files that compiled code can depend on: where functions are compiled, and what those import."""
    text = {path: path.read_text(encoding="utf-8") for path in _PACKAGE.rglob("*.py")}
    kernels = {path for path, source in text.items() if "netsched.jit" in _IMPORT.findall(source)}
    names = {name for path in kernels for name in _IMPORT.findall(text[path])}
    imported = {(_PACKAGE.parent / name.replace(".", "/")).with_suffix(".py") for name in names}
    return sorted(kernels | (imported & text.keys()))


def _folder() -> Path:
    """Where code compiled from these very sources is kept; what others have not used for long is removed."""
    digest = hashlib.sha256()
    for source in _sources():
        digest.update(source.read_bytes())
    home = _PACKAGE / "__pycache__"
    if not os.access(home if home.exists() else _PACKAGE, os.W_OK):
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "netsched"
    folder = home / f"{_PREFIX}{digest.hexdigest()[:16]}"
    for other in home.glob(f"{_PREFIX}*"):
        # A process that started from other sources may still be reading there, another one clearing up.
        with suppress(OSError):
            if other != folder and time.time() - other.stat().st_mtime > _UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)
    return folder


if not os.environ.get("NUMBA_CACHE_DIR"):
    nb.config.CACHE_DIR = str(_folder())  # type: ignore[attr-defined]


def compiled(function: Kernel) -> Kernel:
    """Compile a function."""
    made: Any = nb.njit(cache=True)(function)
    return cast(Kernel, made)


def kernel(function: Kernel) -> Kernel:
    """Compile a function that makes no array (slices apart) and returns none, without reference counts.

    `_nrt` is the option by which numba compiles its own string functions; a function that breaks the rule
    is refused at compile time.
    """
    options: dict[str, Any] = {"cache": True, "_nrt": False}
    made: Kernel = nb.njit(**options)(function)
    return made


def inlined(function: Kernel) -> Kernel:
    """An `inner` whose code stands where it is called.

    To pass the columns of `Bundles` and `Uses` to a function takes some hundred numbers to the stack each
    time: more than what a small one does.
    """
    options: dict[str, Any] = {
        "cache": True,
        "_nrt": False,
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "forceinline": True,
    }
    made: Kernel = nb.njit(**options)(function)
    return made


def inner(function: Kernel) -> Kernel:
    """A `kernel` that only kernels call. To unpack tuples of columns from Python takes longest to compile."""
    options: dict[str, Any] = {
        "cache": True,
        "_nrt": False,
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
    made: Kernel = nb.njit(**options)(function)
    return made
