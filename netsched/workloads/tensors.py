"""What a model's parameters are made of: tensors with a shape and the arithmetic that they take part in.

A multiply-add is 2 floating-point operations (FLOP). A matrix or filter carries the products of its layer;
a vector (bias, normalisation scale or shift) carries one operation per activation it touches. What has no
parameters (activations, pooling, softmax) is left out: below one per cent of these models' arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Tensor:
    """One trainable tensor. `flops`: forward FLOP per sample at this tensor's place in the forward order."""

    name: str
    shape: tuple[int, ...]
    flops: float

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)


def conv(name: str, inputs: int, outputs: int, kernel: int, side: int) -> Tensor:
    """Filters of a square 2-d convolution whose output is `side` x `side`."""
    return Tensor(
        f"{name}.weight",
        (outputs, inputs, kernel, kernel),
        2.0 * outputs * inputs * kernel * kernel * side * side,
    )


def linear(name: str, inputs: int, outputs: int, rows: int = 1, extra: float = 0.0) -> tuple[Tensor, Tensor]:
    """Weight and bias of a fully connected layer applied to `rows` rows; `extra` FLOP run just before it."""
    return (
        Tensor(f"{name}.weight", (outputs, inputs), 2.0 * rows * inputs * outputs + extra),
        vector(f"{name}.bias", outputs, rows * outputs),
    )


def vector(name: str, length: int, touched: int) -> Tensor:
    """A bias, scale or shift: one operation for each of the `touched` activations of a sample."""
    return Tensor(name, (length,), float(touched))


def norm(name: str, channels: int, touched: int) -> tuple[Tensor, Tensor]:
    """Scale and shift of a batch or layer normalisation."""
    return vector(f"{name}.weight", channels, touched), vector(f"{name}.bias", channels, touched)
