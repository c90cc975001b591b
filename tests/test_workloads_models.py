"""The generated tensor tables against published totals."""

from __future__ import annotations

import pytest

from netsched.errors import ScenarioError
from netsched.workloads.models import MODELS, tensors_of


@pytest.mark.parametrize(
    ("model", "tensors", "parameters"),
    [
        ("resnet50", 161, 25_557_032),  # torchvision's num_params
        ("vgg16", 32, 138_357_544),  # torchvision's num_params
        ("bert-base", 199, 109_482_240),  # bert-base-uncased with pooler, Hugging Face
        ("gpt2-small", 148, 124_439_808),  # gpt2, Hugging Face
    ],
)
def test_number_of_tensors_and_parameters(model, tensors, parameters):
    table = tensors_of(model)
    assert len(table) == tensors
    assert sum(t.parameters for t in table) == parameters
    assert len({t.name for t in table}) == tensors


@pytest.mark.parametrize(
    ("model", "published", "tolerance"),
    [
        ("resnet50", 2 * 4.09e9, 0.001),  # torchvision: 4.09 G multiply-adds
        ("vgg16", 2 * 15.47e9, 0.001),  # torchvision: 15.47 G multiply-adds
        ("bert-base", 22.5e9, 0.01),  # Jiao et al., TinyBERT (EMNLP Findings 2020), table 1: 22.5 B
    ],
)
def test_arithmetic_of_the_matrices(model, published, tolerance):
    products = sum(t.flops for t in tensors_of(model) if len(t.shape) > 1)
    assert products == pytest.approx(published, rel=tolerance)


def test_gpt2_arithmetic_is_that_of_the_public_sizing_table():
    """nanoGPT's transformer sizing notebook: 291,648,307,200 FLOP forward for 1,024 tokens, products only.

    Ours adds one operation per activation for biases and normalisations: 25 norms of 2 vectors, the four
    biases of each layer (2,304 + 768 + 3,072 + 768 wide) and the position embedding.
    """
    vectors = 1024 * (25 * 2 * 768 + 12 * (2304 + 768 + 3072 + 768) + 768)
    assert sum(t.flops for t in tensors_of("gpt2-small")) == 291_648_307_200 + vectors


def test_forward_order_begins_with_the_input_and_ends_with_the_output():
    ends = {model: (tensors_of(model)[0].name, tensors_of(model)[-1].name) for model in MODELS}
    assert ends == {
        "resnet50": ("conv1.weight", "fc.bias"),
        "vgg16": ("conv1.weight", "fc3.bias"),
        "bert-base": ("embeddings.word", "pooler.bias"),
        "gpt2-small": ("wte", "ln_f.bias"),
    }


def test_known_tensors():
    resnet = {t.name: t for t in tensors_of("resnet50")}
    assert resnet["layer4.0.conv2.weight"].shape == (512, 512, 3, 3)
    assert resnet["layer4.0.conv2.weight"].flops == 2 * 512 * 512 * 9 * 7 * 7
    assert resnet["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    vgg = {t.name: t for t in tensors_of("vgg16")}
    assert vgg["fc1.weight"].parameters == 102_760_448  # three quarters of the model in one tensor
    assert vgg["conv1.bias"].flops == 64 * 224 * 224


def test_a_sequence_is_for_transformers_and_no_longer_than_their_positions():
    short, long = (sum(t.flops for t in tensors_of("bert-base", s)) for s in (128, 256))
    assert 2 * short < long < 2.2 * short  # linear in the projections, quadratic in attention
    for model, sequence in (("bert-base", 513), ("gpt2-small", 1025), ("resnet50", 1)):
        with pytest.raises(ScenarioError, match=r"^sequence: "):
            tensors_of(model, sequence)
