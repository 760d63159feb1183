"""The cache and downloads appear whole and as published, or not at all."""

import contextlib
import errno
import io
import os
import shutil
import stat
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from fedray.common.errors import UserError
from fedray.datasets import cache, make_data_source
from fedray.datasets import text as ag_news
from fedray.datasets.cache import cache_arrays, write_data_file
from fedray.datasets.image_folders import TinyImageNet
from tests.datasets import files
from tests.datasets.files import load, md5
from tests.tracking.proxy import Quiet, serving

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
        found = cache_arrays("d", "1", [source], ["a"], decode)["a"]
        assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert isinstance(found, np.memmap)
        assert not found.flags.writeable
    assert len(calls) == 1
    cache_arrays("d", "2", [source], ["a"], decode)
    source.write_text("longer")
    cache_arrays("d", "2", [source], ["a"], decode)
    assert len(calls) == 3


def test_an_interrupted_decoding_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if it stops between two files; no folder above the cache either."""
    saved = np.save

    def full_disk(file: BinaryIO, array: np.ndarray) -> None:
        if Path(file.name).name.startswith("b.npy"):
            raise OSError("No space left on device")
        saved(file, array)

    monkeypatch.setenv("FEDRAY_DATA", str(source.parent / "far" / "away"))
    monkeypatch.setattr(cache.np, "save", full_disk)
    with pytest.raises(UserError, match="cannot be written: No space left"):
        cache_arrays("d", "1", [source], ["a"], lambda: {"a": np.zeros(3), "b": np.zeros(3)})
    assert list(source.parent.iterdir()) == [source]


def test_two_processes_at_once(source: Path) -> None:
    """The second to finish finds the folder there, takes it and removes its own, and what a killed one left."""
    inner, left = counting({"a": np.ones(2)})[0], source.parent / ".fedray-cache/.d-old"
    left.mkdir(parents=True)
    os.utime(left, (time.time() - cache.OLD - 60,) * 2)

    def decode() -> Arrays:
        cache_arrays("d", "1", [source], ["a"], inner)
        return {"a": np.zeros(2)}

    assert cache_arrays("d", "1", [source], ["a"], decode)["a"].tolist() == [1, 1]
    assert len(list((source.parent / ".fedray-cache").iterdir())) == 1


def test_whoever_the_umask_allows_can_read_what_is_made(source: Path) -> None:
    before = os.umask(0o007)
    try:
        cache_arrays("d", "1", [source], ["a"], counting({"a": np.zeros(2)})[0])
        with write_data_file(source.with_name("file")) as file:
            file.write(b"done")
    finally:
        os.umask(before)
    (made,) = (source.parent / ".fedray-cache").iterdir()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (made.parent, made, made / "a.npy", source.parent / "file")]
    assert modes == [0o770, 0o770, 0o660, 0o660]


def test_a_cache_that_cannot_be_read_or_is_empty_is_one_line(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root can read files that are closed to others, so the refusal is simulated here."""
    cache_arrays("d", "1", [source], ["a"], counting({"a": np.zeros(2)})[0])
    (made,) = (source.parent / ".fedray-cache").iterdir()
    closed = Mock(side_effect=PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(made)))
    with monkeypatch.context() as patched:
        patched.setattr(np, "load", closed)
        said = rf"^data\.name: d: the cache {made} cannot be read: Permission denied; let"
        with pytest.raises(UserError, match=said):
            cache_arrays("d", "1", [source], ["a"], dict)
    (made / "a.npy").write_bytes(b"")
    with pytest.raises(UserError, match=rf"the cache {made} is damaged; remove it: EOFError"):
        cache_arrays("d", "1", [source], ["a"], dict)
    (made / "a.npy").unlink()
    with pytest.raises(UserError, match=rf"the cache {made} is damaged; remove it: FileNotFoundError"):
        cache_arrays("d", "1", [source], ["a"], dict)


def exchange(root: Path) -> None:
    """Give two pictures each other's content; they keep their size and modification time."""
    one, other = root / "net/clipart/apple/0.bmp", root / "net/clipart/bird/0.bmp"
    contents = one.read_bytes(), other.read_bytes()
    assert len(contents[0]) == len(contents[1])
    for path, content in zip((other, one), contents, strict=True):
        path.write_bytes(content)
        os.utime(path, (10**9,) * 2)


def reverse_list(root: Path) -> None:
    path = root / "net/clipart_train.txt"
    path.write_text("\n".join(path.read_text().splitlines()[::-1]))


def domain_net(root: Path, lists: bool) -> None:
    """Eight pictures of each of two classes in a domain; a picture's red value tells its class, green its number."""
    for kind, red in (("apple", 10), ("bird", 200)):
        (root / "net/clipart" / kind).mkdir(parents=True)
        for i in range(8):
            path = root / "net/clipart" / kind / f"{i}.bmp"
            Image.new("RGB", (4, 4), (red, i, 0)).save(path)
            os.utime(path, (10**9,) * 2)
    for part, numbers in (("train", range(6)), ("test", range(6, 8))) if lists else ():
        lines = [f"clipart/{kind}/{i}.bmp 0" for kind in ("apple", "bird") for i in numbers]
        (root / f"net/clipart_{part}.txt").write_text("\n".join(lines))


