"""Columns that grow by scalars and by arrays, of which the builder of workloads has two dozen.

A list of Python numbers takes ten times the memory of an array, and an array of its own for each scalar more.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from netsched.model import Floats, Ints

_Scalar = TypeVar("_Scalar", int, float)


class Column(Generic[_Scalar]):
    """A column that grows by scalars and by arrays: pending scalars become a chunk when an array comes."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = dtype
        self._chunks: list[npt.NDArray[np.generic]] = []
        self._pending: list[_Scalar] = []

    def append(self, value: _Scalar) -> None:
        self._pending.append(value)

    def extend(self, values: npt.NDArray[np.generic]) -> None:
        self._flush()
        self._chunks.append(values)

    def array(self) -> npt.NDArray[np.generic]:
        self._flush()
        if not self._chunks:
            return np.empty(0, dtype=self._dtype)
        return np.ascontiguousarray(np.concatenate(self._chunks), dtype=self._dtype)

    def _flush(self) -> None:
        if self._pending:
            self._chunks.append(np.array(self._pending, dtype=self._dtype))
            self._pending = []


class IntColumn(Column[int]):
    def __init__(self) -> None:
        super().__init__(np.int64)

    def ints(self) -> Ints:
        return self.array().astype(np.int64, copy=False)


class FloatColumn(Column[float]):
    def __init__(self) -> None:
        super().__init__(np.float64)

    def floats(self) -> Floats:
        return self.array().astype(np.float64, copy=False)
