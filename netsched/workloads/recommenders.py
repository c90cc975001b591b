"""DLRM, the recommendation model whose embedding tables dwarf everything else that it has.

Its dense layers are what data parallelism exchanges in practice; the tables are kept in parts on different
hosts. The tensor table here has both, tables first: a job that exchanges all of it moves the tables whole.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from netsched.workloads.tensors import Tensor, linear

KAGGLE: Final = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Distinct values of the 26 categories of the Criteo Kaggle data set: rows of the tables."""

TERABYTE: Final = (
    *(39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10),
    *(2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36),
)
"""The same of the Criteo terabyte logs, with MLPerf's limit of 40 million rows (indices modulo that)."""


def dlrm(
    rows: tuple[int, ...], width: int, bottom: tuple[int, ...], top: tuple[int, ...]
) -> tuple[Tensor, ...]:
    """Naumov et al., "Deep Learning Recommendation Model" (2019), section 2: tables, bottom MLP, top MLP.

    `bottom` and `top` are layer widths without their first; the bottom reads 13 numbers, the top the
    bottom's output and the dot products of all pairs of the vectors (tables and bottom). Looking a row up
    costs nothing here, and the dot products' arithmetic is with the top's first weight.
    """
    table = [Tensor(f"emb.{number}", (count, width), 0.0) for number, count in enumerate(rows)]
    for number, (inputs, outputs) in enumerate(pairwise((13, *bottom))):
        table.extend(linear(f"bot.{number}", inputs, outputs))
    pairs = (len(rows) + 1) * len(rows) // 2
    for number, (inputs, outputs) in enumerate(pairwise((width + pairs, *top))):
        table.extend(linear(f"top.{number}", inputs, outputs, extra=0.0 if number else 2.0 * width * pairs))
    return tuple(table)


def dlrm_kaggle(_: int = 0) -> tuple[Tensor, ...]:
    """The paper's own experiment (section 5): vectors of 16, bottom 512-256-64-16, top 512-256-1."""
    return dlrm(KAGGLE, 16, (512, 256, 64, 16), (512, 256, 1))


def dlrm_mlperf(_: int = 0) -> tuple[Tensor, ...]:
    """MLPerf's training benchmark of 2020: vectors of 128, bottom 512-256-128, top 1024-1024-512-256-1."""
    return dlrm(TERABYTE, 128, (512, 256, 128), (1024, 1024, 512, 256, 1))
