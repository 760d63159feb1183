"""The models are those of the papers: sizes, heads, features, starting weights; and those of timm."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedray.common.errors import UserError
from fedray.models import MODELS, make_model_spec
from fedray.models.base import count_parameters
from fedray.models.network import Network
from fedray.models.parts import find_head
from fedray.models.zoo.vit import LocalitySelfAttention, ShiftedPatches
from tests import small
from tests.conftest import Call, Hide, each


@each(
    ({"name": "lenet"}, (3, 32, 32), 100, 815_332),
    ({"name": "mcmahan_cnn"}, (3, 28, 28), 10, 1_664_970),
    ({"name": "resnet18"}, (3, 32, 32), 100, 11_227_812),
    ({"name": "resnet18", "stem": "cifar", "norm": "batch"}, (3, 32, 32), 10, 11_173_962),
    ({"name": "resnet18", "stem": "cifar", "norm": "batch", "projection": 512}, (3, 32, 32), 100, 11_431_488 + 51_300),
    ({"name": "sl_vit"}, (3, 28, 28), 9, 6_132_432),
    # torchvision's ResNet-50 (25,557,032) with a 3x3 stem (-9,408 + 1,728) and another head (-2,049,000 + 20,490)
    ({"name": "resnet50", "stem": "cifar", "norm": "batch"}, (3, 32, 32), 10, 23_520_842),
    # torchvision's EfficientNet-B0 without its head, 84 features of 1280, 8 classes
    ({"name": "efficientnet_b0", "projection": 84}, (3, 200, 200), 8, 5_288_548 - 1_281_000 + 1281 * 84 + 85 * 8),
)
def test_published_sizes(options: dict[str, Any], shape: tuple[int, ...], classes: int, count: int) -> None:
    assert count_parameters(make_model_spec(options), shape, classes) == (count, count)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "timm"])
def test_the_size_in_the_list_of_models(name: str) -> None:
    """The output of `fedray list models` matches the built models, and names are unique."""
    shape, classes, count = MODELS[name].published
    assert count_parameters(make_model_spec(name), shape, classes) == (count, count)


def test_a_model_of_ones_own_lists_its_options_and_size(call: Call) -> None:
    """A linear map from 3 x 32 x 32 numbers to 5 and one from 5 to 10: 15,365 and 60 parameters."""
    out = call("list", "models", f"{__name__}:Own").done
    assert "options:\n  width = 5\n  init = None" in out
    assert "\ntrained 15,425 of 15,425 parameters, for 3x32x32 and 10 classes; " in out


class Own(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width))
        self.out = nn.Linear(width, num_classes)


FEATURES = {
    "mlp": 200, "lenet": 192, "mcmahan_cnn": 512, "strided_cnn": 64, "simple_cnn": 84, "emnist_cnn": 128,
    "vgg11": 512, "resnet18": 512, "resnet50": 2048, "efficientnet_b0": 1280, "sl_vit": 192, "char_lstm": 256,
    "text_cnn": 300,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in MODELS if name != "timm"])
def test_head_body_features_and_taps(name: str) -> None:
    """The head turns features of the known size into the logits; everything else is body; taps exist and are used."""
    spec = make_model_spec(name)
    size = {"efficientnet_b0": 64, "emnist_cnn": 12, "mlp": 8}.get(name, 32)
    x = torch.randint(0, 20, (3, 80)) if name in ("char_lstm", "text_cnn") else torch.randn(3, 2, size, size)
    network = Network(spec.build(tuple(x.shape[1:]), 20), taps=spec.taps)
    network.train(False)
    with torch.no_grad():
        output = network(x)
        assert (output.logits.shape, output.features.shape) == ((3, 20), (3, FEATURES[name]))
        torch.testing.assert_close(network.head(output.features), output.logits)
    heads, norm = network.layout.heads, 2 * 192 if name == "sl_vit" else 0
    assert network.layout.part("head").sum() == norm + FEATURES[name] * 20 + 20
    assert 0 < len(heads) < len(network.layout.names)
    assert (len(output.taps), spec.takes_tokens) == (len(spec.taps), name in ("char_lstm", "text_cnn"))


def test_vgg_starts_as_published() -> None:
    """N(0, 2/(9 · out)): the standard deviation of 512 output channels is sqrt(2/4608) = 0.0208, biases are 0."""
    convolutions = [m for m in make_model_spec("vgg11").build((3, 32, 32), 10).modules() if isinstance(m, nn.Conv2d)]
    for m in convolutions:
        assert float(m.weight.detach().std()) == pytest.approx(math.sqrt(2 / (9 * m.out_channels)), rel=0.08)
        assert not m.bias.any()
    assert len(convolutions) == 8


def test_shifted_patches_and_locality_self_attention() -> None:
    """A token holds its patch of the image, then of the image moved right, left, down and up by one pixel.

    4x4 image 1..16, patches of 2: the first token starts (1, 2, 5, 6); moved right its first column is the padding:
    (0, 1, 0, 5); left (2, 3, 6, 7); down (0, 0, 1, 2); up (5, 6, 9, 10)."""
    tokens = ShiftedPatches(1, 2, 8)
    tokens.project = nn.Sequential()
    found = tokens(torch.arange(1.0, 17).view(1, 1, 4, 4))
    assert found.shape == (1, 4, 20)
    assert found[0, 0].tolist() == [1, 2, 5, 6, 0, 1, 0, 5, 2, 3, 6, 7, 0, 0, 1, 2, 5, 6, 9, 10]
    # Against softmax(exp(temperature) q·k with the diagonal at -inf) v, written out; temperature starts at log 8⁻¹.
    torch.manual_seed(0)
    layer = LocalitySelfAttention(6, 2, 64)
    assert layer.temperature.item() == pytest.approx(math.log(1 / 8))
    x = torch.randn(3, 5, 6)
    q, k, v = (part.view(3, 5, 2, 64).transpose(1, 2) for part in layer.qkv(layer.norm(x)).chunk(3, dim=-1))
    scores = layer.temperature.exp() * q @ k.transpose(-1, -2)
    scores = scores.masked_fill(torch.eye(5, dtype=torch.bool), -math.inf)
    torch.testing.assert_close(layer(x), layer.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(3, 5, 128)))


def test_text_cnn_takes_each_filters_maximum_over_time() -> None:
    """Kim's equations 2 to 4 with loops: c_i = ReLU(w · x_{i:i+h} + b), its maximum over i, then the head.

    Padding is zero and gets no gradient."""
    spec = make_model_spec({"name": "text_cnn", "vocabulary": 9, "embedding": 2, "widths": [1, 3], "filters": 2})
    module = spec.build((4,), 3).eval()
    state, tokens = module.state_dict(), torch.tensor([[5, 8, 0, 0]])
    x = state["embed.weight"][tokens[0]]
    assert torch.equal(x[2], torch.zeros(2))
    pooled = []
    for j, width in enumerate((1, 3)):
        for w, b in zip(state[f"convolutions.{j}.weight"], state[f"convolutions.{j}.bias"], strict=True):
            values = [(w * x[i : i + width].T).sum() + b for i in range(4 - width + 1)]
            pooled.append(max(0.0, max(value.item() for value in values)))
    torch.testing.assert_close(module(tokens)[0], state["output.weight"] @ torch.tensor(pooled) + state["output.bias"])
    module(tokens).sum().backward()
    assert module.embed.weight.grad is not None  # type: ignore[union-attr]
    assert not module.embed.weight.grad[0].any()  # type: ignore[union-attr,index]


@each(
    ({"name": "lenet"}, (64,), "lenet takes images"),
    ({"name": "sl_vit"}, (3, 30, 30), "sl_vit.* 30x30"),
    ({"name": "char_lstm"}, (1, 28, 28), "char_lstm.* token"),
    ({"name": "text_cnn"}, (4,), "text_cnn.* at least 5 token ids"),
    ({"name": "timm", "architecture": "resnet1888"}, (3, 32, 32), "architecture: unknown name 'resnet1888'"),
    (
        {"name": "timm", "architecture": "xcit_nano_12_p16_224"},
        (3, 30, 30),
        "architecture: xcit_nano_12_p16_224 cannot be built for images 3x30x30",
    ),
    ({"name": "timm", "architecture": "test_resnet"}, (64,), "name: timm takes images"),
    ({"name": "vit_tiny"}, (3, 32, 32), "name: unknown name 'vit_tiny'; .*: {name: timm, architecture: NAME}$"),
)
def test_models_refuse_other_data_and_architectures(options: dict[str, Any], shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(UserError, match=rf"\Amodel.*{said}.*\Z"):
        make_model_spec(options).build(shape, 10)


def test_weights_from_a_file_with_another_head(tmp_path: Path) -> None:
    """ImageNet weights have 1000 classes: the body is taken, the head stays as initialised; the same head is taken."""
    spec = make_model_spec({"name": "efficientnet_b0", "init": str(tmp_path / "w.pt")})
    pretrained, own, other = (spec.build((3, 64, 64), classes) for classes in (1000, 8, 8))
    torch.save(pretrained.state_dict(), tmp_path / "w.pt")
    fresh = own.state_dict()["classifier.1.weight"].clone()
    spec.load_init(own)
    state = own.state_dict()
    assert torch.equal(state["classifier.1.weight"], fresh)
    assert torch.equal(state["features.0.0.weight"], pretrained.state_dict()["features.0.0.weight"])
    torch.save(own.state_dict(), tmp_path / "w.pt")
    spec.load_init(other)
    assert torch.equal(other.state_dict()["classifier.1.weight"], fresh)
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"^model\.init: .*w\.pt does not fit"):
        spec.load_init(own)
    (tmp_path / "w.pt").unlink()
    with pytest.raises(UserError, match=r"^model\.init: .*w\.pt does not exist"):
        spec.load_init(own)


def test_sl_vit_takes_images_resized_to_32() -> None:
    """As FedSOL prints it (D-36): 28 pixels become 32, whose network has 6,176,275 parameters for 10 classes. Of 0, 255
    the four pixels at -1/4, 1/4, 3/4, 5/4 are 0, 63.75, 191.25, 255, rounded."""
    images = {"name": "synthetic", "shape": [3, 28, 28], "train_samples": 40, "test_samples": 10}
    resized = small.problem(clients=(2, 1), data=images, model={"name": "sl_vit", "resize": 32})
    as_it_is = small.problem(clients=(2, 1), data=images, model={"name": "sl_vit"})
    assert (resized.data.input_shape, resized.build_network("cpu").theta.numel()) == ((3, 32, 32), 6_176_275)
    assert as_it_is.data.input_shape == (3, 28, 28)
    two = np.tile(np.array([0, 255], np.uint8), (40, 3, 2, 1))
    assert replace(as_it_is.data, x_train=two, x_test=two[:10]).resize(4).x_test[0, 0, 0].tolist() == [0, 64, 191, 255]
    assert "resize" not in as_it_is.config.make_identity("")["model"]


@pytest.mark.parametrize("architecture", ["test_resnet", "test_vit"])
def test_built_for_the_data(architecture: str) -> None:
    """One channel of 32 x 32 pixels and 7 classes: the head has 7 outputs, and a forward pass gives 7 scores."""
    spec = make_model_spec({"name": "timm", "architecture": architecture, "resize": 32})
    module = spec.build((1, 32, 32), 7)
    assert (spec.side, find_head(module)[1].out_features) == (32, 7)
    assert module.eval()(torch.zeros(2, 1, 32, 32)).shape == (2, 7)


def test_timm_has_the_papers_size_and_may_be_missing(hide_package: Hide) -> None:
    """ViT-Ti/16 (DeiT-Ti) has 5,717,416 parameters for 1,000 classes."""
    spec = make_model_spec({"name": "timm", "architecture": "vit_tiny_patch16_224"})
    assert count_parameters(spec, (3, 224, 224), 1000) == (5_717_416, 5_717_416)
    hide_package("timm")
    with pytest.raises(UserError, match=r"model: timm is not installed; pip install 'fedray\[timm\]' adds it"):
        make_model_spec({"name": "timm", "architecture": "test_resnet"}).build((3, 32, 32), 10)
