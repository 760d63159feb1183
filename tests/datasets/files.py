"""Writers of small data sets in exactly the published file formats, and how the tests read them."""

import csv
import hashlib
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets
from PIL import Image
from scipy.io import savemat

from fedray.datasets import DATASETS, make_data_source
from fedray.datasets.dataset import Dataset

RNG = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    """Random uint8 images."""
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def idx(path: Path, array: np.ndarray) -> None:
    """LeCun's idx format: two zero bytes, 8 for unsigned bytes, the number of dimensions, the sizes (big-endian)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    path.write_bytes(content)


def mnist(root: Path, kind: str = "MNIST", **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """60 and 20 images of 10 classes, unless arrays `train`, `train_y`, `t10k`, `t10k_y` are given."""
    for part, n in (("train", 60), ("t10k", 20)):
        arrays = {part: pixels(n, 28, 28), f"{part}_y": np.arange(n) % 10} | arrays
        idx(root / kind / "raw" / f"{part}-images-idx3-ubyte", arrays[part])
        idx(root / kind / "raw" / f"{part}-labels-idx1-ubyte", arrays[f"{part}_y"])
    return arrays


def md5(path: Path) -> str:
    """As torchvision lists it."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def cifar(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: str, labels: list[int] | None = None
) -> tuple[np.ndarray, list[int]]:
    """Pickled batches of 10 rows of 3,072 bytes; torchvision's checksums are those of these files. The training set.

    The labels are random, unless those of every batch are given."""
    ten = kind == "CIFAR10"
    folder = root / ("cifar-10-batches-py" if ten else "cifar-100-python")
    folder.mkdir(parents=True)
    key, train = ("labels", [f"data_batch_{i}" for i in range(1, 6)]) if ten else ("fine_labels", ["train"])
    test, meta = ("test_batch", "batches.meta") if ten else ("test", "meta")
    rows, found_labels = list[np.ndarray](), list[int]()
    for name in (*train, test):
        drawn = labels or [int(i) for i in RNG.integers(0, 10, 10)]
        batch: dict[str, Any] = {"data": pixels(10, 3072), key: drawn}
        if not ten:
            batch["coarse_labels"] = [0] * 10
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        if name != test:
            rows.append(batch["data"])
            found_labels += drawn
    (folder / meta).write_bytes(pickle.dumps({"label_names": ["x"] * 10, "fine_label_names": ["x"] * 100}, protocol=2))
    found = getattr(torchvision.datasets, kind)
    monkeypatch.setattr(found, "train_list", [[name, md5(folder / name)] for name in train])
    monkeypatch.setattr(found, "test_list", [[test, md5(folder / test)]])
    monkeypatch.setattr(found, "meta", found.meta | {"md5": md5(folder / meta)})
    return np.concatenate(rows), found_labels


def svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """MATLAB files with X (32, 32, 3, n) and y (n, 1) in 1..10, 10 for the digit 0. The training set."""
    root.mkdir(parents=True, exist_ok=True)
    lists, first = dict[str, list[str]](), list[np.ndarray]()
    for part, n in (("train", 30), ("test", 12)):
        x, y = pixels(32, 32, 3, n), (np.arange(n) % 10 + 1).astype(np.uint8)[:, None]
        path = root / f"{part}_32x32.mat"
        savemat(path, {"X": x, "y": y})
        lists[part] = ["url", path.name, md5(path)]
        first += [x, y]
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", lists)
    return first[0], first[1]


