"""What is wrong with a configuration, a line for each mistake: each of them may cost somebody a restart."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

_DECIDES = frozenset({"queues", "classes", "ladder"})
"""Sections that decide what is right in others."""


def lines(
    content: dict[Any, Any],
    error: ValidationError,
    check: Callable[[dict[Any, Any]], object],
    keys: Sequence[str],
) -> list[str]:
    """All mistakes of a file, also those that only show once others are out of the way.

    What does not fit together is found last, and only where each part is right by itself. So unknown keys and
    sections with a mistake are left out, and the rest is checked again, as long as that is no guess.

    error  what `check` has raised of `content`
    keys   all that are known, to name the nearest
    """
    found: list[str] = []
    rest, dropped = copy.deepcopy(content), set[Any]()
    while True:
        new = [item for item in error.errors() if not item["loc"] or item["loc"][0] not in dropped]
        found += [line for item in new for line in _lines(item, keys) if line not in found]
        for item in new:
            if item["type"] == "extra_forbidden":
                _drop(rest, item["loc"])
            elif item["loc"]:
                dropped.add(item["loc"][0])
        if not any(item["loc"] for item in new) or dropped & _DECIDES:
            return found
        rest = {"version": 1} | {key: value for key, value in rest.items() if key not in dropped}
        if "interfaces" in dropped:
            rest.pop("mode", None)  # which would ask for them
        try:
            check(rest)
        except ValidationError as more:
            error = more
        else:
            return found


def _drop(content: Any, where: Sequence[Any]) -> None:
    for part in where[:-1]:
        content = content[part]
    del content[where[-1]]


def _lines(item: Any, keys: Sequence[str]) -> list[str]:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"]).lstrip(".")
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(item["loc"][-1]), keys, 1)
        return [f"{where}: unknown key{f', did you mean {near[0]}?' if near else ''}"]
    if item["type"] == "missing":
        return [f"{where}: missing"]
    text = str(item["msg"]).removeprefix("Value error, ")
    if not where:
        return text.splitlines()
    if item["type"] == "value_error":
        return [f"{where}: {text}"]
    if item["type"] == "string_pattern_mismatch":
        text = f"{text}, such as {_LIKE[item['loc'][-1]]}" if item["loc"][-1] in _LIKE else text
    return [f"{where} = {repr(item['input'])[:60]}: {text[0].lower()}{text[1:]}"]


_LIKE = {"path": "train/job1, below the mount", "name": "eth0", "host": "node-17"}
