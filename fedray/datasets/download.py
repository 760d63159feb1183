"""Downloads for `fedray data fetch`: one file at a time, whole and with the published md5, or not at all."""

import hashlib
import http.client
import shutil
import time
import urllib.request
import uuid
import zipfile
import zlib
from pathlib import Path

from fedray.common.errors import UserError, join_lines
from fedray.common.whole_files import open_file
from fedray.datasets.cache import write_data_file

PATIENCE = 60.0
"""Seconds that a server may be silent. After them it has to have sent SLOWEST bytes per second."""
SLOWEST = 1000


def download(name: str, url: str, path: Path, md5: str) -> None:
    """Download a file, unless it exists.

    Args:
        name: of the data set, for messages.
        url: an https address.
        path: where the file belongs.
        md5: as published.

    Raises:
        UserError: there is no access, or the file is not the published one.
    """
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
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        raise UserError(f"data.name: {name}: {what} has md5 {found}, published is {md5}")


def unpack(name: str, archive: Path, folder: Path) -> None:
    """Unpack a zip file whose content is one folder; the folder appears whole or not at all.

    Args:
        name: of the data set, for messages.
        archive: the zip file, which is trusted.
        folder: the folder to create; the archive has it under the same name.

    Raises:
        UserError: the archive is damaged, or the folder cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(partial)
        (partial / folder.name).rename(folder)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"data.name: {name}: {archive} cannot be unpacked: {join_lines(error)}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
