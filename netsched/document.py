"""Strict YAML: a file becomes plain mappings, lists and scalars, and every value remembers its line.

PyYAML's own loader lets the last of two equal keys win, expands aliases without bound, and reads `on` as
True and 012 as ten. A scenario is an experiment's record: each of those is refused, or read as YAML 1.2 does.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from yaml import events

from netsched.errors import ScenarioError

KeyPath = tuple[str | int, ...]

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 24
MAX_NUMBER: Final = 1e18
_EACH: Final = "*"
SHOWN: Final = 60
"""Longest piece of a user's text that a message repeats, in characters."""

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_OLD_OCTAL: Final = re.compile(r"[-+]?0[0-9]+")
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def dotted(path: KeyPath) -> str:
    """`workload.0.size`: the form that messages show and that --set takes."""
    return ".".join(str(part) for part in path)


def shown(value: object) -> str:
    """The value as a message repeats it: one line, cut where it would be long."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@dataclass(frozen=True)
class Document:
    """A file as read. `origin` says where each key path was written: `file:line`, or the --set flag."""

    file: str
    data: Mapping[str, Any]
    origin: Mapping[KeyPath, str]

    def where(self, path: KeyPath) -> str:
        """`file:line: key.path` of a value, or of the nearest thing around it that was written down."""
        for depth in range(len(path), -1, -1):
            if path[:depth] in self.origin:
                origin = self.origin[path[:depth]]
                return f"{origin}: {dotted(path)}" if path else origin
        return f"{self.file}: {dotted(path)}" if path else self.file


# ------------------------------------------------------------------ reading


def read(path: str | Path) -> Document:
    """Read one scenario file. ScenarioError, with the line, for anything that is not a strict mapping."""
    file = str(path)
    text = _text(Path(path), file)
    data, origin = _parse(text, file)
    if data is None:
        raise ScenarioError(f"{file}: the file is empty: a scenario has at least fabric, workload, policies")
    if not isinstance(data, dict):
        raise ScenarioError(f"{file}:1: the file holds {_noun(data)}: a scenario is a mapping (key: value)")
    return Document(file, data, origin)


def _text(path: Path, file: str) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ScenarioError(f"{file}: cannot be read: {reason}") from None
    if len(raw) > MAX_BYTES:
        raise ScenarioError(f"{file}: larger than {MAX_BYTES // 1024} KiB, too large for a scenario")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ScenarioError(f"{file}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8 text") from None


def _parse(text: str, file: str) -> tuple[Any, dict[KeyPath, str]]:
    try:
        return _Builder(file, yaml.parse(text, Loader=yaml.SafeLoader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        source = "".join(text.splitlines()[line - 1 : line])
        tab = "\t" in source[: len(source) - len(source.lstrip())]
        problem = "a tab in the indentation: use spaces" if tab else (error.problem or "syntax error")
        raise ScenarioError(f"{file}:{line}: not valid YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[0])
        raise ScenarioError(f"{file}:{line}: not valid YAML: control character #x{code:04x}") from None


def _noun(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    return "a mapping" if isinstance(value, dict) else f"the single value {shown(value)}"


class _Builder:
    """Builds values from the parser's events, so that depth and aliases are refused before they grow."""

    def __init__(self, file: str, stream: Iterable[events.Event]) -> None:
        self.file = file
        self.stream: Iterator[events.Event] = iter(stream)
        self.origin: dict[KeyPath, str] = {}

    def document(self) -> tuple[Any, dict[KeyPath, str]]:
        data = None
        documents = 0
        for event in self.stream:
            if isinstance(event, events.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.error(event, (), "a second document (---): a scenario is one document")
            elif isinstance(event, events.NodeEvent):
                data = self.value(event, ())
        return data, self.origin

    def at(self, event: events.Event) -> str:
        return f"{self.file}:{event.start_mark.line + 1}" if event.start_mark else self.file

    def error(self, event: events.Event, path: KeyPath, text: str) -> ScenarioError:
        key = f"{dotted(path)}: " if path else ""
        return ScenarioError(f"{self.at(event)}: {key}{text}")

    def value(self, event: events.Event, path: KeyPath) -> Any:
        if isinstance(event, events.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise self.error(event, path, "anchors and aliases (&x, *x) are refused: write the value out")
        if getattr(event, "tag", None) is not None:
            raise self.error(event, path, f"tags are refused: remove {shown(getattr(event, 'tag', ''))}")
        if len(path) > MAX_DEPTH:
            raise self.error(event, (), f"nested deeper than {MAX_DEPTH} levels")
        self.origin.setdefault(path, self.at(event) if path else self.file)
        if isinstance(event, events.SequenceStartEvent):
            return self.sequence(path)
        if isinstance(event, events.MappingStartEvent):
            return self.mapping(path)
        if not isinstance(event, events.ScalarEvent):
            raise self.error(event, path, "not valid YAML")
        self.unicode(event, path)
        return self.scalar(event, path) if event.implicit[0] else event.value

    def unicode(self, event: events.ScalarEvent, path: KeyPath) -> None:
        if not event.value.isascii() and any(0xD800 <= ord(char) <= 0xDFFF for char in event.value):
            raise self.error(event, path, "half of a surrogate pair is not a character")

    def sequence(self, path: KeyPath) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.stream), events.SequenceEndEvent):
            items.append(self.value(event, (*path, len(items))))
        return items

    def mapping(self, path: KeyPath) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while not isinstance(event := next(self.stream), events.MappingEndEvent):
            if not isinstance(event, events.ScalarEvent) or event.anchor is not None or event.tag is not None:
                raise self.error(event, path, "a key must be plain text")
            self.unicode(event, path)
            key = event.value
            if key in items:
                first = self.origin[*path, key].rsplit(":", 1)[-1]
                raise self.error(event, (*path, key), f"written twice (first in line {first}): keep one")
            self.origin[*path, key] = self.at(event)
            items[key] = self.value(next(self.stream), (*path, key))
        return items

    def scalar(self, event: events.ScalarEvent, path: KeyPath) -> str | int | float | bool | None:
        text = event.value
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _NOT_FINITE.fullmatch(text):
            raise self.error(event, path, f"{text} is not a finite number")
        if _OLD_OCTAL.fullmatch(text):
            plain = text.lstrip("+-").lstrip("0") or "0"
            raise self.error(
                event, path, f"{shown(text)} reads as octal to some: write {plain}, or '{text}' for text"
            )
        number: int | float
        if _BASED.fullmatch(text):
            number = int(text, 0) if len(text) <= 20 else int(MAX_NUMBER) * 2
        elif _INT.fullmatch(text):
            number = int(text) if len(text) <= 20 else int(MAX_NUMBER) * 2
        elif _FLOAT.fullmatch(text):
            number = float(text)
        else:
            return text
        if abs(number) > MAX_NUMBER:
            raise self.error(event, path, f"{shown(text)} is too large: numbers end at {MAX_NUMBER:g}")
        return number


