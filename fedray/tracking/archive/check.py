"""Checks of an archive, which may come from a stranger, before anything in it is used.

First come limits: on the file, and on the number, names and sizes of its members. Then each JSON member has to fit a
strict model (`members`), the hash of each cell that of its identity, and each checksum the bytes it is of.
"""

import contextlib
import hashlib
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from fedray.cells.record import parse_table
from fedray.common.errors import UserError, escape, join_lines, name_place, truncate_repr
from fedray.components.base import describe
from fedray.components.identity import hash_of
from fedray.tracking.archive.members import (
    DIGEST,
    HASH,
    SWEEP_TEXT,
    ArchivedEnvironment,
    ArchivedFormat,
    ArchivedRun,
    ArchivedSweep,
)
from fedray.tracking.environment import TAG
from fedray.tracking.store import SWEEP_FILE

FORMAT = 2
"""Increment when older versions of fedray could not read a new archive."""
FILE = 4 << 30
"""Maximum size of an archive in bytes."""
DIRECTORY = 16 << 20
"""Maximum size of a zip's list of members in bytes; Python reads it as a whole."""
JSON = 64 << 20
"""Maximum size of an unpacked JSON member in bytes."""
ARTIFACT = 256 << 20
"""Maximum size of any other unpacked member in bytes."""
UNPACKED = 8 << 30
"""Maximum size of all unpacked members together in bytes."""

PART = r"(?!(?i:con|prn|aux|nul|com\d|lpt\d)(?:[./]|$))\w[\w.+=@ -]{0,99}(?<![. ])"
"""One part of a member's name. It begins with a letter, a digit or `_`, so it is never empty, `.` or `..`.
Windows could not hold a device's name, with or without a suffix, or a name that ends with a dot or a space."""
DEPOSIT = (
    r"README\.md|citations\.bib|ro-crate-metadata\.json|"
    rf"tables/{PART}\.(?:md|tex|csv)|figures/{PART}\.(?:png|pdf)"
)
"""Members of a deposit, for its readers: an import checks their names, sizes and checksums, and reads none of them.
fedray 0.2 also wrote `ro-crate-metadata.json`.
"""
MEMBER = re.compile(
    rf"sweep\.(?:json|yaml)|{DEPOSIT}|splits/{DIGEST}|environments/{HASH}\.json|"
    rf"runs/({HASH})/(?:run\.json|artifacts((?:/{PART}){{1,8}}))",
    re.ASCII,
)
"""The whole name of a member."""
SPLITS: tuple[Literal["partition.npz", "partition.png"], ...] = ("partition.npz", "partition.png")
"""Artefacts of a run with its split; an archive holds each distinct one once, as `splits/SHA256`."""
TABLES = ("clients.csv", "confusion.csv")
"""Artefacts of a run that reports and figures read."""
END = struct.Struct("<4s8xL4xH")
"""End of a zip without a comment: its mark, the size of the list of members, the length of the comment."""
UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, NotImplementedError, RuntimeError)
"""Exceptions that `zipfile` raises for files that are damaged, encrypted or packed in an unknown way."""

M = TypeVar("M", bound=BaseModel)


class CheckedArchive:
    """An archive that passed every check.

    Attributes:
        sweep: its name, description and cells.
        cells: hashes of the cells that have a run.
        file: the sweep's file as text; empty if it is not there.
        environments: hash -> environment of the runs.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        _refuse_later(archive)
        self._artifacts = _check_members(archive)
        self.sweep = self._parse("sweep.json", ArchivedSweep)
        self.cells = list(self._artifacts)
        self.file = self._read_file() if SWEEP_FILE in archive.NameToInfo else ""
        if foreign := self._artifacts.keys() - self.sweep.hashes:
            raise UserError(f"runs/{min(foreign)}: sweep.json lists no such cell")
        self._check_splits(self.cells)
        self.environments = self._read_environments(self.cells)
        if damaged := archive.testzip():
            raise UserError(f"{damaged} is damaged")
        for name, path in (one for own in self._artifacts.values() for one in own.items()):
            if path in TABLES:
                with name_place(name):
                    parse_table(path.removesuffix(".csv"), archive.read(name))

    def _read_file(self) -> str:
        try:
            return SWEEP_TEXT.validate_python(self._archive.read(SWEEP_FILE).decode())
        except ValidationError as error:
            raise UserError(f"{SWEEP_FILE}: {escape(str(describe(error)))[:300]}") from None

    def run(self, cell: str) -> ArchivedRun:
        """Return the run of a cell."""
        return self._parse(f"runs/{cell}/run.json", ArchivedRun)

    def _check_splits(self, runs: list[str]) -> None:
        """Refuse a split that is missing, unused, under a wrong digest, or too large once each run has its copy."""
        named = [digest for cell in runs for digest in self.run(cell).splits.values()]
        members = {name for name in self._archive.namelist() if name.startswith("splits/")}
        if wrong := members ^ {f"splits/{digest}" for digest in named}:
            raise UserError(f"{min(wrong)}: " + ("no run names it" if wrong <= members else "there is no such member"))
        if twice := {f"runs/{cell}/artifacts/{file}" for cell in runs for file in self.run(cell).splits} & {
            name for own in self._artifacts.values() for name in own
        }:
            raise UserError(f"{min(twice)}: the run names a split, too")
        sizes = (self._archive.getinfo(f"splits/{digest}").file_size for digest in named)
        _check_size("the splits of all runs", sum(sizes), UNPACKED)
        for name in members:
            if hashlib.sha256(self._archive.read(name)).hexdigest() != name.removeprefix("splits/"):
                raise UserError(f"{name}: its content has another digest")

    def _read_environments(self, runs: list[str]) -> dict[str, dict[str, Any]]:
        """Return the environments that runs name; refuse one that is missing, unused, or under a wrong hash."""
        named = {hash for cell in runs for hash in self.run(cell).tags.get(TAG, "").split()}
        members = {name for name in self._archive.namelist() if name.startswith("environments/")}
        if wrong := members ^ {f"environments/{hash}.json" for hash in named}:
            raise UserError(
                f"{truncate_repr(min(wrong))}: "
                + ("no run names it" if wrong <= members else "there is no such member")
            )
        found = {hash: self._parse(f"environments/{hash}.json", ArchivedEnvironment).root for hash in named}
        for hash, content in found.items():
            if hash_of(content) != hash:
                raise UserError(f"environments/{hash}.json: its content has another hash")
        return found

    def unpack(self, cell: str, folder: Path) -> None:
        """Write the artefacts of a cell's run into an empty folder."""
        root = folder.resolve()
        for file, digest in self.run(cell).splits.items():
            (root / file).write_bytes(self._archive.read(f"splits/{digest}"))
        for name, path in self._artifacts[cell].items():
            target = (root / path).resolve()
            if not target.is_relative_to(root):  # names are checked already; this holds even if that check is wrong
                raise UserError(f"{name} would be written elsewhere")
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._archive.open(name) as packed, target.open("xb") as unpacked:
                shutil.copyfileobj(packed, unpacked)

    def _parse(self, member: str, model: type[M]) -> M:
        try:
            return model.model_validate_json(self._archive.read(member))
        except KeyError:
            raise UserError(f"there is no {member} in it") from None
        except ValidationError as error:
            raise UserError(f"{member}: {escape(str(describe(error)))[:300]}") from None


