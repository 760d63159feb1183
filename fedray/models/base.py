"""What every model of the zoo has: a name, options, a way to be built, and its size as published."""

import pickle
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedray.common.component import Component
from fedray.common.errors import UserError, one_line
from fedray.common.identity import Later
from fedray.common.yaml_files import located_file


class ModelSpec(Component):
    """Base of the models: options, and `build`. `image_size` is the only size a model takes, None for any.

    The head is the last linear layer, or what the module's class attribute `head` names; the rest is the body.
    """

    section = "model"
    image_size: ClassVar[int | None] = None
    published: ClassVar[tuple[tuple[int, ...], int, int] | None] = None
    """Input shape, classes and the number of parameters with the default options there, as published."""
    replaced_head: ClassVar[str] = ""
    """Start of the names of what an `init` file may have for other classes: it is then left as initialised."""
    faster_channels_last: ClassVar[bool] = False
    """Whether channels innermost were measured to be faster on a CPU, in float32 (docs/performance.md)."""
    tracks_statistics: ClassVar[bool] = True
    """Whether a module has running statistics; also where that is not known, as of a class of your own."""
    init: str | None = Field(None, description="path of a state_dict (torch.save or .safetensors) to start from")

    @property
    def side(self) -> int | None:
        """The height and width that images are resized to; None for as they are."""
        return self.image_size

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the submodules whose input is a tap (inner features, before the activation), first to last."""
        return ()

    @property
    def channels_last(self) -> bool:
        """Whether images have their channels innermost on a CPU, unless `training.channels_last` says otherwise."""
        return self.faster_channels_last

    @property
    def has_body(self) -> bool:
        """Whether parameters come before the head, so that there are features to learn."""
        return True

    @property
    def takes_tokens(self) -> bool:
        """Whether inputs are integer tokens instead of real numbers."""
        return False

    @classmethod
    def row(cls) -> tuple[str, str, str]:
        options, what, paper = super().row()
        if cls.published is not None:
            shape, classes, count = cls.published
            what += f" {count:,} parameters for {'x'.join(map(str, shape))}, {classes} classes."
        return options, what, paper

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A freshly initialised module (torch's global generator)."""
        raise NotImplementedError

    def load_init(self, module: nn.Module) -> None:
        """Load the `init` file, if any. Raises UserError where it does not fit."""
        if self.init is None:
            return
        path = located_file("model.init", self.init)
        try:
            if path.suffix == ".safetensors":
                from safetensors.torch import load_file

                state = load_file(path)
            else:
                state = torch.load(path, map_location="cpu", weights_only=True)
            module.load_state_dict(self._with_own_head(state, module.state_dict()))
        except FileNotFoundError:
            raise UserError(f"model.init: {path} does not exist") from None
        except pickle.UnpicklingError:  # torch's message tells how to run whatever a file names
            raise UserError(
                f"model.init: {path} does not fit {self.name}: it is not a file of tensors that torch.save wrote; "
                "the name of a safetensors file ends in .safetensors"
            ) from None
        except Exception as error:  # torch and safetensors raise a dozen kinds for a file that is not theirs
            raise UserError(f"model.init: {path} does not fit {self.name}: {one_line(error)}") from None

    def _with_own_head(self, state: dict[str, Tensor], fresh: dict[str, Tensor]) -> dict[str, Tensor]:
        """`state`, its head exchanged for the fresh one where it was trained for other classes."""
        if not self.replaced_head:
            return state
        theirs, own = ({k: v for k, v in part.items() if k.startswith(self.replaced_head)} for part in (state, fresh))
        if {k: v.shape for k, v in theirs.items()} == {k: v.shape for k, v in own.items()}:
            return state
        return {k: v for k, v in state.items() if k not in theirs} | own


def parameter_count(spec: ModelSpec, input_shape: tuple[int, ...], num_classes: int) -> int:
    """P of a model; nothing is allocated."""
    with torch.device("meta"):
        return sum(p.numel() for p in spec.build(input_shape, num_classes).parameters())


def image(input_shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """Channels, height, width. Raises UserError for data that are no images."""
    if len(input_shape) != 3:
        raise UserError(f"model.name: {name} takes images (channels, height, width), the data have {input_shape}")
    channels, height, width = input_shape
    return channels, height, width


FeatureNorm = Annotated[Literal["none", "batch"], Later()]
"""A normalisation of the features before the head; `batch` is BatchNorm1d, with weights (FedGELA's code, D-37)."""


def classifier(width: int, projection: int | None, feature_norm: FeatureNorm, num_classes: int) -> list[nn.Module]:
    """The head, after a linear projection of the features (FedGELA, D-40) and a normalisation where asked for."""
    layers: list[nn.Module] = []
    if projection is not None:
        layers, width = [nn.Linear(width, projection)], projection
    if feature_norm == "batch":
        layers.append(nn.BatchNorm1d(width))
    return [*layers, nn.Linear(width, num_classes)]
