"""Pictures in class folders, written here, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedray.common.errors import UserError
from tests.datasets.files import load, pixels

COLOURS = {"cat": (10, 20, 30), "dog": (40, 50, 60)}


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def animals(root: Path, per_class: int = 2) -> None:
    for kind, colour in COLOURS.items():
        for i in range(per_class):
            picture(root / kind / f"{i}.png", colour)


def test_a_folder_per_class_in_train_and_test(root: Path) -> None:
    """Labels by sorted names; a wide picture is cut at both sides; grey is 0.299 R + 0.587 G + 0.114 B."""
    animals(root / "own/train")
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 200
    (root / "own/test/dog").mkdir(parents=True)
    Image.fromarray(wide).save(root / "own/test/dog/wide.png")
    data = load("folder", path=str(root / "own"), size=4)
    assert (data.x_train.shape, data.y_train.tolist(), data.y_test.tolist()) == ((4, 3, 4, 4), [0, 0, 1, 1], [1])
    assert [tuple(int(x) for x in image[:, 0, 0]) for image in data.x_train[::2]] == list(COLOURS.values())
    np.testing.assert_array_equal(data.x_test, np.full((1, 3, 4, 4), 200))
    grey = load("folder", path=str(root / "own"), size=4, channels=1)
    assert (grey.x_train.shape[1], int(grey.x_train[0, 0, 0, 0])) == (1, round(0.299 * 10 + 0.587 * 20 + 0.114 * 30))


def test_clients_above_classes_and_a_split(root: Path) -> None:
    """A fifth of each client's five pictures of each class; the same ones each time."""
    for client in ("b", "a"):
        for kind in COLOURS:
            for i in range(5):
                (root / "own" / client / kind).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels(6, 6, 3)).save(root / "own" / client / kind / f"{i}.PNG")
    data = load("folder", path=str(root / "own"), size=6, split=0.2, client="folder")
    assert data.client_train is not None
    assert data.client_test is not None
    assert data.client_test.tolist() == [0, 0, 1, 1]
    assert data.y_test.tolist() == [0, 1, 0, 1]
    assert np.bincount(data.client_train * 2 + data.y_train).tolist() == [4] * 4
    assert load("folder", path=str(root / "own"), size=6, split=0.2, client="folder").digest == data.digest


def folders(root: Path) -> None:
    animals(root / "flat")
    animals(root / "parts/train")
    animals(root / "parts/test")
    picture(root / "more/train/cat/0.png", COLOURS["cat"])
    animals(root / "more/test")
    (root / "none").mkdir()
    (root / "text/cat").mkdir(parents=True)
    (root / "text/cat/0.png").write_text("hello")
    (root / "text/cat/1.png").write_text("hello")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"path": "absent"}, "data.path: absent is not a folder"),
    ({"path": "flat"}, "data.split is required: flat does not hold the folders train and test"),
    ({"path": "parts", "split": 0.5}, "data.split: found 0.5; parts holds the folders train and test"),
    ({"path": "none", "split": 0.5}, "data.path: none holds no folder; a folder per class is required"),
    ({"path": "parts/..", "split": 0.5}, "needs `client: folder`"),
    ({"path": "more"}, "data.path: more/test/dog/0.png: no training picture is of that class and client"),
    ({"path": "flat", "split": 0.1}, "data.split: found 0.1, which leaves no picture for the test set"),
    ({"path": "text", "split": 0.5}, "cannot be read: UnidentifiedImageError"),
    ({"path": "flat", "split": 0.5, "size": 0}, "data.size: found 0; input should be greater than 0"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str) -> None:
    monkeypatch.chdir(root)
    folders(root)
    with pytest.raises(UserError) as refused:
        load("folder", **{"size": 4, **options})
    assert message in str(refused.value)
