"""Arrays that are slow to decode are decoded once: memory-mapped .npy files under `<data_dir>/.fedray-cache`."""

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from stat import S_ISREG

import numpy as np

from fedray.common.errors import UserError, one_line
from fedray.datasets.base import data_dir

log = logging.getLogger("fedray")


@contextlib.contextmanager
def partial_name(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; it becomes `path` at the end of the block, or is removed where that fails."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as made:
            partial = Path(made.name)
    except OSError as error:
        raise UserError(f"data.name: {path.parent} cannot be written: {error.strerror}") from None
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def cached(
    name: str,
    version: str,
    sources: Iterable[Path],
    decode: Callable[[], dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """The arrays of `decode()`, read-only and memory-mapped, decoded again only when a source file has changed.

    The key is made of `version` and of every source's path, size and time of modification. The folder appears whole or
    not at all. If two processes decode at once, one of them wins.

    Args:
        name: of the data set.
        version: of the decoder and its options.
        sources: the files that `decode` reads.
        decode: makes the arrays.

    Raises:
        UserError: the cache cannot be written, or it is damaged.
    """
    root = data_dir() / ".fedray-cache"
    folder = root / f"{name}-{_key(version, sources)}"
    if not folder.is_dir():
        try:
            root.mkdir(exist_ok=True)
            partial = Path(tempfile.mkdtemp(dir=root, prefix=f".{name}-"))
        except OSError as error:
            raise UserError(f"data.name: {name}: {root} cannot be written: {error.strerror}") from None
        log.info("%s: decoding once into %s", name, folder)
        try:
            for key, array in decode().items():
                np.save(partial / f"{key}.npy", array)
            with contextlib.suppress(OSError):  # another process was first: its folder is as good
                partial.rename(folder)
        except OSError as error:
            raise UserError(f"data.name: {name}: {root} cannot be written: {error}") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    try:
        return {file.stem: np.load(file, mmap_mode="r") for file in sorted(folder.glob("*.npy"))}
    except (OSError, ValueError) as error:
        raise UserError(f"data.name: {name}: the cache {folder} is damaged; remove it: {one_line(error)}") from None


def _key(version: str, sources: Iterable[Path]) -> str:
    digest = hashlib.sha256(version.encode())
    for path in sorted(sources):
        try:
            stat = path.stat()
        except OSError as error:
            raise UserError(f"data.name: {path} cannot be read: {error.strerror}") from None
        if not S_ISREG(stat.st_mode):
            raise UserError(f"data.name: {path} is not a regular file")
        digest.update(f"{path.relative_to(data_dir())}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
