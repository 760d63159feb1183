"""The data sets by name."""

from collections.abc import Mapping

from fedray.components.plugins import resolve
from fedray.datasets.arrays import Arrays, Digits, Npz
from fedray.datasets.base import DataSource
from fedray.datasets.folders import Domains, Folder
from fedray.datasets.image_folders import CINIC10, FedISIC2019, TinyImageNet
from fedray.datasets.leaf import FEMNIST, Shakespeare
from fedray.datasets.medmnist import MEDMNIST
from fedray.datasets.synthetic import Synthetic, SyntheticText
from fedray.datasets.tables import Csv
from fedray.datasets.text import AGNews
from fedray.datasets.torchvision_sets import CIFAR10, CIFAR100, EMNIST, MNIST, SVHN, FashionMNIST

_KINDS: tuple[type[DataSource], ...] = (
    Digits,
    MNIST,
    FashionMNIST,
    EMNIST,
    CIFAR10,
    CIFAR100,
    SVHN,
    CINIC10,
    TinyImageNet,
    *MEDMNIST,
    FEMNIST,
    Shakespeare,
    AGNews,
    FedISIC2019,
    Npz,
    Folder,
    Domains,
    Csv,
    Arrays,
    Synthetic,
    SyntheticText,
)
DATASETS = {kind.name: kind for kind in _KINDS}


def make_data_source(value: object) -> DataSource:
    """Return the data set of a configuration's `data` section."""
    if isinstance(value, Mapping) and "name" not in value and "x_train" in value:
        value = {"name": "arrays", **value}
    return resolve("data", value, DATASETS, DataSource)
