"""A user's own model: any nn.Module."""

import inspect
from typing import ClassVar

from pydantic import ConfigDict
from torch import nn

from fedray.common.errors import UserError
from fedray.models.base import ModelSpec


class CustomModel(ModelSpec):
    """`package.module:Class`, any nn.Module. It is called with its options, and with input_shape and num_classes if its
    `__init__` names them.

    fedray reads its class attributes `head`, `taps`, `takes_tokens` and `channels_last`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    name = "custom"
    module_class: ClassVar[type[nn.Module]]

    @property
    def taps(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(getattr(self.module_class, "taps", ()))

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        arguments = dict(self.model_extra or {})
        signature = inspect.signature(self.module_class)
        ours = {"input_shape": input_shape, "num_classes": num_classes}
        arguments |= {key: value for key, value in ours.items() if key in signature.parameters}
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise UserError(f"model: {self.name} cannot be built: {error}") from None
        return self.module_class(**arguments)


def make_custom_model(found: type, path: str) -> type[ModelSpec]:
    """Return the component for the nn.Module that `path` names. Raises UserError if it is something else."""
    if not issubclass(found, nn.Module):
        raise UserError(f"model.name: {path} is not a subclass of torch.nn.Module")
    members: dict[str, object] = {"name": path, "module_class": found, "__module__": __name__}
    members |= {name: bool(getattr(found, name, False)) for name in ("channels_last", "takes_tokens")}
    return type("CustomModel", (CustomModel,), members)
