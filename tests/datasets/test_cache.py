"""The cache appears whole or not at all."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedray.common.errors import UserError
from fedray.datasets import cache
from fedray.datasets.cache import cached, partial_name

Arrays = dict[str, np.ndarray]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))
    (tmp_path / "source").write_text("x")
    return tmp_path / "source"


def counting(arrays: Arrays) -> tuple[Callable[[], Arrays], list[int]]:
    calls: list[int] = []

    def decode() -> Arrays:
        calls.append(1)
        return arrays

    return decode, calls


def test_decoded_once_read_only_and_mapped(source: Path) -> None:
    decode, calls = counting({"a": np.arange(6, dtype=np.uint8).reshape(2, 3)})
    for _ in range(2):
        found = cached("d", "1", [source], decode)["a"]
        assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert isinstance(found, np.memmap)
        assert not found.flags.writeable
    assert len(calls) == 1
    cached("d", "2", [source], decode)
    source.write_text("longer")
    cached("d", "2", [source], decode)
    assert len(calls) == 3


def test_an_interrupted_decoding_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not where it stops between two files."""
    saved = np.save

    def full_disk(path: Path, array: np.ndarray) -> None:
        if path.stem == "b":
            raise OSError("No space left on device")
        saved(path, array)

    monkeypatch.setattr(cache.np, "save", full_disk)
    with pytest.raises(UserError, match="cannot be written: No space left"):
        cached("d", "1", [source], lambda: {"a": np.zeros(3), "b": np.zeros(3)})
    assert list((source.parent / ".fedray-cache").iterdir()) == []


def test_two_processes_at_once(source: Path) -> None:
    """The second to finish finds the folder there, takes it and removes its own."""
    inner, _ = counting({"a": np.ones(2)})

    def decode() -> Arrays:
        cached("d", "1", [source], inner)
        return {"a": np.zeros(2)}

    assert cached("d", "1", [source], decode)["a"].tolist() == [1, 1]
    assert len(list((source.parent / ".fedray-cache").iterdir())) == 1


def test_a_partial_name_becomes_the_file_or_goes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with partial_name(path) as partial:
        partial.write_text("done")
        assert not path.exists()
    assert path.read_text() == "done"
    with contextlib.suppress(ValueError), partial_name(path) as partial:
        partial.write_text("half")
        raise ValueError
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "done"
