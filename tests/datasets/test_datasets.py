"""Each loader on small files in exactly the published format, generated images and text, the options of data, and which
samples are kept; files that are missing, damaged or of another format are one line, and nothing is left behind."""

import gzip
import hashlib
import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torchvision.datasets
from sklearn.datasets import load_digits

from fedray.cli.data import list_doubts
from fedray.common.errors import UserError
from fedray.datasets import DATASETS, arrays, make_data_source
from fedray.datasets.arrays import Digits
from fedray.datasets.augment import Flip
from fedray.datasets.image_folders import CIFAR_CLASSES
from fedray.datasets.leaf import LETTERS
from fedray.datasets.torchvision_sets import count_long_tail
from fedray.partitions import PARTITIONS
from tests import small
from tests.conftest import Call, each, shared_data
from tests.datasets import files
from tests.datasets.files import cached, femnist, load


@pytest.mark.parametrize("elsewhere", [False, True])
def test_digits_are_scikit_learns(elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels 0..16 times 255/16 are bytes; the split is that of RandomState(0), the first 1,437 for training."""
    if elsewhere:
        monkeypatch.setattr(arrays, "find_spec", lambda name: ModuleSpec(name, None, origin="/nowhere/__init__.py"))
    data, theirs = Digits().read(), load_digits()
    order = np.random.RandomState(0).permutation(1797)
    found = np.concatenate([data.x_train, data.x_test])
    assert found.dtype == np.uint8
    assert np.array_equal(found[:, 0], np.round(theirs.images * 255 / 16)[order])
    assert np.array_equal(np.concatenate([data.y_train, data.y_test]), theirs.target[order])
    assert len(data.y_train) == 1437


@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_idx(root: Path, name: str, kind: str) -> None:
    arrays, data = files.mnist(root, kind), load(name)
    np.testing.assert_array_equal(data.x_train, arrays["train"][:, None])
    np.testing.assert_array_equal(data.x_test, arrays["t10k"][:, None])
    np.testing.assert_array_equal(data.y_train, arrays["train_y"])
    assert (data.y_test.dtype, data.num_classes) == (np.int64, 10)


def test_fetch_unpacks_published_files_without_a_network(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four `.gz` files that a user has put there, with their md5 for the published ones. What torchvision before 0.9
    has cached is not read."""
    files.mnist(root)
    expected, resources = load("mnist").digest, []
    for path in sorted((root / "MNIST/raw").iterdir()):
        packed = path.rename(path.with_name(f"{path.name}.gz"))
        packed.write_bytes(gzip.compress(packed.read_bytes()))
        resources.append((packed.name, hashlib.md5(packed.read_bytes(), usedforsecurity=False).hexdigest()))
    (root / "MNIST/processed").mkdir()
    for name in ("training.pt", "test.pt"):
        (root / "MNIST/processed" / name).touch()
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    monkeypatch.setattr(urllib.request, "urlopen", Mock(side_effect=urllib.error.URLError("no network")))
    make_data_source("mnist").fetch()
    assert load("mnist").digest == expected


def test_emnist_is_upright_and_can_be_subsampled(root: Path) -> None:
    """Published images are transposed; 20 % of 60 and 20 images are 12 and 4, the same ones every time."""
    images = {"train": files.pixels(60, 28, 28), "test": files.pixels(20, 28, 28)}
    for part, x in images.items():
        raw = root / "EMNIST" / "raw"
        files.idx(raw / f"emnist-byclass-{part}-images-idx3-ubyte", x)
        files.idx(raw / f"emnist-byclass-{part}-labels-idx1-ubyte", np.arange(len(x)) % 62)
    whole = load("emnist")
    np.testing.assert_array_equal(whole.x_train[:, 0], images["train"].transpose(0, 2, 1))
    assert whole.num_classes == 62
    part = load("emnist", fraction=0.2)
    assert (len(part.y_train), len(part.y_test)) == (12, 4)
    np.testing.assert_array_equal(part.x_train, whole.x_train[part.y_train])  # label = place in this file
    assert part.digest == load("emnist", fraction=0.2).digest


@pytest.mark.parametrize(("name", "kind", "classes"), [("cifar10", "CIFAR10", 10), ("cifar100", "CIFAR100", 100)])
def test_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, classes: int) -> None:
    """A row is the red plane, then green, then blue, row by row."""
    rows, labels = files.cifar(root, monkeypatch, kind)
    data = load(name)
    np.testing.assert_array_equal(data.x_train, rows.reshape(-1, 3, 32, 32))
    assert (data.y_train.tolist(), len(data.y_test), data.num_classes) == (labels, 10, classes)


