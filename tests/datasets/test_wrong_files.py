"""Files that are missing, damaged or not in the published format: one line, and nothing is left behind."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.common.errors import UserError
from fedray.datasets import DATASETS
from fedray.datasets.image_folders import CIFAR_CLASSES
from tests.datasets import files
from tests.datasets.files import cached, femnist, load


def truncate(path: str) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        file = root / path
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return apply


def write(path: str, content: bytes) -> Callable[[Path], None]:
    return lambda root: (root / path).write_bytes(content) and None


def remove(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path).unlink()


def replace_by_pipe(path: str) -> Callable[[Path], None]:
    """Reading would wait for it."""
    return lambda root: (root / path).unlink() or os.mkfifo(root / path)


def of_mnist(**arrays: np.ndarray) -> Callable[[Path], None]:
    return lambda root: files.mnist(root, **arrays) and None


def cut_packed(root: Path) -> None:
    content = gzip.compress((root / RAW).read_bytes())
    (root / RAW).unlink()
    (root / f"{RAW}.gz").write_bytes(content[:-6])


def leaf_with(x: Any, y: list[Any], count: int | None = None, name: str = "femnist") -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        path = next((root / name / "train").glob("*.json"))
        content = {
            "users": ["u"],
            "num_samples": [len(y) if count is None else count],
            "user_data": {"u": {"x": x, "y": y}},
        }
        path.write_text(json.dumps(content))

    return apply


def leave_nobody(root: Path) -> None:
    for path in (root / "femnist/train").glob("*.json"):
        path.write_text('{"users": [], "num_samples": [], "user_data": {}}')


def shakespeare(root: Path) -> None:
    files.leaf(root, "shakespeare", {part: {"A": (["a" * 80], ["b"])} for part in ("train", "test")})


MAKE: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "mnist": lambda root, _: files.mnist(root),
    "cifar10": lambda root, patch: files.cifar(root, patch, "CIFAR10"),
    "pathmnist": lambda root, _: files.medmnist(root, "pathmnist"),
    "cinic10": lambda root, _: files.cinic(root, CIFAR_CLASSES),
    "femnist": lambda root, _: femnist(root),
    "shakespeare": lambda root, _: shakespeare(root),
    "fed_isic2019": lambda root, _: files.isic(root),
    "tiny_imagenet": lambda root, _: files.tiny_imagenet(root),
    "ag_news": lambda root, _: files.ag_news(root),
}


VAL = "tiny-imagenet-200/val/val_annotations.txt"
RAW = "MNIST/raw/train-images-idx3-ubyte"
ISIC = "fed_isic2019/ISIC_2019_Training_Input_preprocessed"


WRONG: list[tuple[str, Callable[[Path], None], list[str]]] = [
    ("mnist", truncate(RAW), ["mnist", "cannot be read"]),
    ("mnist", cut_packed, ["train-images-idx3-ubyte.gz cannot be unpacked: EOFError"]),
    ("mnist", of_mnist(train=files.pixels(60, 27, 28)), ["(1, 27, 28)", "(1, 28, 28)"]),
    ("mnist", of_mnist(train_y=np.full(60, 10)), ["10..10", "0..9"]),
    ("mnist", of_mnist(train_y=np.zeros(59)), ["60 samples", "59 labels"]),
    ("cifar10", truncate("cifar-10-batches-py/data_batch_3"), ["data_batch_3 has md5", "published is"]),
    ("pathmnist", truncate("pathmnist.npz"), ["pathmnist.npz", "cannot be read"]),
    (
        "pathmnist",
        lambda root: files.medmnist(root, "pathmnist", train_images=files.pixels(20, 28, 28)) and None,
        ["train_images", "(20, 28, 28)"],
    ),
    ("cinic10", truncate("cinic-10/train/cat/cat_1.png"), ["cat_1.png", "cannot be read"]),
    (
        "cinic10",
        lambda root: files.Image.fromarray(files.pixels(31, 32, 3)).save(root / "cinic-10/test/dog/dog_0.png"),
        ["dog_0.png", "32x31"],
    ),
    ("cinic10", lambda root: (root / "cinic-10/train/zebra").mkdir(), ["zebra", "allowed"]),
    ("femnist", leaf_with(5, [1]), ["user 'u' has no lists x and y"]),
    ("femnist", leave_nobody, ["no user has samples in", "femnist/train"]),
    ("femnist", leaf_with([[1.5] * 784], [1]), ["784", "[0, 1]"]),
    ("femnist", leaf_with([[0.5] * 784], [62]), ["62", "0..61"]),
    ("femnist", leaf_with([[0.5] * 784], [1], count=2), ["num_samples says 2"]),
    ("femnist", lambda root: truncate(str(next((root / "femnist/test").glob("*.json"))))(root), ["not a LEAF json"]),
    ("shakespeare", leaf_with(["a" * 79], ["b"], name="shakespeare"), ["80 characters"]),
    ("shakespeare", leaf_with(["a" * 79 + "é"], ["b"], name="shakespeare"), ["é"]),
    ("fed_isic2019", remove(f"{ISIC}/ISIC_0000001.jpg"), ["ISIC_0000001"]),
    ("fed_isic2019", write("fed_isic2019/train_test_split", b"image,target,center,fold\n"), ["no image of fold train"]),
    (
        "fed_isic2019",
        write("fed_isic2019/train_test_split", b"image,target,center,fold\n../../x,1,0,train\n"),
        ["line 2 has no image", "'../../x' is not the name of an image"],
    ),
    ("fed_isic2019", write("fed_isic2019/train_test_split", b"image,target,center,fold\na,1,1_1,train\n"), ["line 2"]),
    (
        "fed_isic2019",
        lambda root: files.Image.new("RGB", (300, 190)).save(root / f"{ISIC}/ISIC_0000001.jpg"),
        ["ISIC_0000001.jpg has 300x190 pixels, at least 200x200"],
    ),
    ("tiny_imagenet", write("tiny-imagenet-200/wnids.txt", b""), ["wnids.txt is empty"]),
    ("tiny_imagenet", write("tiny-imagenet-200/wnids.txt", b"../n1\n"), ["'../n1' is not a WordNet id"]),
    ("tiny_imagenet", write("tiny-imagenet-200/wnids.txt", b"n1\n"), ["train/n1/images/*.JPEG is missing"]),
    ("tiny_imagenet", remove(VAL), ["val/val_annotations.txt is missing"]),
    ("tiny_imagenet", write(VAL, b"val_9.JPEG\tn01443537\t0\n"), ["val/images/val_9.JPEG is missing"]),
    ("tiny_imagenet", write(VAL, b"val_0.JPEG\tn1\t0\n"), ["line 1", "a class of wnids.txt"]),
    ("tiny_imagenet", write(VAL, b"../val_0.JPEG\tn01443537\t0\n"), ["line 1", "a file, a tab"]),
    ("ag_news", write("ag_news_csv/test.csv", b""), ["test.csv has no articles"]),
    ("ag_news", write("ag_news_csv/test.csv", b'"1","a","b"\n"5","a","b"\n'), ["row 2", "a class from 1 to 4"]),
    ("ag_news", write("ag_news_csv/test.csv", b'"1","a"\n'), ["row 1", "a title and a description"]),
    ("ag_news", write("ag_news_csv/test.csv", b'"1","a\xff","b"\n'), ["test.csv cannot be read"]),
    ("cinic10", replace_by_pipe("cinic-10/train/cat/cat_1.png"), ["cat_1.png", "regular file"]),
    ("mnist", replace_by_pipe(RAW), [RAW, "is not a file"]),
]


@pytest.mark.parametrize(("name", "spoil", "words"), WRONG)
def test_what_is_wrong_with_the_files_is_one_line_and_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, spoil: Callable[[Path], None], words: list[str]
) -> None:
    MAKE[name](root, monkeypatch)
    load(name)
    for folder in cached(root):
        for file in (root / ".fedray-cache" / folder).iterdir():
            file.unlink()
        (root / ".fedray-cache" / folder).rmdir()
    spoil(root)
    with pytest.raises(UserError) as error:
        load(name)
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message
    assert cached(root) == []


@pytest.mark.parametrize(
    "name",
    sorted(set(DATASETS) - {"arrays", "digits", "npz", "folder", "domains", "csv", "synthetic", "synthetic_text"}),
)
def test_without_files_one_line_says_what_is_missing(root: Path, name: str) -> None:
    """Loading names a file and the command that helps; fetching is tested on a machine without network."""
    with pytest.raises(UserError, match=rf"data\.name: {name} is not in .* is missing; `fedray data fetch {name}`"):
        load(name)
    kind = DATASETS[name]
    assert kind.files
    assert kind.published.size or kind.published.train
