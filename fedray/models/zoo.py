"""The models by name. Each builds an `nn.Module` for an input shape and a number of classes."""

import inspect
from typing import ClassVar

from pydantic import ConfigDict
from torch import nn

from fedray.component import choose, load_class
from fedray.errors import UserError
from fedray.models.cnn import EMNISTCNN, MLP, VGG11, LeNet, McMahanCNN, SimpleCNN
from fedray.models.resnet import EfficientNetB0, ResNet18, ResNet50
from fedray.models.spec import ModelSpec, parameter_count
from fedray.models.text import CharLSTM
from fedray.models.vit import SLViT

__all__ = ["MODELS", "ModelSpec", "model_spec", "parameter_count"]


class CustomModel(ModelSpec):
    """`package.module:Class`, any nn.Module: given input_shape and num_classes if it takes them, and its options.

    Attributes of the class that are read: `head`, `taps`, `takes_tokens`, `channels_last`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    name = "custom"
    path: ClassVar[str] = ""

    @property
    def taps(self) -> tuple[str, ...]:
        return tuple(getattr(load_class("model", self.name), "taps", ()))

    @property
    def channels_last(self) -> bool:
        return bool(getattr(load_class("model", self.name), "channels_last", False))

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


MODELS: dict[str, type[ModelSpec]] = {
    kind.name: kind for kind in (
        MLP, LeNet, McMahanCNN, SimpleCNN, EMNISTCNN, VGG11, ResNet18, ResNet50, EfficientNetB0, SLViT, CharLSTM)
}


def model_spec(value: object) -> ModelSpec:
    """The model of a configuration's `model` section."""
    name = value if isinstance(value, str) else value.get("name") if isinstance(value, dict) else None
    if isinstance(name, str) and ":" in name:
        kind = type("CustomModel", (CustomModel,), {"name": name, "__module__": __name__})
        return choose("model", value, {name: kind})
    return choose("model", value, MODELS)