def test_svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Label 10 is the digit 0; images come as (height, width, channel, n)."""
    x, y = files.svhn(root, monkeypatch)
    data = load("svhn")
    np.testing.assert_array_equal(data.x_train, x.transpose(3, 2, 0, 1))
    np.testing.assert_array_equal(data.y_train, y[:, 0] % 10)


@pytest.mark.parametrize(("name", "channels", "classes"), [("pathmnist", 3, 9), ("tissuemnist", 1, 8)])
def test_medmnist(root: Path, name: str, channels: int, classes: int) -> None:
    """FedSOL trains on train and val (20 + 6), in three channels."""
    arrays, data = files.medmnist(root, name), load(name)
    assert data.x_train.shape == (26, channels, 28, 28)
    first = arrays["val_images"][0]
    np.testing.assert_array_equal(data.x_train[20], first.transpose(2, 0, 1) if channels == 3 else first[None])
    assert data.y_train.tolist() == [*arrays["train_labels"][:, 0], *arrays["val_labels"][:, 0]]
    assert (len(load(name, validation_images="unused").y_train), data.num_classes) == (20, classes)
    paper = load(name, preset="fedsol")
    assert (paper.input_shape, paper.mean, paper.augment) == ((3, 28, 28), (0.5,) * 3, (Flip(),))


def test_cinic10(root: Path) -> None:
    """Classes in CIFAR-10's order; decoded once; `valid` is used only on request."""
    first, data = files.cinic(root, CIFAR_CLASSES), load("cinic10")
    assert (data.x_train.shape, data.y_train.tolist()) == ((20, 3, 32, 32), [i // 2 for i in range(20)])
    np.testing.assert_array_equal(data.x_test[4], first["test", 2].transpose(2, 0, 1))
    assert (len(load("cinic10", validation_images="train").y_train), len(cached(root))) == (40, 2)
    assert isinstance(data.x_train, np.memmap)
    assert (load("cinic10").digest, len(cached(root))) == (data.digest, 2)


def test_tiny_imagenet(root: Path) -> None:
    """Labels by the sorted WordNet ids; grey pictures become RGB; `val` is the test set, labelled by its table."""
    grey, data = files.tiny_imagenet(root), load("tiny_imagenet")
    assert (data.x_train.shape, data.x_test.shape, data.num_classes) == ((6, 3, 64, 64), (4, 3, 64, 64), 2)
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 0, 0, 1, 1, 1], [1, 0, 1, 0])
    names = [f"{kind}_{i}.JPEG" for kind in sorted(files.WNIDS) for i in range(3)]
    for x, expected in ((data.x_train, names), (data.x_test, [f"val_{i}.JPEG" for i in range(4)])):
        np.testing.assert_allclose(x.mean((1, 2, 3)), [grey[name] for name in expected], atol=2)  # JPEG
    assert (load("tiny_imagenet").digest, len(cached(root))) == (data.digest, 1)