@contextlib.contextmanager
def open_checked(file: Path, failure: str) -> Iterator[CheckedArchive]:
    """Open an archive and check all of it, for the duration of a block.

    Args:
        file: the archive.
        failure: how the message of an error begins.

    Raises:
        UserError: the first thing in the archive that is wrong.
    """
    with contextlib.ExitStack() as opened:
        try:
            _check_file(file)
            archive = CheckedArchive(opened.enter_context(zipfile.ZipFile(file)))
        except UserError as error:
            raise UserError(f"{failure}: {error}") from None
        except OSError as error:
            raise UserError(f"{failure}: {error.strerror or error}") from None
        except UNREADABLE as error:
            raise UserError(f"{failure}: {escape(join_lines(error))}") from None
        yield archive


def _check_file(file: Path) -> None:
    """Refuse a file that is not regular, too large, or whose list of members is."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise UserError("the file is not a regular one")
    size = file.stat().st_size
    _check_size("the file", size, FILE)
    with file.open("rb") as opened:
        opened.seek(max(0, size - END.size))
        end = opened.read()
        opened.seek(max(0, size - END.size - 20))
        locator = opened.read(4)
    if len(end) < END.size or not end.startswith(b"PK\5\6") or not end.endswith(b"\0\0"):
        raise UserError("it is not a zip file, or something follows its end")
    if locator == b"PK\6\7" or END.unpack(end)[1] > DIRECTORY:
        raise UserError("it has too many members")


def _refuse_later(archive: zipfile.ZipFile) -> None:
    """Refuse a later format, whose members and keys this version does not know, before anything else is wrong."""
    member = archive.NameToInfo.get("sweep.json")
    if member is None or member.file_size > JSON:
        return
    with contextlib.suppress(ValidationError):
        if (found := ArchivedFormat.model_validate_json(archive.read(member)).format) > FORMAT:
            raise UserError(f"it was made by a later version of fedray (format {found}, this one reads up to {FORMAT})")


def _check_members(archive: zipfile.ZipFile) -> dict[str, dict[str, str]]:
    """Refuse members that `export` does not write.

    Returns:
        Hash of each cell with a run -> member with an artefact -> its path below the folder of artefacts.
    """
    artifacts: dict[str, dict[str, str]] = {}
    names: set[str] = set()
    for member in archive.infolist():
        name, shown = member.orig_filename, truncate_repr(member.orig_filename)
        matched = MEMBER.fullmatch(name)
        if matched is None or name != member.filename:
            raise UserError(f"{shown} is not the name of a file that an archive holds")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
            raise UserError(f"{shown} is not a regular file")
        cell, path = matched.groups()
        _check_size(shown, member.file_size, JSON if path is None else ARTIFACT)
        if name.lower() in names:
            raise UserError(f"{shown} is there twice, or but for capitals")
        names.add(name.lower())
        if cell is not None:
            own = artifacts.setdefault(cell, {})
            own |= {} if path is None else {name: path.removeprefix("/")}
    _check_size("the unpacked archive", sum(member.file_size for member in archive.infolist()), UNPACKED)
    if clash := names & {str(folder) for name in names for folder in PurePosixPath(name).parents}:
        raise UserError(f"{truncate_repr(min(clash))} is a file and a folder")
    return artifacts


def _check_size(what: str, size: int, most: int) -> None:
    if size > most:
        raise UserError(f"{what} has {size} bytes; at most {most} are allowed")
