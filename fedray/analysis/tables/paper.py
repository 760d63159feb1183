"""Reading a LaTeX source: tables and macros that fedray wrote, and the macros that it uses."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedray.analysis.tables.options import COMMAND, TableOptions
from fedray.common.errors import UserError, truncate_repr
from fedray.common.whole_files import read_file

COMMENT = re.compile(r"((?<!\\)(?:\\\\)*)%.*")
INPUT = re.compile(r"\\(?:input|include|subfile)\s*\{([^{}]+)\}|\\input\s+([^\s{}\\]+)")
USE = re.compile(r"\\fedray\s*\{([^{}]*)\}")
DEFINITION = re.compile(r"^\\expandafter\\def\\csname fedray@(.+?)\\endcsname\{(.*)\}%?\s*$")
RULES = re.compile(
    r"\\(?:toprule|midrule|bottomrule|specialrule|hline|cline|cmidrule|addlinespace)\b"
    r"(?:\([^()]*\))?(?:\[[^\[\]]*\])?(?:\{[^{}]*\})*"
)
ROW_END = re.compile(r"(?<!\\)\\\\\*?(?:\[[^\[\]]*\])?")
LARGEST = 64 << 20
"""Maximum size of a file in bytes."""


@dataclass(frozen=True)
class Found:
    """A text of the source and its place, `paper.tex, line 12`."""

    text: str
    place: str


@dataclass(frozen=True)
class TexBlock:
    """A table or a list of macros that fedray wrote.

    Attributes:
        sweep: its name.
        options: of the command that wrote it.
        place: of the comment that states the command.
        entries: row and column, or the key of a macro -> the text in the source.
    """

    sweep: str
    options: TableOptions
    place: str
    is_table: bool
    entries: dict[tuple[str, ...], Found] = field(default_factory=dict)


@dataclass(frozen=True)
class Paper:
    r"""A LaTeX source with the files that it inputs.

    Attributes:
        blocks: everything that fedray wrote.
        uses: keys of `\fedray{KEY}`, with their places.
        files: that were read.
        unread: names of inputs that are not here, with their places.
    """

    blocks: list[TexBlock]
    uses: list[Found]
    files: list[Path]
    unread: list[Found]


def read_paper(path: Path) -> Paper:
    r"""Read a LaTeX source and everything that it takes in with `\input`, `\include` and `\subfile`.

    Raises:
        UserError: a file cannot be read, or a table is not as fedray writes it.
    """
    paper, waiting = Paper([], [], [], []), [path]
    while waiting:
        if (file := waiting.pop()) not in paper.files:
            waiting += reversed(_read_file(file, path.parent, paper))
    return paper


def _read_file(path: Path, folder: Path, paper: Paper) -> list[Path]:
    """Add what a file holds to `paper`; return the files that it takes in."""
    try:
        text = read_file(path, LARGEST).decode().replace("\r\n", "\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8") from None
    paper.files.append(path)
    lines = text.split("\n")
    bare = [COMMENT.sub(r"\1", line) for line in lines]
    paper.blocks.extend(_iter_blocks(path, lines, bare))
    inputs = []
    for number, line in enumerate(bare, 1):
        place = f"{path}, line {number}"
        paper.uses.extend(Found(match[1].strip(), place) for match in USE.finditer(line))
        for match in INPUT.finditer(line):
            name = (match[1] or match[2]).strip()
            candidates = (folder / f"{name}.tex", folder / name)
            taken = next((one for one in candidates if one.is_file()), None)
            if taken is None:
                paper.unread.append(Found(name, place))
            else:
                inputs.append(taken)
    return inputs


def _iter_blocks(path: Path, lines: list[str], bare: list[str]) -> Iterator[TexBlock]:
    """Yield the blocks of a file. A block of macros ends with the next comment of a command."""
    macros: TexBlock | None = None
    for number, line in enumerate(lines):
        place = f"{path}, line {number + 1}"
        if (match := DEFINITION.match(bare[number].strip())) is not None:
            if macros is None:
                raise UserError(f"{place}: a macro of fedray without the comment `% {COMMAND} ...` above it")
            macros.entries[(match[1],)] = Found(match[2], place)
        if (command := _get_command(line)) is None:
            continue
        sweep, options, more = TableOptions.parse(command, place)
        if "macros" in more:
            macros = TexBlock(sweep, options, place, is_table=False)
            yield macros
        elif "format" in more:
            yield TexBlock(sweep, options, place, True, _read_table(path, lines, bare, number + 1, place))


def _get_command(line: str) -> str | None:
    """Return the command that the comment of a table or of macros states; None for another line."""
    command = line.strip().removeprefix("%").strip()
    return command if line.lstrip().startswith("%") and command.startswith(f"{COMMAND} ") else None


def _read_table(path: Path, lines: list[str], bare: list[str], start: int, place: str) -> dict[tuple[str, ...], Found]:
    r"""Read the rows from a line, counted from 0, to the next `\end{tabular}`, which comes before the next command."""
    stop = start
    while stop < len(lines) and r"\end{tabular" not in bare[stop]:
        if _get_command(lines[stop]) is not None:
            stop = len(lines)
        stop += 1
    if stop >= len(lines):
        raise UserError(rf"{place}: the table has no \end{{tabular}}")
    body = "\n".join(bare[start : stop + 1]).partition(r"\end{tabular")[0]
    breaks = [place for place, letter in enumerate(body) if letter == "\n"]
    return parse_rows(body, lambda before: f"{path}, line {start + 1 + bisect_left(breaks, before)}")


def parse_rows(body: str, locate: Callable[[int], str] = lambda before: "") -> dict[tuple[str, ...], Found]:
    """Read the body of a tabular.

    Args:
        body: everything between the column specification and the end, without comments.
        locate: number of characters before a row -> its place.

    Returns:
        Row and column -> entry, in LaTeX; the first row names the columns.

    Raises:
        UserError: a row has another number of entries than the first one.
    """
    body = RULES.sub(lambda match: " " * len(match[0]), body)
    found, columns, start = dict[tuple[str, ...], Found](), list[str](), 0
    for match in ROW_END.finditer(body):
        row = body[start : match.start()]
        cells = [" ".join(cell.split()) for cell in re.split(r"(?<!\\)&", row)]
        place = locate(start + len(row) - len(row.lstrip()))
        start = match.end()
        if not columns:
            columns = cells[1:]
        elif len(cells) != len(columns) + 1:
            raise UserError(
                f"{place}: found {len(cells)} entries in the row {truncate_repr(cells[0])}; the first row has "
                f"{len(columns) + 1}, as `{COMMAND} --format latex` writes tables"
            )
        else:
            found |= {(cells[0], column): Found(cell, place) for column, cell in zip(columns, cells[1:], strict=True)}
    return found