@pytest.mark.parametrize("name", ["tiny_imagenet", "femnist"])
def test_what_systems_leave_between_published_files_is_skipped(root: Path, name: str) -> None:
    """A copy on a disk of another system gets files of attributes and folders of thumbnails."""
    {"tiny_imagenet": files.tiny_imagenet, "femnist": femnist}[name](root)
    clean = load(name).digest
    for folder in [path for path in root.rglob("*") if path.is_dir() and ".fedray-cache" not in path.parts]:
        (folder / "@eaDir").mkdir()
        (folder / "._0.json").write_bytes(b"\0\5\x16\7")
        (folder / "._0.JPEG").write_bytes(b"\0\5\x16\7")
    assert load(name).digest == clean


def test_femnist(root: Path) -> None:
    femnist(root)
    data = load("femnist")
    assert data.x_train.shape == (5, 1, 28, 28)
    np.testing.assert_array_equal(data.x_train[0].ravel(), np.arange(784) % 256)
    assert (data.y_train.tolist(), data.num_classes) == ([0, 61, 5, 7, 8], 62)
    assert (data.client_train.tolist(), data.client_test.tolist()) == ([1, 1, 1, 0, 0], [0, 2])
    (root / "femnist" / "data").mkdir()
    for part in ("train", "test"):  # as LEAF itself writes them
        (root / "femnist" / part).rename(root / "femnist" / "data" / part)
    assert load("femnist").digest == data.digest


def test_shakespeare(root: Path) -> None:
    """Characters by their place in LEAF's alphabet of 80; the model reads them as token ids."""
    text = ("To be, or not to be: that is the question:\n" * 2)[:80]
    train, test = ([text, text[1:] + "W"], ["W", "h"]), ([text], ["W"])
    files.leaf(root, "shakespeare", {"train": {"HAMLET": train}, "test": {"HAMLET": test}})
    data = load("shakespeare")
    assert len(LETTERS) == len(set(LETTERS)) == data.num_classes == 80
    assert (data.x_train.shape, "".join(LETTERS[i] for i in data.x_train[0])) == ((2, 80), text)
    assert [LETTERS[i] for i in data.y_train] == ["W", "h"]
    assert data.tokens


def role(text: str) -> tuple[list[str], list[str]]:
    """LEAF's samples of a role's text: 80 characters and the next one, at every place."""
    return [text[i : i + 80] for i in range(len(text) - 80)], list(text[80:])


def test_shakespeare_by_words(root: Path) -> None:
    """The first and the last of the text's 20 words are left out, and 8 of the other 18 have ten before them.

    "b" is the most frequent word and number 1, the others follow by the alphabet."""
    text = "Cut thee, B. b b b b -- Don't; b b b b zounds! b b b alack, remember mecut"
    text = text + " " * (81 - len(text)) + "off"
    train = role(text)
    files.leaf(root, "shakespeare", {"train": {"HAMLET": train}, "test": {"HAMLET": role(text.upper()), "X": train}})
    data = load("shakespeare", predict="word")
    number = {"b": 1, "alack": 2, "don't": 3, "mecut": 4, "remember": 5, "thee": 6, "zounds": 7}
    expected = [number["thee"], *[1] * 5, number["don't"], *[1] * 4, number["zounds"], *[1] * 3]
    expected += [number["alack"], number["remember"], number["mecut"]]
    assert (data.x_train.shape, data.num_classes, data.tokens) == ((8, 10), 256, True)
    for i, (x, y) in enumerate(zip(data.x_train, data.y_train, strict=True)):
        assert [*x, y] == expected[i : i + 11]
    np.testing.assert_array_equal(data.x_test[:8], data.x_train)
    assert (data.client_test.tolist(), load("shakespeare").num_classes) == ([0] * 8 + [1] * 8, 80)


def test_shakespeare_words_beyond_the_vocabulary_share_a_number(root: Path) -> None:
    """300 words, each twice: the first 255 by alphabet have numbers; words only in the test text have none."""
    names = [f"w{i:03d}" for i in range(300)]
    train, test = role(" ".join(["x", *names, *names, "x"])), role(" ".join(["unseen"] * 30))
    files.leaf(root, "shakespeare", {"train": {"A": train}, "test": {"A": test}})
    data = load("shakespeare", predict="word")
    assert data.x_train[0].tolist() == list(range(1, 11))
    assert (data.y_train.max(), (data.y_train == 0).sum()) == (255, 2 * 45)
    assert (data.x_test == 0).all()


