"""Models of the package timm, by their names there; an optional extra."""

from typing import TYPE_CHECKING, Any

from pydantic import Field
from torch import nn

from fedray.common.errors import UserError, join_lines, refuse_missing_package, unknown
from fedray.models.base import ModelSpec, read_image_shape

if TYPE_CHECKING:
    from types import ModuleType


class Timm(ModelSpec):
    """An image model of timm, freshly initialised; `init` takes its published weights from a local file.

    Images keep their size or are resized to `resize`. The head is the last linear layer.
    """

    name = "timm"
    paper = "Wightman, PyTorch Image Models, 2019"
    architecture: str = Field(min_length=1, description="timm's name of the model (`timm.list_models()`)")
    resize: int | None = Field(
        None,
        gt=0,
        le=4096,
        description="side that images are resized to (published weights: often 224); default as they are",
    )

    @property
    def side(self) -> int | None:
        return self.resize

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        channels, height, width = read_image_shape(input_shape, self.name)
        size = {"img_size": (height, width)} if self._find_settings().fixed_input_size else {}
        try:
            module: nn.Module = _import_timm().create_model(
                self.architecture, pretrained=False, num_classes=num_classes, in_chans=channels, **size
            )
        except Exception as error:  # each family of models has errors of its own for what it does not accept
            raise UserError(
                f"model.architecture: {self.architecture} cannot be built for images {channels}x{height}x{width}: "
                f"{join_lines(error)}"
            ) from None
        return module

    def find_replaced_head(self) -> tuple[str, ...]:
        names = self._find_settings().classifier or ()
        return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))

    def _find_settings(self) -> Any:
        """Return timm's settings of the published weights. Raises UserError if there is no such architecture."""
        timm = _import_timm()
        if not timm.is_model(self.architecture):
            raise unknown("model.architecture", self.architecture, timm.list_models(), "`timm.list_models()`")
        return timm.get_pretrained_cfg(self.architecture)


def _import_timm() -> "ModuleType":
    refuse_missing_package("model", "timm", "timm")
    import timm

    module: ModuleType = timm
    return module
