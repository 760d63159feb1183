"""Files that a user names and fedray writes: whole or not at all, and not in place of what fedray did not write."""

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedray.common.errors import UserError, escape
from fedray.common.location import ARTIFACTS, find_local_file, get_storage, store_uri
from fedray.common.whole_files import write_file
from fedray.common.yaml_files import locate

PICTURES = (".png", ".svg", ".pdf")
ENDINGS = (*PICTURES, ".csv", ".html", ".json", ".md", ".npz", ".safetensors", ".tex", ".zip")
"""All formats that fedray writes."""


@dataclass(frozen=True)
class OutputFile:
    """A file to write, which is looked at when this is made, before anything is computed for it.

    A regular file that ends in one of `suffixes` is replaced; another file, and a new one with the ending of another
    format, is written only with `overwrite`. A new folder has no such ending. The store, what lies
    in its folder of artefacts or in the storage, and `inputs` are never replaced.

    Attributes:
        option: names the file, for messages: an option, or a function of Python.
        path: as the user wrote it; links are followed, and missing folders are made.
        suffixes: of the format.
        overwrite: the user gave `--overwrite`, or `overwrite=True`.
        inputs: files that the command reads, or writes as well.

    Raises:
        UserError: the file must not be replaced, or cannot be written.
    """

    option: str
    path: Path
    suffixes: Sequence[str]
    overwrite: bool = False
    inputs: Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        with self._name_failure():
            file = self._resolve()
            if not file.exists():
                with tempfile.TemporaryFile(dir=next(folder for folder in file.parents if folder.exists())):
                    pass
            elif file.is_file() or file.is_dir():  # opening a pipe may never end
                file.open("ab").close()

    def write(self, content: str | bytes) -> None:
        """Give the file this content; if that fails it keeps the one that it has. Raises UserError."""
        data = content.encode() if isinstance(content, str) else content
        with self._name_failure():
            file = self._resolve()
            if file.exists() and not file.is_file():
                file.write_bytes(data)  # into the pipe or device
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_file(file, data)

    def draw(self, figure: Any, dpi: int) -> None:
        """Write one of matplotlib's figures, PNG or PDF as the file ends, with its label in it. Raises UserError."""
        content, ending = io.BytesIO(), self.path.suffix[1:]
        figure.savefig(
            content,
            format=ending,
            dpi=dpi,
            metadata={"Subject" if ending == "pdf" else "Description": figure.get_label()},
        )
        self.write(content.getvalue())

    def _resolve(self) -> Path:
        """Return the file without links. Raises UserError if it must not be replaced."""
        file = Path(os.path.realpath(locate(self.option, str(self.path))))
        for read in self.inputs:
            real = os.path.realpath(read)
            if read and (str(file) == real or (file.exists() and file.is_relative_to(real))):
                raise UserError(f"{self.option}: {self.path} is read or written by this command; choose another name")
        taken = [(get_storage() / name, "belongs to the storage") for name in ("cells", "locks", "tune")]
        with contextlib.suppress(UserError):  # no store can be here
            if (store := find_local_file(store_uri())) is not None:
                taken += [(store, "is MLflow's store"), (store.parent / ARTIFACTS, "belongs to MLflow's store")]
        for location, why in taken:
            if file.is_relative_to(os.path.realpath(location)):
                raise UserError(f"{self.option}: {self.path} {why}; choose another name")
        folder = self.path.parent
        if folder.suffix in ENDINGS and not folder.exists():
            raise UserError(f"{self.option}: found {folder}; a folder is required, for files such as {self.path.name}")
        if not file.exists() and file.suffix in ENDINGS and file.suffix not in self.suffixes and not self.overwrite:
            raise UserError(
                f"{self.option}: found {self.path}; a file that ends in {' or '.join(self.suffixes)} is required"
            )
        if file.exists() and not file.is_dir() and not self.overwrite:
            how = "overwrite=True" if self.option.islower() and self.option.isidentifier() else "--overwrite"
            if not file.is_file():
                raise UserError(f"{self.option}: {self.path} is not a regular file; {how} writes into it")
            if file.suffix.lower() not in self.suffixes:
                raise UserError(
                    f"{self.option}: {self.path} exists and does not end in {' or '.join(self.suffixes)}; choose "
                    f"another name, or {how} replaces it"
                )
        return file

    @contextlib.contextmanager
    def _name_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"{self.option}: {self.path} cannot be written: {error.strerror}") from None


def escape_markdown(name: str) -> str:
    """Return a name of one line as Markdown shows it; `_` within a word marks nothing."""
    return re.sub(r"[\\`*~\[<|$]|(?<![a-zA-Z0-9])_|_(?![a-zA-Z0-9])|&(?=#?\w+;)", r"\\\g<0>", escape(name))


def format_grid(grid: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table, whose first row is its header."""
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    head, *lines = (
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in grid
    )
    return [head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines]


def write_or_print(text: str, out: OutputFile | None) -> None:
    """Print a text, or write it to a file and print the file's name. Names in it do not steer the terminal."""
    if out is None:
        sys.stdout.write("".join(escape(line) if line != "\n" else line for line in re.split("(\n)", text)))
        return
    out.write(text)
    sys.stdout.write(f"{out.path}\n")
