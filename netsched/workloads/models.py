"""The tensors of well-known models, in forward order, computed from each architecture's own arithmetic.

Scheduling of training traffic is about which tensor is needed when, so their real order, sizes and compute
times matter; a generated table can be checked against the published totals, a pasted list cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from netsched.errors import ScenarioError
from netsched.workloads.recommenders import dlrm_kaggle, dlrm_mlperf
from netsched.workloads.tensors import Tensor, conv, linear, norm
from netsched.workloads.transformers import Blocks, bert, gpt, llama2, mixtral
from netsched.workloads.vision import alexnet, inception_v3, vgg


@dataclass(frozen=True)
class Architecture:
    """`tensors(sequence)` is the table; `sequence` and `longest` are its default and greatest token count.

    Both are None for a model without a sequence (images of 224 x 224 pixels, 299 for Inception; clicks),
    which ignores the argument. `blocks(sequence)` is a transformer in its layers, None for other models.
    """

    tensors: Callable[[int], tuple[Tensor, ...]]
    sequence: int | None = None
    longest: int | None = None
    blocks: Callable[[int], Blocks] | None = None


def resnet50(_: int = 0) -> tuple[Tensor, ...]:
    """He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016), table 1, 50 layers.

    The stride of a downsampling block is in its 3 x 3 convolution ("v1.5"), as in torchvision and NVIDIA's
    examples; in the paper it is in the first 1 x 1 one, which is 6 % less arithmetic.
    """
    table = [conv("conv1", 3, 64, 7, 112), *norm("bn1", 64, 64 * 112 * 112)]
    inputs, side = 64, 56
    for group, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            name = f"layer{group}.{block}"
            out_side = side // 2 if block == 0 and group > 1 else side
            outputs = 4 * width
            convolutions = [
                ("conv1", "bn1", inputs, width, 1, side),
                ("conv2", "bn2", width, width, 3, out_side),
                ("conv3", "bn3", width, outputs, 1, out_side),
            ]
            if block == 0:
                convolutions.append(("downsample.0", "downsample.1", inputs, outputs, 1, out_side))
            for conv_name, norm_name, n_in, n_out, kernel, s in convolutions:
                table.append(conv(f"{name}.{conv_name}", n_in, n_out, kernel, s))
                table.extend(norm(f"{name}.{norm_name}", n_out, n_out * s * s))
            inputs, side = outputs, out_side
    return (*table, *linear("fc", 2048, 1000))


def _of(make: Callable[[int], Blocks], sequence: int, longest: int) -> Architecture:
    return Architecture(lambda tokens: make(tokens).tensors, sequence, longest, make)


def _gpt3(layers: int, width: int) -> Architecture:
    """One size of Brown et al. (2020), table 2.1: 2,048 positions. 13B is 5,120 wide: 40 heads of 128.

    The table prints 5,140 for it, which 40 heads of 128 do not make and the totals of table D.1 contradict.
    """
    return _of(lambda tokens: gpt(layers, width, 2048, tokens), sequence=2048, longest=2048)


MODELS: Final[dict[str, Architecture]] = {
    "resnet50": Architecture(resnet50),
    "vgg16": Architecture(lambda _: vgg((2, 2, 3, 3, 3))),
    "bert-base": _of(lambda tokens: bert(12, 768, tokens), sequence=128, longest=512),
    "gpt2-small": _of(lambda tokens: gpt(12, 768, 1024, tokens), sequence=1024, longest=1024),
    "alexnet": Architecture(alexnet),
    "vgg19": Architecture(lambda _: vgg((2, 2, 4, 4, 4))),
    "inception-v3": Architecture(lambda _: inception_v3(auxiliary=False)),
    "inception-v3-aux": Architecture(lambda _: inception_v3(auxiliary=True)),
    "bert-large": _of(lambda tokens: bert(24, 1024, tokens), sequence=128, longest=512),
    "gpt3-1.3b": _gpt3(24, 2048),
    "gpt3-2.7b": _gpt3(32, 2560),
    "gpt3-6.7b": _gpt3(32, 4096),
    "gpt3-13b": _gpt3(40, 5120),
    "gpt3-175b": _gpt3(96, 12288),
    "llama2-7b": _of(lambda tokens: llama2(32, 4096, 11008, 4096, tokens), sequence=4096, longest=4096),
    "llama2-70b": _of(lambda tokens: llama2(80, 8192, 28672, 1024, tokens), sequence=4096, longest=4096),
    "mixtral-8x7b": _of(mixtral, sequence=4096, longest=32768),
    "dlrm-kaggle": Architecture(dlrm_kaggle),
    "dlrm-mlperf": Architecture(dlrm_mlperf),
}


def tensors_of(model: str, sequence: int | None = None) -> tuple[Tensor, ...]:
    """The table of `model` in forward order. ScenarioError if `sequence` (tokens) does not suit it."""
    architecture = MODELS[model]
    return architecture.tensors(_tokens(model, architecture, sequence))


def blocks_of(model: str, sequence: int | None = None) -> tuple[Blocks, int]:
    """The layers of `model` and its tokens per sample. ScenarioError if it is no transformer."""
    architecture = MODELS[model]
    if architecture.blocks is None:
        known = ", ".join(name for name, each in MODELS.items() if each.blocks is not None)
        raise ScenarioError(f"model: {model} is no transformer: use one of {known}")
    tokens = _tokens(model, architecture, sequence)
    return architecture.blocks(tokens), tokens


def _tokens(model: str, architecture: Architecture, sequence: int | None) -> int:
    if architecture.sequence is None or architecture.longest is None:
        if sequence is not None:
            what = "clicks" if model.startswith("dlrm") else "images"
            raise ScenarioError(f"sequence: {model} reads {what} and has no sequence: leave the key out")
        return 0
    chosen = architecture.sequence if sequence is None else sequence
    if not 1 <= chosen <= architecture.longest:
        raise ScenarioError(f"sequence: {chosen} tokens do not fit {model}: use 1 to {architecture.longest}")
    return chosen
