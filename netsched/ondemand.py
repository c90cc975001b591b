"""Views of which a part is made when somebody looks at it, or that lack what changes with time.

A policy looks at few of the columns of a trace's hundred thousand flows, and a view is made at each decision.
What a column is made of is taken down with the view, so that it is the same whenever it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, TypeVar

import numpy as np

from netsched.model import CircuitView, CoflowView, FlowView, JobView, View

Column = np.ndarray[Any, Any]
Table = TypeVar("Table", FlowView, CoflowView, JobView)
Part = TypeVar("Part", FlowView, CoflowView, JobView, View)


class _OnDemand:
    def __getattr__(self, name: str) -> Any:
        makers: Mapping[str, Callable[[], Any]] = self.__dict__.get("_makers", {})
        if name not in makers:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        column = makers[name]()
        self.__dict__[name] = frozen(column) if isinstance(column, np.ndarray) else column
        return column


class FlowsOnDemand(_OnDemand, FlowView):
    """A `FlowView` that is made column by column."""


class CoflowsOnDemand(_OnDemand, CoflowView):
    """A `CoflowView` that is made column by column."""


class JobsOnDemand(_OnDemand, JobView):
    """A `JobView` that is made column by column."""


class CircuitsOnDemand(_OnDemand, CircuitView):
    """A `CircuitView` whose tables are made as they are asked for."""


class ChangesWithTime(Exception):  # noqa: N818 - it is an answer, not an error
    """A policy has looked at what only the moment of its decision will tell."""


def unknown_yet() -> Column:
    """The maker of a column that changes with time, in a view that is shown ahead of time."""
    raise ChangesWithTime


class ViewAhead(View):
    """A view without a moment."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("now", "capacity", "events"):
            raise ChangesWithTime
        return super().__getattribute__(name)


def on_demand(
    kind: type[Table], ready: Mapping[str, Column], makers: Mapping[str, Callable[[], Column]]
) -> Table:
    """A table with the columns that are `ready`, and the others as they are asked for. All are read-only."""
    table = kind.__new__(kind)
    table.__dict__.update({name: frozen(column) for name, column in ready.items()}, _makers=makers)
    return table


def instead(part: Part, **others: Any) -> Part:
    """`dataclasses.replace` that makes nothing of what nobody has looked at."""
    other = copy(part)
    other.__dict__.update(others)
    return other


def frozen(column: Column) -> Column:
    column.setflags(write=False)
    return column
