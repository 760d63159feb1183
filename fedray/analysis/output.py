"""Output of scripts: printed, or written to a file whose name is printed; and the environment of page templates."""

import re
import sys

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from fedray.common.errors import escape
from fedray.common.output import OutputFile


def make_environment() -> Environment:
    """Return the environment of the pages' templates, which escape all their values."""
    return Environment(
        loader=PackageLoader("fedray.analysis"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_or_print(text: str, out: OutputFile | None) -> None:
    """Print a text, or write it to a file and print the file's name. Names in it do not steer the terminal.

    Raises:
        UserError: the file cannot be written.
    """
    if out is None:
        sys.stdout.write("".join(escape(line) if line != "\n" else line for line in re.split("(\n)", text)))
        return
    out.write(text)
    sys.stdout.write(f"{out.path}\n")
