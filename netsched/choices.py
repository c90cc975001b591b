"""The plug-ins that a scenario names: each one exists, and its parameters are right.

A plug-in kind's registry is loaded where it is used: who only asks for the policies needs no fabrics.
"""

from __future__ import annotations

from collections.abc import Mapping

from netsched.document import KeyPath, shown
from netsched.hints import nearest
from netsched.model import Spec
from netsched.problems import Problems

Placed = tuple[Spec, KeyPath]
"""A plug-in, and where it is named."""


def fabric(problems: Problems, value: object) -> Spec | None:
    """The fabric, None with the problem added where it is wrong."""
    from netsched.fabrics import FABRICS  # noqa: PLC0415 # a plug-in kind is loaded where it is used

    spec = _kind(problems, ("fabric",), value, FABRICS, "fabric")
    if spec is not None:
        problems.validate(FABRICS[spec.name].params, spec.params, ("fabric",))
    return spec


def workloads(problems: Problems, value: object) -> tuple[Spec, ...]:
    """The workloads that run together: one entry, or a list."""
    from netsched.workloads import WORKLOADS  # noqa: PLC0415

    if isinstance(value, list) and not value:
        problems.add(("workload",), "is empty: write a mapping with a kind, or a list of them")
    entries = enumerate(value) if isinstance(value, list) else [(None, value)]
    specs = []
    for position, entry in entries:
        path: KeyPath = ("workload",) if position is None else ("workload", position)
        spec = _kind(problems, path, entry, WORKLOADS, "workload")
        if spec is not None:
            problems.validate(WORKLOADS[spec.name].params, spec.params, path)
            specs.append(spec)
    return tuple(specs)


def _kind(
    problems: Problems,
    path: KeyPath,
    value: object,
    registry: Mapping[str, object],
    noun: str,
    *,
    named_at: KeyPath | None = None,
) -> Spec | None:
    """The spec of a `{kind: name, parameter: value, ...}`, or None with the problem added.

    `named_at` is where the name was written, if not under the key `kind`.
    """
    if not isinstance(value, dict):
        what = "is empty" if value is None else f"{shown(value)} is not right"
        problems.add(path, f"{what}: write a mapping such as {{kind: {min(registry)}, ...}}")
        return None
    name = value.get("kind")
    if "kind" not in value:
        problems.add((*path, "kind"), f"is missing: name a kind of {noun} {nearest('', registry)}")
    elif not isinstance(name, str) or name not in registry:
        place = named_at or (*path, "kind")
        own = ", or --plugin FILE for one of your own" if noun == "policy" else ""
        problems.add(place, f"no {noun} is called {shown(name)}: {nearest(str(name), registry)}{own}")
    else:
        return Spec(name, {key: each for key, each in value.items() if key != "kind"})
    return None


def _listed(
    problems: Problems, key: str, value: object, kinds: Mapping[str, type], noun: str
) -> tuple[Placed, ...]:
    """The plug-ins to compare that stand under `key`, each listed once."""
    if not isinstance(value, list) or not value:
        what = "is empty" if not value else f"{shown(value)} is not right"
        problems.add((key,), f"{what}: write a list such as [{', '.join(list(kinds)[:2])}]")
        return ()
    placed: list[Placed] = []
    labels: set[str] = set()
    for position, entry in enumerate(value):
        found = _choice(problems, (key, position), entry, kinds, noun)
        if found is None:
            continue
        spec, place = found
        if spec.label in labels:
            problems.add(place, f"the {noun} {spec.label} is listed twice: list each once")
        labels.add(spec.label)
        placed.append(found)
    return tuple(placed)


def _choice(
    problems: Problems, path: KeyPath, entry: object, kinds: Mapping[str, type], noun: str
) -> Placed | None:
    """A plug-in from `name`, `{name: {parameter: value}}` or `{kind: name, parameter: value}`."""
    named_at: KeyPath = (*path, "kind")
    if isinstance(entry, str):
        entry, named_at = {"kind": entry}, path
    elif isinstance(entry, dict) and "kind" not in entry and len(entry) == 1:
        (name, params), path = *entry.items(), (*path, *entry)
        if not isinstance(params, dict | None):
            problems.add(path, f"{shown(params)} is not right: write the {noun}'s parameters as a mapping")
            return None
        entry, named_at = {**(params or {}), "kind": name}, path
    elif isinstance(entry, dict) and "kind" not in entry and len(entry) > 1:
        names = ", ".join(shown(key) for key in entry)
        problems.add(
            path,
            f"has {len(entry)} keys, {names}: write {{NAME: {{PARAMETER: VALUE}}}}, one {noun} to an entry",
        )
        return None
    spec = _kind(problems, path, entry, kinds, noun, named_at=named_at)
    if spec is None:
        return None
    problems.validate(kinds[spec.name], spec.params, path)
    return spec, path


def policies(problems: Problems, value: object, kinds: Mapping[str, type]) -> tuple[Placed, ...]:
    """The policies to compare, each with the place where it is named."""
    return _listed(problems, "policies", value, kinds, "policy")


def circuits(problems: Problems, value: object, fabric: Spec | None) -> tuple[Spec, ...]:
    """The circuit schedulers to compare: one entry, or a list."""
    from netsched.circuits import CIRCUITS  # noqa: PLC0415
    from netsched.fabrics import FABRICS, OpticalParams  # noqa: PLC0415

    if fabric is not None and not issubclass(FABRICS[fabric.name].params, OpticalParams):
        optical = [name for name, kind in FABRICS.items() if issubclass(kind.params, OpticalParams)]
        text = f"{fabric.name} has no optical switches: leave this out, or use {', '.join(optical)}"
        problems.add(("circuits",), text)
        return ()
    entries = value if isinstance(value, list) else [value] if value else value
    noun = "circuit scheduler"
    return tuple(spec for spec, _ in _listed(problems, "circuits", entries, CIRCUITS, noun))


def placements(problems: Problems, value: object) -> tuple[Spec, ...]:
    """The placements to compare: one entry, or a list."""
    from netsched.placement import PLACEMENTS  # noqa: PLC0415 # a plug-in kind is loaded where it is used

    if isinstance(value, str | dict) and value:
        one = _choice(problems, ("placement",), value, PLACEMENTS, "placement")
        return () if one is None else (one[0],)
    return tuple(spec for spec, _ in _listed(problems, "placement", value, PLACEMENTS, "placement"))