def test_fed_isic2019(root: Path) -> None:
    """The central 200x200 pixels of each picture are grey (200), what is around them black."""
    files.isic(root)
    data = load("fed_isic2019")
    assert data.x_train.shape == (3, 3, 200, 200)
    assert np.abs(data.x_train.astype(int) - 200).max() < 40  # JPEG
    assert np.abs(data.x_train.astype(int) - 200).mean() < 2
    assert (data.y_train.tolist(), data.y_test.tolist(), data.num_classes) == ([0, 1, 2], [3], 8)
    assert (data.client_train.tolist(), load("fed_isic2019", size=100).input_shape) == ([0, 1, 0], (3, 100, 100))


def test_options_beside_a_preset(root: Path) -> None:
    files.mnist(root)
    paper = load("mnist", preset="fedsol")
    assert (paper.input_shape, paper.mean, paper.std) == ((3, 28, 28), (0.1307,) * 3, (0.3081,) * 3)
    np.testing.assert_array_equal(paper.x_train[:, 2], load("mnist").x_train[:, 0])
    changed = load("mnist", preset="fedsol", augment=["flip"], mean=[0.5], std=[0.25])
    assert (changed.augment, changed.mean, changed.std) == ((Flip(),), (0.5,) * 3, (0.25,) * 3)
    assert load("mnist", preset="fedsol", augment=[]).augment == ()
    assert len({data.digest for data in (paper, changed, load("mnist"), load("mnist", channels=3))}) == 4


@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_real_data_from_published_files_and_from_keras_arrays(root: Path, name: str, kind: str) -> None:
    """All 70,000 images: one data set, and so the same cells, either way; the published constants are theirs."""
    with np.load(shared_data(f"{name}.npz")) as real:
        arrays = {key: real[key] for key in ("x_train", "y_train", "x_test", "y_test")}
    shutil.copy(shared_data(f"{name}.npz"), root / f"{name}.npz")
    of_keras = load(name, train_samples=1000)
    parts = dict(train=arrays["x_train"], train_y=arrays["y_train"], t10k=arrays["x_test"], t10k_y=arrays["y_test"])
    files.mnist(root, kind, **parts)
    (root / f"{name}.npz").write_bytes(b"not read while the published files are there")
    assert load(name, train_samples=1000).digest == of_keras.digest
    data = load(name)
    for key, array in arrays.items():
        np.testing.assert_array_equal(getattr(data, key).reshape(array.shape), array)
    shares = np.bincount(arrays["x_train"].ravel(), minlength=256) / arrays["x_train"].size
    levels = np.arange(256) / 255
    mean = (shares * levels).sum()
    assert mean == pytest.approx(data.mean[0], abs=1e-4)
    assert np.sqrt((shares * (levels - mean) ** 2).sum()) == pytest.approx(data.std[0], abs=1e-4)


def test_the_most_frequent_words_have_ids_from_2_and_a_small_vocabulary_is_refused(root: Path) -> None:
    """Bears occurs 3 times ("bears'" is another word); band, chips, of and the twice, in alphabetical order.

    With 6 ids, "the" and the words that occur once are outside."""
    files.ag_news(root)
    data = load("ag_news", vocabulary=6, length=8)
    bears, band, chips, of = 2, 3, 4, 5
    assert data.x_train.tolist() == [
        [1, 1, bears, 1, 1, band, of, bears],  # wall st bears reuters the band of bears, and the rest is cut off
        [1, chips, 1, chips, 1, 1, 0, 0],  # bears' chips the chips 39 s, and padding
    ]
    assert data.x_test.tolist() == [[1, of, bears, 0, 0, 0, 0, 0]]
    assert (data.y_train.tolist(), data.y_test.tolist(), data.num_classes) == ([2, 3], [0], 4)
    assert (data.x_train.dtype, data.tokens) == (np.int64, True)
    assert load("ag_news").x_train.max() == 2 + 12 - 1  # twelve different words
    built = small.problem(clients=(2, 2), data="ag_news", model={"name": "text_cnn", "vocabulary": 10})
    with small.refused("text_cnn takes token ids below 10, the data have ids up to 13; set model.vocabulary"):
        built.build_network("cpu")
    built = replace(built, data=replace(data, x_test=data.x_test - 1))
    with small.refused("text_cnn takes token ids from 0, the data have ids from -1"):
        built.build_network("cpu")
    (doubt,) = list_doubts(Mock(), built.data)
    assert doubt == "there are token ids from -1; the models of fedray with embeddings take ids from 0"


