"""A user's own model: any nn.Module."""

import inspect
from typing import ClassVar

from pydantic import ConfigDict
from torch import nn

from fedray.common.errors import UserError
from fedray.models.base import ModelSpec


class CustomModel(ModelSpec):
    """`package.module:Class`, any nn.Module. It is called with its options, and with input_shape and num_classes if it
    accepts them.

    fedray reads its class attributes `head`, `taps`, `takes_tokens` and `channels_last`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    name = "custom"
    module_class: ClassVar[type[nn.Module]]

    @property
    def taps(self) -> tuple[str, ...]:
        return tuple(getattr(self.module_class, "taps", ()))

    @property
    def channels_last(self) -> bool:
        return bool(getattr(self.module_class, "channels_last", False))

    @property
    def takes_tokens(self) -> bool:
        return bool(getattr(self.module_class, "takes_tokens", False))

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        arguments = dict(self.model_extra or {})
        wanted = inspect.signature(self.module_class).parameters
        arguments |= {
            key: value for key, value in (("input_shape", input_shape), ("num_classes", num_classes)) if key in wanted
        }
        try:
            return self.module_class(**arguments)
        except TypeError as error:
            raise UserError(f"model: {self.name} cannot be built: {error}") from None


def make_custom_model(found: type, path: str) -> type[ModelSpec]:
    """Return the component for the nn.Module that `path` names. Raises UserError if it is something else."""
    if not issubclass(found, nn.Module):
        raise UserError(f"model.name: {path} is not a subclass of torch.nn.Module")
    return type("CustomModel", (CustomModel,), {"name": path, "module_class": found, "__module__": __name__})
