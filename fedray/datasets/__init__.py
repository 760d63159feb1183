"""The data sets by name."""

from fedray.common.component import choose
from fedray.datasets.arrays import Digits, Npz
from fedray.datasets.base import DataSource
from fedray.datasets.image_folders import CINIC10, FedISIC2019
from fedray.datasets.leaf import FEMNIST, Shakespeare
from fedray.datasets.medmnist import PathMNIST, TissueMNIST
from fedray.datasets.synthetic import Synthetic, SyntheticText
from fedray.datasets.torchvision_sets import CIFAR10, CIFAR100, EMNIST, MNIST, SVHN, FashionMNIST

DATASETS: dict[str, type[DataSource]] = {
    kind.name: kind
    for kind in (
        Digits,
        MNIST,
        FashionMNIST,
        EMNIST,
        CIFAR10,
        CIFAR100,
        SVHN,
        CINIC10,
        PathMNIST,
        TissueMNIST,
        FEMNIST,
        Shakespeare,
        FedISIC2019,
        Npz,
        Synthetic,
        SyntheticText,
    )
}


def data_source(value: object) -> DataSource:
    """The data set of a configuration's `data` section."""
    return choose("data", value, DATASETS)
