"""Data sets of Hugging Face from local folders: pictures, numbers, clients, and what is refused."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from fedray.common.errors import UserError
from fedray.datasets.own.hub import Columns, read_hub
from tests.conftest import Hide
from tests.datasets.files import load


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of `datasets` in the test's folder, and no network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def save(folder: Path, columns: dict[str, Any], features: dict[str, Any] | None = None, split: str = "train") -> Path:
    """Write a split as the hub holds it: a parquet file."""
    folder.mkdir(exist_ok=True)
    described = None if features is None else datasets.Features(features)
    datasets.Dataset.from_dict(columns, features=described).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def pictures(folder: Path, mode: str = "RGB", labels: tuple[list[int], list[int]] = ([0, 1, 1], [1])) -> Path:
    """The k-th picture of a split has the red value 10 k everywhere; with a column of writers."""
    features = {
        "image": datasets.Image(),
        "kind": datasets.ClassLabel(names=["cat", "dog"]),
        "writer": datasets.Value("string"),
    }
    for split, ys in zip(("train", "test"), labels, strict=True):
        colours = [(10 * k, 1, 2) if mode == "RGB" else 10 * k for k in range(len(ys))]
        columns = {
            "image": [Image.new(mode, (4, 3), colour) for colour in colours],
            "kind": ys,
            "writer": ["z", "a", "z"][: len(ys)],
        }
        save(folder, columns, features, split)
    return folder


def test_pictures_with_classes_and_clients(tmp_path: Path) -> None:
    """Channels come last, as in any npz; writers are numbered in sorted order over both splits: a, z."""
    found = read_hub(str(pictures(tmp_path / "own")), Columns(client="writer"))
    assert found["x_train"].dtype == np.uint8
    assert found["x_train"].shape == (3, 3, 4, 3)
    assert found["x_train"][:, 0, 0].tolist() == [[0, 1, 2], [10, 1, 2], [20, 1, 2]]
    assert (found["y_train"].tolist(), found["y_test"].tolist()) == ([0, 1, 1], [1])
    assert (found["client_train"].tolist(), found["client_test"].tolist()) == ([1, 0, 1], [1])


def test_grey_pictures_and_the_npz(tmp_path: Path) -> None:
    found = read_hub(str(pictures(tmp_path / "own", mode="L")), Columns(size=2))
    assert found["x_train"].shape == (3, 2, 2)
    np.savez(tmp_path / "own.npz", **found)
    data = load("npz", path=str(tmp_path / "own.npz"))
    assert (data.input_shape, data.num_classes) == ((1, 2, 2), 2)


def test_pictures_of_16_bits_are_scaled_and_one_that_is_none_is_named(tmp_path: Path) -> None:
    """63,000 of 65,535 is 245 of 255; clipped, it would be 255. PostScript is no picture: no program is started."""
    for split, kind in itertools.product(("train", "test"), ("cat", "dog")):
        (tmp_path / "own" / split / kind).mkdir(parents=True)
        Image.fromarray(np.full((2, 2), 63_000, np.uint16)).save(tmp_path / "own" / split / kind / "0.png")
    found = read_hub(str(tmp_path / "own"), Columns())
    assert (found["x_train"].shape, found["x_train"].max()) == ((2, 2, 2), 245)
    (tmp_path / "own/test/cat/0.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n")
    with pytest.raises(
        UserError, match=r"own: test: picture 0 \(.*cat/0\.png\) cannot be read: UnidentifiedImageError"
    ):
        read_hub(str(tmp_path / "own"), Columns())


def test_pictures_in_class_folders(tmp_path: Path) -> None:
    """The hub's other format: train/CLASS/*.png."""
    for split, kind in (("train", "cat"), ("train", "dog"), ("test", "dog")):
        (tmp_path / "own" / split / kind).mkdir(parents=True)
        Image.new("RGB", (2, 2), (1, 2, 3)).save(tmp_path / "own" / split / kind / "0.png")
    (tmp_path / "own/test/cat").mkdir()
    Image.new("RGB", (2, 2), (4, 5, 6)).save(tmp_path / "own/test/cat/0.png")
    found = read_hub(str(tmp_path / "own"), Columns())
    assert found["y_train"].tolist() == [0, 1]
    assert found["x_test"][found["y_test"] == 0, 0, 0].tolist() == [[4, 5, 6]]


