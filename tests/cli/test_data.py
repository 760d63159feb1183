"""`fedray data fetch | check | show`, as a user calls them."""

import contextlib
import io
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets
from typer.testing import CliRunner

from fedray.cli.data import data_app
from fedray.common.errors import UserError
from fedray.datasets import make_data_source
from tests.datasets import files


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> str:
    """Return the output; a UserError is raised, as the main program expects it."""
    result = CliRunner().invoke(data_app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_show_writes_the_picture_and_the_numbers(root: Path) -> None:
    """1,437 training samples; one shard each, cut by class: every client has one class, so distances are 0 or 1.

    20 clients, 2 per class: 20 · 18 / 2 = 180 of 190 pairs are of different classes, 180/190 = 0.947.
    """
    one_class = ("--partition", "sharding", "--shards", "1", "--set", "partition.sizes=by_class")
    out = call("show", "digits", *one_class, "--clients", "20", "--out", "a.png")
    assert (root / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "1437 samples, 20 clients (0 empty), 1.00 of 10 classes per client" in out
    assert "total-variation distance 0.947" in out
    call("show", "digits", "--alpha", "0.1", "--clients", "20", "--set", "partition.min_size=2", "--seed", "1")
    assert (root / "digits_dirichlet_20.png").exists()


def test_check_compares_with_what_is_published(root: Path) -> None:
    assert "as published" in call("check", "digits")
    files.mnist(root)
    with pytest.raises(UserError, match="mnist is not as published: training samples: found 60, published 60000"):
        call("check", "mnist")
    files.mnist(root, train_y=files.np.arange(60) % 9, t10k_y=files.np.arange(20) % 9)
    with pytest.raises(UserError, match="classes: found 9, published 10"):
        call("check", "mnist")


def test_check_counts_the_natural_clients_that_have_test_samples(root: Path) -> None:
    """Only 2 of the ids 0, 1, 2 occurs among the test samples."""
    x, y = np.zeros((6, 2), np.float32), np.arange(6) % 2
    clients = {"client_train": np.arange(6) % 3, "client_test": np.arange(6) + 2}
    np.savez("own.npz", x_train=x, y_train=y, x_test=x, y_test=y, **clients)
    assert ", 3 natural clients, 1 with test samples\n" in call("check", "npz", "--set", "data.path=own.npz")


def test_check_knows_what_options_change() -> None:
    """20 % of EMNIST, MedMNIST with and without val, CINIC-10 with valid: 697,932 / 5, 89,996 + 10,004, 180,000."""
    for value, train in (
        ({"name": "emnist", "fraction": 0.2}, 139_586),
        ({"name": "pathmnist", "validation_images": "unused"}, 89_996),
        ({"name": "cinic10", "validation_images": "train"}, 180_000),
    ):
        expected = make_data_source(value).get_expected()
        assert expected is not None
        assert expected.train == train


def test_fetch_goes_through_torchvision(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Downloads:
        def __init__(self, folder: str, download: bool, **arguments: Any) -> None:
            asked.append((folder, download, arguments))

    monkeypatch.setattr(torchvision.datasets, "SVHN", Downloads)
    assert f"svhn: in {root}" in call("fetch", "svhn")
    assert asked == [(str(root), True, {"split": "train"}), (str(root), True, {"split": "test"})]


@pytest.mark.parametrize("name", ["mnist", "pathmnist", "ag_news"])
def test_fetch_without_network_says_what_to_put_where(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(UserError, match=rf"data\.name: {name} could not be downloaded .*; put .* in {root}") as error:
        call("fetch", name)
    assert "\n" not in str(error.value)
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_a_download_with_a_wrong_checksum_is_not_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: contextlib.closing(io.BytesIO(b"half")))
    with pytest.raises(UserError, match="pathmnist: the download has md5"):
        call("fetch", "pathmnist")
    assert list(root.iterdir()) == []


Y, IMAGES = np.arange(12) % 3, np.zeros((12, 8, 8, 3), np.float32)
DOUBTS: dict[str, tuple[np.ndarray, np.ndarray, list[str]]] = {
    "nothing": (IMAGES.transpose(0, 3, 1, 2), Y, []),
    "channels last": (IMAGES, Y, ["samples have shape (8, 8, 3): channels come last;"]),
    "images of floats up to 255": (
        IMAGES.transpose(0, 3, 1, 2) + 254,
        Y,
        ["values are those of pixels, 0 to 254: float32 is used as it is; save uint8, or divide by 255"],
    ),
    "rows of pixels": (np.eye(12, 4) * 255, Y, ["values are those of pixels, 0 to 255: float32 is used as it is;"]),
    "rows of other numbers": (np.eye(12, 4) * 254.5, Y, []),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_check_doubts_arrays_of_ones_own(root: Path, case: str) -> None:
    x, y, expected = DOUBTS[case]
    x = x if x.dtype == np.uint8 else x.astype(np.float32)
    np.savez(root / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    out = call("check", "npz", "--set", "data.path=own.npz").splitlines()
    found = [line for line in out if line.startswith("warning: ")]
    assert len(found) == len(expected)
    assert all(line.startswith(f"warning: {words}") for line, words in zip(found, expected, strict=True))


def test_check_names_what_nothing_reads_and_what_is_read_twice(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second sample is in both sets; no sample has the labels 0 and 2."""
    x = np.eye(3, dtype=np.float32)
    arrays = {"x_train": x, "y_train": np.array([1, 3, 4]), "x_test": np.stack([x[1], 2 * x[0]])}
    arrays["y_test"] = np.array([3, 1])
    np.savez(root / "own.npz", **arrays, x_valid=x, X_train=x)
    out = call("check", "npz", "--set", "data.path=own.npz")
    assert "warning: nothing reads the arrays 'X_train', 'x_valid' of own.npz\n" in out
    assert "data: 1 of 2 test samples have the same inputs as a training sample;" in caplog.text
    assert "data: 2 of 5 outputs of the model have no training sample: 0, 2" in caplog.text