def test_a_part_of_an_npz_file(tmp_path: Path, call: Call) -> None:
    """Of 8 and 4 samples 6 are 4 and 2, each with its label and client; the test set stays. Half of the twelve clients
    lose their sample and keep their number; with the test samples each has one more."""
    y, clients = np.repeat([0, 1], [8, 4]), np.arange(12)
    x = clients[:, None].astype(np.float32)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y, client_train=clients, client_test=clients)
    whole, part = (load("npz", path=str(tmp_path / "own.npz"), train_samples=samples) for samples in (None, 6))
    assert np.bincount(part.y_train).tolist() == [4, 2]
    assert (part.x_train[:, 0] == part.client_train).all()
    assert (part.y_train == y[part.client_train]).all()
    np.testing.assert_array_equal(part.x_test, whole.x_test)
    for data, more in ((part, 0), (part.merge(), 1)):
        sizes = PARTITIONS["natural"](min_size=0).split(data, 12, 0).sizes
        np.testing.assert_array_equal(sizes, np.bincount(part.client_train, minlength=12) + more)
    given = ("--set", f"data.path={tmp_path / 'own.npz'}", "--set", "data.train_samples=6")
    assert "6 training and 12 test samples" in call("data", "check", "npz", *given).out
    said = r"^data\.train_samples: found 13; at most 12, all training samples, is allowed$"
    with pytest.raises(UserError, match=said):
        load("npz", path=str(tmp_path / "own.npz"), train_samples=13)


