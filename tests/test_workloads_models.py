"""The generated tensor tables against published totals."""

from __future__ import annotations

import pytest

from netsched.errors import ScenarioError
from netsched.workloads.models import MODELS, blocks_of, tensors_of


@pytest.mark.parametrize(
    ("model", "tensors", "parameters"),
    [
        ("resnet50", 161, 25_557_032),  # torchvision's num_params
        ("vgg16", 32, 138_357_544),  # torchvision's num_params
        ("bert-base", 199, 109_482_240),  # bert-base-uncased with pooler, Hugging Face
        ("gpt2-small", 148, 124_439_808),  # gpt2, Hugging Face
        ("alexnet", 16, 61_100_840),  # torchvision's num_params
        ("vgg19", 38, 143_667_240),  # torchvision's num_params
        ("inception-v3-aux", 292, 27_161_264),  # torchvision's num_params, auxiliary classifier and all
        (
            "inception-v3",
            284,
            27_161_264 - 3_326_696,
        ),  # less its 128 x 768 + 768 x 128 x 25 + 768 x 1000 + ...
        ("bert-large", 391, 335_141_888),  # bert-large-uncased with pooler, Hugging Face
        ("llama2-7b", 291, 6_738_415_616),  # meta-llama/Llama-2-7b-hf, Hugging Face
        ("llama2-70b", 723, 68_976_648_192),  # meta-llama/Llama-2-70b-hf, Hugging Face
        ("mixtral-8x7b", 995, 46_702_792_704),  # mistralai/Mixtral-8x7B-v0.1, Hugging Face
    ],
)
def test_number_of_tensors_and_parameters(model, tensors, parameters):
    table = tensors_of(model)
    assert len(table) == tensors
    assert sum(t.parameters for t in table) == parameters
    assert len({t.name for t in table}) == tensors


@pytest.mark.parametrize(
    ("model", "millions"),
    [
        # Brown et al. (2020), table D.1, column "Params (M)"
        ("gpt3-1.3b", 1_320),
        ("gpt3-2.7b", 2_650),
        ("gpt3-6.7b", 6_660),
        ("gpt3-13b", 12_850),
        ("gpt3-175b", 174_600),
    ],
)
def test_gpt3_has_the_published_millions_of_parameters(model, millions):
    """The paper gives four digits, the last one at times rounded to ten millions: within 5 million."""
    total = sum(t.parameters for t in tensors_of(model)) / 1e6
    assert total == pytest.approx(millions, abs=5)


def test_dlrm_is_its_tables_and_two_small_networks():
    """540 million parameters: Naumov et al. (2019), section 5. MLPerf: 187,767,399 rows (HugeCTR)."""
    kaggle, mlperf = tensors_of("dlrm-kaggle"), tensors_of("dlrm-mlperf")
    assert sum(t.parameters for t in kaggle) == pytest.approx(540e6, rel=0.002)
    assert sum(t.parameters for t in kaggle if t.name.startswith("emb")) == 33_762_577 * 16
    assert sum(t.parameters for t in mlperf if t.name.startswith("emb")) == 187_767_399 * 128
    shapes = [t.shape for t in mlperf if t.name.endswith("weight")]
    # --arch-mlp-bot=13-512-256-128 and --arch-mlp-top=479-1024-1024-512-256-1 of the reference's run script
    assert shapes[:3] == [(512, 13), (256, 512), (128, 256)]
    assert shapes[3:] == [(1024, 479), (1024, 1024), (512, 1024), (256, 512), (1, 256)]


def test_a_mixture_computes_with_the_parameters_that_a_token_visits():
    """Jiang et al. (2024), section 1: a token has access to 47 B parameters but uses 13 B of them (12.9 B).

    2 FLOP per used matrix parameter and token, and attention's two products; the embedding is looked up.
    """
    tokens, table = 4096, tensors_of("mixtral-8x7b")
    products = sum(t.flops for t in table if len(t.shape) > 1) - 32 * 4 * tokens**2 * 4096
    used = products / (2 * tokens) + 32000 * 4096
    assert used == pytest.approx(12.9e9, rel=0.005)
    experts = [t for t in table if ".experts." in t.name]
    assert len(experts) == 32 * 8 * 3


def test_blocks_hold_the_same_tensors_as_the_table():
    for model in ("bert-base", "gpt3-1.3b", "llama2-7b", "mixtral-8x7b"):
        blocks, tokens = blocks_of(model)
        assert blocks.tensors == tensors_of(model, tokens)
    assert (len(blocks.layers), blocks.width, blocks.experts, blocks.top) == (32, 4096, 8, 2)
    with pytest.raises(ScenarioError, match=r"^model: vgg19 is no transformer: use one of bert-base, "):
        blocks_of("vgg19")
    with pytest.raises(ScenarioError, match=r"^sequence: dlrm-kaggle reads clicks"):
        tensors_of("dlrm-kaggle", 8)


@pytest.mark.parametrize(
    ("model", "published", "tolerance"),
    [
        ("resnet50", 2 * 4.09e9, 0.001),  # torchvision: 4.09 G multiply-adds
        ("vgg16", 2 * 15.47e9, 0.001),  # torchvision: 15.47 G multiply-adds
        ("alexnet", 2 * 0.714e9, 0.001),  # torchvision: 0.71 G multiply-adds
        ("vgg19", 2 * 19.63e9, 0.001),  # torchvision: 19.63 G multiply-adds
        ("inception-v3", 2 * 5.713e9, 0.001),  # torchvision: 5.71 G multiply-adds
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
    known = {
        "resnet50": ("conv1.weight", "fc.bias"),
        "vgg16": ("conv1.weight", "fc3.bias"),
        "bert-base": ("embeddings.word", "pooler.bias"),
        "gpt2-small": ("wte", "ln_f.bias"),
        "inception-v3-aux": ("stem.0.conv.weight", "fc.bias"),
        "llama2-7b": ("embedding", "output"),
        "dlrm-kaggle": ("emb.0", "top.2.bias"),
    }
    assert {model: ends[model] for model in known} == known


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
