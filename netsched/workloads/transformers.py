"""Transformers block by block: BERT, the GPT family, LLaMA-2 and a mixture of experts, from their arithmetic.

Apart from the images' models, because what cuts a transformer over many hosts (stages, tensor slices,
experts) needs its layers and their halves, not only a flat list of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from netsched.workloads.tensors import Tensor, linear, norm, vector

Table = tuple[Tensor, ...]


@dataclass(frozen=True)
class Layer:
    """One layer in its two halves, each in forward order, the second one's experts apart.

    In a dense layer `experts` is empty and `mlp` all of the second half. Else `mlp` is the router and what
    comes before it, and every token goes to `top` of the layer's experts.
    """

    attention: Table
    mlp: Table
    experts: Table = ()


@dataclass(frozen=True)
class Blocks:
    """A transformer: what comes before its layers, the layers, what comes after.

    `width` is the number of activations per token between two layers. `experts` is how many each layer has
    (0: a dense model) and `top` how many of them a token visits.
    """

    first: Table
    layers: tuple[Layer, ...]
    last: Table
    width: int
    experts: int = 0
    top: int = 0

    @property
    def tensors(self) -> Table:
        """All tensors in forward order."""
        middle = chain.from_iterable((*x.attention, *x.mlp, *x.experts) for x in self.layers)
        return (*self.first, *middle, *self.last)


def attention_flops(sequence: int, width: int) -> float:
    """FLOP of scores and of their product with the values: two (s x s x d) products, no causal saving."""
    return 2 * 2.0 * sequence * sequence * width


def bert(layers: int, d: int, sequence: int) -> Blocks:
    """Devlin et al., "BERT" (NAACL 2019), section 3; uncased (30,522 word pieces), with pooler, no heads."""
    s, inner = sequence, 4 * d
    first = (
        Tensor("embeddings.word", (30522, d), 0.0),
        Tensor("embeddings.position", (512, d), float(s * d)),
        Tensor("embeddings.token_type", (2, d), float(s * d)),
        *norm("embeddings.norm", d, s * d),
    )
    middle = []
    for layer in range(layers):
        name = f"layer{layer}"
        attention: list[Tensor] = []
        for projection in ("query", "key", "value"):
            attention.extend(linear(f"{name}.{projection}", d, d, s))
        attention.extend(linear(f"{name}.attention.output", d, d, s, extra=attention_flops(s, d)))
        attention.extend(norm(f"{name}.attention.norm", d, s * d))
        mlp = (
            *linear(f"{name}.intermediate", d, inner, s),
            *linear(f"{name}.output", inner, d, s),
            *norm(f"{name}.norm", d, s * d),
        )
        middle.append(Layer(tuple(attention), mlp))
    # The pooler reads the first token only.
    return Blocks(first, tuple(middle), linear("pooler", d, d), d)


def gpt(layers: int, d: int, positions: int, sequence: int) -> Blocks:
    """Radford et al. (2019), table 2; Brown et al., "Language Models are Few-Shot Learners" (2020), 2.1.

    Both have the 50,257 byte pairs of GPT-2. The sparse attention of every other layer of GPT-3 changes no
    parameter and is counted as dense. The output projection is the word embedding again: no tensor of its
    own, but its product runs after the last normalisation, so its arithmetic is with that one's last tensor.
    """
    s, vocabulary = sequence, 50257
    first = Tensor("wte", (vocabulary, d), 0.0), Tensor("wpe", (positions, d), float(s * d))
    middle = []
    for layer in range(layers):
        name = f"h{layer}"
        attention = (
            *norm(f"{name}.ln_1", d, s * d),
            *linear(f"{name}.attn.c_attn", d, 3 * d, s),
            *linear(f"{name}.attn.c_proj", d, d, s, extra=attention_flops(s, d)),
        )
        mlp = (
            *norm(f"{name}.ln_2", d, s * d),
            *linear(f"{name}.mlp.c_fc", d, 4 * d, s),
            *linear(f"{name}.mlp.c_proj", 4 * d, d, s),
        )
        middle.append(Layer(attention, mlp))
    scale, shift = norm("ln_f", d, s * d)
    last = scale, Tensor(shift.name, shift.shape, shift.flops + 2.0 * s * d * vocabulary)
    return Blocks(first, tuple(middle), last, d)


def llama2(layers: int, d: int, inner: int, kv: int, sequence: int) -> Blocks:
    """Touvron et al., "Llama 2" (2023), section 2.2: RMSNorm, SwiGLU, no bias, an output matrix of its own.

    `kv` is the width of keys and values: `d`, or less with grouped queries (70B: 8 groups of 128). The inner
    widths are those of the released weights.
    """
    s = sequence
    middle = tuple(
        Layer(
            _grouped_attention(f"layers.{layer}", d, kv, s),
            (
                vector(f"layers.{layer}.ffn_norm", d, s * d),
                *_swiglu(f"layers.{layer}.ffn", d, inner, float(s)),
            ),
        )
        for layer in range(layers)
    )
    return Blocks((Tensor("embedding", (32000, d), 0.0),), middle, _output(d, s), d)


def mixtral(sequence: int) -> Blocks:
    """Jiang et al., "Mixtral of Experts" (2024), table 1: 8 experts a layer, each token through 2 of them.

    An expert's arithmetic is that of an even spread: a quarter of the tokens.
    """
    d, inner, experts, top, s = 4096, 14336, 8, 2, sequence
    middle = []
    for layer in range(32):
        name = f"layers.{layer}"
        each = [_swiglu(f"{name}.experts.{e}", d, inner, s * top / experts) for e in range(experts)]
        mlp = (
            vector(f"{name}.ffn_norm", d, s * d),
            Tensor(f"{name}.gate", (experts, d), 2.0 * s * d * experts),
        )
        middle.append(Layer(_grouped_attention(name, d, 1024, s), mlp, tuple(chain.from_iterable(each))))
    first = (Tensor("embedding", (32000, d), 0.0),)
    return Blocks(first, tuple(middle), _output(d, s), d, experts, top)


def _grouped_attention(name: str, d: int, kv: int, s: int) -> Table:
    """Normalisation, then the four projections: `kv` keys and values for `d` queries, no bias."""
    return (
        vector(f"{name}.attention_norm", d, s * d),
        _matrix(f"{name}.wq", d, d, s),
        _matrix(f"{name}.wk", d, kv, s),
        _matrix(f"{name}.wv", d, kv, s),
        _matrix(f"{name}.wo", d, d, s, attention_flops(s, d)),
    )


def _swiglu(name: str, d: int, inner: int, rows: float) -> Table:
    """Gate and up (both d -> inner) and down, applied to `rows` rows (on average, for an expert)."""
    return (
        _matrix(f"{name}.w1", d, inner, rows),
        _matrix(f"{name}.w3", d, inner, rows),
        _matrix(f"{name}.w2", inner, d, rows),
    )


def _output(d: int, s: int) -> Table:
    return vector("norm", d, s * d), _matrix("output", d, 32000, s)


def _matrix(name: str, inputs: int, outputs: int, rows: float, extra: float = 0.0) -> Tensor:
    return Tensor(name, (outputs, inputs), 2.0 * rows * inputs * outputs + extra)
