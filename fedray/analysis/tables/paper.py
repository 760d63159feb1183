"""Reading a LaTeX source: tables and macros that fedray wrote, and whether they still agree with the store."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedray.analysis.data.collect import SweepTable
from fedray.analysis.tables.build import COMMAND, TableOptions
from fedray.analysis.tables.formats import to_latex
from fedray.analysis.tables.macros import list_macros
from fedray.common.errors import UserError, format_count, name_place, truncate_repr, unknown
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


@dataclass(frozen=True)
class Disagreement:
    """An entry that differs. entry: row and column, or a key. stored: None if the store has no such entry."""

    entry: tuple[str, ...]
    found: Found
    stored: str | None

    def __str__(self) -> str:
        name = ", ".join(part for part in self.entry if part) or "first column"
        stored = "has no such entry" if self.stored is None else f"has {self.stored}"
        return f"{self.found.place}: {name}: found {self.found.text or 'nothing'}; the store {stored}"


@dataclass(frozen=True)
class Agreement:
    """The result of a check.

    Attributes:
        entries: number of entries of tables that were compared.
        macros: number of macros that were compared.
        disagreements: entries that differ.
        left_out: a line for each table that lacks entries of the store's.
    """

    entries: int
    macros: int
    disagreements: list[Disagreement]
    left_out: list[str]


def refuse_unusable(paper: Paper, sweeps: Sequence[str]) -> None:
    """Refuse what cannot be checked.

    Args:
        paper: the source.
        sweeps: names of the sweeps to check it against.

    Raises:
        UserError: it holds nothing of fedray, a table or macro of another sweep, a key that is used and not defined, or
            one that is defined twice with different numbers.
    """
    if not paper.blocks and not paper.uses:
        raise UserError(f"{paper.files[0]}: holds no table and no macro that fedray wrote")
    for block in paper.blocks:
        if block.sweep not in sweeps:
            what = "table" if block.is_table else "list of macros"
            raise UserError(
                f"{block.place}: found a {what} of {block.sweep}; checked against {', '.join(sweeps)}: "
                "name every sweep of the paper"
            )
    defined: dict[str, Found] = {}
    for block in paper.blocks:
        for (key, *_), found in block.entries.items() if not block.is_table else ():
            if defined.setdefault(key, found).text != found.text:
                raise UserError(f"{found.place}: {key} is defined differently at {defined[key].place}")
    for use in paper.uses:
        if not _is_computed(use.text) and use.text not in defined:
            raise unknown(f"{use.place}: \\fedray", use.text, defined)


def _is_computed(key: str) -> bool:
    """Return True for a key with an argument or a macro in it, whose value only LaTeX knows."""
    return "#" in key or "\\" in key


def compare_with_store(paper: Paper, sweeps: Mapping[str, SweepTable]) -> Agreement:
    """Compare every table and macro with what the store gives now.

    Args:
        paper: the source, accepted by `refuse_unusable`.
        sweeps: name -> sweep.

    Raises:
        UserError: the store no longer gives a table, for example because its reference row is gone.
    """
    counts, differ, left_out = {True: 0, False: 0}, list[Disagreement](), list[str]()
    known: dict[tuple[str, TableOptions, bool], dict[tuple[str, ...], str]] = {}
    for block in paper.blocks:
        key = block.sweep, block.options, block.is_table
        stored = known[key] = known.get(key) or _list_stored(block, sweeps[block.sweep])
        counts[block.is_table] += len(block.entries)
        differ += [
            Disagreement(entry, found, stored.get(entry))
            for entry, found in block.entries.items()
            if found.text != stored.get(entry)
        ]
        if lacking := len(stored.keys() - block.entries.keys()):
            left_out.append(f"{block.place}: {lacking} of the store's {len(stored)} entries are not in the source")
    return Agreement(counts[True], counts[False], differ, left_out)


def _list_stored(block: TexBlock, sweep: SweepTable) -> dict[tuple[str, ...], str]:
    """Return the entries of a block as the store gives them now."""
    with name_place(block.place):
        table = block.options.build(sweep)
    if not block.is_table:
        return {(key,): text for key, text in list_macros(table).items()}
    lines = [COMMENT.sub(r"\1", line) for line in to_latex(replace(table, command="")).split("\n")]
    _, _, body = "\n".join(lines).partition(r"\begin{tabular}")
    body = body.partition("}")[2].partition(r"\end{tabular}")[0]
    return {entry: found.text for entry, found in parse_rows(body).items()}


def describe(paper: Paper, agreement: Agreement) -> Iterator[str]:
    """Yield the lines of the result: what differs, what could not be read, and a summary."""
    yield from map(str, agreement.disagreements)
    yield from agreement.left_out
    yield from (f"{found.place}: {found.text} is not here and was not read" for found in paper.unread)
    for use in paper.uses:
        if _is_computed(use.text):
            yield f"{use.place}: \\fedray{{{use.text}}} has a computed key, which only LaTeX knows"
    entries = format_count(agreement.entries, "entry", "entries")
    what = f"{entries} of tables and {format_count(agreement.macros, 'macro')}"
    differ = len(agreement.disagreements)
    yield f"{differ} of {what} differ from the store" if differ else f"{what} agree with the store"
