"""Residual networks and EfficientNet, from torchvision's blocks; with the projection layer of FedGELA if requested."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, cast

from pydantic import Field
from torch import nn

from fedray.models.base import FeatureNorm, ModelSpec, build_classifier, read_image_shape

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "group": lambda width: nn.GroupNorm(2, width),
    "batch": nn.BatchNorm2d,
    "batch_untracked": partial(nn.BatchNorm2d, track_running_stats=False),
}


class ResNet(ModelSpec):
    """Base of the residual networks."""

    blocks: ClassVar[str]
    """Name of the function in torchvision.models."""
    last_blocks: ClassVar[tuple[int, int, int, int]]
    """Number of the last block of each stage."""
    replaced_head = "fc."
    norm: Literal["group", "batch", "batch_untracked"] = Field(
        "group", description="group: GroupNorm of 2 groups; batch_untracked: batch statistics at test, too (FedSOL)"
    )
    stem: Literal["imagenet", "cifar"] = Field(
        "imagenet", description="imagenet: 7x7 of stride 2 and max-pooling; cifar: 3x3 of stride 1"
    )
    projection: int | None = Field(None, gt=0, description="width of a projection before the head (FedGELA 84, 512)")
    feature_norm: FeatureNorm = Field("none", description="batch: BatchNorm1d before the head (FedGELA's code)")

    @property
    def taps(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("relu", *(f"layer{i}.{block}.relu" for i, block in enumerate(self.last_blocks, 1)))

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        import torchvision.models  # imported here: it costs a second, and other models do not need it

        channels, _, _ = read_image_shape(input_shape, self.name)
        module: Any = getattr(torchvision.models, self.blocks)(norm_layer=NORMS[self.norm])
        if self.stem == "cifar":
            module.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
            module.maxpool = nn.Identity()
        elif channels != 3:
            module.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        head = build_classifier(module.fc.in_features, self.projection, self.feature_norm, num_classes)
        module.fc = nn.Sequential(*head) if len(head) > 1 else head[0]
        return cast(nn.Module, module)


class ResNet18(ResNet):
    """ResNet-18, feature size 512 or the projection's.

    FL-Simulator, FedLESAM, FedTOGA: the defaults. FedSOL: stem cifar, norm batch_untracked. FedGELA: stem cifar, norm
    batch, projection 84 (CIFAR-100: 512).
    """

    name = "resnet18"
    paper = (
        "He et al., Deep residual learning for image recognition, CVPR 2016; the GroupNorm variant of "
        "FL-Simulator, FedLESAM, FedTOGA"
    )
    blocks = "resnet18"
    last_blocks = (1, 1, 1, 1)
    published = ((3, 32, 32), 10, 11_181_642)


class ResNet50(ResNet):
    """ResNet-50, feature size 2048 or the projection's. FedGELA: stem cifar, norm batch, projection 84."""

    name = "resnet50"
    paper = "He et al., Deep residual learning for image recognition, CVPR 2016; as in FedGELA table 10"
    blocks = "resnet50"
    last_blocks = (2, 3, 5, 2)
    published = ((3, 32, 32), 10, 23_528_522)


class EfficientNetB0(ModelSpec):
    """EfficientNet-B0, feature size 1280 or the projection's; `init` takes ImageNet weights with their 1000 classes."""

    name = "efficientnet_b0"
    channels_last = True
    paper = (
        "Tan and Le, EfficientNet: rethinking model scaling for convolutional neural networks, ICML 2019; as "
        "in FedGELA table 3 (Fed-ISIC2019, pre-trained, projection 84)"
    )
    published = ((3, 200, 200), 8, 4_007_548 + 1281 * 8)
    replaced_head = "classifier."
    projection: int | None = Field(None, gt=0, description="width of a projection before the head (FedGELA 84)")
    feature_norm: FeatureNorm = Field("none", description="batch: BatchNorm1d before the head (FedGELA's code)")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        from torchvision.models import efficientnet_b0

        channels, _, _ = read_image_shape(input_shape, self.name)
        module: Any = efficientnet_b0()
        if channels != 3:
            module.features[0][0] = nn.Conv2d(channels, 32, 3, stride=2, padding=1, bias=False)
        module.classifier = nn.Sequential(
            module.classifier[0], *build_classifier(1280, self.projection, self.feature_norm, num_classes)
        )
        return cast(nn.Module, module)
