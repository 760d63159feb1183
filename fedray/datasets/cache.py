"""A cache of arrays that are slow to decode: memory-mapped .npy files under `get_data_dir()/.fedray-cache`.

Downloads for `fedray data fetch`: one file at a time, whole and with the published md5, or not at all.
"""

import contextlib
import hashlib
import http.client
import logging
import os
import shutil
import time
import urllib.request
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

import numpy as np

from fedray.common.errors import UserError, join_lines, restate
from fedray.common.whole_files import open_file, write_whole
from fedray.datasets.base import get_data_dir

log = logging.getLogger("fedray")
OLD = 24 * 3600.0
"""Age in seconds from which an unfinished folder is assumed to be left by a killed process."""
PATIENCE = 60.0
"""Seconds that a server may be silent. After them it has to have sent SLOWEST bytes per second."""
SLOWEST = 1000


@contextlib.contextmanager
def write_data_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file of a data set to write to, as `write_whole`. Raises UserError if it cannot be written."""
    try:
        with write_whole(path) as file:
            yield file
    except OSError as error:
        raise UserError(f"data.name: {path.parent} cannot be written: {error.strerror}") from None


def cache_arrays(
    name: str, version: str, sources: Iterable[Path], names: Iterable[str], decode: Callable[[], dict[str, np.ndarray]]
) -> dict[str, Any]:
    """Return the arrays of `decode()`, which have these names, read-only and memory-mapped; they are decoded again only
    if what decides them has changed.

    The key consists of `version` (of the decoder, with everything else that decides the arrays: options, labels, the
    test set) and of every source's path, size and times, in the order in which `decode` reads them. One of these times
    is that of the last change of any kind (ctime): it tells apart files that exchange their contents and keep size and
    modification time. The folder appears whole or not at all. If two processes decode at once, one of them wins. Raises
    UserError if the cache cannot be written or read, or is damaged.
    """
    root = get_data_dir() / ".fedray-cache"
    folder = root / f"{name}-{_make_key(version, sources)}"
    if not os.path.isdir(folder):
        partial = root / f".{name}-{uuid.uuid4().hex}"
        new = [path for path in (root, *root.parents) if not path.exists()]
        try:
            root.mkdir(parents=True, exist_ok=True)
            for old in root.glob(".*"):  # half-decoded folders of killed processes
                with contextlib.suppress(OSError):
                    if time.time() - old.stat().st_mtime > OLD:
                        shutil.rmtree(old, ignore_errors=True)
            partial.mkdir()
        except OSError as error:
            raise UserError(f"data.name: {name}: {root} cannot be written: {error.strerror}") from None
        log.info("%s: decoding once into %s", name, folder)
        try:
            for key, array in decode().items():
                with write_whole(partial / f"{key}.npy") as file:
                    np.save(file, array)
            with contextlib.suppress(OSError):  # another process was first; its folder is equivalent
                partial.rename(folder)
        except OSError as error:
            raise UserError(f"data.name: {name}: {root} cannot be written: {error}") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            with contextlib.suppress(OSError):  # not empty, unless it has failed
                for path in new:
                    path.rmdir()
    try:
        return {key: np.load(folder / f"{key}.npy", mmap_mode="r") for key in names}
    except PermissionError as error:
        raise UserError(
            f"data.name: {name}: the cache {folder} cannot be read: {error.strerror}; let its owner open it to you"
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"data.name: {name}: the cache {folder} is damaged; remove it: {join_lines(error)}") from None


def _make_key(version: str, sources: Iterable[Path]) -> str:
    digest = hashlib.sha256(version.encode())
    for path in sources:
        try:
            stat = path.stat()
        except OSError as error:
            raise UserError(f"data.name: {path} cannot be read: {error.strerror}") from None
        if not S_ISREG(stat.st_mode):
            raise UserError(f"data.name: {path} is not a regular file")
        name = path.relative_to(get_data_dir()) if path.is_relative_to(get_data_dir()) else path.resolve()
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\n".encode())
    return digest.hexdigest()[:16]


def download(name: str, url: str, path: Path, md5: str) -> None:
    """Download a file, unless it exists. Raises UserError without access, or for another than the published file."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_data_file(path) as file:
        began = time.monotonic()
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310, an address of ours
                while piece := answer.read1(1 << 20):
                    file.write(piece)
                    if (seconds := time.monotonic() - began) > PATIENCE and file.tell() < SLOWEST * seconds:
                        raise OSError(f"it has sent {file.tell()} bytes in {seconds:.0f} s")
        except (OSError, http.client.HTTPException) as error:
            raise UserError(f"data.name: {name} could not be downloaded ({error}); put {url} in {path}") from None
        file.flush()
        check_md5(name, "the download", Path(file.name), md5)


def check_md5(name: str, what: str, path: Path, md5: str) -> None:
    """Refuse a file with another md5. Raises UserError that calls the file `what`."""
    try:
        file = open_file(path)
    except OSError as error:
        raise UserError(f"data.name: {name}: {path} cannot be read: {error.strerror}") from None
    with file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if digest != md5:
        raise UserError(f"data.name: {name}: {what} has md5 {digest}, published is {md5}")


def unpack(name: str, archive: Path, folder: Path) -> None:
    """Unpack a trusted zip file whose content is one folder; the folder appears whole or not at all.

    Raises UserError if the archive is damaged, or the folder cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    failure = f"data.name: {name}: {archive} cannot be unpacked"
    try:
        with restate(failure, OSError, zipfile.BadZipFile, zlib.error, EOFError):
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(partial)
            (partial / folder.name).rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