def test_numbers_and_slices_of_a_split(tmp_path: Path) -> None:
    """Three rows to train on and one to test on; texts as classes in sorted order; a list counts as its entries."""
    columns = {"a": [1, 2, 3, 4], "b": [[0.5, 1.5]] * 4, "label": ["no", "yes", "no", "yes"]}
    folder = save(tmp_path / "own", columns)
    found = read_hub(str(folder), Columns("train[:75%]", "train[75%:]"))
    assert found["x_train"].tolist() == [[1, 0.5, 1.5], [2, 0.5, 1.5], [3, 0.5, 1.5]]
    assert found["x_train"].dtype == np.float32
    assert (found["y_train"].tolist(), found["y_test"].tolist()) == ([0, 1, 0], [1])


@pytest.mark.parametrize(
    ("train", "test", "row"),
    [
        ("train", "train", 0),
        ("train[:80%]", "train[70%:]", 7),
        ("train[5:]+train[:3]", "train[2:5]", 2),
        ("all", "test", 0),
        ("train[:80%]", "train[80%:]", None),
        ("train[5:]+train[:2]", "train[2:5]", None),
        ("train", "test", None),
    ],
)
def test_slices_that_share_rows_are_refused(train: str, test: str, row: int | None, tmp_path: Path) -> None:
    """Ten rows of train and of test: 80 % are rows 0 to 7, the last 30 % begin with row 7."""
    columns = {"a": list(range(10)), "label": [0, 1] * 5}
    folder = save(save(tmp_path / "own", columns), {"a": list(range(10, 20)), "label": [0, 1] * 5}, split="test")
    if row is None:
        read_hub(str(folder), Columns(train, test))
        return
    with pytest.raises(UserError) as found:
        read_hub(str(folder), Columns(train, test))
    split = "test" if test == "test" else "train"
    assert str(found.value).startswith(
        f"hf:{folder}: --train {train} and --test {test} share row {row} of {split}; slices"
    )


def test_what_is_refused(tmp_path: Path) -> None:
    own = str(pictures(tmp_path / "own"))
    numbers = str(save(save(tmp_path / "numbers", {"a": [1], "c": [0]}), {"a": [1], "c": [0]}, split="test"))
    texts = str(save(save(tmp_path / "texts", {"a": ["x"], "label": [0]}), {"a": ["x"], "label": [0]}, split="test"))
    forms = {"a": [1, 2], "label": ["Ko\u0308ln", "K\u00f6ln"]}
    spelled = str(save(save(tmp_path / "spelled", forms), forms, split="test"))
    unlabelled = str(pictures(tmp_path / "unlabelled", labels=([0, 1], [-1])))
    uneven = tmp_path / "uneven"
    for split in ("train", "test"):
        columns = {"image": [Image.new("L", (2, 2)), Image.new("L", (3, 2))], "label": [0, 1]}
        save(uneven, columns, {"image": datasets.Image(), "label": datasets.Value("int64")}, split)
    cases = [
        (own, Columns(test="dev"), r"^hf:.*own: --test dev cannot be read: ValueError: .*dev.*$"),
        (str(tmp_path / "absent"), Columns(), r"^hf:.*absent: --train train cannot be read: .+$"),
        (own, Columns(label="kid"), r"^--label: unknown name 'kid'; did you mean 'kind'\? valid: image, kind, writer$"),
        (own, Columns(client="user"), r"^--client: unknown name 'user'; .*"),
        (numbers, Columns(), r"^--label is required: hf:.*numbers has the columns a, c$"),
        (
            spelled,
            Columns(),
            r"^hf:.*spelled: column label: found 'Ko\\u0308ln' and 'K\\xf6ln', two spellings",
        ),
        (texts, Columns(), r"^hf:.*texts: train: column a holds neither numbers nor pictures; .* is required$"),
        (
            unlabelled,
            Columns(),
            r"^hf:.*unlabelled: column kind: found -1, which marks samples without a class; .+$",
        ),
        (str(uneven), Columns(), r"^--size is required: hf:.*uneven: train: picture 1 has 3x2 pixels, the first 2x2$"),
    ]
    for name, columns, message in cases:
        with pytest.raises(UserError, match=message) as refused:
            read_hub(name, columns)
        assert "\n" not in str(refused.value)


def test_without_the_package_one_line_says_how_to_get_it(hide_package: Hide) -> None:
    hide_package("datasets")
    with pytest.raises(UserError, match=r"^hf: datasets is not installed; pip install 'fedray\[hf\]' adds it$"):
        read_hub("mnist", Columns())


def test_without_network_it_says_so_in_one_line(tmp_path: Path) -> None:
    """No server listens at the port. Before, 24 s and 23 lines."""
    command = [sys.executable, "-P", "-m", "fedray.cli", "data", "import", "hf:nobody/nothing", "out.npz"]
    variables = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "cache")}
    variables |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert found.returncode == 2
    assert found.stderr.startswith("fedray: hf:nobody/nothing: --train train cannot be read: ")
    assert found.stderr.count("\n") == 1
