"""The order in which a pipeline's stage computes: GPipe, 1F1B and interleaved 1F1B.

Pure lists, apart from the graph that they shape, because each is a statement of a paper and can be checked
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

Schedule = Literal["gpipe", "1f1b", "interleaved"]


@dataclass(frozen=True)
class Op:
    """A pass of one micro-batch through one of the parts of the model (`chunk`) that a stage has."""

    forward: bool
    microbatch: int
    chunk: int = 0


def gpipe(rank: int, stages: int, microbatches: int, chunks: int) -> tuple[Op, ...]:
    """Huang et al., "GPipe" (NeurIPS 2019), figure 2c: all forward passes, then all backward, last first."""
    forward = [Op(True, number) for number in range(microbatches)]
    return (*forward, *(Op(False, op.microbatch) for op in reversed(forward)))


def one_f_one_b(rank: int, stages: int, microbatches: int, chunks: int) -> tuple[Op, ...]:
    """Narayanan et al., "PipeDream" (SOSP 2019), with a flush (Megatron-LM, SC 2021, figure 4, top).

    Stage `rank` runs forward as many micro-batches as there are stages after it, then one forward and one
    backward in turn: as long as GPipe, with `stages` micro-batches in memory instead of all.
    """
    ahead = min(stages - 1 - rank, microbatches)
    return _alternate(
        [Op(True, number) for number in range(microbatches)],
        [Op(False, number) for number in range(microbatches)],
        ahead,
    )


def interleaved(rank: int, stages: int, microbatches: int, chunks: int) -> tuple[Op, ...]:
    """Narayanan et al., "Efficient Large-Scale Language Model Training" (SC 2021), section 2.2.2.

    Each stage has `chunks` parts of the model; `stages` micro-batches pass through one of them before the
    next part's turn. The idle share falls by `chunks`, the activations sent grow by it. The count of passes
    ahead is that of the authors' code: 2 (stages - rank - 1) + (chunks - 1) stages. `microbatches` is a
    multiple of `stages`.
    """

    def ops(forward: bool) -> list[Op]:
        order = range(chunks) if forward else range(chunks - 1, -1, -1)
        return [
            Op(forward, first + number, chunk)
            for first in range(0, microbatches, stages)
            for chunk in order
            for number in range(stages)
        ]

    ahead = min(2 * (stages - rank - 1) + (chunks - 1) * stages, microbatches * chunks)
    return _alternate(ops(True), ops(False), ahead)


def _alternate(forward: list[Op], backward: list[Op], ahead: int) -> tuple[Op, ...]:
    """The first `ahead` forward passes, then pairs of one forward and one backward, then what is left."""
    order = forward[:ahead]
    for one, other in zip(forward[ahead:], backward, strict=False):
        order += [one, other]
    return (*order, *backward[len(forward) - ahead :])


ORDERS: Final[dict[Schedule, Callable[[int, int, int, int], tuple[Op, ...]]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
}
