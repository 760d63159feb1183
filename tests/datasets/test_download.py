"""Downloads: whole and as published, or not at all."""

import contextlib
import io
import threading
import time
import urllib.request
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fedray.common.errors import UserError
from fedray.datasets import cache, make_data_source
from fedray.datasets import text as ag_news
from fedray.datasets.image_folders import TinyImageNet
from tests.datasets import files
from tests.datasets.files import load, md5


def serve(monkeypatch: pytest.MonkeyPatch, found: dict[str, bytes]) -> None:
    """Answer requests for these addresses."""

    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: contextlib.closing(io.BytesIO(found[url])))


def pack(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The zip file of a small Tiny-ImageNet, with its md5 for the published one; nothing is left unpacked."""
    files.tiny_imagenet(root / "made")
    archive = root.parent / "tiny.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for path in sorted((root / "made").rglob("*")):
            opened.write(path, path.relative_to(root / "made"))
            if path.is_file():
                path.unlink()
    for path in sorted((root / "made").rglob("*"), reverse=True):
        path.rmdir()
    (root / "made").rmdir()
    monkeypatch.setattr(TinyImageNet, "md5", md5(archive))
    return archive


def test_tiny_imagenet_is_unpacked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {TinyImageNet.url: pack(root, monkeypatch).read_bytes()})
    make_data_source("tiny_imagenet").fetch()
    assert [path.name for path in root.iterdir()] == ["tiny-imagenet-200"]
    assert len(load("tiny_imagenet").y_train) == 6
    serve(monkeypatch, {})
    make_data_source("tiny_imagenet").fetch()  # it is here: nothing is requested


def test_a_zip_that_was_put_there_is_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(root, monkeypatch).rename(root / "tiny-imagenet-200.zip")
    serve(monkeypatch, {})
    make_data_source("tiny_imagenet").fetch()
    assert len(load("tiny_imagenet").y_test) == 4


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


class Slow(BaseHTTPRequestHandler):
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

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(("pause", "message"), [(0.05, "it has sent"), (1.0, "timed out")])
def test_a_server_that_hardly_sends_is_given_up(
    pause: float, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 bytes per second instead of the 1,000 that are required after the patience, here of half a second."""
    monkeypatch.setattr(cache, "PATIENCE", 0.5)
    monkeypatch.setattr(Slow, "pause", pause)
    with HTTPServer(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        began = time.monotonic()
        address = f"http://127.0.0.1:{server.server_port}/x.zip"
        with pytest.raises(UserError, match=rf"x could not be downloaded \(.*{message}.*; put {address} in"):
            cache.download("x", address, tmp_path / "x.zip", "0")
        assert time.monotonic() - began < 4
        server.shutdown()
    assert list(tmp_path.iterdir()) == []
