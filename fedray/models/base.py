"""The base of all models: a name, options, a way to build them, and the published size."""

import pickle
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedray.common.errors import UserError, join_lines
from fedray.common.yaml_files import locate_file
from fedray.components.base import Allowed, Component
from fedray.components.identity import FILE
from fedray.components.plugins import blame
from fedray.models.lora import LoRA
from fedray.models.parts import freeze

MCMAHAN = "McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017"


class ModelSpec(Component):
    """Base of the models: options, and `build`. `image_size` is the only size a model accepts, None for any.

    The head is the last linear layer, or what the module's class attribute `head` names; the rest is the body.
    """

    section = "model"
    hint = "; timm's models, such as vit_tiny_patch16_224: {name: timm, architecture: NAME}"
    image_size: ClassVar[int | None] = None
    published: ClassVar[tuple[tuple[int, ...], int, int] | None] = None
    """Input shape, number of classes, and number of parameters with the default options, as published."""
    replaced_head: ClassVar[str] = ""
    """Prefix of the parameters that an `init` file may have for other classes; these stay as initialised."""
    channels_last: ClassVar[bool] = False
    """True if images have their channels innermost on a CPU, unless `training.channels_last` says otherwise: where that
    was measured to be faster in float32 (docs/performance.md)."""
    taps: ClassVar[tuple[str, ...]] = ()
    """Names of the submodules whose input is a tap (inner features, before the activation), first to last."""
    takes_tokens: ClassVar[bool] = False
    """True if inputs are integer tokens instead of real numbers."""
    init: Annotated[str | None, FILE] = Field(
        None, description="path of a state_dict (torch.save or .safetensors) to start from"
    )
    freeze: tuple[str, ...] = Field(
        (),
        description="parameters that are neither trained nor sent: `body`, `head`, names or patterns (`blocks.0`, "
        '`*.bias`, a number in quotes: `"3"`), which also match the modules that a parameter is in',
    )
    lora: Annotated[LoRA | None, Allowed("options")] = Field(
        None, description="train low-rank updates of linear layers, and the head, instead of all parameters"
    )

    @property
    def side(self) -> int | None:
        """Height and width to which images are resized; None: unchanged."""
        return self.image_size

    @property
    def has_body(self) -> bool:
        """True if there are parameters before the head, so that there are features to learn."""
        return True

    def count_tokens(self, num_classes: int) -> int | None:
        """Return the number of different token ids that the model takes; None if it takes any, or none."""
        return None

    @classmethod
    def make_row(cls) -> tuple[str, str, str]:
        options, what, paper = super().make_row()
        if cls.published is not None:
            shape, classes, count = cls.published
            what += f" {count:,} parameters for {'x'.join(map(str, shape))}, {classes} classes."
        return options, what, paper

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return a freshly initialised module; it draws from torch's global generator."""
        raise NotImplementedError

    def adapt(self, module: nn.Module) -> None:
        """Add adapters, and exclude from training what is frozen; draws from torch's global generator.

        Raises UserError if a name fits nothing, or nothing is left to train.
        """
        if self.lora is not None:
            self.lora.adapt(module)
        freeze(module, self.freeze)
        grown = [one for name, one in module.named_parameters() if name.endswith(".lora_B")]
        if grown and not any(one.requires_grad for one in grown):
            raise UserError(f"model.freeze: found {', '.join(self.freeze)}; the adapters of model.lora would stay 0")

    def load_init(self, module: nn.Module) -> None:
        """Load the `init` file, if any; adapters stay as drawn if it has none. Raises UserError if it does not fit."""
        if self.init is None:
            return
        path = locate_file("model.init", self.init)
        try:
            if path.suffix == ".safetensors":
                from safetensors.torch import load_file

                state = load_file(path)
            else:
                state = torch.load(path, map_location="cpu", weights_only=True)
            if complex_ := [key for key, value in state.items() if torch.is_tensor(value) and value.is_complex()]:
                raise ValueError(f"{complex_[0]} holds complex numbers")
            fresh = module.state_dict()
            adapters = {key: value for key, value in fresh.items() if key.endswith((".lora_A", ".lora_B"))}
            if self.lora is not None and not adapters.keys() & state.keys():
                state |= adapters
            module.load_state_dict(self._exchange_head(state, fresh))
        except pickle.UnpicklingError:  # torch's message explains how to run the code that a file names
            raise UserError(
                f"model.init: {path} does not fit {self.name}: it is not a file of tensors that torch.save wrote; "
                "the name of a safetensors file ends in .safetensors"
            ) from None
        except Exception as error:  # torch and safetensors raise a dozen types for foreign files
            raise UserError(f"model.init: {path} does not fit {self.name}: {join_lines(error)}") from None

    def find_replaced_head(self) -> tuple[str, ...]:
        """Return the prefixes of the parameters that an `init` file may have for other classes."""
        return (self.replaced_head,) if self.replaced_head else ()

    def _exchange_head(self, state: dict[str, Tensor], fresh: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return `state`, with the fresh head if its own was trained for another number of classes."""
        if not (head := self.find_replaced_head()):
            return state
        theirs, own = ({k: v for k, v in part.items() if k.startswith(head)} for part in (state, fresh))
        if {k: v.shape for k, v in theirs.items()} == {k: v.shape for k, v in own.items()}:
            return state
        return {k: v for k, v in state.items() if k not in theirs} | own


def build(spec: ModelSpec, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a model's freshly initialised module; lazy layers take their sizes from a sample of zeros.

    Raises UserError if it cannot be built, or a user's own class raises or returns something else than a module.
    """
    try:
        with blame(spec):
            module = spec.build(input_shape, num_classes)
            if not isinstance(module, nn.Module):
                raise UserError(
                    f"model: {spec.name}.build returns a {type(module).__name__}; a torch.nn.Module is required"
                )
            if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
                module.eval()
                with torch.no_grad():
                    module(torch.zeros(1, *input_shape, dtype=torch.int64 if spec.takes_tokens else torch.float32))
                module.train()
    except (RuntimeError, MemoryError) as error:  # raised by torch: too large, or not a valid tensor size
        raise UserError(f"model: {spec.name} cannot be built: {join_lines(error)}") from None
    return module


def count_parameters(spec: ModelSpec, input_shape: tuple[int, ...], num_classes: int) -> tuple[int, int]:
    """Return P of a model, the number of trained parameters, and the number of all, without allocating it."""
    with torch.device("meta"):
        module = build(spec, input_shape, num_classes)
        spec.adapt(module)
        every = list(module.parameters())
    return sum(p.numel() for p in every if p.requires_grad), sum(p.numel() for p in every)


def read_image_shape(input_shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """Return channels, height and width. Raises UserError if the data are not images."""
    if len(input_shape) != 3:
        raise UserError(f"model.name: {name} takes images (channels, height, width), the data have {input_shape}")
    channels, height, width = input_shape
    return channels, height, width


FeatureNorm = Literal["none", "batch"]
"""Normalisation of the features before the head; `batch` is BatchNorm1d, with weights (FedGELA's code, D-37)."""


def build_classifier(
    width: int, projection: int | None, feature_norm: FeatureNorm, num_classes: int
) -> list[nn.Module]:
    """Return the head, after a linear projection (FedGELA, D-40) and a normalisation of the features if requested."""
    layers: list[nn.Module] = []
    if projection is not None:
        layers, width = [nn.Linear(width, projection)], projection
    if feature_norm == "batch":
        layers.append(nn.BatchNorm1d(width))
    return [*layers, nn.Linear(width, num_classes)]
