"""Models of timm: built for the data, with weights of other classes, refused in one line."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import fedray
from fedray.common.errors import UserError
from fedray.models import make_model_spec
from fedray.models.base import count_parameters
from fedray.models.parts import find_head
from tests.conftest import Hide
from tests.small import sections

TINY = {"name": "timm", "architecture": "test_resnet"}


@pytest.mark.parametrize("architecture", ["test_resnet", "test_vit", "test_efficientnet"])
def test_built_for_the_data(architecture: str) -> None:
    """One channel of 32 x 32 pixels and 7 classes: the head has 7 outputs, and a forward pass gives 7 scores."""
    module = make_model_spec({"name": "timm", "architecture": architecture}).build((1, 32, 32), 7)
    assert find_head(module)[1].out_features == 7
    assert module.eval()(torch.zeros(2, 1, 32, 32)).shape == (2, 7)


def test_parameters_are_those_of_the_paper() -> None:
    """ViT-Ti/16 (DeiT-Ti) has 5,717,416 parameters for 1,000 classes."""
    spec = make_model_spec({"name": "timm", "architecture": "vit_tiny_patch16_224"})
    assert count_parameters(spec, (3, 224, 224), 1000) == (5_717_416, 5_717_416)


def test_weights_for_other_classes(tmp_path: Path) -> None:
    """The file has 9 classes, the data 4: the head stays as initialised, everything else is the file's."""
    pretrained = make_model_spec(TINY).build((3, 32, 32), 9).state_dict()
    save_file(pretrained, tmp_path / "weights.safetensors")
    spec = make_model_spec(TINY | {"init": str(tmp_path / "weights.safetensors")})
    module = spec.build((3, 32, 32), 4)
    head = module.state_dict()["fc.weight"].clone()
    spec.load_init(module)
    found = module.state_dict()
    assert torch.equal(found["fc.weight"], head)
    assert all(torch.equal(found[name], tensor) for name, tensor in pretrained.items() if not name.startswith("fc."))


def test_a_run_trains_and_repeats() -> None:
    """Two runs give the same theta, which is not the initial one: the run with a tiny rate stays at that."""
    first, second, still = (_run(lr) for lr in (0.1, 0.1, 1e-12))
    assert torch.equal(first, second)
    assert not torch.allclose(first, still)


def _run(lr: float) -> torch.Tensor:
    training = {"rounds": 1, "local_epochs": 1, "batch_size": 50, "lr": lr}
    return fedray.simulate(sections(model=TINY | {"resize": 32}, training=training)).theta


@pytest.mark.parametrize(
    ("architecture", "shape", "message"),
    [
        ("resnet1888", (3, 32, 32), "model.architecture: unknown name 'resnet1888'"),
        (
            "xcit_nano_12_p16_224",
            (3, 30, 30),
            "model.architecture: xcit_nano_12_p16_224 cannot be built for images 3x30x30",
        ),
        ("test_resnet", (64,), "model.name: timm takes images"),
    ],
)
def test_refused_in_one_line(architecture: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_model_spec({"name": "timm", "architecture": architecture}).build(shape, 10)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["vit_tiny", "vit_small"])
def test_names_of_earlier_versions_lead_to_timm(name: str) -> None:
    with pytest.raises(
        UserError, match=rf"^model\.name: unknown name '{name}'; .*: {{name: timm, architecture: NAME}}$"
    ):
        make_model_spec(name)


def test_without_the_package(hide_package: Hide) -> None:
    hide_package("timm")
    with pytest.raises(UserError, match=r"model: timm is not installed; pip install 'fedray\[timm\]' adds it"):
        make_model_spec(TINY).build((3, 32, 32), 10)
