"""Multilayer perceptron and the papers' convolutional networks without residual connections.

If a paper has ReLU and then max-pooling, pooling comes first here: values and gradients are bit for bit the same, and
ReLU processes a quarter of the numbers.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from fedray.models.base import MCMAHAN, FeatureNorm, ModelSpec, build_classifier, read_image_shape


class MLP(ModelSpec):
    """Fully connected layers with ReLU on the flattened input; feature size the last width, or the projection's."""

    name = "mlp"
    published = ((1, 8, 8), 10, 64 * 200 + 200 + 200 * 10 + 10)
    hidden: tuple[Annotated[int, Field(gt=0)], ...] = Field((200,), description="widths of the hidden layers")
    projection: int | None = Field(None, gt=0, description="width of a linear projection before the head")
    feature_norm: FeatureNorm = Field("none", description="batch: BatchNorm1d before the head (FedGELA's code)")

    @property
    def taps(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(str(2 * i + 2) for i in range(len(self.hidden)))

    @property
    def has_body(self) -> bool:
        return bool(self.hidden) or self.projection is not None or self.feature_norm != "none"

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        width = math.prod(input_shape)
        for hidden in self.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        return nn.Sequential(*layers, *build_classifier(width, self.projection, self.feature_norm, num_classes))


def build_cnn(channels: int, filters: Sequence[int], widths: Sequence[int], padding: int = 0) -> nn.Sequential:
    """Return 5x5 convolutions with pooling and ReLU, then linear layers with ReLU between them.

    `widths`: of the first linear layer's inputs and of each one's outputs.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise((channels, *filters)):
        layers += [nn.Conv2d(before, after, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
    layers.append(nn.Flatten())
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class LeNet(ModelSpec):
    """Two unpadded 5x5 convolutions of 64 channels, 1600-384-192-classes; feature size 192."""

    name = "lenet"
    channels_last = True
    paper = "FL-Simulator's, FedDyn's and FedDC's LeNet (FedTOGA table 1)"
    image_size = 32
    published = ((3, 32, 32), 10, 797_962)
    taps = ("1", "4", "8", "10")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        channels, _, _ = read_image_shape(input_shape, self.name)
        return build_cnn(channels, (64, 64), (1600, 384, 192, num_classes))


class McMahanCNN(ModelSpec):
    """Two 5x5 convolutions (32, 64), padded or not, one hidden layer of 512, which is the feature size."""

    name = "mcmahan_cnn"
    channels_last = True
    paper = f"{MCMAHAN}; as in FedSOL's and FedNTD's code"
    published = ((3, 32, 32), 10, 2_156_490)
    taps = ("1", "4", "8")
    padding: Literal[0, 2] = Field(2, description="of both convolutions; 0: PFLlib's `FedAvgCNN`")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        channels, height, width = read_image_shape(input_shape, self.name)
        pixels = self._halve(self._halve(height)) * self._halve(self._halve(width))
        return build_cnn(channels, (32, 64), (64 * pixels, 512, num_classes), self.padding)

    def _halve(self, size: int) -> int:
        """Return the pixels that a convolution and its pooling leave of this many."""
        return (size - 4 + 2 * self.padding) // 2


class StridedCNN(ModelSpec):
    """Two padded 3x3 convolutions of stride 2 (8, 16), no pooling, one hidden layer of 64, which is the feature size.

    Small and fast on a CPU.
    """

    name = "strided_cnn"
    published = ((1, 28, 28), 10, 8 * 10 + 16 * 73 + 64 * 785 + 10 * 65)
    taps = ("1", "3", "6")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        channels, height, width = read_image_shape(input_shape, self.name)
        return nn.Sequential(
            nn.Conv2d(channels, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * -(-height // 4) * -(-width // 4), 64),
            nn.ReLU(),
            nn.Linear(64, num_classes),
        )


class SimpleCNN(ModelSpec):
    """Two unpadded 5x5 convolutions of 6 and 16 channels, 400-120-84-classes; feature size 84."""

    name = "simple_cnn"
    channels_last = True
    paper = "Li, He and Song, Model-contrastive federated learning, CVPR 2021; as in FedGELA table 10"
    image_size = 32
    published = ((3, 32, 32), 10, 61_156 + 850)
    taps = ("1", "4", "8", "10")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        channels, _, _ = read_image_shape(input_shape, self.name)
        return build_cnn(channels, (6, 16), (400, 120, 84, num_classes))


class EMNISTCNN(ModelSpec):
    """Two unpadded 3x3 convolutions (32, 64), pooling, dropout, one hidden layer of 128, which is the feature size."""

    name = "emnist_cnn"
    channels_last = True
    paper = "Reddi et al., Adaptive federated optimization, ICLR 2021; as in FedSAM"
    published = ((1, 28, 28), 62, 1_206_590)
    taps = ("1", "3", "8")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        channels, height, width = read_image_shape(input_shape, self.name)
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, num_classes),
        )


class VGG11(ModelSpec):
    """VGG-11 without normalisation or dropout, 512-512-512-classes; feature size 512.

    Convolutions start at N(0, 2 / (9 x output channels)) with zero biases.
    """

    name = "vgg11"
    paper = (
        "Simonyan and Zisserman, Very deep convolutional networks for large-scale image recognition, ICLR "
        "2015; FedSOL's variant (table 3)"
    )
    image_size = 32
    published = ((3, 32, 32), 10, 9_750_922)
    taps = ("1", "4", "7", "9", "12", "14", "17", "19", "23", "25")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        channels, _, _ = read_image_shape(input_shape, self.name)
        layers: list[nn.Module] = []
        for stage in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
            for width in stage:
                convolution = nn.Conv2d(channels, width, 3, padding=1)
                nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * width)))
                nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
                layers += [convolution, nn.ReLU()]
                channels = width
            layers.insert(-1, nn.MaxPool2d(2))
        return nn.Sequential(
            *layers,
            nn.Flatten(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, num_classes),
        )