CHANGES: dict[str, tuple[Callable[[Path], object], dict[str, object], dict[str, object]]] = {
    "classes in another order": (bool, {"split": 0.25}, {"classes": ["bird", "apple"]}),
    "more clients in a domain": (bool, {"split": 0.25}, {"clients_per_domain": 2}),
    "a list in another order": (reverse_list, {}, {}),
    "two pictures that exchange contents": (exchange, {}, {}),
}
"""What changes in the folder, the options, and what changes in them."""


@pytest.mark.parametrize("case", CHANGES)
def test_a_cached_data_set_is_as_one_decoded_anew(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key holds what decides the arrays: after a change they are those that an empty cache gives."""
    change, options, more = CHANGES[case]
    options = {"path": "net", "size": 4, **options}
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    domain_net(tmp_path, "split" not in options)
    before = load("domains", **options).digest
    change(tmp_path)
    after = load("domains", **(options | more)).digest
    assert after != before
    assert load("domains", **(options | more)).digest == after
    (tmp_path / ".fedray-cache").rename(tmp_path / "aside")
    assert load("domains", **(options | more)).digest == after


def serve(monkeypatch: pytest.MonkeyPatch, found: dict[str, bytes]) -> None:
    """Answer requests for these addresses."""
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: contextlib.closing(io.BytesIO(found[url])))


def pack(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The zip file of a small Tiny-ImageNet, with its md5 for the published one; nothing is left unpacked."""
    files.tiny_imagenet(root / "made")
    archive = Path(shutil.make_archive(str(root.parent / "tiny"), "zip", root / "made"))
    shutil.rmtree(root / "made")
    monkeypatch.setattr(TinyImageNet, "md5", md5(archive))
    return archive


@pytest.mark.parametrize("put_there", [False, True])
def test_tiny_imagenet_is_unpacked(put_there: bool, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloaded, or from the zip file that the user put there; nothing is requested if it is here."""
    archive = pack(root, monkeypatch)
    serve(monkeypatch, {} if put_there else {TinyImageNet.url: archive.read_bytes()})
    if put_there:
        archive.rename(root / "tiny-imagenet-200.zip")
    make_data_source("tiny_imagenet").fetch()
    assert len(load("tiny_imagenet").y_train) == 6
    left = ["tiny-imagenet-200", *["tiny-imagenet-200.zip"] * put_there]
    assert sorted(path.name for path in root.iterdir() if path.name[0] != ".") == left
    serve(monkeypatch, {})
    make_data_source("tiny_imagenet").fetch()


@pytest.mark.parametrize("content", [b"half", b"PK"])
def test_a_damaged_zip_leaves_nothing_unpacked(root: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """One that was put there stays, another md5 is refused; one of the right md5 that is no zip file is refused."""
    (root / "tiny-imagenet-200.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"tiny-imagenet-200\.zip has md5 .*, published is 90528d7c"):
        make_data_source("tiny_imagenet").fetch()
    monkeypatch.setattr(TinyImageNet, "md5", md5(root / "tiny-imagenet-200.zip"))
    with pytest.raises(UserError, match=r"tiny-imagenet-200\.zip cannot be unpacked"):
        make_data_source("tiny_imagenet").fetch()
    assert [path.name for path in root.iterdir()] == ["tiny-imagenet-200.zip"]


def test_ag_news(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.ag_news(root.parent)
    held = {part: root.parent / "ag_news_csv" / f"{part}.csv" for part in ("train", "test")}
    serve(monkeypatch, {f"{ag_news.URL}/{part}.csv": path.read_bytes() for part, path in held.items()})
    with pytest.raises(UserError, match="ag_news: the download has md5"):
        make_data_source("ag_news").fetch()
    assert not list((root / "ag_news_csv").iterdir())
    monkeypatch.setattr(ag_news, "MD5", {part: md5(path) for part, path in held.items()})
    make_data_source("ag_news").fetch()
    assert len(load("ag_news").y_train) == 2


class Slow(Quiet):
    """A server that sends a byte every 50 ms, or after the first byte nothing."""

    pause = 0.05

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"x")
                time.sleep(self.pause)


@pytest.mark.parametrize(("pause", "message"), [(0.05, "it has sent"), (1.0, "timed out")])
def test_a_slow_server_is_given_up(pause: float, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 bytes per second instead of the 1,000 that are required after the patience, here of half a second."""
    monkeypatch.setattr(cache, "PATIENCE", 0.5)
    monkeypatch.setattr(Slow, "pause", pause)
    with serving(Slow) as server:
        began, address = time.monotonic(), f"http://127.0.0.1:{server.server_port}/x.zip"
        with pytest.raises(UserError, match=rf"x could not be downloaded \(.*{message}.*; put {address} in"):
            cache.download("x", address, tmp_path / "x.zip", "0")
        assert time.monotonic() - began < 4
    assert list(tmp_path.iterdir()) == []
