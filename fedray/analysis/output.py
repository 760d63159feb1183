"""Output of scripts: printed, or written to a file whose name is printed."""

import re
import sys

from fedray.common.errors import escape
from fedray.common.output import OutputFile


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