# ------------------------------------------------------------------ --set


def override(document: Document, settings: Sequence[str]) -> Document:
    """The document with each `key.path=value` of --set written into it, in order.

    A value is YAML (a number, text, a [list], a {mapping}). A list is entered by number, or by * for each of
    its entries (where there is a mapping instead, for that itself); a mapping that is not there is made, and
    the scenario's own check then says whether such a key exists.
    """
    data = copy.deepcopy(dict(document.data))
    origin = dict(document.origin)
    for setting in settings:
        flag = f"--set {setting if len(setting) <= SHOWN else setting[:SHOWN] + '...'}"
        name, equals, text = setting.partition("=")
        parts = name.strip().split(".")
        if not equals or not all(parts):
            raise ScenarioError(f"{flag}: write --set key.path=value, such as --set fabric.hosts=16")
        value, _ = _parse(text, flag)
        for each in _spread(data, parts):
            path = _assign(data, each, copy.deepcopy(value), flag)
            for stale in [known for known in origin if known[: len(path)] == path]:
                del origin[stale]
            origin[path] = flag
    return Document(document.file, data, origin)


def _spread(data: Mapping[str, Any], parts: list[str]) -> list[list[str]]:
    """The path with its first * replaced by each number of the list there, and so on for the others."""
    if _EACH not in parts:
        return [parts]
    star = parts.index(_EACH)
    spot: Any = data
    for part in parts[:star]:
        if isinstance(spot, list) and part.isascii() and part.isdecimal() and int(part) < len(spot):
            spot = spot[int(part)]
        else:
            spot = spot.get(part) if isinstance(spot, dict) else None
    if isinstance(spot, dict):
        return _spread(data, [*parts[:star], *parts[star + 1 :]])
    if not isinstance(spot, list):
        return [parts]
    return [
        path
        for number in range(len(spot))
        for path in _spread(data, [*parts[:star], str(number), *parts[star + 1 :]])
    ]


def _assign(data: dict[str, Any], parts: list[str], value: Any, flag: str) -> KeyPath:
    spot: Any = data
    path: KeyPath = ()
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        here = dotted(path)
        if isinstance(spot, list):
            if not (part.isascii() and part.isdecimal() and len(part) <= 6 and int(part) < len(spot)):
                raise ScenarioError(
                    f"{flag}: {here} is a list of {len(spot)}: write {here}.0, not {shown(part)}"
                )
            key: str | int = int(part)
        elif isinstance(spot, dict):
            key = part
        else:
            raise ScenarioError(f"{flag}: {here} is {_noun(spot)}, it has no {shown(part)} inside")
        path = (*path, key)
        if last:
            spot[key] = value
        elif isinstance(spot, dict) and spot.get(key) is None:
            spot[key] = {}
        spot = spot[key]
    return path
