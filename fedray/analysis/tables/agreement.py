"""Whether the tables and macros of a LaTeX source still agree with the store: `fedray check paper.tex NAME`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedray.analysis.data.collect import SweepTable
from fedray.analysis.tables.formats import to_latex
from fedray.analysis.tables.macros import list_macros
from fedray.analysis.tables.options import TableOptions
from fedray.analysis.tables.paper import COMMENT, Found, Paper, TexBlock, parse_rows
from fedray.common.errors import UserError, format_count, unknown


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
    try:
        table = block.options.build(sweep)
    except UserError as error:
        raise UserError(f"{block.place}: {error}") from None
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
