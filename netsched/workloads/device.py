"""What computes: a processor's speed and the names of the models that run on it, as scenarios give them."""

from __future__ import annotations

import re
from typing import Annotated, Final

import numpy as np
from pydantic import BeforeValidator, Field

from netsched.model import Floats
from netsched.workloads.kind import Params
from netsched.workloads.models import MODELS
from netsched.workloads.tensors import Tensor

BACKWARD_COST: Final = 2.0
"""Backward takes the gradient by the input and by the weight: two products for one of forward."""

_PREFIX: Final = {"M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_FLOP_RATE: Final = re.compile(
    r"(\d{1,15}(?:\.\d{0,15})?(?:[eE][+-]?\d{1,2})?)\s*([MGTP])?(?:FLOP/s|FLOPS)", re.ASCII
)


def flop_rate(text: object) -> float:
    """FLOP/s of a speed such as "15.7TFLOP/s". ValueError if it is not one."""
    match = _FLOP_RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a computing speed: write a number and a unit, such as 15.7TFLOP/s")
    value = float(match[1]) * _PREFIX.get(match[2] or "", 1.0)
    if not 0 < value <= 1e24:
        raise ValueError(f"{text!r} must be more than 0 and at most 1e24 FLOP/s")
    return value


def model_name(value: object) -> object:
    """`value`, which must name a model. ValueError if it does not."""
    if not isinstance(value, str) or value not in MODELS:
        raise ValueError(f"{value!r} is not a model: use one of {', '.join(MODELS)}")
    return value


class Device(Params):
    """A worker's processor: its peak speed and the share of it that training reaches."""

    flops: Annotated[float, BeforeValidator(flop_rate)]
    efficiency: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]


ModelName = Annotated[str, BeforeValidator(model_name)]


def forward_seconds(tensors: tuple[Tensor, ...], batch: int, device: Device) -> Floats:
    """Seconds of each tensor's part of one worker's forward pass."""
    flops = np.array([tensor.flops for tensor in tensors])
    return batch * flops / (device.flops * device.efficiency)
