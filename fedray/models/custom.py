"""The models by name. Each builds an `nn.Module` for an input shape and a number of classes."""

import inspect
from typing import ClassVar

from pydantic import ConfigDict
from torch import nn

from fedray.common.component import load_class
from fedray.common.errors import UserError
from fedray.models.base import ModelSpec


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
        arguments |= {
            key: value for key, value in (("input_shape", input_shape), ("num_classes", num_classes)) if key in wanted
        }
        try:
            return kind(**arguments)
        except TypeError as error:
            raise UserError(f"model: {self.name} cannot be built: {error}") from None
