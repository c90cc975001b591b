"""Policies from a user's own Python file, read only where the command line asks for it (`--plugin FILE`).

A scenario is data, and reading somebody's scenario must not run somebody's code: so a scenario names a policy
as ever, and where that comes from is said outside of it, by who runs it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from netsched.errors import ScenarioError
from netsched.model import Event, Policy
from netsched.policies import POLICIES

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")
_SAYS: Final = {"name": str, "clairvoyant": bool, "local": bool, "events": Event}
"""What a policy's class says of itself (`model.Policy`), and of what type it is."""


def known(files: Iterable[str | Path] = ()) -> Mapping[str, type[Policy]]:
    """All policies by name: those of the registry, and those of the plug-in files.

    ScenarioError for a file that cannot be read or run, has no policy, or one whose name is taken.
    """
    found = dict(POLICIES)
    source: dict[str, Path] = {}
    for path in dict.fromkeys(Path(file).resolve() for file in files):
        for kind in _policies_of(path):
            if kind.name in found:
                other = source.get(kind.name, "netsched")
                raise _error(
                    path, f"{kind.__name__}.name is {kind.name!r}, which {other} has: choose another"
                )
            found[kind.name], source[kind.name] = kind, path
    return found


def _error(path: Path, text: str) -> ScenarioError:
    return ScenarioError(f"--plugin {path}: {text}")


def _policies_of(path: Path) -> list[type[Any]]:
    module = _module(path)
    own = [each for each in vars(module).values() if inspect.isclass(each) and _is_of(each, module)]
    kinds = [each for each in own if hasattr(each, "name") and "__call__" in dir(each)]
    if not kinds:
        raise _error(path, "no policy in it: write a class with a name and a method __call__(self, view)")
    for kind in kinds:
        _check(path, kind)
    return kinds


def _is_of(kind: type, module: ModuleType) -> bool:
    """Is the class written in this file, and meant to be named? Base classes begin with an underscore."""
    return kind.__module__ == module.__name__ and not kind.__name__.startswith("_")


def _check(path: Path, kind: type[Any]) -> None:
    for attribute, of in _SAYS.items():
        value = getattr(kind, attribute, None)
        if not isinstance(value, of):
            raise _error(
                path,
                f"{kind.__name__}.{attribute} is {value!r}: write "
                f"{attribute}: ClassVar[{of.__name__}] = ... (see docs/write-a-policy.md)",
            )
    if not _NAME.fullmatch(kind.name):
        text = f"{kind.__name__}.name: write lower case letters, digits and '-', such as 'my-policy'"
        raise _error(path, text)
    parameters = kind.__dict__.get("__dataclass_params__")
    if not (dataclasses.is_dataclass(kind) and parameters is not None and parameters.frozen):
        raise _error(
            path, f"{kind.__name__}: write @dataclass(frozen=True) above it; its fields are its parameters"
        )


def _module(path: Path) -> ModuleType:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}") from None
    if path.suffix != ".py":
        raise _error(path, "is no Python file: its name must end in .py")
    return _run(path, hashlib.sha256(text).hexdigest())


@lru_cache(maxsize=64)
def _run(path: Path, digest: str) -> ModuleType:
    """The module of a file with these contents, run once: its classes are the same for all who ask."""
    name = f"netsched_plugin_{path.stem}_{digest[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _error(path, "cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    # Before it runs: dataclasses and pydantic look annotations up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        lines = [
            each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(path)
        ]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        place = f"line {line}: " if line else ""
        raise _error(path, f"{place}{type(error).__name__}: {error}") from error
    return module