def medmnist(root: Path, name: str, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """The six arrays of a 28x28 set, labels `(n, 1)`."""
    facts = DATASETS[name].published
    root.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", 20), ("val", 6), ("test", 8)):
        shape = (n, 28, 28, 3) if facts.shape[0] == 3 else (n, 28, 28)
        labels = np.arange(n, dtype=np.uint8)[:, None] % min(facts.classes, 8)
        arrays = {f"{part}_images": pixels(*shape), f"{part}_labels": labels} | arrays
    np.savez_compressed(root / f"{name}.npz", **arrays)
    return arrays


def cinic(root: Path, classes: tuple[str, ...]) -> dict[tuple[str, int], np.ndarray]:
    """Two PNGs per class and folder; the first of each."""
    first = {}
    for part in ("train", "valid", "test"):
        for label, kind in enumerate(classes):
            folder = root / "cinic-10" / part / kind
            folder.mkdir(parents=True)
            for i in range(2):
                image = pixels(32, 32, 3)
                Image.fromarray(image).save(folder / f"{kind}_{i}.png")
                first.setdefault((part, label), image)
    return first


WNIDS = ("n02124075", "n01443537")
"""Two of the 200 classes, in an order that is not sorted, as in wnids.txt."""


def tiny_imagenet(root: Path) -> dict[str, int]:
    """Three pictures of each class for training and two for val, each of one grey value. File -> grey value."""
    folder, grey = root / "tiny-imagenet-200", {}

    def save(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        grey[path.name] = value = 10 * (len(grey) + 1)
        mode, colour = ("L", value) if len(grey) % 2 else ("RGB", (value,) * 3)
        Image.new(mode, (64, 64), colour).save(path)

    for kind in WNIDS:
        for i in range(3):
            save(folder / "train" / kind / "images" / f"{kind}_{i}.JPEG")
        boxes = "".join(f"{kind}_{i}.JPEG\t0\t10\t63\t58\n" for i in range(3))
        (folder / "train" / kind / f"{kind}_boxes.txt").write_text(boxes)
    (folder / "wnids.txt").write_text("".join(f"{kind}\n" for kind in WNIDS))
    for i in range(4):
        save(folder / "val" / "images" / f"val_{i}.JPEG")
    lines = "".join(f"val_{i}.JPEG\t{WNIDS[i % 2]}\t0\t32\t44\t62\n" for i in range(4))
    (folder / "val" / "val_annotations.txt").write_text(lines)
    (folder / "test" / "images").mkdir(parents=True)
    return grey


def ag_news(root: Path) -> None:
    """The published csv: class, title and description in quotes, doubled inside; a backslash for a line break."""
    (root / "ag_news_csv").mkdir(parents=True, exist_ok=True)
    train = '"3","Wall St. Bears","Reuters - The ""band"" of bears, dwindling\\band of bears."\n'
    train += '"4","Bears\' chips","The chips #39;s"\n'
    (root / "ag_news_csv" / "train.csv").write_text(train, encoding="utf-8")
    (root / "ag_news_csv" / "test.csv").write_text('"1","Unheard","of bears"\n', encoding="utf-8")


def leaf(root: Path, name: str, users: dict[str, dict[str, tuple[list[Any], list[Any]]]]) -> None:
    """LEAF's folders; users: part -> user -> (x, y). Every user has a file of its own."""
    for part, found in users.items():
        (root / name / part).mkdir(parents=True, exist_ok=True)
        for i, (user, (x, y)) in enumerate(found.items()):
            content = {"users": [user], "num_samples": [len(y)], "user_data": {user: {"x": x, "y": y}}}
            (root / name / part / f"all_data_{i}_niid_0_keep_0_{part}_9.json").write_text(json.dumps(content))


def isic(root: Path) -> None:
    """FLamby's table and preprocessed JPEGs, one of (height, width) per row: centres 0, 1, 0 in training, 1 in test."""
    sizes = ((224, 300), (224, 224), (260, 224), (224, 224))
    folder = root / "fed_isic2019" / "ISIC_2019_Training_Input_preprocessed"
    folder.mkdir(parents=True)
    header = ["image", "MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK", "target", "center", "fold", "fold2"]
    with (root / "fed_isic2019" / "train_test_split").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(header)
        for i, (size, centre, fold) in enumerate(zip(sizes, (0, 1, 0, 1), ("train",) * 3 + ("test",), strict=True)):
            name = f"ISIC_{i:07d}"
            rows.writerow([name, *[0.0] * 9, i, centre, fold, f"{fold}_{centre}"])
            image = np.zeros((*size, 3), np.uint8)
            image[(size[0] - 200) // 2 : (size[0] + 200) // 2, (size[1] - 200) // 2 : (size[1] + 200) // 2] = 200
            Image.fromarray(image).save(folder / f"{name}.jpg", quality=95)


def femnist(root: Path) -> None:
    """Writers b (3 samples) and a (2) in training; a and c in test. Pixel k/255 comes back as k."""
    row = [k % 256 / 255 for k in range(784)]
    train, test = {"b": ([row] * 3, [0, 61, 5]), "a": ([row] * 2, [7, 8])}, {"a": ([row], [1]), "c": ([row], [2])}
    leaf(root, "femnist", {"train": train, "test": test})


def load(name: str, **options: Any) -> Dataset:
    return make_data_source({"name": name, **options}).load()


def cached(root: Path) -> list[str]:
    return sorted(p.name for p in (root / ".fedray-cache").glob("*")) if (root / ".fedray-cache").exists() else []
