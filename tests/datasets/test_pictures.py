"""Pictures with more than 8 bits are scaled, not clipped, and no picture starts a program."""

import io
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedray.common.errors import UserError
from fedray.datasets.image_folders import open_picture
from tests.datasets.files import load

GREY = (np.arange(64 * 64).reshape(64, 64) % 64 * 1000).astype(np.uint16)
"""64 values from 0 to 63,000; of 65,535, they are 0 to 245 of 255."""


def tiff(path: Path, values: np.ndarray, bits: int, black: int = 1, sign: int = 1) -> None:
    """A TIFF with 12, 16 or 32 bits per pixel, as other programs write it; sign: SampleFormat 1 or 2."""
    data = values.astype(f"<{'ui'[sign - 1]}{bits // 8}").tobytes() if bits != 12 else pack_12(values)
    tags = [(256, 4, values.shape[1]), (257, 4, values.shape[0]), (258, 3, bits), (259, 3, 1), (262, 3, black)]
    tags += [(273, 4, 8), (277, 3, 1), (278, 4, values.shape[0]), (279, 4, len(data)), (339, 3, sign)]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    path.write_bytes(
        b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + b"\0" * 4
    )


def pack_12(values: np.ndarray) -> bytes:
    """Two values of 12 bits in three bytes, the highest bits first."""
    a, b = values.ravel()[::2].astype(int), values.ravel()[1::2].astype(int)
    return np.stack([a >> 4, ((a & 15) << 4) | (b >> 8), b & 255], -1).astype(np.uint8).tobytes()


def pgm(path: Path, values: np.ndarray, largest: int) -> None:
    path.write_bytes(f"P5 64 64 {largest}\n".encode() + values.astype(">u2").tobytes())


DEEP: dict[str, tuple[str, Callable[[Path], None], np.ndarray]] = {
    "PNG": ("png", lambda path: Image.fromarray(GREY).save(path), GREY / 257),
    "TIFF": ("tif", lambda path: Image.fromarray(GREY).save(path), GREY / 257),
    "TIFF, big-endian": ("tif", lambda path: Image.fromarray(GREY.astype(">u2")).save(path), GREY / 257),
    "TIFF of 32 bits": ("tif", lambda path: Image.fromarray(GREY.astype(np.int32)).save(path), GREY / 257),
    "TIFF with a sign": ("tif", lambda path: tiff(path, GREY // 2, 16, sign=2), GREY // 2 / 257),
    "TIFF, 12 bits in 16": ("tif", lambda path: Image.fromarray(GREY // 16).save(path), GREY // 16 / 257),
    "TIFF of 12 bits": ("tif", lambda path: tiff(path, GREY // 16, 12), GREY // 16 * (255 / 4095)),
    "PGM": ("pgm", lambda path: pgm(path, GREY, 65535), GREY / 257),
    "PGM of 12 bits": ("pgm", lambda path: pgm(path, GREY // 16, 4095), GREY // 16 * (255 / 4095)),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("case", DEEP)
def test_grey_of_more_than_8_bits_is_scaled(case: str, channels: int, root: Path) -> None:
    """v of 65,535 is round(255 v / 65,535) = round(v / 257); 12 bits end at 4,095. Clipped, all but 0 would be 255."""
    suffix, save, expected = DEEP[case]
    for path in ("own/train/a", "own/test/a"):
        (root / path).mkdir(parents=True)
        save(root / path / f"0.{suffix}")
    data = load("folder", path=str(root / "own"), size=64, channels=channels)
    assert data.x_train.shape == (1, channels, 64, 64)
    for channel in data.x_train[0]:
        assert np.abs(channel - expected.round()).max() <= 1


def test_orientation_is_kept(root: Path) -> None:
    """Orientation 6: the first row of the file is the last column of the picture."""
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(GREY[:2, :3]).save(file, "PNG", exif=exif)
    assert np.asarray(open_picture(file)).tolist() == np.rot90((GREY[:2, :3] / 257).round(), -1).tolist()


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (lambda path: Image.fromarray(GREY.astype(np.float32)).save(path), "floating-point numbers, whose range"),
        (lambda path: tiff(path, GREY.astype(np.int64) * 1000, 32), "its pixels are 0 to 63000000 in 32 bits"),
        (lambda path: tiff(path, GREY // 256, 32), "its pixels are 0 to 246 in 32 bits, whose range is not known"),
        (lambda path: tiff(path, GREY // 2 - 1000, 16, sign=2), "its pixels are -1000 to 30500 in 16 bits"),
        (lambda path: tiff(path, GREY, 16, black=0), "interpretation 0; 1 is required, zero as black"),
    ],
)
def test_what_cannot_be_scaled_is_refused_with_its_name(save: Callable[[Path], None], message: str, root: Path) -> None:
    for path in ("own/train/a", "own/test/a"):
        (root / path).mkdir(parents=True)
        save(root / path / "0.tif")
    with pytest.raises(
        UserError, match=rf"^data\.path: {root}/own/train/a/0\.tif cannot be read: .*{message}"
    ) as found:
        load("folder", path=str(root / "own"), size=64)
    assert "\n" not in str(found.value)


def test_pictures_that_stay_almost_black_are_announced(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """63,000 / 16 = 3,937 of 65,535 is 15 of 255."""
    for path in ("own/train/a", "own/test/a"):
        (root / path).mkdir(parents=True)
        Image.fromarray(GREY // 16).save(root / path / "0.png")
    load("folder", path=str(root / "own"), size=64)
    assert "folder: the largest of all pixels is 15 of 255; 16 bits are scaled from 65,535" in caplog.text


def test_no_picture_starts_a_program(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow calls `gs` for a file that begins as PostScript, whatever its name is."""
    (root / "gs").write_text(f"#!/bin/sh\ntouch {root}/started\nexit 1\n")
    (root / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(root), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n%%EOF\n"
    wrong = root / "own/train/a/0.png"
    for part in ("train", "test"):
        (root / "own" / part / "a").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(root / "own" / part / "a/0.png")
    wrong.write_bytes(script)
    with pytest.raises(UserError, match=rf"{wrong} cannot be read: UnidentifiedImageError: "):
        load("folder", path=str(root / "own"), size=8)
    assert not (root / "started").exists()
