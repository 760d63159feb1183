"""The models by name. Each builds an `nn.Module` for an input shape and a number of classes.

The head is the last linear layer; everything before it is the body.
"""

import inspect
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import ConfigDict, Field
from torch import nn

from fedray.component import Component, choose, load_class
from fedray.errors import UserError


class ModelSpec(Component):
    """Base of the models: options, and `build`. `image_size` is the only size a model takes, None for any."""

    image_size: ClassVar[int | None] = None
    init: str | None = Field(None, description="path of a state_dict (torch.save or .safetensors) to start from")

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the submodules whose input is a tap (inner features, before the activation), first to last."""
        return ()

    @property
    def has_body(self) -> bool:
        """Whether parameters come before the head, so that there are features to learn."""
        return True

    @property
    def takes_tokens(self) -> bool:
        """Whether inputs are integer tokens instead of real numbers."""
        return False

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A freshly initialised module (torch's global generator)."""
        raise NotImplementedError

    def load_init(self, module: nn.Module) -> None:
        """Load the `init` file, if any. Raises UserError where it does not fit."""
        if self.init is None:
            return
        path = Path(self.init).expanduser()
        try:
            if path.suffix == ".safetensors":
                from safetensors.torch import load_file

                state = load_file(path)
            else:
                state = torch.load(path, map_location="cpu", weights_only=True)
            module.load_state_dict(state)
        except FileNotFoundError:
            raise UserError(f"model.init: {path} does not exist") from None
        except Exception as error:  # torch and safetensors raise a dozen kinds for a file that is not theirs
            reason = str(error).splitlines()[0]
            raise UserError(f"model.init: {path} does not fit {self.name}: {reason}") from None


def _image(input_shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    if len(input_shape) != 3:
        raise UserError(f"model.name: {name} takes images (channels, height, width), the data have {input_shape}")
    channels, height, width = input_shape
    return channels, height, width


class MLP(ModelSpec):
    """Fully connected layers with ReLU on the flattened input."""

    name = "mlp"
    hidden: tuple[int, ...] = Field((200,), description="widths of the hidden layers")

    @property
    def taps(self) -> tuple[str, ...]:
        return tuple(str(2 * i + 2) for i in range(len(self.hidden)))

    @property
    def has_body(self) -> bool:
        return bool(self.hidden)

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        width = int(torch.tensor(input_shape).prod())
        for hidden in self.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        return nn.Sequential(*layers, nn.Linear(width, num_classes))


class LeNet(ModelSpec):
    """Two unpadded 5x5 convolutions of 64 channels, 1600-384-192-classes; 797,962 parameters for CIFAR-10."""

    name = "lenet"
    paper = "FL-Simulator's, FedDyn's and FedDC's LeNet (FedTOGA table 1)"
    image_size = 32

    @property
    def taps(self) -> tuple[str, ...]:
        return ("1", "4", "8", "10")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        channels, _, _ = _image(input_shape, self.name)
        return nn.Sequential(
            nn.Conv2d(channels, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, num_classes))


class McMahanCNN(ModelSpec):
    """Two padded 5x5 convolutions (32, 64), one hidden layer of 512; 2,156,490 parameters for CIFAR-10."""

    name = "mcmahan_cnn"
    paper = "McMahan et al., FedAvg, AISTATS 2017; as in FedSOL's and FedNTD's code"

    @property
    def taps(self) -> tuple[str, ...]:
        return ("1", "4", "8")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        channels, height, width = _image(input_shape, self.name)
        return nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU(), nn.Linear(512, num_classes))


class ResNet18(ModelSpec):
    """torchvision's ResNet-18 (7x7 stem) with GroupNorm(2 groups); 11,181,642 parameters for CIFAR-10."""

    name = "resnet18"
    paper = "He et al., CVPR 2016; the GroupNorm variant of FL-Simulator, FedLESAM, FedTOGA"
    image_size = 32
    norm: Literal["group", "batch"] = Field("group", description="normalisation layer")

    @property
    def taps(self) -> tuple[str, ...]:
        return ("relu", *(f"layer{i}.1.relu" for i in range(1, 5)))

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        from torchvision.models import resnet18

        channels, _, _ = _image(input_shape, self.name)
        norm = (lambda width: nn.GroupNorm(2, width)) if self.norm == "group" else nn.BatchNorm2d
        module: nn.Module = resnet18(num_classes=num_classes, norm_layer=norm)
        if channels != 3:
            module.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        return module


class CustomModel(ModelSpec):
    """`package.module:Class`, any nn.Module: given input_shape and num_classes if it takes them, and its options."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name = "custom"
    path: ClassVar[str] = ""

    @property
    def taps(self) -> tuple[str, ...]:
        return tuple(getattr(load_class("model", self.name), "taps", ()))

    @property
    def takes_tokens(self) -> bool:
        return bool(getattr(load_class("model", self.name), "takes_tokens", False))

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        kind = load_class("model", self.name)
        if not issubclass(kind, nn.Module):
            raise UserError(f"model.name: {self.name} is not an nn.Module")
        arguments = dict(self.model_extra or {})
        wanted = inspect.signature(kind).parameters
        arguments |= {key: value for key, value in (("input_shape", input_shape), ("num_classes", num_classes))
                      if key in wanted}
        try:
            return kind(**arguments)
        except TypeError as error:
            raise UserError(f"model: {self.name} cannot be built: {error}") from None


MODELS: dict[str, type[ModelSpec]] = {kind.name: kind for kind in (MLP, LeNet, McMahanCNN, ResNet18)}


def model_spec(value: object) -> ModelSpec:
    """The model of a configuration's `model` section."""
    name = value if isinstance(value, str) else value.get("name") if isinstance(value, dict) else None
    if isinstance(name, str) and ":" in name:
        kind = type("CustomModel", (CustomModel,), {"name": name, "__module__": __name__})
        return choose("model", value, {name: kind})
    return choose("model", value, MODELS)
