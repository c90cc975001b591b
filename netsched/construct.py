"""From the name and parameters of a plug-in to the object: one way for every kind of frozen dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from netsched.errors import ScenarioError
from netsched.hints import nearest
from netsched.model import Spec

T = TypeVar("T")


def construct(key: str, noun: str, kinds: Mapping[str, type[T]], spec: Spec) -> T:
    """The `noun` that `spec` names among `kinds`, its fields set to the parameters.

    ScenarioError, under the scenario's `key`, for a name or a parameter that there is not, or a wrong value.
    """
    kind: Any = kinds.get(spec.name)
    if kind is None:
        raise ScenarioError(f"{key}: no {noun} is called {spec.name!r}: {nearest(spec.name, kinds)}")
    known = [each.name for each in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    for name in spec.params:
        if name not in known:
            raise ScenarioError(f"{key}.{spec.name}: unknown parameter {name!r}: {nearest(name, known)}")
    try:
        made: T = TypeAdapter(kind).validate_python(dict(spec.params))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ScenarioError(
            f"{key}.{spec.name}.{where}: {problem['input']!r} is wrong: {problem['msg']}"
        ) from error
    return made
