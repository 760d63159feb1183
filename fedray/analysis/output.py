"""Output of scripts: printed, or written to a file whose name is printed; and the environment of page templates."""

import re
import sys
import tempfile
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from fedray.common.errors import UserError, escape


def make_environment() -> Environment:
    """Return the environment of the pages' templates, which escape all their values."""
    return Environment(
        loader=PackageLoader("fedray.analysis"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def make_dir(out: Path) -> None:
    """Create a folder if needed, before anything is computed for it.

    Raises:
        UserError: it cannot be created or written to.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise UserError(f"--out: {out} cannot be written: {error.strerror}") from None


def write_or_print(text: str, out: Path | None) -> None:
    """Print a text, or write it to a file and print the file's name. Names in it do not steer the terminal.

    Raises:
        UserError: the file cannot be written.
    """
    if out is None:
        sys.stdout.write("".join(escape(line) if line != "\n" else line for line in re.split("(\n)", text)))
        return
    write(text, out)
    sys.stdout.write(f"{out}\n")


def write(text: str, out: Path, option: str = "--out") -> None:
    """Write a text to a file, whose folder is created if needed.

    Args:
        text: whole lines.
        out: the file.
        option: that names the file, for messages.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{option}: {out} cannot be written: {error.strerror}") from None
