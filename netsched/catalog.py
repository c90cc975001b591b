"""What a scenario can name: every plug-in with its one-line description and its parameters.

Read from the registries and the parameter types themselves, so that the list cannot say anything else than
what the loader accepts.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from netsched import units

REQUIRED: Final = "required"
RESHAPES: Final = " Reshapes its jobs' messages."
"""What the list says of a policy that has a `reshape` (`netsched.shape`)."""

Show = Callable[[float], str]

_SHOW: Final[dict[str, Show]] = {
    "size": units.show_size,
    "rate": units.show_rate,
    "time": units.show_time,
}
_PLAIN: Final = {int: "whole number", float: "number", str: "text", bool: "true or false"}
_NOT_A: Final = re.compile(r"is not an? ([^:]+): (.*)", re.DOTALL)
_SUCH_AS: Final = re.compile(r"such as (\[[^]]*\]|[^\s,]+)")


@dataclass(frozen=True)
class Parameter:
    """One key of a plug-in: what is written there, and its default as text with a unit (or `required`)."""

    name: str
    takes: str
    default: str


@dataclass(frozen=True)
class Entry:
    """One plug-in of a kind."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...] = ()


def policies(plugins: Sequence[str] = ()) -> tuple[Entry, ...]:
    """Every scheduling policy, with those of the files `plugins`."""
    from netsched.plugins import known  # noqa: PLC0415

    kinds = known(plugins)
    return tuple(
        Entry(name, _first_line(kind) + (RESHAPES if hasattr(kind, "reshape") else ""), _of_dataclass(kind))
        for name, kind in kinds.items()
    )


def workloads() -> tuple[Entry, ...]:
    """Every kind of workload."""
    from netsched.workloads import WORKLOADS  # noqa: PLC0415

    return tuple(Entry(name, kind.summary, _of_model(kind.params)) for name, kind in WORKLOADS.items())


def fabrics() -> tuple[Entry, ...]:
    """Every kind of fabric."""
    from netsched.fabrics import FABRICS  # noqa: PLC0415

    return tuple(Entry(name, kind.summary, _of_model(kind.params)) for name, kind in FABRICS.items())


def circuits() -> tuple[Entry, ...]:
    """Every scheduler of optical circuits."""
    from netsched.circuits import CIRCUITS  # noqa: PLC0415

    return tuple(Entry(name, _first_line(kind), _of_dataclass(kind)) for name, kind in CIRCUITS.items())


def placements() -> tuple[Entry, ...]:
    """Every placement of jobs."""
    from netsched.placement import PLACEMENTS  # noqa: PLC0415

    return tuple(Entry(name, _first_line(kind), _of_dataclass(kind)) for name, kind in PLACEMENTS.items())


def engines() -> tuple[Entry, ...]:
    """Every engine that a scenario can run on."""
    from netsched.runner import ENGINES  # noqa: PLC0415

    return tuple(Entry(name, engine.summary) for name, engine in ENGINES.items())


CATALOG: Final[dict[str, Callable[[], tuple[Entry, ...]]]] = {
    "policies": policies,
    "circuits": circuits,
    "placements": placements,
    "workloads": workloads,
    "fabrics": fabrics,
    "engines": engines,
}


def text(entries: Iterable[Entry]) -> str:
    """The entries as aligned lines: name and description, then one line per parameter."""
    lines = []
    for entry in entries:
        lines.append(f"{entry.name:<20} {entry.summary}")
        for each in entry.parameters:
            default = each.default if each.default == REQUIRED else f"default {each.default}"
            lines.append(f"    {each.name:<20} {each.takes}, {default}")
    return "\n".join(lines)


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().split("\n")[0]


def _of_model(model: type[BaseModel]) -> tuple[Parameter, ...]:
    return tuple(_of_field(name, field) for name, field in model.model_fields.items())


def _of_field(name: str, field: FieldInfo) -> Parameter:
    takes, show = _type(field.annotation, field.metadata)
    if field.is_required():
        return Parameter(name, takes, REQUIRED)
    default = field.get_default(call_default_factory=True, validated_data={})
    return Parameter(name, takes, _value(default, show))


def _of_dataclass(kind: type[Any]) -> tuple[Parameter, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    parameters = []
    for each in dataclasses.fields(kind):
        takes, show = _type(hints[each.name], ())
        default, make = each.default, each.default_factory
        if not isinstance(make, dataclasses._MISSING_TYPE):
            default = make()
        missing = isinstance(default, dataclasses._MISSING_TYPE)
        parameters.append(Parameter(each.name, takes, REQUIRED if missing else _value(default, show)))
    return tuple(parameters)


def _value(default: Any, show: Show | None) -> str:
    if default is None or default is PydanticUndefined:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, BaseModel):
        pairs = [(name, _of_field(name, field)) for name, field in type(default).model_fields.items()]
        return "{" + ", ".join(f"{name}: {each.default}" for name, each in pairs) + "}"
    if default == 0:
        return "0"
    return show(default) if show and isinstance(default, int | float) else str(default)


def _type(annotation: Any, metadata: Iterable[Any]) -> tuple[str, Show | None]:
    """What the user writes for a field of this type, and how its default is shown if it has a unit."""
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        return _type(inner, [*more, *metadata])
    for each in metadata:
        read: Callable[..., Any] | None = None
        if isinstance(each, units.Parsed):
            read = each.read
        elif isinstance(each, BeforeValidator):
            read = each.func
        if read is not None and (said := _refusal(read)):
            noun, cure = said
            example = _SUCH_AS.search(cure)
            return f"{noun} {example[0]}" if example else f"{noun} ({cure})", _SHOW.get(noun)
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(str(each) for each in members), None
    if origin in (typing.Union, types.UnionType):
        shown = [_type(each, ()) for each in members if each is not type(None)]
        return " or ".join(dict.fromkeys(takes for takes, _ in shown)), next((s for _, s in shown if s), None)
    if origin in (list, tuple, set, frozenset):
        return f"list of {_type(members[0], ())[0] if members else 'values'}", None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = _of_model(annotation)
        return "{" + ", ".join(f"{each.name}: {each.takes}" for each in fields) + "}", None
    return _PLAIN.get(annotation, "text"), None


def _refusal(validate: Callable[..., Any]) -> tuple[str, str] | None:
    """What a parser of text says to text that is surely wrong: the noun it wants, and the cure."""
    try:
        validate("?")
    except ValueError as error:
        match = _NOT_A.search(str(error))
        return (match[1], match[2]) if match else None
    return None
