"""The models by name. Each builds an `nn.Module` for an input shape and a number of classes."""

from fedray.components.plugins import resolve
from fedray.models.base import ModelSpec
from fedray.models.custom import make_custom_model
from fedray.models.zoo.cnn import EMNISTCNN, MLP, VGG11, LeNet, McMahanCNN, SimpleCNN, StridedCNN
from fedray.models.zoo.resnet import EfficientNetB0, ResNet18, ResNet50
from fedray.models.zoo.text import CharLSTM, TextCNN
from fedray.models.zoo.timm_models import Timm
from fedray.models.zoo.vit import SLViT

MODELS: dict[str, type[ModelSpec]] = {
    kind.name: kind
    for kind in (
        MLP,
        LeNet,
        McMahanCNN,
        StridedCNN,
        SimpleCNN,
        EMNISTCNN,
        VGG11,
        ResNet18,
        ResNet50,
        EfficientNetB0,
        SLViT,
        CharLSTM,
        TextCNN,
        Timm,
    )
}


def make_model_spec(value: object) -> ModelSpec:
    """Return the model of a configuration's `model` section."""
    return resolve("model", value, MODELS, ModelSpec, make_custom_model)
