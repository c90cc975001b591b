"""The tensors of four well-known models, in forward order, computed from each architecture's own arithmetic.

Scheduling of training traffic is about which tensor is needed when, so their real order, sizes and compute
times matter; a generated table can be checked against the published totals, a pasted list cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from netsched.errors import ScenarioError
from netsched.workloads.tensors import Tensor, conv, linear, norm, vector


@dataclass(frozen=True)
class Architecture:
    """`tensors(sequence)` is the table; `sequence` and `longest` are its default and greatest token count.

    Both are None for a model of images (224 x 224 pixels), which ignores the argument.
    """

    tensors: Callable[[int], tuple[Tensor, ...]]
    sequence: int | None = None
    longest: int | None = None


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


def vgg16(_: int = 0) -> tuple[Tensor, ...]:
    """Simonyan and Zisserman, "Very Deep Convolutional Networks" (ICLR 2015), table 1, configuration D."""
    table: list[Tensor] = []
    inputs, side, number = 3, 224, 0
    for outputs, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _layer in range(depth):
            number += 1
            table.append(conv(f"conv{number}", inputs, outputs, 3, side))
            table.append(vector(f"conv{number}.bias", outputs, outputs * side * side))
            inputs = outputs
        side //= 2
    for name, n_in, n_out in (("fc1", 512 * 7 * 7, 4096), ("fc2", 4096, 4096), ("fc3", 4096, 1000)):
        table.extend(linear(name, n_in, n_out))
    return tuple(table)


def bert_base(sequence: int) -> tuple[Tensor, ...]:
    """Devlin et al., "BERT" (NAACL 2019), section 3: 12 layers of width 768; uncased, with pooler."""
    d, inner, s = 768, 3072, sequence
    table = [
        Tensor("embeddings.word", (30522, d), 0.0),
        Tensor("embeddings.position", (512, d), float(s * d)),
        Tensor("embeddings.token_type", (2, d), float(s * d)),
        *norm("embeddings.norm", d, s * d),
    ]
    for layer in range(12):
        name = f"layer{layer}"
        for projection in ("query", "key", "value"):
            table.extend(linear(f"{name}.{projection}", d, d, s))
        table.extend(linear(f"{name}.attention.output", d, d, s, extra=_attention(s, d)))
        table.extend(norm(f"{name}.attention.norm", d, s * d))
        table.extend(linear(f"{name}.intermediate", d, inner, s))
        table.extend(linear(f"{name}.output", inner, d, s))
        table.extend(norm(f"{name}.norm", d, s * d))
    # The pooler reads the first token only.
    return (*table, *linear("pooler", d, d))


def gpt2_small(sequence: int) -> tuple[Tensor, ...]:
    """Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), table 2, 12 layers.

    The output projection is the word embedding again: no tensor of its own, but its product runs after the
    last normalisation, so its arithmetic is with that one's last tensor.
    """
    d, vocabulary, s = 768, 50257, sequence
    table = [Tensor("wte", (vocabulary, d), 0.0), Tensor("wpe", (1024, d), float(s * d))]
    for layer in range(12):
        name = f"h{layer}"
        table.extend(norm(f"{name}.ln_1", d, s * d))
        table.extend(linear(f"{name}.attn.c_attn", d, 3 * d, s))
        table.extend(linear(f"{name}.attn.c_proj", d, d, s, extra=_attention(s, d)))
        table.extend(norm(f"{name}.ln_2", d, s * d))
        table.extend(linear(f"{name}.mlp.c_fc", d, 4 * d, s))
        table.extend(linear(f"{name}.mlp.c_proj", 4 * d, d, s))
    scale, shift = norm("ln_f", d, s * d)
    return (*table, scale, Tensor(shift.name, shift.shape, shift.flops + 2.0 * s * d * vocabulary))


def _attention(sequence: int, width: int) -> float:
    """FLOP of scores and of their product with the values: two (s x s x d) products, no causal saving."""
    return 2 * 2.0 * sequence * sequence * width


MODELS: Final[dict[str, Architecture]] = {
    "resnet50": Architecture(resnet50),
    "vgg16": Architecture(vgg16),
    "bert-base": Architecture(bert_base, sequence=128, longest=512),
    "gpt2-small": Architecture(gpt2_small, sequence=1024, longest=1024),
}


def tensors_of(model: str, sequence: int | None = None) -> tuple[Tensor, ...]:
    """The table of `model` in forward order. ScenarioError if `sequence` (tokens) does not suit it."""
    architecture = MODELS[model]
    if architecture.sequence is None or architecture.longest is None:
        if sequence is not None:
            raise ScenarioError(f"sequence: {model} reads images and has no sequence: leave the key out")
        return architecture.tensors(0)
    chosen = architecture.sequence if sequence is None else sequence
    if not 1 <= chosen <= architecture.longest:
        raise ScenarioError(f"sequence: {chosen} tokens do not fit {model}: use 1 to {architecture.longest}")
    return architecture.tensors(chosen)