def test_a_long_tail_has_the_published_sizes_and_keeps_images(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10-LT and CIFAR-100-LT at ratio 100, as LDAM-DRW's code gives them with imb_factor 0.01."""
    assert count_long_tail(5000, 10, 100) == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert (sum(count_long_tail(5000, 10, 100)), sum(count_long_tail(500, 100, 100))) == (12_406, 10_847)
    assert count_long_tail(500, 100, 1) == [500] * 100
    # Five images of each class: 5^(1 - c/9) is 5, 4.2, 3.5, 2.9, 2.4, 2.0, 1.7, 1.4, 1.2, 1.
    files.cifar(root, monkeypatch, "CIFAR10", labels=list(range(10)))
    whole, tail = load("cifar10"), load("cifar10", imbalance=5)
    assert np.bincount(tail.y_train).tolist() == [5, 4, 3, 2, 2, 2, 1, 1, 1, 1]
    held = {(image.tobytes(), int(label)) for image, label in zip(whole.x_train, whole.y_train, strict=True)}
    kept = {(image.tobytes(), int(label)) for image, label in zip(tail.x_train, tail.y_train, strict=True)}
    assert kept < held
    assert len(kept) == 22
    np.testing.assert_array_equal(tail.x_test, whole.x_test)
    assert tail.digest == load("cifar10", imbalance=5).digest != whole.digest
    assert load("cifar10", imbalance=1).digest == whole.digest


TWO_SELECTIONS = "imbalance: found 10 and train_samples 100; one of them is allowed"
NO_IMAGE_LEFT = "imbalance: found 501, which leaves the last class no image; the largest allowed is 500"


@each(
    ("cifar100", {"imbalance": 10, "train_samples": 100}, TWO_SELECTIONS),
    ("cifar100", {"imbalance": 501}, NO_IMAGE_LEFT),
    ("synthetic", {"classes": 1}, "classes: found 1"),
    ("synthetic", {"shape": [3, 32]}, "shape"),
    ("synthetic", {"test_samples": 3, "clients": 5}, "test_samples: found 3; 5 clients need a sample each"),
)
def test_what_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^data\.{message}"):
        load(name, **options)


def test_made_data_are_what_was_asked_for_and_always_the_same() -> None:
    """230 labels of 100 classes in turn: 3 of each of the first 30 classes, 2 of the others. Each of 20 clients has
    samples, some of them many."""
    asked = {"classes": 100, "shape": [1, 28, 20], "train_samples": 230, "test_samples": 100}
    data, natural = load("synthetic", **asked), load("synthetic", **asked, clients=20)
    assert (data.x_train.shape, data.x_train.dtype) == ((230, 1, 28, 20), np.uint8)
    assert np.bincount(data.y_train).tolist() == [3] * 30 + [2] * 70
    assert (len(data.y_test), data.num_classes, data.client_train) == (100, 100, None)
    assert data.digest == load("synthetic", **asked).digest
    means = [replace(data, mean=(np.float64(0.5),), std=(np.float64(1),)) for _ in range(2)]
    with np.printoptions(legacy="1.25"):  # `0.5` in place of `np.float64(0.5)`
        found = means[0].digest
    assert data.digest != found == means[1].digest
    assert (data.x_train[:100] != data.x_test).any(), "train and test have noise of their own"
    sizes = np.bincount(natural.client_train, minlength=20)
    assert sizes.min() >= 1
    assert sizes.max() > 3 * np.median(sizes)
    assert np.bincount(natural.client_test, minlength=20).min() >= 1
    data = load("synthetic_text", classes=9, length=5, train_samples=300, test_samples=20, clients=7)
    assert data.tokens
    assert (data.x_train.shape, data.num_classes) == ((300, 5), 9)
    whole = np.concatenate([data.x_train, data.y_train[:, None]], axis=1)
    assert set(np.unique(np.diff(whole.astype(int), axis=1) % 9)) == {1, 2, 3}
    assert set(np.unique(data.client_train)) == set(range(7))


def test_keras_arrays_of_another_number_are_refused(root: Path) -> None:
    x, y = files.pixels(50, 28, 28), np.arange(50) % 10
    np.savez(root / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(UserError, match=r"mnist\.npz has x_train of uint8 and shape \(50, 28, 28\), .* 60000 images"):
        load("mnist")


def truncate(path: str) -> Callable[[Path], None]:
    return lambda root: os.truncate(root / path, (root / path).stat().st_size // 2)


def write(path: str, content: bytes) -> Callable[[Path], None]:
    return lambda root: (root / path).write_bytes(content) and None


def table(rows: bytes) -> Callable[[Path], None]:
    return write("fed_isic2019/train_test_split", b"image,target,center,fold\n" + rows)


def remove(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path).unlink()


def replace_by_pipe(path: str) -> Callable[[Path], None]:
    """Reading would wait for it."""
    return lambda root: (root / path).unlink() or os.mkfifo(root / path)


def of_mnist(**arrays: np.ndarray) -> Callable[[Path], None]:
    return lambda root: files.mnist(root, **arrays) and None


def leaf_with(x: Any, y: list[Any], count: int | None = None, name: str = "femnist") -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        path = next((root / name / "train").glob("*.json"))
        said = [len(y) if count is None else count]
        path.write_text(json.dumps({"users": ["u"], "num_samples": said, "user_data": {"u": {"x": x, "y": y}}}))

    return apply


def leave_nobody(root: Path) -> None:
    for path in (root / "femnist/train").glob("*.json"):
        path.write_text('{"users": [], "num_samples": [], "user_data": {}}')


def picture(path: str, width: int, height: int) -> Callable[[Path], None]:
    return lambda root: files.Image.new("RGB", (width, height)).save(root / path)


def shakespeare(root: Path) -> None:
    files.leaf(root, "shakespeare", {part: {"A": (["a" * 80], ["b"])} for part in ("train", "test")})


MAKE: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "mnist": lambda root, _: files.mnist(root), "cifar10": lambda root, patch: files.cifar(root, patch, "CIFAR10"),
    "pathmnist": lambda root, _: files.medmnist(root, "pathmnist"),
    "cinic10": lambda root, _: files.cinic(root, CIFAR_CLASSES), "femnist": lambda root, _: femnist(root),
    "shakespeare": lambda root, _: shakespeare(root), "fed_isic2019": lambda root, _: files.isic(root),
    "tiny_imagenet": lambda root, _: files.tiny_imagenet(root), "ag_news": lambda root, _: files.ag_news(root),
}  # fmt: skip
VAL, RAW = "tiny-imagenet-200/val/val_annotations.txt", "MNIST/raw/train-images-idx3-ubyte"
LESION = "fed_isic2019/ISIC_2019_Training_Input_preprocessed/ISIC_0000001.jpg"
MADE_OR_OWN = {"arrays", "digits", "npz", "folder", "domains", "csv", "synthetic", "synthetic_text"}


@each(
    ("mnist", truncate(RAW), ["mnist", "cannot be read"]),
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
    ("cinic10", picture("cinic-10/test/dog/dog_0.png", 32, 31), ["dog_0.png", "32x31"]),
    ("cinic10", lambda root: (root / "cinic-10/train/zebra").mkdir(), ["zebra", "allowed"]),
    ("femnist", leaf_with(5, [1]), ["user 'u' has no lists x and y"]),
    ("femnist", leave_nobody, ["no user has samples in", "femnist/train"]),
    ("femnist", leaf_with([[1.5] * 784], [1]), ["784", "[0, 1]"]),
    ("femnist", leaf_with([[0.5] * 784], [62]), ["62", "0..61"]),
    ("femnist", leaf_with([[0.5] * 784], [1], count=2), ["num_samples says 2"]),
    ("femnist", lambda root: truncate(str(next((root / "femnist/test").glob("*.json"))))(root), ["not a LEAF json"]),
    ("shakespeare", leaf_with(["a" * 79], ["b"], name="shakespeare"), ["80 characters"]),
    ("shakespeare", leaf_with(["a" * 79 + "é"], ["b"], name="shakespeare"), ["é"]),
    ("fed_isic2019", remove(LESION), ["ISIC_0000001"]),
    ("fed_isic2019", table(b""), ["no image of fold train"]),
    ("fed_isic2019", table(b"../../x,1,0,train\n"), ["line 2 has no image", "'../../x' is not the name of an image"]),
    ("fed_isic2019", table(b"a,1,1_1,train\n"), ["line 2"]),
    ("fed_isic2019", picture(LESION, 300, 190), ["ISIC_0000001.jpg has 300x190 pixels, at least 200x200"]),
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
)
def test_what_is_wrong_with_the_files_is_one_line_and_leaves_nothing(
    name: str, spoil: Callable[[Path], None], words: list[str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MAKE[name](root, monkeypatch)
    load(name)
    shutil.rmtree(root / ".fedray-cache", ignore_errors=True)
    spoil(root)
    with small.refused("") as error:
        load(name)
    assert all(word in str(error.value) for word in words), error.value
    assert cached(root) == []


@pytest.mark.parametrize("name", sorted(DATASETS.keys() - MADE_OR_OWN))
def test_without_files_one_line_says_what_is_missing(root: Path, name: str) -> None:
    """Loading names a file and the command that helps; fetching is tested on a machine without network."""
    with pytest.raises(UserError, match=rf"data\.name: {name} is not in .* is missing; `fedray data fetch {name}`"):
        load(name)
    kind = DATASETS[name]
    assert kind.files
    assert kind.published.size or kind.published.train
