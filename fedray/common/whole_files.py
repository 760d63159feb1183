"""Files that appear whole or not at all: written under another name next to their own, and renamed; reading one, and
locking a folder."""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Bytes of this machine's memory: a larger file cannot be held."""


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to. It takes its name at the end of the block; a block that fails leaves no file behind.

    The other name has a random number and `.tmp` at its end; `Checkpoints` removes what killed processes left. Raises
    OSError.
    """
    partial = path.with_name(f"{path.name}.{secrets.randbits(64)}.tmp")
    try:
        with partial.open("xb") as file:  # not by tempfile, whose files only their owner can read
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_folder(folder: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Lock a folder against other processes for the duration of a block. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, how)
        yield
    finally:
        os.close(opened)


def open_file(path: Path, most: int = MEMORY) -> BufferedReader:
    """Open a file that a user names, or has put among data, for reading.

    Raises OSError if it cannot be read, is larger than `most` bytes, or is a pipe or a device, from which reading may
    never end.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    file = path.open("rb")
    if os.fstat(file.fileno()).st_size > most:
        file.close()
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return file


def read_file(path: Path, most: int = 1 << 30) -> bytes:
    """Return the content of a file as `open_file` opens it. Raises OSError."""
    with open_file(path, most) as file:
        return file.read()


def write_file(path: Path, content: bytes) -> None:
    """Write a file as `write_whole`. Raises OSError."""
    with write_whole(path) as file:
        file.write(content)
