"""What is wrong with a scenario: one line per problem, each with its place, its value and the cure.

A user who fixes a file wants all of its mistakes at once, and in words about YAML, not about the library
that found them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from netsched.document import Document, KeyPath, shown
from netsched.errors import ScenarioError
from netsched.hints import nearest

T = TypeVar("T")

MOST: Final = 20
"""Problems shown at once."""

_CURES: Final = {
    "int_type": "write a whole number",
    "int_from_float": "write a whole number",
    "int_parsing": "write a whole number",
    "float_type": "write a number",
    "float_parsing": "write a number",
    "string_type": "write text",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
    "list_type": "write a list, such as [a, b]",
    "tuple_type": "write a list, such as [a, b]",
    "dict_type": "write a mapping (key: value)",
    "model_type": "write a mapping (key: value)",
    "model_attributes_type": "write a mapping (key: value)",
}


class Problems:
    """Collects problems of one document and raises them together."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.lines: list[str] = []

    def add(self, path: KeyPath, text: str) -> None:
        """One problem of the value at `path`."""
        line = f"{self.document.where(path)}: {text}"
        if line not in self.lines:
            self.lines.append(line)

    def raise_any(self) -> None:
        """ScenarioError with every line collected so far, if there is one."""
        if not self.lines:
            return
        lines = self.lines[:MOST]
        if len(self.lines) > MOST:
            lines.append(f"{self.document.file}: and {len(self.lines) - MOST} more problems")
        raise ScenarioError("\n".join(lines))

    def validate(self, kind: type[T], data: Mapping[str, Any], path: KeyPath) -> T | None:
        """`data` as a `kind` (a pydantic model or a dataclass), or None with the problems added.

        Strict, and by way of JSON: a list may fill a tuple and text an enumeration, but true is no number
        and "4" no integer.
        """
        if dataclasses.is_dataclass(kind):
            # pydantic passes over a dataclass's strange keys in silence.
            known = [each.name for each in dataclasses.fields(kind)]
            strange = [key for key in data if key not in known]
            for key in strange:
                self.add((*path, key), f"unknown key: {nearest(key, known)}")
            if strange:
                return None
        try:
            return TypeAdapter(kind).validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            self._adopt(error, kind, data, path)
            return None

    def _adopt(self, error: ValidationError, kind: type, data: Mapping[str, Any], path: KeyPath) -> None:
        told: dict[KeyPath, dict[str, list[str]]] = {}
        for details in error.errors(include_url=False):
            inner = _own_path(details["loc"], data)
            if details["type"].startswith("union_tag_"):
                inner = (*inner, details["ctx"]["discriminator"].strip("'"))
            found, cure = _found_and_cure(details, inner, kind)
            cures = told.setdefault(inner, {}).setdefault(found, [])
            if cure not in cures:
                cures.append(cure)
        for inner, findings in told.items():
            # A union reports every alternative: the one that got deepest into the value was meant.
            if any(len(other) > len(inner) and other[: len(inner)] == inner for other in told):
                continue
            for found, cures in findings.items():
                self.add((*path, *inner), f"{found}{' or '.join(cures)}")


def _own_path(loc: tuple[int | str, ...], data: Any) -> KeyPath:
    """pydantic's location without the parts that name members of a union and not keys of the file."""
    path: list[str | int] = []
    spot: Any = data
    for position, part in enumerate(loc):
        if isinstance(spot, Mapping):
            if part in spot:
                spot = spot[part]
            elif position < len(loc) - 1:
                continue
            path.append(part)
        elif isinstance(spot, list) and isinstance(part, int) and part < len(spot):
            spot = spot[part]
            path.append(part)
    return tuple(path)


def _found_and_cure(details: ErrorDetails, path: KeyPath, model: type) -> tuple[str, str]:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return "unknown key: ", nearest(str(path[-1]), _keys(model, path[:-1]))
    if kind == "union_tag_invalid":
        return f"{shown(context['tag'])} is not right: ", f"write one of {context['expected_tags']}"
    if kind in ("missing", "union_tag_not_found"):
        return "is missing", ""
    if kind in ("value_error", "assertion_error"):
        return "", str(context["error"])
    found = "is empty: " if value is None else f"{shown(value)} is not right: "
    return found, _CURES.get(kind) or details["msg"].removeprefix("Input ")


def _keys(model: type, path: KeyPath) -> list[str]:
    """The keys that may stand inside `path`, empty where a union leaves that open."""
    for part in path:
        if not issubclass(model, BaseModel):
            return []
        field = model.model_fields.get(str(part))
        annotation = field.annotation if field else None
        inner = [
            a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)
        ]
        if len(inner) != 1:
            return []
        model = inner[0]
    return sorted(model.model_fields) if issubclass(model, BaseModel) else []
